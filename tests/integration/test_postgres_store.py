"""What the store on Postgres promises beyond the suite that it shares with its twin: outages, plans, races."""

from __future__ import annotations

import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest
from psycopg import errors

from pipeline.adapters.postgres import PostgresJobStore, migrate
from pipeline.adapters.postgres.arrays import numbers, texts
from pipeline.adapters.postgres.queries import QUERIES
from pipeline.adapters.postgres.session import FIXED_PLANS, Connection, Session, Target
from pipeline.core.claims import Claim, ClaimRequest, Settlement, Verdict
from pipeline.core.outcome import Failure
from pipeline.core.ports import WorkerInfo
from pipeline.core.state import JobState
from pipeline.errors import ConfigError, PipelineError, StoreUnavailable
from tests.servers import TestServers

pytestmark = pytest.mark.servers

FIRST = Claim(Verdict.CLAIMED, 1)


@pytest.fixture
def dsn(servers: TestServers, unique: str) -> Iterator[str]:
    migrate(servers.postgres_dsn, schema=unique)
    yield servers.postgres_dsn
    with psycopg.connect(servers.postgres_dsn) as connection:
        connection.execute(f"drop schema {unique} cascade".encode())


@pytest.fixture
def store(dsn: str, unique: str) -> Iterator[PostgresJobStore]:
    found = PostgresJobStore(dsn, schema=unique)
    beat(found, "a")
    yield found
    found.close()


@pytest.fixture
def admin(dsn: str, unique: str) -> Iterator[Connection]:
    """Another connection to the store's tables, in autocommit mode."""
    with psycopg.connect(dsn, autocommit=True, options=f"-c search_path={unique}") as connection:
        yield connection


@pytest.fixture
def blocker(dsn: str, unique: str) -> Iterator[Connection]:
    """One more of them, to hold locks."""
    with psycopg.connect(dsn, autocommit=True, options=f"-c search_path={unique}") as connection:
        yield connection


def beat(store: PostgresJobStore, worker: str) -> None:
    store.heartbeat(WorkerInfo(worker, "host", 1, ("default",), 600.0))


def request(job_id: str) -> ClaimRequest:
    return ClaimRequest(
        job_id, "email.send", "acme", "default", 1, 0, "jobs.default.normal", 0, 0, 1_700_000_000.0
    )


def completed(job_id: str) -> Settlement:
    return Settlement(job_id, 1, JobState.COMPLETED, 1, 0, 1_700_000_001.0, 1_700_000_002.0)


def new_ids(count: int) -> list[str]:
    return [str(uuid.uuid4()) for _ in range(count)]


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, "waited 30 s in vain"
        threading.Event().wait(0.02)


def backends(admin: Connection, role: str, *, where: str = "true") -> list[int]:
    """The server's processes for one role of the stores on this schema."""
    found = admin.execute(
        f"select pid from pg_stat_activity where application_name = %s and {where}".encode(),
        [f"pipeline {role}"],
    )
    return [pid for (pid,) in found]


def waits_for(admin: Connection, blocker: Connection) -> bool:
    """Whether any process waits for a lock of `blocker`, which must be another connection: in its own transaction
    it would go on seeing the activity of its beginning.
    """
    row = admin.execute(
        "select exists (select from pg_stat_activity where %s = any(pg_blocking_pids(pid)))",
        [blocker.info.backend_pid],
    ).fetchone()
    assert row is not None
    return bool(row[0])


