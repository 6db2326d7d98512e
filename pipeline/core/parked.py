"""Records that Kafka would not take as the next record of their job: kept whole in the store, named in the DLQ by a small one."""

from __future__ import annotations

from typing import NamedTuple

from pipeline.core.job import Job, Record

__all__ = ["PARKED", "ParkedRecord", "is_parked"]

PARKED = "pipeline-parked"  # the header of a letter whose record is in the store


class ParkedRecord(NamedTuple):
    """A record as it was fetched, untouched, of the job that died at `job.hop` for `reason`."""

    job: Job
    record: Record
    reason: str


def is_parked(letter: Record) -> bool:
    """Whether the letter only refers to a record in the store, found there by its job id and hop."""
    return (PARKED, b"true") in letter.headers
