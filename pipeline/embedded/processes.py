"""One server process: started, watched, stopped, and found again when an earlier run left it behind.

Every server carries a *marker*, an element of its command line that names its data directory and that no
other process has. A server that outlived its parent is found by that marker alone: a pid file could be
missing (killed before it was written) or point at a stranger (pids are used again).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from pipeline.embedded.files import tail
from pipeline.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Command", "ServerProcess", "run_once", "stop_leftovers"]

_LEFTOVER_GRACE = 10.0
_WATCHDOG = Path(__file__).with_name("watchdog.py")


@dataclass(frozen=True, kw_only=True)
class Command:
    """How a server is run and stopped. It runs in the folder of its log.

    `remove_after`: a temporary folder, removed when the parent died without stopping the server.
    """

    name: str
    argv: list[str]
    log_file: Path
    stop_signal: signal.Signals
    environment: Mapping[str, str]
    grace: float = 20.0
    remove_after: Path | None = None


class ServerProcess:
    """A running server. Not thread-safe: one owner starts and stops it."""

    def __init__(self, command: Command) -> None:
        self._command = command
        with command.log_file.open("wb") as log_file:
            self._server = subprocess.Popen(  # noqa: S603 - our own command line
                command.argv,
                cwd=command.log_file.parent,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                env=dict(command.environment),
                start_new_session=True,  # Ctrl-C in a terminal is for the parent, which stops us in order
            )
        self._watchdog = _watch(self._server.pid, command)

    @property
    def pid(self) -> int:
        return self._server.pid

    @property
    def running(self) -> bool:
        return self._server.poll() is None

    def wait_until(self, ready: Callable[[], bool], *, timeout: float) -> None:
        """Return when `ready` says so. Raises EmbeddedError when the server ends before, or takes too long."""
        deadline = time.monotonic() + timeout
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise self._failure(f"was not ready after {timeout:.0f} s")
            time.sleep(0.03)

    def check(self) -> None:
        """Raise EmbeddedError when the server has ended."""
        if not self.running:
            raise self._failure(f"ended with status {self._server.returncode}")

    def stop(self) -> None:
        """Ask the server to end, insist after the grace time. Returns when it has ended."""
        if self.running:
            self._signal(signal.SIGCONT)
            self._server.send_signal(self._command.stop_signal)
            try:
                self._server.wait(self._command.grace)
            except subprocess.TimeoutExpired:
                self.kill()
        self._close_watchdog()

    def kill(self) -> None:
        """SIGKILL to the server and its children, as if the machine had lost them. Returns when they ended."""
        children = self._children()
        self._server.kill()
        self._server.wait()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        _wait(children, timeout=_LEFTOVER_GRACE)
        self._close_watchdog()

    def pause(self) -> None:
        """Freeze the server and its children where they are: connections stay open, nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        # The server first: while it is stopped it makes no new children.
        self._server.send_signal(number)
        for child in self._children():
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(number)

    def _children(self) -> list[psutil.Process]:
        # Once it has ended, its pid may be a stranger's, with children of its own.
        return _children(self.pid) if self.running else []

    def _close_watchdog(self) -> None:
        with self._watchdog as watchdog:  # closes its stdin, which ends it, and waits for it
            watchdog.poll()

    def _failure(self, what: str) -> EmbeddedError:
        log_file = self._command.log_file
        return EmbeddedError(f"the embedded {self._command.name} {what}. {log_file} ends:\n{tail(log_file)}")


def run_once(
    argv: Sequence[str], *, what: str, environment: Mapping[str, str], cwd: Path, timeout: float
) -> None:
    """Run a program to its end. Raises EmbeddedError with what it printed when it fails or takes too long."""
    try:
        subprocess.run(  # noqa: S603 - our own command line
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=True,
            cwd=cwd,
            env=dict(environment),
            timeout=timeout,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        printed = (error.output or b"").decode(errors="replace")[-2000:]
        raise EmbeddedError(f"{what} failed: {error}\n{printed}") from error


def _watch(pid: int, command: Command) -> subprocess.Popen[bytes]:
    folder = [str(command.remove_after)] if command.remove_after else []
    numbers = [os.getpid(), pid, int(command.stop_signal), command.grace]
    return subprocess.Popen(  # noqa: S603 - our own script
        [sys.executable, "-P", str(_WATCHDOG), *map(str, numbers), *folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def stop_leftovers(marker: str, *, name: str, log: Callable[[str], None]) -> None:
    """Stop servers of the same data directory whose parent is gone. Call it only while holding the lock.

    Both servers end in order on SIGTERM; a Postgres that waits for its clients is killed after some seconds,
    and recovers from its log at the next start.
    """
    leftovers = [process for process in psutil.process_iter() if marker in _command_line(process)]
    family = [member for process in leftovers for member in (process, *_children(process.pid))]
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)
    for process in leftovers:
        log(f"stopping a {name} that an earlier run left behind (pid {process.pid})")
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
    for process in _wait(family, timeout=_LEFTOVER_GRACE):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _wait(family, timeout=_LEFTOVER_GRACE)


def _wait(processes: Sequence[psutil.Process], *, timeout: float) -> list[psutil.Process]:
    """Wait for processes that are not our children; returns those that did not end.

    A zombie has ended: in a container, nobody may ever collect it.
    """
    deadline = time.monotonic() + timeout
    alive = [process for process in processes if _is_alive(process)]
    while alive and time.monotonic() < deadline:
        time.sleep(0.01)
        alive = [process for process in alive if _is_alive(process)]
    return alive


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []
