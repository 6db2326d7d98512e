"""Handlers' transactions on the real Postgres: what commits together, what is refused, and what holds nobody up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pipeline.adapters.postgres import PostgresJobStore, migrate
from pipeline.adapters.postgres.effects import PostgresEffects
from pipeline.adapters.postgres.session import Connection
from pipeline.core.claims import ClaimRequest, Settlement, Verdict
from pipeline.core.ports import WorkerInfo
from pipeline.core.state import JobState
from pipeline.errors import ClaimLost, StoreUnavailable
from tests.harness.waiting import wait_until
from tests.servers import TestServers

pytestmark = pytest.mark.servers

Write = Callable[[PostgresEffects, Settlement], None]


class Place:
    """Tables of a test's own, a worker `a` that is alive, and a table for effects."""

    def __init__(self, dsn: str, schema: str, admin: Connection) -> None:
        self.dsn, self.schema, self.admin = dsn, schema, admin
        self.store = PostgresJobStore(dsn, schema=schema)
        self.beat("a", lease=600)

    def beat(self, worker: str, *, lease: float) -> None:
        self.store.heartbeat(WorkerInfo(worker, "host", 1, ("default",), lease))

    def claim(self, worker: str, job_id: str) -> Verdict:
        request = ClaimRequest(
            job_id, "email.send", "acme", "default", 1, 0, "jobs.default.normal", 0, 0, 1_700_000_000.0
        )
        return self.store.claim(worker, [request])[0].verdict

    def claimed(self) -> Settlement:
        """The completion of a job that `a` has just claimed."""
        job_id = str(uuid4())
        assert self.claim("a", job_id) is Verdict.CLAIMED
        return Settlement(job_id, 1, JobState.COMPLETED, 1, 0, 1_700_000_001.0, 1_700_000_002.0)

    def state(self, completion: Settlement) -> JobState:
        story = self.store.job(completion.job_id)
        assert story is not None
        return story.state

    def effects(self) -> list[str]:
        return [row[0] for row in self.admin.execute("select job_id::text from effects").fetchall()]

    def open_effects(self, **options: float) -> PostgresEffects:
        return PostgresEffects(self.dsn, schema=self.schema, **options)  # type: ignore[arg-type]

    @property
    def insert(self) -> bytes:
        return f"insert into {self.schema}.effects values (%s)".encode()


@pytest.fixture
def place(servers: TestServers, unique: str) -> Iterator[Place]:
    dsn = servers.postgres_dsn
    migrate(dsn, schema=unique)
    with psycopg.connect(dsn, autocommit=True, options=f"-c search_path={unique}") as admin:
        admin.execute("create table effects (job_id uuid primary key deferrable initially deferred)")
        found = Place(dsn, unique, admin)
        yield found
        found.store.close()
        admin.execute(f"drop schema {unique} cascade".encode())


def plain(place: Place, effects: PostgresEffects, completion: Settlement) -> None:
    with effects.transaction("a", lambda: completion) as tx:
        tx.execute(place.insert, [completion.job_id])


def awaited(place: Place, effects: PostgresEffects, completion: Settlement) -> None:
    async def write() -> None:
        async with effects.async_transaction("a", lambda: completion) as tx:
            await tx.execute(place.insert, [completion.job_id])

    with asyncio.Runner() as runner:
        try:
            runner.run(write())
        finally:
            effects.close()


WAYS = pytest.mark.parametrize("write", [plain, awaited])


@WAYS
def test_an_effect_and_the_completion_commit_together(place: Place, write: Callable[..., None]) -> None:
    completion = place.claimed()
    with closing(place.open_effects()) as effects:
        write(place, effects, completion)
    assert place.state(completion) is JobState.COMPLETED
    assert place.effects() == [completion.job_id]


@WAYS
def test_a_lost_claim_takes_its_effect_along(place: Place, write: Callable[..., None]) -> None:
    completion = place.claimed()
    late = completion._replace(token=0)
    with (
        closing(place.open_effects()) as effects,
        pytest.raises(
            ClaimLost,
            match=rf"job {completion.job_id}: the claim with token 0 does not hold any more, the row has token 1;",
        ),
    ):
        write(place, effects, late)
    assert place.state(completion) is JobState.RUNNING
    assert place.effects() == []


