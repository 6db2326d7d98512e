"""A real Kafka and a real Postgres from packages only: for development, the demo and tests.

Needs the extra `embedded`. Linux and macOS. Stands alone: it imports nothing of this package but the errors.
"""

from __future__ import annotations

from pipeline.embedded.kafka import EmbeddedKafka
from pipeline.embedded.kafka_cluster import EmbeddedKafkaCluster
from pipeline.embedded.kafka_config import ExtraListener
from pipeline.embedded.postgres import EmbeddedPostgres
from pipeline.embedded.prepare import prepare
from pipeline.embedded.registry import EmbeddedRegistry
from pipeline.embedded.servers import Servers, start_servers

__all__ = [
    "EmbeddedKafka",
    "EmbeddedKafkaCluster",
    "EmbeddedPostgres",
    "EmbeddedRegistry",
    "ExtraListener",
    "Servers",
    "prepare",
    "start_servers",
]
