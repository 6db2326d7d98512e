"""How the interpreter is set for pipeline work. These settings are the whole process's: commands make them, and take them back."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

__all__ = ["tuned_interpreter"]

# New objects between two searches for cycles: 700 by default, which two jobs make. A worker holds thousands of jobs, none of
# them in a cycle, and looked through those that it had just taken in again and again: a fifth of its work.
COLLECT_AFTER = 100_000
COLLECT_OLDER_AFTER = (20, 100)  # searches of the young and of the middle ones
# How long a thread keeps the interpreter that others wait for: 5 ms by default. Threads that take turns in the midst of their
# batches find their data gone from the processor's cache. It is short of what anybody waits for.
SWITCH_SECONDS = 0.03


@contextlib.contextmanager
def tuned_interpreter(collect_after: int = COLLECT_AFTER) -> Iterator[None]:
    """For a process that runs a worker and little else, as `pipeline worker` does: about half as many short jobs again.

    with tuned_interpreter():
        app.worker().run()

    Meanwhile it looks for cycles of garbage after so many new objects, and not at all among what is there by now; and a thread
    keeps the interpreter for longer.
    """
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(collect_after, *COLLECT_OLDER_AFTER)
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
        gc.unfreeze()
