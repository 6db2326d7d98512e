"""Wrong input is refused in a plain sentence that names the thing, and nothing is sent or lost."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline import (
    ConfigError,
    InvalidJob,
    JobRequest,
    PayloadTooLarge,
    Pipeline,
    PublishFailed,
    UnknownJobType,
    UnknownQueue,
    load_settings,
)
from tests.harness.commands import Ended
from tests.harness.jobs import EFFECT, Task, declare
from tests.harness.world import World
from tests.servers import TestServers

pytestmark = pytest.mark.servers

APP = "tests.harness.handlers:app"
TASK = '{"name": "t"}'
JOB_ID = "019bfd2c-0000-7000-8000-000000000000"
PATIENCE = 2  # seconds that the product is told to wait for a server
SLACK = 40.0  # seconds that starting six Pythons may add on a loaded machine of two cores


@pytest.fixture(scope="module")
def world(servers: TestServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Topics and tables that no test here writes to with success, unless it says so."""
    settings = {
        "topics.max_message_bytes": 4000,
        "kafka.request_timeout": PATIENCE,
        "publisher.timeout": PATIENCE,
        "postgres.connect_timeout": PATIENCE,
    }
    with World(servers, tmp_path_factory.mktemp("world"), settings=settings) as found:
        yield found


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address at which nobody answers: bound, so that nobody else can take it, and not listening."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def publish(world: World, *arguments: str, **settings: object) -> Ended:
    changes = {key.replace("__", "."): value for key, value in settings.items()}
    return world.cli("publish", *arguments, "--app", APP, settings=changes)


def refusal(ended: Ended) -> str:
    """What a refused command says: one line, after what clients may have logged, and nothing else."""
    assert ended.code == 1, ended
    assert ended.out == ""
    assert "Traceback" not in ended.err
    *_, last = ended.err.splitlines()
    assert last.startswith("pipeline: "), ended.err
    return last.removeprefix("pipeline: ")


def written(world: World) -> int:
    return sum(world.admin.end_offsets([world.names.main("default")]).values())


# --- jobs


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (["mail.send", TASK], UnknownJobType, "job type 'mail.send' is not declared; declared: work."),
        ([EFFECT, '{"nam": "t"}'], InvalidJob, f"payload of job type '{EFFECT}': name: Field required"),
        ([EFFECT, '{"name": 5}'], InvalidJob, "name: Input should be a valid string"),
        ([EFFECT, '{"name": "t", "fails": 2147483648}'], InvalidJob, "fails"),
        ([EFFECT, '{"name": "\\ud800"}'], InvalidJob, "name"),
    ],
)
def test_a_wrong_job_is_refused_and_not_sent(
    world: World, arguments: list[str], error: type[Exception], says: str
) -> None:
    before = written(world)
    assert says in refusal(publish(world, *arguments, "--tenant", "acme"))
    with pytest.raises(error) as caught:
        world.publisher.publish(arguments[0], json.loads(arguments[1]), tenant="acme")
    assert says in str(caught.value)
    assert written(world) == before


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "payload is not JSON"),
        ("[1]", "payload is a JSON list; allowed: an object"),
        ("", "payload is not JSON"),
    ],
)
def test_a_payload_that_is_no_json_object_is_refused(world: World, text: str, says: str) -> None:
    assert says in refusal(publish(world, EFFECT, text, "--tenant", "acme"))


@pytest.mark.parametrize(
    ("tenant", "says"),
    [
        ("", "tenant is empty; allowed: 1 to 256 characters"),
        ("acme\n", "tenant has control characters; allowed: 1 to 256 characters, none of them control"),
        ("ac\x1b[31mme", "tenant has control characters"),
        ("a" * 257, "tenant has 257 characters; allowed: at most 256"),
    ],
)
def test_a_wrong_tenant_is_refused_and_not_sent(world: World, tenant: str, says: str) -> None:
    before = written(world)
    said = refusal(publish(world, EFFECT, TASK, "--tenant", tenant))
    assert says in said
    assert said.isprintable()
    with pytest.raises(InvalidJob, match="tenant"):
        world.publisher.publish(EFFECT, Task(name="t"), tenant=tenant)
    assert written(world) == before


