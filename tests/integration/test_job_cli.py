"""`pipeline job show` tells the story of a job from Postgres alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.adapters.postgres import PostgresJobStore
from pipeline.core.claims import ClaimRequest, Settlement, Verdict
from pipeline.core.outcome import Failure
from pipeline.core.ports import WorkerInfo
from pipeline.core.state import JobState
from tests.harness.commands import Ended
from tests.integration.desk_bench import DeskBench
from tests.servers import TestServers
from tests.unit.letter_examples import job_id

pytestmark = pytest.mark.servers

NOW = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC: what is due soon after is due
BOOM = Failure(
    "shop.CardDeclined", "declined\x1b[2J\nby the bank", '  File "shop.py", line 7, in pay\n    charge()\n'
)


class Story:
    """One job, moved in the store as workers move it. Its clock goes on by a second at each run."""

    def __init__(self, store: PostgresJobStore, number: int) -> None:
        self.store = store
        self.job_id = job_id(number)
        self.attempt, self.hop, self.token, self.now = 1, 0, 0, NOW
        self.worker = ""

    def claim(self, worker: str, *, topic: str = "jobs.default.normal") -> Story:
        self.store.heartbeat(WorkerInfo(worker, "host-1", 4711, ("default",), 600.0))
        identity = (self.job_id, "card.charge", "acme", "default", self.attempt, self.hop)
        (claim,) = self.store.claim(worker, [ClaimRequest(*identity, topic, 2, 40 + self.hop, NOW)])
        assert claim.verdict is Verdict.CLAIMED
        self.worker, self.token = worker, claim.token
        return self

    def settle(self, state: JobState, *, lasted: float = 0.25, **more: Any) -> Story:
        onward = state is JobState.RETRYING
        times = (self.now + 1, self.now + 1 + lasted)
        hop = self.hop + onward
        settlement = Settlement(self.job_id, self.token, state, self.attempt, hop, *times, **more)
        (settled,) = self.store.settle(self.worker, [settlement])
        assert settled.accepted
        self.hop, self.attempt, self.now = hop, self.attempt + onward, self.now + 1
        return self

    def replay(self) -> Story:
        self.hop, self.attempt = self.hop + 1, 1
        return self

    def die_with_its_worker(self) -> Story:
        self.store.heartbeat(WorkerInfo(self.worker, "host-1", 4711, ("default",), 0.0))
        return self


@pytest.fixture(scope="module")
def bench(servers: TestServers) -> Iterator[DeskBench]:
    """Tables, and no Kafka: its address leads nowhere."""
    found = DeskBench(TestServers("127.0.0.1:1", servers.postgres_dsn))
    found.migrate()
    yield found
    found.drop_schema()


@pytest.fixture(scope="module")
def store(bench: DeskBench) -> Iterator[PostgresJobStore]:
    found = PostgresJobStore(bench.servers.postgres_dsn, schema=bench.name)
    yield found
    found.close()


def show(bench: DeskBench, story: Story, *options: str) -> Ended:
    ended = bench.job("show", story.job_id, *options)
    assert ended.code == 0, ended.err
    return ended


def test_a_completed_job_tells_who_ran_it_and_how_long(bench: DeskBench, store: PostgresJobStore) -> None:
    story = Story(store, 1).claim("worker-a").settle(JobState.COMPLETED)
    out = show(bench, story).out
    assert out.splitlines() == [
        f"job       {story.job_id}",
        "type      card.charge",
        "tenant    acme",
        "queue     default",
        "state     completed, since 2023-11-14 22:13:21Z",
        "enqueued  2023-11-14 22:13:20Z",
        "record    jobs.default.normal 2:40 (the last one claimed)",
        "",
        "ATTEMPT  TOKEN  WORKER    STARTED               TOOK     OUTCOME    WHY",
        "      1      1  worker-a  2023-11-14 22:13:21Z  0.250 s  completed",
    ]


def test_a_running_job_tells_where_it_runs_since_when(bench: DeskBench, store: PostgresJobStore) -> None:
    out = show(bench, Story(store, 2).claim("worker-b")).out
    assert "state     running on worker-b since 20" in out
    assert out.splitlines()[-1].split()[-2:] == ["-", "running"]


def test_a_retrying_job_tells_its_error_and_when_it_is_due(bench: DeskBench, store: PostgresJobStore) -> None:
    story = Story(store, 3).claim("worker-a").settle(JobState.RETRYING, due_at=NOW + 90, failure=BOOM)
    out = show(bench, story).out
    assert "state     retrying, due 2023-11-14 22:14:50Z" in out
    assert r"failed   shop.CardDeclined: declined\x1b[2J by the bank" in out
    assert "charge()" not in out


def test_a_snoozed_job_has_no_error(bench: DeskBench, store: PostgresJobStore) -> None:
    story = Story(store, 4).claim("worker-a").settle(JobState.RETRYING, due_at=NOW + 90)
    assert show(bench, story).out.splitlines()[-1].endswith("snoozed")


def test_a_cancelled_job_tells_why(bench: DeskBench, store: PostgresJobStore) -> None:
    story = Story(store, 5).claim("worker-a").settle(JobState.CANCELLED, reason="order withdrawn")
    out = show(bench, story).out
    assert "state     cancelled, reason: order withdrawn, since 2023-11-14 22:13:21Z" in out
    assert out.splitlines()[-1].endswith("cancelled  order withdrawn")


def test_a_dead_job_tells_every_attempt_its_rescues_and_its_replays(
    bench: DeskBench, store: PostgresJobStore
) -> None:
    story = died_twice(store, 6)
    out = show(bench, story).out
    assert "state     dead, reason: rejected, since 2023-11-14 22:13:23Z" in out
    assert "rescued   once, from workers that were gone" in out
    assert "suspect   runs alone in a process\n" in out
    assert "replayed  once" in out
    *_, lost, failed, dead, dead_again = out.splitlines()
    assert lost.split()[:3] == ["1", "1", "worker-c6"]
    assert lost.endswith("its worker was gone; taken over by worker-d6")
    assert failed.split()[:3] == ["1", "2", "worker-d6"]
    assert "failed              " in failed
    assert dead.split()[:3] == ["2", "3", "worker-d6"]
    assert "dead: max_attempts  shop.CardDeclined" in dead
    assert dead_again.split()[:3] == ["1", "4", "worker-d6"]
    assert "dead: rejected      shop.CardDeclined" in dead_again
    assert "charge()" not in out


def died_twice(store: PostgresJobStore, number: int) -> Story:
    """Lost with a worker, failed, dead, replayed, dead again."""
    first, second = f"worker-c{number}", f"worker-d{number}"
    story = Story(store, number).claim(first).die_with_its_worker().claim(second)
    story.settle(JobState.RETRYING, due_at=NOW + 5, failure=BOOM).claim(second, topic="jobs.default.retry.5s")
    story.settle(JobState.DEAD, reason="max_attempts", failure=BOOM).replay().claim(second)
    return story.settle(JobState.DEAD, reason="rejected", failure=BOOM)


def test_stacks_are_shown_when_asked_for(bench: DeskBench, store: PostgresJobStore) -> None:
    out = show(bench, died_twice(store, 7), "--stack").out
    assert out.count('  File "shop.py", line 7, in pay\n      charge()\n') == 3
    assert "stack of attempt 2, token 3:" in out
    assert "  shop.CardDeclined: declined\\x1b[2J\n  by the bank" in out
    assert "\x1b" not in out


def test_the_story_as_json_has_every_fact(bench: DeskBench, store: PostgresJobStore) -> None:
    story = Story(store, 8).claim("worker-a").settle(JobState.RETRYING, due_at=NOW + 90, failure=BOOM)
    found = show(bench, story, "--json").json()
    assert found.pop("claimed_at").startswith("20")
    assert found == {
        "job_id": story.job_id,
        "type": "card.charge",
        "tenant": "acme",
        "queue": "default",
        "state": "retrying",
        "reason": None,
        "attempt": 1,
        "hop": 1,
        "token": 1,
        "worker": "worker-a",
        "record": {"topic": "jobs.default.normal", "partition": 2, "offset": 40},
        "enqueued_at": "2023-11-14T22:13:20.000+00:00",
        "started_at": "2023-11-14T22:13:21.000+00:00",
        "finished_at": "2023-11-14T22:13:21.250+00:00",
        "due_at": "2023-11-14T22:14:50.000+00:00",
        "takeovers": 0,
        "crashes": None,
        "replays": 0,
        "runs": [
            {
                "attempt": 1,
                "token": 1,
                "worker": "worker-a",
                "outcome": "failed",
                "started_at": "2023-11-14T22:13:21.000+00:00",
                "duration": 0.25,
                "reason": None,
                "error": BOOM._asdict() | {"error_class": "shop.CardDeclined"},
            }
        ],
    }


def test_an_id_is_taken_in_any_case(bench: DeskBench, store: PostgresJobStore) -> None:
    story = Story(store, 0xABCDEF).claim("worker-a")
    assert bench.job("show", story.job_id.upper()).code == 0


# --- refusals, in a process of their own: these are the sentences that a user reads


def test_an_unknown_job_is_named(bench: DeskBench) -> None:
    code, out, err = bench.run("job", "show", job_id(999))
    assert (code, out) == (1, "")
    assert err.startswith(f"pipeline: the store knows no job {job_id(999)}: ")


@pytest.mark.parametrize("text", ["42", "", job_id(1) + "0", "{" + job_id(1) + "}", "\x1b[2J"])
def test_what_is_no_job_id_is_refused(bench: DeskBench, text: str) -> None:
    code, out, err = bench.job("show", text)
    assert (code, out) == (2, "")
    assert f"{text!r} is no job id; allowed: a UUID" in err


def test_a_database_without_tables_is_told(servers: TestServers) -> None:
    code, out, err = DeskBench(servers).run("job", "show", job_id(1))
    assert (code, out) == (1, "")
    assert "'pipeline db migrate' applies what is missing" in err


def test_a_database_that_is_away_is_told(bench: DeskBench) -> None:
    away = "postgresql://pipeline:hidden-word@127.0.0.1:1/pipeline"
    code, out, err = bench.run("job", "show", job_id(1), PIPELINE_POSTGRES__DSN=away)
    assert (code, out) == (1, "")
    assert err.startswith("pipeline: Postgres at 127.0.0.1:1, database pipeline:")
    assert "hidden-word" not in err
