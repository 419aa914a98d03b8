"""A coordinator in a process of its own, killed under load, and a driver that is killed: real
processes, Spark and broker."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.model.checkpoint_record import Verdict
from sluice.runtime.service.service_client import CoordinatorClient, command_address
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.extended]

_PARTITIONS = 2
_WAIT_S = 120.0
_COORDINATOR = "from sluice.runtime.leading.coordinator_cli import app; app()"
_DRIVER = """
import sys
from pathlib import Path
from tests.kit.hosted_program import host_a_copy
host_a_copy(*sys.argv[1:4], Path(sys.argv[4]), Path(sys.argv[5]), bounded=False)
"""


class _Processes:
    """The coordinators and drivers of one job; all of them end with the test."""

    def __init__(self, directory: Path, arguments: list[str]) -> None:
        self.checkpoint = directory / "checkpoint"
        self._directory, self._arguments = directory, arguments
        self._begun: list[subprocess.Popen[bytes]] = []

    def coordinator(self) -> subprocess.Popen[bytes]:
        """One more coordinator."""
        return self._begin(_COORDINATOR, "start", "--checkpoint", str(self.checkpoint))

    def driver(self) -> subprocess.Popen[bytes]:
        """One more driver."""
        own = self._directory / f"driver-{len(self._begun)}"
        return self._begin(_DRIVER, *self._arguments, str(own), str(self.checkpoint))

    def _begin(self, code: str, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        with (self._directory / f"log-{len(self._begun)}").open("wb") as log:
            made = subprocess.Popen(
                [sys.executable, "-c", code, *arguments],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._begun.append(made)
        return made

    def close(self) -> None:
        """End what still runs."""
        for process in self._begun:
            if process.poll() is None:
                process.kill()
            process.wait()

    def attempts(self) -> list[dict[str, int]]:
        """Attempt by region of each decision but the first."""
        store = open_store(str(self.checkpoint))
        records = [store.read(place) for place in store.slots() if place]
        return [
            {region.region: region.attempt_id for region in record.regions}
            for record in records
            if record is not None and record.verdict is Verdict.DECIDED
        ]

    def stop(self) -> None:
        """As `sluice job stop`: the command finds the leader."""
        address = command_address(LocalFileSystem(self.checkpoint))
        with CoordinatorClient(address) as client:
            client.stop()


@contextmanager
def _records(bootstrap: str, topic: str) -> Iterator[Callable[[], int]]:
    """Records arrive all the time; the function ends that, and returns their number."""
    over, count = threading.Event(), 0

    def produce_some() -> None:
        nonlocal count
        while not over.is_set():
            numbers = range(count, count + 100)
            produce(bootstrap, topic, [Record(value=b"%d" % n, partition=n % 2) for n in numbers])
            count += 100
            over.wait(0.1)

    def end() -> int:
        over.set()
        thread.join()
        return count

    thread = threading.Thread(target=produce_some)
    thread.start()
    try:
        yield end
    finally:
        end()


def _require_exact(bootstrap: str, topic: str, count: int) -> None:
    written: dict[int | None, list[int]] = {number: [] for number in range(_PARTITIONS)}
    for record in read(bootstrap, topic):
        written[record.partition].append(int(record.value or b""))
    assert written == {p: list(range(p, count, _PARTITIONS)) for p in range(_PARTITIONS)}


@pytest.fixture
def started(
    kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> Iterator[tuple[_Processes, str, str]]:
    """The processes of a job, and its topics."""
    source, sink = topic(partitions=_PARTITIONS), topic(partitions=_PARTITIONS)
    made = _Processes(tmp_path, [kafka.bootstrap, source, sink])
    yield made, source, sink
    made.close()


def _grows(bootstrap: str, sink: str, by: int) -> None:
    before = len(read(bootstrap, sink))
    wait_for(lambda: len(read(bootstrap, sink)) >= before + by, timeout_s=_WAIT_S, poll_s=0.3)


def test_tasks_outlive_coordinators_that_are_killed(
    kafka: EmbeddedKafka, started: tuple[_Processes, str, str]
) -> None:
    """Each record once and in order, and no attempt restarts."""
    processes, source, sink = started
    with _records(kafka.bootstrap, source) as end_records:
        driver, leader = processes.driver(), processes.coordinator()
        _grows(kafka.bootstrap, sink, 100)
        for _ in range(2):
            leader.kill()
            leader.wait()
            leader = processes.coordinator()
            _grows(kafka.bootstrap, sink, 200)
        count = end_records()
        wait_for(lambda: len(read(kafka.bootstrap, sink)) >= count, timeout_s=_WAIT_S, poll_s=0.3)
    processes.stop()
    assert driver.wait(_WAIT_S) == 0
    assert leader.wait(_WAIT_S) == 0
    _require_exact(kafka.bootstrap, sink, count)
    assert all(set(found.values()) == {0} for found in processes.attempts())


def test_regions_of_a_driver_that_is_killed_move_to_another_one(
    kafka: EmbeddedKafka, started: tuple[_Processes, str, str]
) -> None:
    processes, source, sink = started
    with _records(kafka.bootstrap, source) as end_records:
        first, leader = processes.driver(), processes.coordinator()
        _grows(kafka.bootstrap, sink, 100)
        second = processes.driver()
        wait_for(lambda: _has_joined(processes, 2), timeout_s=_WAIT_S, poll_s=0.3)
        first.kill()
        first.wait()
        _grows(kafka.bootstrap, sink, 500)
        count = end_records()
        wait_for(lambda: len(read(kafka.bootstrap, sink)) >= count, timeout_s=_WAIT_S, poll_s=0.3)
    processes.stop()
    assert second.wait(_WAIT_S) == 0
    assert leader.wait(_WAIT_S) == 0
    _require_exact(kafka.bootstrap, sink, count)


def _has_joined(processes: _Processes, hosts: int) -> bool:
    logs = (processes.checkpoint.parent).glob("log-*")
    return sum(log.read_text().count("host joined") for log in logs) >= hosts
