"""The buffer: every received record is in exactly one place until it is done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pipeline.core.offsets import Partition
from pipeline.runtime.buffer import Buffer
from pipeline.runtime.delivery import Delivery
from pipeline.runtime.held import Load
from tests.unit.runtime_parts import MAIN, NOW, RETRY, delivery_of, eventually, new_buffer, new_job, record_of

P0, P1, R0 = Partition(MAIN, 0), Partition(MAIN, 1), Partition(RETRY, 0)
EMPTY = Load(0, 0, 0, 0)


def delivery(
    offset: int,
    partition: Partition = P0,
    *,
    job_id: str = "",
    due: float = 0.0,
    job_type: str = "email.send",
) -> Delivery:
    job = new_job(job_type=job_type, not_before=due)
    job = job._replace(job_id=job_id) if job_id else job
    return delivery_of(record_of(job, topic=partition.topic, partition=partition.number, offset=offset))


def filled(*deliveries: Delivery, now: float = NOW) -> Buffer:
    buffer = new_buffer(P0, P1, R0)
    assert buffer.receive(deliveries, now) == len(deliveries)
    return buffer


def taken(buffer: Buffer, now: float = NOW, *, limit: int = 100, lane: str = "thread") -> list[int]:
    return [each.record.offset for each in buffer.take(lane, limit, now)]


class TestGoingOut:
    def test_jobs_go_out_as_they_came_up_to_the_limit(self) -> None:
        buffer = filled(*map(delivery, range(5)))
        assert taken(buffer, limit=3) == [0, 1, 2]
        assert taken(buffer, limit=3) == [3, 4]
        assert taken(buffer) == []
        assert buffer.in_flight() == 5

    def test_each_lane_has_its_own_jobs(self) -> None:
        buffer = filled(delivery(0), delivery(1, job_type="async.send"), delivery(2))
        assert taken(buffer, lane="async") == [1]
        assert taken(buffer) == [0, 2]

    def test_records_of_a_partition_that_is_not_assigned_are_not_taken_in(self) -> None:
        buffer = new_buffer(P0)
        assert buffer.receive([delivery(0, P1), delivery(7)], NOW) == 1
        assert taken(buffer) == [7]
        assert buffer.load().jobs == 1

    def test_a_retry_is_not_given_out_before_it_is_due(self) -> None:
        buffer = filled(delivery(0, R0, due=NOW + 10))
        assert taken(buffer, NOW + 9.999) == []
        assert taken(buffer, NOW + 10) == [0]

    def test_no_retry_waits_for_the_one_before_it(self) -> None:
        buffer = filled(
            delivery(0, R0, due=NOW + 60), delivery(1, R0, due=NOW + 10), delivery(2, R0, due=NOW - 1)
        )
        assert taken(buffer) == [2]
        assert taken(buffer, NOW + 10) == [1]
        assert taken(buffer, NOW + 60) == [0]

    @given(st.lists(st.floats(0, 100), max_size=30), st.lists(st.floats(0, 120), max_size=8))
    def test_at_any_time_exactly_the_due_ones_go_out_earliest_first(
        self, dues: list[float], looks: list[float]
    ) -> None:
        deliveries = [delivery(offset, R0, due=NOW + due) for offset, due in enumerate(dues)]
        buffer = filled(*deliveries)
        due_at = {each.record.offset: each.due_at for each in deliveries}
        waiting = dict(due_at)
        for look in sorted([*looks, 200.0]):
            given_out = taken(buffer, NOW + look)
            assert set(given_out) == {offset for offset, due in waiting.items() if due <= NOW + look}
            late = [due_at[offset] for offset in given_out if due_at[offset] > NOW]
            assert late == sorted(late)
            waiting = {offset: due for offset, due in waiting.items() if offset not in given_out}
        assert not waiting


class TestTheSameJobTwice:
    def test_a_second_record_of_a_job_in_flight_is_parked(self) -> None:
        first, second = delivery(0), delivery(1, P1)
        second.job = first.job
        buffer = filled(first, second)
        assert buffer.take("thread", 10, NOW) == [first]
        assert buffer.take("thread", 10, NOW) == []
        assert buffer.load().jobs == 2
        buffer.done([first])
        assert buffer.take("thread", 10, NOW) == [second]

    def test_it_is_parked_until_the_first_one_is_held_or_put_back(self) -> None:
        first, second = delivery(0), delivery(1)
        second.job = first.job
        buffer = filled(first, second)
        buffer.take("thread", 10, NOW)
        buffer.take("thread", 10, NOW)
        buffer.hold([first], NOW + 5)
        assert buffer.take("thread", 10, NOW) == [second]
        assert buffer.take("thread", 10, NOW + 5) == []
        buffer.done([second])
        assert buffer.take("thread", 10, NOW + 5) == [first]

    def test_a_parked_record_goes_with_its_partition(self) -> None:
        first, second = delivery(0), delivery(1, P1)
        second.job = first.job
        buffer = filled(first, second)
        buffer.take("thread", 10, NOW)
        buffer.withdraw([P1])
        buffer.forget([P1])
        buffer.done([first])
        assert buffer.take("thread", 10, NOW) == []
        assert buffer.load() == EMPTY


class TestComingBack:
    def test_what_is_done_can_be_committed(self) -> None:
        buffer = filled(delivery(3), delivery(4))
        first, second = buffer.take("thread", 10, NOW)
        buffer.done([second])
        assert buffer.take_commits() == {}
        buffer.done([first])
        assert buffer.take_commits() == {P0: 5}
        assert (buffer.load(), buffer.in_flight()) == (EMPTY, 0)

    def test_what_could_not_be_claimed_is_first_in_line_again(self) -> None:
        buffer = filled(*map(delivery, range(4)))
        buffer.put_back(buffer.take("thread", 2, NOW))
        assert buffer.in_flight() == 0
        assert taken(buffer) == [0, 1, 2, 3]

    def test_what_is_held_is_looked_at_again_at_its_time_as_if_new(self) -> None:
        buffer = filled(delivery(0), delivery(1))
        first, _ = buffer.take("thread", 10, NOW)
        first.token = 7
        buffer.hold([first], NOW + 2)
        assert taken(buffer, NOW + 1.9) == []
        assert buffer.take("thread", 10, NOW + 2) == [first]
        assert first.token == 0
        assert buffer.load().jobs == 2

    def test_what_is_handed_back_stays_open(self) -> None:
        buffer = filled(delivery(0), delivery(1))
        first, second = buffer.take("thread", 10, NOW)
        buffer.hand_back([first])
        buffer.done([second])
        assert buffer.take_commits() == {}
        assert buffer.load() == EMPTY

    def test_what_was_handed_back_is_left_alone_when_it_comes_back_all_the_same(self) -> None:
        """At the end a settle may still be under way: its answer must not bring the thread down."""
        buffer = filled(*map(delivery, range(3)))
        first, second, third = buffer.take("thread", 10, NOW)
        buffer.hand_back_all()
        buffer.done([first])
        buffer.hold([second], NOW + 1)
        buffer.put_back([third])
        assert (buffer.load(), buffer.in_flight()) == (EMPTY, 0)
        assert taken(buffer, NOW + 10) == []
        assert buffer.take_commits() == {}


class TestRebalances:
    def test_what_has_not_started_goes_with_its_partition(self) -> None:
        buffer = filled(delivery(0), delivery(0, P1), delivery(0, R0, due=NOW + 10), delivery(1, P1))
        buffer.withdraw([P1, R0])
        buffer.forget([P1, R0])
        assert buffer.assigned() == [P0]
        assert taken(buffer, NOW + 20) == [0]
        assert buffer.load().jobs == 1
        assert buffer.load().waiting == 0

    def test_what_is_in_flight_goes_on_and_commits_until_the_partition_is_forgotten(self) -> None:
        buffer = filled(delivery(0), delivery(1))
        first, second = buffer.take("thread", 10, NOW)
        buffer.withdraw([P0])
        buffer.done([first])
        assert buffer.take_commits([P0]) == {P0: 1}
        buffer.forget([P0])
        buffer.done([second])
        assert buffer.take_commits() == {}
        assert (buffer.load(), buffer.in_flight()) == (EMPTY, 0)

    @pytest.mark.parametrize("back", ["hold", "hand_back"])
    def test_what_comes_back_while_its_partition_goes_is_not_kept(self, back: str) -> None:
        """Its next owner reads it: kept here it would start on a partition of another worker."""
        buffer = filled(delivery(0))
        in_flight = buffer.take("thread", 10, NOW)
        buffer.withdraw([P0])
        buffer.hold(in_flight, NOW + 1) if back == "hold" else buffer.hand_back(in_flight)
        buffer.forget([P0])
        assert taken(buffer, NOW + 10) == []
        assert buffer.load() == EMPTY

    def test_a_record_of_doubt_outlives_its_partition(self) -> None:
        """This worker may have claimed it without knowing; the next owner would wait for it as long as it lives."""
        buffer = filled(delivery(0), delivery(1))
        asked = buffer.take("thread", 1, NOW)
        buffer.put_back(asked)
        buffer.withdraw([P0])
        buffer.forget([P0])
        assert buffer.take("thread", 10, NOW) == asked
        assert buffer.load().jobs == 1
        buffer.done(asked)
        assert buffer.load() == EMPTY
        assert buffer.take_commits() == {}

    def test_a_record_of_doubt_outlives_its_partition_wherever_it_is(self) -> None:
        buffer = filled(*map(delivery, range(3)))
        held, back, parked = buffer.take("thread", 10, NOW)
        buffer.put_back([held, back, parked])
        buffer.take("thread", 10, NOW)
        buffer.withdraw([P0])
        buffer.hold([held], NOW + 1)
        buffer.put_back([back])
        buffer.forget([P0])
        buffer.put_back([parked])
        assert sorted(taken(buffer, NOW + 1)) == [0, 1, 2]

    def test_once_claimed_it_is_a_record_like_any_other(self) -> None:
        buffer = filled(delivery(0))
        asked = buffer.take("thread", 1, NOW)
        buffer.put_back(asked)
        buffer.take("thread", 1, NOW)
        asked[0].doubtful = False
        buffer.withdraw([P0])
        buffer.hold(asked, NOW + 1)
        assert buffer.load() == EMPTY

    def test_a_partition_that_comes_back_starts_afresh(self) -> None:
        buffer = filled(delivery(0), delivery(1))
        first, second = buffer.take("thread", 10, NOW)
        buffer.withdraw([P0])
        buffer.forget([P0])
        buffer.assign([P0])
        again = delivery(0)
        again.job = first.job
        buffer.receive([again], NOW)
        assert buffer.take("thread", 10, NOW) == [], "it runs here still"
        buffer.done([first, second])
        assert buffer.take_commits() == {}
        assert buffer.take("thread", 10, NOW) == [again]
        buffer.done([again])
        assert buffer.take_commits() == {P0: 1}
        assert buffer.load() == EMPTY

    def test_current_says_whether_the_assignment_lasts(self) -> None:
        buffer = filled(delivery(0))
        (mine,) = buffer.take("thread", 10, NOW)
        assert buffer.current(mine)
        buffer.forget([P0])
        buffer.assign([P0])
        assert not buffer.current(mine)


class TestWaiting:
    def test_there_is_no_waiting_for_what_is_ready(self) -> None:
        buffer = filled(delivery(0), delivery(1, R0, due=NOW + 5))
        assert buffer.wait_work(["thread"], now=NOW, timeout=30)
        taken(buffer)
        assert not buffer.wait_work(["thread"], now=NOW, timeout=0)
        assert buffer.wait_work(["thread"], now=NOW + 5, timeout=30)

    def test_work_of_another_lane_is_not_waited_for(self) -> None:
        buffer = filled(delivery(0, job_type="async.send"))
        assert not buffer.wait_work(["thread"], now=NOW, timeout=0)
        assert not buffer.wait_work([], now=NOW, timeout=0)
        assert buffer.wait_work(["thread", "async"], now=NOW, timeout=0)

    def test_the_wait_ends_when_the_next_one_falls_due(self) -> None:
        buffer = filled(delivery(0, R0, due=NOW + 0.05))
        assert not buffer.wait_work(["thread"], now=NOW, timeout=600)
        assert buffer.wait_work(["thread"], now=NOW + 0.05, timeout=600)

    @pytest.mark.parametrize(
        ("what", "lanes"),
        [("receive", ["thread"]), ("wake", ["thread"]), ("done", []), ("hold", ["thread"]), ("hand_back", ["thread"]), ("put_back", ["thread"])],
    )  # fmt: skip
    def test_the_wait_ends_when_something_changes(self, what: str, lanes: list[str]) -> None:
        """An end that makes nothing ready is of interest only to one that waits for jobs in flight to end."""
        buffer = filled(delivery(0))
        mine = buffer.take("thread", 10, NOW)
        changes: dict[str, Callable[[], object]] = {
            "receive": lambda: buffer.receive([delivery(1)], NOW),
            "wake": buffer.wake,
            "done": lambda: buffer.done(mine),
            "hold": lambda: buffer.hold(mine, NOW + 1),
            "hand_back": lambda: buffer.hand_back(mine),
            "put_back": lambda: buffer.put_back(mine),
        }
        self.waits_until(buffer, lambda: buffer.wait_work(lanes, now=NOW, timeout=600), changes[what])

    @pytest.mark.parametrize("what", ["done", "hold", "hand_back", "put_back"])
    def test_a_rebalance_waits_until_all_of_its_partitions_have_landed(self, what: str) -> None:
        buffer = filled(delivery(0), delivery(0, P1))
        mine, other = buffer.take("thread", 10, NOW)
        assert not buffer.wait_landed([P0], 0)
        buffer.done([other])
        changes: dict[str, Callable[[], object]] = {
            "done": lambda: buffer.done([mine]),
            "hold": lambda: buffer.hold([mine], NOW + 1),
            "hand_back": lambda: buffer.hand_back([mine]),
            "put_back": lambda: buffer.put_back([mine]),
        }
        self.waits_until(buffer, lambda: buffer.wait_landed([P0], 600), changes[what])
        assert buffer.wait_landed([P0, P1], 0)

    @staticmethod
    def waits_until(buffer: Buffer, wait: Callable[[], object], change: Callable[[], object]) -> None:
        waiter = threading.Thread(target=wait, daemon=True)
        waiter.start()
        eventually(lambda: buffer._changed._waiters or buffer._landed._waiters)  # type: ignore[attr-defined]
        assert waiter.is_alive()
        change()
        eventually(lambda: not waiter.is_alive())


class BufferMachine(RuleBasedStateMachine):
    """Random records, claims, ends and rebalances against a plain account of them."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = new_buffer(P0)
        self.now = NOW
        self.logs: dict[Partition, int] = {P0: 0, P1: 0, R0: 0}
        self.live: list[Delivery] = []  # in the buffer, in whatever place
        self.flying: list[Delivery] = []
        self.open: dict[Partition, set[int]] = {P0: set()}  # of the present assignments
        self.leaving: set[Partition] = set()

    @initialize()
    def start(self) -> None:
        self.receive(P0, 0, 0)

    def job_id(self, number: int) -> str:
        return f"00000000-0000-4000-8000-{number:012d}"

    @rule(
        partition=st.sampled_from([P0, P1, R0]), number=st.integers(0, 5), due=st.sampled_from([0, 0, 5, 20])
    )
    def receive(self, partition: Partition, number: int, due: float) -> None:
        offset = self.logs[partition]
        mine = delivery(offset, partition, job_id=self.job_id(number), due=self.now + due if due else 0.0)
        accepted = self.buffer.receive([mine], self.now)
        assert accepted == (partition in self.open)
        if accepted:
            self.logs[partition] += 1
            self.live.append(mine)
            self.open[partition].add(offset)

    @rule(seconds=st.sampled_from([1, 5, 30]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(limit=st.integers(1, 4))
    def take(self, limit: int) -> None:
        got = self.buffer.take("thread", limit, self.now)
        assert len(got) <= limit
        for mine in got:
            assert mine.due_at <= self.now, "it is given out early"
            assert mine in self.live
        self.flying += got
        ids = [mine.job.job_id for mine in self.flying]
        assert len(set(ids)) == len(ids), "a job is in flight twice"

    def pick(self, data: st.DataObject) -> list[Delivery]:
        chosen: list[Delivery] = data.draw(
            st.lists(st.sampled_from(self.flying), min_size=1, max_size=3, unique_by=id)
        )
        self.flying = [mine for mine in self.flying if mine not in chosen]
        return chosen

    def gone(self, chosen: Iterable[Delivery]) -> None:
        chosen = list(chosen)
        self.live = [mine for mine in self.live if mine not in chosen]

    def is_current(self, mine: Delivery) -> bool:
        return self.buffer.current(mine) and mine.partition in self.open

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        chosen = self.pick(data)
        for mine in chosen:
            if self.is_current(mine):
                self.open[mine.partition].discard(mine.record.offset)
        self.buffer.done(chosen)
        self.gone(chosen)

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), how=st.sampled_from(["put_back", "hold", "hand_back"]))
    def come_back(self, data: st.DataObject, how: str) -> None:
        chosen = self.pick(data)
        if how == "hold":
            self.buffer.hold(chosen, self.now + 3)
        elif how == "put_back":
            self.buffer.put_back(chosen)
        else:
            self.buffer.hand_back(chosen)
            self.gone(chosen)
            return
        self.gone(
            m for m in chosen if not (m.doubtful or (self.is_current(m) and m.partition not in self.leaving))
        )

    @rule(partition=st.sampled_from([P0, P1, R0]))
    def assign(self, partition: Partition) -> None:
        if partition not in self.open:
            self.buffer.assign([partition])
            self.open[partition] = set()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        partition = data.draw(st.sampled_from(sorted(self.open)))
        self.leaving.add(partition)
        self.buffer.withdraw([partition])
        self.gone(
            m for m in self.live if m.partition == partition and m not in self.flying and not m.doubtful
        )

    @precondition(lambda self: self.leaving)
    @rule()
    def forget(self) -> None:
        for partition in self.leaving:
            self.buffer.forget([partition])
            del self.open[partition]
        self.leaving.clear()

    @rule()
    def commit(self) -> None:
        for partition, offset in self.buffer.take_commits().items():
            assert partition in self.open
            assert not any(each < offset for each in self.open[partition]), "it passes an unfinished record"

    @invariant()
    def figures_are_those_of_what_is_held(self) -> None:
        main = [mine.record.size for mine in self.live if mine.partition != R0]
        retries = [mine.record.size for mine in self.live if mine.partition == R0]
        assert self.buffer.load() == Load(len(main), sum(main), len(retries), sum(retries))
        assert self.buffer.in_flight() == len(self.flying)
        flying = [partition for partition in (P0, P1, R0) if not self.buffer.wait_landed([partition], 0)]
        assert set(flying) == {mine.partition for mine in self.flying}

    def teardown(self) -> None:
        """Everything that is held comes out, and nothing is left in the figures."""
        self.buffer.done(self.flying)
        self.gone(self.flying)
        self.flying = []
        self.now += 100
        while got := self.buffer.take("thread", 2, self.now):
            self.buffer.done(got)
            self.gone(got)
        assert self.live == []
        assert self.buffer.load() == EMPTY


BufferMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestBufferMachine = BufferMachine.TestCase
