"""Topics that are usable when the call returns."""

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
"""What the client may take longer than it was asked to."""


def create_topics(
    connection: KafkaConnection, topics: Sequence[NewTopic], *, timeout_s: float = 30.0
) -> None:
    """Make topics and wait until every partition of them has a leader.

    The controller's answer is not enough: for some milliseconds a broker may still say that there
    is no such topic, or that a partition has no leader.

    Raises:
        StreamError: a broker refused; as `translate` has it.
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
                "the brokers did not say in time whether they made a topic",
                {"topic": name, "servers": servers, "waited_s": timeout_s + _LATE_S},
                "Check that the brokers run and can be reached from here.",
            ) from err
    for topic in topics:
        while not _is_led(admin, topic.topic):
            if time.monotonic() > deadline:
                raise UnreachableError(
                    "a new topic has no leaders",
                    {"topic": topic.topic, "waited_s": timeout_s},
                    "Look at the brokers' logs, delete the topic and try again.",
                )
            time.sleep(_POLL_S)  # a broker tells nobody when it has learnt of a topic


def await_controller(admin: AdminClient, where: Mapping[str, object], *, timeout_s: float) -> None:
    """Wait until the brokers name a controller: one that has just been let in hears of that last.

    A client that is told meanwhile that there is none looks for it again only when something else
    changes: the topic that it was to make would time out.

    Raises:
        StreamError: no broker answers, or one refuses; as `translate` has it.
        UnreachableError: none names a controller within the time.
    """
    until_s = time.monotonic() + timeout_s
    try:
        while admin.list_topics(topic="", timeout=timeout_s).controller_id < 0:
            if time.monotonic() > until_s:
                raise UnreachableError(
                    "the brokers name no controller",
                    {**where, "waited_s": timeout_s},
                    "Look at their logs, and at those of the controllers.",
                )
            time.sleep(_POLL_S)  # a broker tells nobody when it has heard of one
    except KafkaException as err:
        raise translate(err, where) from err


def _is_led(admin: AdminClient, topic: str) -> bool:
    # Not list_topics: naming a missing topic there makes the broker create it.
    answer = admin.describe_topics(TopicCollection([topic]), request_timeout=_REQUEST_TIMEOUT_S)[
        topic
    ]
    try:
        found = answer.result(_REQUEST_TIMEOUT_S + _LATE_S)
    except (KafkaException, TimeoutError):
        return False
    return all(partition.leader is not None for partition in found.partitions)
