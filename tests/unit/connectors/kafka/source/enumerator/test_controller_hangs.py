"""A source's client whose broker hangs learns of the others, however short its calls are."""

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.connectors.kafka.client.confluent import KafkaException
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.source.enumerator import discovery
from sluice.connectors.kafka.source.enumerator.discovery import KafkaCluster
from sluice.runtime.errors import UnreachableError
from tests.kit.kafka.fake_producer import kafka_error


class _Admin:
    """Asks a broker that hangs about topics, until it has asked any other for the cluster's view.
    A question without an answer takes all of its time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.looks = 0
        self._knows = False

    def poll(self, timeout: float) -> None:
        """No callback waits."""

    def describe_topics(
        self, topics: object, *, request_timeout: float
    ) -> Mapping[str, Future[Any]]:
        """See confluent-kafka."""
        answer: Future[Any] = Future()
        if self._knows:
            partition = SimpleNamespace(id=0, leader=SimpleNamespace(id=1))
            answer.set_result(SimpleNamespace(topic_id="id", partitions=[partition]))
        else:
            self.now_s += request_timeout
            answer.set_exception(KafkaException(kafka_error("_TIMED_OUT")))
        return {"orders": answer}

    def list_topics(self, timeout: float) -> object:
        """Answered by whoever is there."""
        self._knows = True
        self.looks += 1
        return SimpleNamespace(topics={"orders": None})


@pytest.mark.parametrize("timeout_s", [0.45, 4.5, 300.0])
def test_a_broker_that_hangs_is_asked_no_third_time(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float
) -> None:
    """A cut has less time than one question may take, and would ask the same broker for ever."""
    admin = _Admin()
    monkeypatch.setattr(discovery, "make_admin", lambda _: admin)
    monkeypatch.setattr("time.monotonic", lambda: admin.now_s)
    cluster = KafkaCluster(KafkaConnection(bootstrap_servers="b:9092"), pause=lambda _: None)
    if timeout_s < 5.0:
        with pytest.raises(UnreachableError):
            cluster.describe(["orders"], timeout_s=timeout_s)
    for _ in range(3):
        assert cluster.describe(["orders"], timeout_s=timeout_s).keys() == {"orders"}
    assert admin.looks == 1, "behind an answer none is looked for any more"
