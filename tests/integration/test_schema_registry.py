"""Against a real schema registry, kept in the Postgres of the tests: framing, look-ups, outages, levels, refusals."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pipeline.adapters.avro.checking import check_folder
from pipeline.adapters.avro.lock import locked, write_lock
from pipeline.adapters.registry import LEVEL, RegistryClient, RegistryHttp
from pipeline.cli.schemas_registry import push_schemas
from pipeline.core import headers as h
from pipeline.core.state import JobState
from pipeline.core.writer_schemas import WriterRef
from pipeline.embedded.registry import EmbeddedRegistry
from pipeline.errors import RegistryUnavailable, SchemaError
from tests.harness.newer import Versions
from tests.harness.versions import GREET
from tests.harness.world import World
from tests.servers import TestServers

pytestmark = [pytest.mark.servers, pytest.mark.registry]


@pytest.fixture(scope="module")
def registry(servers: TestServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRegistry]:
    database = f"registry_{uuid.uuid4().hex[:12]}"
    running = EmbeddedRegistry(
        tmp_path_factory.mktemp("registry"), dsn=servers.postgres_dsn, database=database
    )
    try:
        running.start()
        yield running
    finally:
        running.stop()
        with psycopg.connect(servers.postgres_dsn, autocommit=True) as connection:
            connection.execute(f'drop database if exists "{database}" with (force)'.encode())


@pytest.fixture
def client(registry: EmbeddedRegistry) -> RegistryClient:
    return RegistryClient(RegistryHttp(registry.url, timeout=20))


@pytest.fixture
def versions(servers: TestServers, registry: EmbeddedRegistry, tmp_path: Path) -> Iterator[Versions]:
    with World(servers, tmp_path) as world:
        yield Versions(world, schema_registry__url=registry.url, schema_registry__timeout=10)


def push(versions: Versions, version: int) -> None:
    """Release and register what a build of that version has, as the commands do."""
    folder = Path(versions.schemas(version))
    checked = check_folder(folder)
    assert checked.findings == []
    lock = {GREET: {each.version: locked(each) for each in checked.versions[GREET]}}
    write_lock(folder, lock)
    url = str(versions.settings(version)["schema_registry.url"])
    push_schemas(RegistryClient(RegistryHttp(url, timeout=20)), check_folder(folder), lambda _: None)


def subject(versions: Versions) -> str:
    return f"{versions.world.name}.Greet"


# --- publishers and workers


def test_jobs_get_the_prefix_of_the_registry_and_an_older_worker_reads_a_newer_version(
    versions: Versions, client: RegistryClient
) -> None:
    world = versions.world
    push(versions, 3)
    jobs = versions.publish(3, {"name": "Ann", "greeting": "hi", "tone": "warm"})
    (record,) = world.records(world.names.main("default"))
    text = (Path(versions.schemas(3)) / GREET / "v3.avsc").read_text()
    registered = client.look_up(subject(versions), text)
    assert registered is not None
    assert (record.value or b"")[:5] == b"\x00" + registered.id.to_bytes(4, "big")
    assert world.records(world.names.schemas) == []
    versions.start_worker(2)
    (entry,) = versions.wait_greeted(jobs)
    assert (entry["payload"], entry["attempt"]) == ({"name": "Ann", "greeting": "hi"}, 1)


def test_the_framing_can_be_switched_both_ways_with_jobs_in_flight(versions: Versions) -> None:
    push(versions, 2)
    plain = {"schema_registry__url": ""}
    jobs = versions.publish(2, {"name": "before"}, **plain)
    jobs += versions.publish(2, {"name": "with a registry"})
    versions.start_worker(2)
    jobs += versions.publish(3, {"name": "after, and newer"}, **plain)
    names = [entry["payload"]["name"] for entry in versions.wait_greeted(jobs)]
    assert names == ["before", "with a registry", "after, and newer"]
    assert {entry["attempt"] for entry in versions.greeted().values()} == {1}


def test_a_worker_without_the_registry_retries_its_jobs_and_a_replay_succeeds_once_it_has_one(
    versions: Versions,
) -> None:
    world = versions.world
    push(versions, 3)
    (job_id,) = versions.publish(3, {"name": "Ann", "tone": "warm"})
    (record,) = world.records(world.names.main("default"))
    without = versions.start_worker(2, schema_registry__url="")
    world.wait("the job is dead", lambda: world.states().get(job_id) is JobState.DEAD)
    (letter,) = world.letters()
    facts = dict(letter.headers)
    assert letter.value == record.value
    assert (facts[h.REASON], facts[h.ATTEMPT]) == (b"unknown_schema", b"2")
    assert b"is schema_registry.url set, and the right one?" in (facts["pipeline-last-error-message"] or b"")
    assert without.stop() == 0
    versions.start_worker(3)
    replayed = world.cli("dlq", "replay", "--all", "--execute", settings=versions.settings(3))
    assert replayed.code == 0, replayed.err
    (entry,) = versions.wait_greeted([job_id])
    assert entry["payload"] == {"name": "Ann", "greeting": "hello", "tone": "warm"}


def test_a_publisher_whose_version_is_not_registered_fails_at_its_start(versions: Versions) -> None:
    push(versions, 2)
    with pytest.raises(
        SchemaError, match=r"person\.greet v3 is not in the schema registry .*`pipeline schemas push`"
    ):
        versions.publisher(3)


def test_while_the_registry_is_away_known_ids_go_on_and_unseen_ones_wait_without_burning_attempts(
    versions: Versions, registry: EmbeddedRegistry, client: RegistryClient
) -> None:
    world = versions.world
    push(versions, 3)
    worker = versions.start_worker(2, schema_registry__timeout=0.5)
    with versions.publisher(3) as newer, versions.publisher(1) as older:

        def publish(publisher: object, name: str) -> str:
            job_id: str = publisher.publish(GREET, {"name": name}, tenant="acme").job_id  # type: ignore[attr-defined]
            return job_id

        versions.wait_greeted([publish(newer, "seen")])
        registry.kill()
        with pytest.raises(RegistryUnavailable):
            client.versions(subject(versions))
        versions.wait_greeted([publish(newer, "cached")])
        unseen = publish(older, "unseen")
        world.wait("the unseen one was put off", lambda: world.states().get(unseen) is JobState.RETRYING)
        versions.wait_greeted([publish(newer, "still cached")])
        registry.start()
        (entry,) = versions.wait_greeted([unseen], timeout=90)
    assert entry["attempt"] == 1
    assert world.story(unseen).attempt == 1
    assert worker.said("schema_lookup_failed")
    assert world.letters() == []
    # What was registered before the kill has its ids still.
    assert client.versions(subject(versions)) == [1, 2, 3]


# --- the registry itself


def schema(name: str, *more: str) -> str:
    fields = [{"name": "a", "type": "string"}, *(json.loads(each) for each in more)]
    return json.dumps({"type": "record", "name": "R", "namespace": name, "fields": fields})


REQUIRED = '{"name": "region", "type": "string"}'
OPTIONAL = '{"name": "region", "type": "string", "default": ""}'


def test_the_level_is_set_and_read_back_and_an_incompatible_schema_is_refused_with_its_place(
    client: RegistryClient, unique: str
) -> None:
    name = f"{unique}.R"
    assert client.level(name) is None
    assert client.versions(name) == []
    client.set_level(name)
    assert client.level(name) == LEVEL == "FULL_TRANSITIVE"
    first = client.register(name, schema(unique))
    assert client.register(name, schema(unique)) == first
    with pytest.raises(SchemaError, match=r"region at /fields/1"):
        client.register(name, schema(unique, REQUIRED))
    assert client.refusal(name, 1, schema(unique, REQUIRED)) is not None
    assert client.refusal(name, 1, schema(unique, OPTIONAL)) is None
    second = client.register(name, schema(unique, OPTIONAL))
    assert client.versions(name) == [1, 2]
    found = client.look_up(name, schema(unique, OPTIONAL))
    assert found is not None
    assert found.id == second != first
    assert json.loads(found.text) == json.loads(schema(unique, OPTIONAL))


def test_what_the_registry_does_not_know_is_none(client: RegistryClient, unique: str) -> None:
    assert client.find(WriterRef("id", (2**31 - 1).to_bytes(4, "big"))) is None
    assert client.find(WriterRef("guid", bytes(16))) is None
    assert client.look_up(f"{unique}.R", schema(unique)) is None


def test_a_version_that_differs_in_documentation_alone_keeps_the_id(
    client: RegistryClient, unique: str
) -> None:
    """The registry knows them as one: why the check and the reader's schema come from the files, never from here."""
    name = f"{unique}.R"
    client.set_level(name)
    documented = json.dumps({**json.loads(schema(unique)), "doc": "Now with words."})
    assert client.register(name, schema(unique)) == client.register(name, documented)
    found = client.look_up(name, documented)
    assert found is not None


