"""A group's coordinator that hangs while another broker has the group, and one that only hangs.

By librdkafka's own mock cluster, whose brokers can be reported to take their time.
"""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.transaction_lease import KafkaLeaseStore, lease_group
from sluice.connectors.kafka.source.enumerator.group_offsets import GroupOffsets
from sluice.runtime.errors import UnreachableError
from sluice.runtime.ownership.lease import LeaseRecord
from tests.kit.kafka.mock_cluster import MockCluster
from tests.kit.waiting import join, wait_for

_BROKERS = 3
_LONG_S = 60.0
_RECORD = LeaseRecord(
    job_uid="u", checkpoint_uri="file:/a", session="s", host="h", renewed_at_ms=1, renewals=1
)


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster.running(_BROKERS) as made:
        made.make_topic("__consumer_offsets")
        yield made


def connection(cluster: MockCluster) -> KafkaConnection:
    return KafkaConnection(bootstrap_servers=cluster.bootstrap)


def test_lease_guards_outputs_a_record_finds_the_broker_that_has_its_group_now(
    cluster: MockCluster,
) -> None:
    cluster.move(lease_group("orders"), 1)
    # Less than the 60 s after which a client gives up by itself.
    store = KafkaLeaseStore(connection(cluster), "orders", timeout_s=45.0)
    store.write(_RECORD)
    for _ in range(20):  # a new client asks once more who coordinates; later every ten minutes
        store.read()
        time.sleep(0.1)
    cluster.hang(1)
    cluster.move(lease_group("orders"), 2)
    assert store.read() == _RECORD
    store.close()


@pytest.mark.parametrize("kind", ["record", "offsets"])
def test_a_job_ends_though_a_groups_coordinator_hangs(cluster: MockCluster, kind: str) -> None:
    threads = _threads()
    write, close = (_record if kind == "record" else _offsets)(cluster)
    cluster.hang(1)
    with pytest.raises((TimeoutError, UnreachableError)):
        write()
    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    join(closing, timeout_s=_LONG_S)
    wait_for(lambda: _threads() <= threads, what="the end of the client")


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def _record(cluster: MockCluster) -> tuple[Callable[[], None], Callable[[], None]]:
    cluster.move(lease_group("orders"), 1)
    store = KafkaLeaseStore(connection(cluster), "orders", timeout_s=_LONG_S)
    store.write(_RECORD)
    store._timeout_s = 0.1  # noqa: SLF001 - of each call
    return lambda: store.write(_RECORD), store.close


def _offsets(cluster: MockCluster) -> tuple[Callable[[], None], Callable[[], None]]:
    cluster.move("tools", 1)
    group = GroupOffsets(connection(cluster).librdkafka(Role.CONSUMER), "tools")
    place = ("__consumer_offsets", 0)
    group.publish({place: 1}, timeout_s=_LONG_S)
    return lambda: group.publish({place: 2}, timeout_s=0.1), group.close