@WAYS
def test_what_fails_at_commit_is_the_handlers_error_and_completes_nothing(
    place: Place, write: Callable[..., None]
) -> None:
    completion = place.claimed()
    place.admin.execute(place.insert, [completion.job_id])  # the key is checked at COMMIT
    with closing(place.open_effects()) as effects, pytest.raises(psycopg.errors.UniqueViolation):
        write(place, effects, completion)
    assert place.state(completion) is JobState.RUNNING


@WAYS
@pytest.mark.parametrize("code", ["40001", "40P01", "55P03"])
def test_a_completion_that_the_server_refuses_is_no_fault_of_the_handler(
    place: Place, write: Callable[..., None], code: str
) -> None:
    """A serialization failure, a deadlock, a lock timeout: nothing that it could have done better."""
    completion = place.claimed()
    place.admin.execute(
        "create function refuse() returns trigger language plpgsql as "
        f"$$ begin raise exception 'refused' using errcode = '{code}'; end $$".encode()
    )
    place.admin.execute("create trigger refuse before update on jobs execute function refuse()")
    with closing(place.open_effects()) as effects, pytest.raises(StoreUnavailable, match="refused"):
        write(place, effects, completion)
    assert place.state(completion) is JobState.RUNNING
    assert place.effects() == []


@WAYS
def test_a_server_that_became_read_only_is_an_outage(place: Place, write: Callable[..., None]) -> None:
    completion = place.claimed()
    standby = make_conninfo(place.dsn, options="-c default_transaction_read_only=on")
    with (
        closing(PostgresEffects(standby, schema=place.schema)) as effects,
        pytest.raises(StoreUnavailable, match="read-only transaction"),
    ):
        write(place, effects, completion)
    assert place.state(completion) is JobState.RUNNING


def test_connections_serve_one_handler_after_the_other_whatever_became_of_it(place: Place) -> None:
    with closing(place.open_effects(most=1)) as effects:
        with pytest.raises(ClaimLost):
            plain(place, effects, place.claimed()._replace(token=9))
        with pytest.raises(ValueError, match="no"), effects.transaction("a", place.claimed):
            raise ValueError("no")
        completion = place.claimed()
        plain(place, effects, completion)
    assert place.effects() == [completion.job_id]


def test_more_coroutines_than_connections_take_turns(place: Place) -> None:
    completions = [place.claimed() for _ in range(12)]
    effects = place.open_effects(most=2)

    async def write(completion: Settlement) -> None:
        async with effects.async_transaction("a", lambda: completion) as tx:
            await tx.execute(place.insert, [completion.job_id])

    async def write_all() -> None:
        await asyncio.gather(*map(write, completions))

    with asyncio.Runner() as runner:
        runner.run(write_all())
        effects.close()
    assert sorted(place.effects()) == sorted(completion.job_id for completion in completions)


def test_a_transaction_that_is_left_idle_ends_and_frees_what_it_had_locked(place: Place) -> None:
    """As in a worker that is frozen in the middle of it."""
    completion, other = place.claimed(), place.claimed()
    there = "select from pg_stat_activity where pid = %s"

    def idle(effects: PostgresEffects) -> None:
        with effects.transaction("a", lambda: completion) as tx:
            tx.execute(place.insert, [completion.job_id])
            backend = [tx.info.backend_pid]
            wait_until(lambda: not place.admin.execute(there, backend).fetchall(), "the server ends it")
            tx.execute("select 1")

    with closing(place.open_effects(idle_timeout=0.5)) as effects:
        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
            idle(effects)
        plain(place, effects, other)
    assert place.effects() == [other.job_id]
    assert place.state(completion) is JobState.RUNNING


def test_nobody_waits_for_a_worker_that_is_frozen_before_its_commit(place: Place) -> None:
    """The completion, which locks the job's row, is sent together with COMMIT: until then the row is free."""
    completion = place.claimed()
    place.beat("a", lease=0.001)
    place.beat("b", lease=600)

    def late(effects: PostgresEffects) -> None:
        with effects.transaction("a", lambda: completion) as tx:
            tx.execute(place.insert, [completion.job_id])
            wait_until(
                lambda: place.claim("b", completion.job_id) is Verdict.CLAIMED, "another claims the job"
            )

    with closing(place.open_effects()) as effects, pytest.raises(ClaimLost):
        late(effects)
    assert place.effects() == []
