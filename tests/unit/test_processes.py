"""Handlers in child processes: what comes back of them, and what becomes of children that die, hang or overrun."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Settings
from pipeline.config.transfer import pack_settings, unpack_settings
from pipeline.core.clock import SystemClock
from pipeline.core.outcome import (
    Cancelled,
    Crashed,
    Failed,
    Outcome,
    Rejected,
    Snoozed,
    Succeeded,
)
from pipeline.errors import ConfigError
from pipeline.pools import ChildPools
from pipeline.runtime.delivery import Delivery, Run
from pipeline.runtime.executors import processes
from pipeline.runtime.executors.processes import ProcessExecutor
from pipeline.runtime.executors.remote import BOOT_SECONDS, ChildProcess
from pipeline.runtime.handlers import PROCESS, SUSPECT, Registry
from pipeline.runtime.opening import find_handler
from tests.unit.child_app import TARGET, Deed, app, write_schemas
from tests.unit.runtime_parts import delivery_of, eventually, new_job, record_of


class Pool:
    """An executor with real children, and what it gave back."""

    def __init__(self, folder: Path, lane: str, target: str = TARGET, **worker: Any) -> None:
        write_schemas(folder / "schemas")
        settings = Settings(schemas_dir=folder / "schemas", worker={"process_concurrency": 1, **worker})
        app.configure(settings)
        self._codec = app.codec()
        self.alive = True
        self._runs: list[Run] = []
        self._came = threading.Condition()
        pools = ChildPools(target, settings, app.registry, worker_id="worker-1")
        executors = pools.executors(
            clock=SystemClock(), alive=lambda: self.alive, on_runs=self._on_runs, on_room=lambda: None
        )
        executor = executors[lane]
        assert isinstance(executor, ProcessExecutor)
        self.executor = executor
        executor.start()

    def _on_runs(self, runs: Any) -> None:
        with self._came:
            self._runs.extend(runs)
            self._came.notify_all()

    def submit(
        self, do: str, about: object = "", *, job_type: str = "unit.deed", crashes: int = 0
    ) -> Delivery:
        job = new_job(job_type=job_type, attempt=2, hop=1)
        value = self._codec.encode(job_type, Deed(do=do, about=str(about)))
        delivery = delivery_of(record_of(job, value=value))
        delivery.token, delivery.crashes = 5, crashes
        assert find_handler(delivery, app.registry) is None
        self.executor.submit([delivery])
        return delivery

    def run_of(self, delivery: Delivery, timeout: float = 30.0) -> Run:
        with self._came:
            assert self._came.wait_for(lambda: self._find(delivery), timeout), "it did not end"
            found = self._find(delivery)
        assert found is not None
        return found

    def _find(self, delivery: Delivery) -> Run | None:
        return next((run for run in self._runs if run.delivery is delivery), None)

    def outcome(self, do: str, about: object = "", **options: Any) -> Outcome:
        return self.run_of(self.submit(do, about, **options)).outcome

    def reason(self, do: str, **options: Any) -> str:
        """What a handler told by rejecting its job."""
        outcome = self.outcome(do, **options)
        assert isinstance(outcome, Rejected)
        return outcome.failure.message

    def children(self) -> list[int]:
        with self.executor._work:
            return [child.pid for child in self.executor._children]


NewPool = Callable[..., Pool]


@pytest.fixture
def new_pool(tmp_path: Path) -> Iterator[NewPool]:
    pools: list[Pool] = []

    def make(lane: str = PROCESS, **options: Any) -> Pool:
        pools.append(Pool(tmp_path / f"pool-{len(pools)}", lane, **options))
        return pools[-1]

    yield make
    for pool in pools:
        children = pool.children()
        pool.executor.abandon()
        assert not any(is_running(child) for child in children)


def is_running(pid: int) -> bool:
    with suppress(ProcessLookupError, FileNotFoundError):  # it may go between the two
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


def pid_in(file: Path) -> int:
    # A child imports the application first, which the pool itself gives a minute.
    eventually(lambda: file.exists() and file.read_text(), timeout=BOOT_SECONDS)
    return int(file.read_text())


def test_what_a_handler_gives_comes_back_as_from_a_thread(new_pool: NewPool) -> None:
    pool = new_pool()
    assert pool.outcome("nothing") == Succeeded()
    failed = pool.outcome("fail")
    assert isinstance(failed, Failed)
    assert failed.failure[:2] == ("ValueError", "no such address")
    assert "in _raise" in failed.failure.stack
    permanent = pool.outcome("fail for good")
    assert isinstance(permanent, Failed)
    assert permanent.permanent
    retry = pool.outcome("retry")
    assert isinstance(retry, Failed)
    assert retry.retry_after == 7
    assert pool.outcome("snooze") == Snoozed(None, 2e9)
    assert isinstance(pool.outcome("reject"), Rejected)
    assert pool.outcome("cancel") == Cancelled("enough")
    exited = pool.outcome("exit")
    assert isinstance(exited, Failed)
    assert exited.failure.error_class == "SystemExit"


def test_a_handler_is_told_of_its_job(new_pool: NewPool) -> None:
    pool = new_pool()
    delivery = pool.submit("tell context")
    outcome = pool.run_of(delivery).outcome
    assert isinstance(outcome, Rejected)
    assert outcome.failure.message == f"{delivery.job.job_id} 2 acme 5 False"


def test_a_payload_that_cannot_be_decoded_is_found_out_in_the_child(new_pool: NewPool) -> None:
    pool = new_pool()
    delivery = delivery_of(record_of(new_job(job_type="unit.deed"), value=b"\xc3\x01broken"))
    find_handler(delivery, app.registry)
    pool.executor.submit([delivery])
    outcome = pool.run_of(delivery).outcome
    assert isinstance(outcome, Rejected)
    assert outcome.reason == "undecodable"


def test_a_child_is_used_again_until_it_has_had_enough_jobs(new_pool: NewPool) -> None:
    pool = new_pool(process_max_jobs=2)
    children = [pool.reason("tell process") for _ in range(4)]
    assert children[0] == children[1] != children[2] == children[3]


@pytest.mark.parametrize(
    ("do", "how"), [("die", "ended with exit code 3"), ("crash", "was killed by SIGSEGV")]
)
def test_a_death_is_the_jobs_own_and_its_child_is_replaced(new_pool: NewPool, do: str, how: str) -> None:
    pool = new_pool()
    before = pool.reason("tell process")
    outcome = pool.outcome(do, crashes=1)
    assert isinstance(outcome, Crashed)
    assert outcome.failure.error_class == "ProcessDied"
    assert how in outcome.failure.message
    assert outcome.crashes == 2
    assert pool.reason("tell process") != before
    assert pool.executor.trouble() == ""


@pytest.mark.parametrize(("do", "error"), [("eat", "MemoryError"), ("eat and stumble", "RuntimeError")])
def test_running_into_the_memory_limit_is_a_death_of_its_own(new_pool: NewPool, do: str, error: str) -> None:
    pool = new_pool(process_memory_mb=400)
    before = pool.reason("tell process")
    outcome = pool.outcome(do)
    assert isinstance(outcome, Crashed)
    assert outcome.failure.error_class == error
    assert "_eat" in outcome.failure.stack
    assert pool.reason("tell process") != before


def test_a_job_that_overruns_its_time_limit_is_killed_with_all_that_it_started(
    new_pool: NewPool, tmp_path: Path
) -> None:
    pool = new_pool()
    run = pool.run_of(pool.submit("sleep beside", tmp_path / "program", job_type="unit.short"))
    assert isinstance(run.outcome, Failed)
    assert run.outcome.failure.error_class == "TimeoutError"
    assert 2 <= run.finished_at - run.started_at < 30, "it was waited for"
    eventually(lambda: not is_running(pid_in(tmp_path / "program")))
    assert pool.outcome("nothing") == Succeeded()


def test_a_child_that_died_without_a_job_is_nobodys_fault(new_pool: NewPool) -> None:
    pool = new_pool()
    child = int(pool.reason("tell process"))
    os.kill(child, signal.SIGKILL)
    eventually(lambda: not is_running(child))
    assert pool.outcome("nothing") == Succeeded()


def test_what_a_child_leaves_behind_is_killed_at_its_end_and_its_group_is_not_signalled_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Later the number of the group may be another's."""
    program = f"""
import pathlib, subprocess
left = subprocess.Popen(["sleep", "60"])
pathlib.Path({str(tmp_path / "left")!r}).write_text(str(left.pid))
"""
    child = ChildProcess([sys.executable, "-c", program], None)
    left = pid_in(tmp_path / "left")
    eventually(lambda: not child.alive(), timeout=60)
    eventually(lambda: not is_running(left))
    signalled: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, _number: signalled.append(group))
    child.kill()
    child.retire()
    assert signalled == []


