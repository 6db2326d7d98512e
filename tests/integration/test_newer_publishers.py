"""A publisher that is newer than the workers, without a registry: its schema is found in the topic, or the job waits."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.core import headers as h
from pipeline.core.job import Job
from pipeline.core.ports import Outgoing
from pipeline.core.state import JobState
from tests.harness.newer import Versions
from tests.harness.processes import ROOT
from tests.harness.raw import write
from tests.harness.versions import GREET
from tests.harness.world import World
from tests.servers import TestServers

pytestmark = pytest.mark.servers


@pytest.fixture
def versions(servers: TestServers, tmp_path: Path) -> Iterator[Versions]:
    with World(servers, tmp_path) as world:
        yield Versions(world)


def test_an_older_worker_runs_the_jobs_of_a_newer_publisher_at_once(versions: Versions) -> None:
    jobs = versions.publish(3, {"name": "Ann", "greeting": "hi", "tone": "warm"}, {"name": "Bo"})
    versions.start_worker(2)
    first, second = versions.wait_greeted(jobs)
    assert first["payload"] == {"name": "Ann", "greeting": "hi"}
    assert second["payload"] == {"name": "Bo", "greeting": "hello"}
    assert (first["attempt"], second["attempt"]) == (1, 1)


def test_a_version_that_appears_while_the_worker_runs_is_found_too(versions: Versions) -> None:
    versions.start_worker(1)
    for version in (1, 2, 3):
        (entry,) = versions.wait_greeted(versions.publish(version, {"name": f"v{version}"}))
        assert (entry["payload"], entry["attempt"]) == ({"name": f"v{version}"}, 1)


def test_a_publisher_writes_each_schema_before_its_first_job_and_only_once(versions: Versions) -> None:
    world = versions.world
    with versions.publisher(3) as publisher:
        for name in ("Ann", "Bo", "Cy"):
            publisher.publish(GREET, {"name": name}, tenant="acme")
    (schema,) = world.records(world.names.schemas)
    jobs = world.records(world.names.main("default"))
    assert len(jobs) == 3
    assert all(schema.timestamp <= job.timestamp for job in jobs)
    assert {(job.value or b"")[2:10] for job in jobs} == {schema.key}
    text = (Path(versions.schemas(3)) / GREET / "v3.avsc").read_text()
    assert schema.value == text.encode()
    assert dict(schema.headers) == {"pipeline-job-type": GREET.encode(), "pipeline-schema-version": b"3"}


def test_a_schema_that_is_nowhere_costs_attempts_then_rests_in_the_dlq_and_a_replay_after_the_upgrade_succeeds(
    versions: Versions,
) -> None:
    world = versions.world
    # As from a publisher of another kind, which tells nobody of its schema.
    value = versions.encode(3, {"name": "Ann", "greeting": "hi", "tone": "warm"})
    job_id = "0198c1d2-0000-7000-8000-000000000001"
    job = Job(job_id, GREET, "acme", "default", enqueued_at=time.time())
    _send(world, value, h.job_headers(job, ce_time=""))
    old = versions.start_worker(2)
    neighbours = versions.publish(2, *({"name": f"neighbour {number}"} for number in range(20)))
    versions.wait_greeted(neighbours)
    world.wait("the job is dead", lambda: world.states().get(job_id) is JobState.DEAD)
    (letter,) = world.letters()
    story = dict(letter.headers)
    assert letter.value == value
    assert story[h.REASON] == b"unknown_schema"
    assert story[h.ATTEMPT] == b"2"
    assert b"which is not known here: by a newer publisher?" in (story["pipeline-last-error-message"] or b"")
    assert old.stop() == 0
    versions.start_worker(3)
    replayed = world.cli("dlq", "replay", "--all", "--execute", settings=versions.settings(3))
    assert replayed.code == 0, replayed.err
    (entry,) = versions.wait_greeted([job_id])
    assert entry["payload"] == {"name": "Ann", "greeting": "hi", "tone": "warm"}


def _send(world: World, value: bytes, headers: h.HeaderList) -> None:
    write(world, [Outgoing(world.names.main("default"), b"acme", value, headers)])


def test_what_waits_in_the_topics_is_checked_before_a_deployment(versions: Versions) -> None:
    world = versions.world
    versions.publish(2, {"name": "Ann"})
    versions.publish(3, {"name": "Bo"}, {"name": "Cy"})
    fine = world.cli("schemas", "check", "--against-live", settings=versions.settings(2))
    assert fine.code == 0, fine.out + fine.err
    assert f"1 waiting: {GREET}, schema" in fine.out
    assert f"2 waiting: {GREET}, schema" in fine.out
    changed = Path(versions.schemas(2)) / GREET / "v2.avsc"
    schema = json.loads(changed.read_text())
    schema["fields"][1] = {"name": "greeting", "type": "long", "default": 0}
    changed.write_text(json.dumps(schema))
    refused = world.cli(
        "schemas",
        "check",
        "--against-live",
        "--dir",
        str(changed.parents[1]),
        settings={"schemas_dir": changed.parents[1]},
    )
    assert refused.code == 1
    assert "[live-version]" in refused.out
    assert "greeting" in refused.out


def test_the_console_shows_jobs_of_every_version_decoded(versions: Versions) -> None:
    world = versions.world
    versions.publish(2, {"name": "Ann"})
    versions.publish(3, {"name": "Bo", "tone": "warm"})
    topic = world.names.main("default")
    _send(
        world,
        b'{"name": "raw"}',
        [(n, v) for n, v in world.records(topic)[0].headers if n != h.TENANT] + [(h.TENANT, b"other")],
    )

    def shown(*options: str) -> list[dict[str, object]]:
        ended = world.cli("console", "consume", *options, settings=versions.settings(2))
        assert ended.code == 0, ended.err
        return [json.loads(line) for line in ended.out.splitlines()]

    ann, bo, raw = sorted(shown(topic), key=lambda each: str(each["offset"]))
    assert (ann["schema"], ann["payload"]) == (f"{GREET} v2", {"name": "Ann", "greeting": "hello"})
    assert bo["payload"] == {"name": "Bo", "greeting": "hello", "tone": "warm"}
    assert (ann["key"], ann["partition"], ann["offset"]) == ("acme", bo["partition"], 0)
    assert "looks like JSON" in str(raw["error"])
    assert raw["base64"] == "eyJuYW1lIjogInJhdyJ9"
    assert len(shown(topic, "--tenant", "acme")) == 2
    assert len(shown(topic, "--limit", "1")) == 1
    assert shown(topic, "--from", f"{ann['partition']}:1", "--tenant", "acme") == [bo]
    assert shown(topic, "--from", "end") == []
    assert len(shown(topic, "--from", "1h")) == 3
    assert len(shown(world.names.schemas)) == 2
    refused = world.cli("console", "consume", topic, "--from", "yesterday")
    assert (refused.code, "allowed: beginning, end" in refused.err) == (1, True)


def test_the_console_follows_a_topic_until_ctrl_c(versions: Versions) -> None:
    world = versions.world
    versions.publish(2, {"name": "before"})
    topic = world.names.main("default")
    command = [sys.executable, "-m", "pipeline", "console", "consume", topic, "--follow", "--tenant", "acme"]
    environ = world.environment(versions.settings(2))
    with subprocess.Popen(
        command, env=environ, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as console:
        try:
            assert console.stdout is not None
            assert json.loads(console.stdout.readline())["payload"]["name"] == "before"
            versions.publish(3, {"name": "after"})
            assert json.loads(console.stdout.readline())["payload"]["name"] == "after"
            console.send_signal(signal.SIGINT)
            _, told = console.communicate(timeout=20)
        finally:
            console.kill()
    assert (console.returncode, told) == (0, b"")
