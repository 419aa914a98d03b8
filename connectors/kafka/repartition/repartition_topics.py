"""Repartition topics on the brokers: their name, their creation and the check of their settings."""

import logging
import re
from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass

from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.confluent import (
    AdminClient,
    ConfigResource,
    KafkaError,
    KafkaException,
    NewTopic,
    ResourceType,
    TopicCollection,
    make_admin,
    translate,
)
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.topic_creation import create_topics
from sluice.runtime.errors import ConfigError, UnreachableError
from sluice.runtime.failpoints import failpoint

__all__ = [
    "TopicFound",
    "create_repartition_topic",
    "describe_topic",
    "require_safe",
    "topic_name",
]

log = logging.getLogger(__name__)

_SETTINGS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": "1048588",
}
"""Rows stay until a command deletes the topic: an older checkpoint or a savepoint needs them."""
_REQUIRED = ("cleanup.policy", "retention.ms", "retention.bytes")
_NO_LETTER = re.compile(r"[^A-Za-z0-9._-]")
_MOST_NAME = 120
_SHORT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFound:
    """A topic as brokers describe it.

    Attributes:
        topic_id: Kafka's UUID as text.
        partitions: number of them.
        replicas: of the partition with the fewest.
        settings: in force, by name.
    """

    topic_id: str
    partitions: int
    replicas: int
    settings: Mapping[str, str | None]


def topic_name(job_name: str, job_uid: str, source_id: str) -> str:
    """The name of a job's topic: another job, also one restored from it, has another name."""
    job = _NO_LETTER.sub("_", job_name)[:_MOST_NAME]
    return f"sluice-{job}-{job_uid[:_SHORT]}-{source_id[:_SHORT]}"


def describe_topic(
    connection: KafkaConnection, topic: str, *, timeout_s: float
) -> TopicFound | None:
    """The topic; None: it does not exist.

    Raises:
        StreamError: a broker refused, or none answered.
    """
    admin = make_admin(connection.librdkafka(Role.ADMIN))
    where = {"topic": topic, "servers": connection.bootstrap_servers}
    try:
        # Not list_topics: a missing topic named there makes the broker create it.
        found = admin.describe_topics(TopicCollection([topic]), request_timeout=timeout_s)[
            topic
        ].result(timeout_s)
        settings = _settings(admin, topic, timeout_s)
    except KafkaException as err:
        if err.args[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):  # noqa: SLF001 - its only name
            return None
        raise translate(err, where) from err
    except FutureTimeoutError as err:
        raise UnreachableError(
            "the brokers did not describe a topic in time",
            {**where, "waited_s": timeout_s},
            "Check that the brokers run and can be reached from here.",
        ) from err
    return TopicFound(
        topic_id=str(found.topic_id),
        partitions=len(found.partitions),
        replicas=min(len(partition.replicas) for partition in found.partitions),
        settings=settings,
    )


def _settings(admin: AdminClient, topic: str, timeout_s: float) -> dict[str, str | None]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    (answer,) = admin.describe_configs([resource], request_timeout=timeout_s).values()
    return {name: entry.value for name, entry in answer.result(timeout_s).items()}


def create_repartition_topic(
    connection: KafkaConnection, topic: str, *, partitions: int, timeout_s: float
) -> None:
    """Create the topic with the brokers' default replication, or find that an earlier try has."""
    failpoint("before-topic-creation")
    try:
        create_topics(
            connection,
            [
                NewTopic(
                    topic, num_partitions=partitions, replication_factor=-1, config=dict(_SETTINGS)
                )
            ],
            timeout_s=timeout_s,
        )
    except ConfigError as err:
        if err.args[1].get("code") != "TOPIC_ALREADY_EXISTS":
            raise
    failpoint("after-topic-creation")
    log.info("repartition topic is there: topic=%s partitions=%d", topic, partitions)


def require_safe(topic: str, found: TopicFound) -> None:
    """Refuse settings by which rows would vanish, or could not be written.

    Raises:
        ConfigError: names each of them.
    """
    wrong = {
        name: f"{found.settings.get(name)} (needed: {_SETTINGS[name]})"
        for name in _REQUIRED
        if found.settings.get(name) not in (_SETTINGS[name], None)
    }
    least = int(found.settings.get("min.insync.replicas") or 1)
    if least > found.replicas:
        wrong["min.insync.replicas"] = f"{least} (replicas: {found.replicas})"
    if wrong:
        raise ConfigError(
            "settings of a repartition topic are unsafe",
            {"topic": topic, **wrong},
            "Correct them with kafka-configs.sh, then start the job again.",
        )
    if found.replicas > 2 and least < 2:
        log.warning(
            "one broker alone may confirm rows of a repartition topic, and lose them: topic=%s "
            "replicas=%d min.insync.replicas=%d. Set min.insync.replicas=2.",
            topic,
            found.replicas,
            least,
        )
