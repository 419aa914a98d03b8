"""A topic's records as the checker's compact history."""

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.verify.topic_history import read_records
from sluice.runtime.checker import History
from tests.kit.memory_checker import history_of

__all__ = ["read_history"]


def read_history(
    connection: KafkaConnection, topic: str, *, read_committed: bool = True
) -> History:
    """Everything in the topic now."""
    return history_of(read_records(connection, topic, read_committed=read_committed))
