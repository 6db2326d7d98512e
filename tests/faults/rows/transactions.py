"""Somebody else's producer writes jobs in transactions, and does not end them well."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from confluent_kafka import IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # exported, but not marked so

from pipeline.core.ports import Outgoing
from tests.faults.case import Case, scenario
from tests.harness.checks import assert_runs
from tests.harness.jobs import Task
from tests.harness.ledger import Acked
from tests.harness.raw import like, sound_record
from tests.harness.world import World

__all__: list[str] = []

TIMEOUT = 10.0  # of a transaction that nobody ends; the broker looks every 10 s


@scenario(39, "aborted")
def a_transaction_is_aborted(case: Case) -> None:
    """None of its records is ever run; all others are."""
    world = case.world()
    world.start_worker()
    with world.sampler() as sampler:
        sample = sound_record(world)
        with _producer(world, "first") as producer:
            given_up = _begin(producer, [like(sample)() for _ in range(5)])
            producer.abort_transaction(20)
            kept = _begin(producer, [like(sample)() for _ in range(5)])
            producer.commit_transaction(20)
        _note(world, kept)
        _the_rest_goes_on(case, world)
    _assert_never_run(world, given_up)
    case.judge_world(world, sampler)


@scenario(39, "timed out")
def a_transaction_times_out(case: Case) -> None:
    """Its partition is held up no longer than until then, and its late end is refused."""
    world = case.world()
    world.start_worker()
    with world.sampler() as sampler:
        sample = sound_record(world)
        with _producer(world, "slow") as producer:
            given_up = _begin(producer, [like(sample)() for _ in range(5)])
            began = time.monotonic()
            _the_rest_goes_on(case, world)
            case.figures.notes["seconds that a partition was held up"] = round(time.monotonic() - began, 1)
            with pytest.raises(KafkaException):
                producer.commit_transaction(20)
    _assert_never_run(world, given_up)
    case.judge_world(world, sampler)


@scenario(39, "fenced")
def a_producer_is_fenced_by_its_successor(case: Case) -> None:
    """What it had open is given up at once; what its successor commits is run."""
    world = case.world()
    world.start_worker()
    with world.sampler() as sampler:
        sample = sound_record(world)
        with _producer(world, "same") as old:
            given_up = _begin(old, [like(sample)() for _ in range(5)])
            with _producer(world, "same") as successor:
                kept = _begin(successor, [like(sample)() for _ in range(5)])
                successor.commit_transaction(20)
            _note(world, kept)
            _the_rest_goes_on(case, world)
    _assert_never_run(world, given_up)
    case.judge_world(world, sampler)


def _the_rest_goes_on(case: Case, world: World) -> None:
    """Jobs behind an open transaction are run, and no reader is kept from the end of the log."""
    jobs = world.publish(
        world.jobs.effect, [Task(name=f"beside-{n}") for n in range(case.scale.jobs // 10)], tenant="sample"
    )
    world.wait_ended(timeout=TIMEOUT + 60)
    # At the end of the log the marker of a transaction would count as a record that nobody has read.
    jobs += world.publish(world.jobs.effect, [Task(name="last")], tenant="sample")
    world.wait_ended()
    world.wait_committed()
    assert_runs(world, jobs)
    assert _ends(world, IsolationLevel.READ_COMMITTED) == _ends(world, IsolationLevel.READ_UNCOMMITTED)


def _ends(world: World, level: IsolationLevel) -> list[int]:
    """The last stable offset, or the high watermark, of each partition of the main topic."""
    client = AdminClient({"bootstrap.servers": world.servers.bootstrap_servers})
    topic = world.names.main("default")
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(topic, number): latest for number in range(3)}
    found = client.list_offsets(asked, isolation_level=level, request_timeout=10)
    return [found[TopicPartition(topic, number)].result().offset for number in range(3)]


@contextmanager
def _producer(world: World, name: str) -> Iterator[Producer]:
    producer = Producer(
        {
            "bootstrap.servers": world.servers.bootstrap_servers,
            "transactional.id": f"{world.name}.{name}",
            "transaction.timeout.ms": round(TIMEOUT * 1000),
            "partitioner": "murmur2_random",
            "log_level": 0,
        }
    )
    producer.init_transactions(20)
    yield producer
    producer.purge()


def _begin(producer: Producer, records: Sequence[Outgoing]) -> list[Acked]:
    """Write them in a transaction, and leave it open. Gives where they lie."""
    written: list[Acked] = []
    producer.begin_transaction()
    for record in records:
        job_id = (dict(record.headers)["ce_id"] or b"").decode()

        def note(error: object, message: object, job_id: str = job_id) -> None:
            assert error is None, error
            written.append(Acked(job_id, message.topic(), message.partition(), message.offset()))  # type: ignore[attr-defined]

        producer.produce(record.topic, record.value, record.key, headers=[*record.headers], on_delivery=note)
    producer.flush(20)
    assert len(written) == len(records)
    return written


def _note(world: World, kept: Sequence[Acked]) -> None:
    world.note_acked(kept)


def _assert_never_run(world: World, given_up: Sequence[Acked]) -> None:
    ids = {job.job_id for job in given_up}
    assert not ids & {run.job_id for run in world.executions()}
    assert not ids & world.states().keys()
