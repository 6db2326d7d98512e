"""The sections of the settings: every key, its default, its bounds and its meaning. Durations are in seconds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from pipeline.config.base import Clash, Numbers, Options, Section, allowed
from pipeline.core.topics import TopicSettings, tier_name

__all__ = [
    "KafkaSettings",
    "LogSettings",
    "PostgresSettings",
    "PublisherSettings",
    "RetrySettings",
    "SchemaRegistrySettings",
    "TopicsSettings",
]

DAY = 86_400.0
_SERVER = re.compile(r"([a-zA-Z_]+://)?(\[[0-9a-fA-F:]+\]|[^\s:/,\[\]]+)(:\d{1,5})?")
_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
_DSN = re.compile(r"postgres(ql)?://.+|\s*[a-z_]+\s*=.*", re.DOTALL)
_RETENTION = allowed("seconds, 1 or more, or -1 for ever")


def _check_retention(value: float) -> float:
    if value != -1 and value < 1:
        raise ValueError("too short")
    return value


Retention = Annotated[float, AfterValidator(_check_retention)]


class KafkaSettings(Section):
    """How to reach Kafka."""

    bootstrap_servers: str = Field(
        "127.0.0.1:9092",
        description="Brokers to ask first.",
        json_schema_extra=allowed("host:port, several separated by commas"),
    )
    group: str = Field(
        "",
        max_length=255,
        description="Consumer group of the workers; empty: `<namespace>.<queue>`.",
        json_schema_extra=allowed("text, at most 255 characters"),
    )
    request_timeout: float = Field(
        10.0, ge=0.1, le=600, description="How long a question to the cluster may take."
    )
    options: Options = Field(default={}, description="Handed to librdkafka as they are, for every client.")
    producer_options: Options = Field(
        default={}, description="The same, for producers only; wins over `options`."
    )
    consumer_options: Options = Field(
        default={}, description="The same, for consumers only; wins over `options`."
    )

    @field_validator("bootstrap_servers")
    @classmethod
    def _check_servers(cls, value: str) -> str:
        servers = [server.strip() for server in value.split(",")]
        if not all(_SERVER.fullmatch(server) for server in servers):
            raise ValueError("not host:port")
        return ",".join(servers)


class PostgresSettings(Section):
    """How to reach Postgres."""

    dsn: SecretStr = Field(
        SecretStr("postgresql://pipeline@127.0.0.1:5432/pipeline"),
        description="The database: a URL or a libpq connection string.",
        json_schema_extra=allowed("postgresql://user:password@host:port/database, or host=... dbname=..."),
    )
    schema_name: str = Field(
        "pipeline",
        description="Postgres schema that holds the tables.",
        json_schema_extra=allowed("a-z, 0-9 and '_', at most 63, not starting with a digit or 'pg_'"),
    )
    connect_timeout: float = Field(5.0, ge=0.1, le=600, description="How long connecting may take.")
    handler_idle_timeout: float = Field(
        60.0,
        ge=0.1,
        le=86_400,
        description="How long a handler may leave its `ctx.transaction()` idle before the server rolls it back: "
        "one in a frozen worker must not keep its locks.",
    )
    retention: Retention = Field(
        7 * DAY,
        description="How long jobs that have ended are remembered: a duplicate that comes later runs again. Workers delete older "
        "ones, bit by bit, and with them workers that are gone. Not shorter than main and retry topics keep records.",
        json_schema_extra=_RETENTION,
    )

    @field_validator("dsn")
    @classmethod
    def _check_dsn(cls, value: SecretStr) -> SecretStr:
        if not _DSN.fullmatch(value.get_secret_value()):
            raise ValueError("neither a URL nor a connection string")
        return value

    @field_validator("schema_name")
    @classmethod
    def _check_schema(cls, value: str) -> str:
        if not _SCHEMA.fullmatch(value):
            raise ValueError("not a plain name")
        return value


class TopicsSettings(Section):
    """What `pipeline topics apply` declares."""

    partitions: int = Field(12, ge=1, le=10_000, description="Partitions of main, retry and DLQ topics.")
    events_partitions: int = Field(6, ge=1, le=10_000, description="Partitions of the events topic.")
    replication: int = Field(1, ge=1, le=32, description="Replicas of each partition; 3 in production.")
    min_insync_replicas: int = Field(
        1,
        ge=1,
        le=32,
        description="Replicas that must have a record before it is acknowledged; 2 in production.",
    )
    max_message_bytes: int = Field(
        1_048_576, ge=1024, le=104_857_600, description="The largest record that a main topic takes."
    )
    main_retention: Retention = Field(
        7 * DAY, description="How long main topics keep records.", json_schema_extra=_RETENTION
    )
    retry_retention: Retention = Field(
        7 * DAY, description="How long retry topics keep records.", json_schema_extra=_RETENTION
    )
    dlq_retention: Retention = Field(
        30 * DAY, description="How long DLQ topics keep records.", json_schema_extra=_RETENTION
    )
    events_retention: Retention = Field(
        30 * DAY, description="How long the events topic keeps records.", json_schema_extra=_RETENTION
    )

    @model_validator(mode="after")
    def _check_replicas(self) -> TopicsSettings:
        if self.min_insync_replicas > self.replication:
            raise Clash(
                "topics.min_insync_replicas",
                self.min_insync_replicas,
                f"at most topics.replication, which is {self.replication}",
            )
        return self

    def to_core(self) -> TopicSettings:
        """The same for `pipeline.core.topics`, which counts as Kafka does: in milliseconds."""
        return TopicSettings(
            partitions=self.partitions,
            events_partitions=self.events_partitions,
            replication=self.replication,
            min_insync_replicas=self.min_insync_replicas,
            max_message_bytes=self.max_message_bytes,
            main_retention_ms=_millis(self.main_retention),
            retry_retention_ms=_millis(self.retry_retention),
            dlq_retention_ms=_millis(self.dlq_retention),
            events_retention_ms=_millis(self.events_retention),
        )


def _millis(seconds: float) -> int:
    return -1 if seconds == -1 else round(seconds * 1000)


class RetrySettings(Section):
    """The retry topics."""

    tiers: Numbers = Field(
        (10.0, 60.0, 600.0, 3600.0),
        description="Delays that have a retry topic of their own.",
        json_schema_extra=allowed("seconds, at least one, each above 0 and longer than the one before"),
    )
    outage_allowance: float = Field(
        DAY,
        ge=0,
        le=365 * DAY,
        description="How long all workers may be away without a waiting retry being deleted by its topic's retention.",
    )

    @field_validator("tiers")
    @classmethod
    def _check_tiers(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        names = [tier_name(tier) for tier in value]
        if not value or min(value) < 0.001 or list(value) != sorted(value) or len(set(names)) < len(names):
            raise ValueError("not ascending delays")
        return value


class PublisherSettings(Section):
    """Publishing."""

    timeout: float = Field(
        10.0, ge=0.1, le=3600, description="How long a publish waits for the broker's acknowledgement."
    )
    buffer_timeout: float = Field(
        5.0, ge=0, le=3600, description="How long a publish waits for room in a full local buffer."
    )
    linger_ms: float = Field(
        0,
        ge=0,
        le=10_000,
        description=(
            "How long a record waits for others to share its batch, in milliseconds. With 0 it leaves at once; what comes while "
            "others are on their way shares a batch all the same. Some milliseconds let one service publish more a second."
        ),
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field(
        "lz4", description="Compression of batches."
    )

    @model_validator(mode="after")
    def _check_linger(self) -> PublisherSettings:
        if self.linger_ms >= self.timeout * 1000:
            raise Clash(
                "publisher.linger_ms",
                self.linger_ms,
                f"less than publisher.timeout, which is {self.timeout} seconds",
            )
        return self


class SchemaRegistrySettings(Section):
    """A schema registry of the Confluent kind, so that outside tools can read the topics."""

    url: str = Field(
        "",
        description="Its address. With one, payloads get the registry's prefix instead of single-object encoding; both are always read.",
        json_schema_extra=allowed("http:// or https://, without user, password and query; or empty"),
    )
    username: str = Field("", description="For basic authentication.")
    password: SecretStr = Field(SecretStr(""), description="The same.")
    token: SecretStr = Field(SecretStr(""), description="For bearer authentication, instead of the two.")
    ca_file: Path | None = Field(
        None,
        description="Certificates to trust, in PEM; by default those of the system.",
        json_schema_extra=allowed("a path"),
    )
    timeout: float = Field(
        2.0,
        ge=0.1,
        le=60,
        description="How long a question to it may take; it is asked again after five times as long.",
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (
            parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment
        ):
            raise ValueError("not an address")
        if "@" in parts.netloc:
            raise ValueError("a password here would be shown")
        if parts.netloc:
            _ = parts.port  # raises a ValueError of its own
        return value

    @model_validator(mode="after")
    def _check_credentials(self) -> SchemaRegistrySettings:
        if self.username and self.token.get_secret_value():
            raise Clash("schema_registry.username", self.username, "none, as schema_registry.token is given")
        if self.password.get_secret_value() and not self.username:
            raise Clash(
                "schema_registry.username", self.username, "a name, as schema_registry.password is given"
            )
        return self


class LogSettings(Section):
    """The log, on standard error."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="The least level that is written."
    )
    format: Literal["json", "text"] = Field(
        "json", description="One JSON object a line, or lines for people."
    )
    moves: bool = Field(default=True, description="Write a line for each move of a job from state to state.")

    @field_validator("level", mode="before")
    @classmethod
    def _read_level(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value
