"""Keeps a number of member processes running, and stops them together.

A member is told to drain by the end of its stdin, a pipe that nobody ever writes to: so it also drains when this process
dies, however it dies (see `lifecycle.stop_with_parent`), and a SIGTERM that somebody sends to all processes at once, as
systemd does, is not taken for a second one. Each member has a process group of its own, or Ctrl-C in a terminal would reach
it twice. A member that ends by itself is replaced, after a wait that grows while replacements die young.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import signal
import subprocess
import threading
from collections.abc import Sequence
from typing import NamedTuple

from pipeline.core.clock import Clock
from pipeline.core.restarts import RestartPolicy, Restarts

__all__ = ["HOPELESS", "Supervisor"]

log = logging.getLogger("pipeline.supervisor")

HOPELESS = 78  # exit code of a member that no restart helps: its configuration is wrong
AT_ONCE_SECONDS = 10.0  # what members get after the second signal


class _Ended(NamedTuple):
    number: int
    code: int


class _Stop(NamedTuple):
    """Somebody asked to stop."""


class _Member:
    """A running process and since when it runs."""

    def __init__(self, process: subprocess.Popen[bytes], since: float) -> None:
        self.process = process
        self.since = since

    def drain(self) -> None:
        """Close its stdin. Harmless when repeated."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)


class Supervisor:
    """`commands` are the members', one each; `grace` is how long they may drain before they are killed, in seconds."""

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        *,
        grace: float,
        clock: Clock,
        policy: RestartPolicy | None = None,
    ) -> None:
        self._commands = [list(command) for command in commands]
        self._grace = grace
        self._clock = clock
        self._restarts = [Restarts(policy or RestartPolicy()) for _ in commands]
        self._events: queue.SimpleQueue[_Ended | _Stop] = queue.SimpleQueue()
        self._members: dict[int, _Member] = {}
        self._due = dict.fromkeys(range(len(commands)), 0.0)  # when to start which member
        self._stops = 0
        self._deadline = 0.0
        self._code = 0

    def stop(self) -> None:
        """The members drain; called again they leave at once. From any thread or signal handler."""
        self._events.put(_Stop())  # the one queue whose `put` a signal handler may call

    def run(self) -> int:
        """Until stopped. 0 when every member left in order, else 1."""
        try:
            while not self._stops or self._members:
                self._start_due()
                self._wait()
        finally:
            for member in self._members.values():  # only if we fail ourselves
                member.drain()
        log.info("all members have left", extra={"action": "stopped", "exit_code": self._code})
        return self._code

    # --- starting

    def _start_due(self) -> None:
        now = self._clock.monotonic()
        for number in [number for number, at in self._due.items() if at <= now]:
            del self._due[number]
            self._start(number)

    def _start(self, number: int) -> None:
        try:
            process = subprocess.Popen(  # noqa: S603 - our own command line
                self._commands[number], stdin=subprocess.PIPE, process_group=0
            )
        except OSError:
            log.exception("member cannot be started", extra={"action": "member_died", "member": number})
            self._start_later(number, lived=0.0)
            return
        self._members[number] = _Member(process, self._clock.monotonic())
        threading.Thread(target=self._watch, args=(number, process), daemon=True).start()
        log.info(
            "member started", extra={"action": "member_started", "member": number, "member_pid": process.pid}
        )

    def _watch(self, number: int, process: subprocess.Popen[bytes]) -> None:
        self._events.put(_Ended(number, process.wait()))

    def _start_later(self, number: int, *, lived: float) -> float:
        wait = self._restarts[number].wait_after(lived)
        self._due[number] = self._clock.monotonic() + wait
        return wait

    # --- events

    def _wait(self) -> None:
        now = self._clock.monotonic()
        times = [self._deadline] if self._stops else list(self._due.values())
        try:
            event = self._events.get(timeout=max(0.0, min(times) - now) if times else None)
        except queue.Empty:
            if self._stops:
                self._kill()
            return
        if isinstance(event, _Stop):
            self._on_stop()
        else:
            self._on_ended(event)

    def _on_ended(self, event: _Ended) -> None:
        member = self._members.pop(event.number)
        member.drain()
        if self._stops:
            self._code = self._code or int(event.code != 0)
            self._tell_left(event)
        elif event.code == HOPELESS:
            log.critical("a member cannot be configured: all stop", extra={"action": "failed"})
            self._code = 1
            self._on_stop()
        else:
            lived = self._clock.monotonic() - member.since
            wait = self._start_later(event.number, lived=lived)
            self._tell_died(event, lived=lived, wait=wait, pid=member.process.pid)

    def _on_stop(self) -> None:
        self._stops += 1
        self._due.clear()
        log.info("stopping all members", extra={"action": "stopping", "members": len(self._members)})
        self._deadline = self._clock.monotonic() + (self._grace if self._stops == 1 else AT_ONCE_SECONDS)
        for member in self._members.values():
            if self._stops == 1:
                member.drain()
            else:
                member.signal(signal.SIGTERM)

    def _kill(self) -> None:
        log.error(
            "members did not leave in time: killed", extra={"action": "killed", "members": len(self._members)}
        )
        self._deadline = self._clock.monotonic() + AT_ONCE_SECONDS
        for member in self._members.values():
            member.signal(signal.SIGKILL)

    @staticmethod
    def _tell_died(event: _Ended, *, lived: float, wait: float, pid: int) -> None:
        log.error(
            "member %s; another one takes its place",
            _how(event.code),
            extra={
                "action": "member_died",
                "member": event.number,
                "member_pid": pid,
                "exit_code": event.code,
                "lived": round(lived, 3),
                "restart_in": wait,
            },
        )

    @staticmethod
    def _tell_left(event: _Ended) -> None:
        level = logging.INFO if event.code == 0 else logging.ERROR
        facts = {"action": "member_left", "member": event.number, "exit_code": event.code}
        log.log(level, "member %s", _how(event.code), extra=facts)


def _how(code: int) -> str:
    """An exit code in words; that of a process which was killed is the negative number of the signal."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
