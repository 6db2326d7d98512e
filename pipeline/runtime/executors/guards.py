"""What a child process does about its parent, about signals and about memory, before it runs anything of a user."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from pathlib import Path
from types import FrameType

__all__ = ["die_with_parent", "end_family", "limit_memory", "offer_to_be_killed_first", "wait_out_signals"]

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends, where the kernel can (Linux).

    The end of the pipe tells a child the same, but not while a handler keeps the interpreter for itself.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_out_signals() -> None:
    """Leave it to the parent when to stop. No `SIG_IGN`: programs that a handler starts would inherit that."""

    def ignore(_number: int, _frame: FrameType | None) -> None:
        pass

    signal.signal(signal.SIGINT, ignore)
    signal.signal(signal.SIGTERM, ignore)


def offer_to_be_killed_first() -> None:
    """When the machine runs out of memory, this process goes rather than its worker."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def limit_memory(megabytes: int) -> None:
    """Let allocations fail beyond so much: heap and stacks on Linux, the whole address space elsewhere."""
    kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    limit = megabytes * 1_000_000
    _, most = resource.getrlimit(kind)
    if most != resource.RLIM_INFINITY:
        limit = min(limit, most)
    resource.setrlimit(kind, (limit, limit))


def end_family() -> None:
    """End this process and what it started, now."""
    os.killpg(os.getpgrp(), signal.SIGKILL)
