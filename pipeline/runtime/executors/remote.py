"""The worker's side of one child process: started, told jobs one at a time, ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from pipeline.core.outcome import Failure, Outcome
from pipeline.errors import PipelineError
from pipeline.runtime.executors.wire import Kind, pack, unpack, unpack_outcome

__all__ = ["Answered", "ChildBroken", "ChildProcess", "Exhausted", "Overran", "Unstarted", "Vanished"]

BOOT_SECONDS = 60.0  # importing an application may take long on a busy machine
START_SECONDS = 30.0  # from a job's sending to its start in a child that has nothing else to do
LEAVING_SECONDS = 6.0
_STEP = 0.5  # how often the process itself is looked at: something it started may hold its pipe open
_GLANCE = 0.02  # how often one that leaves is looked at
_LONGEST_ANSWER = 1_000_000


class ChildBroken(PipelineError):
    """A child process could not be started, or could not import the application."""


class Answered(NamedTuple):
    """The run ended, and the child is ready for the next."""

    outcome: Outcome


class Exhausted(NamedTuple):
    """The handler ran into the memory limit of its process."""

    failure: Failure


class Vanished(NamedTuple):
    """The process died during the run. `how` tells by what."""

    how: str


class Overran(NamedTuple):
    """The time limit came; the process was killed."""


class Unstarted(NamedTuple):
    """The process died, or hung, before it had begun with the job."""

    how: str


Ending = Answered | Exhausted | Vanished | Overran | Unstarted


class ChildProcess:
    """Owned by one thread; only `kill` may be called by others. Making one starts the process.

    It has a process group of its own: a signal to the worker's terminal does not reach it, and what a handler started is
    killed with it, also when it ends by itself. That is done as its end is taken note of, under one lock, and never later:
    by then the number of the group may be another's.
    """

    def __init__(self, command: Sequence[str], hello: object) -> None:
        """`command` gets the number of the pipe as its last argument. Raises `ChildBroken`."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._connection = Connection(ours.detach())
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own command
                    [*command, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    process_group=0,
                )
            except OSError as error:
                self._connection.close()
                raise ChildBroken(f"no child process can be started: {error}") from error
        self.jobs = 0
        self._lock = threading.RLock()
        self.busy = True  # starting, or running a job: not to be waited for
        self._lease_lost = False
        self._send(pack(Kind.HELLO, hello))

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> None:
        """Raises `ChildBroken` when it does not come up."""
        message = self._receive(time.monotonic() + BOOT_SECONDS)
        if message is None:
            self.kill()
            raise ChildBroken(f"the child process {self._how_it_ended()} before it was ready")
        kind, data = message
        if kind is not Kind.READY:
            raise ChildBroken(f"the child process cannot work: {data}")
        self.busy = False

    def alive(self) -> bool:
        with self._lock:
            if self._process.returncode is None and self._process.poll() is not None:
                self._kill_group()
            return self._process.returncode is None

    def tell_lease(self, *, lost: bool) -> None:
        if lost != self._lease_lost:
            self._lease_lost = lost
            self._send(pack(Kind.LEASE, lost))

    def run(
        self, order: bytes, *, limit: float | None, on_start: Callable[[], None], watch: Callable[[], None]
    ) -> tuple[Ending, bool]:
        """Run one job; give how it ended, and whether it committed. Unless it answered, the process is gone.

        `limit` is in seconds from its start; `watch` is called now and then while it runs.
        """
        self.jobs += 1
        self._send(order)
        if self._receive(time.monotonic() + START_SECONDS) is None:
            self.kill()
            return Unstarted(self._how_it_ended()), False
        on_start()
        deadline = float("inf") if limit is None else time.monotonic() + limit
        return self._follow(deadline, watch)

    def _follow(self, deadline: float, watch: Callable[[], None]) -> tuple[Ending, bool]:
        committed = False
        while (message := self._receive(deadline, watch)) is not None:
            kind, data = message
            if kind is Kind.COMMITTED:
                committed = True
            elif kind is Kind.ENDED:
                return Answered(unpack_outcome(data)), committed
            elif kind is Kind.EXHAUSTED:
                self.kill()
                return Exhausted(Failure(*data)), committed
        overran = self.alive() and time.monotonic() >= deadline
        self.kill()
        return (Overran() if overran else Vanished(self._how_it_ended())), committed

    def _send(self, message: bytes) -> None:
        # A process that is gone is noticed when it does not answer.
        with suppress(OSError):
            self._connection.send_bytes(message)

    def _receive(self, deadline: float, watch: Callable[[], None] = lambda: None) -> tuple[Kind, Any] | None:
        """The next message; None when the deadline came first, or none will come any more."""
        with suppress(OSError, EOFError, ValueError):
            while True:
                gone = not self.alive()
                left = deadline - time.monotonic()
                if self._connection.poll(0.0 if gone else max(0.0, min(_STEP, left))):
                    return unpack(self._connection.recv_bytes(_LONGEST_ANSWER))
                if gone or left <= 0:
                    return None
                watch()
        return None

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        if code >= 0:
            return f"ended with exit code {code}"
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"

    def retire(self) -> None:
        """Let it end by itself, within a bound. The last thing that is asked of it."""
        self._connection.close()
        deadline = time.monotonic() + LEAVING_SECONDS
        while self.alive() and time.monotonic() < deadline:
            time.sleep(_GLANCE)
        self.kill()

    def kill(self) -> None:
        """End it, and what it started, now. Harmless when it is gone."""
        with self._lock:
            if self.alive():
                self._kill_group()
                self._process.wait()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
