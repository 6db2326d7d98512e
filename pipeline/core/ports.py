"""The seams: one Protocol per outside system. Adapters implement them, the runtime uses them, neither knows the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, NamedTuple, Protocol

from pydantic import BaseModel

from pipeline.core.breaker import BreakerKey, Circuit, Step
from pipeline.core.claims import Claim, ClaimRequest, Settled, Settlement
from pipeline.core.headers import HeaderList
from pipeline.core.job import Record, Source
from pipeline.core.job_type import Upcaster
from pipeline.core.offsets import Partition
from pipeline.core.parked import ParkedRecord
from pipeline.core.writer_schemas import WrittenSchema

__all__ = [
    "BreakerLook",
    "BreakerStore",
    "Codec",
    "Delivered",
    "Effects",
    "JobConsumer",
    "JobProducer",
    "JobStore",
    "Outgoing",
    "Parking",
    "Probe",
    "Pruned",
    "Pruning",
    "RebalanceListener",
    "WorkerInfo",
]


class Codec(Protocol):
    """Payload model <-> bytes. Safe to call from several threads."""

    def register(
        self, job_type: str, model: type[BaseModel], upcasters: Mapping[int, Upcaster] | None = None
    ) -> None:
        """Check the model against the newest schema of the job type. Raises `SchemaError`."""
        ...

    def written(self, job_type: str) -> WrittenSchema:
        """The schema that payloads of this type are written with."""
        ...

    def encode(self, job_type: str, payload: BaseModel) -> bytes:
        """Raises `InvalidJob` when a value cannot be written."""
        ...

    def decode(self, job_type: str, data: bytes, schema_id: bytes = b"") -> BaseModel:
        """`schema_id` is `Job.schema_id`. Raises `PayloadError`, or its kind `UnknownWriterSchema`.

        Raises `RegistryUnavailable` or `BrokerUnavailable` when the schema must be looked up and cannot be now.
        """
        ...

    def describe(self, job_type: str, data: bytes, schema_id: bytes = b"") -> dict[str, object]:
        """Schema, fingerprint and payload as plain values, for people. Raises like `decode`."""
        ...


class Outgoing(NamedTuple):
    """A record to be written."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: HeaderList


class Delivered(NamedTuple):
    """The end of one write: where the record lies, or the error (then `source` is None)."""

    source: Source | None
    error: Exception | None


class JobProducer(Protocol):
    """Writes records, idempotently, acknowledged by all in-sync replicas. Safe to call from several threads."""

    def send(self, record: Outgoing, on_delivery: Callable[[Delivered], None] | None = None) -> None:
        """Hand a record over. `on_delivery` is called once, from a thread of the producer.

        Blocks while the local buffer is full, up to the configured bound, then raises `PublishFailed`.
        Raises `PayloadTooLarge` when the client can tell at once.
        """
        ...

    def send_all(self, records: Sequence[Outgoing]) -> list[Delivered]:
        """Write records and wait until each is acknowledged or has failed. Never raises for a single record."""
        ...

    def flush(self, timeout: float) -> int:
        """Wait until everything that was handed over has ended; give how many have not after `timeout` seconds."""
        ...

    def close(self) -> None: ...


KeyedValue = tuple[bytes, bytes]


class ManyProducer(Protocol):
    """Writes many small records at a time, of which only the ends are of interest."""

    def send_many(
        self,
        topic: str,
        records: Sequence[KeyedValue],
        *,
        on_acknowledged: Callable[[], None],
        on_refused: Callable[[KeyedValue, Exception], None],
    ) -> None:
        """Hand records over, as `JobProducer.send` does with one. One of the two is called for each, from any thread.

        Never raises for a single record.
        """
        ...


def tell_end(
    record: KeyedValue,
    on_acknowledged: Callable[[], None],
    on_refused: Callable[[KeyedValue, Exception], None],
    delivered: Delivered,
) -> None:
    """Tell the end of one write to the callbacks of a `send_many`."""
    if delivered.error is None:
        on_acknowledged()
    else:
        on_refused(record, delivered.error)


class RebalanceListener(Protocol):
    """Told of assignments from within `JobConsumer.poll`, on the thread that polls."""

    def on_assigned(self, partitions: Sequence[Partition]) -> None: ...

    def on_revoked(self, partitions: Sequence[Partition]) -> None:
        """The partitions still belong to this consumer until this returns: the last moment to commit."""
        ...

    def on_lost(self, partitions: Sequence[Partition]) -> None:
        """The partitions belong to another consumer already: nothing may be committed."""
        ...


