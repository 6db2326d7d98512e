"""The root of the settings, and what must hold between its sections."""

from __future__ import annotations

from contextvars import ContextVar
from pathlib import Path
from typing import Any

from pydantic import Field, PrivateAttr, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from pipeline.config.base import Clash, Names, allowed, checked_by
from pipeline.config.dlq import DlqSettings
from pipeline.config.sections import (
    KafkaSettings,
    LogSettings,
    PostgresSettings,
    PublisherSettings,
    RetrySettings,
    SchemaRegistrySettings,
    TopicsSettings,
)
from pipeline.config.worker_section import WorkerSettings
from pipeline.core.topics import check_name

__all__ = ["Settings", "active_layers"]

# What `load_settings` has read, most important first, as nested dicts.
active_layers: ContextVar[tuple[dict[str, Any], ...]] = ContextVar("active_layers", default=())


class Settings(BaseSettings):
    """All settings, frozen.

    `Settings(...)` takes only its arguments and defaults; `load_settings` also reads flags, environment and file.
    """

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False, validate_default=True
    )
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    namespace: str = Field(
        "jobs",
        description="First part of the name of every topic.",
        json_schema_extra=allowed("a-z, 0-9, '_' and '-', at most 63, starting with a letter or digit"),
    )
    schemas_dir: Path | None = Field(
        None,
        description="Folder with the Avro schemas; by default `schemas` where it exists, else those of the package.",
        json_schema_extra=allowed("a path"),
    )
    queues: Names = Field(
        ("default",),
        description="The queues that there are.",
        json_schema_extra=allowed(
            "names of a-z, 0-9, '_' and '-', at most 63 characters each, at least one name, none twice"
        ),
    )
    kafka: KafkaSettings = KafkaSettings()
    postgres: PostgresSettings = PostgresSettings()
    topics: TopicsSettings = TopicsSettings()
    retry: RetrySettings = RetrySettings()
    dlq: DlqSettings = DlqSettings()
    publisher: PublisherSettings = PublisherSettings()
    schema_registry: SchemaRegistrySettings = SchemaRegistrySettings()
    worker: WorkerSettings = WorkerSettings()
    log: LogSettings = LogSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read through our own layers, which refuse unknown keys and remember where a value came from."""
        del env_settings, dotenv_settings, file_secret_settings
        return (init_settings, *(InitSettingsSource(settings_cls, layer) for layer in active_layers.get()))

    @property
    def origins(self) -> dict[str, str]:
        """Where each value that is not a default came from: key -> `env PIPELINE_...`, `file ...` or `flag ...`."""
        return dict(self._origins)

    @field_validator("schemas_dir", mode="before")
    @classmethod
    def _refuse_empty_path(cls, value: object) -> object:
        if value == "":
            raise ValueError("an empty path would mean the working directory")
        return value

    @field_validator("namespace")
    @classmethod
    def _check_namespace(cls, value: str) -> str:
        return checked_by(check_name, "namespace", value)

    @field_validator("queues")
    @classmethod
    def _check_queues(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or len(set(value)) < len(value):
            raise ValueError("no name, or one twice")
        return tuple(checked_by(check_name, "queues", name) for name in value)

    @model_validator(mode="after")
    def _check_dlq_topics(self) -> Settings:
        for topic in self.dlq.topics:
            if topic in self.queues or topic.startswith(f"{self.namespace}."):
                raise Clash("dlq.topics", list(self.dlq.topics), "topics of others, none named as a queue")
        return self

    @model_validator(mode="after")
    def _check_tiers_outlive_outages(self) -> Settings:
        # A retry waits in its topic; were it deleted there before it is due and workers are back, the job would be lost.
        kept = self.topics.retry_retention
        longest = max(self.retry.tiers)
        if kept != -1 and longest > kept - self.retry.outage_allowance:
            raise Clash(
                "retry.tiers",
                list(self.retry.tiers),
                f"at most topics.retry_retention minus retry.outage_allowance, "
                f"which is {kept:g} - {self.retry.outage_allowance:g} = {kept - self.retry.outage_allowance:g}",
            )
        return self
