"""The settle thread: takes runs that ended, decides them once, settles them in batches, and again what could not be yet.

What waits for something waits by itself: a run whose next record is on its way, and one whose next record was refused, hold up no
other. Only an outage of the store holds up all, as nothing can be settled then.
"""

from __future__ import annotations

import heapq
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from pipeline.core.clock import Clock
from pipeline.errors import StoreUnavailable
from pipeline.runtime.delivery import Run
from pipeline.runtime.next_records import Unsettled
from pipeline.runtime.settler import Settler

__all__ = ["Results", "SettleLoop"]

log = logging.getLogger("pipeline.settle")

OUTAGE_PAUSE = 0.5  # seconds between tries while Postgres is away
FIRST_PAUSE = 0.5  # until a next record that was refused is tried again, and twice as long each time
LONGEST_PAUSE = 10.0
IDLE_WAIT = 0.1
# How long ends may wait for others while more jobs are running. Each statement, each commit and each wake-up of this thread costs
# as much for one run as for many.
GATHER_SECONDS = 0.002


class Results:
    """Runs on their way from the executors to the settle thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Sequence[Run]] = queue.SimpleQueue()

    def put(self, runs: Sequence[Run]) -> None:
        self._queue.put(runs)

    def wake(self) -> None:
        """End a `take` that waits."""
        self._queue.put(())

    def take(self, most: int, timeout: float, *, more: Callable[[Sequence[Run]], bool]) -> list[Run]:
        """Wait up to `timeout` seconds for a first run, then give what is there, about `most`.

        Company of the first ones is waited for a moment when `more` says that it may come.
        """
        taken: list[Run] = []
        try:
            taken.extend(self._queue.get(timeout=timeout))
            if more(taken):
                time.sleep(GATHER_SECONDS)
            while len(taken) < most:
                taken.extend(self._queue.get_nowait())
        except queue.Empty:
            return taken
        return taken


class SettleLoop:
    """`run` is the body of the thread; the rest may be called from others."""

    def __init__(
        self,
        settler: Settler,
        results: Results,
        *,
        batch_max: int,
        clock: Clock,
        in_flight: Callable[[], int] = lambda: 0,
        on_runs: Callable[[Sequence[Unsettled]], None] = lambda _: None,
    ) -> None:
        """`in_flight` tells how many jobs are claimed or running here. `on_runs`, which may be set until `run` begins, is told each run once, when it was decided."""
        self._settler = settler
        self._results = results
        self._batch_max = batch_max
        self._clock = clock
        self._in_flight = in_flight
        self.on_runs = on_runs
        self._refused: list[tuple[float, int, Unsettled]] = []  # by when they are tried again
        self._sequence = 0
        self._stuck: Counter[str] = Counter()  # by job type
        self._all_stuck = 0
        self._closing = threading.Event()
        self._ended = threading.Event()

    def run(self) -> None:
        """Settle until `close` was called and nothing is left."""
        pending: list[Unsettled] = []
        while True:
            patience = 0.0 if pending else self._patience()
            pending += self._decided(self._results.take(self._batch_max, patience, more=self._more))
            pending += self._arrived()
            pending += self._due()
            if pending:
                pending = self._settle(pending)
            elif self._closing.is_set() and not self._refused and not self._settler.next_records.on_the_way():
                self._ended.set()
                return

    def close(self, timeout: float) -> None:
        """Let it end; wait up to `timeout` seconds for what can be settled."""
        self._closing.set()
        self._results.wake()
        self._ended.wait(timeout)

    def stuck(self, job_type: str | None = None) -> int:
        """How many runs wait because Kafka refused their next record, of one type or of all."""
        return self._all_stuck if job_type is None else self._stuck[job_type]

    def stuck_types(self) -> dict[str, int]:
        """The same by job type."""
        return dict(self._stuck)

    def _decided(self, runs: Sequence[Run]) -> list[Unsettled]:
        if not runs:
            return []
        decided = [self._settler.decide(run) for run in runs]
        self.on_runs(decided)
        return decided

    def _more(self, ended: Sequence[Run]) -> bool:
        """Whether to wait for company: not when a job waits for the end of one of these, and not for the last that run."""
        few = 0 < len(ended) < min(self._in_flight(), self._batch_max // 2)
        return few and all(run.delivery.key is None for run in ended)

    def _patience(self) -> float:
        if not self._refused:
            return IDLE_WAIT
        return max(0.0, min(IDLE_WAIT, self._refused[0][0] - self._clock.monotonic()))

    def _arrived(self) -> list[Unsettled]:
        """Those whose next record was written, or is to be parked; the others wait for their next try."""
        arrived = self._settler.next_records.arrived()
        self._put_off([item for item in arrived if item.next_record is not None and not item.too_large])
        return [item for item in arrived if item.next_record is None or item.too_large]

    def _due(self) -> list[Unsettled]:
        due: list[Unsettled] = []
        now = self._clock.monotonic()
        while self._refused and self._refused[0][0] <= now:
            due.append(heapq.heappop(self._refused)[2])
        return due

    def _settle(self, pending: list[Unsettled]) -> list[Unsettled]:
        batch, later = pending[: self._batch_max], pending[self._batch_max :]
        try:
            self._put_off(self._settler.settle(batch))
        except StoreUnavailable as error:
            log.warning("cannot settle: %s", error, extra={"action": "settle_failed"})
            self._ended.wait(OUTAGE_PAUSE)
            # One that is on its way comes back by itself: kept here as well, its record would be written twice.
            return [item for item in pending if not item.on_the_way]
        if self._all_stuck:
            self._free(batch)
        return later

    def _put_off(self, refused: Sequence[Unsettled]) -> None:
        now = self._clock.monotonic()
        for item in refused:
            if not item.stuck:
                item.stuck = True
                self._stuck[item.run.delivery.job.job_type] += 1
                self._all_stuck += 1
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(item.tries - 1, 10))
            self._sequence += 1
            heapq.heappush(self._refused, (now + pause, self._sequence, item))

    def _free(self, settled: Sequence[Unsettled]) -> None:
        for item in settled:
            if item.stuck and not item.on_the_way and item.error is None:
                item.stuck = False
                self._stuck[item.run.delivery.job.job_type] -= 1
                self._all_stuck -= 1
