"""Runs `pipeline ARGUMENTS` in a process of its own that need not import everything first.

`Commands` keeps a process that has imported the command line and started nothing: no client, no thread. For each command it
forks, and the child is what `python -m pipeline` would be: its own environment, files and exit code.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.harness.processes import ROOT

__all__ = ["Ended", "run_command"]

LONGEST = 60


class Ended(NamedTuple):
    """A command that ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


class Commands:
    """For one command at a time; the process ends with this one, whose end of the pipe it reads."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.commands"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONUTF8": "1"},
            encoding="utf-8",
        )
        atexit.register(self._close)

    def _close(self) -> None:
        self._process.communicate()

    def run(self, arguments: Sequence[str], environment: Mapping[str, str]) -> Ended:
        with tempfile.TemporaryDirectory() as folder:
            order = {"arguments": list(arguments), "environment": dict(environment), "folder": folder}
            assert self._process.stdin
            assert self._process.stdout
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            code = int(self._process.stdout.readline())
            texts = [(Path(folder) / name).read_text(encoding="utf-8") for name in ("out", "err")]
        return Ended(code, *texts)


_idle: queue.LifoQueue[Commands] = queue.LifoQueue()


def run_command(arguments: Sequence[str], environment: Mapping[str, str]) -> Ended:
    """Run `pipeline ARGUMENTS` with exactly this environment, from the root of the project, for a minute at most.

    Thread-safe: commands may run beside each other.
    """
    try:
        commands = _idle.get_nowait()
    except queue.Empty:
        commands = Commands()
    ended = commands.run(arguments, environment)
    _idle.put(commands)
    return ended


def _serve() -> None:
    import pipeline.assembly
    import pipeline.cli.worker  # noqa: F401 - what every command would import for itself

    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            _become(order)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(order: Mapping[str, object]) -> None:
    """Be that command, and end."""
    import signal

    from pipeline.cli import main

    folder = Path(str(order["folder"]))
    signal.alarm(LONGEST)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(order["environment"])  # type: ignore[call-overload]
    # What the interpreter would have looked at when it started.
    sys.path[1:1] = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.argv = ["pipeline", *order["arguments"]]  # type: ignore[misc]
    code: object = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - as the interpreter does, and nothing of the parent's code is run
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    _serve()
