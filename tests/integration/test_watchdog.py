"""A partition that Kafka's client has lost, for real: paused behind the worker's back, on real servers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pydantic import BaseModel

from pipeline import Pipeline, Settings, load_settings
from pipeline.adapters.kafka.admin import KafkaAdmin
from pipeline.adapters.kafka.config import consumer_config
from pipeline.adapters.kafka.consumer import KafkaJobConsumer
from pipeline.adapters.kafka.probe import KafkaProbe
from pipeline.adapters.postgres import migrate
from pipeline.core.offsets import Partition
from pipeline.core.topics import TopicSpec
from pipeline.errors import BrokerUnavailable
from pipeline.runtime.worker import Worker
from tests.harness.waiting import wait_until
from tests.servers import TestServers

pytestmark = pytest.mark.servers
TENANTS = [f"tenant-{number}" for number in range(12)]


class Note(BaseModel):
    text: str


class Stage:
    """A worker in this process, whose client is within reach."""

    def __init__(self, settings: Settings) -> None:
        self.app = Pipeline(settings)
        self.note = self.app.job_type("note.take", Note)
        self.seen: list[str] = []
        self.taken_at: dict[str, float] = {}
        self.app.handler(self.note)(self._take)
        self.metrics = self.app.metrics()
        self.worker: Worker = self.app.worker(metrics=self.metrics)
        self.code: int | None = None
        self._thread = threading.Thread(target=self._run)

    def _take(self, note: Note) -> None:
        self.taken_at[note.text] = time.time()
        self.seen.append(note.text)

    def _run(self) -> None:
        self.code = self.worker.run()

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout: float = 40) -> int:
        self._thread.join(timeout)
        assert self.code is not None, "the worker did not end"
        return self.code

    def stop(self) -> int:
        self.worker.stop()
        return self.join()

    def publish(self, text: str) -> dict[int, list[str]]:
        """A job for every tenant, and so for every partition; their texts by partition."""
        with self.app.publisher() as publisher:
            published = [
                (publisher.publish(self.note, Note(text=f"{text}-{tenant}"), tenant=tenant), tenant)
                for tenant in TENANTS
            ]
        texts: dict[int, list[str]] = {}
        for each, tenant in published:
            texts.setdefault(each.partition, []).append(f"{text}-{tenant}")
        return texts

    def client(self) -> Consumer:
        """The client that reads the main topics. There is no other way to break it for real than from inside."""
        member = self.worker._parts.consumer._first  # type: ignore[attr-defined]
        client: Consumer = member._consumer
        return client

    def wedge(self, partition: int) -> None:
        """Pause a partition without the worker's knowing."""
        self.client().pause([TopicPartition(self.app.names.main("default"), partition)])


@pytest.fixture
def stage(servers: TestServers, unique: str, tmp_path: Path) -> Iterator[Stage]:
    folder = tmp_path / "schemas" / "note.take"
    folder.mkdir(parents=True)
    (folder / "v1.avsc").write_text(
        '{"type": "record", "name": "Note", "fields": [{"name": "text", "type": "string"}]}'
    )
    settings = load_settings(
        {
            "namespace": unique,
            "schemas_dir": str(tmp_path / "schemas"),
            "kafka.bootstrap_servers": servers.bootstrap_servers,
            "postgres.dsn": servers.postgres_dsn,
            "postgres.schema_name": unique,
            "topics.partitions": "3",
            "worker.stuck_after": "2",
            "worker.session_timeout": "6",
            "worker.commit_interval": "0.2",
            "log.moves": "false",
        },
        environ={},
    )
    stage = Stage(settings)
    admin = KafkaAdmin(stage.app.admin_config())
    admin.create(stage.app.topics())
    migrate(servers.postgres_dsn, schema=unique)
    yield stage
    if stage._thread.is_alive():
        stage.stop()
    admin.delete([spec.name for spec in stage.app.topics()])


def told(caplog: pytest.LogCaptureFixture, action: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if getattr(record, "action", "") == action]


