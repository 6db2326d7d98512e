"""The faults that the pipeline must stand, by number."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["MATRIX", "MISSING", "QUICK_ROWS", "Fault", "NotHere"]


class Fault(NamedTuple):
    """One line of the matrix. `quick`: it has a place in `make test`."""

    number: int
    text: str
    quick: bool


class NotHere(Exception):
    """What a scenario raises that this machine cannot run, with the reason."""


QUICK_ROWS = frozenset({1, 2, 3, 4, 8, 9, 10, 11, 21, 24, 27, 28, 29, 30, 31, 33, 38})

# Rows without a scenario, and why.
MISSING: dict[int, str] = {
    33: "there is no scheduler yet",
    34: "there is no scheduler yet",
}

_TEXTS = (
    "kill -9 in the middle of a handler",
    "kill -9 after the effect, before the completion",
    "kill -9 after the completion, before the offset commit",
    "a handler kills its process: segmentation fault, exit, memory limit",
    "a handler hangs and does not mind being cancelled",
    "a handler is slower than max.poll.interval.ms",
    "the poll loop is blocked for longer than max.poll.interval.ms",
    "a worker is frozen past its lease and session, and thawed",
    "SIGTERM with work in flight, with a handler longer than the grace time, and twice",
    "SIGTERM or kill -9 during the publish of a retry",
    "the broker restarts, in order and after kill -9",
    "the broker is down",
    "the broker is frozen",
    "the leader of partitions is killed, three brokers",
    "fewer brokers than min.insync.replicas",
    "the coordinator of the group is lost",
    "a worker is cut off from Kafka only",
    "connections are reset in the middle of a request; the link is slow",
    "members join and leave all the time",
    "the broker's disk is full",
    "Postgres restarts, fast and immediately",
    "Postgres is down",
    "the connections of Postgres are exhausted",
    "a connection is cut in a transaction and at COMMIT",
    "deadlock, serialization failure, lock wait, read-only server",
    "a worker is cut off from Postgres only",
    "an error that cannot be written down: no text, no pickle, 10 MB of text",
    "a record too large for its next topic, or the topic cannot be written",
    "an unknown schema; the registry is away; old and new schemas side by side",
    "truncated, trailing and random bytes among good records",
    "corrupted headers",
    "the clock of one process is off by two hours, or jumps",
    "two schedulers at once; the leader killed between claim and publish",
    "the scheduler is down over due ticks",
    "a retry topic keeps its records for less than its delay, or than an outage",
    "the committed offset is out of range, or expired",
    "a topic is deleted; partitions are added",
    "a replay of dead letters is killed halfway, run again, run twice at once",
    "a transaction is aborted, times out, or its producer is fenced",
    "a dependency is down; overload; one heavy tenant",
)

MATRIX = {number: Fault(number, text, number in QUICK_ROWS) for number, text in enumerate(_TEXTS, 1)}
