"""Three brokers and a controller as plain JVM processes; each broker may be bounced.

The controller is a node of its own, as in Kafka's system tests, so that every broker may die. The
log of transactions has one partition: its leader coordinates the transactions of all ids.
"""

import base64
import contextlib
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import PartitionMetadata  # type: ignore[attr-defined]  # has no __all__

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.embedded.ports import HOST, free_ports
from tests.kit.kafka.kafka_records import admin
from tests.kit.waiting import wait_for

_BROKERS = (1, 2, 3)
_STATE_TOPIC = "__transaction_state"
_COMMON = {
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
}
_REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "1",
    # Kafka's own default; the embedded broker's is too short for four of them on a busy machine.
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
}


class BrokerCluster:
    """Topics have three replicas, at least two in sync. Used by one thread, as a context manager.

    Args:
        directory: for logs and data.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._controller_port, *ports = free_ports(1 + len(_BROKERS))
        self._controller = EmbeddedKafka(
            data_dir=_made(directory / "controller"), properties=self._of_controller()
        )
        self._brokers = {
            node: EmbeddedKafka(
                data_dir=_made(directory / f"broker-{node}"),
                port=port,
                properties=self._of_broker(node, port),
            )
            for node, port in zip(_BROKERS, ports, strict=True)
        }

    def __enter__(self) -> Self:
        try:
            self._controller.start()
            for node in _BROKERS:
                self._join(node)
            with ThreadPoolExecutor(len(_BROKERS)) as pool:
                list(pool.map(EmbeddedKafka.start, self._brokers.values()))
            self.await_brokers(len(_BROKERS))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process, the controller last."""
        with contextlib.ExitStack() as stack:
            for node in (self._controller, *self._brokers.values()):
                stack.callback(node.kill)

    @property
    def bootstrap(self) -> str:
        """All brokers, also those that do not run at the moment."""
        return ",".join(self._brokers[node].bootstrap for node in _BROKERS)

    @property
    def node_ids(self) -> tuple[int, ...]:
        """Of the brokers."""
        return _BROKERS

    def bounce(self, node: int, *, clean: bool) -> None:
        """End a broker, by SIGTERM or by ``kill -9``, and start it again on its data.

        After a kill the cluster is given the time to miss it, so that its partitions move.
        """
        if clean:
            self._brokers[node].stop()
            self._await_running()
        else:
            self.kill(node)
        self.start(node)

    def kill(self, node: int) -> None:
        """``kill -9`` of a broker; returns when the cluster has missed it."""
        self._brokers[node].kill()
        self._await_running()

    def start(self, node: int) -> None:
        """Start a broker that was ended again, on its data."""
        self._brokers[node].start()
        self._await_running()

    def leader(self, topic: str) -> int:
        """The broker that leads the topic's first partition; 0: none does, or nobody answers."""
        return self._found(topic, lambda partition: partition.leader)

    def in_sync(self, topic: str) -> int:
        """How many replicas of the topic's first partition are in sync."""
        return self._found(topic, lambda partition: len(partition.isrs))

    def transaction_coordinator(self) -> int:
        """The broker that coordinates all transactions now."""
        return wait_for(lambda: self.leader(_STATE_TOPIC), what="a transaction coordinator")

    def await_brokers(self, count: int) -> None:
        """Wait until the cluster knows exactly so many brokers."""
        client = admin(self.bootstrap)

        def known() -> bool:
            return _answer(lambda: len(client.list_topics(timeout=5).brokers), 0) == count

        wait_for(known, what=f"{count} brokers")

    def _await_running(self) -> None:
        self.await_brokers(sum(broker.is_running() for broker in self._brokers.values()))

    def _found(self, topic: str, what: Callable[[PartitionMetadata], int]) -> int:
        def find() -> int:
            found = admin(self.bootstrap).list_topics(topic, timeout=5).topics[topic]
            return max(what(found.partitions[0]), 0) if found.partitions else 0

        return _answer(find, 0)

    def _of_controller(self) -> Mapping[str, str]:
        place = f"CONTROLLER://{HOST}:{self._controller_port}"
        return {
            **_COMMON,
            "process.roles": "controller",
            "node.id": "100",
            "controller.quorum.voters": f"100@{HOST}:{self._controller_port}",
            "listeners": place,
            "advertised.listeners": place,
            **_REPLICATED,
        }

    def _of_broker(self, node: int, port: int) -> Mapping[str, str]:
        place = f"PLAINTEXT://{HOST}:{port}"
        return {
            **_COMMON,
            "process.roles": "broker",
            "node.id": str(node),
            "controller.quorum.voters": f"100@{HOST}:{self._controller_port}",
            "listeners": place,
            "advertised.listeners": place,
            **_REPLICATED,
        }

    def _join(self, node: int) -> None:
        """Format a broker's data for the cluster; the controller holds the feature levels."""
        known = (self._directory / "controller" / "data" / "meta.properties").read_text("ascii")
        (cluster,) = (line for line in known.splitlines() if line.startswith("cluster.id="))
        data = _made(self._directory / f"broker-{node}" / "data")
        mine = ("version=1", cluster, f"node.id={node}", f"directory.id={_directory_id()}")
        (data / "meta.properties").write_text("\n".join(mine) + "\n", "ascii")


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _directory_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _answer(ask: Callable[[], int], otherwise: int) -> int:
    try:
        return ask()
    except KafkaException:
        return otherwise
