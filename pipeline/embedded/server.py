"""What the embedded servers have in common: a data directory that one process may use, ports, start and stop."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self

from pipeline.embedded.locks import FileLock
from pipeline.embedded.ports import is_free, remembered_ports
from pipeline.embedded.processes import ServerProcess, stop_leftovers
from pipeline.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pipeline.embedded.processes import Command

__all__ = ["EmbeddedServer", "quiet"]


def quiet(_: str) -> None:
    """The default `log`: says nothing."""


class EmbeddedServer(ABC):
    """One server over one data directory, which it locks from `start` to `stop`.

    `stop`, `kill` and `start` again keep the ports and the data: clients find it where it was. Everything
    raises EmbeddedError. Not thread-safe.
    """

    name: ClassVar[str]
    port_names: ClassVar[tuple[str, ...]] = ("client",)
    start_timeout: ClassVar[float] = 60.0

    def __init__(
        self, data_dir: Path, *, log: Callable[[str], None] = quiet, temporary: bool = False
    ) -> None:
        """`temporary`: the data directory may be removed when this process dies without stopping."""
        self.data_dir = data_dir.resolve()
        self.log = log
        self.temporary = temporary
        self._lock = FileLock(self.data_dir / ".lock")
        self._ports: dict[str, int] = {}
        self._process: ServerProcess | None = None

    @property
    def port(self) -> int:
        """The port for clients on 127.0.0.1. Known once started, and then for good."""
        return self._ports["client"]

    @property
    def pid(self) -> int:
        return self._running_process().pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def _mark(self) -> Path:
        return self.data_dir / f".embedded-{self.name.lower()}"

    @property
    def log_file(self) -> Path:
        return self.data_dir / "server.log"

    def start(self) -> None:
        """Start and wait until it serves clients. Does nothing when it runs."""
        if self.running:
            return
        try:
            self._take_data_dir()
            self._start()
        except OSError as error:
            self.stop()
            raise EmbeddedError(
                f"cannot start the embedded {self.name} in {self.data_dir}: {error}"
            ) from error
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it in order and release the data directory. Stopping twice is harmless."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        self._lock.release()

    def check(self) -> None:
        """Raise EmbeddedError, with the end of the log, when the server has ended by itself."""
        self._running_process().check()

    def reset(self) -> None:
        """Remove the data directory. Raises EmbeddedError while a process uses it."""
        try:
            self._take_data_dir()
            stop_leftovers(self.marker, name=self.name, log=self.log)
            shutil.rmtree(self.data_dir)
        finally:
            self._lock.release()

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill(self) -> None:
        """SIGKILL, as in a crash. `start` brings it back."""
        self._running_process().kill()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers, until `resume`."""
        self._running_process().pause()

    def resume(self) -> None:
        self._running_process().resume()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    @abstractmethod
    def marker(self) -> str:
        """The element of the command line by which a leftover is found."""

    @abstractmethod
    def _install(self) -> None:
        """Make the data directory ready for the first start. Called at every start."""

    @abstractmethod
    def _command(self) -> Command:
        """How to run the server on `self._ports`."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether clients are served, and find all that they were promised."""

    def _start(self) -> None:
        if self._process is not None:
            self._process.stop()  # it was killed or ended by itself
        stop_leftovers(self.marker, name=self.name, log=self.log)
        self._claim_ports()
        self._install()
        if self.log_file.exists():
            self.log_file.replace(self.log_file.with_suffix(".log.1"))
        self._process = ServerProcess(self._command())
        self._process.wait_until(self._is_ready, timeout=self.start_timeout)

    def _take_data_dir(self) -> None:
        # Parts of it are removed at times, so a folder of somebody else must never be taken for one.
        if not self._mark.exists() and self.data_dir.exists() and any(self.data_dir.iterdir()):
            raise EmbeddedError(f"{self.data_dir} is not empty and was not made for the embedded {self.name}")
        if not self._lock.acquire(wait=False):
            raise EmbeddedError(
                f"the data directory {self.data_dir} is in use by another process (pid {self._lock.holder()}):"
                " stop that one, or name another data directory"
            )
        self._mark.touch()

    def _claim_ports(self) -> None:
        if not self._ports:
            self._ports = remembered_ports(self.data_dir / "ports.json", self.port_names)
            return
        for name, port in self._ports.items():
            if not is_free(port):
                raise EmbeddedError(
                    f"cannot restart the embedded {self.name} where it was:"
                    f" another process took its {name} port {port}"
                )

    def _running_process(self) -> ServerProcess:
        if self._process is None:
            raise EmbeddedError(f"the embedded {self.name} in {self.data_dir} is not started")
        return self._process
