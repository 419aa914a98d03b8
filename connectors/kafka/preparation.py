"""Makes the next transactional producer ready: the cluster's limits, a client, its identity."""

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from connectors.kafka._client import KafkaException, make_producer, translate
from connectors.kafka.cluster_limits import ClusterLimits, KnownLimits, LimitsLook
from connectors.kafka.hot_path import HotPath
from connectors.kafka.native.library import library_for
from connectors.kafka.native.producer import NativeProducer
from connectors.kafka.producer_client import Client
from connectors.kafka.producer_settings import transactional_config
from connectors.kafka.refusals import LateRequestError, UnansweredError, UnsentError
from connectors.kafka.security import KafkaConnection
from connectors.kafka.statistics_pace import StatisticsPace
from connectors.kafka.transactional_producer import TransactionalProducer
from connectors.kafka.tuning import WriteSettings
from runtime.errors import ConfigError, StreamError, UnreachableError

__all__ = ["Preparation", "make_client"]

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
    """Makes producers ready for one pool (`connectors.kafka.producers.Prepare`). Executor, the
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
        patience_s: float,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._transaction_timeout_s = transaction_timeout_s
        self._topic = topic
        self._patience_s = patience_s
        self._limits = KnownLimits(look)
        self._make_client = partial(make_client, hot_path)
        self._pace = StatisticsPace(time.monotonic)

    def __call__(self, transactional_id: str) -> TransactionalProducer:
        """See `connectors.kafka.producers.Prepare`."""
        until_s = time.monotonic() + self._patience_s
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
