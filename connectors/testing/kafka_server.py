"""The broker of a test session: a process of this machine, or a container."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.errors import ConfigError
from sluice.runtime.extras import extras_named

__all__ = ["KafkaServer", "running_kafka"]

_START_S = 300
# One broker holds all replicas; Kafka's defaults for this topic need three.
_ONE_BROKER = {
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaServer:
    """A running broker.

    Attributes:
        bootstrap: ``host:port``, for ``kafka.bootstrap.servers``.
    """

    bootstrap: str

    @property
    def connection(self) -> KafkaConnection:
        """The connection that other functions of Sluice take."""
        return KafkaConnection(bootstrap_servers=self.bootstrap)


@contextlib.contextmanager
def running_kafka(*, image: str | None) -> Iterator[KafkaServer]:
    """An `EmbeddedKafka`, or a container of ``image``, for the time of a context."""
    if image is None:
        with EmbeddedKafka() as broker:
            yield KafkaServer(bootstrap=broker.bootstrap)
    else:
        with _container(image) as bootstrap:
            yield KafkaServer(bootstrap=bootstrap)


@contextlib.contextmanager
def _container(image: str) -> Iterator[str]:
    with extras_named():
        from testcontainers.community.kafka import KafkaContainer
    container = KafkaContainer(image).with_envs(**_ONE_BROKER)
    try:
        container.with_kraft()
    except ValueError as err:
        raise ConfigError(
            "the image's tag is no version of Confluent Platform",
            {"option": "--kafka-image", "image": image, "error": err},
            "Name an image of confluentinc/cp-kafka with a version, 7.0.0 or later.",
        ) from err
    try:
        yield container.start(timeout=_START_S).get_bootstrap_server()
    finally:
        container.stop()
