"""librdkafka settings of the sink's producers: fast by default, within the limits of the cluster.

Runs where a producer is made: in an executor's background thread.

The statistics interval of a producer, by the length of the epochs.

Prepares the next transactional producer: the cluster's limits, a client, its identity.
"""

import logging
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.client_tuning import (
    MOST_SENT_MESSAGE_BYTES,
    HotPath,
    WriteSettings,
    batch_settings,
)
from sluice.connectors.kafka.client.confluent import KafkaException, make_producer, translate
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.native.library import library_for
from sluice.connectors.kafka.records.partitioner import LIBRDKAFKA_PARTITIONER
from sluice.connectors.kafka.sink.producers.cluster_limits import (
    ClusterLimits,
    KnownLimits,
    LimitsAnswer,
)
from sluice.connectors.kafka.sink.producers.native_producer import NativeProducer
from sluice.connectors.kafka.sink.producers.producer_client import Client
from sluice.connectors.kafka.sink.producers.producer_errors import (
    LateRequestError,
    UnansweredError,
    UnsentError,
)
from sluice.connectors.kafka.sink.producers.transactional_producer import TransactionalProducer
from sluice.runtime.contracts import Clock
from sluice.runtime.errors import ConfigError, StreamError, UnreachableError

__all__ = [
    "Preparation",
    "StatisticsPace",
    "WaitLimits",
    "make_client",
    "plain_config",
    "transactional_config",
]

_BATCH_BYTES = 1_000_000
_DELIVERY_TIMEOUT_S = 120.0  # Java's delivery.timeout.ms
_AFTER_DELIVERY_S = 60.0
_LEAST_READY_S = 25.0  # limits, connections and the id take that where brokers are slow
_KAFKA_MAX_TRANSACTION_TIMEOUT_S = 900.0  # the broker's default for transaction.max.timeout.ms
_BATCH_OVERHEAD_BYTES = 512

