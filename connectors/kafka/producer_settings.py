"""librdkafka settings of the sink's producers: fast by default, bounded by what the cluster takes.

Runs where a producer is made: in an executor's background thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from connectors.kafka.client_options import Role
from connectors.kafka.cluster_limits import ClusterLimits
from connectors.kafka.partitioner import LIBRDKAFKA_PARTITIONER
from connectors.kafka.security import KafkaConnection
from connectors.kafka.tuning import MOST_SENT_MESSAGE_BYTES, WriteSettings, batch_settings

__all__ = ["WaitLimits", "plain_config", "transactional_config"]

_BATCH_BYTES = 1_000_000
_DELIVERY_TIMEOUT_S = 120.0  # Java's delivery.timeout.ms
_BEHIND_DELIVERY_S = 60.0
_LEAST_READY_S = 25.0  # limits, connections and the id take that where brokers are slow
_KAFKA_MAX_TRANSACTION_TIMEOUT_S = 900.0  # the broker's default for transaction.max.timeout.ms
_BATCH_OVERHEAD_BYTES = 512

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
class WaitLimits:
    """For how long a task waits for brokers that are away; a record's ``message.timeout.ms`` says.

    Attributes:
        ready_s: for a producer.
        flush_s: until all records are acknowledged, or the queue has room: the client gives a
            record up before that, and says why.
    """

    ready_s: float = _DELIVERY_TIMEOUT_S
    flush_s: float = _DELIVERY_TIMEOUT_S + _BEHIND_DELIVERY_S

    @classmethod
    def of(cls, options: Mapping[str, str], *, transaction_timeout_s: float | None = None) -> Self:
        """By the user's options, without ``kafka.``.

        Args:
            transaction_timeout_s: a record of a transaction is not kept for longer, unless the user
                says so; None: nobody has chosen one.
        """
        told_ms = [
            int(options[name])
            for name in ("message.timeout.ms", "delivery.timeout.ms")
            if options.get(name, "").strip().isdecimal()  # else the client refuses it by name
        ]
        if not told_ms:
            least_s = transaction_timeout_s or _DELIVERY_TIMEOUT_S
            return cls(ready_s=max(_LEAST_READY_S, min(_DELIVERY_TIMEOUT_S, least_s)))
        delivery_s = max(told_ms) / 1000
        if not min(told_ms):  # librdkafka keeps records for ever: the flush is the bound
            return cls(ready_s=cls().flush_s)
        return cls(
            ready_s=max(_LEAST_READY_S, delivery_s),
            flush_s=max(cls().flush_s, delivery_s + _BEHIND_DELIVERY_S),
        )


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
