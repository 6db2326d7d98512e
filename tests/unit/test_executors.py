"""Running handlers: every end becomes one outcome, a time limit ends an attempt, and no handler takes a slot along."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.clock import Clock, ManualClock, SystemClock
from pipeline.core.job_type import JobType
from pipeline.core.outcome import (
    Cancel,
    Cancelled,
    Failed,
    Lost,
    Outcome,
    Reject,
    Rejected,
    Retry,
    Snooze,
    Snoozed,
    Succeeded,
)
from pipeline.errors import ClaimLost, StoreUnavailable
from pipeline.runtime.context import Context
from pipeline.runtime.delivery import Delivery, Run
from pipeline.runtime.executors import AsyncExecutor, Pace, ThreadExecutor
from pipeline.runtime.executors import aio as aio_module
from pipeline.runtime.handlers import ASYNC, THREAD, Handler
from tests.unit.runtime_parts import Mail, clock_at, delivery_of, eventually, new_job, record_of

Handle = Callable[[Any, Context], Any]


class Bench:
    """An executor of one kind, and what it gave back."""

    def __init__(
        self, kind: type[ThreadExecutor | AsyncExecutor], *, slots: int = 2, clock: Clock | None = None
    ) -> None:
        self.lane = THREAD if kind is ThreadExecutor else ASYNC
        self.runs: list[Run] = []
        self.rooms = 0
        self.executor = kind(
            slots=slots,
            most_ahead=100,
            clock=clock or SystemClock(),
            contexts=lambda delivery: Context(delivery.job, delivery.token),
            on_runs=self.runs.extend,
            on_room=self._on_room,
        )
        self.executor.start()

    def _on_room(self) -> None:
        self.rooms += 1

    def submit(
        self, function: Handle, *, limit: float | None = None, permanent: tuple[type[Exception], ...] = ()
    ) -> Delivery:
        job_type = JobType(name="email.send", model=Mail, timeout=limit, permanent=permanent)
        delivery = delivery_of(record_of(new_job()))
        delivery.payload, delivery.token = Mail(to="ann"), 7
        delivery.handler = Handler(job_type, self.lane, function)
        self.executor.submit([delivery])
        return delivery

    def outcome(self, function: Handle, **options: Any) -> Outcome:
        """Run a handler to its end."""
        delivery = self.submit(function, **options)
        return self.run_of(delivery).outcome

    def run_of(self, delivery: Delivery) -> Run:
        eventually(lambda: any(run.delivery is delivery for run in self.runs))
        (run,) = [run for run in self.runs if run.delivery is delivery]
        return run

    def is_idle(self) -> bool:
        return self.executor.outstanding() == 0


def raising(error: BaseException) -> Handle:
    def handle(_mail: object, _context: Context) -> None:
        raise error

    return handle


def coroutine(handle: Handle) -> Handle:
    async def run(mail: Mail, context: Context) -> Any:
        return handle(mail, context)

    return run


@pytest.fixture(params=[ThreadExecutor, AsyncExecutor])
def kind(request: pytest.FixtureRequest) -> type[ThreadExecutor | AsyncExecutor]:
    found: type[ThreadExecutor | AsyncExecutor] = request.param
    return found


@pytest.fixture
def bench(kind: type[ThreadExecutor | AsyncExecutor]) -> Bench:
    return Bench(kind)


def is_running(bench: Bench) -> bool:
    executor = bench.executor
    if isinstance(executor, ThreadExecutor):
        return any(slot.running for slot in executor._slots)
    return bool(executor._flights)


def in_lane(bench: Bench, handle: Handle) -> Handle:
    return coroutine(handle) if bench.lane == ASYNC else handle


ENDS: list[tuple[BaseException, type[Any]]] = [
    (Retry(after=3), Failed),
    (Snooze(after=3), Snoozed),
    (Reject("no"), Rejected),
    (Cancel("no"), Cancelled),
    (ValueError("no"), Failed),
    (TimeoutError("mine"), Failed),
    (StoreUnavailable("away"), Snoozed),
    (ClaimLost("gone"), Lost),
    (SystemExit(3), Failed),
    (KeyboardInterrupt(), Failed),
    (GeneratorExit(), Failed),
    (asyncio.CancelledError(), Failed),
]


class TestBothKinds:
    def test_a_handler_that_returns_has_succeeded(self, bench: Bench) -> None:
        seen: list[object] = []

        def handle(mail: Mail, context: Context) -> str:
            seen.extend((mail, context.job_id, context.fencing_token, context.attempt))
            return "whatever"

        delivery = bench.submit(in_lane(bench, handle))
        assert bench.run_of(delivery).outcome == Succeeded()
        assert seen == [Mail(to="ann"), delivery.job.job_id, 7, 1]

    @pytest.mark.parametrize(("error", "expected"), ENDS, ids=lambda value: getattr(value, "__name__", None))
    def test_whatever_it_raises_is_an_outcome_and_the_slot_goes_on(
        self, bench: Bench, error: BaseException, expected: type[Any]
    ) -> None:
        for _ in range(3):  # more often than there are slots
            assert isinstance(bench.outcome(in_lane(bench, raising(error))), expected)
        assert bench.outcome(in_lane(bench, lambda *_: None)) == Succeeded()
        assert bench.is_idle()

    def test_an_error_that_was_declared_permanent_is(self, bench: Bench) -> None:
        outcome = bench.outcome(in_lane(bench, raising(KeyError("x"))), permanent=(LookupError,))
        assert isinstance(outcome, Failed)
        assert outcome.permanent

    def test_an_error_of_its_own_is_not_taken_for_the_time_limit(self, bench: Bench) -> None:
        outcome = bench.outcome(in_lane(bench, raising(TimeoutError("the database was slow"))), limit=60)
        assert isinstance(outcome, Failed)
        assert outcome.failure.message == "the database was slow"

    def test_a_job_that_its_own_transaction_has_completed_stays_completed(self, bench: Bench) -> None:
        submitted: list[Delivery] = []

        def handle(*_: object) -> None:
            eventually(lambda: submitted)
            submitted[0].committed = True
            raise ValueError("after the commit")

        submitted.append(bench.submit(in_lane(bench, handle)))
        assert bench.run_of(submitted[0]).outcome == Succeeded()

    def test_every_job_comes_back_exactly_once(self, bench: Bench) -> None:
        for number in range(300):
            bench.submit(in_lane(bench, raising(ValueError("x")) if number % 3 else lambda *_: None))
        eventually(lambda: len(bench.runs) >= 300)
        assert len({id(run.delivery) for run in bench.runs}) == len(bench.runs) == 300
        assert bench.is_idle()
        assert bench.rooms > 0

    def test_a_run_tells_when_it_was_and_how_long_it_took(self, bench: Bench) -> None:
        before = SystemClock().time()
        run = bench.run_of(bench.submit(in_lane(bench, lambda *_: None)))
        assert before - 1 <= run.started_at <= run.finished_at <= SystemClock().time() + 1


class JumpingClock(ManualClock):
    """A wall clock that is set by hours while the monotonic one goes on."""

    jump = 0.0

    def time(self) -> float:
        return super().time() + self.jump


class TestThreads:
    def test_a_handler_that_overruns_its_limit_is_settled_once_and_its_late_result_dropped(self) -> None:
        clock, release = clock_at(), threading.Event()
        bench = Bench(ThreadExecutor, slots=2, clock=clock)
        delivery = bench.submit(lambda *_: release.wait(30) and None, limit=5)
        eventually(lambda: is_running(bench))
        clock.advance(5)
        bench.executor.check()
        assert bench.runs == [], "at its limit it is not beyond it"
        clock.advance(0.1)
        bench.executor.check()
        bench.executor.check()
        (run,) = bench.runs
        assert isinstance(run.outcome, Failed)
        assert run.outcome.failure.error_class == "TimeoutError"
        assert "email.send" in run.outcome.failure.message
        assert run.finished_at - run.started_at == pytest.approx(5.1)
        assert bench.is_idle()
        assert bench.outcome(lambda *_: None) == Succeeded(), "others go on"
        release.set()
        eventually(lambda: bench.executor._written_off == 0)
        assert [run.delivery for run in bench.runs].count(delivery) == 1

    def test_a_slot_is_lost_until_the_handler_returns(self) -> None:
        clock, release = clock_at(), threading.Event()
        bench = Bench(ThreadExecutor, slots=1, clock=clock)
        bench.submit(lambda *_: release.wait(30) and None, limit=5)
        eventually(lambda: is_running(bench))
        clock.advance(6)
        bench.executor.check()
        assert bench.executor.capacity() == 0
        assert bench.executor.trouble() == "1 of 1 threads are lost to handlers that overran their time limit"
        assert bench.executor.abandon() == 0, "its job is settled: nothing waits for it"
        release.set()
        eventually(bench.executor.capacity)
        assert bench.executor.trouble() == ""
        assert bench.outcome(lambda *_: None) == Succeeded()

    def test_a_clock_that_is_set_overruns_no_limit_and_bends_no_duration(self) -> None:
        """Row 32: the store's clock may jump, with a failover for instance."""
        clock, release = JumpingClock(), threading.Event()
        bench = Bench(ThreadExecutor, clock=clock)
        delivery = bench.submit(lambda *_: release.wait(30) and None, limit=5)
        eventually(lambda: is_running(bench))
        clock.jump = 7200
        clock.advance(3)
        bench.executor.check()
        assert bench.runs == []
        release.set()
        run = bench.run_of(delivery)
        assert run.outcome == Succeeded()
        assert run.finished_at - run.started_at == pytest.approx(3)

    def test_one_that_completed_its_job_and_stays_on_has_succeeded(self) -> None:
        clock, release = clock_at(), threading.Event()
        bench = Bench(ThreadExecutor, clock=clock)

        submitted: list[Delivery] = []

        def handle(*_: object) -> None:
            eventually(lambda: submitted)
            submitted[0].committed = True
            release.wait(30)

        submitted.append(delivery := bench.submit(handle, limit=5))
        eventually(lambda: delivery.committed)
        clock.advance(6)
        bench.executor.check()
        assert bench.run_of(delivery).outcome == Succeeded()
        release.set()

    @pytest.mark.parametrize("kind_of_result", ["coroutine", "generator", "async generator", "future"])
    def test_what_was_only_made_and_never_run_is_no_success(self, kind_of_result: str) -> None:
        """A decorator around a coroutine function is a plain function: its job would be completed, its work never done."""
        bench = Bench(ThreadExecutor)
        loop = asyncio.new_event_loop()

        async def work() -> None:
            raise AssertionError

        async def stream() -> Any:
            yield

        results: dict[str, Callable[[], object]] = {
            "coroutine": work,
            "generator": iter_once,
            "async generator": stream,
            "future": loop.create_future,
        }
        outcome = bench.outcome(lambda *_: results[kind_of_result]())
        loop.close()
        assert isinstance(outcome, Failed)
        assert outcome.failure.error_class == "TypeError"
        assert "that was never run" in outcome.failure.message

    def test_what_has_not_started_is_given_back_and_what_runs_goes_on(self) -> None:
        release = threading.Event()
        bench = Bench(ThreadExecutor, slots=1)
        running = bench.submit(lambda *_: release.wait(30) and None)
        eventually(lambda: is_running(bench))
        waiting = [bench.submit(lambda *_: None) for _ in range(3)]
        assert bench.executor.drop_unstarted() == waiting
        assert bench.executor.outstanding() == 1
        release.set()
        assert bench.run_of(running).outcome == Succeeded()
        assert bench.executor.drop_unstarted() == []
        assert len(bench.runs) == 1

    def test_after_it_was_abandoned_nothing_starts(self) -> None:
        """Row 9: the second SIGTERM means at once."""
        release, started = threading.Event(), []
        bench = Bench(ThreadExecutor, slots=1)
        running = bench.submit(lambda *_: release.wait(30) and None)
        eventually(lambda: is_running(bench))
        bench.submit(lambda *_: started.append(1))
        assert bench.executor.abandon() == 1
        release.set()
        bench.run_of(running)
        eventually(lambda: not is_running(bench))
        assert started == []


