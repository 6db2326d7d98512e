"""A Kafka-based partitioned work pipeline: services publish jobs, workers run them, nothing accepted is ever lost.

Everything in `__all__` is documented, typed and stable; the rest is private.
"""

from __future__ import annotations

from pipeline.app import Pipeline
from pipeline.config import Settings, load_settings
from pipeline.core.backoff import Backoff, RetryPolicy
from pipeline.core.breaker import Breaker
from pipeline.core.job_type import JobType
from pipeline.core.outcome import Cancel, Reject, Retry, Snooze
from pipeline.errors import (
    BrokerUnavailable,
    ConfigError,
    DatabaseNotMigrated,
    InvalidJob,
    PayloadError,
    PayloadTooLarge,
    PipelineError,
    PublishFailed,
    PublishUnknown,
    RegistryUnavailable,
    SchemaError,
    StoreUnavailable,
    TopicsMissing,
    UnknownJobType,
    UnknownQueue,
)
from pipeline.runtime.context import Context
from pipeline.runtime.interpreter import tuned_interpreter
from pipeline.runtime.publisher import BulkResult, JobRequest, Published, Publisher, Refused

__all__ = [
    "Backoff",
    "Breaker",
    "BrokerUnavailable",
    "BulkResult",
    "Cancel",
    "ConfigError",
    "Context",
    "DatabaseNotMigrated",
    "InvalidJob",
    "JobRequest",
    "JobType",
    "PayloadError",
    "PayloadTooLarge",
    "Pipeline",
    "PipelineError",
    "PublishFailed",
    "PublishUnknown",
    "Published",
    "Publisher",
    "Refused",
    "RegistryUnavailable",
    "Reject",
    "Retry",
    "RetryPolicy",
    "SchemaError",
    "Settings",
    "Snooze",
    "StoreUnavailable",
    "TopicsMissing",
    "UnknownJobType",
    "UnknownQueue",
    "load_settings",
    "tuned_interpreter",
]
