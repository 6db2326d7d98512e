"""Records written straight to Kafka, as by somebody else's program."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing

from pipeline.adapters.kafka.config import producer_config
from pipeline.adapters.kafka.producer import KafkaJobProducer
from pipeline.core.job import Record, Source, new_job_id
from pipeline.core.ports import Outgoing
from tests.harness.jobs import Task
from tests.harness.world import World

__all__ = ["like", "sound_record", "write"]


def sound_record(world: World) -> Record:
    """A record as the publisher writes it, of a job that was published for that."""
    (job,) = world.publish(world.jobs.effect, [Task(name="sample")], tenant="sample")
    return next(
        record
        for record in world.records(job.topic)
        if (record.partition, record.offset) == (job.partition, job.offset)
    )


def like(sound: Record) -> Callable[..., Outgoing]:
    """Makes records like a sound one, but for its job id, and what the caller says: a value, headers with `__` for the dash."""

    def make(value: bytes | None = sound.value, **headers: bytes | None) -> Outgoing:
        changed = {"ce_id": new_job_id(now=1.0, entropy=os.urandom(10)).encode(), **headers}
        given = dict(sound.headers) | {name.replace("__", "-"): text for name, text in changed.items()}
        return Outgoing(sound.topic, sound.key, value, list(given.items()))

    return make


def write(world: World, records: Sequence[Outgoing]) -> list[Source]:
    """Where they lie."""
    with closing(KafkaJobProducer(producer_config(world.servers.bootstrap_servers))) as producer:
        ends = producer.send_all(records)
    assert [end.error for end in ends] == [None] * len(records)
    return [end.source for end in ends if end.source]
