"""Rows go by key from region to region while coordinators in processes of their own are killed: real
processes, Spark and broker."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checkpoint.checkpoint_slots import slot_name
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import read
from tests.kit.keyed.counted_by_key import KEYS, require_exact_counts
from tests.kit.leading.hosted_processes import HostedProcesses, records_arrive
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.extended]

_WRITER, _READER = "records", "by-key-topic"
_RESUMED = "region={region} its attempt matches the last decision"


class _Counts:
    """A job that counts, and its topics."""

    def __init__(self, kafka: EmbeddedKafka, topic: TopicFactory, directory: Path) -> None:
        self.bootstrap, self.directory = kafka.bootstrap, directory
        self.source, self.sink = topic(partitions=2), topic()
        self.job = self.another("checkpoint")

    def another(self, name: str) -> HostedProcesses:
        """Processes with a checkpoint directory of their own."""
        arguments = [self.bootstrap, self.source, self.sink]
        return HostedProcesses(self.directory, arguments, program="host_counts", name=name)

    def counted(self) -> int:
        """Records in the newest counts."""
        newest = {each.key: int(each.value or b"") for each in read(self.bootstrap, self.sink)}
        return sum(newest.values())

    def grows(self, by: int) -> None:
        """Until so many more records are counted."""
        before = self.counted()
        wait_for(lambda: self.counted() >= before + by, poll_s=0.3)

    def require_exact(self, count: int) -> None:
        """Once all records are counted, each of them is, once."""
        wait_for(lambda: self.counted() >= count, poll_s=0.3)
        require_exact_counts(self.bootstrap, [self.sink], count)

    def order(self, what: str) -> None:
        """Kill a task; returns when it is dead."""
        order = self.directory / what
        order.touch()
        wait_for(lambda: not order.exists(), poll_s=0.05)


@pytest.fixture
def counts(kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path) -> Iterator[_Counts]:
    made = _Counts(kafka, topic, tmp_path)
    yield made
    made.job.close()


def test_rows_between_regions_are_exact_when_leaders_and_tasks_die(counts: _Counts) -> None:
    """Attempts resume under the next leader. Then the writer's task dies just before its leader,
    and the reader's just before the next one."""
    job = counts.job
    with records_arrive(counts.bootstrap, counts.source, keys=KEYS) as end_records:
        drivers = [job.driver(), job.driver()]
        leader = job.coordinator()
        counts.grows(500)
        leader.kill()
        leader.wait()
        leader = job.coordinator()
        counts.grows(1_000)
        assert any(job.says(_RESUMED.format(region=each)) for each in (_WRITER, _READER))
        counts.order("writer-dies")
        leader.kill()
        leader.wait()
        leader = job.coordinator()
        counts.grows(1_000)
        counts.order("reader-dies")
        leader.kill()
        leader.wait()
        leader = job.coordinator()
        counts.grows(1_000)
        count = end_records()
        counts.require_exact(count)
    job.stop()
    assert [process.wait(PATIENCE_S) for process in (leader, *drivers)] == [0, 0, 0]
    counts.require_exact(count)


@pytest.mark.parametrize("step", ["after-ack", "before-decision", "after-decision", "before-mark"])
def test_rows_between_regions_are_exact_when_a_leader_dies_around_a_decision(
    counts: _Counts, step: str
) -> None:
    """Twice in a row: the second one dies in its first checkpoints."""
    job = counts.job
    with records_arrive(counts.bootstrap, counts.source, keys=KEYS) as end_records:
        driver = job.driver()
        for hit in (8, 1):
            leader = job.coordinator(failpoints=f"{step}=kill@{hit}")
            assert leader.wait(PATIENCE_S) == -9
        leader = job.coordinator()
        counts.grows(1_000)
        count = end_records()
        counts.require_exact(count)
    job.stop()
    assert [leader.wait(PATIENCE_S), driver.wait(PATIENCE_S)] == [0, 0]
    counts.require_exact(count)


def test_rows_in_flight_are_exact_in_a_job_that_is_restored_and_whose_leader_is_killed(
    counts: _Counts,
) -> None:
    job = counts.job
    with records_arrive(counts.bootstrap, counts.source, keys=KEYS) as end_records:
        begun = [job.driver(), job.coordinator()]
        counts.grows(500)
        count = end_records()
        counts.require_exact(count)
    job.stop()
    assert [process.wait(PATIENCE_S) for process in begun] == [0, 0]
    middle = job.decided()[len(job.decided()) // 2].checkpoint_id
    restored = counts.another("restored")
    try:
        with records_arrive(counts.bootstrap, counts.source, count, keys=KEYS) as end_records:
            driver = restored.driver(f"{job.checkpoint}/{slot_name(middle)}")
            leader = restored.coordinator(failpoints="after-attempts-listed=kill")
            assert leader.wait(PATIENCE_S) == -9
            leader = restored.coordinator(failpoints="before-decision=kill@3")
            assert leader.wait(PATIENCE_S) == -9
            leader = restored.coordinator()
            counts.grows(1_000)
            count = end_records()
            counts.require_exact(count)
        restored.stop()
        assert [leader.wait(PATIENCE_S), driver.wait(PATIENCE_S)] == [0, 0]
    finally:
        restored.close()
