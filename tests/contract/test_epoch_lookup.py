"""Where an earlier leader's records end, as a real broker answers (OffsetForLeaderEpoch)."""

import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.source.enumerator.discovery import KafkaCluster
from sluice.connectors.kafka.source.enumerator.leader_epochs import EpochRequest
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.errors import UnreachableError
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.integration


def _question(leader_epoch: int, current: int = -1) -> EpochRequest:
    return EpochRequest(leader_epoch=leader_epoch, current_leader_epoch=current)


def test_ends_of_several_partitions_are_reported(kafka: EmbeddedKafka, topic: TopicFactory) -> None:
    name = topic(partitions=3)
    produce(kafka.bootstrap, name, [Record(value=b"", partition=n) for n in (0, 1, 1)])
    cluster = KafkaCluster(KafkaConnection(bootstrap_servers=kafka.bootstrap))
    keys = [(name, n) for n in range(3)]
    looked = cluster.fetch_view(keys, timeout_s=60).latest
    current = looked[keys[0]].leader_epoch
    assert current is not None, "the broker names the leader"

    questions = {keys[0]: _question(current, current), keys[1]: _question(current)}
    ends = cluster.epoch_ends({**questions, keys[2]: _question(current + 7)}, timeout_s=60)

    assert ends == {keys[0]: 1, keys[1]: 2}
    cluster.close()


def test_a_leader_does_not_answer_for_a_later_one(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """It may not know of it yet, so it is asked again, for as long as there is time."""
    name = topic()
    cluster = KafkaCluster(KafkaConnection(bootstrap_servers=kafka.bootstrap))
    current = cluster.fetch_view([(name, 0)], timeout_s=60).latest[name, 0].leader_epoch
    assert current is not None

    def is_refused() -> bool:
        """It is asked again until time is up, and may be slow to answer at all."""
        with pytest.raises(UnreachableError) as raised:
            cluster.epoch_ends({(name, 0): _question(0, current + 1)}, timeout_s=2.0)
        return "UnknownLeaderEpochError" in str(raised.value)

    wait_for(is_refused, poll_s=0)
    cluster.close()


def test_nobody_answers() -> None:
    cluster = KafkaCluster(KafkaConnection(bootstrap_servers="127.0.0.1:1"))
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"):
        cluster.epoch_ends({("orders", 0): _question(0)}, timeout_s=0.5)
