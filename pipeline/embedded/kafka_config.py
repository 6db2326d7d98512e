"""The configuration of the embedded brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LOG_DIR", "ExtraListener", "Member", "broker_properties"]

# Relative to the broker's working directory: an absolute path could hold a comma, which separates
# folders here, or letters that a properties file would need in escaped form.
LOG_DIR = "data"


class ExtraListener(NamedTuple):
    """One more listener: the broker listens on `port` and tells clients of it to use `advertised_port`.

    With another `protocol` (SSL, SASL_PLAINTEXT, SASL_SSL) its keys are further properties of the broker.
    """

    name: str
    port: int
    advertised_port: int
    protocol: str = "PLAINTEXT"


class Member(NamedTuple):
    """A broker's place in a cluster of several. `controllers` has the controller port of each member by its node id."""

    cluster_id: str
    node_id: int
    client_port: int
    controllers: Mapping[int, int]

    @property
    def controller_port(self) -> int:
        return self.controllers[self.node_id]


_FIXED = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    # By the protocol of KIP-848 a member learns by its next heartbeat what it has to give up or may take: 5 s by default, for
    # each step of a rebalance.
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
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


# What is different with several brokers: each record, offset and transaction has as many copies as there are brokers,
# up to three, and is acknowledged when all but one of them have it.
_COPIES = (
    "default.replication.factor",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "share.coordinator.state.topic.replication.factor",
)
_IN_SYNC = (
    "min.insync.replicas",
    "transaction.state.log.min.isr",
    "share.coordinator.state.topic.min.isr",
)
_PATIENCE = {
    # Several Java processes share the machine: a session as short as that of a broker alone would run out by itself.
    "broker.session.timeout.ms": "4000",
    # A silent replica holds up every write until it is left out (default 30 s).
    "replica.lag.time.max.ms": "6000",
}


def broker_properties(
    *,
    client_port: int,
    controller_port: int,
    extra_listeners: Sequence[ExtraListener] = (),
    member: Member | None = None,
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
            [*(f"{one.name}:{one.protocol}" for one in clients), "CONTROLLER:PLAINTEXT"]
        ),
        "log.dirs": LOG_DIR,
        **(_of_cluster(member) if member else {"controller.quorum.bootstrap.servers": controller}),
        **(overrides or {}),
    }


def _of_cluster(member: Member) -> dict[str, str]:
    copies = min(3, len(member.controllers))
    voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in member.controllers.items())
    return {
        "node.id": str(member.node_id),
        "controller.quorum.voters": voters,
        **dict.fromkeys(_COPIES, str(copies)),
        **dict.fromkeys(_IN_SYNC, str(max(1, copies - 1))),
        **_PATIENCE,
    }


def _address(name: str, port: int) -> str:
    return f"{name}://127.0.0.1:{port}"
