"""Replays: what is sent, what is left out, and that each letter is sent once in effect whatever dies and whoever else replays."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from pipeline.core.claims import ClaimRequest, Row, Verdict, judge
from pipeline.core.desk import TaskState
from pipeline.core.headers import parse_job
from pipeline.core.job import Job, Record, Source
from pipeline.core.letter_facts import LetterState
from pipeline.core.parked import ParkedRecord
from pipeline.core.ports import Outgoing
from pipeline.core.selection import Position, Selection
from pipeline.core.state import JobState
from pipeline.errors import PayloadTooLarge, PublishFailed, PublishUnknown, StoreUnavailable
from pipeline.runtime import dlq_doubt, dlq_replay
from pipeline.runtime.dlq_tasks import TaskRefused
from pipeline.runtime.onward import parked_letter
from tests.harness.waiting import wait_until
from tests.integration.desk_world import Killed, Producer, World, desk_world
from tests.servers import TestServers
from tests.unit.foreign_letters import connect_headers, foreign_record, spring_headers
from tests.unit.letter_examples import MAIN, NOW, dead_record, job_id

pytestmark = pytest.mark.servers


# Nothing is put on record from the second batch of three on.
FULL_DISK = """
create function full_disk() returns trigger language plpgsql as
    $$ begin raise exception 'the disk is full' using errcode = 'disk_full'; end $$;
