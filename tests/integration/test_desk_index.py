"""The index of dead letters: complete whoever wrote them, and the same when it is rebuilt from the topics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.adapters.postgres import PostgresJobStore
from pipeline.core.claims import ClaimRequest, Settlement
from pipeline.core.desk import Scope, Span, TaskKind
from pipeline.core.job import Record
from pipeline.core.letter_facts import LetterState
from pipeline.core.letters import facts_of, read_letter
from pipeline.core.outcome import Failure
from pipeline.core.ports import WorkerInfo
from pipeline.core.selection import Position, Selection
from pipeline.core.state import JobState
from pipeline.runtime.dlq_tasks import move
from tests.harness.waiting import wait_until
from tests.integration.desk_bench import DeskBench, payload
from tests.integration.desk_world import ALL, OPERATOR, World, desk_world
from tests.servers import TestServers
from tests.unit.foreign_letters import connect_headers, foreign_record, spring_headers
from tests.unit.letter_examples import MAIN, NOW, dead_record, job_id

pytestmark = pytest.mark.servers

FACTS = 'select * from letters order by queue, partition, "offset"'


@pytest.fixture
def world(servers: TestServers, unique: str) -> Iterator[World]:
    with desk_world(servers.postgres_dsn, unique) as found:
        yield found


def open_scope() -> Scope:
    return Scope(ALL, ["default"], [LetterState.OPEN])


def rebuilt(world: World) -> list[tuple[Any, ...]]:
    """The index after all of it was lost."""
    world.execute("truncate letters, letter_positions")
    world.desk.rebuild()
    return world.rows(FACTS)


# --- what it lacks


def test_what_is_missing_is_read_and_nothing_is_read_twice(world: World) -> None:
    world.bury([dead_record(number=n, partition=n % 3) for n in range(9)])
    assert world.desk.catch_up()["default"].added == 9
    given = world.topics.given
    assert world.desk.catch_up()["default"].added == 0
    world.bury([dead_record(number=20, partition=1)])
    assert world.desk.catch_up()["default"].added == 1
    assert world.topics.given - given == 1


def test_only_gaps_are_read_where_workers_put_their_letters_in_themselves(world: World) -> None:
    records = [dead_record(number=n, offset=n) for n in range(5000)]
    world.bury(records)
    known = [n for n in range(5000) if n not in (7, 4000, 4001)]
    world.index.put([facts_of(read_letter(records[n], queue="default")) for n in known])
    given = world.topics.given
    assert world.desk.catch_up()["default"].added == 3
    assert world.topics.given - given == 3
    assert len(world.states()) == 5000


def test_letters_of_others_are_put_in_with_what_they_tell(world: World) -> None:
    world.bury([foreign_record(spring_headers()), foreign_record(connect_headers())])
    world.desk.catch_up()
    found = world.index.groups(open_scope(), ["reason", "error", "topic"], limit=9)
    assert sorted(group.values for group in found) == [
        ("connect", "org.apache.kafka.connect.errors.DataException", "orders"),
        ("spring", "com.example.shop.OutOfStock", "orders"),
    ]


def test_letters_whose_record_left_the_topic_are_told_apart(world: World) -> None:
    world.bury([dead_record(number=n) for n in range(4)])
    world.replay(Selection(references=frozenset({Position(0, 0)})))
    world.topics.delete_before(world.dlqs["default"], 0, 2)
    assert world.desk.catch_up()["default"].expired == 1
    assert world.states() == {"0:0": "replayed", "0:1": "expired", "0:2": "open", "0:3": "open"}
    assert world.desk.catch_up()["default"].expired == 0


def test_a_topic_that_was_made_anew_takes_the_place_of_the_old_one(world: World) -> None:
    world.bury([dead_record(number=n) for n in range(5)])
    world.replay()
    world.topics.records[world.dlqs["default"]] = []
    world.bury([dead_record(number=n + 50) for n in range(2)])
    caught = world.desk.catch_up()["default"]
    assert caught.forgotten == 3
    letters = world.index.page(open_scope(), limit=9)
    assert sorted(letter.facts.job_id for letter in letters) == [job_id(50), job_id(51)]
    assert world.replay().counts == {"sent": 2}


def test_a_letter_that_another_has_replaced_is_not_taken_for_it(world: World) -> None:
    world.bury([dead_record(number=n) for n in range(2)])
    task = world.begin()
    topic = world.dlqs["default"]
    world.topics.records[topic] = []
    world.bury([dead_record(number=70), dead_record(number=1)])
    report = world.run(task)
    assert (report.counts["sent"], report.wanted, report.dealt_with) == (1, 2, 1)


# --- rebuilt


def test_an_index_that_is_rebuilt_equals_the_one_that_was_fed(world: World) -> None:
    """With letters in every state, of all dialects, and a job that went on by itself."""
    world.bury(
        [
            *(dead_record(number=n, partition=n % 2, replays=9 * (n == 8)) for n in range(1, 12)),
            foreign_record(spring_headers()),
            foreign_record(connect_headers()),
            Record("", 1, 0, None, b"\x00", [("ce_id", b"\xff")], NOW),
        ]
    )
    world.job(job_id(9), "completed", 0)
    world.desk.catch_up()
    for kind, reference in (
        (TaskKind.PARK, job_id(1)),
        (TaskKind.DISCARD, job_id(2)),
        (TaskKind.DISCARD, job_id(3)),
    ):
        scope = world.desk.scope(
            Selection(references=frozenset({reference})), queue=None, states=[LetterState.OPEN]
        )
        move(world.index, kind, scope, ends={}, operator=OPERATOR)
    reopened = world.desk.scope(
        Selection(references=frozenset({job_id(3)})), queue=None, states=[LetterState.DISCARDED]
    )
    move(world.index, TaskKind.REOPEN, reopened, ends={}, operator=OPERATOR)
    world.replay(
        Selection(references=frozenset({job_id(n) for n in range(4, 9)})),
    )
    world.replay(Selection(reasons=frozenset({"spring"})))
    fed = world.rows(FACTS)
    assert {row[25] for row in fed} == {"open", "parked", "discarded", "replayed", "completed"}
    assert rebuilt(world) == fed
    world.desk.rebuild()
    assert world.rows(FACTS) == fed


def test_to_rebuild_corrects_what_is_wrong(world: World) -> None:
    world.bury([dead_record(number=n) for n in range(3)])
    world.replay(Selection(references=frozenset({Position(0, 1)})))
    fed = world.rows(FACTS)
    world.execute("update letters set tenant = 'nobody', message = 'lies'")
    world.execute('delete from letters where "offset" = 2')
    world.desk.rebuild()
    assert world.rows(FACTS) == fed


# --- fed by workers


def test_a_settlement_puts_its_letter_in_with_the_state(world: World) -> None:
    store = PostgresJobStore(world.dsn, schema=world.schema)
    store.heartbeat(WorkerInfo("w", "host", 1, ("default",), 60.0))
    record = dead_record(
        number=3, value=b"odd \x00 'text\" \\ {}", failure=Failure('E"{},', 'tenant\'s \\ "no"')
    )
    facts = facts_of(read_letter(record, queue="default"))
    asked = ClaimRequest(job_id(3), "email.send", "acme", "default", 1, 0, MAIN, 2, 40, NOW)
    (claim,) = store.claim("w", [asked])
    dead = Settlement(job_id(3), claim.token, JobState.DEAD, 1, 0, NOW, NOW, letter=facts)
    assert store.settle("w", [dead])[0].accepted
    assert world.index.page(open_scope(), limit=9)[0].facts == facts
    assert store.settle("w", [dead])[0].accepted  # the first answer may have been lost
    assert store.open_letters("default") == 1
    late = dead._replace(token=claim.token + 7, letter=facts._replace(offset=5))
    assert not store.settle("w", [late])[0].accepted
    assert world.index.count(open_scope()) == 1
    store.close()


def test_what_the_index_cannot_hold_keeps_no_job_from_being_settled(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    store = PostgresJobStore(world.dsn, schema=world.schema)
    store.heartbeat(WorkerInfo("w", "host", 1, ("default",), 60.0))
    facts = facts_of(read_letter(dead_record(number=3), queue="default"))
    asked = ClaimRequest(job_id(3), "email.send", "acme", "default", 1, 0, MAIN, 2, 40, NOW)
    (claim,) = store.claim("w", [asked])
    impossible = facts._replace(size=2**40)
    dead = Settlement(job_id(3), claim.token, JobState.DEAD, 1, 0, NOW, NOW, letter=impossible)
    assert store.settle("w", [dead])[0].accepted
    assert store.job(job_id(3)).state is JobState.DEAD  # type: ignore[union-attr]
    assert "letters not indexed" in caplog.text
    store.close()


def test_letters_of_a_real_worker_are_in_the_index_as_the_topic_has_them(
    servers: TestServers, tmp_path: Path
) -> None:
    bench = DeskBench(servers)
    bench.create_topics()
    bench.migrate()
    bug = tmp_path / "bug"
    bug.touch()
    try:
        environment = {"DESK_BUG": str(bug), "DESK_ATTEMPTS": "1"}
        with bench.worker("tests.integration.desk_jobs", tmp_path / "log", **environment):
            good = [dead_record(number=n, value=payload()) for n in range(1, 40)]
            bad = [dead_record(number=50, value=b"\x00not avro"), Record("", 0, 0, b"k", b"\xff", [], NOW)]
            bench.write([*good, *bad], topic=bench.names.main("default"))
            wait_until(lambda: count(bench) == 41, "the worker has put its letters in")
            fed = index_rows(bench)
        assert {row[25] for row in fed} == {"open"}
        World(bench.servers.postgres_dsn, bench.name).execute("truncate letters, letter_positions")
        assert bench.dlq("reindex").out == f"{bench.names.dlq('default')}: 41 dead letters read\n"
        assert index_rows(bench) == fed
        # With the present time, or retention would delete letters of old jobs at once.
        assert min(record.timestamp for record in bench.letters()) > time.time() - 600
    finally:
        bench.remove()


def index_rows(bench: DeskBench) -> list[tuple[Any, ...]]:
    world = World(bench.servers.postgres_dsn, bench.name)
    return world.rows(FACTS)


def count(bench: DeskBench) -> int:
    return len(index_rows(bench))


# --- forgotten


def test_a_purge_forgets_what_was_dealt_with_and_never_what_waits(world: World) -> None:
    world.bury([dead_record(number=n) for n in range(4)])
    world.desk.catch_up()
    parked = world.desk.scope(
        Selection(references=frozenset({Position(0, 3)})), queue=None, states=[LetterState.OPEN]
    )
    move(world.index, TaskKind.PARK, parked, ends={}, operator=OPERATOR)
    world.replay(Selection(references=frozenset({Position(0, 0), Position(0, 1)})))
    assert world.index.purge("default", age=3600, first={0: 0}) == (0, 0)
    assert world.index.purge("default", age=-1, first={0: 1}) == (2, 1)
    assert world.states() == {"0:2": "open", "0:3": "parked"}
    # What was done with a letter that is still in the topic stays known: it does not come back as one that waits.
    world.desk.rebuild()
    assert world.states() == {"0:0": "open", "0:1": "replayed", "0:2": "open", "0:3": "parked"}


def test_gaps_are_told_to_the_end(world: World) -> None:
    world.index.put([facts_of(read_letter(dead_record(offset=n), queue="default")) for n in (1, 2, 5)])
    assert world.index.gaps("default", [Span(0, 0, 8), Span(1, 3, 4)]) == [
        Span(0, 0, 1),
        Span(0, 3, 5),
        Span(0, 6, 8),
        Span(1, 3, 4),
    ]
