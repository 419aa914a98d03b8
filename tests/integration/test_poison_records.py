"""Records that a function fails for, on real Spark and a real broker: each once, in order."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sluice import FunctionContext, HdfsSink, KafkaSink, KafkaSource
from sluice.connectors.kafka.records.serde.json_records import JsonDeserializer
from sluice.connectors.kafka.records.serde.record_json import JsonSerializer
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.contracts import Sink
from sluice.runtime.coordinator.core.events import Progress
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.errors import SourceChangedError
from sluice.runtime.functions.record_counts import added, decode_totals
from sluice.runtime.job.job import Job
from sluice.runtime.model.acknowledgement import RecordCounts
from sluice.runtime.model.on_error import DeadLetters
from tests.integration.test_job_failures import TASK_ATTEMPTS, took_turn
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read, unique

pytestmark = pytest.mark.integration

PARTITIONS = 2
MANY = 12_000  # of a partition: more than a reader puts into one batch
POISON = {(0, 3), (0, 4), (0, 9_000), (1, 0), (1, MANY - 1)}
LATE = 11_000
FIRST_MS = round(time.time() * 1000) - 60_000  # or the broker retires them


def parse(batch: pa.RecordBatch, ctx: FunctionContext) -> pa.RecordBatch:
    ctx.counter("parsed").inc(batch.num_rows)
    batch.column("value").cast(pa.string()).cast(pa.int64())
    return batch


def fails_late(directory: Path, times: int) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function that ends ``times`` attempts of a task, when dead letters are written already."""

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        late = [offset for offset in batch.column("offset").to_pylist() if offset >= LATE]
        if late and batch.column("partition")[0].as_py() == 0 and took_turn(directory, times):
            raise LookupError("not this time")
        return batch

    return run


@dataclass
class Counted:
    """A listener that keeps what was counted in each committed checkpoint."""

    counts: list[Mapping[str, RecordCounts]] = field(default_factory=list)

    def on_progress(self, progress: Progress) -> None:
        if progress.state is State.MARKED:
            self.counts.append(progress.counts)


class Bed:
    """A topic with poison records in it, and jobs that read it."""

    def __init__(
        self, spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, directory: Path
    ) -> None:
        self.spark, self.kafka, self.directory = spark, kafka, directory
        self.source, self.output = topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)
        self.dead = topic(partitions=1)
        self.turns = directory / "turns"
        self.turns.mkdir()
        self.given: list[Record] = []

    def fill(self, records: int, poison: set[tuple[int, int]]) -> None:
        made = [
            Record(
                value=b"poison %d" % at if (partition, at) in poison else b"%d" % at,
                key=b"k%d" % at,
                headers=(("trace", b"%d" % at),),
                partition=partition,
                offset=at,
                timestamp_ms=FIRST_MS + at,
            )
            for partition in range(PARTITIONS)
            for at in range(self.ends(partition), self.ends(partition) + records)
        ]
        produce(self.kafka.bootstrap, self.source, made)
        self.given += made

    def ends(self, partition: int) -> int:
        return sum(record.partition == partition for record in self.given)

    def kafka_sink(self) -> KafkaSink:
        return KafkaSink(
            bootstrap_servers=self.kafka.bootstrap,
            topic=self.output,
            transactional_id_prefix=f"poison-{self.output}",
        )

    def run(self, *sinks: Sink, fails: int = 0, dead: str | None = None) -> Counted:
        counted = Counted()
        job = Job(
            "poisoned",
            self.spark,
            engine="micro-batch",
            checkpoint_dir=str(self.directory / "checkpoint"),
            interval_s=0.2,
            listeners=[counted],
        )
        stream = (
            job.source(
                KafkaSource(
                    bootstrap_servers=self.kafka.bootstrap, topics=[self.source], bounded=True
                )
            )
            .map_batches(parse, name="parse", on_error=DeadLetters(topic=dead or self.dead))
            .map_batches(fails_late(self.turns, fails), name="late")
        )
        for sink in sinks:
            stream.sink(sink)
        job.run()
        return counted

    def is_poison(self, record: Record) -> bool:
        return (record.value or b"").startswith(b"poison")

    def require_exact(self) -> None:
        """Good records in the output and poison in the dead-letter topic, all once, in order."""
        good = [r for r in self.given if not self.is_poison(r)]
        written = read(self.kafka.bootstrap, self.output)
        assert [contents(r) for r in written] == [contents(r) for r in by_partition(good)]
        letters = read(self.kafka.bootstrap, self.dead)
        found = [(places(r), r.key, r.value, r.headers[0]) for r in letters]
        poison = [r for r in self.given if self.is_poison(r)]
        expected = [((r.partition, r.offset), r.key, r.value, r.headers[0]) for r in poison]
        assert sorted(found, key=lambda each: each[0]) == expected
        for partition in range(PARTITIONS):
            of_one = [places(r) for r in letters if places(r)[0] == partition]
            assert of_one == sorted(of_one)

    def totals(self) -> RecordCounts:
        store = open_store(str(self.directory / "checkpoint"))
        record = store.read(store.slots()[-1])
        entries = [entry for region in record.regions for entry in region.operator_states]
        return added([{"all": decode_totals(entry)} for entry in entries])["all"]


