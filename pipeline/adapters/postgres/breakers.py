"""Circuits of breakers on Postgres: the rules of `pipeline.core.breaker`, applied under row locks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.adapters.postgres.arrays import numbers, texts
from pipeline.adapters.postgres.migrate import check_migrated
from pipeline.adapters.postgres.queries import QUERIES
from pipeline.adapters.postgres.session import Connection, Session, Target
from pipeline.core.breaker import BreakerKey, BreakerState, Circuit, Step
from pipeline.core.ports import BreakerLook

__all__ = ["PostgresBreakers"]


class PostgresBreakers:
    """See `pipeline.core.ports.BreakerStore`. One connection, made when it is first needed."""

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "pipeline",
        connect_timeout: float = 5,
        statement_timeout: float = 10,
    ) -> None:
        target = Target.of(
            dsn, schema=schema, connect_timeout=connect_timeout, statement_timeout=statement_timeout
        )
        self._checked = False
        self._session = Session(target, "breakers", {}, on_connect=self._check)

    def _check(self, connection: Connection) -> None:
        if not self._checked:  # once only: who reconnects while a newer release migrates goes on
            check_migrated(connection)
            self._checked = True

    def look(self) -> BreakerLook:
        return self._session.run(_look)

    def change(self, steps: Mapping[BreakerKey, Step]) -> BreakerLook:
        return self._session.run(lambda connection: _change(connection, steps))

    def forget(self, older_than: float) -> int:
        return self._session.run(lambda connection: _forget(connection, older_than))

    def close(self) -> None:
        self._session.close()


def _look(connection: Connection) -> BreakerLook:
    rows = connection.execute(QUERIES["breakers_look"], prepare=True, binary=True).fetchall()
    # One row at least: the time. Without a circuit beside it the rest of it is null.
    return BreakerLook(rows[0][0], dict(_circuit(row[1:]) for row in rows if row[1] is not None))


def _change(connection: Connection, steps: Mapping[BreakerKey, Step]) -> BreakerLook:
    keys = {
        "job_type": texts([key.job_type for key in steps]),
        "tenant": texts([key.tenant for key in steps]),
    }
    with connection.transaction():
        connection.execute(QUERIES["breakers_ensure"], keys, prepare=True)
        rows = connection.execute(QUERIES["breakers_lock"], keys, prepare=True, binary=True).fetchall()
        (now,) = connection.execute(QUERIES["breakers_now"], prepare=True, binary=True).fetchone() or (0.0,)
        before = dict(_circuit(row) for row in rows)
        after = {key: steps[key](circuit, now) for key, circuit in before.items()}
        changed = [(key, circuit) for key, circuit in after.items() if circuit != before[key]]
        if changed:
            connection.execute(QUERIES["breakers_write"], _columns(changed), prepare=True)
    return BreakerLook(now, after)


def _forget(connection: Connection, seconds: float) -> int:
    row = connection.execute(QUERIES["breakers_forget"], {"seconds": seconds}).fetchone()
    assert row is not None
    return int(row[0])


def _circuit(row: Sequence[Any]) -> tuple[BreakerKey, Circuit]:
    job_type, tenant, state, *rest = row
    return BreakerKey(job_type, tenant), Circuit(BreakerState(state), *rest)


def _columns(changed: Sequence[tuple[BreakerKey, Circuit]]) -> dict[str, str]:
    columns: dict[str, str] = {
        "job_type": texts([key.job_type for key, _ in changed]),
        "tenant": texts([key.tenant for key, _ in changed]),
    }
    for name in Circuit._fields:
        values = [getattr(circuit, name) for _, circuit in changed]
        columns[name] = texts(values) if isinstance(values[0], str) else numbers(values)
    return columns
