"""Postgres refuses, blocks, and loses connections at the worst moments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg

from tests.faults.case import Case, scenario
from tests.harness.proxy import Loss
from tests.harness.requests import statement
from tests.harness.world import World

__all__: list[str] = []

# Serialization failure, deadlock, lock timeout.
CODES = ("40001", "40P01", "55P03")

TROUBLE = """
    create table "{0}".trouble (code text);
    create function "{0}".make_trouble() returns trigger language plpgsql as $$
    declare
        found_code text;
    begin
        select code into found_code from "{0}".trouble;
        if found_code is not null and random() < 0.3 then
            raise exception 'made trouble' using errcode = found_code;
        end if;
        return null;
    end
    $$;
    create trigger trouble before insert or update on "{0}".jobs
        for each statement execute function "{0}".make_trouble();
"""


@scenario(23)
def connections_are_exhausted(case: Case) -> None:
    """Handlers wait for theirs, within bounds; leases are renewed; no job has failed."""
    world = case.world()
    with case.loaded(world) as loaded, loaded.load.fault(), _all_connections_taken(world):
        loaded.load.pass_time(case.scale.outage / 2)
    since, until = loaded.load.faults[0]
    leases = [
        look.leases for look in loaded.watch.looks if look.leases is not None and since < look.at < until
    ]
    assert min(len(each) for each in leases) == len(world.workers), "a lease ran out"
    case.judge(loaded)


@contextmanager
def _all_connections_taken(world: World) -> Iterator[None]:
    """Cut the handlers' connections, and take those that become free, again and again until no more can be had."""
    taken: list[psycopg.Connection] = []
    cut = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'pipeline handler'"
    with psycopg.connect(world.servers.postgres_dsn, autocommit=True) as own:
        try:
            for _ in range(20):
                with suppress(psycopg.OperationalError):
                    while True:
                        taken.append(psycopg.connect(world.servers.postgres_dsn, connect_timeout=2))
                own.execute(cut)
            yield
        finally:
            for connection in taken:
                connection.close()


@scenario(24)
def connections_are_cut_in_transactions(case: Case) -> None:
    """Before a statement, before COMMIT, and after it without its answer: the outcome is looked up, not guessed."""
    world = case.world()
    world.start_worker(postgres__dsn=case.site.postgres_by_proxy)
    proxy = case.site.postgres_proxy
    with case.loaded(world, workers=1) as loaded, loaded.load.fault():
        for _ in range(3):
            for what, loss in (
                (b"COMMIT", Loss.ANSWER),
                (b"COMMIT", Loss.REQUEST),
                (b"effects", Loss.REQUEST),
                (b"effects", Loss.ANSWER),
            ):
                trap = proxy.trap(statement(what), loss=loss)
                world.wait(f"{what!r} is lost", trap.is_sprung)
            proxy.reset()
    case.judge(loaded)


@scenario(25, "refused statements")
def statements_are_refused(case: Case) -> None:
    """By serialization failures, deadlocks and lock timeouts: the call is made again, no job pays."""
    world = case.world()
    world.execute(TROUBLE.format(world.name))
    with case.loaded(world) as loaded, loaded.load.fault():
        for code in CODES:
            world.execute(f'insert into "{world.name}".trouble values (%s)', code)
            loaded.load.pass_time(max(3.0, case.scale.outage / 6))
            world.execute(f'delete from "{world.name}".trouble')
    case.judge(loaded)


@scenario(25, "lock wait and read-only")
def tables_are_locked_and_read_only(case: Case) -> None:
    """Calls wait, end at their time limit, and are made again."""
    world = case.world()
    with case.loaded(world) as loaded, loaded.load.fault():
        with psycopg.connect(world.servers.postgres_dsn) as connection, connection.transaction():
            connection.execute(f'lock table "{world.name}".jobs in access exclusive mode'.encode())
            loaded.load.pass_time(max(3.0, case.scale.outage / 4))
        with _read_only(world):
            loaded.load.pass_time(max(3.0, case.scale.outage / 4))
    case.judge(loaded)


@contextmanager
def _read_only(world: World) -> Iterator[None]:
    """All transactions of all sessions are, as on a standby."""
    options = "-c default_transaction_read_only=off"
    with psycopg.connect(world.servers.postgres_dsn, autocommit=True, options=options) as connection:
        try:
            connection.execute("alter system set default_transaction_read_only = on")
            connection.execute("select pg_reload_conf()")
            yield
        finally:
            connection.execute("alter system reset default_transaction_read_only")
            connection.execute("select pg_reload_conf()")
