"""The section of the settings that the dead-letter desk reads."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from pipeline.config.base import Names, Section, allowed

__all__ = ["DlqSettings"]

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


class DlqSettings(Section):
    """Dead letters."""

    max_replays: int = Field(
        5, ge=1, le=1_000_000, description="A letter that was replayed so often is parked instead."
    )
    max_lag: int = Field(
        10_000,
        ge=0,
        le=1_000_000_000,
        description="A replay holds back while the workers of its target are so many records behind; 0: never.",
    )
    topics: Names = Field(
        (),
        description="Dead-letter topics of others, Spring Kafka's or Kafka Connect's, that the desk looks at as well.",
        json_schema_extra=allowed("names of topics, none twice"),
    )

    @field_validator("topics")
    @classmethod
    def _check_topics(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value) or not all(map(_TOPIC.fullmatch, value)):
            raise ValueError("not a topic, or one twice")
        return value
