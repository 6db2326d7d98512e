"""Tenants, types, headers and error texts made to do harm: in SQL, logs, terminals, JSON and metrics they are only text."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from pipeline.core.ports import Outgoing
from tests.harness.checks import assert_clean_end, assert_nothing_lost, assert_one_effect_each
from tests.harness.jobs import Policy, Task
from tests.harness.ledger import Acked
from tests.harness.raw import like, sound_record, write
from tests.harness.scraping import get, scrape_text
from tests.harness.world import World
from tests.servers import TestServers

pytestmark = pytest.mark.servers

SQL = "'; drop table jobs; --"
HTML = '"><script>alert(1)</script>&amp;'
JSON = '"}\\u0000,{"tenant": "\\"'
FORMAT = "%s %(x)d {0} {tenant} $1 ${HOME} `id`"
REVERSED = "\u202egnirts\u2066"
TERMINAL = "\x1b[2J\x1b]0;owned\x07\r\nINFO all is well\x9b31m\x00\x7f"
HARMLESS = [SQL, HTML, JSON, FORMAT, REVERSED, "-rf", "../../etc/passwd", "🙈" * 60]


@pytest.fixture
def world(servers: TestServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(servers, tmp_path_factory.mktemp("world"), policy=Policy(max_attempts=2)) as found:
        yield found


def test_hostile_texts_are_only_text(world: World) -> None:
    jobs, dead = _publish(world)
    bad = write(world, list(_hostile_records(world)))
    workers = [  # the tenants are spread over both
        world.start_worker(worker__http_port=0, log__level="DEBUG", log__format=form)
        for form in ("json", "text")
    ]
    world.wait_ended()
    world.wait("every bad record is buried", lambda: len(world.letters()) == len(bad) + len(dead))
    world.wait_committed()
    assert_one_effect_each(world, jobs)
    assert_nothing_lost(world)
    _assert_told(world, dead[0])
    _assert_listed(world, len(bad) + len(dead))
    metrics = get(workers[0], "/metrics").body
    assert scrape_text(metrics)
    assert not any(text in metrics for text in HARMLESS)
    assert_clean_end(world)
    logged = [(world.folder / f"worker-{number}.log").read_text() for number in (1, 2)]
    for line in logged[0].splitlines():
        assert json.loads(line)
    for text in logged:
        assert_plain(text)


def _publish(world: World) -> tuple[list[Acked], list[Acked]]:
    """Jobs that complete, of hostile tenants; and one that dies of an error with all that is hostile in it."""
    jobs = []
    for text in HARMLESS:
        jobs += world.publish(world.jobs.effect, [Task(name=text)], tenant=text)
    fatal = Task(name=" ".join([*HARMLESS, TERMINAL]), fails=9)
    return jobs, world.publish(world.jobs.plain, [fatal], tenant=HTML)


def _hostile_records(world: World) -> Iterator[Outgoing]:
    """Each with something that no publisher of ours writes."""
    make = like(sound_record(world))
    for text in (TERMINAL, "x" * 300_000, "\udcff"):
        value = text.encode(errors="surrogateescape")
        for header in (
            "pipeline__tenant",
            "ce_type",
            "ce_id",
            "pipeline__priority",
            "pipeline__ordering__key",
        ):
            yield make(**{header: value})


def _assert_told(world: World, job: Acked) -> None:
    for command in (["job", "show", job.job_id], ["dlq", "show", job.job_id]):
        ended = world.cli(*command)
        assert ended.code == 0, ended
        assert job.job_id in ended.out
        assert_plain(ended.out + ended.err)


def _assert_listed(world: World, count: int) -> None:
    for command in (["list"], ["stats", "--by", "tenant"]):
        ended = world.cli("dlq", *command)
        assert ended.code == 0, ended
        assert_plain(ended.out + ended.err)
    listed = world.cli("dlq", "list", "--json", "--limit", "1000")
    assert len(json.loads(listed.out)) == count
    shown = world.cli("console", "consume", world.names.dlq("default"))
    assert len([json.loads(line) for line in shown.out.splitlines()]) == count
    assert_plain(listed.out + shown.out)


def assert_plain(text: str) -> None:
    """Nothing in it steers a terminal, starts a line of its own, or turns the direction of writing."""
    for line in text.split("\n"):
        assert line.isprintable(), ascii(line)
