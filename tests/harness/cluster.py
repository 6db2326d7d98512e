"""Which broker does what in a cluster."""

from __future__ import annotations

from typing import Any

from confluent_kafka.admin import AdminClient

from tests.harness.world import World

__all__ = ["coordinator", "in_sync", "leaders"]

_TIMEOUT = 10.0


def leaders(world: World, topic: str) -> dict[int, int]:
    """The broker that leads each partition of a topic; -1 while there is none."""
    return {number: found.leader for number, found in _partitions(world, topic).items()}


def in_sync(world: World, topic: str) -> int:
    """How many copies of its worst partition are in sync."""
    return min(len(found.isrs) for found in _partitions(world, topic).values())


def coordinator(world: World) -> int:
    """The broker that keeps the group of the workers; -1 while there is none.

    It leads the partition of the offsets topic that the group's name falls to, by Java's hash of a string.
    """
    found = leaders(world, "__consumer_offsets")
    code = 0
    for character in world.group:
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    return found[(code & 0x7FFFFFFF) % len(found)]


def _partitions(world: World, topic: str) -> Any:
    return _client(world).list_topics(topic, timeout=_TIMEOUT).topics[topic].partitions


def _client(world: World) -> AdminClient:
    return AdminClient({"bootstrap.servers": world.servers.bootstrap_servers, "log_level": "0"})
