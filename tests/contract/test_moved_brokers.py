"""A cluster that comes back at other addresses, all at once; its bootstrap address stays."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.kafka_committer import KafkaCommitter
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionState
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.contracts import CommitOutcome
from sluice.runtime.embedded.ports import free_ports
from tests.kit.kafka.kafka_proxy import KafkaProxy
from tests.kit.kafka.kafka_records import await_stable, read
from tests.kit.kafka.transaction_harness import RealHarness, committable

pytestmark = pytest.mark.integration


@pytest.fixture
def address() -> Iterator[KafkaProxy]:
    with KafkaProxy() as proxy:
        yield proxy


def test_a_decided_transaction_is_committed_after_a_move_of_all_brokers(
    address: KafkaProxy, tmp_path: Path
) -> None:
    """By the client that knew the old addresses; it would stay open until it is aborted else."""
    before, after = free_ports(2)
    wire = TransactionWire(KafkaConnection(bootstrap_servers=address.address))
    with EmbeddedKafka(data_dir=tmp_path, port=before) as broker:
        address.forward_to(before)
        harness = RealHarness(broker, 2)
        attempt = harness.open()
        attempt.produce(3)
        ours = attempt.identity
        described = wire.describe([ours.transactional_id], timeout_s=300)[ours.transactional_id]
        assert described is not None
        assert described.state is TransactionState.ONGOING
        topic = harness.topic
        harness.close()
        broker.kill()
    with EmbeddedKafka(data_dir=tmp_path, port=after) as moved:
        address.move_to(after)
        committer = KafkaCommitter(wire)
        (report,) = committer.commit([committable(ours)], timeout_s=300, after_crash=True)
        assert report.outcome is CommitOutcome.COMMITTED
        await_stable(moved.bootstrap, topic)
        assert len(read(moved.bootstrap, topic)) == 3
    wire.close()
