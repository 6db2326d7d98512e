"""Settings: read once at the start, by `load_settings`; everything else receives values.

A value comes from the first of these that has it: a flag (`--set kafka.group=x`), the environment
(`PIPELINE_KAFKA__GROUP=x`), the file `pipeline.toml`, the default. Whatever cannot be right is refused with its key,
its value, where it came from and what is allowed; so is a key that does not exist.
"""

from __future__ import annotations

from pipeline.config.keys import SettingKey, setting_keys
from pipeline.config.load import load_settings
from pipeline.config.masking import mask_dsn, show
from pipeline.config.sections import (
    KafkaSettings,
    LogSettings,
    PostgresSettings,
    PublisherSettings,
    RetrySettings,
    SchemaRegistrySettings,
    TopicsSettings,
)
from pipeline.config.settings import Settings
from pipeline.config.worker_section import WorkerSettings

__all__ = [
    "KafkaSettings",
    "LogSettings",
    "PostgresSettings",
    "PublisherSettings",
    "RetrySettings",
    "SchemaRegistrySettings",
    "SettingKey",
    "Settings",
    "TopicsSettings",
    "WorkerSettings",
    "load_settings",
    "mask_dsn",
    "setting_keys",
    "show",
]
