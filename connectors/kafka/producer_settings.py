"""librdkafka settings of the sink's producers: fast by default, bounded by what the cluster takes.

Runs where a producer is made: in an executor's background thread.
"""

import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from connectors.kafka._client import (
    AdminClient,
    ConfigResource,
    KafkaException,
    ResourceType,
    TopicCollection,
    make_admin,
    translate,
)
from connectors.kafka.client_options import Role
from connectors.kafka.log_ins import Refusals
from connectors.kafka.partitioner import LIBRDKAFKA_PARTITIONER
from connectors.kafka.refusals import UnsentError
from connectors.kafka.security import KafkaConnection
from connectors.kafka.tuning import MOST_SENT_MESSAGE_BYTES, WriteSettings, batch_settings
from runtime.errors import UnreachableError

__all__ = [
    "ClusterLimits",
    "LimitsOnce",
    "describe_limits",
    "plain_config",
    "transactional_config",
]

log = logging.getLogger(__name__)

_BATCH_BYTES = 1_000_000
_DELIVERY_TIMEOUT_S = 120.0  # Java's delivery.timeout.ms
_KAFKA_MAX_TRANSACTION_TIMEOUT_S = 900.0  # the broker's default for transaction.max.timeout.ms
_BATCH_OVERHEAD_BYTES = 512
_WITHIN_S = 9.0  # a broker that hangs is fenced by then, as Kafka is by itself
_PAUSE_S = 0.5

