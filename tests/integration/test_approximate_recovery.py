"""Approximate recovery on real Spark: what a killed task had to read is dropped, exactly."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.coordinator.core.events import Progress
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.functions.at_most_once import AT_MOST_ONCE, DROPS_KIND, Drops, decode_drops
from sluice.runtime.job.job import Job
from sluice.runtime.job.job_cli import app as job_commands
from sluice.runtime.model.rate_limit import PidRateLimit
from sluice.runtime.model.splits import SplitRange
from tests.integration.test_job_failures import took_turn
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read, unique

pytestmark = pytest.mark.integration

PARTITIONS = 4
RECORDS = 400
SICK = 2


def dying(turns: Path, times: int, *, partition: int) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function that kills its worker process after some output, ``times`` times."""

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        is_sick = partition in batch.column("partition").to_pylist()
        if is_sick and took_turn(turns, times):
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    return run


@dataclass
class Told:
    """A listener that keeps what was committed, and what of it was dropped."""

    records: list[int] = field(default_factory=list)
    dropped: list[SplitRange] = field(default_factory=list)

    def on_progress(self, progress: Progress) -> None:
        if progress.state is State.MARKED:
            self.records.append(progress.records)
            self.dropped += progress.dropped


class Bed:
    """A topic with numbers, and jobs that copy it."""

    def __init__(
        self, spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, directory: Path
    ) -> None:
        self.spark, self.kafka, self.directory = spark, kafka, directory
        self.source, self.output = topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)
        self.prefix = unique("approximate")
        self.turns = directory / "turns"
        self.turns.mkdir()
        self.given: list[tuple[int, int, bytes]] = []

    def fill(self) -> None:
        first = len(self.given) // PARTITIONS
        made = [(n % PARTITIONS, first + n // PARTITIONS, b"%d" % n) for n in range(RECORDS)]
        records = [Record(value=value, partition=partition) for partition, _, value in made]
        produce(self.kafka.bootstrap, self.source, records)
        self.given += made

    def run(
        self,
        *,
        kills: int = 0,
        most: int = 1_000,
        in_all: int | None = None,
        rate_limit: PidRateLimit | None = None,
    ) -> Told:
        told = Told()
        job = Job(
            "approximate",
            self.spark,
            checkpoint_dir=str(self.directory / "checkpoint"),
            interval_s=0.5,
            tolerable_failures=1,
            recovery="approximate",
            max_dropped_records=most,
            max_dropped_in_all=in_all,
            listeners=[told],
        )
        source = KafkaSource(
            bootstrap_servers=self.kafka.bootstrap,
            topics=[self.source],
            bounded=True,
            rate_limit=rate_limit,
        )
        sink = KafkaSink(
            bootstrap_servers=self.kafka.bootstrap,
            topic=self.output,
            transactional_id_prefix=self.prefix,
        )
        function = dying(self.turns, kills, partition=SICK)
        job.source(source).map_batches(function).sink(sink)
        job.run()
        return told

    def require_all_but(self, dropped: list[SplitRange]) -> None:
        """The output is the input without these ranges: nothing more, nothing less, in order."""
        gone = {
            (split.partition, offset)
            for split in dropped
            for offset in range(split.start_offset, split.end_offset)
        }
        expected = [(p, value) for p, offset, value in self.given if (p, offset) not in gone]
        found = [(r.partition, r.value) for r in read(self.kafka.bootstrap, self.output)]
        for partition in range(PARTITIONS):
            assert [f for f in found if f[0] == partition] == [
                e for e in expected if e[0] == partition
            ]

    def on_record(self) -> list[Drops]:
        store = open_store(str(self.directory / "checkpoint"))
        records = [store.read(place) for place in store.slots()]
        return [
            decode_drops(entry)
            for record in records
            if record is not None
            for region in record.regions
            for entry in region.operator_states
            if entry.kind == DROPS_KIND
        ]


@pytest.fixture
def bed(spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path) -> Bed:
    made = Bed(spark, kafka, topic, tmp_path)
    made.fill()
    return made


def test_a_killed_tasks_ranges_are_dropped_and_nothing_else(bed: Bed) -> None:
    """They are on record and reported to listeners; the other task's records are there once; the sum
    continues over runs, and the job's graph says what it promises."""
    told = bed.run(kills=1)
    assert SICK in {split.partition for split in told.dropped}
    bed.require_all_but(told.dropped)
    dropped = sum(split.end_offset - split.start_offset for split in told.dropped)
    ranges = {(s.topic, s.partition, s.start_offset, s.end_offset) for s in told.dropped}
    on_record = bed.on_record()
    assert {found for drops in on_record for found in drops.ranges} == ranges
    assert on_record[-1].in_all == dropped
    bed.fill()
    assert bed.run().dropped == []
    assert bed.on_record()[-1] == Drops(in_all=dropped, ranges=())
    bed.require_all_but(told.dropped)
    shown = CliRunner().invoke(job_commands, ["graph", str(bed.directory / "checkpoint")])
    assert AT_MOST_ONCE in shown.output


@pytest.mark.parametrize(
    ("most", "in_all"), [(10, None), (1_000, 10)], ids=["checkpoint", "in all"]
)
def test_what_is_beyond_the_bound_is_read_again_exactly(
    bed: Bed, most: int, in_all: int | None
) -> None:
    """The task's work is done by its second attempt, as with single-point recovery."""
    told = bed.run(kills=1, most=most, in_all=in_all)
    assert (told.dropped, bed.on_record()) == ([], [])
    bed.require_all_but([])
    assert len(list(bed.turns.iterdir())) == 1


def test_a_rate_limit_cuts_a_backlog_into_small_epochs(bed: Bed) -> None:
    """From the first one on: the rate times the interval; and all of it is read."""
    told = bed.run(rate_limit=PidRateLimit(initial_rate=200, min_rate=100))
    assert sum(told.records) == RECORDS
    assert told.records[0] <= 100
    assert len(told.records) > 1
    bed.require_all_but([])
