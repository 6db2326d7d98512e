"""Every error of this package. One root, `PipelineError`; foreign errors are translated at the adapters.

A message names the thing that is wrong, its value and what is allowed. Secrets and payloads never
appear in one.
"""

from __future__ import annotations

__all__ = [
    "BrokerUnavailable",
    "ClaimLost",
    "ConfigError",
    "DatabaseNotMigrated",
    "EmbeddedError",
    "InvalidJob",
    "JobNotFound",
    "PartitionStuck",
    "PayloadError",
    "PayloadTooLarge",
    "PipelineError",
    "PublishFailed",
    "PublishUnknown",
    "RegistryUnavailable",
    "SchemaError",
    "StoreUnavailable",
    "TopicsError",
    "TopicsMissing",
    "UnknownJobType",
    "UnknownQueue",
    "UnknownWriterSchema",
]


class PipelineError(Exception):
    """The root of every error that this package raises."""


class ConfigError(PipelineError):
    """A setting is wrong. The message names the key, the value and what is allowed."""


class InvalidJob(PipelineError):
    """A job cannot be published: its tenant, payload or options are wrong. Nothing was sent."""


class UnknownJobType(InvalidJob):
    """No job type of that name is declared in this application."""


class UnknownQueue(InvalidJob):
    """No queue of that name is configured."""


class PayloadTooLarge(InvalidJob):
    """The encoded job is larger than the broker accepts. Nothing was sent."""


class PublishFailed(PipelineError):
    """The broker refused a job or could not be reached in time. The job is not in the log."""


class PublishUnknown(PublishFailed):
    """The broker did not answer in time: the job may or may not be in the log.

    Publishing again with the same job id or idempotency key is safe.
    """


class BrokerUnavailable(PipelineError):
    """Kafka could not be reached within the time given."""


class TopicsMissing(PipelineError):
    """Topics that are needed do not exist. `pipeline topics apply` creates them."""


class TopicsError(PipelineError):
    """The topics differ from their declaration in a way that cannot be applied safely."""


class PartitionStuck(PipelineError):
    """Records are there, and Kafka's client does not give them, even after the worker has joined its group anew."""


class StoreUnavailable(PipelineError):
    """Postgres could not be reached, or the connection broke: the outcome of the call is unknown."""


class RegistryUnavailable(PipelineError):
    """The schema registry could not be reached, or does not answer as one: whether it has a schema is not known."""


class ClaimLost(PipelineError):
    """The worker does not hold the job any more: another run has it, or has finished it."""


class DatabaseNotMigrated(PipelineError):
    """The database lacks migrations, or has others than this release. `pipeline db migrate` applies them."""


class JobNotFound(PipelineError):
    """The store knows no job of that id."""


class SchemaError(PipelineError):
    """A job type's Avro schemas are missing or do not fit its payload model."""


class PayloadError(PipelineError):
    """A payload cannot be decoded: bad framing, broken Avro or a value that the model refuses."""


class UnknownWriterSchema(PayloadError):
    """A payload was written with a schema that this process does not know (a newer publisher, perhaps)."""


class EmbeddedError(PipelineError):
    """The embedded Kafka or Postgres could not be installed or started. The message says what to do."""
