"""Creates topics that are usable when the call returns."""

import time
from collections.abc import Mapping, Sequence

from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.confluent import (
    AdminClient,
    KafkaException,
    NewTopic,
    TopicCollection,
    make_admin,
    translate,
)
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.runtime.errors import UnreachableError

__all__ = ["NewTopic", "await_controller", "create_topics"]

_POLL_S = 0.05
_REQUEST_TIMEOUT_S = 10.0
_LATE_S = 10.0
"""Extra time of the client beyond its timeout."""


def create_topics(
    connection: KafkaConnection, topics: Sequence[NewTopic], *, timeout_s: float = 30.0
) -> None:
    """Create topics and wait until every partition of them has a leader.

    The controller's answer is not enough: for some milliseconds a broker may still answer that a
    topic is unknown, or that a partition has no leader.

    Raises:
        StreamError: a broker refused, see `translate`.
        UnreachableError: no answer, or no leaders, within the time.
    """
    servers = connection.bootstrap_servers
    admin = make_admin(connection.librdkafka(Role.ADMIN))
    deadline = time.monotonic() + timeout_s
    names = ",".join(topic.topic for topic in topics)
    await_controller(admin, {"topic": names, "servers": servers}, timeout_s=timeout_s)
    answers = admin.create_topics(list(topics), request_timeout=timeout_s)
    for name, made in answers.items():
        try:
            made.result(timeout_s + _LATE_S)
        except KafkaException as err:
            raise translate(err, {"topic": name, "servers": servers}) from err
        except TimeoutError as err:
            raise UnreachableError(
                "the brokers did not confirm a topic in time",
                {"topic": name, "servers": servers, "waited_s": timeout_s + _LATE_S},
                "Check that the brokers run and are reachable from here.",
            ) from err
    for topic in topics:
        while not _is_led(admin, topic.topic):
            if time.monotonic() > deadline:
                raise UnreachableError(
                    "a new topic has no leaders",
                    {"topic": topic.topic, "waited_s": timeout_s},
                    "Read the brokers' logs, delete the topic and try again.",
                )
            time.sleep(_POLL_S)  # no event reports that a broker knows a topic


def await_controller(admin: AdminClient, where: Mapping[str, object], *, timeout_s: float) -> None:
    """Wait until the brokers name a controller: a new broker learns of it last.

    A client without a controller searches for it again only after another change: the request to
    create the topic would time out.

    Raises:
        StreamError: no broker answers, or one refuses, see `translate`.
        UnreachableError: no broker names a controller within the time.
    """
    until_s = time.monotonic() + timeout_s
    try:
        while admin.list_topics(topic="", timeout=timeout_s).controller_id < 0:
            if time.monotonic() > until_s:
                raise UnreachableError(
                    "the brokers name no controller",
                    {**where, "waited_s": timeout_s},
                    "Read the logs of the brokers and of the controllers.",
                )
            time.sleep(_POLL_S)  # no event reports that a broker knows a controller
    except KafkaException as err:
        raise translate(err, where) from err


def _is_led(admin: AdminClient, topic: str) -> bool:
    # Not list_topics: a missing topic named there makes the broker create it.
    answer = admin.describe_topics(TopicCollection([topic]), request_timeout=_REQUEST_TIMEOUT_S)[
        topic
    ]
    try:
        found = answer.result(_REQUEST_TIMEOUT_S + _LATE_S)
    except (KafkaException, TimeoutError):
        return False
    return all(partition.leader is not None for partition in found.partitions)
