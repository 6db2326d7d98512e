"""Where a replayed letter goes, and the record that is written there. Key and value are those of the letter, byte for byte."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from pipeline.core import headers as h
from pipeline.core.dialects import Dialect, error_prefixes
from pipeline.core.letters import Letter
from pipeline.core.parked import PARKED, is_parked
from pipeline.core.ports import Outgoing, Parking
from pipeline.core.topics import PRIORITIES, TopicNames
from pipeline.errors import ConfigError, PipelineError
from pipeline.runtime.onward import replay_record

__all__ = ["LETTER", "LetterGone", "Targets", "letter_mark", "main_topics", "outgoing", "whole"]

LETTER = "pipeline-letter"  # on a record of others that was replayed: which letter it comes from


class LetterGone(PipelineError):
    """A letter refers to a record that is kept in the store, and the store does not have it."""


def main_topics(names: TopicNames, declared: Collection[str]) -> list[str]:
    """Those of the declared topics that workers take jobs from."""
    return sorted(name for name in declared if names.queue_of(name) and name.rpartition(".")[2] in PRIORITIES)


class Targets:
    """Which topic a letter is replayed to.

    `declared` are the topics there are, `letters` the DLQ topics, `to` is one for all letters. Raises `ConfigError` when
    `to` is no main topic.
    """

    def __init__(
        self, *, names: TopicNames, declared: Collection[str], letters: Collection[str], to: str = ""
    ) -> None:
        main = main_topics(names, declared)
        if to and to not in main:
            raise ConfigError(f"--to is {to!r}; allowed: a main topic, which are {', '.join(main)}")
        self._names = names
        self._main = frozenset(main)
        self._letters = frozenset(letters)
        self._to = to
        self.of = lru_cache(maxsize=1024)(self._of)  # asked for each letter: there are few answers

    def _of(self, queue: str, priority: str, origin: str) -> str:
        """Empty for a letter of others that came from nowhere, or from a DLQ topic: it would come right back."""
        if self._to:
            return self._to
        if origin:
            return "" if origin in self._letters else origin
        for topic in (self._names.main(queue, priority), self._names.main(queue)):
            if topic in self._main:
                return topic
        return ""


def whole(letter: Letter, parking: Parking) -> Letter:
    """The letter itself; one that only refers to a record that was too large, with that record.

    Raises `LetterGone`, `StoreUnavailable`.
    """
    if not is_parked(letter.record):
        return letter
    parked = parking.load(letter.job.job_id, letter.job.hop)
    if parked is None:
        raise LetterGone(f"job {letter.job.job_id}: its record was too large, and is not in the store")
    kept = parked.record
    place = (letter.record.topic, letter.record.partition, letter.record.offset)
    record = kept._replace(topic=place[0], partition=place[1], offset=place[2])
    return letter._replace(record=record, job=parked.job._replace(hop=letter.job.hop))


def outgoing(letter: Letter, *, topic: str, value: bytes | None = None) -> Outgoing:
    """The record of a replay; with another payload where `value` is given."""
    record = _ours(letter, topic) if letter.is_ours else _theirs(letter, topic)
    if value is None:
        return record
    # The new payload names its schema in front of it.
    headers = [each for each in record.headers if each[0] != h.SCHEMA_ID]
    return record._replace(value=value, headers=headers)


def _ours(letter: Letter, topic: str) -> Outgoing:
    drop = () if letter.dialect is Dialect.PIPELINE else error_prefixes(letter.dialect)
    return replay_record(letter.record, letter.job, topic=topic, drop=drop)


def _theirs(letter: Letter, topic: str) -> Outgoing:
    """No job of ours comes with it: nothing is added but what tells a second replay from the first."""
    changes: dict[str, bytes | None] = {
        h.REPLAYS: b"%d" % (letter.job.replays + 1),
        LETTER: letter_mark(letter.job.queue, *letter.position),
        PARKED: None,
    }
    headers = h.forward_headers(letter.record, changes, drop=error_prefixes(letter.dialect))
    return Outgoing(topic, letter.record.key, letter.record.value, headers)


def letter_mark(queue: str, partition: int, offset: int) -> bytes:
    """What `LETTER` says."""
    return f"{queue} {partition}:{offset}".encode()
