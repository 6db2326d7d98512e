"""The product with one of its protections taken out: `python -m tests.faults.mutants NAME worker MODULE:APP`.

Each is a patch of the running process; nothing of it is in the product. A patch that finds nothing to take out fails, so a
protection that was moved or renamed is noticed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.adapters.kafka import config as kafka_config
from pipeline.adapters.kafka.consumer import KafkaJobConsumer
from pipeline.adapters.postgres import completing
from pipeline.adapters.postgres.queries import QUERIES
from pipeline.core.decision import Decision, RunLater, decide
from pipeline.core.desk import Outcome, Step
from pipeline.core.letter_facts import LetterState
from pipeline.core.offsets import OffsetTracker, Partition
from pipeline.core.ports import Outgoing
from pipeline.runtime import retention, settler
from pipeline.runtime.breakers import Breakers
from pipeline.runtime.dlq_doubt import Doubts
from pipeline.runtime.dlq_replay import _Run
from pipeline.runtime.events import EventSink
from pipeline.runtime.next_records import NextRecords
from pipeline.runtime.onward import dead_letter

__all__ = ["MARK", "MUTANTS", "Mutant", "restore"]

MARK = "mutated"  # a file in the folder of the world, once the patch was made


class Mutant(NamedTuple):
    """`caught_by` begins the name of a scenario that fails when the protection is gone.

    `in_driver`: the patch is for the publisher of the scenario itself, not for workers.
    """

    name: str
    protection: str
    caught_by: str
    patch: Callable[[], None]
    in_driver: bool


MUTANTS: dict[str, Mutant] = {}


_undo: list[Callable[[], None]] = []


def restore() -> None:
    """Put back all that was patched in this process."""
    while _undo:
        _undo.pop()()


def _mutant(
    protection: str, *, caught_by: str, in_driver: bool = False
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def register(patch: Callable[[], None]) -> Callable[[], None]:
        name = patch.__name__.removeprefix("_")
        MUTANTS[name] = Mutant(name, protection, caught_by, patch, in_driver)
        return patch

    return register


def _replace(statement: str, old: str, new: str) -> None:
    """Change a statement of the store, wherever it is kept."""
    before = QUERIES[statement]
    assert old in before.decode(), f"{statement} has no {old!r}"
    QUERIES[statement] = before.decode().replace(old, new).encode()
    _undo.append(partial(QUERIES.__setitem__, statement, before))
    for module in [
        each for name, each in sys.modules.items() if name.startswith("pipeline.adapters.postgres")
    ]:
        for name in [name for name, value in vars(module).items() if value is before]:
            _set(module, name, QUERIES[statement])


def _set(owner: Any, name: str, value: object) -> None:
    assert hasattr(owner, name), f"{owner} has no {name}"
    _undo.append(partial(setattr, owner, name, getattr(owner, name)))
    setattr(owner, name, value)


@_mutant("a settle holds only under the token of its claim", caught_by="8-a_frozen_worker")
def _fencing() -> None:
    held = "and j.token = r.token and j.worker_id = %(worker)s and j.state = 'running'"
    for statement in ("settle_completed", "settle_any"):
        _replace(statement, held, "")


@_mutant(
    "an effect commits together with the completion of its job, or not at all", caught_by="8-a_frozen_worker"
)
def _fencing_of_effects() -> None:
    held = "and token = %(token)s and worker_id = %(worker)s and state = 'running'"
    assert held in completing._COMPLETE
    _set(completing, "_COMPLETE", completing._COMPLETE.replace(held, ""))


@_mutant("a completed job is not granted again", caught_by="3-a_worker_is_killed")
def _duplicates() -> None:
    _grant_completed()


def _grant_completed() -> None:
    """Told as a retry, or the table of transitions would refuse it and end the worker."""
    _replace("claim", "else false\n        end", "else true\n        end")
    _replace("claim", "previous_state = j.state", "previous_state = 'retrying'")


@_mutant("the next record is acknowledged before the state moves", caught_by="10-a_worker_is_killed_before")
def _settle_order() -> None:
    def write(self: NextRecords, items: Iterable[Any]) -> tuple[list[Any], list[Any]]:
        for item in items:
            if item.next_record is not None:
                self._producer.send(item.next_record)
                item.next_record = None
        return list(items), []

    _set(NextRecords, "write", write)


@_mutant("only what lies before the first unfinished job is committed", caught_by="1-a_worker_is_killed")
def _contiguous_offsets() -> None:
    done = OffsetTracker.done

    def done_whatever_is_open(self: OffsetTracker, partition: Partition, offset: int, epoch: int) -> bool:
        held = done(self, partition, offset, epoch)
        tracked = self._partitions.get(partition)
        if tracked is not None:
            tracked.next_offset = max(tracked.next_offset or 0, offset + 1)
        return held

    _set(OffsetTracker, "done", done_whatever_is_open)


@_mutant("nothing is committed for partitions that have moved on", caught_by="8-a_frozen_worker")
def _commit_guard() -> None:
    _set(OffsetTracker, "drop", lambda _self, _partitions: None)

    def commit(self: KafkaJobConsumer, offsets: dict[Partition, int], *, wait: bool) -> bool:
        self._assigned |= offsets.keys()
        return guarded(self, offsets, wait=wait)

    guarded = KafkaJobConsumer.commit
    _set(KafkaJobConsumer, "commit", commit)


@_mutant(
    "each hop of a job runs once, and none before the one it has come to", caught_by="38-a_killed_replay"
)
def _hops() -> None:
    _replace("claim", "excluded.hop >= j.hop", "true")
    _replace("claim", "when 'dead' then excluded.hop > j.hop", "when 'dead' then true")


@_mutant("a letter that was replayed is not replayed again", caught_by="38-replays_of_letters")
def _letter_marks() -> None:
    def unmarked(self: _Run, outcomes: Sequence[Outcome]) -> Step:
        return step(self, [each for each in outcomes if each.state is not LetterState.REPLAYED])

    step = _Run._step
    _set(_Run, "_step", unmarked)


@_mutant("letters of others that may have been sent are looked for", caught_by="38-replays_of_letters")
def _letters_in_hand() -> None:
    _set(Doubts, "_sent_since", lambda *_: {})


@_mutant("offsets are committed after the events of their jobs", caught_by="3-events_are_held_back")
def _events_first() -> None:
    _set(EventSink, "acknowledged", lambda *_args, **_options: True)


@_mutant("what ran on a worker that died is suspected", caught_by="4-handlers_kill")
def _suspects() -> None:
    _replace("claim", "then coalesce(j.crashes, 0) else j.crashes", "then j.crashes else j.crashes")


@_mutant("a retry waits for its time", caught_by="21-postgres_restarts")
def _waits() -> None:
    def at_once(*args: Any, **options: Any) -> Decision:
        decided = decide(*args, **options)
        return decided._replace(due_at=0.0) if isinstance(decided, RunLater) else decided

    _set(settler, "decide", at_once)


@_mutant("a dead letter has the bytes of its record", caught_by="30-payloads")
def _letter_bytes() -> None:
    def empty_letter(*args: Any, **options: Any) -> Outgoing:
        return dead_letter(*args, **options)._replace(value=b"")

    _set(settler, "dead_letter", empty_letter)


@_mutant("no worker reads a topic that deletes waiting jobs", caught_by="35-a_retry_topic_keeps")
def _retention() -> None:
    _set(retention, "too_short", lambda *_args, **_options: "")


@_mutant("expired records are told", caught_by="36-the_committed_offset_has_expired")
def _expiry() -> None:
    _set(retention, "losses", lambda _: iter(()))


@_mutant("records that expire under a reader are told", caught_by="36-records_expire_before")
def _gaps() -> None:
    _set(retention, "overtaken", lambda *_: iter(()))


@_mutant("records of aborted transactions are not read", caught_by="39-a_transaction_is_aborted")
def _committed_records_only() -> None:
    _set(kafka_config, "_CONSUMER", {**kafka_config._CONSUMER, "isolation.level": "read_uncommitted"})


@_mutant("an open breaker lets one job through at a time", caught_by="40-a_dependency_is_down")
def _breaker() -> None:
    _set(Breakers, "admit", lambda _self, taken: taken)


@_mutant("a publish is acknowledged by all copies in sync", caught_by="15-too_few_brokers", in_driver=True)
def _all_copies() -> None:
    weak = {"acks": "1", "enable.idempotence": "false"}
    _set(kafka_config, "_PRODUCER", {**kafka_config._PRODUCER, **weak})


def main() -> None:
    """Patch, then be the product."""
    MUTANTS[sys.argv.pop(1)].patch()
    Path(os.environ["HARNESS_FOLDER"], MARK).touch()
    from pipeline.cli import main as product

    product()


if __name__ == "__main__":
    main()
