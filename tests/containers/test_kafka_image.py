"""The fixtures of users' tests on a broker in a container: ``pytest --kafka-image IMAGE``."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.kit.user_pytest import passed

pytestmark = [pytest.mark.containers, pytest.mark.extended]

_TEST = """
from confluent_kafka import Producer
from sluice.testing import assert_exactly_once

def test_a_transaction(sluice_kafka, sluice_topic):
    orders, copies = sluice_topic("orders", partitions=2), sluice_topic("copies", partitions=2)
    orders.send(f"order {number}" for number in range(100))
    producer = Producer({"bootstrap.servers": copies.bootstrap, "transactional.id": copies.name})
    producer.init_transactions(60)
    producer.begin_transaction()
    for order in orders.records():
        producer.produce(copies.name, order.value)
    producer.commit_transaction(60)
    assert copies.bootstrap == sluice_kafka.bootstrap
    assert_exactly_once(orders, copies, order=False)
"""


def test_the_broker_is_a_container_that_holds_transactions_alone(
    kafka_image: str, user_project: Path, user_environment: Mapping[str, str]
) -> None:
    """And its host reaches it."""
    (user_project / "test_container.py").write_text(_TEST)
    # A machine without a registry has no clean-up container.
    alone = {
        "TESTCONTAINERS_RYUK_DISABLED": "true",
        "TESTCONTAINERS_CONNECTION_MODE": "docker_host",
    }
    given = {**alone, **user_environment}
    assert "1 passed" in passed(given, user_project, "--kafka-image", kafka_image)
