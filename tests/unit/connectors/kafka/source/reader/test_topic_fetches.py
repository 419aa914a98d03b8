"""Before it reads, a consumer learns who leads what it is assigned: all topics in one deadline."""

import logging
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from sluice.connectors.kafka.client.login_refusals import LoginRefusals
from sluice.connectors.kafka.source.reader.consumers import PooledConsumer
from sluice.runtime.model.splits import SplitRange
from tests.kit.fakes import ManualClock

_NO_ANSWER: int = getattr(KafkaError, "_TRANSPORT")  # noqa: B009 - public, underscored
_ALL_S = 5.0


class SlowCluster:
    """Answers about a topic after so many seconds, or not in time."""

    def __init__(self, needs_s: float) -> None:
        self.clock = ManualClock()
        self.needs_s = needs_s
        self.asked: list[str] = []

    def list_topics(self, topic: str, timeout: float) -> None:
        self.asked.append(topic)
        self.clock.advance(min(self.needs_s, timeout))
        if self.needs_s > timeout:
            raise KafkaException(KafkaError(_NO_ANSWER))


def pooled(cluster: SlowCluster) -> PooledConsumer:
    """A consumer of that cluster, which knows nothing yet."""
    key: Any = None  # nothing is made anew
    refusals = LoginRefusals({"servers": "slow:9092"}, clock=cluster.clock)
    return PooledConsumer(
        consumer=cast(Any, cluster), key=key, refusals=refusals, clock=cluster.clock
    )


def splits(*topics: str, leader_epoch: int | None = None) -> list[SplitRange]:
    """A partition of each topic."""
    return [
        SplitRange(
            source_id="s",
            topic=topic,
            topic_id="id",
            partition=0,
            start_offset=0,
            end_offset=3,
            leader_epoch=leader_epoch,
        )
        for topic in topics
    ]


_MANY = tuple(f"t{at:02}" for at in range(40))


def test_topics_of_a_cluster_that_does_not_answer_share_one_deadline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Which of them were not learned is told."""
    cluster = SlowCluster(needs_s=1e9)
    began_s = cluster.clock()
    with caplog.at_level(logging.WARNING):
        pooled(cluster).learn(splits(*_MANY))
    assert cluster.clock() - began_s == _ALL_S
    assert len(cluster.asked) <= 5
    (told,) = caplog.messages
    assert "topics=40 of 40 (t00,t01," in told


def test_what_a_slow_cluster_tells_in_time_is_learned(caplog: pytest.LogCaptureFixture) -> None:
    """And asked for no more by the next read, which learns the others."""
    cluster = SlowCluster(needs_s=0.25)
    consumer = pooled(cluster)
    with caplog.at_level(logging.WARNING):
        consumer.learn(splits(*_MANY))
        assert cluster.asked == list(_MANY[:20])
        consumer.learn(splits(*_MANY))
    assert cluster.asked == list(_MANY)
    assert len(caplog.messages) == 1
    assert "t20" in caplog.messages[0]
    assert "t19" not in caplog.messages[0]


def test_one_topic_has_all_the_time() -> None:
    cluster = SlowCluster(needs_s=4.5)
    consumer = pooled(cluster)
    for _ in range(2):
        consumer.learn(splits("orders"))
    assert cluster.asked == ["orders"]


def test_topics_of_which_an_earlier_leader_is_known_come_first() -> None:
    """A new one waits for librdkafka's own look; of these a former leader would be read."""
    cluster = SlowCluster(needs_s=0.0)
    consumer = pooled(cluster)
    consumer.learn(splits("z", leader_epoch=4))
    cluster.needs_s = 1e9
    consumer.learn([*splits(*_MANY), *splits("z", leader_epoch=5)])
    assert cluster.asked[1] == "z"
