"""A job with coordinators in processes of their own: servers and networks are away, and leaders die
meanwhile. Real processes, Spark, broker and ZooKeeper."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.embedded.ports import HOST, free_ports
from sluice.runtime.embedded.zookeeper.embedded_zookeeper import EmbeddedZooKeeper
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.leading.hosted_copy import HostedCopy
from tests.kit.leading.hosted_processes import PARTITIONS
from tests.kit.objects.s3_fixture import ProxiedBucket
from tests.kit.objects.s3_proxy import FaultKind
from tests.kit.process_cut import ProcessCut
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.extended]

_PROXY = "127.0.0.2"
_MINUTE_S = 60.0
_OUTAGE_S = 15.0  # a leader's lease ends in this time, and tasks have nobody to ask
_Made = Callable[..., HostedCopy]


@pytest.fixture
def make(kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path) -> Iterator[_Made]:
    """Makes the processes of a job; they end with the test."""
    begun: list[HostedCopy] = []

    def made(**where: object) -> HostedCopy:
        source, sink = topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)
        begun.append(
            HostedCopy(tmp_path, kafka.bootstrap, source, sink, **where)  # type: ignore[arg-type]
        )
        return begun[-1]

    yield made
    for each in begun:
        each.close()


@pytest.fixture
def ensemble() -> Iterator[EmbeddedZooKeeper]:
    """Of three nodes that a test kills."""
    with EmbeddedZooKeeper(nodes=3) as servers:
        yield servers


def _require_no_restart(processes: HostedCopy) -> None:
    assert all(set(found.values()) == {0} for found in processes.attempts())


@pytest.mark.parametrize(
    ("killed", "minutes"),
    [
        pytest.param(1, 0.25, id="one-node"),
        pytest.param(2, 0.25, id="quorum"),
        pytest.param(3, 0.25, id="all"),
        pytest.param(3, 10.0, id="all-for-ten-minutes", marks=pytest.mark.long),
    ],
)
def test_a_leader_dies_while_nodes_of_zookeeper_are_away(
    make: _Made, ensemble: EmbeddedZooKeeper, killed: int, minutes: float
) -> None:
    """The job continues, the standby takes over, and after the outage the next one, too."""
    processes = make()
    elected = ("--ha", f"zookeeper://{ensemble.hosts}/hosted")
    with processes.records(every_s=0.5) as end_records:
        driver, leader = processes.driver(), processes.leader(*elected)
        processes.await_more(100)
        standby = processes.standby(*elected)
        away_s = time.monotonic()
        first = ensemble.leader()
        for number in range(killed):
            ensemble.nodes[(first + number) % len(ensemble.nodes)].kill()
        processes.await_more()
        processes.kill(leader)
        processes.await_lead(standby)
        last = processes.standby(*elected)
        while time.monotonic() < away_s + minutes * _MINUTE_S:
            processes.await_more()
        ensemble.start()
        processes.await_more()
        assert standby.poll() is None, processes.log(standby)
        processes.kill(standby)
        processes.await_lead(last)
        processes.await_more()
        count = end_records()
        processes.finish(count, driver, last)
    _require_no_restart(processes)


@pytest.mark.parametrize("dies", [True, False], ids=["leader-dies", "leader-lives"])
def test_the_store_is_away_and_zookeeper_lives(
    make: _Made,
    ensemble: EmbeddedZooKeeper,
    s3_proxied: ProxiedBucket,
    monkeypatch: pytest.MonkeyPatch,
    dies: bool,
) -> None:
    """For longer than a lease. A living leader keeps the lead. A standby does not lead meanwhile: it
    could not fence the last leader. No attempt restarts."""
    for name, value in s3_proxied.direct.environment.items():
        monkeypatch.setenv(name, value)
    fs = open_file_system(f"{s3_proxied.uri}/checkpoint")
    processes = make(fs=fs, environment=s3_proxied.environment)
    elected = ("--ha", f"zookeeper://{ensemble.hosts}/stored")
    with processes.records(every_s=0.5) as end_records:
        driver, leader = processes.driver(), processes.leader(*elected)
        processes.await_more(100)
        standby = processes.standby(*elected)
        s3_proxied.proxy.add(FaultKind.REFUSED, times=None)
        away_s = time.monotonic()
        if dies:
            processes.kill(leader)
        wait_for(lambda: time.monotonic() > away_s + _OUTAGE_S, what="the end of the outage")
        assert standby.poll() is None, processes.log(standby)
        assert not processes.leads(standby)
        s3_proxied.proxy.clear()
        if dies:
            processes.await_lead(standby)
        processes.await_more(300)
        assert processes.leads(standby) is dies
        count = end_records()
        processes.finish(count, driver, standby, *([] if dies else [leader]))
    _require_no_restart(processes)


def test_regions_leave_a_driver_that_a_cut_network_hides_from_the_leader(make: _Made) -> None:
    """The other driver reaches the leader. After the network is mended, the regions return when
    the other driver dies."""
    processes = make()
    (port,) = free_ports(1)
    options = ("--host", _PROXY, "--bind-address", HOST, "--port", str(port))
    with (
        ProcessCut((_PROXY, port), (HOST, port)) as network,
        processes.records(every_s=0.5) as end_records,
    ):
        hidden = processes.driver()
        leader = processes.leader(*options, "--host-timeout", "5")
        processes.await_more(100)
        other = processes.driver()
        processes.await_text(other, "leader joined")
        network.cut(hidden.pid)
        processes.await_text(leader, "host is lost")
        processes.await_more(300)
        network.mend()
        wait_for(lambda: processes.log(leader).count("host joined") > 2, what="the second join")
        processes.await_more(300)
        processes.kill(other)
        processes.await_more(300)
        count = end_records()
        processes.finish(count, hidden, leader)
