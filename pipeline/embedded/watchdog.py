"""Stops one server when the process that started it has died, however it died.

Run as a script beside each server: `watchdog.py PARENT SERVER SIGNAL GRACE [FOLDER]`. It waits for the end
of its stdin, which the parent holds open, or for a new parent of its own (the pipe alone is not enough: a
forked child of the dead parent may hold it open too). Then the server gets SIGNAL, SIGKILL after GRACE
seconds, and FOLDER, when given, is removed. It ends by itself when the server has ended.

It is a session of its own, so a signal to the parent's process group does not reach it. It imports no
part of this package: a start costs 50 ms and some megabytes.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
from pathlib import Path

import psutil

_LOOK_EVERY = 0.5


def main(parent: int, server: psutil.Process, stop_signal: int, grace: float, folder: str | None) -> None:
    while server.is_running() and server.status() != psutil.STATUS_ZOMBIE and os.getppid() == parent:
        if select.select([sys.stdin], [], [], _LOOK_EVERY)[0]:
            break
    _end(server, stop_signal, grace)
    if folder and os.getppid() != parent:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            Path(folder).parent.rmdir()  # empty once the last server's folder is gone


def _end(server: psutil.Process, stop_signal: int, grace: float) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [server, *server.children(recursive=True)]
        for process in family:
            process.send_signal(signal.SIGCONT)
        server.send_signal(stop_signal)
        _, alive = psutil.wait_procs(family, timeout=grace)
        for process in alive:
            process.kill()


if __name__ == "__main__":
    _parent, _server, _signal, _grace = sys.argv[1:5]
    with contextlib.suppress(psutil.NoSuchProcess):
        main(
            int(_parent),
            psutil.Process(int(_server)),
            int(_signal),
            float(_grace),
            sys.argv[5] if len(sys.argv) > 5 else None,
        )
