"""A real schema registry, Apicurio, over a Postgres: for development and tests.

It speaks the registry protocol that outside tools expect, below `/apis/ccompat/v7`. Kept in Postgres, because its
in-memory storage numbers ids afresh in each process, and an id that changes its meaning is worse than none.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from pipeline.embedded.download import fetch_artifact, progress
from pipeline.embedded.jars import cache_root
from pipeline.embedded.java import NOT_INHERITED, java_executable
from pipeline.embedded.locks import FileLock
from pipeline.embedded.processes import Command
from pipeline.embedded.server import EmbeddedServer, quiet
from pipeline.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["VERSION", "EmbeddedRegistry", "ensure_registry"]

VERSION = "3.3.3"
_COORDINATE = f"io.apicurio:apicurio-registry-app:{VERSION}:all:tar.gz"
_SHA256 = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_PATH = "/apis/ccompat/v7"


def ensure_registry(log: Callable[[str], None] = quiet, *, cache: Path | None = None) -> Path:
    """The folder with the registry's programs; downloads them (158 MB) when they are not on this machine.

    Safe in two processes at once. Raises EmbeddedError when they cannot be fetched.
    """
    folder = (cache or cache_root()) / f"registry-{VERSION}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            if not folder.is_dir():
                _install(folder, log)
    except (OSError, tarfile.TarError) as error:
        raise EmbeddedError(
            f"cannot keep the schema registry in {folder}: {error}. PIPELINE_CACHE_DIR names another place for it"
        ) from error
    return folder


def _install(folder: Path, log: Callable[[str], None]) -> None:
    # Unpacked beside its place and moved there when complete: a cut-off attempt is never taken for a registry.
    with (
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=".registry-") as scratch,
        progress(f"downloading the schema registry {VERSION}", total=1, log=log) as step,
    ):
        step("158 MB")
        archive = Path(scratch) / "registry.tar.gz"
        fetch_artifact(_COORDINATE, _SHA256, target=archive)
        unpacked = Path(scratch) / "unpacked"
        with tarfile.open(archive) as tar:
            tar.extractall(unpacked, filter="data")
        unpacked.rename(folder)
    log(f"the schema registry is now in {folder}")


class EmbeddedRegistry(EmbeddedServer):
    """One registry, which keeps its schemas in `database` (made when missing) of the Postgres at `dsn`."""

    name: ClassVar[str] = "schema registry"
    port_names: ClassVar[tuple[str, ...]] = ("client", "management")
    start_timeout: ClassVar[float] = 150.0

    def __init__(
        self,
        data_dir: Path,
        *,
        dsn: str,
        database: str = "registry",
        log: Callable[[str], None] = quiet,
        temporary: bool = False,
    ) -> None:
        """`dsn` names a Postgres and a user who may create databases."""
        super().__init__(data_dir, log=log, temporary=temporary)
        self._dsn = dsn
        self._database = database
        self._programs = Path()

    @property
    def url(self) -> str:
        """For the setting `schema_registry.url`."""
        return f"http://127.0.0.1:{self.port}{_PATH}"

    @property
    def marker(self) -> str:
        return f"-Dpipeline.data.dir={self.data_dir}"

    def _install(self) -> None:
        self._programs = ensure_registry(self.log)
        known = "select 1 from pg_database where datname = %s"
        with psycopg.connect(self._dsn, autocommit=True, connect_timeout=5) as connection:
            if not connection.execute(known, [self._database]).fetchone():
                connection.execute(sql.SQL("create database {}").format(sql.Identifier(self._database)))

    def _command(self) -> Command:
        jar = self._programs / "quarkus-run.jar"
        return Command(
            name=self.name,
            argv=[str(java_executable()), *_JVM, self.marker, "-jar", str(jar)],
            log_file=self.log_file,
            stop_signal=signal.SIGTERM,
            environment=self._environment(),
            remove_after=self.data_dir if self.temporary else None,
        )

    def _environment(self) -> dict[str, str]:
        """By environment rather than by options: the command line, and with it a password, is everybody's to read."""
        inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
        return {**inherited, "LC_ALL": "C.UTF-8", **_as_variables(self._properties())}

    def _properties(self) -> dict[str, str]:
        place = conninfo_to_dict(self._dsn)
        return {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(self._ports["client"]),
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": str(self._ports["management"]),
            "apicurio.storage.kind": "sql",
            "apicurio.storage.sql.kind": "postgresql",
            "apicurio.datasource.url": f"jdbc:postgresql://{place['host']}:{place.get('port', 5432)}/{self._database}",
            "apicurio.datasource.username": str(place["user"]),
            "apicurio.datasource.password": str(place.get("password", "")),
            # Its defaults, 20 connections at once and up to 100, are all that a small Postgres has.
            "apicurio.datasource.jdbc.initial-size": "1",
            "apicurio.datasource.jdbc.min-size": "1",
            "apicurio.datasource.jdbc.max-size": "5",
        }

    def _is_ready(self) -> bool:
        return _lists_subjects(self.port)

    def reset(self) -> None:
        """Remove the data directory and the database."""
        super().reset()
        drop = sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(self._database))
        with psycopg.connect(self._dsn, autocommit=True, connect_timeout=5) as connection:
            connection.execute(drop)


def _as_variables(properties: Mapping[str, str]) -> dict[str, str]:
    return {name.replace(".", "_").replace("-", "_").upper(): value for name, value in properties.items()}


def _lists_subjects(port: int) -> bool:
    """Whether it answers a real question: the port is open some time before."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", f"{_PATH}/subjects")
        answer = connection.getresponse()
        return answer.status == 200 and isinstance(json.loads(answer.read()), list)
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()
