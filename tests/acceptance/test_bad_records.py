"""Records that nobody can run, between others that everybody can."""

from __future__ import annotations

import os
from contextlib import closing

import pytest

from pipeline.adapters.kafka.config import producer_config
from pipeline.adapters.kafka.producer import KafkaJobProducer
from pipeline.core.job import Record, Source, new_job_id
from pipeline.core.ports import Outgoing
from tests.harness.checks import assert_clean_end, assert_nothing_lost, assert_one_effect_each, assert_runs
from tests.harness.jobs import Task
from tests.harness.world import World

pytestmark = pytest.mark.servers

NOISE = bytes(reversed(range(256)))  # a low first byte could announce the id of a schema
CHANGING = ("pipeline-attempt", "pipeline-hop", "pipeline-not-before")
Headers = list[tuple[str, bytes | None]]


def test_what_cannot_be_read_rests_in_the_dlq_with_its_bytes_untouched_and_its_neighbours_are_done(
    world: World,
) -> None:
    before = world.publish(world.jobs.effect, [Task(name=f"before-{n}") for n in range(9)])
    sample = world.records(world.names.main("default"))[0]
    bad = _bad_records(sample)
    places = _write(world, list(bad.values()))
    after = world.publish(world.jobs.effect, [Task(name=f"after-{n}") for n in range(9)])
    world.start_worker()
    world.wait_ended()
    world.wait("every bad record is buried", lambda: len(world.letters()) >= len(bad))
    world.wait_committed()
    letters = {_origin(letter): letter for letter in world.letters()}
    assert letters.keys() == set(places)
    for place, (name, record) in zip(places, bad.items(), strict=True):
        _assert_buried(name, record, letters[place])
    assert_runs(world, before + after)
    assert_one_effect_each(world, before + after)
    assert_nothing_lost(world)
    assert_clean_end(world)


def _bad_records(sound: Record) -> dict[str, Outgoing]:
    """By the reason that the DLQ must give and what is wrong: a record like a sound one, but for one thing."""
    value = sound.value or b""

    def like(new_value: bytes | None = value, **headers: bytes | None) -> Outgoing:
        changed = {"ce_id": new_job_id(now=1.0, entropy=os.urandom(10)).encode(), **headers}
        given = dict(sound.headers) | {name.replace("__", "-"): text for name, text in changed.items()}
        return Outgoing(sound.topic, sound.key, new_value, list(given.items()))

    without_tenant = like()
    without_tenant.headers[:] = [pair for pair in without_tenant.headers if pair[0] != "pipeline-tenant"]
    twice = like()
    twice.headers.append(("pipeline-attempt", b"2"))
    return {
        "undecodable: random bytes": like(NOISE),
        "undecodable: nothing": like(None),
        "undecodable: cut short": like(value[:-1]),
        "undecodable: one byte too many": like(value + b"\x00"),
        "unknown_schema: an id that nobody knows": like(b"\x00\x00\x00\x00\x07" + value),
        "malformed: no headers at all": Outgoing(sound.topic, sound.key, NOISE, []),
        "malformed: attempt is no number": like(pipeline__attempt=b"many"),
        "malformed: attempt is negative": like(pipeline__attempt=b"-1"),
        "malformed: attempt is huge": like(pipeline__attempt=b"9" * 30),
        "malformed: attempt is given twice": twice,
        "malformed: no tenant": without_tenant,
        "malformed: id is none": like(ce_id=b"\xff\xfe"),
        "malformed: due after the end of time": like(pipeline__not__before=b"1e300"),
    }


def _write(world: World, records: list[Outgoing]) -> list[Source]:
    with closing(KafkaJobProducer(producer_config(world.servers.bootstrap_servers))) as producer:
        ends = producer.send_all(records)
    assert [end.error for end in ends] == [None] * len(records)
    return [end.source for end in ends if end.source]


def _origin(letter: Record) -> Source:
    """Where the record lay that the letter was at first."""
    headers = {name: (value or b"").decode() for name, value in letter.headers}
    topic, partition, offset = (
        headers[f"pipeline-first-{part}"] for part in ("topic", "partition", "offset")
    )
    return Source(topic, int(partition), int(offset))


def _assert_buried(name: str, record: Outgoing, letter: Record) -> None:
    reason, _, _ = name.partition(":")
    headers = dict(letter.headers)
    assert headers["pipeline-reason"] == reason.encode(), f"{name}: {letter}"
    assert headers["pipeline-last-error-message"], name
    assert (letter.key, letter.value) == (record.key, record.value), name
    assert _kept(record.headers) <= set(letter.headers), f"{name}: {letter}"


def _kept(headers: Headers) -> set[tuple[str, bytes | None]]:
    """What a letter must still have: all but what changes from hop to hop."""
    return {pair for pair in headers if pair[0] not in ("ce_id", *CHANGING)}
