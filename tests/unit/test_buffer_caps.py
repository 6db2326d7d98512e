"""The buffer: at most so many jobs of a type in flight, and no other job waits for them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import pytest

from pipeline.core.offsets import Partition
from pipeline.runtime.buffer import Buffer, BufferSettings
from pipeline.runtime.delivery import Delivery
from tests.unit.runtime_parts import MAIN, NOW, delivery_of, new_job, record_of

P0, P1 = Partition(MAIN, 0), Partition(MAIN, 1)


def delivery(offset: int, job_type: str = "slow", partition: Partition = P0, *, job_id: str = "") -> Delivery:
    job = new_job(job_type=job_type)
    job = job._replace(job_id=job_id) if job_id else job
    return delivery_of(record_of(job, partition=partition.number, offset=offset))


@pytest.fixture
def buffer() -> Buffer:
    """One in which two jobs of the type `slow` may run."""
    found = Buffer(
        BufferSettings(
            lanes=("thread",), lane_of=lambda _: "thread", is_retry=lambda _: False, concurrency={"slow": 2}
        )
    )
    found.assign([P0, P1])
    return found


def receive(buffer: Buffer, deliveries: Iterable[Delivery]) -> list[Delivery]:
    received = list(deliveries)
    assert buffer.receive(received, NOW) == len(received)
    return received


def taken(buffer: Buffer, limit: int = 100) -> list[int]:
    return [each.record.offset for each in buffer.take("thread", limit, NOW)]


def test_so_many_go_out_and_others_pass_them(buffer: Buffer) -> None:
    receive(buffer, [*map(delivery, range(5)), delivery(5, "quick"), delivery(6), delivery(7, "quick")])
    assert taken(buffer) == [0, 1, 5, 7]
    assert taken(buffer) == []
    assert not buffer.wait_work(["thread"], now=NOW, timeout=0)


def test_those_that_wait_go_out_in_the_order_in_which_they_came(buffer: Buffer) -> None:
    jobs = receive(buffer, map(delivery, range(6)))
    assert taken(buffer) == [0, 1]
    buffer.run_over(jobs[:1])
    receive(buffer, [delivery(6), delivery(7, "quick")])
    assert buffer.wait_work(["thread"], now=NOW, timeout=0)
    assert taken(buffer) == [2, 7]
    buffer.run_over([jobs[1], jobs[2]])
    assert taken(buffer, limit=1) == [3]
    assert taken(buffer) == [4]


def test_a_place_is_free_when_the_run_is_over_and_not_twice(buffer: Buffer) -> None:
    jobs = receive(buffer, map(delivery, range(5)))
    assert taken(buffer) == [0, 1]
    buffer.run_over(jobs[:1])
    buffer.run_over(jobs[:1])
    buffer.done(jobs[:1])
    assert taken(buffer) == [2]


@pytest.mark.parametrize("how", ["done", "hand_back", "hold", "put_back"])
def test_a_place_is_free_whatever_becomes_of_the_job(buffer: Buffer, how: str) -> None:
    jobs = receive(buffer, map(delivery, range(4)))
    assert taken(buffer) == [0, 1]
    if how == "hold":
        buffer.hold(jobs[:1], NOW + 5)
    else:
        getattr(buffer, how)(jobs[:1])
    assert taken(buffer) == [0 if how == "put_back" else 2]  # nobody passes one that could not be claimed


def test_a_partition_that_goes_away_takes_its_jobs_and_their_places_along(buffer: Buffer) -> None:
    jobs = receive(buffer, [*map(delivery, range(4)), *(delivery(n, partition=P1) for n in range(10, 14))])
    assert taken(buffer) == [0, 1]
    buffer.run_over(jobs[:2])
    assert buffer.wait_work(["thread"], now=NOW, timeout=0)  # 2 and 3 have places now
    buffer.withdraw([P0])
    assert taken(buffer) == [10, 11]
    buffer.done(jobs[:2])
    assert buffer.load().jobs == 2
    assert buffer.aside().jobs == 2


def test_jobs_that_wait_for_a_place_do_not_fill_the_room_of_others(buffer: Buffer) -> None:
    receive(buffer, map(delivery, range(50)))
    taken(buffer)
    assert buffer.load().jobs == 2
    assert (buffer.aside().jobs, set(buffer.aside().partitions)) == (48, {P0})


def test_the_second_record_of_a_job_takes_no_place(buffer: Buffer) -> None:
    same = str(uuid.uuid4())
    first, second = receive(buffer, [delivery(0, job_id=same), delivery(1, job_id=same)])
    rest = receive(buffer, map(delivery, range(2, 5)))
    assert taken(buffer) == [0, 2]
    buffer.done([first])
    assert taken(buffer) == [3]
    buffer.run_over(rest)
    assert taken(buffer) == [4, 1]
    buffer.done([*rest, second])
    assert buffer.load() == (0, 0, 0, 0)
