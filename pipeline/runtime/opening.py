"""Readies a claimed job to run: finds its handler, decodes its payload.

Decoding runs code of the application (validators, upcasters), so a job that is suspected of killing its process is opened
in the child that runs it, like everything else about it.
"""

from __future__ import annotations

from pipeline.core.outcome import OUTAGE_SNOOZE, Failed, Failure, Outcome, Rejected, Snoozed, describe_failure
from pipeline.core.ports import Codec
from pipeline.errors import BrokerUnavailable, PayloadError, RegistryUnavailable, UnknownWriterSchema
from pipeline.runtime.delivery import Delivery
from pipeline.runtime.handlers import Registry

__all__ = ["decode_payload", "find_handler"]


def find_handler(delivery: Delivery, registry: Registry) -> Outcome | None:
    """Set the handler; an outcome when there is none, or the record is malformed."""
    if delivery.problem:
        return Rejected(Failure("MalformedRecord", delivery.problem), "malformed")
    delivery.handler = registry.handler(delivery.job.job_type)
    if delivery.handler is None:
        # A newer publisher: the job goes round until a worker that has the handler meets it.
        return Failed(_no_handler(delivery, registry), reason="unknown_job_type")
    return None


def decode_payload(delivery: Delivery, codec: Codec) -> Outcome | None:
    """Set the payload; an outcome when it cannot be decoded: its bytes stay untouched."""
    job = delivery.job
    try:
        delivery.payload = codec.decode(job.job_type, delivery.record.value or b"", job.schema_id)
    except (BrokerUnavailable, RegistryUnavailable):
        # Where its schema would be looked up is away, which is not the job's fault: no attempt is burnt.
        return Snoozed(after=OUTAGE_SNOOZE, until=None)
    except UnknownWriterSchema as error:
        # A newer publisher again: another worker, or this one after its upgrade, may know the schema.
        return Failed(describe_failure(error), reason="unknown_schema")
    except PayloadError as error:
        return Rejected(describe_failure(error), "undecodable")
    return None


def _no_handler(delivery: Delivery, registry: Registry) -> Failure:
    known = ", ".join(sorted(handler.job_type.name for handler in registry.handlers()))
    return Failure(
        "UnknownJobType", f"no handler for job type {delivery.job.job_type!r}; this worker has: {known}"
    )
