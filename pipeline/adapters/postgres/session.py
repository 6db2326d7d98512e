"""One connection for one role, made when it is needed and thrown away when anything about it is in doubt."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg import errors

from pipeline.adapters.postgres.errors import describe, parse_dsn, translate
from pipeline.errors import ConfigError, StoreUnavailable

__all__ = ["FIXED_PLANS", "Connection", "Session", "Target", "check_schema"]

Connection = psycopg.Connection[tuple[Any, ...]]
T = TypeVar("T")

# The only plan that is right whatever the statistics say: for each element one index look-up. Left to itself Postgres
# read the whole table as it grew, at a tenth of the speed, and joined by hashing on a fresh one.
FIXED_PLANS = {
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}
# A server that vanished without a word is noticed within about 10 s. A DSN may say otherwise.
_KEEPALIVE = {
    "keepalives_idle": "4",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
# The same at the server's end: a client that vanished must not keep its locks for the hours that systems allow.
_SERVER_KEEPALIVE = {
    "tcp_keepalives_idle": "4",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}
_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
_CLOSE_PATIENCE = 1.0
_TRIES = 4


def check_schema(schema: str) -> str:
    """Give the name back, or raise `ConfigError`: it goes into statements and options as it is."""
    if not _SCHEMA.fullmatch(schema):
        raise ConfigError(
            f"the Postgres schema is {schema[:80]!r}; allowed: a-z, 0-9 and '_', at most 63, not starting with a digit or pg_"
        )
    return schema


@dataclass(frozen=True, repr=False)
class Target:
    """Where to connect. `place` names it without secrets."""

    parameters: Mapping[str, str]
    schema: str
    connect_timeout: float
    statement_timeout: float
    place: str

    @classmethod
    def of(cls, dsn: str, *, schema: str, connect_timeout: float, statement_timeout: float) -> Target:
        """Raises `ConfigError` for a DSN or schema that cannot be right."""
        parsed = parse_dsn(dsn)
        return cls(parsed, check_schema(schema), connect_timeout, statement_timeout, describe(parsed))

    def libpq(self, role: str, settings: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Parameters of a connection for anything, with the settings that the database gives it but for these."""
        ours = [
            f"-c {name}={value.replace(' ', chr(92) + ' ')}"
            for name, value in {**_SERVER_KEEPALIVE, **(settings or {})}.items()
        ]
        return {
            **_KEEPALIVE,
            **self.parameters,
            # Libpq knows whole seconds only, and takes 1 for 2.
            "connect_timeout": max(2, round(self.connect_timeout)),
            "application_name": f"pipeline {role}",
            "client_encoding": "utf8",
            "options": " ".join([self.parameters.get("options", ""), *ours]).strip(),
        }

    def connect(self, role: str, settings: Mapping[str, str]) -> Connection:
        """Open a connection to our tables, in autocommit mode. Raises psycopg's errors."""
        session = {
            "search_path": self.schema,
            "default_transaction_isolation": "read committed",
            "statement_timeout": f"{self.statement_timeout * 1000:.0f}",
            **settings,
        }
        return psycopg.connect(**self.libpq(role, session), autocommit=True)


class Session:
    """Runs work on its own connection, one piece at a time.

    After an error that leaves the connection in doubt the next piece of work gets a new one.
    """

    def __init__(
        self,
        target: Target,
        role: str,
        settings: Mapping[str, str],
        *,
        on_connect: Callable[[Connection], None] | None = None,
    ) -> None:
        self._target = target
        self._role = role
        self._settings = settings
        self._on_connect = on_connect
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._closed = False

    def run(self, work: Callable[[Connection], T]) -> T:
        """Give what `work` gives. Its statements must be safe to repeat: a deadlock makes it start again.

        Raises `StoreUnavailable`, `DatabaseNotMigrated`.
        """
        with self._lock:
            try:
                return self._repeat(work)
            except psycopg.Error as error:
                self._drop()
                raise translate(error, self._target.place) from error
            except BaseException:
                # Whatever broke off in the middle may have left an answer unread.
                self._drop()
                raise

    def _repeat(self, work: Callable[[Connection], T]) -> T:
        connection = self._connected()
        for _ in range(_TRIES - 1):
            with contextlib.suppress(errors.DeadlockDetected, errors.SerializationFailure):
                return work(connection)
        return work(connection)

    def _connected(self) -> Connection:
        if self._closed:
            raise StoreUnavailable(f"{self._target.place}: this store is closed")
        if self._connection is None or self._connection.closed:
            self._connection = self._target.connect(self._role, self._settings)
            if self._on_connect is not None:
                self._on_connect(self._connection)
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close for good. Work that hangs on a silent server is cut off: it raises `StoreUnavailable`."""
        self._closed = True
        while not self._lock.acquire(timeout=_CLOSE_PATIENCE):
            self._cut()
        try:
            self._drop()
        finally:
            self._lock.release()

    def _cut(self) -> None:
        connection = self._connection
        with contextlib.suppress(OSError, psycopg.Error):
            if connection is not None:
                with socket.socket(fileno=os.dup(connection.fileno())) as wire:
                    wire.shutdown(socket.SHUT_RDWR)
