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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from pipeline.embedded.files import tail
from pipeline.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Command", "ServerProcess", "stop_leftovers"]

_LEFTOVER_GRACE = 10.0
_WATCHDOG = Path(__file__).with_name("watchdog.py")


@dataclass(frozen=True, kw_only=True)
class Command:
    """How a server is run and stopped. `remove_after` goes when the parent died: a temporary folder."""

    name: str
    argv: list[str]
    log_file: Path
    stop_signal: signal.Signals
    grace: float = 20.0
    environment: Mapping[str, str] = field(default_factory=dict)
    remove_after: Path | None = None


class ServerProcess:
    """A running server. Not thread-safe: one owner starts and stops it."""

    def __init__(self, command: Command) -> None:
        self._command = command
        with command.log_file.open("wb") as log_file:
            self._server = subprocess.Popen(  # noqa: S603 - our own command line
                command.argv,
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
            if not self.running:
                self._close_watchdog()
                raise self._failure(f"ended with status {self._server.returncode}")
            if time.monotonic() > deadline:
                self.stop()
                raise self._failure(f"was not ready after {timeout:.0f} s")
            time.sleep(0.03)

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
        psutil.wait_procs(children, timeout=10)
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
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def _close_watchdog(self) -> None:
        with self._watchdog as watchdog:  # closes its stdin, which ends it, and waits for it
            watchdog.poll()

    def _failure(self, what: str) -> EmbeddedError:
        log_file = self._command.log_file
        return EmbeddedError(
            f"the embedded {self._command.name} {what}. Its log {log_file} ends:\n{tail(log_file)}"
        )


def _watch(pid: int, command: Command) -> subprocess.Popen[bytes]:
    folder = [str(command.remove_after)] if command.remove_after else []
    return subprocess.Popen(  # noqa: S603
        [
            sys.executable,
            "-P",
            str(_WATCHDOG),
            str(os.getpid()),
            str(pid),
            str(int(command.stop_signal)),
            str(command.grace),
            *folder,
        ],
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
    for process in leftovers:
        log(f"stopping a {name} that an earlier run left behind (pid {process.pid})")
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(leftovers, timeout=_LEFTOVER_GRACE)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=_LEFTOVER_GRACE)


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []
