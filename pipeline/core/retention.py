"""Whether topics keep records for as long as jobs wait in them, and what has become of a group's place in its log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from pipeline.core.offsets import Gap, Partition
from pipeline.core.plan import TopicState

__all__ = ["Kept", "Loss", "losses", "overtaken", "too_short", "worth_a_warning"]

FOR_EVER = -1


def too_short(state: TopicState, *, wait: float | None, outage: float) -> str:
    """Say why no worker may read a topic in which jobs wait for up to `wait` seconds; the empty string when one may.

    For `outage` seconds all workers may be away without a record being deleted that waits there. None: its jobs never wait,
    and how long it keeps them is the user's choice.
    """
    policy = state.config.get("cleanup.policy", "delete")
    if "compact" in policy.split(","):
        return f"topic {state.name} has cleanup.policy {policy}, which drops all but the last job of a tenant; allowed: delete"
    kept = _number(state.config.get("retention.ms", ""))
    if wait is None:
        return ""
    needed = round((wait + outage) * 1000)
    if kept is None or kept == FOR_EVER or kept >= needed:
        return ""
    return (
        f"topic {state.name} keeps records for {kept / 1000:g} s, and its jobs may wait {wait:g} s, and through an outage of "
        f"{outage:g} s (retry.outage_allowance): they would be deleted before they ran; allowed: retention.ms of at least {needed}, "
        f"or -1. `pipeline topics plan` shows what differs from the settings"
    )


def worth_a_warning(state: TopicState) -> str:
    """Say what may delete waiting jobs although the time is long enough; the empty string when nothing does."""
    limit = _number(state.config.get("retention.bytes", ""))
    if limit is None or limit == FOR_EVER:
        return ""
    return f"topic {state.name} has retention.bytes {limit}: under a burst it deletes jobs however long they may wait; -1 does not"


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


class Kept(NamedTuple):
    """What a partition holds: offsets from `start` to before `end`, and what a group has committed, if anything."""

    start: int
    end: int
    committed: int | None


class Loss(NamedTuple):
    """What is wrong with a group's place in a partition. `records` is how many are gone for certain, 0 when nobody can tell."""

    partition: Partition
    records: int
    sentence: str


def losses(found: Mapping[Partition, Kept]) -> Iterator[Loss]:
    """Where a group's next record is not there any more. Reading goes on at the first one that is: nothing is skipped beyond."""
    for partition, (start, end, committed) in found.items():
        name = f"{partition.topic}/{partition.number}"
        if committed is None:
            if start > 0:
                yield Loss(
                    partition,
                    0,
                    f"{name} begins at offset {start}, and the group has committed nothing there: what it never read before that is gone",
                )
        elif committed < start:
            gone = start - committed
            yield Loss(
                partition,
                gone,
                f"{gone} records of {name} were deleted by its retention before their jobs had ended (offsets {committed} to {start - 1}): "
                "these jobs are lost; reading goes on at the first one that is left",
            )
        elif committed > end:
            yield Loss(
                partition,
                0,
                f"the group has committed offset {committed} of {name}, which ends at {end}: the topic was made anew or has lost its end; "
                "it is read from its beginning, and jobs that have run are recognised",
            )


def overtaken(gaps: Iterable[Gap], starts: Mapping[Partition, int]) -> Iterator[Loss]:
    """Gaps that retention made: their partition begins beyond their start. `starts` are the first offsets that there are."""
    for partition, start, end in gaps:
        stop = min(end, starts.get(partition, 0))
        if stop > start:
            yield Loss(
                partition,
                stop - start,
                f"{stop - start} records of {partition.topic}/{partition.number} were deleted by its retention before they were read "
                f"(offsets {start} to {stop - 1}): their jobs are lost",
            )
