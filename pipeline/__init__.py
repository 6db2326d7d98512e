"""A Kafka-based partitioned work pipeline."""
