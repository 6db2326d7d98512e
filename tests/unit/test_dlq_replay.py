"""The dead-letter desk over a topic in memory: what is found, what a replay sends, and what it leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from pipeline.adapters.memory_store import MemoryJobStore
from pipeline.core.claims import ClaimRequest, Row, Settlement, Verdict
from pipeline.core.clock import ManualClock
from pipeline.core.headers import HeaderList, parse_job
from pipeline.core.job import Record, Source
from pipeline.core.letters import Standing
from pipeline.core.ports import Delivered, Outgoing, WorkerInfo
from pipeline.core.selection import Position, Selection
from pipeline.core.state import JobState
from pipeline.core.topics import TopicNames
from pipeline.errors import (
    ConfigError,
    DatabaseNotMigrated,
    PayloadError,
    PayloadTooLarge,
    PipelineError,
    PublishFailed,
    RegistryUnavailable,
    StoreUnavailable,
    UnknownQueue,
)
from pipeline.runtime import dlq_replay
from pipeline.runtime.dlq import Desk, LetterNotFound
from pipeline.runtime.dlq_replay import Account, Flow, Replayer
from tests.unit.letter_examples import DLQ, MAIN, NOW, dead_record, job_id

NAMES = TopicNames("jobs")
ALL = Selection()


class Topics:
    """`LetterSource` over lists."""

    def __init__(self, **topics: list[Record]) -> None:
        self.records = {f"jobs.{queue}.dlq": records for queue, records in topics.items()}
        self.starts: list[Mapping[int, int] | None] = []
        self.given = 0

    def read(self, topic: str, *, start: Mapping[int, int] | None = None) -> Iterator[Record]:
        self.starts.append(start)
        for record in list(self.records[topic]):
            if record.offset >= (start or {}).get(record.partition, 0):
                self.given += 1
                yield record


class Producer:
    """`JobProducer` that keeps what it is given, and fails where it is told to."""

    def __init__(self, fails: Callable[[Outgoing], Exception | None] = lambda _: None) -> None:
        self.sent: list[Outgoing] = []
        self.batches = 0
        self._fails = fails

    def send(self, record: Outgoing, on_delivery: Callable[[Delivered], None] | None = None) -> None:
        raise AssertionError(f"a replay sends whole batches, not {record} with {on_delivery}")

    def send_all(self, records: Sequence[Outgoing]) -> list[Delivered]:
        self.batches += 1
        return [self._end(record) for record in records]

    def _end(self, record: Outgoing) -> Delivered:
        error = self._fails(record)
        if error is not None:
            return Delivered(None, error)
        self.sent.append(record)
        return Delivered(Source(record.topic, 0, len(self.sent)), None)

    def flush(self, timeout: float) -> int:
        del timeout
        return 0

    def close(self) -> None: ...


class States:
    """`LetterStates` over a dict, or one that does not answer."""

    def __init__(self, rows: Mapping[str, Row] | None = None, error: PipelineError | None = None) -> None:
        self._rows = rows or {}
        self._error = error
        self.asked: list[Sequence[str]] = []

    def rows(self, job_ids: Sequence[str]) -> Mapping[str, Row]:
        self.asked.append(job_ids)
        if self._error is not None:
            raise self._error
        return {job_id: row for job_id, row in self._rows.items() if job_id in job_ids}


def row(state: JobState, hop: int) -> Row:
    return Row(state, hop, 3, "worker-1", Source(MAIN, 2, 40))


def desk(topics: Topics, queues: Sequence[str] = ("default",)) -> Desk:
    return Desk(source=topics, names=NAMES, queues=queues)


def describe(job_type: str, data: bytes, schema_id: bytes = b"") -> object:
    if schema_id:
        raise RegistryUnavailable(f"no answer about schema {schema_id!r}")
    if data == b"rubbish":
        raise PayloadError(f"{job_type}: 7 bytes of something else")
    return {}


def replayer(topics: Topics, states: States | None = None, queues: Sequence[str] = ("default",)) -> Replayer:
    declared = [NAMES.main(queue) for queue in queues]
    return Replayer(
        desk=desk(topics, queues),
        states=states or States(),
        describe=describe,
        names=NAMES,
        declared=declared,
    )


def execute(
    records: list[Record], selection: Selection = ALL, *, states: States | None = None
) -> tuple[Account, list[Outgoing]]:
    producer = Producer()
    account = replayer(Topics(default=records), states).execute(selection, producer=producer)
    return account, producer.sent


# --- finding letters


def test_the_newest_letters_are_listed_first_and_all_are_counted() -> None:
    records = [dead_record(number=n, offset=n, died_at=NOW + (n * 7) % 5) for n in range(5)]
    found = desk(Topics(default=records)).newest(ALL, limit=3)
    assert [letter.dead_at for letter in found.letters] == [NOW + 4, NOW + 3, NOW + 2]
    assert found.total == 5


def test_a_listing_counts_only_what_fits() -> None:
    records = [dead_record(number=n, offset=n, tenant=f"tenant-{n % 2}") for n in range(5)]
    found = desk(Topics(default=records)).newest(Selection(tenants=frozenset({"tenant-1"})), limit=9)
    assert (found.total, len(found.letters)) == (2, 2)


def test_a_letter_is_found_by_its_job_the_newest_first() -> None:
    old, new = dead_record(offset=1), dead_record(offset=9, hop=3, died_at=NOW + 60)
    found = desk(Topics(default=[old, dead_record(number=2), new])).find(job_id(1))
    assert [letter.record for letter in found] == [new, old]


def test_a_letter_is_found_by_its_position_without_reading_on() -> None:
    topics = Topics(default=[dead_record(number=n, offset=n, partition=3) for n in range(9)])
    (found,) = desk(topics).find(Position(3, 4))
    assert found.job.job_id == job_id(4)
    assert topics.starts == [{3: 4}]
    assert topics.given == 1


@pytest.mark.parametrize("reference", [job_id(8), Position(0, 8), Position(5, 0)])
def test_a_letter_that_is_not_there_is_named(reference: str | Position) -> None:
    with pytest.raises(LetterNotFound, match=rf"{reference} in jobs\.default\.dlq"):
        desk(Topics(default=[dead_record()])).find(reference)


def test_a_position_needs_its_queue_when_there_are_several() -> None:
    both = desk(Topics(default=[dead_record()], gpu=[dead_record(number=2)]), ("default", "gpu"))
    with pytest.raises(ConfigError, match="in which queue is 0:0"):
        both.find(Position(0, 0))
    with pytest.raises(ConfigError, match="PARTITION:OFFSET"):
        both.letters(Selection(references=frozenset({Position(0, 0)})))
    (found,) = both.find(Position(0, 0), queue="gpu")
    assert (found.job.job_id, found.job.queue) == (job_id(2), "gpu")


def test_an_unknown_queue_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownQueue, match="'gpu'; allowed by the setting queues: default"):
        desk(Topics(default=[])).newest(ALL, limit=1, queue="gpu")


# --- what is sent


def test_a_replay_keeps_id_key_and_bytes_and_starts_the_attempts_afresh() -> None:
    dead = dead_record(attempt=5, hop=4, replays=1, value=b"\x00\xff", ordering_key="order-1")
    _, (sent,) = execute([dead])
    assert (sent.topic, sent.key, sent.value) == (MAIN, b"acme", b"\x00\xff")
    job, problem = parse_job(Record(MAIN, 0, 0, sent.key, sent.value, sent.headers, NOW), queue="default")
    assert problem == ""
    assert (job.job_id, job.attempt, job.hop, job.replays) == (job_id(1), 1, 5, 2)
    assert job.ordering_key == "order-1"
    assert not [
        n for n, _ in sent.headers if n.startswith(("pipeline-first-", "pipeline-last-", "pipeline-reason"))
    ]


def test_letters_are_sent_in_the_order_of_the_topic_and_across_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dlq_replay, "BATCH_LETTERS", 3)
    account, sent = execute([dead_record(number=n, offset=n, value=b"%d" % n) for n in range(8)])
    assert [record.value for record in sent] == [b"%d" % n for n in range(8)]
    assert account.sent == 8


def test_a_batch_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlq_replay, "BATCH_BYTES", 50_000)
    producer = Producer()
    records = [dead_record(number=n, offset=n, value=bytes(60_000)) for n in range(3)]
    replayer(Topics(default=records)).execute(ALL, producer=producer)
    assert producer.batches == 3


def test_only_selected_letters_are_sent() -> None:
    records = [dead_record(number=n, offset=n, tenant=f"tenant-{n}") for n in range(4)]
    account, sent = execute(records, Selection(tenants=frozenset({"tenant-2"})))
    assert (account.selected, len(sent)) == (1, 1)


def test_each_queue_has_its_own_target() -> None:
    topics = Topics(default=[dead_record()], gpu=[dead_record(number=2)])
    account = replayer(topics, queues=("default", "gpu")).plan(ALL)
    assert [flow.target for flow in account.flows] == ["jobs.default.normal", "jobs.gpu.normal"]


def test_a_priority_without_a_topic_goes_to_the_main_topic_of_its_queue() -> None:
    account, (sent,) = execute([dead_record(priority="critical")])
    assert sent.topic == "jobs.default.normal"
    assert b"critical" in dict(sent.headers).values()
    assert account.failed == 0


# --- what is left out


def test_jobs_that_went_on_are_counted_and_left_out() -> None:
    states = States(
        {
            job_id(1): row(JobState.COMPLETED, 1),
            job_id(2): row(JobState.CANCELLED, 1),
            job_id(3): row(JobState.RUNNING, 1),
            job_id(4): row(JobState.DEAD, 3),
            job_id(5): row(JobState.RUNNING, 0),
            job_id(6): row(JobState.DEAD, 0),
        }
    )
    account, sent = execute([dead_record(number=n, offset=n) for n in range(1, 8)], states=states)
    assert dict(account.kept) == {
        Standing.COMPLETED: 1,
        Standing.CANCELLED: 1,
        Standing.REPLAYED: 2,
        Standing.UNSETTLED: 1,
    }
    assert [dict(record.headers)["ce_id"] for record in sent] == [job_id(6).encode(), job_id(7).encode()]
    assert (account.selected, account.sent) == (7, 2)


def test_a_letter_that_lies_twice_in_the_topic_is_sent_once() -> None:
    again = [dead_record(offset=offset) for offset in range(3)]
    account, sent = execute([*again, dead_record(offset=3, hop=2)])
    assert len(sent) == 2
    assert account.copies == 2


@pytest.mark.parametrize("error", [StoreUnavailable("away"), DatabaseNotMigrated("no tables")])
def test_without_the_store_everything_is_sent_and_it_is_asked_once(
    error: PipelineError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlq_replay, "BATCH_LETTERS", 2)
    states = States(error=error)
    account, sent = execute([dead_record(number=n, offset=n) for n in range(5)], states=states)
    assert (len(sent), len(states.asked)) == (5, 1)
    assert account.store_problem == str(error)


def test_references_that_name_no_letter_are_told() -> None:
    wanted: frozenset[str | Position] = frozenset({job_id(1), job_id(9), Position(0, 0), Position(7, 7)})
    account, sent = execute([dead_record()], Selection(references=wanted))
    assert account.missing == {job_id(9), Position(7, 7)}
    assert len(sent) == 1


# --- plans


def test_a_plan_counts_what_a_replay_sends() -> None:
    records = [
        dead_record(number=1, offset=1),
        dead_record(number=2, offset=2, value=b"rubbish"),
        dead_record(number=3, offset=3, tenant="globex"),
        dead_record(number=4, offset=4),
    ]
    states = States({job_id(4): row(JobState.COMPLETED, 1)})
    plan = replayer(Topics(default=records), states).plan(ALL)
    done, sent = execute(records, states=states)
    assert plan == done
    assert plan.flows == {Flow("email.send", "acme", MAIN): 2, Flow("email.send", "globex", MAIN): 1}
    assert len(sent) == 3


def test_undecodable_letters_are_flagged_and_sent_all_the_same() -> None:
    headless = Record(DLQ, 0, 5, None, None, [], NOW)
    account, sent = execute([dead_record(value=b"rubbish"), headless])
    assert len(sent) == 2
    assert account.undecodable.total() == 2
    assert [remark.text for remark in account.flagged] == [
        "email.send: 7 bytes of something else",
        "header ce_id is missing",
    ]
    assert account.flagged[1].position == (0, 5)


def test_schemas_that_cannot_be_looked_up_are_asked_for_once() -> None:
    unknown: HeaderList = [("__value_schema_id", b"\x00\x00\x00\x07")]
    first, second = dead_record(value=b"rubbish"), dead_record(number=2, offset=1, extra=unknown)
    account, sent = execute([first, second, dead_record(number=3, offset=2, value=b"rubbish")])
    assert (len(sent), account.undecodable.total()) == (3, 1)
    assert account.schema_problem.startswith("no answer about schema")


def test_only_the_first_few_letters_are_remarked_on() -> None:
    account, _ = execute([dead_record(number=n, offset=n, value=b"rubbish") for n in range(30)])
    assert account.undecodable.total() == 30
    assert len(account.flagged) == dlq_replay.MAX_REMARKS


# --- failures


def test_a_letter_that_is_refused_does_not_keep_the_others_back() -> None:
    def fails(record: Outgoing) -> Exception | None:
        return PayloadTooLarge("too large") if record.value == b"big" else None

    records = [dead_record(number=1, value=b"big"), dead_record(number=2, offset=1)]
    account = replayer(Topics(default=records)).execute(ALL, producer=Producer(fails))
    assert (account.sent, account.failed, account.stopped) == (1, 1, False)
    assert (account.failures[0].job_id, account.failures[0].text) == (job_id(1), "too large")


def test_a_batch_of_letters_that_are_all_too_large_does_not_end_the_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dlq_replay, "BATCH_LETTERS", 2)
    producer = Producer(lambda record: PayloadTooLarge("too large") if record.value == b"big" else None)
    values = [b"big", b"big", b"small"]
    records = [dead_record(number=n, offset=n, value=value) for n, value in enumerate(values)]
    account = replayer(Topics(default=records)).execute(ALL, producer=producer)
    assert (account.sent, account.failed, account.stopped) == (1, 2, False)


def test_a_replay_ends_when_nothing_of_a_batch_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlq_replay, "BATCH_LETTERS", 2)
    producer = Producer(lambda _: PublishFailed("the broker is away"))
    topics = Topics(default=[dead_record(number=n, offset=n) for n in range(9)])
    account = replayer(topics).execute(ALL, producer=producer)
    assert (account.sent, account.failed, account.stopped) == (0, 2, True)
    assert producer.batches == 1


# --- twice


def test_a_letter_that_is_replayed_twice_runs_once_whatever_the_store_said() -> None:
    store = MemoryJobStore(ManualClock(NOW))
    store.heartbeat(WorkerInfo("w", "host", 1, ("default",), 30.0))
    died = _claim(store, dead_record(hop=4).headers, 40)
    store.settle("w", [Settlement(job_id(1), died, JobState.DEAD, 3, 4, NOW - 1, NOW)])

    _, (first,) = execute([dead_record(hop=4)], states=States(error=StoreUnavailable("away")))
    _, (second,) = execute([dead_record(hop=4)], states=States(error=StoreUnavailable("away")))
    token = _claim(store, first.headers, 41)
    assert token == died + 1
    assert _verdict(store, second.headers, 42, worker="other") is Verdict.DUPLICATE
    store.settle("w", [Settlement(job_id(1), token, JobState.COMPLETED, 1, 5, NOW, NOW)])
    assert _verdict(store, second.headers, 42, worker="other") is Verdict.DUPLICATE


def _request(headers: HeaderList, offset: int) -> ClaimRequest:
    job = parse_job(Record(MAIN, 0, offset, b"acme", b"payload", headers, NOW), queue="default").job
    identity = (job.job_id, job.job_type, job.tenant, job.queue, job.attempt, job.hop)
    return ClaimRequest(*identity, MAIN, 0, offset, NOW)


def _claim(store: MemoryJobStore, headers: HeaderList, offset: int) -> int:
    (claim,) = store.claim("w", [_request(headers, offset)])
    assert claim.verdict is Verdict.CLAIMED
    return claim.token


def _verdict(store: MemoryJobStore, headers: HeaderList, offset: int, *, worker: str) -> Verdict:
    store.heartbeat(WorkerInfo(worker, "host", 2, ("default",), 30.0))
    (claim,) = store.claim(worker, [_request(headers, offset)])
    return claim.verdict