def test_an_address_where_no_registry_is_says_so(registry: EmbeddedRegistry) -> None:
    elsewhere = RegistryClient(RegistryHttp(registry.url.replace("ccompat/v7", "nothing"), timeout=20))
    with pytest.raises(RegistryUnavailable, match="there is no schema registry at"):
        elsewhere.versions("any")
    with pytest.raises(RegistryUnavailable, match="there is no schema registry at"):
        elsewhere.find(WriterRef("id", b"\x00\x00\x00\x01"))


# --- the command line


def test_check_asks_the_registry_about_every_version_and_its_level(
    versions: Versions, registry: EmbeddedRegistry, client: RegistryClient
) -> None:
    world, name = versions.world, subject(versions)
    settings = versions.settings(2)
    client.register(name, (Path(versions.schemas(1)) / GREET / "v1.avsc").read_text())
    without_level = world.cli("schemas", "check", "--registry", registry.url, settings=settings)
    assert without_level.code == 1
    assert "[registry-level]" in without_level.out
    for command in ("release", "push"):
        ended = world.cli("schemas", command, settings=settings)
        assert ended.code == 0, ended.out + ended.err
    assert world.cli("schemas", "check", "--registry", registry.url, settings=settings).code == 0
    other = world.folder / "other"
    shutil.copytree(versions.schemas(1), other)
    first = other / GREET / "v1.avsc"
    document = json.loads(first.read_text())
    document["fields"].append({"name": "region", "type": "string"})
    first.write_text(json.dumps(document))
    (other / "lock.json").unlink(missing_ok=True)
    refused = world.cli(
        "schemas", "check", "--dir", str(other), "--registry", registry.url, settings=settings
    )
    assert refused.code == 1
    assert refused.out.count("[registry-incompatible]") == 2


def test_push_refuses_what_is_not_released(versions: Versions, client: RegistryClient) -> None:
    refused = versions.world.cli("schemas", "push", settings=versions.settings(2))
    assert refused.code == 1
    assert "`pipeline schemas release` first" in refused.err
    assert client.versions(subject(versions)) == []
