"""The supervisor and real member processes: small scripts that do what members may do."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pipeline.core.clock import SystemClock
from pipeline.core.restarts import RestartPolicy
from pipeline.runtime.supervisor import HOPELESS, Supervisor
from tests.harness.waiting import wait_until

# What every member does first: say who it is. Then it waits for the end of its stdin, as `drain_with_parent` does.
NOTE = "import os, signal, sys, time; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n')\n"
GOOD = NOTE + "sys.stdin.read()"
FAILING = NOTE + "sys.exit(3)"
HOPELESS_ONE = NOTE + f"sys.exit({HOPELESS})"
STUBBORN = NOTE + "sys.stdin.read(); time.sleep(60)"
DEAF = NOTE + "signal.signal(signal.SIGTERM, signal.SIG_IGN); sys.stdin.read(); time.sleep(60)"
BAD_END = NOTE + "sys.stdin.read(); sys.exit(5)"


class Stage:
    """A supervisor on a thread, and what its members have noted."""

    def __init__(self, folder: Path, *scripts: str, grace: float = 20.0) -> None:
        self._files = [folder / f"member-{number}" for number in range(len(scripts))]
        commands = [
            [sys.executable, "-c", script, str(file)]
            for script, file in zip(scripts, self._files, strict=True)
        ]
        policy = RestartPolicy(base=0.2, cap=5, settled_after=60)
        self.supervisor = Supervisor(commands, grace=grace, clock=SystemClock(), policy=policy)
        self.code: int | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.code = self.supervisor.run()

    def pids(self, number: int = 0) -> list[int]:
        """Of every process that was this member, the first one first."""
        return [int(line) for line in _lines(self._files[number])]

    def wait_started(self, times: int = 1, number: int = 0) -> int:
        wait_until(
            lambda: len(self.pids(number)) >= times, f"member {number} started {times} times", timeout=30
        )
        return self.pids(number)[times - 1]

    def end(self, timeout: float = 30) -> int:
        self._thread.join(timeout)
        assert self.code is not None, "the supervisor did not end"
        return self.code

    def remove(self) -> None:
        for _ in range(2):
            self.supervisor.stop()
        for number in range(len(self._files)):
            for pid in filter(is_alive, self.pids(number)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._thread.join(30)


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def is_alive(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):  # also when it goes while it is looked at
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def _told(caplog: pytest.LogCaptureFixture, action: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if getattr(record, "action", "") == action]


Start = Callable[..., Stage]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    stages: list[Stage] = []

    def begin(*scripts: str, grace: float = 20.0) -> Stage:
        stages.append(Stage(tmp_path, *scripts, grace=grace))
        return stages[-1]

    yield begin
    for stage in stages:
        stage.remove()


def test_all_members_run_until_they_are_told_to_drain(start: Start) -> None:
    stage = start(GOOD, GOOD, GOOD)
    pids = [stage.wait_started(number=number) for number in range(3)]
    stage.supervisor.stop()
    assert stage.end() == 0
    assert not any(map(is_alive, pids))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_member_that_dies_is_replaced_and_the_others_are_left_alone(
    start: Start, caplog: pytest.LogCaptureFixture, number: signal.Signals
) -> None:
    stage = start(GOOD, GOOD)
    first, other = stage.wait_started(), stage.wait_started(number=1)
    os.kill(first, number)
    second = stage.wait_started(2)
    assert is_alive(second)
    assert stage.pids(1) == [other]
    (record,) = _told(caplog, "member_died")
    assert (record.__dict__["exit_code"], record.__dict__["member_pid"]) == (-number, first)
    assert number.name in record.getMessage()
    stage.supervisor.stop()
    assert stage.end() == 0


def test_one_that_keeps_dying_is_started_later_and_later(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    began = time.monotonic()
    stage = start(FAILING)
    stage.wait_started(5)
    assert time.monotonic() - began >= 0.2 + 0.4 + 0.8 + 1.6
    wait_until(lambda: len(_told(caplog, "member_died")) == 5, "the fifth has died")
    stage.supervisor.stop()
    assert stage.end() == 0


def test_a_member_whose_configuration_is_wrong_ends_them_all(start: Start) -> None:
    stage = start(GOOD, HOPELESS_ONE)
    assert stage.end() == 1
    assert len(stage.pids(1)) == 1


def test_a_member_that_ends_badly_while_draining_shows_in_the_exit_code(start: Start) -> None:
    stage = start(GOOD, BAD_END)
    stage.wait_started()
    stage.wait_started(number=1)
    stage.supervisor.stop()
    assert stage.end() == 1


def test_the_second_signal_does_not_wait_for_the_drain(start: Start) -> None:
    stage = start(STUBBORN, GOOD)
    stubborn = stage.wait_started()
    good = stage.wait_started(number=1)
    stage.supervisor.stop()
    wait_until(lambda: not is_alive(good), "the one that drains has ended")
    assert is_alive(stubborn)
    stage.supervisor.stop()
    assert stage.end(8) == 1
    assert not is_alive(stubborn)


def test_a_member_that_does_not_leave_in_time_is_killed(start: Start) -> None:
    stage = start(DEAF, grace=1.0)
    deaf = stage.wait_started()
    stage.supervisor.stop()
    assert stage.end() == 1
    assert not is_alive(deaf)


SUPERVISED = """
import sys
from pipeline.core.clock import SystemClock
from pipeline.runtime.supervisor import Supervisor
commands = [[sys.executable, "-c", sys.argv[1], file] for file in sys.argv[2:]]
Supervisor(commands, grace=20, clock=SystemClock()).run()
"""
DRAINING = """
import os, sys, threading
from pipeline.runtime.lifecycle import drain_with_parent
drained = threading.Event()
with drain_with_parent(drained.set):
    open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
    assert drained.wait(60)
open(sys.argv[1], "a").write("drained\\n")
"""


def test_members_drain_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISED, DRAINING, *map(str, files)])
    try:
        wait_until(lambda: all(_lines(file) for file in files), "both run", timeout=30)
    finally:
        supervisor.kill()
        supervisor.wait()
    wait_until(lambda: all(_lines(file)[-1] == "drained" for file in files), "both drained")
    pids = [int(_lines(file)[0]) for file in files]
    wait_until(lambda: not any(map(is_alive, pids)), "both ended")


def test_a_worker_cannot_have_more_processes_than_ports(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pipeline", "--set", "worker.http_port=65534"]
    ended = subprocess.run(
        [*command, "worker", "nothing:app", "--processes", "3"],
        capture_output=True,
        encoding="utf-8",
        check=False,
        cwd=tmp_path,
        timeout=60,
    )
    assert ended.returncode == 1
    assert "worker.http_port is 65534; allowed with 3 processes" in ended.stderr


def test_a_module_that_does_not_exist_ends_the_supervisor_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pipeline", "--set", "worker.http_port=off"]
    ended = subprocess.run(
        [*command, "worker", "no_such_module:app", "--processes", "2"],
        capture_output=True,
        encoding="utf-8",
        check=False,
        cwd=tmp_path,
        timeout=60,
    )
    assert ended.returncode == 1
    said = [json.loads(line) for line in ended.stderr.splitlines() if line.startswith("{")]
    assert any("there is no module 'no_such_module'" in entry["message"] for entry in said)
    assert any(entry.get("action") == "stopped" for entry in said)
