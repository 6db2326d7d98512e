"""The section `worker` of the settings. Durations are in seconds."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from pipeline.config.base import Clash, Section, allowed

__all__ = ["WorkerSettings"]

_MEMBER = re.compile(r"[a-zA-Z0-9._-]+")


class WorkerSettings(Section):
    """A worker process."""

    concurrency: int = Field(16, ge=1, le=1024, description="Threads for handlers that are plain functions.")
    async_concurrency: int = Field(
        100, ge=1, le=100_000, description="`async` handlers running at the same time."
    )
    process_concurrency: int = Field(
        0,
        ge=0,
        le=1024,
        description="Child processes for handlers of job types that run in a process; 0: one for each core.",
    )
    process_max_jobs: int = Field(
        10_000, ge=1, le=1_000_000_000, description="A child process is replaced after so many jobs."
    )
    process_memory_mb: int = Field(
        0,
        ge=0,
        le=16_777_216,
        description="Memory that a child process may have, itself included; 0: no limit. A job that needs more has crashed.",
    )
    suspect_concurrency: int = Field(
        4,
        ge=1,
        le=1024,
        description="Jobs of workers that died which run at the same time, each alone in a child process.",
    )
    buffer_jobs: int = Field(
        5000, ge=1, le=1_000_000, description="Fetched jobs that may wait for a free slot."
    )
    buffer_mb: float = Field(
        64.0,
        ge=0.1,
        le=65_536,
        description="The same in megabytes. As much again may be not due yet, and as much wait for its key.",
    )
    delay_buffer_jobs: int = Field(
        20_000,
        ge=1,
        le=10_000_000,
        description="Jobs that are not due yet and wait in memory; beyond that only retry partitions stop that hold "
        "more than their share. As many may wait for their key.",
    )
    ahead_max: int = Field(
        200_000,
        ge=1,
        le=100_000_000,
        description="Records fetched from a partition from its first unfinished job on; then it waits for that job.",
    )
    batch_max: int = Field(500, ge=1, le=10_000, description="Jobs claimed or settled by one statement.")
    poll_batch: int = Field(1000, ge=1, le=100_000, description="Records taken from the client by one poll.")
    commit_interval: float = Field(1.0, ge=0.01, le=600, description="How often offsets are committed.")
    drain_timeout: float = Field(
        25.0, ge=0, le=86_400, description="How long running jobs may take to finish after SIGTERM."
    )
    revoke_timeout: float = Field(
        5.0,
        ge=0,
        le=3600,
        description="How long running jobs may take to finish when their partition is taken away.",
    )
    lease: float = Field(
        10.0, ge=0.1, le=3600, description="A worker without a heartbeat for so long counts as dead."
    )
    heartbeat_interval: float = Field(
        3.0, ge=0.01, le=1200, description="How often a worker renews its lease; at most a third of it."
    )
    held_recheck: float = Field(
        1.0, ge=0.01, le=600, description="How soon a job that a live worker holds is looked at again."
    )
    rebalance_protocol: Literal["cooperative-sticky", "range", "consumer"] = Field(
        "cooperative-sticky",
        description="How the group shares partitions: a strategy of the classic protocol, or `consumer` (KIP-848, Kafka 4).",
    )
    static_member_id: str = Field(
        "",
        max_length=200,
        description="Makes this worker a static member of its group: back within the session timeout, it finds its partitions "
        "as they were. Another one for each worker.",
        json_schema_extra=allowed("a-z, A-Z, 0-9, '.', '_' and '-', at most 200; empty: none"),
    )
    session_timeout: float = Field(
        8.0,
        ge=0.1,
        le=3600,
        description="The group gives a silent worker's partitions to others after so long. With `consumer` the broker decides.",
    )
    max_poll_interval: float = Field(
        300.0, ge=1, le=86_400, description="The group does the same with a worker that has stopped polling."
    )
    stuck_after: float = Field(
        60.0,
        ge=1,
        le=86_400,
        description="A partition that has records and gives none for so long is stuck: the worker joins the group anew.",
    )
    http_host: str = Field("127.0.0.1", min_length=1, description="Address of /metrics, /livez and /readyz.")
    http_port: int | None = Field(
        9464,
        ge=0,
        le=65_535,
        description="Port of the same.",
        json_schema_extra=allowed("0 to 65535 (0: any free one), or 'off'"),
    )

    @field_validator("static_member_id")
    @classmethod
    def _check_member_id(cls, value: str) -> str:
        if value and not _MEMBER.fullmatch(value):
            raise ValueError("other characters than those")
        return value

    @field_validator("http_port", mode="before")
    @classmethod
    def _read_off(cls, value: object) -> object:
        return None if value in ("off", -1, "-1") else value

    @model_validator(mode="after")
    def _check_times(self) -> WorkerSettings:
        if self.heartbeat_interval * 3 > self.lease * (1 + 1e-9):
            raise Clash(
                "worker.heartbeat_interval",
                self.heartbeat_interval,
                f"at most a third of worker.lease, which is {self.lease}",
            )
        if self.session_timeout > self.max_poll_interval:
            raise Clash(
                "worker.session_timeout",
                self.session_timeout,
                f"at most worker.max_poll_interval, which is {self.max_poll_interval}",
            )
        if self.revoke_timeout >= self.max_poll_interval:  # nothing is polled meanwhile
            raise Clash(
                "worker.revoke_timeout",
                self.revoke_timeout,
                f"less than worker.max_poll_interval, which is {self.max_poll_interval}",
            )
        return self
