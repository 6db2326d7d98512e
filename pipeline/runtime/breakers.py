"""Breakers in a worker: counts how runs end, keeps jobs back while their breaker is open, probes, and lets them go again.

Jobs that are kept back wait on the buffer's shelf: not claimed, no attempt burnt, nothing of them goes through Kafka. Only where
that would do others harm are they put off, without burning an attempt, to come back by a retry topic: when too many lie on the
shelf, or when they bar a partition whose offset others have passed by far. The longer the breaker has been open, the longer they
are put off, so that they do not go round and round.

A thread of its own talks to the store: what was counted, one look at what all share, twice a second. No job waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from pipeline.core.backoff import Random
from pipeline.core.breaker import (
    CLOSED_CIRCUIT,
    Breaker,
    BreakerKey,
    Sign,
    key_of,
    probe_end,
    sign_of,
)
from pipeline.core.clock import Clock
from pipeline.core.decision import COMPLETED, DeadLetter, Finish
from pipeline.core.offsets import Partition
from pipeline.core.outcome import Snoozed
from pipeline.core.ports import BreakerStore
from pipeline.errors import StoreUnavailable
from pipeline.runtime.breaker_news import BreakerNews
from pipeline.runtime.breaker_probes import Probes
from pipeline.runtime.breaker_view import BreakerView, Change
from pipeline.runtime.delivery import Delivery, Run
from pipeline.runtime.next_records import Unsettled
from pipeline.runtime.shelf import ShelvingBuffer

__all__ = ["BreakerSettings", "Breakers"]

LOOK_SECONDS = 0.5
RAMP_STEP = 0.1  # how often jobs are let go after closing
FORGET_SECONDS = 86_400.0
LONGEST_PUT_OFF = 3600.0
PUT_OFF = "breaker"  # the reason that a job's story gives
STUCK_TYPE = 100  # runs whose next record Kafka refuses, after which no more of the type are started


class BreakerSettings(NamedTuple):
    """`lease` seconds for a probe before it must be renewed; `shelf` jobs of main topics, and as many of retry topics, may lie
    on the shelf, and `shelf_bytes` of main topics; `ahead` records may be received beyond a job that bars its partition.
    """

    worker_id: str
    queue: str
    lease: float
    shelf: int
    shelf_bytes: int
    ahead: int


class Breakers:
    """`admit` and `claimed` are called by the claim thread, `note` by the settle thread, `loop` is the body of its own."""

    def __init__(
        self,
        *,
        settings: BreakerSettings,
        breakers: Mapping[str, Breaker],
        store: BreakerStore,
        buffer: ShelvingBuffer,
        is_retry: Callable[[str], bool],
        in_order: Collection[str],
        clock: Clock,
        rng: Random,
        news: BreakerNews,
        on_runs: Callable[[Sequence[Run]], None],
        stuck: Callable[[], Mapping[str, int]],
    ) -> None:
        """`on_runs` takes the ends of jobs that are put off; `stuck` tells how many runs of a type cannot be settled."""
        self._settings = settings
        self._breakers = breakers
        self._store = store
        self._buffer = buffer
        self._is_retry = is_retry
        self._in_order = frozenset(in_order)
        self._clock = clock
        self._rng = rng
        self._news = news
        self._on_runs = on_runs
        self._stuck = stuck
        self._lock = threading.Lock()
        self._view = BreakerView(breakers, worker_id=settings.worker_id)
        self._probes = Probes(self._view, worker_id=settings.worker_id, lease=settings.lease)
        self._clogged: frozenset[str] = frozenset()  # job types of which too many runs cannot be settled
        self._forget_due = 0.0
        self._wake = threading.Event()
        self._stopped = threading.Event()

    # --- on the claim thread

    def admit(self, taken: list[Delivery]) -> list[Delivery]:
        """Those to claim now; the others are on the shelf. Without anything to hold back this costs nothing."""
        if not self._view.holding and not self._clogged:
            return taken
        now = self._clock.time()
        admitted: list[Delivery] = []
        held: dict[BreakerKey, list[Delivery]] = {}
        with self._lock:
            for delivery in taken:
                key = self._held_by(delivery, now)
                if key is None:
                    admitted.append(delivery)
                else:
                    held.setdefault(key, []).append(delivery)
        for key, deliveries in held.items():
            self._buffer.shelve(key, deliveries)
        return admitted

    def _held_by(self, delivery: Delivery, now: float) -> BreakerKey | None:
        """The circuit for which a job must wait on the shelf; None when it is to be claimed, be it to be put off."""
        key = self._key(delivery, now)
        if key is None or self._may_pass(key, delivery, now):
            delivery.let_go = delivery.put_off = False
            return None
        # A doubtful one must be asked about: this worker may hold its job without knowing, and another wait for it.
        delivery.put_off = delivery.put_off or delivery.doubtful or self._too_many(delivery)
        return None if delivery.put_off else key

    def _key(self, delivery: Delivery, now: float) -> BreakerKey | None:
        if delivery.job.job_type in self._clogged:
            return BreakerKey(delivery.job.job_type)
        return self._view.key_that_holds(delivery.job, now)

    def _may_pass(self, key: BreakerKey, delivery: Delivery, now: float) -> bool:
        if delivery.let_go and (self._view.closed(key) or self._probes.passes(delivery)):
            return True
        if self._view.allowance(key, now) < 1 or key.job_type in self._clogged:
            return False
        if self._buffer.shelved().get(key):
            return False  # those came before
        self._view.let_go(key, 1)
        return True

    def _too_many(self, delivery: Delivery) -> bool:
        """Whether the shelf is full. A job that runs in order cannot be put elsewhere."""
        if delivery.job.job_type in self._in_order:
            return False
        if self._is_retry(delivery.partition.topic):
            return self._buffer.load().waiting >= self._settings.shelf
        aside = self._buffer.aside()
        return aside.jobs >= self._settings.shelf or aside.bytes >= self._settings.shelf_bytes

    def claimed(self, asked: Iterable[Delivery], granted: list[Delivery]) -> list[Delivery]:
        """Of what was granted, those to run: the others are put off. To be called after each claim, also one that failed."""
        if not self._view.holding and not self._clogged:
            return granted
        now = self._clock.time()
        with self._lock:
            if self._probes:
                runs = set(granted)
                for delivery in asked:
                    self._probes.claim_answered(delivery, granted=delivery in runs)
            leaving = {delivery for delivery in granted if delivery.put_off}
            ends = [Run(d, Snoozed(self._delay(d, now), None, PUT_OFF), now, now) for d in leaving]
        if not ends:
            return granted
        self._on_runs(ends)
        return [delivery for delivery in granted if delivery not in leaving]

    def _delay(self, delivery: Delivery, now: float) -> float:
        """For as long as the breaker has been open, so that the same job is put off ever more seldom; and not all at once."""
        key = self._view.key_that_holds(delivery.job, now) or BreakerKey(delivery.job.job_type)
        circuit = self._view.circuits.get(key)
        open_for = now - circuit.counted_from if circuit else 0.0
        least = self._view.breaker(key).reset_after
        return max(least, min(LONGEST_PUT_OFF, open_for)) * (1 + 0.2 * self._rng.random())

    # --- on the settle thread

    def note(self, items: Sequence[Unsettled]) -> None:
        """Count the ends of runs, each once, before they are settled. Those that went well, nearly all, by their number."""
        with self._lock:
            completed: dict[BreakerKey, int] = {}
            for item in items:
                if item.decision is COMPLETED and not self._probes:
                    job = item.run.delivery.job
                    key = key_of(self._breakers.get(job.job_type), job)
                    completed[key] = completed.get(key, 0) + 1
                    continue
                self._note_completed(completed)  # what comes after them may be the first of many failures
                completed.clear()
                self._note(item)
            self._note_completed(completed)

    def _note_completed(self, completed: Mapping[BreakerKey, int]) -> None:
        for key, runs in completed.items():
            self._view.note(key, Sign.GOOD, ended=True, dead=False, now=self._clock.time(), runs=runs)

    def _note(self, item: Unsettled) -> None:
        run, decision = item.run, item.decision
        breaker = self._breakers.get(run.delivery.job.job_type)
        sign, dead = sign_of(run.outcome), isinstance(decision, DeadLetter)
        probed = self._probes.key_of(run.delivery) if self._probes else None
        if probed is not None:
            circuit = self._view.circuits.get(probed, CLOSED_CIRCUIT)
            self._probes.run_ended(probed, probe_end(circuit, sign, dead=dead))
            self._wake.set()
        elif breaker is not None and self._view.note(
            key_of(breaker, run.delivery.job),
            self._counted(sign, run.delivery),
            ended=dead or isinstance(decision, Finish),
            dead=dead,
            now=run.finished_at,
        ):
            self._wake.set()

    def _counted(self, sign: Sign, delivery: Delivery) -> Sign:
        """What a run tells of others. A job that runs in order is tried again in its place, while nothing else of its key may run:
        its first failure counts, so that ten in a row are those of ten jobs.
        """
        repeats = sign is Sign.BAD and delivery.job.attempt > 1 and delivery.job.job_type in self._in_order
        return Sign.SILENT if repeats else sign

    # --- on its own thread

    def loop(self) -> None:
        """Until `stop`. An outage of the store is waited out: what is held stays held, by what was known last."""
        self._news.begin(self._breakers)
        looked_at = 0.0
        while not self._stopped.is_set():
            ramping = self._view.ramping(self._clock.time())
            woken = self._wake.wait(RAMP_STEP if ramping else LOOK_SECONDS)
            self._wake.clear()
            ask = woken or not ramping or self._clock.monotonic() - looked_at >= LOOK_SECONDS
            if ask:
                looked_at = self._clock.monotonic()
            self.turn(ask=ask)

    def turn(self, *, ask: bool = True) -> None:
        """What the loop does time after time: ask the store, if it is time to, and move what may go."""
        if ask:
            self._talk()
        self._move()

    def stop(self) -> None:
        """End the loop, and let others probe what this worker was to probe."""
        self._stopped.set()
        self._wake.set()
        with self._lock:
            steps = self._probes.hand_back()
        try:
            if steps:
                changed = self._store.change(steps).circuits
                with self._lock:
                    changes = self._view.take_in(changed, all_of_them=False, now=self._clock.time())
                self._tell(changes)
        except StoreUnavailable as error:
            self._news.store_away("hand probes back", error)
        self._store.close()

    def _talk(self) -> None:
        now = self._clock.time()
        shelved = self._buffer.shelved()
        with self._lock:
            steps = {**self._probes.steps(lambda key: bool(shelved.get(key)), now), **self._view.steps(now)}
        try:
            changed = self._store.change(steps).circuits if steps else {}
            found = self._store.look().circuits
            self._forget(now)
        except StoreUnavailable as error:
            with self._lock:
                self._view.not_told()
            if not self._stopped.is_set():  # then it is this worker itself that has closed it
                self._news.store_away("ask for breakers", error)
            return
        with self._lock:
            changes = self._view.take_in(changed, all_of_them=False, now=now)
            changes += self._view.take_in(found, all_of_them=True, now=now)
            for key in self._probes.granted(now):
                self._send_probe(key)
        self._tell(changes)

    def _tell(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self._news.tell(change, self._view.circuits)

    def _send_probe(self, key: BreakerKey) -> None:
        taken = self._buffer.unshelve(key, 1)
        for delivery in taken:
            delivery.let_go = True
        self._probes.send(key, taken[0] if taken else None)

    def _forget(self, now: float) -> None:
        if now >= self._forget_due:
            self._forget_due = now + FORGET_SECONDS / 24
            self._store.forget(FORGET_SECONDS)

    def _move(self) -> None:
        """Take off the shelf what may go, and what must not stay there."""
        self._find_clogged()
        shelved = self._buffer.shelved()
        if shelved:
            now = self._clock.time()
            barred = self._buffer.far_ahead(self._settings.ahead)
            with self._lock:
                for key in shelved:
                    self._release(key, now)
                if barred:
                    self._move_along(barred)
        self._news.show_shelved(shelved)

    def _release(self, key: BreakerKey, now: float) -> None:
        allowed = 0.0 if key.job_type in self._clogged else self._view.allowance(key, now)
        if allowed < 1:
            return
        going = self._buffer.unshelve(key, allowed)
        self._view.let_go(key, len(going))
        for delivery in going:
            delivery.let_go = True

    def _move_along(self, barred: Collection[Partition]) -> None:
        for delivery in self._buffer.unshelve_from(barred):
            delivery.put_off = delivery.job.job_type not in self._in_order

    def _find_clogged(self) -> None:
        stuck = self._stuck()
        limits = {job_type: STUCK_TYPE / 2 if job_type in self._clogged else STUCK_TYPE for job_type in stuck}
        clogged = frozenset(job_type for job_type, runs in stuck.items() if runs >= limits[job_type])
        for job_type in clogged - self._clogged:
            self._news.clogged(job_type)
        self._clogged = clogged