def iter_once() -> Iterator[None]:
    yield


@pytest.fixture(params=["as installed", "asyncio"])
def any_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop of the machine at hand, and that of the standard library, which serves where there is no other."""
    if request.param == "asyncio":
        monkeypatch.setattr(aio_module, "new_event_loop", asyncio.new_event_loop)


@pytest.mark.usefixtures("any_loop")
class TestAsync:
    def test_a_handler_that_overruns_its_limit_is_cancelled(self) -> None:
        bench, cancelled = Bench(AsyncExecutor), threading.Event()

        async def handle(*_: object) -> None:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        outcome = bench.outcome(handle, limit=0.02)
        assert isinstance(outcome, Failed)
        assert "did not end within its time limit" in outcome.failure.message
        assert cancelled.is_set()
        assert bench.is_idle()

    def test_what_a_handler_sets_for_itself_is_not_there_for_the_next_one(self) -> None:
        tenant = contextvars.ContextVar("tenant", default="nobody")
        bench, seen, all_there = Bench(AsyncExecutor, slots=1), list[str](), threading.Event()

        async def handle(mail: Any, context: Context) -> None:
            seen.append(tenant.get())
            tenant.set("acme")
            await until(all_there)(mail, context)  # so that each is started by the end of the one before it

        jobs = [bench.submit(handle) for _ in range(5)]
        all_there.set()
        for job in jobs:
            assert bench.run_of(job).outcome == Succeeded()
        assert seen == ["nobody"] * 5

    def test_one_that_ends_well_although_it_was_cancelled_has_succeeded(self) -> None:
        async def handle(*_: object) -> None:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                return

        assert Bench(AsyncExecutor).outcome(handle, limit=0.02) == Succeeded()

    def test_one_that_does_not_mind_being_cancelled_is_settled_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Row 5: the deadline ends the attempt, other jobs go on, capacity comes back."""
        monkeypatch.setattr(aio_module, "CANCEL_GRACE", 1.0)
        clock, told, release = clock_at(), threading.Event(), threading.Event()
        bench = Bench(AsyncExecutor, clock=clock)

        async def handle(*_: object) -> None:
            while not release.is_set():
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    told.set()

        delivery = bench.submit(handle, limit=0.02)
        assert told.wait(10)
        clock.advance(1.0)
        bench.executor.check()
        assert bench.runs == []
        clock.advance(1.0)
        bench.executor.check()
        assert isinstance(bench.run_of(delivery).outcome, Failed)
        assert (bench.executor.outstanding(), bench.executor.trouble()) == (0, "")
        assert bench.outcome(coroutine(lambda *_: None)) == Succeeded()
        release.set()
        eventually(lambda: bench.executor._written_off == 0)
        clock.advance(5)
        bench.executor.check()
        assert len(bench.runs) == 2

    def test_a_clock_that_is_set_writes_nothing_off(self) -> None:
        clock, release = JumpingClock(), threading.Event()
        bench = Bench(AsyncExecutor, clock=clock)
        delivery = bench.submit(until(release), limit=60)
        eventually(lambda: is_running(bench))
        clock.jump = 7200
        clock.advance(3)
        bench.executor.check()
        assert bench.runs == []
        release.set()
        run = bench.run_of(delivery)
        assert run.outcome == Succeeded()
        assert run.finished_at - run.started_at == pytest.approx(3)

    def test_abandoned_jobs_come_back_without_an_outcome(self) -> None:
        """A shutdown burns no attempt, however the handler puts that it was cancelled."""
        bench, begun = Bench(AsyncExecutor, slots=3), []

        async def plain(*_: object) -> None:
            begun.append(1)
            await asyncio.sleep(600)

        async def translated(*_: object) -> None:
            begun.append(1)
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                raise ConnectionError("closed while reading") from None

        async def grouped(*_: object) -> None:
            begun.append(1)
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                raise BaseExceptionGroup("tasks", [asyncio.CancelledError(), OSError("x")]) from None

        for handle in (plain, translated, grouped, plain):
            bench.submit(handle)
        eventually(lambda: len(begun) == 3)
        assert bench.executor.abandon() == 0
        assert (bench.runs, len(begun)) == ([], 3), "and the fourth does not start"

    def test_one_that_goes_on_after_it_was_abandoned_is_told_of(self) -> None:
        release, begun = threading.Event(), threading.Event()
        bench = Bench(AsyncExecutor)

        async def stubborn(*_: object) -> None:
            begun.set()
            while not release.is_set():
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    continue

        bench.submit(stubborn)
        assert begun.wait(10)
        assert bench.executor.abandon() == 1
        release.set()

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_a_task_of_a_handler_that_tries_to_end_the_process_ends_no_other_job(self) -> None:
        """Asyncio lets SystemExit out of the loop, whoever raised it: the loop must go on for all others."""
        bench, release = Bench(AsyncExecutor), threading.Event()
        neighbour = bench.submit(until(release))

        async def leave() -> None:
            raise SystemExit(3)

        async def handle(*_: object) -> None:
            await asyncio.get_running_loop().create_task(leave())

        assert isinstance(bench.outcome(handle), Failed)
        release.set()
        assert bench.run_of(neighbour).outcome == Succeeded()
        assert bench.outcome(coroutine(lambda *_: None)) == Succeeded()

    def test_what_is_dropped_is_not_run_as_well(self) -> None:
        """Both look at the queue at the same time, again and again."""
        bench, dropped, submitted = Bench(AsyncExecutor, slots=1), [], []
        for _ in range(200):
            submitted += [bench.submit(coroutine(lambda *_: None)) for _ in range(5)]
            dropped += bench.executor.drop_unstarted()
        eventually(bench.is_idle)
        eventually(lambda: len(bench.runs) + len(dropped) >= len(submitted))
        ran = [run.delivery for run in bench.runs]
        assert len(ran) + len(dropped) == len(submitted)
        assert not set(map(id, ran)) & set(map(id, dropped))

    def test_a_blocked_loop_is_noticed(self, caplog: pytest.LogCaptureFixture) -> None:
        clock, release, begun = clock_at(), threading.Event(), threading.Event()
        bench = Bench(AsyncExecutor, clock=clock)

        async def block(*_: object) -> None:
            begun.set()
            release.wait(30)

        delivery = bench.submit(block)
        assert begun.wait(10)
        bench.executor.check()
        clock.advance(2)
        bench.executor.check()
        assert [record.message for record in caplog.records if "blocks the event loop" in record.message]
        assert bench.executor.trouble() == ""
        clock.advance(60)
        assert "has been blocked" in bench.executor.trouble()
        release.set()
        assert bench.run_of(delivery).outcome == Succeeded()
        eventually(lambda: bench.executor.trouble() == "")


def until(release: threading.Event) -> Handle:
    async def handle(*_: object) -> None:
        while not release.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.005)

    return handle


class TestPace:
    @given(
        slots=st.integers(1, 64),
        most=st.integers(0, 1000),
        outstanding=st.integers(0, 2000),
        lost=st.integers(0, 64),
    )
    def test_no_more_is_taken_than_may_be_outstanding_and_no_slot_stays_idle(
        self, slots: int, most: int, outstanding: int, lost: int
    ) -> None:
        room = Pace(slots, most=most).room(outstanding, lost=lost)
        assert 0 <= room <= max(0, slots - lost) + most
        if lost >= slots:
            assert room == 0
        elif outstanding < slots - lost:
            assert room >= slots - lost - outstanding
