"""What a transactional producer's start takes for granted of librdkafka."""

import logging
from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import Producer

from sluice.connectors.kafka.client.client_tuning import write_settings
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.producers.cluster_limits import ClusterLimits
from sluice.connectors.kafka.sink.producers.preparation import transactional_config
from sluice.connectors.kafka.sink.producers.producer_client import Client
from sluice.connectors.kafka.sink.producers.transactional_producer import TransactionalProducer
from sluice.runtime.model.task_memory import TaskMemory
from tests.kit.kafka.kafka_fixture import BrokerByLevel
from tests.kit.kafka.kafka_records import unique
from tests.kit.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

_STARTS = 20
_STALLED = 2  # on a machine that hung for longer than a start waits


class _Log(logging.Handler):
    """What librdkafka says."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.mark.parametrize("topic", [None, "orders"])
def test_a_producer_asks_for_its_coordinator_when_a_broker_can_be_asked(
    kafka_by_level: BrokerByLevel, topic: str | None
) -> None:
    connection = KafkaConnection(bootstrap_servers=kafka_by_level(2).bootstrap)
    config = transactional_config(
        connection, ClusterLimits(), write_settings(TaskMemory(), {}), transaction_timeout_s=None
    )
    log, logger = _Log(), logging.getLogger(unique("librdkafka"))
    logger.addHandler(log)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False

    def make(settings: Mapping[str, Any]) -> Client:
        client: Any = Producer({**settings, "debug": "eos"}, logger=logger)
        made: Client = client
        return made

    asked = late = 0
    for _ in range(_STARTS):
        log.lines.clear()
        producer = TransactionalProducer(make, config, unique("start"))
        producer.prepare(topic=topic, timeout_s=PATIENCE_S)
        producer.release()
        asked += any("Querying for transaction coordinator" in line for line in log.lines)
        late += any("Unable to query" in line for line in log.lines)
    assert asked >= _STARTS - _STALLED
    assert late <= _STALLED