class TestOutages:
    @pytest.mark.parametrize("role", ["claim", "settle", "heartbeat", "read"])
    def test_a_connection_that_was_cut_fails_one_call_and_the_next_goes_on(
        self, store: PostgresJobStore, admin: Connection, role: str
    ) -> None:
        calls: dict[str, Callable[[], object]] = {
            "claim": lambda: store.claim("a", [request(new_ids(1)[0])]),
            "settle": lambda: store.settle("a", [completed(new_ids(1)[0])]),
            "heartbeat": lambda: beat(store, "a"),
            "read": store.workers,
        }
        for call in calls.values():
            call()
        before = set(backends(admin, role))
        for pid in before:
            admin.execute("select pg_terminate_backend(%s)", [pid])
        wait_until(lambda: not before & set(backends(admin, role)))
        with pytest.raises(StoreUnavailable, match="Postgres at"):
            calls[role]()
        for call in calls.values():
            call()

    def test_a_server_that_is_not_there_is_named_without_the_password(self) -> None:
        store = PostgresJobStore("postgresql://me:hidden-word@127.0.0.1:1/jobs?sslmode=disable")
        with pytest.raises(StoreUnavailable, match=r"Postgres at 127\.0\.0\.1:1, database jobs") as caught:
            beat(store, "a")
        assert "hidden-word" not in "".join(traceback.format_exception(caught.value))
        assert caught.value.__cause__ is not None

    def test_a_wrong_password_is_not_shown(self, dsn: str, unique: str) -> None:
        parameters = {
            **psycopg.conninfo.conninfo_to_dict(dsn),
            "password": "hidden-word",
            "user": "nobody-at-all",
        }
        wrong = psycopg.conninfo.make_conninfo("", **parameters)
        store = PostgresJobStore(wrong, schema=unique)
        with pytest.raises(StoreUnavailable) as caught:
            beat(store, "a")
        assert "hidden-word" not in "".join(traceback.format_exception(caught.value))
        assert "hidden-word" not in repr(Target.of(wrong, schema="s", connect_timeout=1, statement_timeout=1))

    @pytest.mark.parametrize(
        "wrong",
        [
            "postgresql://me:hidden/word@127.0.0.1/jobs",
            "postgresql://me:5/hidden@127.0.0.1/jobs",
            "postgresql://me:hidden@word@127.0.0.1/jobs",
            "postgresql://me:hid[den@127.0.0.1/jobs?hidden",
            "host=h port=hidden",
            "hidden",
        ],
    )
    def test_a_dsn_that_cannot_be_read_is_not_shown(self, wrong: str) -> None:
        with pytest.raises(ConfigError, match=r"postgres\.dsn cannot be read") as caught:
            PostgresJobStore(wrong)
        assert "hidden" not in "".join(traceback.format_exception(caught.value, limit=0))

    def test_a_call_that_the_server_does_not_answer_in_time_is_given_up(
        self, dsn: str, unique: str, blocker: Connection
    ) -> None:
        store = PostgresJobStore(dsn, schema=unique, statement_timeout=2)
        beat(store, "a")
        (job_id,) = new_ids(1)
        with blocker.transaction():
            blocker.execute("lock table jobs in access exclusive mode")
            with pytest.raises(StoreUnavailable, match="statement timeout"):
                store.claim("a", [request(job_id)])
            beat(store, "a")  # waits for nobody
        assert store.claim("a", [request(job_id)]) == [FIRST]
        store.close()

    def test_closing_cuts_off_a_call_that_hangs(
        self, store: PostgresJobStore, admin: Connection, blocker: Connection
    ) -> None:
        with ThreadPoolExecutor(1) as pool, blocker.transaction():
            blocker.execute("lock table jobs in access exclusive mode")
            call = pool.submit(store.claim, "a", [request(new_ids(1)[0])])
            wait_until(lambda: waits_for(admin, blocker))
            store.close()
            with pytest.raises(StoreUnavailable) as cut_off:
                call.result(timeout=20)
            assert "statement timeout" not in str(cut_off.value), "the server gave it up"

    def test_a_deadlock_is_tried_again_and_not_for_ever(self, dsn: str, unique: str) -> None:
        target = Target.of(dsn, schema=unique, connect_timeout=5, statement_timeout=5)
        session = Session(target, "test", {})
        tries: list[Connection] = []

        def fail_until(good: int) -> Callable[[Connection], int]:
            def work(connection: Connection) -> int:
                tries.append(connection)
                if len(tries) < good:
                    raise errors.DeadlockDetected
                return len(tries)

            return work

        assert session.run(fail_until(3)) == 3
        assert len(set(tries)) == 1
        tries.clear()
        with pytest.raises(StoreUnavailable):
            session.run(fail_until(100))
        assert len(tries) < 10
        session.close()

    def test_what_postgres_refuses_for_good_is_no_outage(self, store: PostgresJobStore) -> None:
        with pytest.raises(PipelineError, match="uuid") as caught:
            store.claim("a", [request("no uuid")])
        assert not isinstance(caught.value, StoreUnavailable)
        assert store.claim("a", [request(new_ids(1)[0])]) == [FIRST]