def test_a_wrong_key_is_refused(world: World) -> None:
    said = refusal(publish(world, EFFECT, TASK, "--tenant", "acme", "--idempotency-key", ""))
    assert "idempotency_key is empty" in said
    with pytest.raises(InvalidJob, match="ordering_key has control characters"):
        world.publisher.publish(EFFECT, Task(name="t"), tenant="acme", ordering_key="\x00")


def test_a_message_over_the_size_limit_is_refused_and_not_sent(world: World) -> None:
    before = written(world)
    said = refusal(publish(world, EFFECT, json.dumps({"name": "x" * 5000}), "--tenant", "acme"))
    assert f"the record for topic {world.names.main('default')} has 5" in said
    assert "bytes; allowed: at most 4000" in said
    with pytest.raises(PayloadTooLarge, match="allowed: at most 4000"):
        world.publisher.publish(EFFECT, Task(name="x" * 5000), tenant="acme")
    assert written(world) == before


def test_a_message_that_only_the_broker_finds_too_large_is_refused_and_its_neighbours_are_sent(
    world: World,
) -> None:
    """The publisher's setting is above the topic's, so the broker refuses the batch with all that is in it."""
    before = written(world)
    noise = random.Random(4).randbytes(50_000).hex()  # no compression makes it fit
    requests = [JobRequest(EFFECT, Task(name=noise if n == 5 else "small"), "acme") for n in range(10)]
    with _application(world, {"topics.max_message_bytes": 1_000_000}).publisher() as publisher:
        result = publisher.publish_many(requests)
    (refused,) = result.refused
    assert refused.position == 5
    assert isinstance(refused.error, PayloadTooLarge)
    assert world.names.main("default") in str(refused.error)
    assert len(result.job_ids) == written(world) - before == 9


def _application(world: World, settings: dict[str, object]) -> Pipeline:
    jobs = declare(world.policy)
    jobs.app.configure(load_settings(environ=world.environment(settings)))
    return jobs.app


def test_publish_many_reports_what_is_wrong_beside_what_is_sent(world: World) -> None:
    before = written(world)
    requests: list[JobRequest] = [
        JobRequest(EFFECT, Task(name="sound"), "acme"),
        JobRequest("mail.send", {"name": "t"}, "acme"),
        JobRequest(EFFECT, {"name": 5}, "acme"),
        JobRequest(EFFECT, Task(name="t"), ""),
        JobRequest(EFFECT, Task(name="x" * 5000), "acme"),
        JobRequest(EFFECT, {"name": "sound too"}, "acme"),
    ]
    result = world.publisher.publish_many(requests)
    assert [(each.position, type(each.error)) for each in result.refused] == [
        (1, UnknownJobType),
        (2, InvalidJob),
        (3, InvalidJob),
        (4, PayloadTooLarge),
    ]
    assert len(result.job_ids) == written(world) - before == 2


# --- settings


def test_an_unknown_queue_is_refused(world: World) -> None:
    said = refusal(world.cli("worker", APP, "--queue", "gpu"))
    assert said == "queue is 'gpu'; allowed by the setting queues: default"
    app = Pipeline(load_settings(environ=world.environment()))
    app.job_type(EFFECT, Task, queue="gpu")
    with app.publisher() as publisher, pytest.raises(UnknownQueue) as caught:
        publisher.publish(EFFECT, Task(name="t"), tenant="acme")
    assert "'gpu'" in str(caught.value)
    assert "allowed by the setting queues: default" in str(caught.value)


def test_a_worker_asks_which_of_several_queues(world: World) -> None:
    said = refusal(world.cli("worker", APP, settings={"queues": ["default", "gpu"]}))
    assert said == "which queue? The setting queues has 2: default, gpu"


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("worker.leese=30", ["worker.leese", "worker.lease"]),
        ("worker.lease=soon", ["worker.lease", "'soon'", "allowed"]),
        ("worker.lease=1", ["worker.heartbeat_interval", "a third of worker.lease, which is 1"]),
        ("kafka.consumer_options.enable.auto.commit=true", ["enable.auto.commit", "true", "allowed"]),
        ("retry.tiers=[60,10]", ["retry.tiers", "allowed"]),
        ("worker.lease", ["worker.lease", "KEY=VALUE"]),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_starts(world: World, flag: str, says: list[str]) -> None:
    said = refusal(world.cli("--set", flag, "worker", APP))
    assert all(text in said for text in says), said


