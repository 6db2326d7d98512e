"""What a replay would do, where letters go, and what is sent; all of it without servers."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pipeline.core.clock import ManualClock
from pipeline.core.desk import PlanGroup
from pipeline.core.letters import read_letter
from pipeline.core.topics import TopicNames
from pipeline.errors import ConfigError, PayloadError, RegistryUnavailable
from pipeline.runtime.dlq_pace import Pace
from pipeline.runtime.dlq_plan import Flow, Plan, make_plan
from pipeline.runtime.dlq_records import Targets, outgoing
from tests.unit.foreign_letters import foreign_record, spring_headers
from tests.unit.letter_examples import MAIN, dead_record, letter

NAMES = TopicNames("jobs")
DECLARED = [
    MAIN,
    "jobs.gpu.normal",
    "jobs.gpu.critical",
    "jobs.default.retry.10s",
    "jobs.default.dlq",
    "jobs.events",
]
DLQS = ["jobs.default.dlq", "jobs.gpu.dlq", "orders-dlt"]
KNOWN = "00" * 8


def targets(to: str = "") -> Targets:
    return Targets(names=NAMES, declared=DECLARED, letters=DLQS, to=to)


def group(**given: Any) -> PlanGroup:
    usual = {
        "queue": "default",
        "priority": "normal",
        "origin": "",
        "job_type": "email.send",
        "tenant": "acme",
        "schema": KNOWN,
        "malformed": False,
        "unreadable": False,
        "foreign": False,
        "worn": False,
        "standing": "open",
        "letters": 1,
    }
    return PlanGroup(**{**usual, **given})


def check_schema(job_type: str, schema: str) -> None:
    if schema == "id:7":
        raise RegistryUnavailable("no answer")
    if schema != KNOWN:
        raise PayloadError(f"{job_type}: schema {schema} is not known")


def plan(*groups: PlanGroup, to: str = "", parked: bool = False) -> Plan:
    return make_plan(groups, targets=targets(to), check_schema=check_schema, parked=parked)


# --- where letters go


@pytest.mark.parametrize(
    ("queue", "priority", "origin", "target"),
    [
        ("default", "normal", "", MAIN),
        ("default", "critical", "", MAIN),
        ("gpu", "critical", "", "jobs.gpu.critical"),
        ("default", "normal", "orders", "orders"),
        ("orders-dlt", "normal", "", ""),
        ("default", "normal", "orders-dlt", ""),
    ],
)
def test_letters_go_where_they_came_from(queue: str, priority: str, origin: str, target: str) -> None:
    assert targets().of(queue, priority, origin) == target


def test_a_topic_that_is_named_takes_all_and_must_be_a_main_topic() -> None:
    assert targets("jobs.gpu.normal").of("default", "normal", "orders") == "jobs.gpu.normal"
    for wrong in ("orders", "jobs.default.dlq", "jobs.default.retry.10s", "jobs.events", "jobs.cpu.normal"):
        with pytest.raises(ConfigError, match=f"--to is '{wrong}'; allowed: a main topic, which are jobs"):
            targets(wrong)


def test_a_letter_of_spring_with_a_job_of_ours_goes_on_as_a_job() -> None:
    inner = dead_record(hop=3)
    kept = [
        (n, v)
        for n, v in inner.headers
        if not n.startswith(("pipeline-last", "pipeline-first", "pipeline-reason"))
    ]
    read = read_letter(foreign_record([*kept, *spring_headers()]), queue="default")
    sent = outgoing(read, topic=MAIN)
    headers = dict(sent.headers)
    assert headers["pipeline-hop"] == b"4"
    assert not [name for name in headers if name.startswith("kafka_")]
    assert "pipeline-letter" not in headers


def test_another_payload_takes_the_place_of_the_old_one_and_of_what_named_its_schema() -> None:
    read = letter(value=b"old", extra=[("__value_schema_id", b"\x00\x00\x00\x00\x07")])
    sent = outgoing(read, topic=MAIN, value=b"")
    assert (sent.key, sent.value) == (b"acme", b"")
    assert "__value_schema_id" not in dict(sent.headers)
    assert dict(outgoing(read, topic=MAIN).headers)["__value_schema_id"] == b"\x00\x00\x00\x00\x07"


# --- plans


def test_a_plan_counts_what_goes_where_and_why_the_rest_stays() -> None:
    found = plan(
        group(letters=5),
        group(letters=2, tenant="globex", queue="gpu"),
        group(letters=3, origin="orders", foreign=True, malformed=True, job_type="unknown", schema=""),
        group(letters=4, standing="replayed"),
        group(letters=6, standing="completed"),
        group(letters=7, standing="parked"),
        group(letters=8, worn=True),
        group(letters=9, queue="orders-dlt"),
        group(letters=1, standing="unsettled"),
    )
    assert found.flows == {
        Flow("email.send", "acme", MAIN): 5,
        Flow("email.send", "globex", "jobs.gpu.normal"): 2,
        Flow("unknown", "acme", "orders"): 3,
    }
    assert (found.selected, found.to_send) == (45, 10)
    assert found.kept == {
        "replayed": 4,
        "completed": 6,
        "parked": 7,
        "worn": 8,
        "untargeted": 9,
        "unsettled": 1,
    }
    assert found.undecodable.total() == 0


def test_parked_letters_go_when_they_are_asked_for_however_often_they_went_before() -> None:
    assert plan(group(standing="parked", worn=True), parked=True).to_send == 1


def test_what_nobody_here_could_read_is_flagged_and_goes_all_the_same() -> None:
    found = plan(
        group(schema="11" * 8, letters=2),
        group(unreadable=True, letters=3),
        group(malformed=True, letters=4),
        group(foreign=True, malformed=True, origin="orders", schema="", letters=5),
    )
    assert (found.to_send, found.undecodable.total()) == (14, 9)
    assert found.flagged == {
        f"email.send: schema {'11' * 8} is not known": 2,
        "died because its payload could not be decoded": 3,
        "its headers are no job's": 4,
    }
    of_others = group(foreign=True, malformed=True, origin="orders", schema="", letters=5)
    assert plan(of_others, to=MAIN).undecodable.total() == 5


def test_a_registry_that_is_away_is_asked_once() -> None:
    found = plan(group(schema="id:7"), group(schema="22" * 8), group(schema="id:7", tenant="globex"))
    assert (found.schema_problem, found.undecodable.total()) == ("no answer", 0)


# --- pace


class Paces:
    """A pace whose waiting moves the clock."""

    def __init__(self, *, rate: float = 0, max_lag: int = 0, lag: int = 0) -> None:
        self.clock = ManualClock(1000.0)
        self.lag = lag
        self.looks = 0
        self.stop = _Stop(self.clock)
        self.pace = Pace(rate=rate, max_lag=max_lag, lags=self._lags, clock=self.clock, stop=self.stop)

    def _lags(self) -> dict[str, int]:
        self.looks += 1
        return {MAIN: self.lag}


class _Stop(threading.Event):
    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.advance(timeout or 0.0)
        return self.is_set()


def test_no_more_letters_are_sent_than_the_rate_says() -> None:
    paced = Paces(rate=100)
    start, sent = paced.clock.monotonic(), 0
    while sent < 1000:
        assert paced.pace.wait(print)
        count = paced.pace.batch(1000)
        paced.pace.sent(count)
        sent += count
    assert count == 20
    assert 9.3 <= paced.clock.monotonic() - start <= 10


def test_time_without_letters_is_not_made_up_for() -> None:
    paced = Paces(rate=10)
    paced.clock.advance(3600)
    start = paced.clock.monotonic()
    for _ in range(10):
        paced.pace.wait(print)
        paced.pace.sent(2)
    assert paced.clock.monotonic() - start >= 1.5


def test_it_holds_back_while_the_workers_are_behind_and_says_so() -> None:
    paced = Paces(max_lag=100, lag=101)
    told: list[str] = []

    def tell(why: str) -> None:
        told.append(why)
        if len(told) == 3:
            paced.lag = 100

    assert paced.pace.wait(tell)
    assert told == [f"the workers of {MAIN} are 101 behind"] * 3


def test_the_lag_is_looked_at_again_after_half_of_it_was_sent_or_a_second() -> None:
    paced = Paces(max_lag=100)
    for count in (0, 30, 30):
        paced.pace.sent(count)
        paced.pace.wait(print)
    assert (paced.looks, paced.pace.batch(1000)) == (2, 50)
    paced.clock.advance(1.1)
    paced.pace.wait(print)
    assert paced.looks == 3


@pytest.mark.parametrize("lag", [0, 101])
def test_all_waiting_ends_when_it_is_told_to_stop(lag: int) -> None:
    paced = Paces(max_lag=100, lag=lag, rate=1)
    paced.stop.set()
    assert not paced.pace.wait(print)