class TestRaces:
    def test_an_owner_that_came_after_the_claim_began_is_seen_alive(
        self, store: PostgresJobStore, admin: Connection, blocker: Connection
    ) -> None:
        """A claim that waits for a row judges its owner by what is true then, not by what was when it began."""
        (job_id,) = new_ids(1)
        with ThreadPoolExecutor(1) as pool:
            with blocker.transaction():
                insert_running(blocker, job_id, worker="late")
                call = pool.submit(store.claim, "a", [request(job_id)])
                wait_until(lambda: waits_for(admin, blocker))
                beat(store, "late")
            assert call.result(timeout=20)[0].verdict is Verdict.HELD

    def test_claims_and_settlements_in_any_order_end_without_an_error(self, store: PostgresJobStore) -> None:
        """Rows are locked in one order, whatever the order of the calls."""
        ids = new_ids(400)
        orders = [ids, ids[::-1], ids[200:] + ids[:200]]
        store.claim("a", [request(job_id) for job_id in ids])

        def work(number: int) -> None:
            order = orders[number % 3]
            if number % 2:
                store.settle("a", [completed(job_id) for job_id in order])
            else:
                store.claim("a", [request(job_id) for job_id in order])

        with ThreadPoolExecutor(2) as pool:
            done: list[Future[None]] = [pool.submit(work, number) for number in range(12)]
            for future in done:
                future.result()


def insert_running(connection: Connection, job_id: str, *, worker: str) -> None:
    connection.execute(
        """
        insert into jobs (job_id, job_type, tenant, queue, state, attempt, hop, token, worker_id, topic, partition,
            "offset", enqueued_at, claimed_at)
        values (%s, 'email.send', 'acme', 'default', 'running', 1, 0, 1, %s, 'jobs.default.normal', 0, 0, now(), now())
        """,
        [job_id, worker],
    )


class TestCost:
    def test_updates_stay_in_their_page(self, store: PostgresJobStore, admin: Connection) -> None:
        """The table has room for it: otherwise each update writes to the index too, and the table grows."""
        ids = sorted(new_ids(4_000))
        for start in range(0, len(ids), 500):
            batch = ids[start : start + 500]
            store.claim("a", [request(job_id) for job_id in batch])
            store.settle("a", [completed(job_id) for job_id in batch])
        store.close()  # the server counts a session's work at its end at the latest
        counted = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'jobs'::regclass"
        wait_until(lambda: (admin.execute(counted).fetchone() or (0,))[0] >= len(ids))
        updated, in_page = admin.execute(counted).fetchone() or (0, 0)
        assert in_page >= 0.99 * updated

    def test_no_statement_reads_a_whole_table_whatever_the_statistics_say(
        self, store: PostgresJobStore, dsn: str, unique: str, admin: Connection
    ) -> None:
        store.claim("a", [request(job_id) for job_id in new_ids(500)])
        admin.execute("analyze jobs")  # a small table, the strongest temptation
        target = Target.of(dsn, schema=unique, connect_timeout=5, statement_timeout=5)
        with target.connect("test", FIXED_PLANS) as connection:
            for name, values in statements(new_ids(300)).items():
                found = connection.execute(b"explain " + QUERIES[name], values).fetchall()
                plan = "\n".join(line for (line,) in found)
                assert "Seq Scan on jobs" not in plan, plan
                assert "Hash" not in plan, plan
                assert "Index Scan using jobs_pkey" in plan or name == "claim", plan

    def test_a_thousand_failures_are_settled_in_one_statement(
        self, store: PostgresJobStore, admin: Connection
    ) -> None:
        ids = new_ids(1_000)
        store.claim("a", [request(job_id) for job_id in ids])
        failure = Failure("ValueError", "m" * 2_000, "s" * 8_000)
        dead = [completed(job_id)._replace(state=JobState.DEAD, failure=failure) for job_id in ids]
        assert all(settled.accepted for settled in store.settle("a", dead))
        assert admin.execute("select count(*) from attempts where outcome = 'dead'").fetchone() == (1_000,)
        assert store.dead_count() == 1_000


def statements(ids: list[str]) -> dict[str, dict[str, object]]:
    ones = numbers([1] * len(ids))
    words = texts(["x"] * len(ids))
    common: dict[str, object] = {"worker": "a", "job_id": texts(ids), "attempt": ones, "hop": ones}
    ended = {**common, "token": ones, "started_at": ones, "finished_at": ones}
    texts_of_any = ("state", "reason", "outcome", "error_class", "message", "stack")
    unfinished: dict[str, object] = dict.fromkeys(texts_of_any, words)
    where: dict[str, object] = {"topic": words, "partition": ones, "offset": ones, "enqueued_at": ones}
    return {
        "claim": {**common, **where, "job_type": words, "tenant": words, "queue": words},
        "rows": {"job_id": texts(ids)},
        "settle_completed": ended,
        "settle_any": {**ended, **unfinished, "due_at": ones, "row_attempt": ones, "crashed": ones},
    }
