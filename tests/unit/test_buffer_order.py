"""The buffer and job types that run in order: one job of a key at a time, in offset order, and what waits is counted apart."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from pipeline.core.offsets import Partition
from pipeline.runtime.buffer import Buffer, BufferSettings
from pipeline.runtime.delivery import Delivery
from pipeline.runtime.held import Aside, Load
from tests.unit.runtime_parts import LANES, MAIN, NOW, RETRY, delivery_of, new_job, record_of

P0, P1, R0 = Partition(MAIN, 0), Partition(MAIN, 1), Partition(RETRY, 0)
ORDERED = "ledger.post"
NOBODY = Aside(0, 0, frozenset())


def new_buffer() -> Buffer:
    buffer = Buffer(
        BufferSettings(
            lanes=LANES,
            lane_of=lambda _: LANES[0],
            is_retry=lambda topic: ".retry." in topic,
            in_order=[ORDERED],
        )
    )
    buffer.assign([P0, P1, R0])
    return buffer


def delivery(
    offset: int,
    partition: Partition = P0,
    *,
    tenant: str = "acme",
    key: str = "",
    job_type: str = ORDERED,
    due: float = 0.0,
) -> Delivery:
    job = new_job(job_type=job_type, tenant=tenant, ordering_key=key, not_before=due)
    return delivery_of(record_of(job, topic=partition.topic, partition=partition.number, offset=offset))


def filled(*deliveries: Delivery) -> Buffer:
    buffer = new_buffer()
    buffer.receive(deliveries, NOW)
    return buffer


def take(buffer: Buffer, now: float = NOW) -> list[Delivery]:
    return buffer.take(LANES[0], 100, now)


def offsets(deliveries: Iterable[Delivery]) -> list[int]:
    return [each.record.offset for each in deliveries]


class TestOrder:
    def test_one_job_of_a_key_goes_out_and_the_next_when_it_is_done(self) -> None:
        buffer = filled(delivery(0), delivery(1), delivery(2))
        for offset in range(3):
            (first,) = take(buffer)
            assert first.record.offset == offset
            assert take(buffer) == []
            buffer.done([first])
        assert buffer.take_commits() == {P0: 3}
        assert buffer.load() == Load(0, 0, 0, 0)

    def test_other_keys_tenants_and_partitions_go_on(self) -> None:
        buffer = filled(
            delivery(0),
            delivery(1, tenant="other"),
            delivery(2, key="k"),
            delivery(3),
            delivery(4, job_type="email.send"),
            delivery(5, job_type="email.send"),
            delivery(0, P1),
        )
        assert offsets(take(buffer)) == [0, 1, 2, 4, 5, 0]

    def test_a_failed_job_holds_its_key_until_its_next_attempt_has_ended(self) -> None:
        buffer = filled(delivery(0), delivery(1), delivery(2, key="other"))
        first, other = take(buffer)
        buffer.wait_in_place([(first, 2, NOW + 10)])
        buffer.done([other])
        assert take(buffer, NOW + 9.9) == []
        assert buffer.take_commits() == {}
        (again,) = take(buffer, NOW + 10)
        assert (again.record.offset, again.job.attempt, again.token) == (0, 2, 0)
        assert again is not first
        buffer.done([again])
        assert offsets(take(buffer)) == [1]
        assert buffer.take_commits() == {P0: 1}

    def test_a_held_job_holds_its_key_too(self) -> None:
        buffer = filled(delivery(0), delivery(1))
        buffer.hold(take(buffer), NOW + 5)
        assert take(buffer, NOW + 4) == []
        assert offsets(take(buffer, NOW + 5)) == [0]

    def test_a_job_whose_claim_was_not_answered_stays_first(self) -> None:
        buffer = filled(delivery(0), delivery(1))
        buffer.put_back(take(buffer))
        assert offsets(take(buffer)) == [0]

    def test_a_job_that_is_handed_back_lets_nobody_pass(self) -> None:
        buffer = filled(delivery(0), delivery(1))
        buffer.hand_back(take(buffer))
        assert take(buffer) == []

    def test_the_next_of_a_key_comes_before_what_arrived_after_it(self) -> None:
        buffer = filled(delivery(0), delivery(1), delivery(2, job_type="email.send"))
        first, _ = take(buffer)
        buffer.receive([delivery(3, job_type="email.send")], NOW)
        buffer.done([first])
        assert offsets(take(buffer)) == [1, 3]

    def test_one_that_is_not_due_yet_waits_and_holds_its_key(self) -> None:
        buffer = filled(delivery(0), delivery(1, due=NOW + 30), delivery(2))
        buffer.done(take(buffer))
        assert take(buffer, NOW + 29) == []
        assert offsets(take(buffer, NOW + 30)) == [1]


class TestRebalance:
    def test_lines_go_with_their_partition(self) -> None:
        buffer = filled(delivery(0), delivery(1), delivery(2, key="other"), delivery(0, P1), delivery(1, P1))
        running = take(buffer)
        buffer.withdraw([P0])
        buffer.done(running)  # within the bound: its offset is done, and nothing follows
        assert buffer.take_commits() == {P0: 1, P1: 1}
        assert offsets(take(buffer)) == [1]  # of the other partition
        assert buffer.aside() == NOBODY

    def test_the_partition_that_comes_back_forms_its_lines_anew(self) -> None:
        first, second = delivery(0), delivery(1)
        buffer = filled(first, second)
        (running,) = take(buffer)
        buffer.withdraw([P0])
        buffer.forget([P0])
        buffer.assign([P0])
        again = [delivery_of(first.record), delivery_of(second.record)]
        buffer.receive(again, NOW)
        assert take(buffer) == []  # the job itself is in flight here still, and the other waits for it
        buffer.done([running])
        assert buffer.take_commits() == {}
        assert take(buffer) == again[:1]
        buffer.done(again[:1])
        assert take(buffer) == again[1:]

    def test_a_retry_of_a_partition_that_has_gone_is_its_next_owners(self) -> None:
        buffer = filled(delivery(0))
        (running,) = take(buffer)
        buffer.withdraw([P0])
        buffer.forget([P0])
        buffer.wait_in_place([(running, 2, NOW)])
        assert take(buffer, NOW + 1) == []
        assert (buffer.load(), buffer.aside()) == (Load(0, 0, 0, 0), NOBODY)


class TestCounts:
    def test_what_waits_for_its_key_takes_no_room_from_others(self) -> None:
        buffer = filled(delivery(0), delivery(1), delivery(2), delivery(0, P1))
        assert buffer.load().jobs == 2
        aside = buffer.aside()
        assert (aside.jobs, set(aside.partitions)) == (2, {P0})
        assert aside.bytes > 0
        first, other = take(buffer)
        buffer.wait_in_place([(first, 2, NOW + 10)])
        assert (buffer.load().jobs, buffer.aside().jobs) == (1, 3)
        buffer.done([other])
        buffer.done(take(buffer, NOW + 10))
        assert (buffer.load().jobs, buffer.aside().jobs) == (1, 1)
        buffer.done(take(buffer))
        buffer.done(take(buffer))
        assert (buffer.load(), buffer.aside()) == (Load(0, 0, 0, 0), NOBODY)

    @pytest.mark.parametrize("end", ["done", "withdraw"])
    def test_retry_topics_keep_their_own_count(self, end: str) -> None:
        buffer = filled(delivery(0, R0), delivery(1, R0))
        assert (buffer.load().waiting, buffer.aside()) == (2, NOBODY)
        if end == "done":
            buffer.done(take(buffer))
            buffer.done(take(buffer))
        else:
            buffer.withdraw([R0])
        assert buffer.load().waiting == 0


class OrderMachine(RuleBasedStateMachine):
    """Anything may happen to the jobs of three keys in two partitions; at the end everything gets done, in order."""

    @initialize()
    def start(self) -> None:
        self.buffer = new_buffer()
        self.now = NOW
        self.log: dict[Partition, list[Delivery]] = {P0: [], P1: []}
        self.running: list[Delivery] = []
        self.finished: dict[Partition, set[int]] = {P0: set(), P1: set()}

    @rule(partition=st.sampled_from([P0, P1]), key=st.sampled_from("abc"))
    def receive(self, partition: Partition, key: str) -> None:
        self.log[partition].append(delivery(len(self.log[partition]), partition, key=key))
        self.buffer.receive(self.log[partition][-1:], self.now)

    @rule()
    def take(self) -> None:
        for taken in take(self.buffer, self.now):
            before = [
                other.record.offset
                for other in self.log[taken.partition][: taken.record.offset]
                if other.job.ordering_key == taken.job.ordering_key
            ]
            assert self.finished[taken.partition].issuperset(before), "a later job of a key overtook"
            taken.doubtful = False  # its claim is granted
            self.running.append(taken)

    @precondition(lambda self: self.running)
    @rule(number=st.integers(0, 9), how=st.sampled_from(["done", "fails", "held", "unanswered"]))
    def come_back(self, number: int, how: str) -> None:
        one = self.running.pop(number % len(self.running))
        if how == "done":
            self.finished[one.partition].add(one.record.offset)
            self.buffer.done([one])
        elif how == "fails":
            self.buffer.wait_in_place([(one, one.job.attempt + 1, self.now + 10)])
        elif how == "held":
            self.buffer.hold([one], self.now + 1)
        else:
            self.buffer.put_back([one])

    @rule()
    def pass_time(self) -> None:
        self.now += 11

    @rule(partition=st.sampled_from([P0, P1]))
    def rebalance(self, partition: Partition) -> None:
        """Away and back: what is not finished is read again. Runs go on as they would elsewhere, and are refused."""
        self.buffer.withdraw([partition])
        for one in [each for each in self.running if each.partition == partition]:
            self.running.remove(one)
            self.buffer.done([one])
        self.buffer.forget([partition])
        self.buffer.assign([partition])
        left = [one for one in self.log[partition] if one.record.offset not in self.finished[partition]]
        self.buffer.receive([delivery_of(one.record) for one in left], self.now)

    def teardown(self) -> None:
        if not hasattr(self, "buffer"):
            return
        for _ in range(sum(map(len, self.log.values())) * 2 + 2):
            self.take()
            while self.running:
                self.come_back(0, "done")
            self.pass_time()
        assert all(len(self.finished[p]) == len(self.log[p]) for p in self.log)
        assert (self.buffer.load(), self.buffer.aside()) == (Load(0, 0, 0, 0), NOBODY)


OrderMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestOrderMachine = OrderMachine.TestCase
