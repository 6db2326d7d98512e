"""The protocol with one protection taken out each: what the machine must notice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pipeline.core.claims import Claim, ClaimRequest, Settled, Settlement, Verdict
from pipeline.core.offsets import Partition
from pipeline.core.ports import WorkerInfo
from pipeline.core.state import JobState
from pipeline.core.story import JobStory
from pipeline.runtime.buffer import Buffer
from pipeline.runtime.delivery import Delivery
from pipeline.runtime.intake import Intake
from pipeline.runtime.settler import Settler, Unsettled
from tests.contract.protocol_twins import PromptEvents, Store
from tests.contract.protocol_worker import Parts, Worker
from tests.contract.protocol_world import World

__all__ = ["BREAKS", "Break"]


class Around:
    """A store around another."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    def heartbeat(self, worker: WorkerInfo) -> float:
        return self.inner.heartbeat(worker)

    def leave(self, worker_id: str) -> None:
        self.inner.leave(worker_id)

    def claim(self, worker_id: str, requests: Sequence[ClaimRequest]) -> list[Claim]:
        return self.inner.claim(worker_id, requests)

    def settle(self, worker_id: str, settlements: Sequence[Settlement]) -> list[Settled]:
        return self.inner.settle(worker_id, settlements)

    def job(self, job_id: str) -> JobStory | None:
        return self.inner.job(job_id)

    def close(self) -> None:
        self.inner.close()


class NoToken(Around):
    """Settling compares neither token nor worker."""

    def settle(self, worker_id: str, settlements: Sequence[Settlement]) -> list[Settled]:
        del worker_id
        return [self._settle_as_holder(each) for each in settlements]

    def _settle_as_holder(self, settlement: Settlement) -> Settled:
        row = self.inner.job(settlement.job_id)
        assert row is not None
        return self.inner.settle(row.worker_id, [settlement._replace(token=row.token)])[0]


class HeldIsDropped(Around):
    """A record whose job runs elsewhere is dropped instead of held."""

    def claim(self, worker_id: str, requests: Sequence[ClaimRequest]) -> list[Claim]:
        claims = self.inner.claim(worker_id, requests)
        return [
            each._replace(verdict=Verdict.DUPLICATE) if each.verdict is Verdict.HELD else each
            for each in claims
        ]


class HopIsIgnored(Around):
    """Older records of a job are not recognised as such."""

    def claim(self, worker_id: str, requests: Sequence[ClaimRequest]) -> list[Claim]:
        return self.inner.claim(worker_id, [self._newest(request) for request in requests])

    def _newest(self, request: ClaimRequest) -> ClaimRequest:
        row = self.inner.job(request.job_id)
        return request._replace(hop=max(request.hop, row.hop)) if row else request


class EveryoneIsDead(Around):
    """A job is taken from a worker that is alive."""

    def claim(self, worker_id: str, requests: Sequence[ClaimRequest]) -> list[Claim]:
        for request in requests:
            row = self.inner.job(request.job_id)
            if row and row.state is JobState.RUNNING and row.worker_id != worker_id:
                self.inner.heartbeat(WorkerInfo(row.worker_id, "host", 1, (), 0.0))
        return self.inner.claim(worker_id, requests)


class StateFirst(Settler):
    """The state is moved before the next record is acknowledged."""

    def settle(self, batch: Sequence[Unsettled]) -> list[Unsettled]:
        waiting = [(item, item.next_record) for item in batch]
        for item in batch:
            item.next_record = None
        super().settle(batch)
        for item, record in waiting:
            item.next_record = record
        self._publish_next(batch)
        return []


class RefusedIsDone(Settler):
    """A worker whose settle was refused commits its record anyway."""

    def _let_go(self, items: Sequence[Unsettled]) -> None:
        for item in items:
            delivery = item.run.delivery
            delivery.epoch = self._buffer._tracker.epoch(delivery.partition)
            self._buffer.done([delivery])


class NoNextRecord(Settler):
    """What could not be written is passed over."""

    def settle(self, batch: Sequence[Unsettled]) -> list[Unsettled]:
        for item in super().settle(batch):
            item.next_record = None
            super().settle([item])
        return []


