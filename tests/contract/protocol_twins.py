"""Twins that fail when told to: a store that is watched, writes that are refused or unanswered, a consumer as Kafka has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

from pipeline.adapters.memory_broker import MemoryJobConsumer
from pipeline.core.claims import Claim, ClaimRequest, Settled, Settlement, Verdict
from pipeline.core.job import Record
from pipeline.core.offsets import Partition
from pipeline.core.ports import (
    Delivered,
    JobProducer,
    JobStore,
    KeyedValue,
    Outgoing,
    RebalanceListener,
    WorkerInfo,
    tell_end,
)
from pipeline.core.story import JobStory
from pipeline.errors import PublishFailed, PublishUnknown, StoreUnavailable
from pipeline.runtime.events import EventSink

__all__ = ["EVENTS", "Faults", "LooseConsumer", "PromptEvents", "ShakyProducer", "Store", "WatchedStore"]

Answer = TypeVar("Answer")
OnDelivery: TypeAlias = Callable[[Delivered], None] | None
EVENTS = "jobs.events"
# What shall fail next, once: claim, settle, write, event or commit -> before or after it took effect, or late.
Faults: TypeAlias = dict[str, str]


class Store(JobStore, Protocol):
    """A job store that also tells stories."""

    def job(self, job_id: str) -> JobStory | None: ...


class Watcher(Protocol):
    """Sees what the store grants and accepts, also when the answer is lost."""

    def see_claim(self, worker_id: str, request: ClaimRequest, claim: Claim) -> None: ...

    def see_settlement(self, settlement: Settlement) -> None: ...


class WatchedStore:
    """The store, with its faults, and the truth looking on."""

    def __init__(self, inner: Store, faults: Faults, watcher: Watcher) -> None:
        self._inner = inner
        self._faults = faults
        self._watcher = watcher

    def claim(self, worker_id: str, requests: Sequence[ClaimRequest]) -> list[Claim]:
        fault = self._fault("claim")
        claims = self._inner.claim(worker_id, requests)
        for request, claim in zip(requests, claims, strict=True):
            if claim.verdict is Verdict.CLAIMED:
                self._watcher.see_claim(worker_id, request, claim)
        return self._answer(claims, fault)

    def settle(self, worker_id: str, settlements: Sequence[Settlement]) -> list[Settled]:
        fault = self._fault("settle")
        results = self._inner.settle(worker_id, settlements)
        for settlement, settled in zip(settlements, results, strict=True):
            if settled.accepted:
                self._watcher.see_settlement(settlement)
        return self._answer(results, fault)

    def _fault(self, call: str) -> str:
        fault = self._faults.pop(call, "")
        if fault == "before":
            raise StoreUnavailable(f"{call}: away")
        return fault

    @staticmethod
    def _answer(answer: Answer, fault: str) -> Answer:
        if fault == "after":
            raise StoreUnavailable("the answer was lost")
        return answer

    def heartbeat(self, worker: WorkerInfo) -> float:
        return self._inner.heartbeat(worker)

    def leave(self, worker_id: str) -> None:
        self._inner.leave(worker_id)

    def close(self) -> None:
        self._inner.close()


class ShakyProducer:
    """Writes of one worker; one may be refused, take place without an answer, or be on its way for a while."""

    def __init__(self, inner: JobProducer, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults
        self._on_the_way: list[tuple[Outgoing, OnDelivery]] = []

    def send(self, record: Outgoing, on_delivery: OnDelivery = None) -> None:
        """An event, or the next record of a run."""
        fault = self._faults.pop("event" if record.topic == EVENTS else "write", "")
        if fault == "late":
            self._on_the_way.append((record, on_delivery))
        elif on_delivery is not None:
            on_delivery(self._write(record, fault))

    def _write(self, record: Outgoing, fault: str) -> Delivered:
        if fault == "before":
            return Delivered(None, PublishFailed("refused"))
        (delivered,) = self._inner.send_all([record])
        return Delivered(None, PublishUnknown("no answer")) if fault == "after" else delivered

    def arrive(self) -> None:
        """What is on its way gets there, unless its worker has crashed."""
        on_the_way, self._on_the_way = self._on_the_way, []
        for record, on_delivery in on_the_way:
            self._inner.send(record, on_delivery)

    def send_many(
        self,
        topic: str,
        records: Sequence[KeyedValue],
        *,
        on_acknowledged: Callable[[], None],
        on_refused: Callable[[KeyedValue, Exception], None],
    ) -> None:
        """Events."""
        for record in records:
            self.send(Outgoing(topic, *record, []), partial(tell_end, record, on_acknowledged, on_refused))

    def send_all(self, records: Sequence[Outgoing]) -> list[Delivered]:
        return [self._write(record, self._faults.pop("write", "")) for record in records]

    def flush(self, timeout: float) -> int:
        return self._inner.flush(timeout)

    def close(self) -> None:
        self._inner.close()


class PromptEvents(EventSink):
    """Events whose acknowledgement is there at once or not yet: nothing is waited for."""

    def acknowledged(self, period: int, *, timeout: float = 0.0) -> bool:
        del timeout
        return super().acknowledged(period)


class LooseConsumer:
    """A member of the group as real Kafka has it: while it is one, any commit of its is accepted. Never waits."""

    def __init__(self, inner: MemoryJobConsumer, faults: Faults) -> None:
        self.inner = inner
        self._faults = faults
        self._failed: list[Partition] = []

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        self.inner.subscribe(topics, listener)

    def poll(self, max_records: int, timeout: float) -> list[Record]:
        del timeout
        return self.inner.poll(max_records, 0)

    def commit(self, offsets: Mapping[Partition, int], *, wait: bool) -> bool:
        fault = self._faults.pop("commit", "")
        accepted = self.inner._is_member and not fault  # a fault here loses the request, not the answer
        if accepted:
            self.inner._group.committed.update(offsets)
        elif not wait:
            self._failed += offsets
        return bool(accepted or not wait)

    def failed_commits(self) -> list[Partition]:
        failed, self._failed = self._failed, []
        return failed

    def pause(self, partitions: Sequence[Partition]) -> None:
        self.inner.pause(partitions)

    def resume(self, partitions: Sequence[Partition]) -> None:
        self.inner.resume(partitions)

    def lag(self) -> dict[str, int]:
        return self.inner.lag()

    def rejoin(self, partitions: Sequence[Partition]) -> None:
        self.inner.rejoin(partitions)

    def close(self) -> None:
        self.inner.close()
