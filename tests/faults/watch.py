"""Looks at leases and at the memory of workers while faults happen."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import NamedTuple

import psutil
import psycopg

from tests.harness.background import Background
from tests.harness.world import World

__all__ = ["Look", "Watch"]

_EVERY = 0.2
_LEASES = 'select worker_id from "{}".workers where left_at is null and alive_until > clock_timestamp()'


class Look(NamedTuple):
    """Memory in MB by pid; leases that were alive, or None if Postgres could not be asked."""

    at: float
    memory: dict[int, float]
    leases: frozenset[str] | None


class Watch(Background):
    """Looks between `__enter__` and `__exit__`."""

    def __init__(self, world: World) -> None:
        self._world = world
        super().__init__("watch")
        self.looks: list[Look] = []

    def most_memory(self) -> float:
        return max((size for look in self.looks for size in look.memory.values()), default=0.0)

    def _loop(self) -> None:
        connection: psycopg.Connection | None = None
        while not self._stopped.wait(_EVERY):
            at = time.time()
            try:
                if connection is None:
                    connection = self._connect()
                found = connection.execute(_LEASES.format(self._world.name).encode()).fetchall()
                leases = frozenset(name for (name,) in found)
            except psycopg.Error:
                connection = self._closed(connection)
                leases = None
            self.looks.append(Look(at, self._memory(), leases))
        self._closed(connection)

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(self._world.servers.postgres_dsn, autocommit=True, connect_timeout=2)

    @staticmethod
    def _closed(connection: psycopg.Connection | None) -> None:
        if connection is not None:
            connection.close()

    def _memory(self) -> dict[int, float]:
        memory = {}
        for worker in list(self._world.workers):
            with suppress(psutil.NoSuchProcess):
                memory[worker.pid] = psutil.Process(worker.pid).memory_info().rss / 1e6
        return memory