def by_partition(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda r: (r.partition or 0, r.offset or 0))


def contents(record: Record) -> tuple[object, ...]:
    return (record.partition, record.key, record.value, record.headers)


def places(letter: Record) -> tuple[int, int]:
    headers = dict(letter.headers)
    return (
        int(headers["sluice.source.partition"] or b""),
        int(headers["sluice.source.offset"] or b""),
    )


@pytest.fixture
def bed(spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path) -> Bed:
    return Bed(spark, kafka, topic, tmp_path)


@pytest.mark.parametrize(
    "fails",
    [
        pytest.param(0, id="well", marks=pytest.mark.extended),
        pytest.param(1, id="task", marks=pytest.mark.extended),
        pytest.param(TASK_ATTEMPTS, id="region"),
    ],
)
def test_poison_records_are_dead_letters_once_whatever_is_tried_again(bed: Bed, fails: int) -> None:
    """All goes well; or a task fails after its first dead letters and is tried again alone; or the
    whole region is. Readers see neither of them twice, and each counts once."""
    bed.fill(MANY, POISON)
    counted = bed.run(bed.kafka_sink(), fails=fails)
    bed.require_exact()
    assert len(list(bed.turns.iterdir())) == fails
    (letter, *_) = (r for r in read(bed.kafka.bootstrap, bed.dead) if places(r) == (0, 3))
    assert [name for name, _ in letter.headers] == [
        "trace",
        "sluice.error.class",
        "sluice.error.message",
        "sluice.source.topic",
        "sluice.source.partition",
        "sluice.source.offset",
        "sluice.source.timestamp",
        "sluice.job",
        "sluice.operator",
    ]
    headers = dict(letter.headers)
    assert headers["sluice.error.class"] == b"pyarrow.lib.ArrowInvalid"
    assert headers["sluice.source.topic"] == bed.source.encode()
    assert headers["sluice.source.timestamp"] == b"%d" % (FIRST_MS + 3)
    assert (headers["sluice.job"], headers["sluice.operator"]) == (b"poisoned", b"parse")
    parsed = {"parsed": PARTITIONS * MANY - len(POISON)}
    expected = RecordCounts(read=PARTITIONS * MANY, dead_lettered=len(POISON), counters=parsed)
    assert added(counted.counts) == {"parse": expected}
    assert bed.totals() == expected


def test_a_record_that_a_deserializer_fails_for_is_a_dead_letter_with_its_bytes(bed: Bed) -> None:
    """The source's own policy, in front of all functions: JSON numbers become numbers, and
    text again after them."""
    bed.fill(10, {(0, 3), (1, 0), (1, 9)})
    counted = Counted()
    job = Job(
        "deserialized",
        bed.spark,
        checkpoint_dir=str(bed.directory / "checkpoint"),
        interval_s=0.2,
        listeners=[counted],
    )
    source = KafkaSource(
        bootstrap_servers=bed.kafka.bootstrap,
        topics=[bed.source],
        bounded=True,
        name="orders",
        value_deserializer=JsonDeserializer(schema=pa.int64()),
        on_error=DeadLetters(topic=bed.dead),
    )

    job.source(source).map_batches(JsonSerializer()).sink(bed.kafka_sink())
    job.run()
    bed.require_exact()
    (letter, *_) = (r for r in read(bed.kafka.bootstrap, bed.dead) if places(r) == (0, 3))
    assert dict(letter.headers)["sluice.operator"] == b"orders-value"
    expected = RecordCounts(read=20, dead_lettered=3)
    assert added(counted.counts) == {"orders-value": expected}
    assert bed.totals() == expected


