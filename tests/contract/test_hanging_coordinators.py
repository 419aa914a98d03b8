"""A group's coordinator that hangs while another broker has the group, and one that only hangs.

By librdkafka's own mock cluster, whose brokers can be told to take their time.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connectors.kafka._client import librdkafka_path
from connectors.kafka.client_options import Role
from connectors.kafka.group_offsets import GroupOffsets
from connectors.kafka.owner import KafkaOwnerStore, OwnerRecord, owner_group
from connectors.kafka.security import KafkaConnection
from runtime.errors import UnreachableError
from tests.waiting import wait_for

_BROKERS = 3
_FOR_EVER_MS = 600_000
_LONG_S = 60.0
_RECORD = OwnerRecord(
    job_uid="u", checkpoint_uri="file:/a", session="s", host="h", renewed_at_ms=1, renewals=1
)


class _MockCluster:
    """Three brokers within librdkafka."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, self._library = ctypes.c_void_p, library
        library.rd_kafka_conf_new.restype = pointer
        library.rd_kafka_new.restype = pointer
        library.rd_kafka_new.argtypes = [ctypes.c_int, pointer, pointer, ctypes.c_size_t]
        library.rd_kafka_destroy.argtypes = [pointer]
        library.rd_kafka_mock_cluster_new.restype = pointer
        library.rd_kafka_mock_cluster_new.argtypes = [pointer, ctypes.c_int]
        library.rd_kafka_mock_cluster_destroy.argtypes = [pointer]
        library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        library.rd_kafka_mock_cluster_bootstraps.argtypes = [pointer]
        self._host = library.rd_kafka_new(0, library.rd_kafka_conf_new(), None, 0)
        self._cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(self._host, _BROKERS))
        made = library.rd_kafka_mock_topic_create(self._cluster, b"__consumer_offsets", 1, 1)
        assert made == 0

    def connection(self) -> KafkaConnection:
        servers = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        return KafkaConnection(bootstrap_servers=servers)

    def move(self, group: str, broker: int) -> None:
        """From now on this broker coordinates the group."""
        self._library.rd_kafka_mock_coordinator_set(
            self._cluster, b"group", group.encode(), ctypes.c_int32(broker)
        )

    def hang(self, broker: int) -> None:
        """It takes connections and requests, and answers none."""
        self._library.rd_kafka_mock_broker_set_rtt(
            self._cluster, ctypes.c_int32(broker), ctypes.c_int(_FOR_EVER_MS)
        )

    def close(self) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._host)


@pytest.fixture
def cluster() -> Iterator[_MockCluster]:
    path = librdkafka_path()
    assert path is not None, "the wheel of confluent-kafka ships its library"
    mock = _MockCluster(ctypes.CDLL(str(path)))
    yield mock
    mock.close()


def test_rule_22_a_record_finds_the_broker_that_has_its_group_now(cluster: _MockCluster) -> None:
    """Within one call: who wants the prefix watches for three renewals, and takes it."""
    cluster.move(owner_group("orders"), 1)
    store = KafkaOwnerStore(cluster.connection(), "orders", timeout_s=20.0)
    store.write(_RECORD)
    for _ in range(20):  # a new client asks once more who coordinates; later every ten minutes
        store.read()
        time.sleep(0.1)
    cluster.hang(1)
    cluster.move(owner_group("orders"), 2)
    assert store.read() == _RECORD
    store.close()


@pytest.mark.parametrize("kind", ["record", "offsets"])
def test_a_job_ends_though_a_groups_coordinator_hangs(cluster: _MockCluster, kind: str) -> None:
    """What was written and is not answered holds up no stop; and nothing is left behind, for a
    driver runs one job after the other."""
    threads = _threads()
    write, close = (_record if kind == "record" else _offsets)(cluster)
    cluster.hang(1)
    with pytest.raises((TimeoutError, UnreachableError)):
        write()
    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    closing.join(_LONG_S)
    assert not closing.is_alive()
    wait_for(lambda: _threads() <= threads, what="the end of the client")


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def _record(cluster: _MockCluster) -> tuple[Callable[[], None], Callable[[], None]]:
    cluster.move(owner_group("orders"), 1)
    store = KafkaOwnerStore(cluster.connection(), "orders", timeout_s=2.0)
    store.write(_RECORD)
    return lambda: store.write(_RECORD), store.close


def _offsets(cluster: _MockCluster) -> tuple[Callable[[], None], Callable[[], None]]:
    cluster.move("tools", 1)
    group = GroupOffsets(cluster.connection().librdkafka(Role.CONSUMER), "tools")
    place = ("__consumer_offsets", 0)
    group.publish({place: 1}, timeout_s=_LONG_S)
    return lambda: group.publish({place: 2}, timeout_s=0.1), group.close
