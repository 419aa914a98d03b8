"""Three Kafka nodes in containers, whose brokers may be killed, lost and truncated.

The nodes are configured by the environment variables of the official image, so ``KAFKA_IMAGE``
alone chooses between ``local/kafka:4.3.1`` (from ``docker/build.sh``) and ``apache/kafka:4.3.1``.
"""

import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from confluent_kafka import KafkaException
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient
from testcontainers.core.network import Network
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

from sluice.runtime.embedded.ports import HOST, free_ports
from tests.containers.direct_metadata import ask_broker
from tests.kit.kafka.kafka_records import admin
from tests.kit.waiting import wait_for

IMAGES = ("local/kafka:4.3.1", "apache/kafka:4.3.1")
_NODES = 3
_SOCKETS = "HOST://:9092,BROKER://:9093,CONTROLLER://:9094"


class KafkaNode(DockerContainer):
    """One broker and controller; its port on the host is fixed, so that it outlives restarts."""

    def __init__(self, *, image: str, node_id: int, network: Network) -> None:
        super().__init__(image, mem_limit="900m")
        self.node_id = node_id
        self.host_port = free_ports(1)[0]
        self.with_network(network).with_network_aliases(f"kafka-{node_id}")
        self.with_bind_ports(9092, self.host_port)
        self.with_envs(**_environment(node_id, self.host_port))
        ready = LogMessageWaitStrategy("Kafka Server started")
        self.waiting_for(ready.with_startup_timeout(600).with_poll_interval(0.2))

    @property
    def bootstrap(self) -> str:
        """``host:port`` from outside."""
        return f"{HOST}:{self.host_port}"


def _environment(node_id: int, host_port: int) -> dict[str, str]:
    voters = ",".join(f"{number}@kafka-{number}:9094" for number in range(1, _NODES + 1))
    return {
        "CLUSTER_ID": "5L6g3nShT-eMCtK--X86sw",
        "KAFKA_HEAP_OPTS": "-Xms256m -Xmx256m -XX:TieredStopAtLevel=1",
        "KAFKA_NODE_ID": str(node_id),
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": voters,
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
        "KAFKA_LISTENERS": _SOCKETS,
        "KAFKA_ADVERTISED_LISTENERS": f"HOST://{HOST}:{host_port},BROKER://kafka-{node_id}:9093",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": (
            "HOST:PLAINTEXT,BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT"
        ),
        "KAFKA_DEFAULT_REPLICATION_FACTOR": str(_NODES),
        "KAFKA_MIN_INSYNC_REPLICAS": "2",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": str(_NODES),
        "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "4",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": str(_NODES),
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "2",
        "KAFKA_TRANSACTION_STATE_LOG_NUM_PARTITIONS": "4",
        # How long the cluster waits before it believes that a killed broker is gone.
        "KAFKA_BROKER_SESSION_TIMEOUT_MS": "3000",
        "KAFKA_BROKER_HEARTBEAT_INTERVAL_MS": "500",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    }


class KafkaCluster:
    """Replication 3, at least 2 replicas in sync; as a context manager it starts and is removed.

    The network is somebody else's.
    """

    def __init__(self, image: str, network: Network) -> None:
        self._network = network
        self._image = image
        self._nodes: dict[int, KafkaNode] = {}

    def __enter__(self) -> Self:
        self._nodes = {
            number: KafkaNode(image=self._image, node_id=number, network=self._network)
            for number in range(1, _NODES + 1)
        }
        try:
            with ThreadPoolExecutor(_NODES) as pool:
                list(pool.map(KafkaNode.start, self._nodes.values()))
            self.await_brokers(_NODES)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _remove(self) -> None:
        with contextlib.ExitStack() as stack:
            for node in self._nodes.values():
                stack.callback(node.stop)

    @property
    def bootstrap(self) -> str:
        """All nodes, also those that do not run at the moment."""
        return ",".join(node.bootstrap for node in self._nodes.values())

    @property
    def node_ids(self) -> tuple[int, ...]:
        """The nodes that were not lost for good."""
        return tuple(self._nodes)

    def kill(self, node_id: int) -> None:
        """``kill -9`` of the broker's process; its disk is kept."""
        self._container(node_id).kill("KILL")

    def start(self, node_id: int) -> None:
        """Start a killed node on its disk and wait until the cluster has it back."""
        self._container(node_id).start()
        self.await_brokers(_NODES)

    def lose(self, node_id: int) -> None:
        """Kill a node and delete its disk; it does not come back."""
        self.kill(node_id)
        self._nodes.pop(node_id).stop()

    def pause(self, node_id: int) -> None:
        """Freeze a node: its connections stay open and silent."""
        self._container(node_id).pause()

    def resume(self, node_id: int) -> None:
        """Let a frozen node continue."""
        self._container(node_id).unpause()

    @contextlib.contextmanager
    def cut_off(self, node_id: int) -> Iterator[None]:
        """Take a node out of the network for a while; it runs on without knowing why."""
        container, network = self._container(node_id), self._docker_network()
        network.disconnect(container)
        try:
            yield
        finally:
            network.connect(container, aliases=[f"kafka-{node_id}"])

    def leader(self, topic: str, partition: int = 0) -> int:
        """The node that leads a partition, once there is one."""

        def find() -> int:
            found = self._topic(topic)
            return int(found[partition].leader) if partition in found else 0

        return wait_for(lambda: max(find(), 0), what=f"a leader of {topic}")

    def transaction_coordinator(self, transactional_id: str) -> int:
        """The node that leads the partition of ``__transaction_state`` for an id."""
        partitions = self._topic("__transaction_state")
        return self.leader("__transaction_state", _java_hash(transactional_id) % len(partitions))

    def await_brokers(self, count: int, *, timeout_s: float = 600.0) -> None:
        """Wait until exactly ``count`` brokers are known to the cluster."""
        client = admin(self.bootstrap)

        def known() -> bool:
            try:
                return len(client.list_topics(timeout=2).brokers) == count
            except KafkaException:
                return False

        wait_for(known, timeout_s=timeout_s, what=f"{count} brokers")

    def await_in_sync(self, topic: str, *, timeout_s: float = 600.0) -> None:
        """Wait until every node says the same: each partition has all its replicas in sync.

        Every node is asked by itself, for one that was truncated still reports what it knew before,
        and leads, as it believes, an empty log.
        """

        def in_sync() -> bool:
            told = [ask_broker(HOST, node.host_port, topic) for node in self._nodes.values()]
            return all(
                view
                and view == told[0]
                and all(len(led.in_sync) == _NODES for led in view.values())
                for view in told
            )

        wait_for(in_sync, timeout_s=timeout_s, what=f"all replicas of {topic} in sync")

    def _topic(self, topic: str) -> Mapping[int, Any]:
        try:
            found = admin(self.bootstrap).list_topics(topic, timeout=5)
        except KafkaException:
            return {}
        return dict(found.topics[topic].partitions)

    def _container(self, node_id: int) -> Any:
        return self._nodes[node_id].get_wrapped_container()

    def _docker_network(self) -> Any:
        return DockerClient().client.networks.get(self._network.id)


def _java_hash(text: str) -> int:
    """``Utils.abs(text.hashCode())``, by which Kafka places a transactional id."""
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return 0 if value == 0x80000000 else abs(value - (1 << 32) if value >= 1 << 31 else value)
