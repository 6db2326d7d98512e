"""A real Apache Kafka of several brokers on one machine: three copies of each record, two of them in sync or no success."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

from pipeline.embedded.files import write_atomically
from pipeline.embedded.jars import ensure_jars
from pipeline.embedded.kafka import EmbeddedKafka, new_cluster_id
from pipeline.embedded.kafka_config import Member
from pipeline.embedded.kafka_probe import serves_metadata
from pipeline.embedded.ports import remembered_ports
from pipeline.embedded.server import quiet
from pipeline.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["EmbeddedKafkaCluster"]

_HEAP = "-Xmx256m"
_START_TIMEOUT = 90.0


class EmbeddedKafkaCluster:
    """Brokers with the node ids 1 to `size` over one folder. Each is started, stopped, killed and frozen by itself.

    Not thread-safe. Raises EmbeddedError.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        size: int = 3,
        log: Callable[[str], None] = quiet,
        temporary: bool = False,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """`temporary`: the folder is removed at the end, however this process ends."""
        self.data_dir = data_dir.resolve()
        self._size = size
        self._log = log
        self._temporary = temporary
        self._properties = dict(properties or {})
        self.brokers: dict[int, EmbeddedKafka] = {}

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.bootstrap_servers for broker in self.brokers.values())

    def start(self) -> None:
        """Start those that do not run, all at once, since none is ready alone, and wait until each sees all."""
        ensure_jars(self._log)  # here, not in a thread: a download can be interrupted here
        if not self.brokers:
            self.brokers = {member.node_id: self._broker(member) for member in self._members()}
        try:
            with ThreadPoolExecutor(self._size) as pool:
                list(pool.map(EmbeddedKafka.start, self.brokers.values()))
            self._await_all()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop all. What is temporary is killed: a broker that leaves in order waits for the others, which leave as well."""
        for broker in self.brokers.values():
            if self._temporary and broker.running:
                broker.kill()
        with ThreadPoolExecutor(self._size) as pool:
            list(pool.map(EmbeddedKafka.stop, self.brokers.values()))
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _members(self) -> list[Member]:
        nodes = range(1, self._size + 1)
        names = [f"{kind}-{node}" for kind in ("client", "controller") for node in nodes]
        ports = remembered_ports(self.data_dir / "ports.json", names)
        controllers = {node: ports[f"controller-{node}"] for node in nodes}
        cluster_id = self._cluster_id()
        return [Member(cluster_id, node, ports[f"client-{node}"], controllers) for node in nodes]

    def _cluster_id(self) -> str:
        file = self.data_dir / "cluster-id"
        if not file.exists():
            write_atomically(file, new_cluster_id())
        return file.read_text()

    def _broker(self, member: Member) -> EmbeddedKafka:
        return EmbeddedKafka(
            self.data_dir / f"broker-{member.node_id}",
            log=self._log,
            temporary=self._temporary,
            properties=self._properties,
            jvm_options=[_HEAP],
            member=member,
        )

    def _await_all(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT
        for broker in self.brokers.values():
            while not serves_metadata(broker.port, brokers=self._size):
                broker.check()
                if time.monotonic() > deadline:
                    raise EmbeddedError(
                        f"the {self._size} brokers did not find each other within {_START_TIMEOUT:g} s"
                    )
                time.sleep(0.05)
