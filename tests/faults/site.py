"""The servers of the suite, which any scenario may stop, kill, freeze or cut off, and their state made whole again."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Self

from psycopg.conninfo import make_conninfo

from pipeline.embedded import EmbeddedKafka, EmbeddedPostgres, ExtraListener
from tests.harness.proxy import Proxy, kafka_proxy, postgres_proxy
from tests.servers import TestServers

__all__ = ["Site"]

# With the protocol of KIP-848 sessions are the broker's to choose, and 45 s unless it is told otherwise.
_SESSIONS = {
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
}


class Site:
    """One Kafka and one Postgres, started when they are first needed, each with a second address behind a proxy."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @cached_property
    def kafka_proxy(self) -> Proxy:
        """Clients that were given its address never go round it."""
        with socket.create_server(("127.0.0.1", 0)) as reserved:
            port: int = reserved.getsockname()[1]
        self._listener_port = port
        proxy = kafka_proxy(port)
        self._stack.callback(proxy.close)
        return proxy

    @cached_property
    def kafka(self) -> EmbeddedKafka:
        proxy = self.kafka_proxy
        listener = ExtraListener("PROXIED", self._listener_port, proxy.port)
        server = EmbeddedKafka(
            self._folder / "kafka", temporary=True, extra_listeners=[listener], properties=_SESSIONS
        )
        return self._stack.enter_context(server)

    @cached_property
    def postgres(self) -> EmbeddedPostgres:
        return self._stack.enter_context(EmbeddedPostgres(self._folder / "postgres", temporary=True))

    @cached_property
    def postgres_proxy(self) -> Proxy:
        proxy = postgres_proxy(self.postgres.port)
        self._stack.callback(proxy.close)
        return proxy

    @property
    def servers(self) -> TestServers:
        """The direct way."""
        return TestServers(self.kafka.bootstrap_servers, self.postgres.dsn)

    @property
    def kafka_by_proxy(self) -> str:
        _ = self.kafka
        return f"127.0.0.1:{self.kafka_proxy.port}"

    @property
    def postgres_by_proxy(self) -> str:
        return make_conninfo(self.postgres.dsn, port=self.postgres_proxy.port)

    def heal(self) -> None:
        """Whatever a scenario did to the servers that it used: they run, and nothing is in the way."""
        used = vars(self)
        for name in ("kafka_proxy", "postgres_proxy"):
            if name in used:
                used[name].heal()
        for name in ("kafka", "postgres"):
            if name in used:
                if used[name].running:
                    used[name].resume()
                used[name].start()
