"""Brokers that clients reach in two ways: straight, and by way of a proxy each.

A broker gives a client the addresses of the listener that it came by, so who begins at `proxied`
stays after the proxies, and who begins at `bootstrap` never meets one. Brokers among themselves
never do.
"""

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException

from sluice.connectors.kafka.sink.committer.wire_answers import STATE_TOPIC, partition_of
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka, new_cluster_id
from sluice.runtime.embedded.ports import HOST, free_ports
from tests.kit.kafka.kafka_proxy import KafkaProxy
from tests.kit.kafka.kafka_records import admin
from tests.kit.waiting import wait_for

_COMMON = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "metadata.max.idle.interval.ms": "0",
    # Long enough for a node that gets little of a busy machine.
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "1000",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT",
}


class ProxiedKafka:
    """One broker, or a cluster whose first node alone is controller; each with its proxy.

    Used by one thread; as a context manager it starts and is removed.

    Args:
        transaction_version: feature level of the cluster.
        nodes: how many brokers; with several, all topics have so many replicas.
        jars: of another release of Kafka.
        make_proxy: for each broker.
    """

    def __init__(
        self,
        *,
        transaction_version: int,
        nodes: int = 1,
        jars: Path | None = None,
        make_proxy: Callable[[], KafkaProxy] = KafkaProxy,
    ) -> None:
        self.level = transaction_version
        controller, *ports = free_ports(1 + 2 * nodes)
        cluster_id = new_cluster_id()
        self.proxies = {node: make_proxy() for node in range(1, nodes + 1)}
        self.brokers: dict[int, EmbeddedKafka] = {}
        for node, proxy in self.proxies.items():
            plain, behind = ports[2 * node - 2 : 2 * node]
            self.brokers[node] = EmbeddedKafka(
                port=plain,
                transaction_version=transaction_version,
                properties=_properties(node, nodes, plain, behind, proxy.port, controller),
                cluster_id=cluster_id,
                jars=jars,
            )
            proxy.forward_to(behind)

    def __enter__(self) -> Self:
        try:
            with ThreadPoolExecutor(len(self.brokers)) as pool:
                list(pool.map(EmbeddedKafka.start, self.brokers.values()))
            self.await_brokers(len(self.brokers))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End proxies and brokers."""
        with contextlib.ExitStack() as stack:
            for broker in self.brokers.values():  # the controller last
                stack.callback(broker.close)
            for proxy in self.proxies.values():
                stack.callback(proxy.close)

    @property
    def bootstrap(self) -> str:
        """Addresses of the brokers themselves."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    @property
    def proxied(self) -> str:
        """Addresses of the proxies."""
        return ",".join(proxy.address for proxy in self.proxies.values())

    def coordinator(self, transactional_id: str) -> int:
        """The node that coordinates an id's transactions now; waits until there is one."""

        def find() -> int:
            try:
                found = admin(self.bootstrap).list_topics(STATE_TOPIC, timeout=5)
            except KafkaException:
                return 0
            partitions = found.topics[STATE_TOPIC].partitions
            if not partitions:
                return 0
            return max(0, partitions[partition_of(transactional_id, len(partitions))].leader)

        return wait_for(find, what=f"the coordinator of {transactional_id}")

    def coordinated_elsewhere(self, make_id: Callable[[], str]) -> str:
        """An id whose coordinator is not the controller's node."""
        return wait_for(
            lambda: next((i for i in (make_id(),) if self.coordinator(i) != 1), ""),
            what="an id that another node coordinates",
        )

    def await_brokers(self, count: int) -> None:
        """Wait until exactly so many are known to the cluster."""
        client = admin(self.bootstrap)

        def known() -> bool:
            try:
                return len(client.list_topics(timeout=2).brokers) == count
            except KafkaException:
                return False

        wait_for(known, what=f"{count} brokers")


def _properties(
    node: int, nodes: int, plain: int, behind: int, proxy: int, controller: int
) -> dict[str, str]:
    own = f"PLAINTEXT://{HOST}:{plain}"
    listeners = f"{own},PROXIED://{HOST}:{behind}"
    copies, in_sync = str(nodes), str(min(2, nodes))
    return {
        **_COMMON,
        "node.id": str(node),
        "process.roles": "broker,controller" if node == 1 else "broker",
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listeners": f"{listeners},CONTROLLER://{HOST}:{controller}" if node == 1 else listeners,
        "advertised.listeners": f"{own},PROXIED://{HOST}:{proxy}",
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
    }
