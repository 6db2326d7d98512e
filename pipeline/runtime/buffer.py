"""What a worker has fetched and not finished: ready jobs, waiting ones, those in flight, and the offsets of all.

Every record that was received is in exactly one place until it is done:

    received -> ready (a queue per lane) or waiting (a heap by due time), or in line behind another job of its key
    ready    -> in flight (taken to be claimed), or parked (its job is in flight here already), or capped (as many of its
                type as may run are in flight)
    in flight-> done, or back: to ready (the claim could not be asked), or waiting (held, looked at again later)
    in line  -> ready or waiting, once the one before it is done

One lock guards it all; every method is short and never blocks on anything else. Waiting records are read ahead of the
partition's head, so no retry waits for the one before it, and none is given out before it is due.

A record goes with its partition, except a doubtful one: a claim was asked for it, and the answer was lost. If the claim was
granted, then the partition's next owner waits for this worker to end the job, and would wait for ever: so it is asked again.

Of a job type that runs in order, only the first record of each key goes further; the others wait in line behind it, also while
it waits for its next attempt. They are counted apart, so that one key that waits for long does not fill the room of all. So
are those that are capped.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from mypy_extensions import mypyc_attr

from pipeline.core.caps import Caps
from pipeline.core.offsets import Partition
from pipeline.core.order import KeyGate
from pipeline.runtime.assignments import Assignments
from pipeline.runtime.delivery import Delivery
from pipeline.runtime.held import Aside, Held, Load, Waiting

__all__ = ["Buffer", "BufferSettings"]


class BufferSettings(NamedTuple):
    """`lane_of` names the lane of a job type; `is_retry` tells retry topics from main topics.

    `in_order` are the names of the job types that run in order, by key; `concurrency` is how many jobs of a type may run at
    the same time, by the names of those that have a limit.
    """

    lanes: Sequence[str]
    lane_of: Callable[[str], str]
    is_retry: Callable[[str], bool]
    in_order: Collection[str] = ()
    concurrency: Mapping[str, int] | None = None


@mypyc_attr(allow_interpreted_subclasses=True)
class Buffer(Assignments):
    """See the module."""

    def __init__(self, settings: BufferSettings) -> None:
        self._caps: Caps[str, Delivery] | None = Caps(settings.concurrency) if settings.concurrency else None
        self._in_order = frozenset(settings.in_order)
        self._gate: KeyGate[Partition, Delivery] = KeyGate()
        # Asked for every record: remembered, as there are few answers.
        self._lane_of = lru_cache(maxsize=1024)(settings.lane_of)
        self._is_retry = lru_cache(maxsize=1024)(settings.is_retry)
        super().__init__()
        self._changed = threading.Condition(self._lock)  # told when there may be something to take
        self._landed = threading.Condition(self._lock)  # told when something came back from its flight
        self._news = self._waits_for_landing = False  # what a landing means to the one that waits for work
        self._ready: dict[str, deque[Delivery]] = {lane: deque() for lane in settings.lanes}
        self._waiting: list[tuple[float, int, Delivery]] = []
        self._sequence = 0
        self._woken = 0
        self._in_flight: dict[str, Delivery] = {}
        self._parked: dict[str, list[Delivery]] = {}
        self._flying: Counter[Partition] = Counter()
        self._leaving: set[Partition] = set()
        self._held = Held()

    # --- assignments

    def assign(self, partitions: Iterable[Partition]) -> None:
        with self._changed:
            self._leaving.difference_update(partitions)
            self._tracker.assign(partitions)

    def withdraw(self, partitions: Iterable[Partition]) -> None:
        """Drop what has not started of partitions that are going away; what is in flight goes on, or does not come back."""
        gone = set(partitions)
        with self._changed:
            self._leaving |= gone
            for lane, queue in self._ready.items():
                self._ready[lane] = deque(d for d in queue if self._keep(d, gone))
            self._waiting = [entry for entry in self._waiting if self._keep(entry[2], gone)]
            heapq.heapify(self._waiting)
            for job_id, parked in list(self._parked.items()):
                self._parked[job_id] = [d for d in parked if self._keep(d, gone)]
            if self._caps:
                self._caps.keep(lambda delivery: self._keep(delivery, gone))
            for partition in gone:
                for delivery in self._gate.drop(partition):
                    self._held.uncount(delivery)

    def _keep(self, delivery: Delivery, gone: set[Partition]) -> bool:
        if delivery.partition in gone and not delivery.doubtful:
            self._held.uncount(delivery)
            self._leave_place(delivery)
            return False
        return True

    def forget(self, partitions: Iterable[Partition]) -> None:
        """End the assignment: nothing of these partitions is tracked or committed from here on."""
        gone = list(partitions)
        with self._changed:
            self._tracker.drop(gone)
            self._leaving.difference_update(gone)

    def wait_landed(self, partitions: Sequence[Partition], timeout: float) -> bool:
        """Wait until nothing of these partitions is in flight; False when `timeout` seconds were not enough."""
        with self._changed:
            return self._landed.wait_for(lambda: not any(self._flying[p] for p in partitions), timeout)

    # --- coming in

    def receive(self, deliveries: Sequence[Delivery], now: float) -> int:
        """Take in what was fetched; give how many were accepted (those of unassigned partitions are not)."""
        accepted = 0
        in_order, lane_of, is_retry = self._in_order, self._lane_of, self._is_retry
        with self._changed:
            received, ready, count = self._tracker.received, self._ready, self._held.count
            for delivery in deliveries:
                partition, job_type = delivery.partition, delivery.job.job_type
                delivery.epoch = received(partition, delivery.record.offset)
                if not delivery.epoch:
                    continue
                accepted += 1
                delivery.lane, delivery.is_retry = lane_of(job_type), is_retry(partition.topic)
                if in_order and job_type in in_order and not self._enter(delivery):
                    continue
                count(delivery)
                if delivery.due_at > now:
                    self._wait(delivery)
                else:
                    ready[delivery.lane].append(delivery)
            self._changed.notify_all()
        return accepted

    def _enter(self, delivery: Delivery) -> bool:
        """Join the line of the key; True when the delivery is the first and goes on."""
        job = delivery.job
        delivery.key = (job.job_type, job.tenant, job.ordering_key)
        is_first = self._gate.enter(delivery.partition, delivery.key, delivery)
        if not is_first:
            delivery.aside = True
            self._held.count(delivery)
        return is_first

    def _wait(self, delivery: Delivery) -> None:
        self._sequence += 1
        heapq.heappush(self._waiting, (delivery.due_at, self._sequence, delivery))

    # --- going out

    def ticket(self) -> int:
        """To be drawn before looking for free lanes: a `wake` after that ends the `wait_work` at once."""
        return self._woken

    def wait_work(
        self, lanes: Sequence[str], *, now: float, timeout: float, ticket: int | None = None
    ) -> bool:
        """Wait until a job of one of the lanes can be taken, or something changes; True when one is ready.

        `now` is the clock's time at the call: the wait ends when the next waiting job falls due. Without any lanes it is one
        for jobs in flight to end.
        """
        with self._changed:
            self._promote_due(now)
            if any(self._ready[lane] for lane in lanes):
                return True
            if ticket is not None and ticket != self._woken:
                return False
            if self._waiting:
                timeout = min(timeout, self._waiting[0][0] - now)
            self._waits_for_landing = not lanes
            self._changed.wait(max(0.0, timeout))
            return any(self._ready[lane] for lane in lanes)

    def wake(self) -> None:
        """End a `wait_work`: capacity came back, or the worker stops."""
        with self._changed:
            self._woken += 1
            self._changed.notify_all()

    def take(self, lane: str, limit: int, now: float) -> list[Delivery]:
        """Take up to `limit` jobs of a lane to be claimed. Jobs in flight here are parked, not taken."""
        taken: list[Delivery] = []
        caps = self._caps
        with self._changed:
            self._promote_due(now)
            queue = self._ready[lane]
            while queue and len(taken) < limit:
                delivery = queue.popleft()
                job_id = delivery.job.job_id
                if job_id in self._in_flight:
                    self._parked.setdefault(job_id, []).append(delivery)
                    continue
                if caps and not delivery.placed and not self._enter_place(delivery, caps):
                    continue
                self._in_flight[job_id] = delivery
                self._flying[delivery.partition] += 1
                taken.append(delivery)
        return taken

    def _enter_place(self, delivery: Delivery, caps: Caps[str, Delivery]) -> bool:
        """Take a place among the jobs of its type that may run; False when it must wait for one."""
        job_type = delivery.job.job_type
        if not caps.limited(job_type):
            return True
        delivery.placed = caps.enter(job_type, delivery)
        if not delivery.placed:
            self._held.set_aside(delivery, aside=True)
        return delivery.placed

    def _leave_place(self, delivery: Delivery) -> None:
        if delivery.placed and self._caps:
            delivery.placed = False
            self._caps.leave(delivery.job.job_type)

    def _admit(self, caps: Caps[str, Delivery]) -> None:
        """Free places go to those that wait for them: ahead of what is ready, because they came before it."""
        for delivery in reversed(caps.admit()):
            delivery.placed = True
            self._held.set_aside(delivery, aside=False)
            self._ready[delivery.lane].appendleft(delivery)

    def run_over(self, deliveries: Iterable[Delivery]) -> None:
        """Their handlers have ended: others of their type may start, before these are settled."""
        with self._changed:
            for delivery in deliveries:
                self._leave_place(delivery)
            self._changed.notify_all()

    def _promote_due(self, now: float) -> None:
        if self._caps:
            self._admit(self._caps)
        while self._waiting and self._waiting[0][0] <= now:
            delivery = heapq.heappop(self._waiting)[2]
            if delivery.aside:
                self._held.set_aside(delivery, aside=False)
            self._ready[delivery.lane].append(delivery)

    # --- coming back

    def done(self, deliveries: Iterable[Delivery]) -> None:
        """These need no more work: their offsets are done, unless their assignment is over."""
        with self._changed:
            done = self._tracker.done
            for delivery in deliveries:
                if self._land(delivery):
                    self._held.uncount(delivery)
                    done(delivery.partition, delivery.record.offset, delivery.epoch)
                    if delivery.key is not None:
                        self._let_next_go(delivery)
            self._tell_landed()

    def _tell(self) -> None:
        self._changed.notify_all()
        self._landed.notify_all()

    def _tell_landed(self) -> None:
        """Waking the claim thread for nothing would cost more than the landing."""
        self._landed.notify_all()
        if self._news or self._waits_for_landing:
            self._news = False
            self._changed.notify_all()

    def _let_next_go(self, delivery: Delivery) -> None:
        following = self._gate.leave(delivery.partition, delivery.key, delivery)
        if following is None:
            return
        self._news = True
        self._held.set_aside(following, aside=False)
        if following.due_at:
            self._wait(following)
        else:  # it came before what is ready
            self._ready[following.lane].appendleft(following)

    def wait_in_place(self, retries: Iterable[tuple[Delivery, int, float]]) -> None:
        """Run these again, as attempt number so-and-so, not before a time (epoch seconds); until then they hold their key."""
        with self._changed:
            for delivery, attempt, due_at in retries:
                if self._return(delivery):
                    following = delivery.next_attempt(attempt, due_at)
                    following.aside = True
                    self._gate.replace(delivery.partition, delivery.key, delivery, following)
                    self._held.uncount(delivery)
                    self._held.count(following)
                    self._wait(following)
            self._tell()

    def put_back(self, deliveries: Sequence[Delivery]) -> None:
        """No answer came to their claims: doubtful, and first in line again."""
        with self._changed:
            for delivery in reversed(deliveries):
                delivery.doubtful = True
                placed, delivery.placed = delivery.placed, False
                returned = self._return(delivery)
                delivery.placed = placed  # it keeps its place: others of its type must not pass it
                if not returned:
                    self._leave_place(delivery)
                else:
                    self._ready[delivery.lane].appendleft(delivery)
            self._tell()

    def hold(self, deliveries: Iterable[Delivery], until: float) -> None:
        """Look at these again at `until` (epoch seconds)."""
        with self._changed:
            for delivery in deliveries:
                if self._return(delivery):
                    delivery.due_at = until
                    delivery.token = 0
                    if delivery.key is not None:
                        self._held.set_aside(delivery, aside=True)
                    self._wait(delivery)
            self._tell()

    def hand_back(self, deliveries: Iterable[Delivery]) -> None:
        """Claimed here but not run: whoever reads the records next runs them. Their offsets stay open."""
        with self._changed:
            for delivery in deliveries:
                if self._land(delivery):
                    self._held.uncount(delivery)
            self._tell()

    def hand_back_all(self) -> None:
        """The worker goes: nothing in flight is waited for. What comes back all the same is left alone."""
        with self._changed:
            self.hand_back(list(self._in_flight.values()))

    def _return(self, delivery: Delivery) -> bool:
        """Take it out of flight; False when its assignment ends or is over, then it is gone."""
        if not self._land(delivery):
            return False
        if delivery.doubtful or self._stays(delivery):
            return True
        self._held.uncount(delivery)
        return False

    def _stays(self, delivery: Delivery) -> bool:
        partition = delivery.partition
        return partition not in self._leaving and self._tracker.epoch(partition) == delivery.epoch

    def _land(self, delivery: Delivery) -> bool:
        """Take it out of flight; False when it is not there: it was handed back meanwhile."""
        job_id = delivery.job.job_id
        if self._in_flight.get(job_id) is not delivery:
            return False
        del self._in_flight[job_id]
        self._flying[delivery.partition] -= 1
        if delivery.placed:
            self._leave_place(delivery)
            self._news = True
        if self._parked:
            for parked in self._parked.pop(job_id, ()):
                self._ready[parked.lane].appendleft(parked)
                self._news = True
        return True

    # --- figures

    def load(self) -> Load:
        with self._changed:
            return self._held.load()

    def retries(self) -> dict[Partition, Waiting]:
        """How much of retry topics is held, by partition."""
        with self._changed:
            return self._held.retries()

    def aside(self) -> Aside:
        """What waits for its key, and in which partitions."""
        with self._changed:
            return self._held.aside()

    def in_flight(self) -> int:
        with self._changed:
            return len(self._in_flight)