class JobConsumer(Protocol):
    """A member of the consumer group. One thread owns it."""

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        """Raises `TopicsMissing`, `BrokerUnavailable`."""
        ...

    def poll(self, max_records: int, timeout: float) -> list[Record]:
        """Wait up to `timeout` seconds for a first record, then give what is there, at most `max_records`."""
        ...

    def commit(self, offsets: Mapping[Partition, int], *, wait: bool) -> bool:
        """Commit next offsets. Without `wait` failures show in the next call's `failed_commits`.

        With `wait`: True when the broker accepted all of them, and whatever was under way of the partitions that are owned.
        """
        ...

    def failed_commits(self) -> list[Partition]:
        """Partitions whose commit was refused since the last call."""
        ...

    def pause(self, partitions: Sequence[Partition]) -> None: ...

    def resume(self, partitions: Sequence[Partition]) -> None: ...

    def lag(self) -> dict[str, int]:
        """Records behind the end, per topic, over the assigned partitions, from what the client knows locally."""
        ...

    def rejoin(self, partitions: Sequence[Partition]) -> None:
        """Leave the group and join it anew with another client, because nothing comes from these partitions.

        The listener is told as in any rebalance. Raises what `close` and `subscribe` raise.
        """
        ...

    def close(self) -> None:
        """Leave the group. `on_revoked` may be called from here."""
        ...


class Probe(Protocol):
    """A look at partitions from outside of the group."""

    def readable(self, positions: Mapping[Partition, int | None]) -> dict[Partition, int]:
        """In which of these partitions a record can be read at a position or after it, and where the first one lies.

        None stands for the position that the group has committed. Raises `PipelineError` when it cannot be told.
        """
        ...


class WorkerInfo(NamedTuple):
    """A worker process. `worker_id` is new for each start; `lease` is how long it counts as alive, in seconds."""

    worker_id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    lease: float


class JobStore(Protocol):
    """Claims and their ends. Safe to call from several threads; claim, settle and heartbeat do not wait for each other.

    Each call may raise `StoreUnavailable`: then its outcome is unknown and the same call is made again.
    """

    def heartbeat(self, worker: WorkerInfo) -> float:
        """Register or renew a worker for `lease` seconds; give the store's clock (epoch seconds)."""
        ...

    def leave(self, worker_id: str) -> None:
        """Mark a worker as gone: what it still holds can be claimed at once."""
        ...

    def claim(self, worker_id: str, requests: Sequence[ClaimRequest]) -> list[Claim]:
        """Judge each request, in order; see `pipeline.core.claims`. One round-trip for all.

        The caller does not run any of these jobs at the moment. When the worker's own lease is over nothing is claimed
        and every request that the rule would grant is `held`.
        """
        ...

    def settle(self, worker_id: str, settlements: Sequence[Settlement]) -> list[Settled]:
        """Move states, each only if its token still holds; one transaction, in order.

        Settling again what this token settled before is accepted: the first answer may have been lost.
        """
        ...

    def close(self) -> None: ...


class Pruned(NamedTuple):
    """How many jobs and workers were forgotten. `over`: all tables have been gone through, with `in_round` jobs in all."""

    jobs: int
    workers: int
    over: bool
    in_round: int = 0


class Pruning(Protocol):
    """Forgets jobs that ended `keep` seconds ago or more, and workers that are gone as long."""

    def turn(self, keep: float) -> Pruned | None:
        """Forget some of them; None when another one is at it, or it is not time yet. Raises `StoreUnavailable`."""
        ...

    def close(self) -> None: ...


class Effects(Protocol):
    """Transactions in which a handler's writes and the completion of its job commit together."""

    def transaction(
        self, worker_id: str, completion: Callable[[], Settlement]
    ) -> AbstractContextManager[Any]:
        """See `Context.transaction`. `completion` is asked for when the block ends well."""
        ...

    def async_transaction(
        self, worker_id: str, completion: Callable[[], Settlement]
    ) -> AbstractAsyncContextManager[Any]:
        """The same on the running event loop."""
        ...

    def close(self) -> None: ...


class BreakerLook(NamedTuple):
    """Circuits as they are at `now`, the store's clock (epoch seconds)."""

    now: float
    circuits: Mapping[BreakerKey, Circuit]


class BreakerStore(Protocol):
    """Circuits that all workers share. Safe to call from several threads. Each call may raise `StoreUnavailable`."""

    def look(self) -> BreakerLook:
        """Those that are open, count failures, or were changed in the last minute. The others are at rest."""
        ...

    def change(self, steps: Mapping[BreakerKey, Step]) -> BreakerLook:
        """Take each of these a step further, all in one transaction, nobody in between; give them as they are then.

        A step may be called more than once.
        """
        ...

    def forget(self, older_than: float) -> int:
        """Drop closed circuits that nobody has touched for so many seconds; give how many."""
        ...

    def close(self) -> None: ...


class Parking(Protocol):
    """Keeps records that are too large for the topic that they should go to. Calls may raise `StoreUnavailable`."""

    def park(self, parked: ParkedRecord) -> None:
        """Keep a record. Parked again, it is the same one."""
        ...

    def load(self, job_id: str, hop: int) -> ParkedRecord | None:
        """The record of the job that died at that hop."""
        ...

    def close(self) -> None: ...
