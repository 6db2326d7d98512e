"""Finds out that a client has forgotten how to find its cluster.

A broker that shuts down, and is the last one, may answer that there are no brokers. librdkafka then drops all that it knows, its
bootstrap addresses too, and never tries to connect again (librdkafka 5301): no error is raised, nothing comes any more, and
only a new client helps.
"""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaException

from pipeline.adapters.kafka.config import Conf, construct
from pipeline.adapters.kafka.failures import ClientLog

__all__ = ["ForgottenCluster"]

_OWN_SECONDS = 1.0
_FRESH_SECONDS = 3.0
_OF_MEMBERS = ("group.protocol", "group.instance.id", "group.remote.assignor")


class ForgottenCluster:
    """For one consumer. `heard` while it has partitions; else `is_certain` is asked again and again."""

    def __init__(self, config: Conf, *, patience: float = 15.0) -> None:
        self._config = {key: value for key, value in config.items() if key not in _OF_MEMBERS}
        self._patience = patience
        self._since = time.monotonic()

    def heard(self) -> None:
        self._since = time.monotonic()

    def is_certain(self, client: Consumer, topic: str) -> bool:
        """Whether a fresh client finds the cluster and this one does not. Once in the time of patience, and bounded."""
        if time.monotonic() - self._since < self._patience:
            return False
        self.heard()
        if _answers(client, topic, _OWN_SECONDS):
            return False
        fresh = construct(Consumer, self._config, ClientLog())
        try:
            return _answers(fresh, topic, _FRESH_SECONDS) and not _answers(client, topic, _OWN_SECONDS)
        finally:
            fresh.close()


def _answers(client: Consumer, topic: str, seconds: float) -> bool:
    try:
        return bool(client.list_topics(topic, timeout=seconds).brokers)
    except KafkaException:
        return False