class NoDoubt(Buffer):
    """A record whose claim had no answer goes with its partition."""

    def put_back(self, deliveries: Sequence[Delivery]) -> None:
        super().put_back(deliveries)
        for delivery in deliveries:
            delivery.doubtful = False


class NothingIsParked(Buffer):
    """A job that is in flight here is claimed again."""

    def take(self, lane: str, limit: int, now: float) -> list[Delivery]:
        in_flight, self._in_flight = self._in_flight, {}
        try:
            return super().take(lane, limit, now)
        finally:
            self._in_flight = {**in_flight, **self._in_flight}


class DoneWhenTaken(Buffer):
    """Offsets are done before the work is."""

    def take(self, lane: str, limit: int, now: float) -> list[Delivery]:
        taken = super().take(lane, limit, now)
        for each in taken:
            self._tracker.done(each.partition, each.record.offset, each.epoch)
        return taken


class LostIsKept(Intake):
    """What was read of a lost partition is committed as if it were there still."""

    def on_lost(self, partitions: Sequence[Partition]) -> None:
        del partitions


class CommitBeforeEvents(PromptEvents):
    """Offsets are committed whether their events were written or not."""

    def acknowledged(self, period: int, *, timeout: float = 0.0) -> bool:
        del period, timeout
        return True


def refused(world: World) -> None:
    """Frozen, lost its partition, got it back from one that crashed over it, and only then ended."""
    first, second = lone_holder(world)
    first.freeze()
    second.poll()
    second.claim(1)
    first.poll()
    world.crash(second, session=True, lease=False)
    for worker in world.workers * 2:
        worker.poll()
    first.end(first.running[0], "ok")
    first.settle()
    first.commit()


def unwritten_event(world: World) -> None:
    """The job has completed, its event is on the way, and the worker dies."""
    worker, _ = lone_holder(world)
    worker.end(worker.running[0], "ok")
    with world.failing("event", "late"):
        worker.settle()
    worker.commit()
    world.crash(worker, session=True, lease=True)


def older_copy(world: World) -> None:
    """Failed and sent on; the older record comes again and runs, and the newer one is met by another worker."""
    first, second = lone_holder(world)
    first.end(first.running[0], "fails")
    first.settle()
    first.lose_session()
    second.poll()
    world.clock.advance(11.0)
    second.claim(1)
    second.lose_session()
    for _ in range(2):
        first.poll()
        first.claim(1)
    first.commit()


def lone_holder(world: World) -> tuple[Worker, Worker]:
    """Two workers, of which the first runs the one job."""
    world.start_worker()
    world.start_worker()
    world.publish("0")
    for worker in world.workers * 2:
        worker.poll()
    first, second = sorted(world.workers, key=lambda worker: worker.buffer.load().jobs, reverse=True)
    first.claim(1)
    assert first.running
    return first, second


# What is taken out, what is then broken, and the course of events where chance would take too long to find one.
class Break(NamedTuple):
    parts: Parts
    broken: tuple[str, ...]
    course: Callable[[World], None] | None = None


BREAKS = {
    "settling ignores tokens": Break(Parts(store=NoToken), ("stale", "twice")),
    "held is dropped": Break(Parts(store=HeldIsDropped), ("loss",)),
    "hops are ignored": Break(Parts(store=HopIsIgnored), ("loss",), older_copy),
    "everyone counts as dead": Break(Parts(store=EveryoneIsDead), ("beside",)),
    "state before next record": Break(Parts(settler=StateFirst), ("loss",)),
    "refused is committed": Break(Parts(settler=RefusedIsDone), ("loss",), refused),
    "unwritten is passed over": Break(Parts(settler=NoNextRecord), ("loss",)),
    "doubt is forgotten": Break(Parts(buffer=NoDoubt), ("stuck",)),
    "nothing is parked": Break(Parts(buffer=NothingIsParked), ("beside", "stuck")),
    "done when taken": Break(Parts(buffer=DoneWhenTaken), ("loss",)),
    "lost is kept": Break(Parts(intake=LostIsKept), ("offsets", "loss", "stuck")),
    "commit before events": Break(Parts(events=CommitBeforeEvents), ("trail",), unwritten_event),
}
