"""Groups of the in-memory Kafka, and their members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pipeline.adapters.memory_log import MemoryLogs
from pipeline.core.job import Record
from pipeline.core.offsets import Partition
from pipeline.core.ports import RebalanceListener
from pipeline.errors import TopicsMissing

__all__ = ["MemoryGroup", "MemoryJobConsumer"]


class MemoryGroup:
    """Members in the order of joining; who owns what now, and who should. Whoever calls holds the lock of the logs."""

    def __init__(self, logs: MemoryLogs) -> None:
        self._logs = logs
        self._members: list[MemoryJobConsumer] = []
        self._targets: dict[Partition, MemoryJobConsumer] = {}
        self.owners: dict[Partition, MemoryJobConsumer] = {}
        self.committed: dict[Partition, int] = {}

    def join(self, member: MemoryJobConsumer) -> None:
        self._members.append(member)
        self.rebalance()

    def leave(self, member: MemoryJobConsumer) -> None:
        self._members.remove(member)
        self.release(self.owned_by(member))
        self.rebalance()

    def owned_by(self, member: MemoryJobConsumer) -> list[Partition]:
        return [partition for partition, owner in self.owners.items() if owner is member]

    def to_give_up(self, member: MemoryJobConsumer) -> list[Partition]:
        return [
            partition for partition in self.owned_by(member) if self._targets.get(partition) is not member
        ]

    def to_take(self, member: MemoryJobConsumer) -> list[Partition]:
        """What the member should have and nobody else holds any more."""
        return [
            partition
            for partition, target in self._targets.items()
            if target is member and partition not in self.owners
        ]

    def release(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            del self.owners[partition]
        self._logs.changed.notify_all()

    def rebalance(self) -> None:
        """Choose new targets: as even as can be within each topic, moving as little as possible."""
        self._targets = {}
        for topic in sorted({topic for member in self._members for topic in member.topics}):
            members = [member for member in self._members if topic in member.topics]
            self._targets.update(self._spread(self._logs.partitions(topic), members))
        self._logs.changed.notify_all()

    def _spread(
        self, partitions: list[Partition], members: list[MemoryJobConsumer]
    ) -> dict[Partition, MemoryJobConsumer]:
        held = {
            id(member): [each for each in partitions if self.owners.get(each) is member] for member in members
        }
        members = sorted(members, key=lambda member: -len(held[id(member)]))  # stable: then by joining
        least, extra = divmod(len(partitions), len(members))
        targets: dict[Partition, MemoryJobConsumer] = {}
        for index, member in enumerate(members):
            room = least + (index < extra)
            targets.update(dict.fromkeys(held[id(member)][:room], member))
        free = [partition for partition in partitions if partition not in targets]
        for index, member in enumerate(members):
            room = least + (index < extra) - sum(target is member for target in targets.values())
            targets.update(dict.fromkeys(free[:room], member))
            del free[:room]
        return {partition: targets[partition] for partition in partitions}


class MemoryJobConsumer:
    """`JobConsumer`: a member of a group of the broker."""

    def __init__(self, logs: MemoryLogs, group: MemoryGroup) -> None:
        self._logs = logs
        self._group = group
        self._listener: RebalanceListener | None = None
        self._positions: dict[Partition, int] = {}  # next offset to fetch, for each assigned partition
        self._behind_from: dict[Partition, int] = {}
        self._paused: set[Partition] = set()
        self._failed: list[Partition] = []
        self._is_member = False
        self._turn = 0
        self.topics: tuple[str, ...] = ()

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        """See `JobConsumer.subscribe`."""
        with self._logs.changed:
            missing = self._logs.missing(topics)
            if missing:
                raise TopicsMissing(
                    f"topics missing: {', '.join(missing)}; `pipeline topics apply` creates them"
                )
            self._listener = listener
            self.topics = tuple(topics)
            self._join()

    def poll(self, max_records: int, timeout: float) -> list[Record]:
        """See `JobConsumer.poll`. With a timeout of 0 nothing is waited for."""
        with self._logs.changed:
            if timeout > 0 and not self._has_work():
                self._logs.changed.wait_for(self._has_work, timeout)
        self._serve_rebalance()
        with self._logs.changed:
            return self._fetch(max_records)

    def commit(self, offsets: Mapping[Partition, int], *, wait: bool) -> bool:
        """See `JobConsumer.commit`."""
        del wait
        with self._logs.changed:
            refused = [each for each in offsets if self._group.owners.get(each) is not self]
            accepted = {each: offset for each, offset in offsets.items() if each not in refused}
            self._group.committed.update(accepted)
            self._behind_from.update(accepted)
            self._failed += refused
            return not refused

    def failed_commits(self) -> list[Partition]:
        """See `JobConsumer.failed_commits`."""
        failed, self._failed = self._failed, []
        return failed

    def pause(self, partitions: Sequence[Partition]) -> None:
        self._paused.update(each for each in partitions if each in self._positions)

    def resume(self, partitions: Sequence[Partition]) -> None:
        self._paused.difference_update(partitions)

    def lag(self) -> dict[str, int]:
        """See `JobConsumer.lag`."""
        with self._logs.changed:
            lags: dict[str, int] = {}
            for partition, start in self._behind_from.items():
                behind = len(self._logs.log(partition)) - start
                lags[partition.topic] = lags.get(partition.topic, 0) + behind
            return lags

    def rejoin(self, partitions: Sequence[Partition]) -> None:
        """See `JobConsumer.rejoin`."""
        del partitions
        listener, topics = self._listener, self.topics
        if listener is not None:
            self.close()
            self.subscribe(topics, listener)

    def close(self) -> None:
        """See `JobConsumer.close`."""
        listener, self._listener = self._listener, None  # no poll joins again
        owned = list(self._positions)
        try:
            if listener is not None and owned:
                tell = listener.on_revoked if self._is_member else listener.on_lost
                tell(owned)
        finally:
            with self._logs.changed:
                self._forget(owned)
                self.expire()

    def expire(self) -> None:
        """For `MemoryBroker.expire`."""
        if self._is_member:
            self._is_member = False
            self._group.leave(self)

    # --- rebalances

    def _join(self) -> None:
        self._is_member = True
        self._group.join(self)

    def _serve_rebalance(self) -> None:
        """Give up, then take; each listener call on the polling thread, and none while the broker is locked."""
        listener = self._listener
        if listener is None:
            return
        if not self._is_member:
            self._serve_loss(listener)
        with self._logs.changed:
            leaving = self._group.to_give_up(self)
        if leaving:
            try:
                listener.on_revoked(leaving)
            finally:
                with self._logs.changed:
                    self._forget(leaving)
                    self._group.release(each for each in leaving if self._group.owners.get(each) is self)
        with self._logs.changed:
            arriving = self._group.to_take(self)
            self._take(arriving)
        if arriving:
            listener.on_assigned(arriving)

    def _serve_loss(self, listener: RebalanceListener) -> None:
        with self._logs.changed:
            lost = list(self._positions)
            self._forget(lost)
            self._join()
        if lost:
            listener.on_lost(lost)

    def _take(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self._group.owners[partition] = self
            start = self._group.committed.get(partition, 0)
            self._positions[partition] = self._behind_from[partition] = start

    def _forget(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            del self._positions[partition]
            del self._behind_from[partition]
            self._paused.discard(partition)

    # --- records

    def _has_work(self) -> bool:
        return (
            (self._listener is not None and not self._is_member)
            or bool(self._group.to_give_up(self) or self._group.to_take(self))
            or any(self._ready(partition) for partition in self._positions)
        )

    def _ready(self, partition: Partition) -> bool:
        is_behind = self._positions[partition] < len(self._logs.log(partition))
        return partition not in self._paused and is_behind

    def _fetch(self, max_records: int) -> list[Record]:
        """Up to `max_records`, beginning with another partition each time."""
        partitions = list(self._positions)
        self._turn += 1
        start = self._turn % len(partitions) if partitions else 0
        records: list[Record] = []
        for partition in partitions[start:] + partitions[:start]:
            if self._ready(partition) and len(records) < max_records:
                position = self._positions[partition]
                batch = self._logs.log(partition)[position : position + max_records - len(records)]
                self._positions[partition] += len(batch)
                records += batch
        return records
