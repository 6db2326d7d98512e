"""A worker process under control."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.harness.waiting import wait_until

__all__ = ["WorkerProcess"]

ROOT = Path(__file__).parents[2]


class WorkerProcess:
    """A child in a process group of its own, so that a signal to the tests does not reach it."""

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as stream:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                process_group=0,
            )
        self.may_end = False
        self._gone = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    # --- faults

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.may_end = True
        self._process.kill()
        self._process.wait(10)

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM: once to drain, twice to leave at once. Waits until it listens: before that the signal just ends it."""
        self.may_end = True
        wait_until(
            lambda: self._has_started() or not self.running, "it can be told to stop", context=self.tail
        )
        self._process.send_signal(signal.SIGTERM)

    # --- the end

    def wait(self, timeout: float = 30.0) -> int:
        """Give the exit code."""
        self.may_end = True
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"worker {self.pid} did not end within {timeout:g} s\n{self.tail()}"
            ) from None

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.terminate()
        return self.wait()

    def remove(self) -> None:
        """However the test ended: nothing of it stays."""
        if not self.is_gone():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait(10)

    def is_gone(self) -> bool:
        """Whether it and every process that it may have started have ended. Then the number of its group may be another's."""
        if not self._gone and not self.running:
            try:
                os.killpg(self.pid, 0)
            except ProcessLookupError:
                self._gone = True
        return self._gone

    # --- its log

    def said(self, action: str) -> list[dict[str, Any]]:
        """The lines of its log that tell of an action."""
        lines = self._log.read_text(errors="replace").splitlines()
        entries = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [entry for entry in entries if entry.get("action") == action]

    def _has_started(self) -> bool:
        """Whether it has told so, in a log of whatever form."""
        return "worker started" in self._log.read_text(errors="replace")

    def tail(self, characters: int = 4000) -> str:
        return f"--- {self._log.name}\n{self._log.read_text(errors='replace')[-characters:]}"
