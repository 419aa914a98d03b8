"""Topics that are made while a cluster begins."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.connectors.kafka.client.confluent import AdminClient, KafkaError, KafkaException
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.broker import topic_creation as new_topics
from sluice.connectors.kafka.tools.broker.topic_creation import (
    NewTopic,
    await_controller,
    create_topics,
)
from sluice.runtime.errors import UnreachableError

WHERE = {"servers": "fake:9092"}


def _telling(tell: Callable[[], int], **calls: Any) -> AdminClient:
    """An admin client of a cluster that names its controller so."""

    def list_topics(*, topic: str, timeout: float) -> SimpleNamespace:
        assert (topic, timeout > 0) == ("", True)
        return SimpleNamespace(controller_id=tell())

    return cast("AdminClient", SimpleNamespace(list_topics=list_topics, **calls))


def test_a_controller_that_the_brokers_have_not_heard_of_is_waited_for() -> None:
    """A client that asks for a topic meanwhile would wait until it times out."""
    told = [-1, -1, 1]
    await_controller(_telling(lambda: told.pop(0)), WHERE, timeout_s=60.0)
    assert told == []


def test_a_cluster_that_never_names_a_controller_is_given_up() -> None:
    """By one sentence, in a bounded time."""
    with pytest.raises(UnreachableError, match="name no controller"):
        await_controller(_telling(lambda: -1), WHERE, timeout_s=0.02)


def test_brokers_that_do_not_answer_are_reported() -> None:
    """Likewise."""

    def silent() -> int:
        raise KafkaException(KafkaError(KafkaError.NETWORK_EXCEPTION))

    with pytest.raises(UnreachableError, match="fake:9092"):
        await_controller(_telling(silent), WHERE, timeout_s=60.0)


def test_no_topic_is_asked_for_before_there_is_a_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It could only time out."""
    admin = _telling(lambda: -1, create_topics=lambda *_, **__: pytest.fail("asked"))
    monkeypatch.setattr(new_topics, "make_admin", lambda _: admin)
    connection = KafkaConnection(bootstrap_servers="fake:9092")
    with pytest.raises(UnreachableError, match="topic=orders,payments"):
        create_topics(
            connection,
            [NewTopic(name, num_partitions=1) for name in ("orders", "payments")],
            timeout_s=0.02,
        )
