"""Both servers over one data directory."""

from __future__ import annotations

import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pipeline.embedded.jars import ensure_jars
from pipeline.embedded.kafka import EmbeddedKafka
from pipeline.embedded.postgres import EmbeddedPostgres
from pipeline.embedded.server import EmbeddedServer, quiet

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pipeline.embedded.kafka_config import ExtraListener

__all__ = ["Servers", "start_servers"]


@dataclass(kw_only=True)
class Servers:
    """Running servers. Use it as a context manager, or call `stop`. An address is empty for one not asked for."""

    data_dir: Path
    kafka: EmbeddedKafka | None
    postgres: EmbeddedPostgres | None
    temporary: bool = field(default=False, repr=False)

    @property
    def bootstrap_servers(self) -> str:
        return self.kafka.bootstrap_servers if self.kafka else ""

    @property
    def postgres_dsn(self) -> str:
        return self.postgres.dsn if self.postgres else ""

    def stop(self) -> None:
        """Stop both, and remove the data directory if it was a temporary one. Harmless when repeated."""
        for server in self._all():
            server.stop()
        if self.temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def check(self) -> None:
        """Raise EmbeddedError when one of them has ended by itself."""
        for server in self._all():
            server.check()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        with ThreadPoolExecutor() as pool:
            starts = [pool.submit(server.start) for server in self._all()]
            try:
                wait(starts)
            except BaseException:  # Ctrl-C: do not wait for the rest of a start
                self.stop()
                raise
        for start in starts:
            start.result()

    def _all(self) -> list[EmbeddedServer]:
        return [server for server in (self.kafka, self.postgres) if server is not None]


def start_servers(
    data_dir: Path | None = None,
    *,
    log: Callable[[str], None] = quiet,
    kafka: bool = True,
    postgres: bool = True,
    extra_listeners: Sequence[ExtraListener] = (),
    kafka_properties: Mapping[str, str] | None = None,
) -> Servers:
    """Start a real Kafka and a real Postgres and wait until both serve clients.

    Data, ports and password in `data_dir` are used again; without one, a temporary directory is made, and
    removed by `stop`. The first start on a machine downloads the jars of Kafka. Raises EmbeddedError.
    """
    temporary = data_dir is None
    folder = Path(tempfile.mkdtemp(prefix="pipeline-")) if data_dir is None else data_dir.absolute()
    servers = Servers(
        data_dir=folder,
        temporary=temporary,
        kafka=EmbeddedKafka(
            folder / "kafka",
            log=log,
            temporary=temporary,
            extra_listeners=extra_listeners,
            properties=kafka_properties,
        )
        if kafka
        else None,
        postgres=EmbeddedPostgres(folder / "postgres", log=log, temporary=temporary) if postgres else None,
    )
    try:
        if kafka:
            ensure_jars(log)  # here, not in the thread below: a download can be interrupted here
        servers._start()  # noqa: SLF001 - the only caller
    except BaseException:
        servers.stop()
        raise
    return servers
