"""`pipeline topics`, as a process, on a real Kafka."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from pipeline.adapters.kafka.admin import KafkaAdmin
from pipeline.adapters.kafka.config import admin_config, producer_config
from pipeline.adapters.kafka.producer import KafkaJobProducer
from tests.contract.brokers import outgoing
from tests.servers import TestServers

pytestmark = pytest.mark.servers


class Command:
    """`pipeline` in a namespace of its own, on small topics."""

    def __init__(self, bootstrap: str, namespace: str) -> None:
        self.namespace = namespace
        self.environment = {
            **os.environ,
            "PIPELINE_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
            "PIPELINE_NAMESPACE": namespace,
            "PIPELINE_TOPICS__PARTITIONS": "2",
            "PIPELINE_TOPICS__EVENTS_PARTITIONS": "1",
            "PIPELINE_RETRY__TIERS": "10,60",
        }

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        run = "from pipeline.cli import main; main()"
        return subprocess.run(
            [sys.executable, "-c", run, *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def pipeline(servers: TestServers, unique: str) -> Iterator[Command]:
    yield Command(servers.bootstrap_servers, unique)
    names = ["default.normal", "default.retry.10s", "default.retry.1m", "default.dlq", "events", "schemas"]
    KafkaAdmin(admin_config(servers.bootstrap_servers)).delete([f"{unique}.{name}" for name in names])


def test_apply_creates_what_plan_announced_and_then_there_is_nothing_to_do(pipeline: Command) -> None:
    planned = pipeline("topics", "plan")
    assert planned.returncode == 0
    assert planned.stdout.count("+ ") == 6
    assert f"{pipeline.namespace}.default.retry.10s: create with 2 partitions" in planned.stdout
    assert "missing" in pipeline("topics", "describe").stdout
    applied = pipeline("topics", "apply")
    assert (applied.returncode, applied.stderr) == (0, "")
    assert "6 done" in applied.stdout
    for verb in ("plan", "apply"):
        again = pipeline("topics", verb)
        assert (again.returncode, again.stdout.strip()) == (0, "all 6 topics are as declared")
    described = pipeline("topics", "describe").stdout
    assert "missing" not in described
    assert f"{pipeline.namespace}.schemas" in described


def test_apply_refuses_what_would_shrink_and_does_the_rest(pipeline: Command) -> None:
    assert pipeline("topics", "apply").returncode == 0
    pipeline.environment["PIPELINE_TOPICS__PARTITIONS"] = "1"
    pipeline.environment["PIPELINE_TOPICS__MAX_MESSAGE_BYTES"] = "2000000"
    refused = pipeline("topics", "apply")
    assert refused.returncode == 1
    assert "declared with 1; Kafka cannot shrink a topic" in refused.stdout
    assert "pipeline: 4 of 10 changes were refused" in refused.stderr
    assert "max.message.bytes" not in pipeline("topics", "plan").stdout


def test_a_shorter_retention_and_more_partitions_need_to_be_allowed(
    servers: TestServers, pipeline: Command
) -> None:
    assert pipeline("topics", "apply").returncode == 0
    with closing(KafkaJobProducer(producer_config(servers.bootstrap_servers))) as sender:
        assert sender.send_all([outgoing(f"{pipeline.namespace}.default.normal")])[0].error is None
    pipeline.environment["PIPELINE_TOPICS__PARTITIONS"] = "3"
    pipeline.environment["PIPELINE_TOPICS__MAIN_RETENTION"] = "86400"
    refused = pipeline("topics", "apply")
    assert refused.returncode == 1
    assert "--allow partitions" in refused.stdout
    assert "--allow retention" in refused.stdout
    assert pipeline("topics", "apply", "--allow", "partitions", "--allow", "retention").returncode == 0
    assert "as declared" in pipeline("topics", "plan").stdout
    unknown = pipeline("topics", "apply", "--allow", "everything")
    assert unknown.returncode == 2
    assert "everything" in unknown.stderr


def test_without_a_broker_it_says_so_in_one_sentence(pipeline: Command) -> None:
    pipeline.environment["PIPELINE_KAFKA__BOOTSTRAP_SERVERS"] = "127.0.0.1:1"
    pipeline.environment["PIPELINE_KAFKA__REQUEST_TIMEOUT"] = "0.5"
    failed = pipeline("topics", "plan")
    assert failed.returncode == 1
    assert failed.stderr.startswith("pipeline: no answer from Kafka at 127.0.0.1:1 within 0.5 s")
    assert len(failed.stderr.splitlines()) == 1
