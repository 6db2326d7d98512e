"""When a process that ended is started again: at once-ish at first, then later and later, until one lives for a while."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RestartPolicy", "Restarts"]

_MOST_DOUBLINGS = 32


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """Seconds: the first wait is `base`, each further one twice the one before, at most `cap`.

    A process that lived for `settled_after` has settled: the next wait is the first one again.
    """

    base: float = 0.5
    cap: float = 30.0
    settled_after: float = 60.0


class Restarts:
    """The waits of one process and its replacements."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._in_a_row = 0

    def wait_after(self, lived: float) -> float:
        """How long to wait before the process is started again that lived for `lived` seconds."""
        policy = self._policy
        if lived >= policy.settled_after:
            self._in_a_row = 0
        wait = min(policy.cap, policy.base * 2.0 ** min(self._in_a_row, _MOST_DOUBLINGS))
        self._in_a_row += 1
        return wait
