"""TLS and passwords for real: all goes through them, what is wrong with them is said, and no secret is ever shown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.harness.checks import assert_clean_end, assert_nothing_lost, assert_one_effect_each
from tests.harness.jobs import EFFECT, Policy, Task
from tests.harness.scraping import get
from tests.harness.secured import Secured, secured_servers
from tests.harness.world import World

pytestmark = pytest.mark.servers

APP = "tests.harness.handlers:app"
JOB_ID = "019bfd2c-0000-7000-8000-000000000000"
PUBLISH = ["publish", EFFECT, '{"name": "t"}', "--tenant", "acme", "--app", APP]
WRONG = "falsch-9Xk"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_servers(tmp_path_factory.mktemp("secured")) as servers:
        yield servers


@pytest.fixture(scope="module")
def world(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    settings = {"kafka.options": secured.options}
    folder = tmp_path_factory.mktemp("world")
    with World(secured.servers, folder, settings=settings, policy=Policy(max_attempts=2)) as found:
        yield found


def run(world: World, commands: Sequence[Sequence[str]], settings: Mapping[str, object]) -> list[str]:
    """What each of several commands says on either stream; run at once, since they mostly wait."""
    with ThreadPoolExecutor() as pool:
        ended = list(pool.map(lambda command: world.cli(*command, settings=settings), commands))
    return [each.out + each.err for each in ended]


def test_all_goes_through_tls_and_scram_and_no_secret_is_shown_anywhere(
    world: World, secured: Secured
) -> None:
    wordy = {**secured.options, "debug": "security,broker"}
    worker = world.start_worker(worker__http_port=0, log__level="DEBUG", kafka__options=wordy)
    jobs = world.publish(world.jobs.effect, [Task(name=f"sound-{n}") for n in range(20)])
    (dead,) = world.publish(world.jobs.effect, [Task(name="dead", fails=9)])
    world.wait_ended()
    world.wait_committed()
    said = run(
        world,
        [
            ["topics", "plan"],
            ["config", "show", "--format", "json"],
            ["db", "status"],
            ["dlq", "list", "--json"],
            ["job", "show", dead.job_id],
            PUBLISH,
        ],
        {},
    )
    assert dead.job_id in said[3]
    assert "completed" not in said[4]
    shown = [*said, get(worker, "/metrics").body, get(worker, "/readyz").body, worker.tail(10_000_000)]
    for text in shown:
        assert_discreet(text, secured)
    options = json.loads(said[1])
    assert options["kafka.options.sasl.password"]["value"] == "***"
    assert options["kafka.options.sasl.username"]["value"] == secured.user
    insecure = "select count(*) from pg_stat_ssl join pg_stat_activity using (pid) where not ssl and usename is not null"
    assert world.execute(insecure) == [(0,)]
    assert_one_effect_each(world, jobs)
    assert_nothing_lost(world)
    assert_clean_end(world)


def wrong_kafka(secured: Secured) -> Iterator[tuple[dict[str, str], str, list[list[str]]]]:
    """What is wrong, what must be said, and by which commands."""
    all_kinds = [["console", "consume", "jobs"], PUBLISH, ["worker", APP]]
    yield {"sasl.password": WRONG}, "Authentication failed", all_kinds
    yield {"ssl.ca.location": str(secured.stranger)}, "certificate verify failed", [["topics", "plan"]]


def test_what_keeps_kafka_from_letting_us_in_is_said(world: World, secured: Secured) -> None:
    for change, says, commands in wrong_kafka(secured):
        for said in run(world, commands, {"kafka.options": {**secured.options, **change}}):
            *_, last = said.splitlines()
            assert last.startswith("pipeline: "), said
            assert f"no answer from Kafka at {secured.kafka}" in last
            assert says in last
            assert_discreet(said, secured)


def wrong_postgres(secured: Secured) -> Iterator[tuple[str, str, list[list[str]]]]:
    """The same: a DSN instead of options."""
    all_kinds = [["job", "show", JOB_ID], ["dlq", "list"], ["worker", APP]]
    yield secured.dsn.replace(secured.postgres_password, WRONG), "password authentication failed", all_kinds
    foreign = secured.dsn.replace(str(secured.authority), str(secured.stranger))
    yield foreign, "certificate verify failed", [["db", "status"]]
    yield secured.dsn.replace("verify-full", "disable"), "no encryption", [["db", "status"]]


def test_what_keeps_postgres_from_letting_us_in_is_said(world: World, secured: Secured) -> None:
    for dsn, says, commands in wrong_postgres(secured):
        for said in run(world, commands, {"postgres.dsn": dsn}):
            assert "Postgres at 127.0.0.1:" in said
            assert says in said
            assert_discreet(said, secured)


def assert_discreet(said: str, secured: Secured) -> None:
    assert "Traceback" not in said
    for secret in (secured.kafka_password, secured.postgres_password, WRONG):
        assert secret not in said
