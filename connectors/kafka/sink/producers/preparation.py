"""librdkafka settings of the sink's producers: fast by default, bounded by what the cluster takes.

Runs where a producer is made: in an executor's background thread.

How often a producer is to give its statistics, by how long the epochs are.

Makes the next transactional producer ready: the cluster's limits, a client, its identity.
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
    LimitsLook,
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
    # Emulated in the Python client: it calls back for errors alone (`pre-commit-confirmed`).
    reports = {"delivery.report.only.error": True}
    return {**_DEFAULTS, **queue.librdkafka(), **batches, **reports}


_FIRST_MS = 20
_LEAST_MS = 10
_MOST_MS = 250
_SHARE = 0.4
_EPOCHS = 5


class StatisticsPace:
    """Of the producers of one pool, each made in a thread of its own: a gap may be missed or be
    short, and costs no more than an interval. Executor.

    librdkafka cannot be asked for its statistics, only told how often to give them. They are waited
    for once, when a producer is made ready, and that has the time of an epoch, of which the round
    trips take 20 ms; but they are made as long as it lives. Measured at 20 ms: 1 % of a core with 4
    partitions, 2 % with 100, 8 % with 1,000. So they come often only where epochs are short, and of
    the first producers of a task, for which it has to wait.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._made_s: float | None = None
        self._gaps: deque[float] = deque(maxlen=_EPOCHS)

    def next_ms(self) -> int:
        """For a producer that is made now; one is made for each epoch."""
        now_s = self._clock()
        if self._made_s is not None:
            self._gaps.append(now_s - self._made_s)
        self._made_s = now_s
        if len(self._gaps) < _EPOCHS:
            return _FIRST_MS
        wanted_ms = round(statistics.median(self._gaps) * 1000 * _SHARE)
        return max(_LEAST_MS, min(wanted_ms, _MOST_MS))


log = logging.getLogger(__name__)

_LEAST_INIT_S = 9.0


def make_client(hot_path: HotPath, config: Mapping[str, Any]) -> Client:
    """By compiled code, or confluent-kafka's.

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
    """Makes producers ready for one pool (`Prepare`). Executor, the
    pool's background threads.

    Args:
        connection, settings, transaction_timeout_s: see `transactional_config`.
        topic: that all records go to; None: they name theirs.
        look: asks the cluster for its limits.
        hot_path: by compiled code or not.
        patience_s: of `init_transactions`, which the client repeats by itself, with the limits,
            which are asked for before.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        settings: WriteSettings,
        *,
        transaction_timeout_s: float | None,
        topic: str | None,
        look: Callable[[], LimitsLook],
        hot_path: HotPath,
        retry_for_s: float,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._transaction_timeout_s = transaction_timeout_s
        self._topic = topic
        self._retry_for_s = retry_for_s
        self._limits = KnownLimits(look)
        self._make_client = partial(make_client, hot_path)
        self._pace = StatisticsPace(time.monotonic)

    def __call__(self, transactional_id: str) -> TransactionalProducer:
        """See `sluice.connectors.kafka.sink.producers.producer_pool.Prepare`."""
        until_s = time.monotonic() + self._retry_for_s
        limits = self._limits()
        try:
            return self._ready(transactional_id, limits, until_s)
        except ConfigError:
            # A broker that nobody has heard yet may take less than the others.
            newer = self._limits.asked_again()
            if newer == limits:
                raise
        except UnansweredError as err:
            if not isinstance(err.reason, ConfigError) or not self._is_told_more(limits):
                raise
            raise LateRequestError(err.reason) from err  # this id may not be tried again
        return self._ready(transactional_id, newer, until_s)

    def _is_told_more(self, limits: ClusterLimits) -> bool:
        """Whether another look tells other limits; one that fails hides nothing that is known."""
        try:
            return self._limits.asked_again() != limits
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
            )
        except UnreachableError as err:  # there is no token for it at the moment
            raise UnsentError(*err.args) from err
