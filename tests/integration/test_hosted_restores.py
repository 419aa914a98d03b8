"""A restore whose coordinator is a process of its own, and is killed: real processes, Spark and
broker."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checkpoint.checkpoint_slots import slot_name
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import read
from tests.kit.leading.hosted_processes import PARTITIONS, HostedProcesses, records_arrive
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.extended]


class _Copied:
    """A job that copies records."""

    def __init__(self, kafka: EmbeddedKafka, topic: TopicFactory, directory: Path) -> None:
        self.bootstrap = kafka.bootstrap
        self.source, self.sink = topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)
        self.directory = directory
        self.arguments = [self.bootstrap, self.source, self.sink]
        self.job = HostedProcesses(directory, self.arguments)
        self.count = 0

    def copy_some(self) -> None:
        """Copy the first records, and stop."""
        with records_arrive(self.bootstrap, self.source) as end_records:
            begun = [self.job.driver(), self.job.coordinator()]
            self.grows(300)
            self.count = end_records()
        self.await_all(self.count)
        self.stop(self.job, *begun)

    def await_all(self, count: int) -> None:
        """Until readers see so many records."""
        wait_for(lambda: len(read(self.bootstrap, self.sink)) >= count, poll_s=0.3)

    def grows(self, by: int) -> None:
        """Until readers see so many more records."""
        self.await_all(len(read(self.bootstrap, self.sink)) + by)

    @staticmethod
    def stop(job: HostedProcesses, *begun: subprocess.Popen[bytes]) -> None:
        """End the job; its last leader and its drivers end without an error."""
        job.stop()
        assert [process.wait(PATIENCE_S) for process in begun] == [0] * len(begun)

    def written(self) -> dict[int | None, list[int]]:
        """The numbers that readers see of each partition, in order."""
        found: dict[int | None, list[int]] = {number: [] for number in range(PARTITIONS)}
        for record in read(self.bootstrap, self.sink):
            found[record.partition].append(int(record.value or b""))
        return found

    def continue_with(self, job: HostedProcesses, origin: str, again: int) -> int:
        """Start the job from there, and kill two leaders under load: one as soon as it can be. The
        number of all records.

        Args:
            again: so many records are written again.
        """
        with records_arrive(self.bootstrap, self.source, self.count) as end_records:
            before, led = job.description(), job.count_of("leading the job of")
            driver = job.driver(origin)
            # A coordinator that starts sooner leads the job of the last run.
            wait_for(lambda: job.description() != before, poll_s=0.3)
            leader = job.coordinator()
            wait_for(lambda: job.count_of("leading the job of") > led, poll_s=0.05)
            leader.kill()
            leader.wait()
            leader = job.coordinator()
            self.grows(again + 200)
            leader.kill()
            leader.wait()
            leader = job.coordinator()
            self.grows(200)
            count = end_records()
            self.await_all(count + again)
        self.stop(job, driver, leader)
        return count


@pytest.fixture
def copied(kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path) -> Iterator[_Copied]:
    made = _Copied(kafka, topic, tmp_path)
    try:
        made.copy_some()
        yield made
    finally:
        made.job.close()


def test_a_job_restored_from_another_one_has_each_record_once(copied: _Copied) -> None:
    """Its later leaders continue from the newest decision."""
    newest = copied.job.decided()[-1].checkpoint_id
    origin = f"{copied.job.checkpoint}/{slot_name(newest)}"
    job = HostedProcesses(copied.directory, copied.arguments, name="restored")
    try:
        count = copied.continue_with(job, origin, again=0)
    finally:
        job.close()
    assert copied.written() == {p: list(range(p, count, 2)) for p in range(PARTITIONS)}


def test_a_job_returns_to_an_older_checkpoint_once(copied: _Copied) -> None:
    """Records after that checkpoint are written again, by the first leader and by no later one."""
    back_to = copied.job.decided()[1]
    ends = {s.partition: s.end_offset for region in back_to.regions for s in region.splits}
    again = copied.count - sum(ends.values())
    assert again > 0
    count = copied.continue_with(copied.job, str(back_to.checkpoint_id), again=again)
    assert copied.written() == {
        p: [*range(p, copied.count, 2), *range(p + 2 * ends[p], count, 2)]
        for p in range(PARTITIONS)
    }
