"""The cluster that other tests break: transactions survive the loss and the return of a broker."""

import pytest

from tests.containers.kafka_cluster import KafkaCluster
from tests.kit.kafka.kafka_records import (
    abandon_transaction,
    await_stable,
    create_topic,
    produce_transaction,
    unique,
    values,
)

pytestmark = [pytest.mark.containers, pytest.mark.extended, pytest.mark.timeout(2400)]


def _numbers(start: int, stop: int) -> list[bytes]:
    return [str(number).encode() for number in range(start, stop)]


def test_transactions_survive_a_killed_broker_that_comes_back(cluster: KafkaCluster) -> None:
    """The leader is killed, two brokers continue, it returns: committed records once, in order."""
    topic = create_topic(cluster.bootstrap, unique("back"))
    produce_transaction(cluster.bootstrap, topic, _numbers(0, 500))
    victim = cluster.leader(topic)
    cluster.kill(victim)
    produce_transaction(cluster.bootstrap, topic, _numbers(500, 1000))
    produce_transaction(cluster.bootstrap, topic, _numbers(0, 100), commit=False)
    cluster.start(victim)
    cluster.await_in_sync(topic)
    await_stable(cluster.bootstrap, topic)
    assert values(cluster.bootstrap, topic) == _numbers(0, 1000)


def test_commit_survives_the_death_of_its_coordinator(cluster: KafkaCluster) -> None:
    """The broker that keeps a transaction's state is killed before the commit is asked for."""
    topic = create_topic(cluster.bootstrap, unique("coordinator"))
    name = unique("id")
    producer = abandon_transaction(
        cluster.bootstrap, topic, _numbers(0, 100), transactional_id=name
    )
    victim = cluster.transaction_coordinator(name)
    cluster.kill(victim)
    producer.commit_transaction(300)
    cluster.start(victim)
    cluster.await_in_sync(topic)
    await_stable(cluster.bootstrap, topic)
    assert values(cluster.bootstrap, topic) == _numbers(0, 100)


def test_truncated_broker_rejoins(cluster: KafkaCluster) -> None:
    """A partition of the network: the other two elect a leader, the third catches up."""
    topic = create_topic(cluster.bootstrap, unique("partition"))
    victim = cluster.leader(topic)
    with cluster.cut_off(victim):
        produce_transaction(cluster.bootstrap, topic, _numbers(0, 100))
    cluster.await_in_sync(topic)
    await_stable(cluster.bootstrap, topic)
    assert values(cluster.bootstrap, topic) == _numbers(0, 100)


def test_two_of_three_brokers_are_enough_for_ever(cluster: KafkaCluster) -> None:
    """A broker is lost with its disk: nothing committed is lost, and work continues.

    The last test of its module: the cluster does not get the node back.
    """
    topic = create_topic(cluster.bootstrap, unique("lost"))
    produce_transaction(cluster.bootstrap, topic, _numbers(0, 500))
    cluster.lose(cluster.leader(topic))
    cluster.await_brokers(2)
    produce_transaction(cluster.bootstrap, topic, _numbers(500, 1000))
    await_stable(cluster.bootstrap, topic)
    assert values(cluster.bootstrap, topic) == _numbers(0, 1000)
