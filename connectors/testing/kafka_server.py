"""The broker of a test session: a process of this machine, or a container."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka, new_cluster_id
from sluice.runtime.embedded.ports import HOST, free_ports
from sluice.runtime.extras import extras_named

__all__ = ["KafkaServer", "running_kafka"]

_START_S = 300
_PORT = 9092


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
    """Not testcontainers' ``KafkaContainer``, which starts only images of Confluent."""
    with extras_named():
        from testcontainers.core.container import DockerContainer
        from testcontainers.core.wait_strategies import LogMessageWaitStrategy
    container = DockerContainer(image)
    host = container.get_docker_client().host().replace("localhost", HOST)
    (port,) = free_ports(1)
    bootstrap = f"{host}:{port}"
    ready = LogMessageWaitStrategy("Kafka Server started").with_startup_timeout(_START_S)
    container.with_bind_ports(_PORT, port).with_envs(**_variables(bootstrap)).waiting_for(ready)
    with container:
        yield bootstrap


def _variables(bootstrap: str) -> Mapping[str, str]:
    """One broker and controller that holds all replicas: some of Kafka's defaults need three."""
    return {
        "CLUSTER_ID": new_cluster_id(),
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9094",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
        "KAFKA_LISTENERS": f"HOST://:{_PORT},BROKER://:9093,CONTROLLER://:9094",
        "KAFKA_ADVERTISED_LISTENERS": f"HOST://{bootstrap},BROKER://localhost:9093",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": (
            "HOST:PLAINTEXT,BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT"
        ),
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    }