_DEFAULTS: Mapping[str, Any] = {
    # librdkafka's producer, unlike its consumer, lets the broker create every topic that it asks
    # about: a misspelt name, or a topic that was just deleted.
    "allow.auto.create.topics": False,
    # librdkafka opens at most one connection to a new broker in half of this time, and a new
    # producer needs two. The backoff still grows.
    "reconnect.backoff.ms": 20,
    "message.max.bytes": MOST_SENT_MESSAGE_BYTES,
    "partitioner": LIBRDKAFKA_PARTITIONER,
    "log.connection.close": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitLimits:
    """How long a task waits for unreachable brokers, from a record's ``message.timeout.ms``.

    Attributes:
        ready_s: for a producer.
        flush_s: until all records are acknowledged, or the queue has space: the client fails a
            record before that, with the reason.
    """

    ready_s: float = _DELIVERY_TIMEOUT_S
    flush_s: float = _DELIVERY_TIMEOUT_S + _AFTER_DELIVERY_S

    @classmethod
    def of(cls, options: Mapping[str, str], *, transaction_timeout_s: float | None = None) -> Self:
        """By the user's options, without ``kafka.``.

        Args:
            transaction_timeout_s: a record is kept no longer than its transaction, unless the user
                sets another limit; None: none was chosen.
        """
        timeouts_ms = [
            int(options[name])
            for name in ("message.timeout.ms", "delivery.timeout.ms")
            if options.get(name, "").strip().isdecimal()  # otherwise the client refuses it by name
        ]
        if not timeouts_ms:
            least_s = transaction_timeout_s or _DELIVERY_TIMEOUT_S
            return cls(ready_s=max(_LEAST_READY_S, min(_DELIVERY_TIMEOUT_S, least_s)))
        delivery_s = max(timeouts_ms) / 1000
        if not min(timeouts_ms):  # librdkafka keeps records for ever: the flush is the limit
            return cls(ready_s=cls().flush_s)
        return cls(
            ready_s=max(_LEAST_READY_S, delivery_s),
            flush_s=max(cls().flush_s, delivery_s + _AFTER_DELIVERY_S),
        )


def transactional_config(
    connection: KafkaConnection,
    limits: ClusterLimits,
    settings: WriteSettings,
    *,
    transaction_timeout_s: float | None,
) -> dict[str, Any]:
    """Settings of one exactly-once producer; the user's own override them.

    Args:
        settings: memory limits and compression.
        transaction_timeout_s: None for the broker's maximum (`transaction-timeout`): the
            coordinator's sweep, not this timeout, frees readers.
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
        # librdkafka refuses an answer timeout that is longer than the transaction timeout.
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
        idempotent: at-least-once: acknowledged by all in-sync replicas, in order; else only by the
            leader.
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
    # Emulated in the Python client: it calls back only for errors (`pre-commit-confirmed`).
    reports = {"delivery.report.only.error": True}
    return {**_DEFAULTS, **queue.librdkafka(), **batches, **reports}


_FIRST_MS = 20
_LEAST_MS = 10
_MOST_MS = 250
_SHARE = 0.4
_EPOCHS = 5


class StatisticsPace:
    """For the producers of one pool, each made in a thread of its own. A gap may be missed or be
    short; that costs at most an interval. Executor.

    librdkafka sends statistics only at a fixed interval, not on request. The pool waits for
    statistics once, when it prepares a producer. That has the time of an epoch, of which the round
    trips take 20 ms. A native commit waits for statistics that are newer than the transaction's
    start. That has the time for which the transaction is open: with keyed state it starts at the
    barrier. But the client makes statistics as long as it lives. Measured at 20 ms: 1 % of a core
    with 4 partitions, 2 % with 100, 8 % with 1,000. So the interval is short only where that time
    is short, and for the first producers of a task, which has to wait for them.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._made_s: float | None = None
        self._gaps: deque[float] = deque(maxlen=_EPOCHS)
        self._open: deque[float] = deque(maxlen=_EPOCHS)

    def next_ms(self) -> int:
        """For the producer that is made now; each epoch makes one."""
        now_s = self._clock()
        if self._made_s is not None:
            self._gaps.append(now_s - self._made_s)
        self._made_s = now_s
        if len(self._gaps) < _EPOCHS:
            return _FIRST_MS
        times = [statistics.median(self._gaps)]
        if self._open:
            times.append(max(statistics.median(self._open), _FIRST_MS / 1000 / _SHARE))
        return max(_LEAST_MS, min(round(min(times) * 1000 * _SHARE), _MOST_MS))

    def note_open(self, elapsed_s: float) -> None:
        """A transaction was open for so long before its native commit."""
        self._open.append(elapsed_s)


log = logging.getLogger(__name__)

_LEAST_INIT_S = 9.0


def make_client(hot_path: HotPath, config: Mapping[str, Any]) -> Client:
    """In compiled code, or confluent-kafka's.

    Raises:
        ConfigError: librdkafka refuses a setting.
    """
    library = library_for(config, hot_path)
    try:
        client: Any  # confluent-kafka's parameters have other names than `Client`'s
        client = make_producer(config) if library is None else NativeProducer(library, config)
    except KafkaException as err:
        raise translate(err, {"client": "producer"}) from None
    checked: Client = client
    return checked


class Preparation:
    """Prepares producers for one pool (`Prepare`). Executor, the pool's background threads.

    Args:
        connection, settings, transaction_timeout_s: see `transactional_config`.
        topic: of all records; None: each record names its topic.
        fetch: requests the limits of the cluster.
        hot_path: whether compiled code is used.
        retry_for_s: for `init_transactions`, which the client repeats by itself, and for the limits
            before it.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        settings: WriteSettings,
        *,
        transaction_timeout_s: float | None,
        topic: str | None,
        fetch: Callable[[], LimitsAnswer],
        hot_path: HotPath,
        retry_for_s: float,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._transaction_timeout_s = transaction_timeout_s
        self._topic = topic
        self._retry_for_s = retry_for_s
        self._limits = KnownLimits(fetch)
        self._make_client = partial(make_client, hot_path)
        self._pace = StatisticsPace(time.monotonic)

    def __call__(self, transactional_id: str) -> TransactionalProducer:
        """See `sluice.connectors.kafka.sink.producers.producer_pool.Prepare`."""
        until_s = time.monotonic() + self._retry_for_s
        limits = self._limits()
        try:
            return self._ready(transactional_id, limits, until_s)
        except ConfigError:
            # A broker without an answer may accept less than the known ones.
            newer = self._limits.refreshed()
            if newer == limits:
                raise
        except UnansweredError as err:
            if not isinstance(err.reason, ConfigError) or not self._has_other_limits(limits):
                raise
            raise LateRequestError(err.reason) from err  # this id may not be tried again
        return self._ready(transactional_id, newer, until_s)

    def _has_other_limits(self, limits: ClusterLimits) -> bool:
        """Whether another request finds other limits; a failed one keeps the known limits."""
        try:
            return self._limits.refreshed() != limits
        except StreamError as err:
            log.info("limits of the cluster cannot be read: error=%s", err)
            return False

    def _ready(
        self, transactional_id: str, limits: ClusterLimits, until_s: float
    ) -> TransactionalProducer:
        config = transactional_config(
            self._connection,
            limits,
            self._settings,
            transaction_timeout_s=self._transaction_timeout_s,
        )
        producer = self._made(config, transactional_id)
        try:
            left_s = max(until_s - time.monotonic(), _LEAST_INIT_S)
            producer.prepare(topic=self._topic, timeout_s=left_s)
        except BaseException:
            producer.release()
            raise
        return producer

    def _made(self, config: Mapping[str, Any], transactional_id: str) -> TransactionalProducer:
        try:
            return TransactionalProducer(
                self._make_client,
                config,
                transactional_id,
                statistics_interval_ms=self._pace.next_ms(),
                note_open_s=self._pace.note_open,
            )
        except UnreachableError as err:  # no token for it at the moment
            raise UnsentError(*err.args) from err
