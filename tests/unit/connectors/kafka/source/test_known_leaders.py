"""Offsets are asked of leaders that the client knows: while it looks for others it may crash."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.connectors.kafka.client.confluent import KafkaException, TopicPartition
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.source.enumerator import discovery
from sluice.connectors.kafka.source.enumerator.discovery import KafkaCluster
from sluice.connectors.kafka.source.positions import Edge, PartitionKey
from sluice.runtime.errors import AuthenticationError, UnreachableError
from tests.kit.kafka.fake_producer import kafka_error

KEYS = (("orders", 0), ("orders", 1), ("gone", 0))
THERE = {("orders", 0), ("orders", 1)}


class _Admin:
    """Two partitions of one topic; `leaders` has whose leader is known to all, and `known` for
    whom the answer is there that tells the client."""

    def __init__(self) -> None:
        self.leaders: dict[PartitionKey, object] = {
            ("orders", number): SimpleNamespace(id=1) for number in range(2)
        }
        self.known: set[PartitionKey] = set()
        self.asked: list[set[PartitionKey]] = []
        self.failures: list[str] = []
        self.refused: dict[PartitionKey, tuple[str, ...]] = {}

    def poll(self, timeout: float) -> None:
        """No callback waits."""

    def list_topics(self, timeout: float) -> object:
        """Nothing new."""
        return SimpleNamespace(topics={"orders": None})

    def describe_topics(self, topics: Any, *, request_timeout: float) -> Mapping[str, Any]:
        """See confluent-kafka."""
        names: Iterable[str] = topics.topic_names
        return {name: _Later(partial(self._describe, name)) for name in names}

    def list_offsets(self, wanted: Mapping[TopicPartition, Any], **_: object) -> Mapping[Any, Any]:
        """See confluent-kafka."""
        asked = {(at.topic, at.partition) for at in wanted}
        if self.failures:
            raise KafkaException(kafka_error(self.failures.pop()))
        assert asked <= self.known, "librdkafka would look for leaders in this thread"
        self.asked.append(asked)
        return {at: _Later(partial(self._offset, at)) for at in wanted}

    def _offset(self, at: TopicPartition) -> object:
        if (at.topic, at.partition) in self.refused:
            raise KafkaException(kafka_error(*self.refused[at.topic, at.partition]))
        return SimpleNamespace(offset=7, leader_epoch=0)

    def _describe(self, name: str) -> object:
        found = {key: leader for key, leader in self.leaders.items() if key[0] == name}
        if not found:
            raise KafkaException(kafka_error("UNKNOWN_TOPIC_OR_PART"))
        self.known |= {key for key, leader in found.items() if leader is not None}
        partitions = [SimpleNamespace(id=key[1], leader=leader) for key, leader in found.items()]
        return SimpleNamespace(topic_id="id", partitions=partitions)


class _Later:
    """An answer that comes when it is waited for."""

    def __init__(self, answer: Callable[[], object]) -> None:
        self._answer = answer

    def result(self, timeout: float) -> object:
        """See `concurrent.futures.Future`."""
        return self._answer()


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> _Admin:
    """The client of `_cluster`."""
    made = _Admin()
    monkeypatch.setattr(discovery, "make_admin", lambda _: made)
    return made


def _cluster() -> KafkaCluster:
    return KafkaCluster(KafkaConnection(bootstrap_servers="b:9092"), pause=lambda _: None)


def test_a_look_asks_known_leaders_alone(admin: _Admin) -> None:
    """What is deleted is not asked for: the client would look for it."""
    look = _cluster().fetch_view(KEYS, timeout_s=1)
    assert look.earliest.keys() == look.latest.keys() == THERE
    assert look.topics.keys() == {"orders"}
    assert admin.asked == [THERE, THERE]


def test_offsets_and_log_ends_are_asked_of_known_leaders_alone(admin: _Admin) -> None:
    """By edges and by times."""
    cluster = _cluster()
    wanted: dict[PartitionKey, Edge | int] = {
        KEYS[0]: Edge.EARLIEST,
        KEYS[1]: 1_700_000_000_000,
        KEYS[2]: Edge.LATEST,
    }
    assert cluster.offsets(wanted, timeout_s=1).keys() == THERE
    assert cluster.log_ends(KEYS, timeout_s=1).keys() == THERE
    assert admin.asked == [{KEYS[0]}, {KEYS[1]}, THERE]


def test_what_was_described_a_moment_ago_is_not_described_again(admin: _Admin) -> None:
    """A broker that has just started may not know it yet. Behind an error all is asked anew."""
    cluster = _cluster()
    cluster.describe(["orders"], timeout_s=1)
    described = admin.leaders
    admin.leaders = {}
    assert cluster.log_ends(KEYS[:2], timeout_s=1).keys() == THERE
    admin.leaders, admin.failures = described, ["NOT_LEADER_FOR_PARTITION"]
    admin.known.clear()
    assert cluster.log_ends(KEYS, timeout_s=1).keys() == THERE


def test_what_is_deleted_between_two_looks_is_not_asked_for_again(admin: _Admin) -> None:
    """Its leader was known; whoever hears that it is gone forgets that."""
    cluster = _cluster()
    assert cluster.fetch_view(KEYS, timeout_s=1).latest.keys() == THERE
    del admin.leaders["orders", 1]
    admin.known.clear()
    assert cluster.fetch_view(KEYS, timeout_s=1).latest.keys() == {KEYS[0]}
    admin.leaders.clear()
    admin.known.clear()
    assert not cluster.fetch_view(KEYS, timeout_s=1).latest


def test_what_is_deleted_while_it_is_asked_for_is_left_out_and_another_error_is_told(
    admin: _Admin,
) -> None:
    """Whether to go on without it is the source's to say."""
    for said in (("UNKNOWN_TOPIC_OR_PART",), ("_NOENT", "No leaders found")):
        admin.refused = {KEYS[1]: said}
        assert _cluster().fetch_view(KEYS, timeout_s=1).latest.keys() == {KEYS[0]}
    admin.refused = {KEYS[1]: ("TOPIC_AUTHORIZATION_FAILED",)}
    with pytest.raises(AuthenticationError):
        _cluster().fetch_view(KEYS, timeout_s=1)


def test_brokers_are_not_asked_again_without_a_pause(admin: _Admin) -> None:
    """While a leader moves they answer at once: a second of that would be thousands of requests."""
    pauses: list[float] = []
    cluster = KafkaCluster(KafkaConnection(bootstrap_servers="b:9092"), pause=pauses.append)
    admin.failures = ["NOT_LEADER_FOR_PARTITION"] * 2
    assert cluster.log_ends(KEYS, timeout_s=30).keys() == THERE
    assert len(pauses) == 2
    assert all(each >= 0.05 for each in pauses)


def test_a_partition_without_a_leader_is_asked_for_when_it_has_one(admin: _Admin) -> None:
    """Until time is up."""
    admin.leaders["orders", 1], leader = None, admin.leaders["orders", 1]
    cluster = _cluster()
    with pytest.raises(UnreachableError, match="LEADER_NOT_AVAILABLE"):
        cluster.fetch_view(KEYS, timeout_s=0)
    assert cluster.fetch_view(KEYS[:1], timeout_s=1).latest.keys() == {KEYS[0]}
    admin.leaders["orders", 1] = leader
    assert cluster.fetch_view(KEYS, timeout_s=1).latest.keys() == THERE