create trigger full_disk before insert on desk_outcomes for each row when (new."offset" >= 3) execute function full_disk()
"""


@pytest.fixture
def world(servers: TestServers, unique: str) -> Iterator[World]:
    with desk_world(servers.postgres_dsn, unique) as found:
        yield found


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlq_replay, "BATCH_LETTERS", 3)


def letters(count: int, **given: object) -> list[Record]:
    return [dead_record(number=n, value=b"%d" % n, **given) for n in range(1, count + 1)]  # type: ignore[arg-type]


def values(world: World, topic: str = MAIN) -> list[bytes | None]:
    return [record.value for record in world.topics.records[topic]]


def dies_at(value: bytes) -> Callable[[Outgoing], Exception | None]:
    def fails(record: Outgoing) -> Exception | None:
        if record.value == value:
            raise Killed
        return None

    return fails


# --- what is sent


def test_a_replay_keeps_id_key_and_bytes_and_starts_the_attempts_afresh(world: World) -> None:
    world.bury([dead_record(attempt=5, hop=4, replays=1, value=b"\x00\xff", ordering_key="order-1")])
    report = world.replay()
    assert (report.counts["sent"], report.state) == (1, TaskState.DONE)
    (sent,) = world.topics.records[MAIN]
    assert (sent.key, sent.value) == (b"acme", b"\x00\xff")
    job, problem = parse_job(sent, queue="default")
    assert problem == ""
    assert (job.job_id, job.attempt, job.hop, job.replays) == (job_id(1), 1, 5, 2)
    assert job.ordering_key == "order-1"
    told = ("pipeline-first-", "pipeline-last-", "pipeline-reason")
    assert not [name for name, _ in sent.headers if name.startswith(told)]


@pytest.mark.usefixtures("small_batches")
def test_letters_are_sent_in_the_order_of_the_topic_and_across_batches(world: World) -> None:
    world.bury(letters(8))
    report = world.replay()
    assert values(world) == [b"%d" % n for n in range(1, 9)]
    assert (report.counts["sent"], report.wanted, report.dealt_with) == (8, 8, 8)


def test_a_batch_is_bounded_in_bytes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlq_replay, "BATCH_BYTES", 50_000)
    world.bury([dead_record(number=n, value=bytes(60_000)) for n in range(3)])
    producer = Producer(world.topics)
    world.replay(producer=producer)
    assert producer.batches == 3


@pytest.mark.parametrize(
    ("selection", "sent"),
    [
        (Selection(tenants=frozenset({"tenant-2"})), [b"2"]),
        (Selection(references=frozenset({job_id(1), Position(0, 2)})), [b"1", b"3"]),
        (Selection(since=NOW + 3), [b"3", b"4"]),
        (Selection(until=NOW + 3), [b"1", b"2"]),
        (Selection(search="BOOM"), [b"1", b"2", b"3", b"4"]),
        (Selection(errors=frozenset({"KeyError"})), []),
    ],
)
def test_only_selected_letters_are_sent(world: World, selection: Selection, sent: list[bytes]) -> None:
    world.bury(
        [dead_record(number=n, value=b"%d" % n, tenant=f"tenant-{n}", died_at=NOW + n) for n in range(1, 5)]
    )
    world.replay(selection)
    assert values(world) == sent


def test_what_arrives_after_it_began_is_not_sent(world: World) -> None:
    world.bury(letters(3))
    task = world.begin()
    world.bury([dead_record(number=9, value=b"late")])
    world.desk.catch_up()
    world.run(task)
    assert values(world) == [b"1", b"2", b"3"]
    assert world.states()["0:3"] is LetterState.OPEN


def test_another_topic_may_be_named(servers: TestServers, unique: str) -> None:
    with desk_world(servers.postgres_dsn, unique, queues=("default", "gpu")) as world:
        world.bury(letters(1))
        world.replay(to="jobs.gpu.normal")
        assert values(world, "jobs.gpu.normal") == [b"1"]
        assert values(world) == []


def test_a_record_that_was_too_large_is_sent_whole(world: World) -> None:
    letter = dead_record(hop=2, value=b"large")
    job = Job(job_id(1), "email.send", "acme", "default", hop=2)
    whole = Record(MAIN, 2, 40, b"acme", b"large", letter.headers, NOW)
    small = parked_letter(Outgoing("jobs.default.dlq", b"acme", b"large", letter.headers))
    world.parking.park(ParkedRecord(job, whole, "too_large"))
    world.bury([letter._replace(value=small.value, headers=small.headers)])
    world.replay()
    (sent,) = world.topics.records[MAIN]
    assert sent.value == b"large"
    assert "pipeline-parked" not in dict(sent.headers)
    assert parse_job(sent, queue="default").job.hop == 3


def test_a_record_that_was_too_large_and_is_nowhere_fails_alone(world: World) -> None:
    letter = dead_record(value=b"")
    world.bury([letter._replace(headers=[*letter.headers, ("pipeline-parked", b"true")]), *letters(3)[1:]])
    report = world.replay()
    assert (report.counts["sent"], report.counts["failed"], report.state) == (2, 1, TaskState.DONE)
    assert "is not in the store" in report.failures[0].text
    assert world.states()["0:0"] is LetterState.OPEN


def test_another_payload_is_sent_instead_and_named_by_its_own_frame(world: World) -> None:
    world.bury([dead_record(replays=9, value=b"old", extra=[("__value_schema_id", b"\x00\x00\x00\x00\x07")])])
    world.replay(Selection(references=frozenset({Position(0, 0)})), old_value=b"old", new_value=b"new")
    (sent,) = world.topics.records[MAIN]
    assert sent.value == b"new"
    assert "__value_schema_id" not in dict(sent.headers)
    (task,) = world.index.tasks(task=1)
    assert (task.old_value, task.new_value) == (b"old", b"new")


# --- what is left out


def test_jobs_that_went_on_are_counted_and_left_out(world: World) -> None:
    for number, state, hop in (
        (1, "completed", 1),
        (2, "cancelled", 1),
        (3, "running", 1),
        (4, "dead", 3),
        (5, "running", 0),
        (6, "dead", 0),
    ):
        world.job(job_id(number), state, hop)
    world.bury(letters(7))
    # What is known when a letter is put into the index need not be looked at again.
    world.desk.catch_up()
    assert Counter(world.states().values()) == {
        LetterState.COMPLETED: 1,
        LetterState.CANCELLED: 1,
        LetterState.REPLAYED: 2,
        LetterState.OPEN: 3,
    }
    report = world.replay()
    assert report.counts == {"unsettled": 1, "sent": 2}
    assert values(world) == [b"6", b"7"]


def test_jobs_that_went_on_since_are_left_out(world: World) -> None:
    world.bury(letters(4))
    task = world.begin()
    world.job(job_id(1), "completed", 1)
    world.job(job_id(2), "dead", 2)
    world.job(job_id(3), "cancelled", 0)
    report = world.run(task)
    assert report.counts == {"completed": 1, "replayed": 1, "cancelled": 1, "sent": 1}
    assert list(world.states().values()) == ["replayed", "cancelled", "replayed", "completed"]


def test_a_letter_that_lies_twice_in_the_topic_is_sent_once(world: World) -> None:
    world.bury([dead_record(), dead_record(), dead_record(hop=2)])
    report = world.replay()
    assert report.counts == {"copies": 1, "sent": 2}
    world.bury([dead_record()])
    assert world.replay().counts == {"copies": 1}


@pytest.mark.usefixtures("small_batches")
def test_a_copy_in_the_next_batch_is_known_before_the_first_one_is_on_record(world: World) -> None:
    world.bury([*letters(3), dead_record(number=3, value=b"3"), *letters(2)])
    assert world.replay().counts == {"copies": 3, "sent": 3}


def test_a_letter_that_was_replayed_often_is_parked_and_goes_when_it_is_asked_for(world: World) -> None:
    world.bury([dead_record(replays=4), dead_record(number=2, replays=5, value=b"worn")])
    report = world.replay()
    assert report.counts == {"sent": 1, "parked": 1}
    assert world.states()["0:1"] is LetterState.PARKED
    assert world.replay().wanted == 0
    assert world.replay(parked=True).counts == {"sent": 1}
    assert values(world)[1] == b"worn"


def test_a_letter_of_others_from_nowhere_is_left_as_it_is(world: World) -> None:
    world.bury([foreign_record(spring_headers(topic="jobs.default.dlq"))])
    assert world.replay().counts == {"untargeted": 1}
    assert world.states() == {"0:0": LetterState.OPEN}


# --- failures


def test_a_letter_that_is_refused_does_not_keep_the_others_back(world: World) -> None:
    world.bury(letters(3))
    producer = Producer(world.topics, lambda r: PayloadTooLarge("too large") if r.value == b"2" else None)
    report = world.replay(producer=producer)
    assert (report.counts["sent"], report.counts["failed"], report.state) == (2, 1, TaskState.DONE)
    assert (report.failures[0].job_id, report.failures[0].text) == (job_id(2), "too large")
    assert world.states()["0:1"] is LetterState.OPEN
    assert world.replay().counts == {"sent": 1}


@pytest.mark.usefixtures("small_batches")
def test_a_replay_ends_when_nothing_of_a_batch_is_taken_and_goes_on_later(world: World) -> None:
    world.bury(letters(9))
    away = Producer(world.topics, lambda _: PublishFailed("the broker is away"))
    report = world.replay(producer=away)
    assert (report.state, report.counts["failed"], away.batches) == (TaskState.FAILED, 3, 1)
    assert world.run(world.resume(report.task)).state is TaskState.DONE
    # What failed stays for another replay: this one has passed it.
    assert len(values(world)) == 6
    world.replay()
    assert sorted(values(world), key=str) == [b"%d" % n for n in range(1, 10)]


@pytest.mark.usefixtures("small_batches")
def test_what_could_not_be_put_on_record_is_sent_again(world: World) -> None:
    world.bury(letters(12))
    world.execute(FULL_DISK)
    task = world.begin()
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        world.run(task)
    assert world.index.tasks()[0].state is TaskState.FAILED
    kept = [place for place, state in world.states().items() if state is LetterState.REPLAYED]
    assert sorted(kept) == ["0:0", "0:1", "0:2"]
    world.execute("drop trigger full_disk on desk_outcomes")
    report = world.run(world.resume(task.id))
    assert (report.state, report.counts) == (TaskState.DONE, {"sent": 12})
    assert set(world.states().values()) == {LetterState.REPLAYED}
    assert Counter(values(world)).keys() == {b"%d" % n for n in range(1, 13)}


def test_a_replay_has_few_collections_of_garbage_and_leaves_them_as_they_were_however_it_ends(
    world: World,
) -> None:
    before, during = gc.get_threshold(), []

    def fails(record: Outgoing) -> Exception | None:
        during.append(gc.get_threshold()[0])
        if record.value == b"2":
            raise Killed
        return None

    world.bury(letters(2))
    with pytest.raises(Killed):
        world.replay(producer=Producer(world.topics, fails))
    assert during == [dlq_replay.COLLECT_AFTER] * 2
    assert gc.get_threshold() == before


# --- stopped, killed, resumed


@pytest.mark.usefixtures("small_batches")
def test_a_replay_that_is_stopped_ends_after_its_batch_and_goes_on_there(world: World) -> None:
    world.bury(letters(10))
    task = world.begin()
    report = world.run(task, tell=lambda _: world.stop.set())
    assert (report.state, report.counts["sent"]) == (TaskState.PAUSED, 3)
    assert world.index.tasks()[0].state is TaskState.PAUSED
    world.stop.clear()
    given = world.topics.given
    report = world.run(world.resume(task.id))
    assert (report.state, report.counts["sent"], report.wanted) == (TaskState.DONE, 10, 7)
    assert world.topics.given - given == 7
    assert values(world) == [b"%d" % n for n in range(1, 11)]


@pytest.mark.usefixtures("small_batches")
def test_a_replay_that_is_killed_is_free_at_once_and_goes_on_where_it_was(world: World) -> None:
    world.bury(letters(10))
    with world.process() as first:
        task = first.begin()
        with pytest.raises(TaskRefused, match="another process works on it"):
            world.resume(task.id)
        with pytest.raises(Killed):
            first.run(task, Producer(world.topics, dies_at(b"5")))
    wait_until(lambda: world.index.tasks()[0].state is TaskState.INTERRUPTED, "nobody holds the task")
    assert set(world.states().values()) == {LetterState.OPEN, LetterState.REPLAYED}
    report = world.run(world.resume(task.id))
    assert (report.state, report.counts["sent"]) == (TaskState.DONE, 10)
    # Number 4 was sent before the process died, and again: two records of one hop, of which one runs.
    assert values(world) == [b"1", b"2", b"3", b"4", *(b"%d" % n for n in range(4, 11))]
    twice = [parse_job(r, queue="default").job for r in world.topics.records[MAIN] if r.value == b"4"]
    assert len({(job.job_id, job.hop) for job in twice}) == 1
    assert_one_runs(twice[0])


def assert_one_runs(job: Job) -> None:
    """By the claim rule, of two records of the same hop."""
    second = ClaimRequest(job.job_id, job.job_type, job.tenant, "default", 1, job.hop, MAIN, 0, 99, NOW)
    for state in (JobState.RUNNING, JobState.COMPLETED):
        row = Row(state, job.hop, 2, "w", Source(MAIN, 0, 4))
        assert judge(row, second, worker="v", owner_alive=True) is Verdict.DUPLICATE


@pytest.mark.usefixtures("small_batches")
def test_two_replays_at_once_share_the_letters(world: World) -> None:
    world.bury(letters(12))
    with world.process() as other:
        mine, theirs = world.begin(), other.begin()
        overtaken: list[int] = []

        def overtake(record: Outgoing) -> None:
            if record.value == b"5":  # in the middle of a batch, which is locked
                overtaken.append(other.run(theirs).counts["sent"])

        report = world.run(mine, Producer(world.topics, overtake))
    assert overtaken == [6]
    assert report.counts["sent"] == 6
    assert sorted(values(world), key=lambda v: int(v or b"0")) == [b"%d" % n for n in range(1, 13)]


def test_a_replay_after_a_replay_sends_nothing(world: World) -> None:
    world.bury(letters(5))
    assert world.replay().counts["sent"] == 5
    assert (world.replay().wanted, len(values(world))) == (0, 5)


def test_a_task_that_is_done_cannot_be_resumed_nor_one_that_there_is_not(world: World) -> None:
    world.bury(letters(1))
    report = world.replay()
    with pytest.raises(
        TaskRefused, match=r"task 1 is a replay and is done; allowed: a replay that is not done"
    ):
        world.resume(report.task)
    with pytest.raises(TaskRefused, match="there is no task 77"):
        world.resume(77)


def test_who_replayed_what_and_why_is_on_record(world: World) -> None:
    world.bury([*letters(2), dead_record(number=3, tenant="globex")])
    report = world.replay(Selection(tenants=frozenset({"acme"})))
    (task,) = world.index.tasks(task=report.task)
    assert (task.who, task.why, task.state) == ("ada@desk", "the bug is fixed", TaskState.DONE)
    assert task.selection == Selection(tenants=frozenset({"acme"}))
    assert task.counts == {"sent": 2}
    assert (task.ends, task.finished_at > 0) == ({"default": {0: 3}}, True)
    told = world.index.outcomes_of_task(report.task, limit=10)
    assert [(t.job_id, t.outcome.state, t.outcome.target) for t in told] == [
        (job_id(1), LetterState.REPLAYED, (MAIN, 0, 0)),
        (job_id(2), LetterState.REPLAYED, (MAIN, 0, 1)),
    ]
    assert world.index.outcomes_of_letter(job_id(2)) == told[1:]


# --- letters of others


@pytest.mark.parametrize("headers", [spring_headers(), connect_headers()])
def test_a_letter_of_others_goes_home_untouched_without_its_error_headers(
    world: World, headers: list[tuple[str, bytes | None]]
) -> None:
    world.bury([foreign_record(headers)])
    assert world.replay().counts == {"sent": 1}
    (sent,) = world.topics.records["orders"]
    assert (sent.key, sent.value) == (b"order-7", b'{"widget": 7}')
    assert sent.headers == [
        ("tenant-of-theirs", b"acme"),
        ("pipeline-replays", b"1"),
        ("pipeline-letter", b"default 0:0"),
    ]
    assert world.replay().wanted == 0


def test_replays_of_a_letter_of_others_are_counted_when_it_comes_back(world: World) -> None:
    for _ in range(3):
        back = [
            (name, value)
            for record in world.topics.records["orders"][-1:]
            for name, value in record.headers
            if name != "tenant-of-theirs"
        ]
        offset = len(world.topics.records["orders"])
        world.bury([foreign_record([*back, *spring_headers(offset=offset)])])
        world.run(world.begin(), max_replays=2)
    assert [dict(r.headers)["pipeline-replays"] for r in world.topics.records["orders"]] == [b"1", b"2"]
    assert world.states()["0:2"] is LetterState.PARKED


def test_letters_of_others_that_a_killed_process_had_in_hand_are_looked_for_and_sent_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlq_doubt, "UNDER_WAY", 0.1)
    world.topics.write("orders", [foreign_record([])] * 2)
    world.bury([foreign_record(spring_headers(offset=n), key=b"%d" % n) for n in range(6)])

    def dies(record: Outgoing) -> None:
        if record.key == b"3":
            raise Killed

    with world.process() as first:
        task = first.begin()
        with pytest.raises(Killed):
            first.run(task, Producer(world.topics, dies))
    assert set(world.states().values()) == {LetterState.REPLAYING}
    wait_until(lambda: world.index.stranded() == [task.id], "nobody holds the task")
    world.topics.write("orders", [foreign_record([])])  # life goes on there
    report = world.run(world.resume(task.id))
    assert (report.state, report.counts["sent"]) == (TaskState.DONE, 6)
    sent = [r.key for r in world.topics.records["orders"] if "pipeline-letter" in dict(r.headers)]
    assert sent == [b"%d" % n for n in range(6)]
    assert set(world.states().values()) == {LetterState.REPLAYED}


def test_another_replay_takes_over_what_a_killed_process_had_in_hand(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlq_doubt, "UNDER_WAY", 0.1)
    world.bury([foreign_record(spring_headers(offset=n), key=b"%d" % n) for n in range(4)])

    def dies(record: Outgoing) -> None:
        if record.key == b"2":
            raise Killed

    with world.process() as first, pytest.raises(Killed):
        first.run(first.begin(), Producer(world.topics, dies))
    wait_until(lambda: world.index.stranded() == [1], "nobody holds the task")
    assert world.replay().counts["sent"] == 2
    assert [r.key for r in world.topics.records["orders"]] == [b"0", b"1", b"2", b"3"]


def test_a_write_of_which_nobody_knows_the_end_is_looked_for_before_it_is_sent_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlq_doubt, "UNDER_WAY", 0.1)
    world.bury([foreign_record(spring_headers(offset=n), key=b"%d" % n) for n in range(3)])

    def unknown(record: Outgoing) -> Exception | None:
        if record.key == b"0":  # arrives all the same
            world.topics.write(
                "orders", [Record("orders", 0, 0, record.key, record.value, record.headers, NOW)]
            )
        return PublishUnknown("no answer") if record.key in (b"0", b"1") else None

    report = world.replay(producer=Producer(world.topics, unknown))
    assert (report.counts["sent"], report.counts["failed"]) == (1, 2)
    assert world.replay().counts["sent"] == 1
    keys = [r.key for r in world.topics.records["orders"]]
    assert sorted(keys, key=str) == [b"0", b"1", b"2"]
    assert set(world.states().values()) == {LetterState.REPLAYED}