def test_signals_of_a_terminal_do_not_end_a_child_and_are_not_ignored_by_what_it_starts(
    new_pool: NewPool,
) -> None:
    pool = new_pool()
    child = int(pool.reason("tell process"))
    os.kill(child, signal.SIGTERM)
    os.kill(child, signal.SIGINT)
    assert int(pool.reason("tell process")) == child
    ignored = int(pool.reason("tell signals").split()[1], 16)
    assert not ignored & (1 << (signal.SIGTERM - 1) | 1 << (signal.SIGINT - 1))


def test_a_handler_learns_within_a_second_that_the_lease_is_lost(new_pool: NewPool) -> None:
    pool = new_pool()
    waiting = pool.submit("wait until lost")
    pool.alive = False
    assert isinstance(pool.run_of(waiting).outcome, Rejected)


def test_children_end_with_their_worker_however_that_ends(new_pool: NewPool, tmp_path: Path) -> None:
    """Here: by the end of the pipe, while a handler runs."""
    pool = new_pool()
    pool.submit("sleep", tmp_path / "pid")
    child = pid_in(tmp_path / "pid")
    (process,) = pool.executor._children
    process._connection.close()
    eventually(lambda: not is_running(child))


def test_abandoned_jobs_come_back_without_an_outcome(new_pool: NewPool, tmp_path: Path) -> None:
    pool = new_pool()
    pool.submit("sleep", tmp_path / "pid")
    pid_in(tmp_path / "pid")
    waiting = [pool.submit("nothing") for _ in range(3)]
    assert pool.executor.drop_unstarted() == waiting
    assert pool.executor.abandon() == 0
    assert pool._runs == []


