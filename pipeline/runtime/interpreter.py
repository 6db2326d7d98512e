"""How the interpreter is set for pipeline work. These settings are the whole process's: commands make them, and take them back."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

__all__ = ["few_collections", "tuned_interpreter"]

# New objects between two searches for cycles: 700 by default, which two jobs make. A worker holds thousands of jobs, none of
# them in a cycle, and looked through those that it had just taken in again and again: a fifth of its work.
COLLECT_AFTER = 5_000
COLLECT_OLDER_AFTER = (20, 100)  # searches of the young and of the middle ones
# How long a thread keeps the interpreter that others wait for: 5 ms by default. Threads that take turns in the midst of their
# batches find their data gone from the processor's cache. It is short of what anybody waits for.
SWITCH_SECONDS = 0.02


@contextlib.contextmanager
def few_collections(after: int = COLLECT_AFTER) -> Iterator[None]:
    """Meanwhile this process looks for cycles of garbage less often, and not at all among what is there by now.

    `after` is how many new objects make it look.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(after, *COLLECT_OLDER_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@contextlib.contextmanager
def tuned_interpreter() -> Iterator[None]:
    """For a process that runs a worker and little else, as `pipeline worker` does: about half as much again of short jobs.

    with tuned_interpreter():
        app.worker().run()
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        with few_collections():
            yield
    finally:
        sys.setswitchinterval(before)
