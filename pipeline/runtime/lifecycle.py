"""When a worker process shall end: signals (the first asks it to drain, the second to leave at once), and its supervisor's end."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["drain_with_parent", "stop_on_signals"]

_LOOK_EVERY = 0.5


_STOPS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at each SIGTERM and SIGINT until the block ends; what handled them before is put back then.

    Only in the main thread. `stop` is called from a thread of its own: a signal handler runs between two bytecodes of the
    main thread, which may hold just then the very lock that `stop` takes.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    thread = threading.Thread(target=_call_at, args=(stop, reader), name="signals", daemon=True)
    thread.start()
    before = {number: signal.signal(number, _note) for number in _STOPS}
    formerly = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(formerly)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writer)
        thread.join()
        os.close(reader)


def _note(_number: int, _frame: FrameType | None) -> None:
    """The interpreter has written the signal's number to the pipe already."""


def _call_at(stop: Callable[[], None], reader: int) -> None:
    while number := os.read(reader, 1):
        if number[0] in _STOPS:
            stop()


@contextmanager
def drain_with_parent(drain: Callable[[], None]) -> Iterator[None]:
    """Call `drain`, from a thread, once stdin has ended (a pipe that the supervisor holds open) or the parent has died.

    The pipe alone is not enough: a process that the dead parent had forked may hold it open, too. Stdin is empty from here
    on, so that no handler and no child process can take the pipe's end away.
    """
    parent = os.getppid()
    pipe = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    ended = threading.Event()

    def watch() -> None:
        while os.getppid() == parent and not select.select([pipe], [], [], _LOOK_EVERY)[0]:
            if ended.is_set():
                return
        drain()

    threading.Thread(target=watch, name="parent", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