def test_a_wrong_key_in_the_environment_is_refused(world: World) -> None:
    environment = {**world.environment(), "PIPELINE_WORKER__LEESE": "30"}
    with pytest.raises(ConfigError, match=r"PIPELINE_WORKER__LEESE|worker\.leese"):
        load_settings(environ=environment)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("no_such_module:app", "application is 'no_such_module:app'; there is no module 'no_such_module'"),
        ("tests.harness.handlers:nope", "'nope' in tests.harness.handlers is no Pipeline"),
        ("tests.integration.no_handlers:app", "it has no handlers"),
    ],
)
def test_an_application_that_cannot_be_worked_for_is_refused(world: World, target: str, says: str) -> None:
    assert says in refusal(world.cli("worker", target))


# --- what is not there


def test_a_database_that_is_not_migrated_is_named_by_the_worker_and_by_commands(world: World) -> None:
    elsewhere = {"postgres.schema_name": f"{world.name}_empty"}
    for command in (["worker", APP], ["job", "show", JOB_ID]):
        said = refusal(world.cli(*command, settings=elsewhere))
        assert "'pipeline db migrate'" in said
        assert "lacks" in said or "not migrated" in said or "does not exist" in said


def test_missing_topics_are_named_by_the_worker_and_by_the_publisher(world: World) -> None:
    elsewhere = f"{world.name}x"
    for said in (
        refusal(world.cli("worker", APP, settings={"namespace": elsewhere})),
        refusal(publish(world, EFFECT, TASK, "--tenant", "acme", namespace=elsewhere)),
        refusal(world.cli("dlq", "list", settings={"namespace": elsewhere})),
    ):
        assert f"{elsewhere}." in said
        assert "`pipeline topics apply` creates" in said


def test_a_broker_that_cannot_be_reached_is_named_after_a_bounded_wait(world: World, nowhere: str) -> None:
    commands = (
        ["worker", APP],
        ["publish", EFFECT, TASK, "--tenant", "acme", "--app", APP],
        ["topics", "plan"],
        ["topics", "apply"],
        ["dlq", "list"],
        ["dlq", "replay", "--all"],
    )
    asked = time.monotonic()
    for said in _refusals(world, commands, {"kafka.bootstrap_servers": nowhere}):
        assert f"no answer from Kafka at {nowhere}" in said
    assert time.monotonic() - asked < PATIENCE + SLACK


def _refusals(world: World, commands: Sequence[Sequence[str]], settings: dict[str, object]) -> Iterator[str]:
    """What each of several commands says that are run at once: they do nothing but wait."""
    with ThreadPoolExecutor() as pool:
        yield from pool.map(lambda command: refusal(world.cli(*command, settings=settings)), commands)


def test_a_publish_without_a_broker_ends_in_time_and_has_no_success(world: World, nowhere: str) -> None:
    app = _application(world, {"kafka.bootstrap_servers": nowhere})
    with app.publisher() as publisher:
        asked = time.monotonic()
        with pytest.raises(PublishFailed, match=f"no answer from Kafka at {nowhere}"):
            publisher.publish(EFFECT, Task(name="t"), tenant="acme")
        assert PATIENCE - 0.5 < time.monotonic() - asked < PATIENCE + SLACK
        result = publisher.publish_many([JobRequest(EFFECT, Task(name=f"t{n}"), "acme") for n in range(5)])
    assert result.job_ids == []
    assert len(result.refused) == 5


def test_a_postgres_that_cannot_be_reached_is_named_without_its_password(world: World, nowhere: str) -> None:
    away: dict[str, object] = {"postgres.dsn": f"postgresql://jo:geheim@{nowhere}/orders"}
    commands = (["worker", APP], ["db", "migrate"], ["db", "status"], ["job", "show", JOB_ID])
    for said in _refusals(world, commands, away):
        assert f"Postgres at {nowhere}, database orders" in said
        assert "geheim" not in said
