"""A real Apache Kafka, broker and controller in one process (KRaft), from packages only: alone, or a member of a cluster."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import uuid
from typing import TYPE_CHECKING, ClassVar

from pipeline.embedded.files import write_atomically
from pipeline.embedded.jars import ensure_jars
from pipeline.embedded.java import NOT_INHERITED, archive_options, java_executable
from pipeline.embedded.kafka_config import LOG_DIR, ExtraListener, Member, broker_properties
from pipeline.embedded.kafka_probe import serves_metadata
from pipeline.embedded.processes import Command, run_once
from pipeline.embedded.server import EmbeddedServer, quiet

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

__all__ = ["EmbeddedKafka", "ExtraListener", "new_cluster_id"]

_JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class EmbeddedKafka(EmbeddedServer):
    """One broker over `data_dir`. The first start on a machine downloads its jars (44 MB)."""

    name: ClassVar[str] = "Kafka"
    port_names: ClassVar[tuple[str, ...]] = ("client", "controller")

    def __init__(
        self,
        data_dir: Path,
        *,
        log: Callable[[str], None] = quiet,
        temporary: bool = False,
        extra_listeners: Sequence[ExtraListener] = (),
        properties: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = (),
        stop_timeout: float = 20.0,
        member: Member | None = None,
    ) -> None:
        """`extra_listeners`: further listeners, for a proxy in front; `properties`: broker keys to override.

        `member`: its place in a cluster, which also gives its ports; None for one that is a cluster by itself.
        """
        super().__init__(data_dir, log=log, temporary=temporary)
        self._member = member
        if member is not None:
            self._ports = {"client": member.client_port, "controller": member.controller_port}
        self._extra_listeners = tuple(extra_listeners)
        self._properties = dict(properties or {})
        self._jvm_options = tuple(jvm_options)
        self._stop_timeout = stop_timeout
        self._jars: list[Path] = []

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def marker(self) -> str:
        return f"-Dpipeline.data.dir={self.data_dir}"

    def _install(self) -> None:
        self._jars = ensure_jars(self.log)
        properties = broker_properties(
            client_port=self._ports["client"],
            controller_port=self._ports["controller"],
            extra_listeners=self._extra_listeners,
            member=self._member,
            overrides=self._properties,
        )
        write_atomically(self._config, "".join(f"{key}={value}\n" for key, value in properties.items()))
        if not self._formatted.exists():
            self._format()

    def _format(self) -> None:
        # A format that was cut off leaves half a folder; the mark is written last, so it is done again.
        shutil.rmtree(self.data_dir / LOG_DIR, ignore_errors=True)
        self.log(f"formatting the Kafka storage in {self.data_dir}")
        member = self._member
        whose = ["-t", member.cluster_id] if member else ["--standalone", "-t", new_cluster_id()]
        argv = self._java("kafka.tools.StorageTool", "format", *whose, "-c", str(self._config))
        run_once(
            argv,
            what="formatting the Kafka storage",
            environment=_environment(),
            cwd=self.data_dir,
            timeout=self.start_timeout,
        )
        write_atomically(self._formatted, "")

    def _command(self) -> Command:
        return Command(
            name=self.name,
            argv=self._java(*self._jvm_options, self.marker, "kafka.Kafka", str(self._config)),
            grace=self._stop_timeout,
            log_file=self.log_file,
            stop_signal=signal.SIGTERM,
            environment=_environment(),
            remove_after=self.data_dir if self.temporary else None,
        )

    def _is_ready(self) -> bool:
        return serves_metadata(self.port)

    def _java(self, *arguments: str) -> list[str]:
        class_path = os.pathsep.join(str(jar) for jar in self._jars)
        archive = archive_options(self._jars[0].parent)
        return [str(java_executable()), *_JVM, *archive, "-cp", class_path, *arguments]

    @property
    def _config(self) -> Path:
        return self.data_dir / "server.properties"

    @property
    def _formatted(self) -> Path:
        return self.data_dir / "formatted"


def _environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    return {**inherited, "LC_ALL": "C.UTF-8"}  # else Java cannot open a path with letters outside ASCII


def new_cluster_id() -> str:
    """Kafka's own form of a UUID: URL-safe base64, and no leading dash, which would look like an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
