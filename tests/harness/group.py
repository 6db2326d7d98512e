"""Who has which partitions, as the workers of a group tell it."""

from __future__ import annotations

from collections.abc import Sequence

from tests.harness.processes import WorkerProcess
from tests.harness.world import World

__all__ = ["named", "owned", "rebalances", "wait_shared"]


def named(entries: Sequence[dict[str, object]]) -> set[str]:
    """The partitions that lines of a log tell of."""
    return {name for entry in entries for name in entry["partitions"]}  # type: ignore[attr-defined]


def owned(worker: WorkerProcess) -> set[str]:
    """The partitions that it has now."""
    found: set[str] = set()
    entries = [*worker.said("assigned"), *worker.said("revoked")]
    for entry in sorted(entries, key=lambda entry: str(entry["ts"])):
        found = found | named([entry]) if entry["action"] == "assigned" else found - named([entry])
    return found


def rebalances(workers: Sequence[WorkerProcess]) -> list[int]:
    """How often partitions were given to each, and taken from it."""
    return [len(worker.said(action)) for worker in workers for action in ("assigned", "revoked", "lost")]


def wait_shared(world: World, *workers: WorkerProcess) -> None:
    """Each has some partitions of main topics and some of retry topics, and together they have them all."""
    wanted = {f"{place.topic}/{place.number}" for place in world.admin.end_offsets(world.topics)}

    def is_shared() -> bool:
        shares = [owned(worker) for worker in workers]
        kinds = [{".normal/" in name for name in share} for share in shares]
        return set().union(*shares) == wanted and all(kind == {True, False} for kind in kinds)

    world.wait("they share all partitions", is_shared)
