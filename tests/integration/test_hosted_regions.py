"""A coordinator in a process of its own, killed under load, and a driver that is killed: real
processes, Spark and broker."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import read
from tests.kit.leading.hosted_processes import WAIT_S, HostedProcesses, grows, records_arrive
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.extended]

_PARTITIONS = 2


def _require_exact(bootstrap: str, topic: str, count: int) -> None:
    written: dict[int | None, list[int]] = {number: [] for number in range(_PARTITIONS)}
    for record in read(bootstrap, topic):
        written[record.partition].append(int(record.value or b""))
    assert written == {p: list(range(p, count, _PARTITIONS)) for p in range(_PARTITIONS)}


@pytest.fixture
def started(
    kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> Iterator[tuple[HostedProcesses, str, str]]:
    """The processes of a job, and its topics."""
    source, sink = topic(partitions=_PARTITIONS), topic(partitions=_PARTITIONS)
    made = HostedProcesses(tmp_path, [kafka.bootstrap, source, sink])
    yield made, source, sink
    made.close()


def test_tasks_outlive_coordinators_that_are_killed(
    kafka: EmbeddedKafka, started: tuple[HostedProcesses, str, str]
) -> None:
    """Each record once and in order, and no attempt restarts."""
    processes, source, sink = started
    with records_arrive(kafka.bootstrap, source) as end_records:
        driver, leader = processes.driver(), processes.coordinator()
        grows(kafka.bootstrap, sink, 100)
        for _ in range(2):
            leader.kill()
            leader.wait()
            leader = processes.coordinator()
            grows(kafka.bootstrap, sink, 200)
        count = end_records()
        wait_for(lambda: len(read(kafka.bootstrap, sink)) >= count, timeout_s=WAIT_S, poll_s=0.3)
    processes.stop()
    assert driver.wait(WAIT_S) == 0
    assert leader.wait(WAIT_S) == 0
    _require_exact(kafka.bootstrap, sink, count)
    assert all(set(found.values()) == {0} for found in processes.attempts())


def test_a_standby_coordinator_takes_the_tasks_over(
    kafka: EmbeddedKafka, started: tuple[HostedProcesses, str, str]
) -> None:
    processes, source, sink = started
    elected = ("--ha", "lease", "--ha-timeout", "3")
    with records_arrive(kafka.bootstrap, source) as end_records:
        driver, leader = processes.driver(), processes.coordinator(*elected)
        grows(kafka.bootstrap, sink, 100)
        standby = processes.coordinator(*elected)
        wait_for(lambda: processes.says("standby: leader=coordinator"), timeout_s=WAIT_S)
        leader.kill()
        leader.wait()
        grows(kafka.bootstrap, sink, 300)
        count = end_records()
        wait_for(lambda: len(read(kafka.bootstrap, sink)) >= count, timeout_s=WAIT_S, poll_s=0.3)
    processes.stop()
    assert driver.wait(WAIT_S) == 0
    assert standby.wait(WAIT_S) == 0
    _require_exact(kafka.bootstrap, sink, count)
    assert all(set(found.values()) == {0} for found in processes.attempts())


def test_regions_of_a_driver_that_is_killed_move_to_another_one(
    kafka: EmbeddedKafka, started: tuple[HostedProcesses, str, str]
) -> None:
    processes, source, sink = started
    with records_arrive(kafka.bootstrap, source) as end_records:
        first, leader = processes.driver(), processes.coordinator()
        grows(kafka.bootstrap, sink, 100)
        second = processes.driver()
        wait_for(lambda: processes.says("host joined", 2), timeout_s=WAIT_S, poll_s=0.3)
        first.kill()
        first.wait()
        grows(kafka.bootstrap, sink, 500)
        count = end_records()
        wait_for(lambda: len(read(kafka.bootstrap, sink)) >= count, timeout_s=WAIT_S, poll_s=0.3)
    processes.stop()
    assert second.wait(WAIT_S) == 0
    assert leader.wait(WAIT_S) == 0
    _require_exact(kafka.bootstrap, sink, count)