_DEFAULTS: Mapping[str, Any] = {
    # librdkafka's producer, unlike its consumer, lets the broker create whatever it asks about: a
    # misspelt name, a topic that was deleted a moment ago.
    "allow.auto.create.topics": False,
    # librdkafka chooses a broker to connect to at most once in half of this, and a new producer
    # needs two connections before it can ask for anything; the backoff grows as ever.
    "reconnect.backoff.ms": 20,
    "message.max.bytes": MOST_SENT_MESSAGE_BYTES,
    "partitioner": LIBRDKAFKA_PARTITIONER,
    "log.connection.close": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLimits:
    """What a cluster accepts; None where it may not be read.

    Attributes:
        transaction_timeout_s: the least ``transaction.max.timeout.ms`` of its brokers.
        batch_bytes: the least ``max.message.bytes`` of the sink's topics. A broker refuses a whole
            batch that is larger, and librdkafka, unlike Java's producer, does not split it and try
            again.
        partitions: of all topics that are written to.
        answered: False when the cluster did not say all: asking again may tell.
        is_silent: nobody has said anything, or why. What may not be read is an answer, and a log-in
            that is refused is for the producer to judge: it may be for the moment.
    """

    transaction_timeout_s: float | None = None
    batch_bytes: int | None = None
    partitions: int | None = None
    answered: bool = True
    is_silent: bool = False


class LimitsOnce:
    """Limits as the cluster has told them; asked for again until it has. Executor, any thread.

    A broker that was slow for one producer must not leave every later one without the limits: they
    would make batches that the topic does not take. Nor is a producer made while nothing is known:
    what it then asks for may be refused for good, which would end the job.

    Args:
        ask: see `describe_limits`.
    """

    def __init__(
        self,
        ask: Callable[[], ClusterLimits],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._sleep = sleep
        self._known: ClusterLimits | None = None

    def __call__(self) -> ClusterLimits:
        """What is known now.

        Raises:
            UnsentError: nobody has told anything in time.
        """
        if self._known is not None:
            return self._known
        until_s = self._clock() + _WITHIN_S
        found = self._ask()
        while found.is_silent:
            if self._clock() >= until_s:
                raise UnsentError(
                    "the cluster does not tell which transactions and batches it accepts",
                    {"asked_s": _WITHIN_S},
                    "Check that its brokers run and can be reached from here.",
                )
            self._sleep(_PAUSE_S)  # a refusal may come at once
            found = self._ask()
        if found.answered:
            self._known = found
        return found


def describe_limits(
    connection: KafkaConnection, topics: Sequence[str], *, timeout_s: float
) -> ClusterLimits:
    """Ask the cluster. What cannot be read is None."""
    refusals = Refusals()
    admin = make_admin({**connection.librdkafka(Role.ADMIN), "error_cb": refusals.note})
    try:
        brokers = admin.list_topics(topic="", timeout=timeout_s).brokers
        found = _describe(admin, ResourceType.BROKER, [str(b) for b in brokers], timeout_s)
        timeouts = [int(c["transaction.max.timeout.ms"]) for c in found]
        written = _describe(admin, ResourceType.TOPIC, topics, timeout_s)
    except (KafkaException, TimeoutError) as err:
        admin.poll(0)  # why, the client says there
        log.info("limits of the cluster cannot be read: error=%s", connection.scrub(str(err)))
        return ClusterLimits(answered=False, is_silent=refusals.last is None)
    found_limits = ClusterLimits(
        transaction_timeout_s=min(timeouts) / 1000 if timeouts else None,
        batch_bytes=min((int(c["max.message.bytes"]) for c in written), default=None),
    )
    try:
        return replace(found_limits, partitions=_count_partitions(admin, topics, timeout_s))
    except (KafkaException, TimeoutError) as err:
        log.info("partitions cannot be counted: error=%s", connection.scrub(str(err)))
        return replace(found_limits, answered=False)


def _count_partitions(admin: AdminClient, topics: Sequence[str], timeout_s: float) -> int | None:
    """Of all topics together; None where one of them does not say. Raises when nobody answers."""
    if not topics:
        return None
    # Not list_topics: naming a missing topic there makes the broker create it.
    asked = admin.describe_topics(TopicCollection(list(topics)), request_timeout=timeout_s)
    try:
        return sum(len(future.result(timeout_s).partitions) for future in asked.values())
    except KafkaException as err:
        if isinstance(translate(err), UnreachableError):
            raise
        log.info("partitions cannot be counted: error=%s", err)
        return None


def _describe(
    admin: AdminClient, kind: ResourceType, names: Sequence[str], timeout_s: float
) -> list[dict[str, str]]:
    """Configurations of those resources that may be read; raises when nobody answers."""
    # One by one: librdkafka refuses to ask for several brokers in one call.
    asked = [
        admin.describe_configs([ConfigResource(kind, name)], request_timeout=timeout_s)
        for name in names
    ]
    found: list[dict[str, str]] = []
    for future in itertools.chain.from_iterable(each.values() for each in asked):
        try:
            entries = future.result(timeout_s)
        except KafkaException as err:
            if isinstance(translate(err), UnreachableError):
                raise
            log.info("a configuration cannot be read: error=%s", err)
            continue
        found.append({name: str(entry.value) for name, entry in entries.items()})
    return found


def transactional_config(
    connection: KafkaConnection,
    limits: ClusterLimits,
    settings: WriteSettings,
    *,
    transaction_timeout_s: float | None,
) -> dict[str, Any]:
    """Settings of one exactly-once producer; the user's own come last.

    Args:
        settings: what bounds its memory, and how records are compressed.
        transaction_timeout_s: None for the broker's maximum (rule 23): the coordinator's sweep,
            not this timeout, frees readers.
    """
    timeout_s = (
        transaction_timeout_s or limits.transaction_timeout_s or _KAFKA_MAX_TRANSACTION_TIMEOUT_S
    )
    timeout_ms = int(timeout_s * 1000)
    config = {
        **_base(connection, limits, settings, is_seen_at_once=False),
        "enable.idempotence": True,
        "transaction.timeout.ms": timeout_ms,
        "message.timeout.ms": min(int(_DELIVERY_TIMEOUT_S * 1000), timeout_ms),
        **connection.librdkafka(Role.PRODUCER),
    }
    if "socket.timeout.ms" not in connection.options:
        # librdkafka refuses to wait for an answer for longer than a transaction lives.
        config["socket.timeout.ms"] = min(config["socket.timeout.ms"], timeout_ms)
    return config


def plain_config(
    connection: KafkaConnection,
    limits: ClusterLimits,
    settings: WriteSettings,
    *,
    idempotent: bool,
) -> dict[str, Any]:
    """Settings of a producer without transactions.

    Args:
        idempotent: at-least-once: acknowledged by all in-sync replicas, in order; else by the
            leader alone.
    """
    return {
        **_base(connection, limits, settings, is_seen_at_once=True),
        "enable.idempotence": idempotent,
        "acks": "all" if idempotent else "1",
        "message.timeout.ms": int(_DELIVERY_TIMEOUT_S * 1000),
        **connection.librdkafka(Role.PRODUCER),
    }


def _base(
    connection: KafkaConnection,
    limits: ClusterLimits,
    queue: WriteSettings,
    *,
    is_seen_at_once: bool,
) -> dict[str, Any]:
    batch_bytes = _BATCH_BYTES
    if limits.batch_bytes is not None:
        batch_bytes = max(1, min(batch_bytes, limits.batch_bytes - _BATCH_OVERHEAD_BYTES))
    own = connection.librdkafka(Role.PRODUCER)
    batches = batch_settings(
        queue,
        own,
        batch_bytes=batch_bytes,
        partitions=limits.partitions,
        is_seen_at_once=is_seen_at_once,
    )
    # Emulated in the Python client: it calls back for errors alone (rule 1).
    reports = {"delivery.report.only.error": True}
    return {**_DEFAULTS, **queue.librdkafka(), **batches, **reports}