def names(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Every name must be one, and the error says which is none."""
    for value in batch.column("value").to_pylist():
        name = json.loads(value)["name"]
        if not name.isalnum():
            raise ValueError(f"not a name: {name}")
    return batch


@pytest.mark.parametrize("engine", ["micro-batch", "continuous"])
def test_an_error_that_has_no_utf8_ends_nothing(bed: Bed, engine: str) -> None:
    poison, good = rb'{"name":"\ud800!"}', b'{"name":"ok"}'
    produce(bed.kafka.bootstrap, bed.source, [Record(value=v, partition=0) for v in (poison, good)])
    job = Job(
        "names",
        bed.spark,
        engine=engine,
        checkpoint_dir=str(bed.directory / "checkpoint"),
        interval_s=0.2,
        tolerable_failures=0,
    )
    source = KafkaSource(bootstrap_servers=bed.kafka.bootstrap, topics=[bed.source], bounded=True)
    policy = DeadLetters(topic=bed.dead)
    job.source(source).map_batches(names, on_error=policy).sink(bed.kafka_sink())
    job.run()
    assert [record.value for record in read(bed.kafka.bootstrap, bed.output)] == [good]
    (letter,) = read(bed.kafka.bootstrap, bed.dead)
    assert letter.value == poison
    assert dict(letter.headers)["sluice.error.message"] == b"not a name: ?!"


def test_totals_continue_over_runs_and_files_have_no_poison(bed: Bed) -> None:
    files = HdfsSink(bed.directory / "files" / "rows", columns=["value"])
    bed.fill(10, {(0, 0), (1, 5)})
    bed.run(bed.kafka_sink(), files)
    bed.fill(10, {(1, 12), (1, 13)})
    counted = bed.run(bed.kafka_sink(), files)
    bed.require_exact()
    rows = bed.spark.read.parquet(str(bed.directory / "files" / "rows")).collect()
    good = [r.value for r in bed.given if not bed.is_poison(r)]
    assert sorted(bytes(row.value) for row in rows) == sorted(v for v in good if v is not None)
    expected = RecordCounts(read=20, dead_lettered=2, counters={"parsed": 18})
    assert added(counted.counts) == {"parse": expected}
    assert bed.totals() == expected + expected


@pytest.mark.extended
@pytest.mark.parametrize("fails", [1, TASK_ATTEMPTS], ids=["task", "region"])
def test_dead_letters_beside_files_are_decided_with_them(bed: Bed, fails: int) -> None:
    """The sink of dead letters writes no other record; what is tried again is there once."""
    letters = KafkaSink(
        bootstrap_servers=bed.kafka.bootstrap,
        transactional_id_prefix=f"letters-{bed.dead}",
        dead_letters_only=True,
    )
    bed.fill(MANY, POISON)
    bed.run(HdfsSink(bed.directory / "files" / "rows", columns=["value"]), letters, fails=fails)
    assert len(list(bed.turns.iterdir())) == fails
    rows = bed.spark.read.parquet(str(bed.directory / "files" / "rows")).collect()
    good = [r.value or b"" for r in bed.given if not bed.is_poison(r)]
    assert sorted(bytes(row.value) for row in rows) == sorted(good)
    assert sorted(places(r) for r in read(bed.kafka.bootstrap, bed.dead)) == sorted(POISON)


def test_a_dead_letter_topic_that_does_not_exist_is_refused_at_the_start(bed: Bed) -> None:
    bed.fill(1, set())
    missing = unique("no-such-topic")
    with pytest.raises(SourceChangedError, match=missing):
        bed.run(bed.kafka_sink(), dead=missing)
    assert read(bed.kafka.bootstrap, bed.output) == []