def test_a_child_that_is_made_while_the_pool_is_abandoned_is_not_waited_for(
    new_pool: NewPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = new_pool(SUSPECT)
    make = pool.executor._new_child
    made: list[Any] = []
    asked, go = threading.Event(), threading.Event()

    def make_slowly() -> Any:
        asked.set()
        assert go.wait(30)
        made.append(make())
        return made[0]

    monkeypatch.setattr(pool.executor, "_new_child", make_slowly)
    pool.submit("nothing")
    assert asked.wait(30)
    leaving = threading.Thread(target=pool.executor.abandon)
    leaving.start()
    eventually(lambda: pool.executor._ended)
    go.set()
    leaving.join(30)
    assert not leaving.is_alive()
    assert made[0].busy, "it was let come up"
    assert not is_running(made[0].pid)


def test_suspects_run_whatever_their_handler_is_and_no_lane_is_read_for_them(new_pool: NewPool) -> None:
    pool = new_pool(SUSPECT, suspect_concurrency=2)
    assert pool.executor.capacity() == 0
    assert pool.children() == []
    assert pool.outcome("nothing") == Succeeded()
    eventually(lambda: pool.executor._idle == 1)  # until then the next job may start another child
    assert pool.outcome("nothing", job_type="unit.coroutine") == Succeeded()
    assert len(pool.children()) == 1
    assert isinstance(pool.outcome("crash", job_type="unit.coroutine"), Crashed)


def test_coroutines_share_one_loop_and_are_cancelled_at_their_limit_or_killed(new_pool: NewPool) -> None:
    pool = new_pool(SUSPECT, suspect_concurrency=1)
    loops = {pool.reason("tell loop", job_type="unit.coroutine") for _ in range(3)}
    assert len(loops) == 1
    (child,) = pool.children()
    for do, same_child in (("sleep", True), ("never mind", False)):
        outcome = pool.outcome(do, job_type="unit.coroutine")
        assert isinstance(outcome, Failed)
        assert outcome.failure.error_class == "TimeoutError"
        # A child that was killed is listed until its end was noticed.
        eventually(lambda: (pool.children() == [child]) is same_child)  # noqa: B023


def test_children_without_work_end(new_pool: NewPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.pools.IDLE_SECONDS", 0.2)
    pool = new_pool(SUSPECT)
    assert pool.outcome("nothing") == Succeeded()
    eventually(lambda: not pool.children())
    assert pool.outcome("nothing") == Succeeded()


def test_a_pool_whose_children_cannot_import_the_application_says_so(
    new_pool: NewPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "BACKOFF_SECONDS", 0.001)
    monkeypatch.setattr(processes, "MOST_FAILURES", 2)
    pool = new_pool(target="tests.unit.no_such_module:app")
    eventually(lambda: "no_such_module" in pool.executor.trouble(), timeout=60)
    assert pool.executor.capacity() == 0


def test_a_worker_without_a_target_has_no_children() -> None:
    pools = ChildPools(None, Settings(), Registry(), worker_id="worker-1")
    parts: Any = {"clock": SystemClock(), "alive": bool, "on_runs": print, "on_room": print}
    assert pools.executors(**parts) == {}
    assert not pools.isolate
    pools = ChildPools(None, Settings(), app.registry, worker_id="worker-1")
    with pytest.raises(ConfigError, match=r"target of the worker is None.*unit\.deed.*module:attribute"):
        pools.executors(**parts)


def test_settings_travel_to_a_child_with_their_secrets() -> None:
    settings = Settings(
        schemas_dir=Path("somewhere"),
        queues=("a", "b"),
        postgres={"dsn": "postgresql://me:hidden@db/jobs"},
        kafka={"options": {"sasl.password": "hidden"}},
        worker={"http_port": None},
        retry={"tiers": (1, 5)},
    )
    assert unpack_settings(pack_settings(settings)) == settings
