"""A coordinator in a process of its own, killed under load, and a driver that is killed: real
processes, Spark and broker."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.leading.hosted_copy import HostedCopy
from tests.kit.leading.hosted_processes import PARTITIONS
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.extended]

_ELECTED = ("--ha", "lease")


@pytest.fixture
def processes(kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path) -> Iterator[HostedCopy]:
    """Of one job."""
    source, sink = topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)
    made = HostedCopy(tmp_path, kafka.bootstrap, source, sink)
    yield made
    made.close()


def _require_no_restart(processes: HostedCopy) -> None:
    assert all(set(found.values()) == {0} for found in processes.attempts())


def test_tasks_outlive_coordinators_that_are_killed(processes: HostedCopy) -> None:
    """Each record once and in order, and no attempt restarts."""
    with processes.records() as end_records:
        driver, leader = processes.driver(), processes.coordinator()
        processes.await_more(100)
        for _ in range(2):
            processes.kill(leader)
            leader = processes.coordinator()
            processes.await_more()
        count = end_records()
        processes.finish(count, driver, leader)
    _require_no_restart(processes)


def test_a_standby_coordinator_takes_the_tasks_over(processes: HostedCopy) -> None:
    with processes.records() as end_records:
        driver, leader = processes.driver(), processes.leader(*_ELECTED)
        processes.await_more(100)
        standby = processes.standby(*_ELECTED)
        processes.kill(leader)
        processes.await_more(300)
        count = end_records()
        processes.finish(count, driver, standby)
    _require_no_restart(processes)


def test_tasks_outlive_both_coordinators(processes: HostedCopy) -> None:
    """Leader and standby are killed at once, and started again later."""
    with processes.records() as end_records:
        driver, leader = processes.driver(), processes.leader(*_ELECTED)
        standby = processes.standby(*_ELECTED)
        processes.await_more(100)
        processes.kill(leader, standby)
        both = [processes.coordinator(*_ELECTED) for _ in range(2)]
        processes.await_more(300)
        count = end_records()
        processes.finish(count, driver, *both)
    _require_no_restart(processes)


def test_a_leader_that_wakes_after_two_successors_ends(processes: HostedCopy) -> None:
    """Paused for longer than its lease; the tasks never restart."""
    with processes.records() as end_records:
        driver, paused = processes.driver(), processes.leader(*_ELECTED)
        processes.await_more(100)
        killed = processes.standby(*_ELECTED)
        processes.pause(paused)
        processes.await_lead(killed)
        processes.await_more()
        last = processes.standby(*_ELECTED)
        processes.kill(killed)
        processes.await_lead(last)
        processes.await_more()
        processes.resume(paused)
        wait_for(lambda: paused.poll() is not None, what="the end of the leader that was paused")
        assert paused.returncode == 1, processes.log(paused)
        processes.await_more()
        count = end_records()
        processes.finish(count, driver, last)
    _require_no_restart(processes)


def test_regions_of_a_driver_that_is_killed_move_to_another_one(
    processes: HostedCopy,
) -> None:
    with processes.records() as end_records:
        first, leader = processes.driver(), processes.coordinator()
        processes.await_more(100)
        second = processes.driver()
        wait_for(lambda: processes.says("host joined", 2), poll_s=0.3)
        processes.kill(first)
        processes.await_more(500)
        count = end_records()
        processes.finish(count, second, leader)


def test_an_upgrade_replaces_each_process_in_turn(processes: HostedCopy) -> None:
    """In good order: the standby, the leader, then each driver. Only drivers cost a restart."""
    with processes.records() as end_records:
        first, leader = processes.driver(), processes.leader(*_ELECTED)
        second, standby = processes.driver(), processes.standby(*_ELECTED)
        wait_for(lambda: processes.says("host joined", 2), poll_s=0.3)
        processes.await_more(100)
        processes.terminate(standby)
        upgraded = processes.standby(*_ELECTED)
        processes.terminate(leader)
        processes.await_lead(upgraded)
        last = processes.standby(*_ELECTED)
        processes.await_more()
        _require_no_restart(processes)
        drivers = []
        for old in (first, second):
            processes.terminate(old)
            drivers.append(processes.driver())
            processes.await_text(drivers[-1], "leader joined")
            processes.await_more(500)
        count = end_records()
        processes.finish(count, *drivers, upgraded, last)
    assert "holding=released" in processes.log(upgraded), "the leader that ended gave up its lead"
