"""Forgets jobs that ended long ago, and workers that are gone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pipeline.adapters.postgres.migrate import check_migrated
from pipeline.adapters.postgres.queries import QUERIES
from pipeline.adapters.postgres.session import FIXED_PLANS, Connection, Session, Target
from pipeline.core.ports import Pruned

__all__ = ["PostgresPruning"]

FEWEST_PAGES = 128  # a megabyte
MOST_PAGES = 4096
STEPS = 3_000  # in about so many a table is gone through that is too large for fewer
ROUND_SECONDS = 3600.0


class PostgresPruning:
    """See `pipeline.core.ports.Pruning`. One connection, made at the first call. Calls raise `StoreUnavailable`."""

    def __init__(
        self, dsn: str, *, schema: str = "pipeline", connect_timeout: float = 5, statement_timeout: float = 30
    ) -> None:
        def session(settings: dict[str, str], timeout: float) -> Session:
            target = Target.of(dsn, schema=schema, connect_timeout=connect_timeout, statement_timeout=timeout)
            return Session(target, "prune", settings, on_connect=check_migrated)

        # By pages and by keys, whatever the planner thinks. A count reads whole tables, and may take its time.
        self._deletes = session(FIXED_PLANS, statement_timeout)
        self._counts = session({"default_transaction_read_only": "on"}, 0)

    def turn(self, keep: float) -> Pruned | None:
        return self._deletes.run(lambda connection: _turn(connection, keep))

    def count(self, keep: float) -> Pruned:
        """What would be deleted now. Reads all jobs."""
        row = self._counts.run(
            lambda connection: connection.execute(QUERIES["prune_count"], {"keep": keep}).fetchone()
        )
        assert row is not None
        return Pruned(int(row[0]), int(row[1]), over=True)

    def all(self, keep: float, *, on_step: Callable[[int], None] = lambda _: None) -> Pruned:
        """Delete all of it, a few pages at a time, whatever others do; `on_step` is told how many jobs are gone so far."""
        pages = self._deletes.run(_pages)
        jobs = 0
        for page in range(0, pages, MOST_PAGES):
            jobs += self._deletes.run(partial(_prune, keep=keep, first=page, end=page + MOST_PAGES))
            on_step(jobs)
        return Pruned(jobs, self._deletes.run(lambda connection: _workers(connection, keep)), over=True)

    def close(self) -> None:
        self._deletes.close()
        self._counts.close()


def _turn(connection: Connection, keep: float) -> Pruned | None:
    with connection.transaction():
        row = connection.execute(QUERIES["prune_turn"]).fetchone()
        if row is None:
            return None
        page, done, pages = row
        end = page + min(MOST_PAGES, max(FEWEST_PAGES, pages // STEPS))
        jobs = _prune(connection, keep=keep, first=page, end=end)
        over = end >= pages
        workers = _workers(connection, keep) if over else 0
        values = {
            "page": 0 if over else end,
            "done": 0 if over else done + jobs,
            "rest": ROUND_SECONDS if over else 0.0,
        }
        connection.execute(QUERIES["prune_turn_over"], values)
        return Pruned(jobs, workers, over=over, in_round=done + jobs)


def _prune(connection: Connection, *, keep: float, first: int, end: int) -> int:
    values = {"keep": keep, "first": f"({first},0)", "end": f"({end},0)"}
    row = connection.execute(QUERIES["prune_pages"], values).fetchone()
    assert row is not None
    return int(row[0])


def _workers(connection: Connection, keep: float) -> int:
    return connection.execute(QUERIES["prune_workers"], {"keep": keep}).rowcount


def _pages(connection: Connection) -> int:
    row = connection.execute(
        "select pg_relation_size('jobs') / current_setting('block_size')::integer"
    ).fetchone()
    assert row is not None
    return int(row[0])