def test_a_stuck_partition_is_told_of_and_read_again_after_joining_anew(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.start()
    first = stage.publish("first")
    wait_until(lambda: len(stage.seen) == 12, "the first jobs are done")
    wedged = min(first)
    stage.wedge(wedged)
    second = stage.publish("second")
    others = {text for partition, texts in second.items() if partition != wedged for text in texts}
    wait_until(lambda: others <= set(stage.seen), "the other partitions go on")
    wait_until(lambda: len(set(stage.seen)) == 24, "the jobs of the stuck partition are done, too")
    assert len(stage.seen) == 24, "a job has run twice"
    (record,) = told(caplog, "partitions_stuck")
    assert all(stage.taken_at[text] > record.created for text in second[wedged]), "it was not stuck"
    assert [name.rsplit("@")[0] for name in record.__dict__["records"]] == [
        f"{stage.app.names.main('default')}/{wedged}"
    ]
    assert b'pipeline_partitions_stuck_total{queue="default"} 1.0' in stage.metrics.exposition()
    wait_until(lambda: stage.worker.unready()["partitions"] == "", "it is ready again")
    stage.publish("third")
    wait_until(lambda: len(stage.seen) == 36, "all goes on")
    assert stage.stop() == 0


def test_a_worker_whose_partition_stays_stuck_leaves_with_exit_code_1(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage.start()
    first = stage.publish("first")
    wait_until(lambda: len(stage.seen) == 12, "the first jobs are done")
    wedged = min(first)
    assign: Callable[..., None] = KafkaJobConsumer._on_assign

    def wedge_again(self: KafkaJobConsumer, consumer: Consumer, given: list[TopicPartition]) -> None:
        assign(self, consumer, given)
        consumer.pause([each for each in given if each.partition == wedged])

    monkeypatch.setattr(KafkaJobConsumer, "_on_assign", wedge_again)
    stage.wedge(wedged)
    second = stage.publish("second")
    wait_until(lambda: told(caplog, "rejoined"), "it joins anew")
    assert "nothing comes from" in stage.worker.unready()["partitions"]
    assert stage.join() == 1
    assert len(told(caplog, "partitions_stuck")) == 2
    assert "also after joining the group anew" in told(caplog, "failed")[0].getMessage()
    assert len(stage.seen) == 24 - len(second[wedged])
    assert set(second[wedged]).isdisjoint(stage.seen)


def test_long_jobs_and_idle_partitions_are_not_taken_for_stuck_ones(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def take(note: Note) -> None:
        assert go_on.wait(60)
        stage.seen.append(note.text)

    stage.app.registry._handlers.clear()
    stage.app.handler(stage.note)(take)
    looked: list[object] = []
    readable = KafkaProbe.readable

    def noted(self: KafkaProbe, positions: dict[Partition, int | None]) -> dict[Partition, int]:
        found = readable(self, positions)
        looked.append(positions)
        return found

    monkeypatch.setattr(KafkaProbe, "readable", noted)
    stage.start()
    stage.publish("long")
    wait_until(lambda: len(looked) >= 3, "it has looked three times", timeout=60)
    assert told(caplog, "partitions_stuck") == []
    go_on.set()
    wait_until(lambda: len(stage.seen) == 12, "the long jobs are done")
    assert stage.stop() == 0


class TestProbe:
    @pytest.fixture
    def topic(self, servers: TestServers, unique: str) -> Iterator[str]:
        admin = KafkaAdmin({"bootstrap.servers": servers.bootstrap_servers})
        admin.create([TopicSpec(unique, 2, 1)])
        yield unique
        admin.delete([unique])

    @pytest.fixture
    def probe(self, servers: TestServers, unique: str) -> KafkaProbe:
        config = consumer_config(
            servers.bootstrap_servers, group=unique, protocol="consumer", static_member_id="one"
        )
        return KafkaProbe(config, timeout=5)

    @staticmethod
    def produce(
        servers: TestServers, topic: str, *, transactional: bool = False, commit: bool = True
    ) -> None:
        options = {"transactional.id": f"{topic}-writer"} if transactional else {}
        producer = Producer({"bootstrap.servers": servers.bootstrap_servers, **options})
        if transactional:
            producer.init_transactions(10)
            producer.begin_transaction()
        producer.produce(topic, b"value", partition=0)
        producer.flush(10)
        if transactional:
            (producer.commit_transaction if commit else producer.abort_transaction)(10)

    def test_it_finds_the_first_record_from_a_position_on(
        self, servers: TestServers, topic: str, probe: KafkaProbe
    ) -> None:
        p0, p1 = Partition(topic, 0), Partition(topic, 1)
        assert probe.readable({p0: None, p1: None}) == {}
        for _ in range(3):
            self.produce(servers, topic)
        assert probe.readable({p0: None, p1: None}) == {p0: 0}
        assert probe.readable({p0: 2, p1: 0}) == {p0: 2}
        assert probe.readable({p0: 3, p1: 0}) == {}

    def test_it_begins_where_the_group_has_committed(
        self, servers: TestServers, topic: str, probe: KafkaProbe
    ) -> None:
        for _ in range(3):
            self.produce(servers, topic)
        member = Consumer({"bootstrap.servers": servers.bootstrap_servers, "group.id": topic})
        member.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
        member.close()
        assert probe.readable({Partition(topic, 0): None}) == {Partition(topic, 0): 2}

    def test_the_marker_of_a_transaction_is_no_record(
        self, servers: TestServers, topic: str, probe: KafkaProbe
    ) -> None:
        self.produce(servers, topic, transactional=True)
        assert probe.readable({Partition(topic, 0): 1}) == {}
        self.produce(servers, topic, transactional=True, commit=False)
        assert probe.readable({Partition(topic, 0): 2}) == {}

    def test_an_absent_broker_is_told(self) -> None:
        probe = KafkaProbe(consumer_config("127.0.0.1:1", group="nobody"), timeout=1)
        with pytest.raises(BrokerUnavailable):
            probe.readable({Partition("jobs", 0): None})
