"""The configuration of the embedded broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["LOG_DIR", "ExtraListener", "broker_properties"]

# Relative to the broker's working directory: an absolute path could hold a comma, which separates
# folders here, or letters that a properties file would need in escaped form.
LOG_DIR = "data"


class ExtraListener(NamedTuple):
    """One more listener: the broker listens on `port` and tells clients of it to use `advertised_port`."""

    name: str
    port: int
    advertised_port: int


_FIXED = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    # Internal topics: one copy (there is one broker), few partitions (each costs files and start time).
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "4",
    # A killed broker is let in again only when the session of its former life has run out (default 9 s).
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    # The cleaner takes this much heap at once; its default would be a quarter of ours.
    "log.cleaner.dedupe.buffer.size": "16777216",
}


def broker_properties(
    *,
    client_port: int,
    controller_port: int,
    extra_listeners: Sequence[ExtraListener] = (),
    overrides: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Every listener is on 127.0.0.1 only: there is no password in front of it."""
    clients = [ExtraListener("PLAINTEXT", client_port, client_port), *extra_listeners]
    controller = f"127.0.0.1:{controller_port}"
    return {
        **_FIXED,
        "listeners": ",".join(
            [*(_address(one.name, one.port) for one in clients), f"CONTROLLER://{controller}"]
        ),
        "advertised.listeners": ",".join(_address(one.name, one.advertised_port) for one in clients),
        "listener.security.protocol.map": ",".join(
            f"{name}:PLAINTEXT" for name in [*(one.name for one in clients), "CONTROLLER"]
        ),
        "controller.quorum.bootstrap.servers": controller,
        "log.dirs": LOG_DIR,
        **(overrides or {}),
    }


def _address(name: str, port: int) -> str:
    return f"{name}://127.0.0.1:{port}"
