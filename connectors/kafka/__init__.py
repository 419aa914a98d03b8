"""Kafka source and sink; exactly once, in Python."""

from connectors.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]
