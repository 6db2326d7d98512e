"""Dead letters, made as the worker makes them."""

from __future__ import annotations

import uuid
from typing import Any

from pipeline.core.decision import DeadLetter
from pipeline.core.headers import job_headers
from pipeline.core.job import Job, Record
from pipeline.core.letters import Letter, read_letter
from pipeline.core.offsets import Partition
from pipeline.core.outcome import Failure
from pipeline.core.state import Trigger
from pipeline.runtime.delivery import Delivery
from pipeline.runtime.onward import dead_letter

NOW = 1_800_000_000.0
MAIN = "jobs.default.normal"
DLQ = "jobs.default.dlq"
BOOM = Failure("ValueError", "boom", '  File "handlers.py", line 3, in handle\n')


def job_id(number: int) -> str:
    return str(uuid.UUID(int=number))


def dead_record(
    *,
    number: int = 1,
    offset: int = 0,
    partition: int = 0,
    value: bytes | None = b"payload",
    reason: str = "max_attempts",
    failure: Failure = BOOM,
    died_at: float = NOW,
    extra: list[tuple[str, bytes | None]] | None = None,
    **job: Any,
) -> Record:
    """The record of a letter in the DLQ topic of the default queue."""
    dead = Job(
        **{"job_id": job_id(number), "job_type": "email.send", "tenant": "acme", "queue": "default", **job}
    )
    headers = [*job_headers(dead, ce_time="2027-01-15T07:00:00+00:00"), *(extra or [])]
    if dead.replays:
        headers.append(("pipeline-replays", b"%d" % dead.replays))
    source = Record(MAIN, 2, 40 + offset, b"acme", value, headers, died_at - 60)
    decision = DeadLetter(reason, failure, (Trigger.ERROR, Trigger.REJECTED))
    delivery = Delivery(source, Partition(MAIN, 2), dead, "")
    written = dead_letter(delivery, decision, topic=DLQ, group="jobs.default", now=died_at)
    return Record(DLQ, partition, offset, written.key, written.value, written.headers, died_at + 1)


def letter(**given: Any) -> Letter:
    return read_letter(dead_record(**given), queue="default")
