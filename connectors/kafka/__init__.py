"""Kafka source and transactional sink for Jobs; ``connectors.install`` for the drop-in formats."""

from connectors.kafka.sink import KafkaSink
from connectors.kafka.source import KafkaSource

__all__ = ["KafkaSink", "KafkaSource"]
