"""The next record of a job: retry, dead letter, replay. Key and value are copied byte for byte."""

from __future__ import annotations

from pipeline.core import headers as h
from pipeline.core.decision import DeadLetter, RunLater
from pipeline.core.job import EPOCH_LIMIT, Job, Record
from pipeline.core.outcome import Failure, shorten
from pipeline.core.parked import PARKED
from pipeline.core.ports import Outgoing
from pipeline.runtime.delivery import Delivery

__all__ = ["dead_letter", "failing_since", "parked_letter", "replay_record", "retry_record", "waits_until"]

STARTED = h.FIRST + "started"  # when the first attempt began that failed
UNTIL = "pipeline-until"  # when the job is to run, if that is later than its record may wait in a topic

# A record must not grow with its hops: in headers only the first and the last error, and short ones.
MESSAGE_BYTES = 1_000
STACK_BYTES = 4_000
OURS = ("ce_", "pipeline-", h.CONTENT_TYPE, h.TRACEPARENT, h.SCHEMA_ID)


def retry_record(delivery: Delivery, decision: RunLater, *, topic: str, group: str, now: float) -> Outgoing:
    """A record for the retry topic, due at the decision's time."""
    job, record = delivery.job, delivery.record
    changes: dict[str, bytes | None] = {
        h.ATTEMPT: b"%d" % decision.attempt,
        h.HOP: b"%d" % (job.hop + 1),
        h.NOT_BEFORE: h.due_text(decision.due_at).encode(),
        UNTIL: h.due_text(decision.until).encode() if decision.until else None,
    }
    if decision.failure is not None:
        changes.update(_errors(delivery, decision.failure, group=group, now=now))
    return Outgoing(topic, record.key, record.value, h.forward_headers(record, changes))


def dead_letter(delivery: Delivery, decision: DeadLetter, *, topic: str, group: str, now: float) -> Outgoing:
    """A record for the DLQ. It carries usable identity headers even when the record itself had none."""
    job, record = delivery.job, delivery.record
    changes: dict[str, bytes | None] = {
        h.REASON: decision.reason.encode(),
        h.NOT_BEFORE: None,
        UNTIL: None,
        # Written anew, because the record's own may be missing, doubled or unreadable: a replay could not be recognised.
        h.ID: job.job_id.encode(),
        h.HOP: b"%d" % job.hop,
        h.ATTEMPT: b"%d" % job.attempt,  # of a job that was retried in place the record knows only the first
        **_errors(delivery, decision.failure, group=group, now=now),
    }
    return Outgoing(topic, record.key, record.value, h.forward_headers(record, changes))


def parked_letter(letter: Outgoing) -> Outgoing:
    """The letter of a record that is kept in the store: no payload, no stacks, no headers but our own, all of them short."""
    headers = [
        (name, value)
        for name, value in letter.headers
        if name.startswith(OURS)
        and not name.endswith("error-stack")
        and len(value or b"") <= MESSAGE_BYTES * 4
    ]
    return Outgoing(letter.topic, letter.key, b"", [*headers, (PARKED, b"true")])


def replay_record(letter: Record, job: Job, *, topic: str, drop: tuple[str, ...] = ()) -> Outgoing:
    """A record for the main topic: same id, key and bytes, attempts afresh, error headers gone, replays counted.

    `drop` are prefixes of more headers that tell of errors.
    """
    changes: dict[str, bytes | None] = {
        h.ATTEMPT: b"1",
        h.HOP: b"%d" % (job.hop + 1),
        h.REPLAYS: b"%d" % (job.replays + 1),
        h.NOT_BEFORE: None,
        UNTIL: None,
        h.REASON: None,
        PARKED: None,
    }
    headers = h.forward_headers(letter, changes, gone=_ERRORS, drop=(h.FIRST, h.LAST, *drop))
    return Outgoing(topic, letter.key, letter.value, headers)


def failing_since(record: Record) -> float:
    """When the first attempt began that failed, as its record tells; 0 when it does not."""
    return _time(record, STARTED)


def waits_until(record: Record) -> float:
    """When the job is to run, if its record says that it must wait on when it is due; else 0."""
    return _time(record, UNTIL)


def _time(record: Record, header: str) -> float:
    for name, value in record.headers:
        if name == header:
            try:
                moment = float(value or b"0")
            except ValueError:
                moment = 0.0
            return moment if 0.0 <= moment <= EPOCH_LIMIT else 0.0
    return 0.0


_FACTS = (
    "topic", "partition", "offset", "timestamp", "group", "at", "error-class", "error-message", "error-stack",
)  # fmt: skip
# Most headers of a letter are these: to know them by name takes half as long as to look at what each begins with.
_ERRORS = frozenset(prefix + fact for prefix in (h.FIRST, h.LAST) for fact in _FACTS)


def _errors(delivery: Delivery, failure: Failure, *, group: str, now: float) -> dict[str, bytes | None]:
    """`pipeline-last-*` now, and `pipeline-first-*` when the record has none yet."""
    record = delivery.record
    facts = {
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "timestamp": f"{record.timestamp:.3f}",
        "group": group,
        "at": f"{now:.3f}",
        "error-class": failure.error_class,
        "error-message": shorten(failure.message, MESSAGE_BYTES),
        "error-stack": shorten(failure.stack, STACK_BYTES),
    }
    values: dict[str, bytes | None] = {h.LAST + name: value.encode() for name, value in facts.items()}
    if not any(name.startswith(h.FIRST) for name, _ in record.headers):
        values.update({h.FIRST + name: value.encode() for name, value in facts.items()})
        values[STARTED] = f"{delivery.failing_since or now:.3f}".encode()
    return values
