"""A new job from the state of another one: same, fewer and more regions, copied directories."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from sluice import HdfsSink, KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checkpoint.checkpoint_slots import slot_name
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.errors import SourceChangedError, WrongJobError
from sluice.runtime.job.job import Job
from sluice.runtime.model.checkpoint_record import CheckpointRecord, Verdict
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read, unique

pytestmark = pytest.mark.integration

PARTITIONS = 4
KEYS = 5


def counted(records: DataFrame) -> DataFrame:
    return records.groupBy("key").count().selectExpr("key", "cast(count AS string) AS value")


def records(numbers: Iterable[int]) -> list[Record]:
    return [
        Record(key=b"k%d" % (n % KEYS), value=b"%d" % n, partition=n % PARTITIONS) for n in numbers
    ]


def newest(directory: Path) -> CheckpointRecord:
    store = open_store(str(directory))
    found = [record for place in store.slots() if (record := store.read(place)) is not None]
    return [each for each in found if each.verdict is Verdict.DECIDED][-1]


class Bed:
    """A broker, an input, and jobs that read it to its end."""

    def __init__(self, spark: SparkSession, kafka: EmbeddedKafka, path: Path) -> None:
        self.spark, self.kafka, self.path = spark, kafka, path

    def run(
        self,
        directory: Path,
        source: str,
        sink: str,
        *,
        kind: str = "chained",
        regions: int | None = None,
        transform: Callable[[DataFrame], DataFrame] = counted,
        **restore: object,
    ) -> None:
        """Run a job to the end of its input."""
        job = Job(
            "restored",
            self.spark,
            checkpoint_dir=directory,
            interval_s=0.1,
            tolerable_failures=0,
            regions=regions,
            **restore,  # type: ignore[arg-type]
        )
        stream = job.source(
            KafkaSource(
                bootstrap_servers=self.kafka.bootstrap,
                topics=[source],
                name="in",
                bounded=True,
                options={"maxOffsetsPerTrigger": "40"},
            )
        )
        if kind == "state":
            stream.transform(transform, name="count")
        if kind == "files":
            stream.sink(HdfsSink(self.path / sink, columns=["value"], name="out"))
        else:
            stream.sink(
                KafkaSink(
                    bootstrap_servers=self.kafka.bootstrap,
                    topic=sink,
                    name="out",
                    transactional_id_prefix=unique("restored"),
                )
            )
        job.run()

    def output(self, sink: str, kind: str) -> list[bytes]:
        """What readers see: values, for counts with their keys."""
        if kind == "files":
            rows = self.spark.read.parquet(str(self.path / sink)).collect()
            return sorted(bytes(row.value) for row in rows)
        found = read(self.kafka.bootstrap, sink)
        if kind == "state":
            newest = {r.key: int(r.value or b"") for r in found}
            return sorted(b"%s=%d" % (key, count) for key, count in newest.items() if key)
        return sorted(r.value or b"" for r in found)


def expected(numbers: range, kind: str, *, seen: range) -> list[bytes]:
    """What the new job writes of its own records, with the state of those seen before."""
    if kind != "state":
        return sorted(b"%d" % n for n in numbers)
    counts = Counter(b"k%d" % (n % KEYS) for n in [*seen, *numbers])
    return sorted(b"%s=%d" % each for each in counts.items())


@pytest.fixture
def bed(spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path) -> Bed:
    return Bed(spark, kafka, tmp_path)


def origin_in(directory: Path) -> Path:
    """The newest checkpoint of a job."""
    return directory / slot_name(newest(directory).checkpoint_id)


def test_a_moved_checkpoint_with_state_begins_a_new_job(bed: Bed, topic: TopicFactory) -> None:
    """Its counts go on from the old ones, and its transactions are its own."""
    source, first, second = topic(partitions=PARTITIONS), topic(), topic()
    produce(bed.kafka.bootstrap, source, records(range(60)))
    bed.run(bed.path / "old", source, first, kind="state")
    produce(bed.kafka.bootstrap, source, records(range(60, 100)))
    moved = bed.path / "elsewhere"
    shutil.move(bed.path / "old", moved)
    new = bed.path / "new"
    bed.run(new, source, second, kind="state", restore_from=origin_in(moved))
    assert bed.output(second, "state") == expected(range(60, 100), "state", seen=range(60))
    first_record = open_store(str(new)).read(0)
    assert first_record is not None
    assert first_record.settings["restored_from_uri"] == f"file://{origin_in(moved)}"
    assert first_record.job_uid != newest(moved).job_uid


CASES = [
    ("chained", 2, 2, "same"),
    ("chained", 3, 1, "copied"),
    ("files", 1, 3, "same"),
    ("files", 2, 1, "copied"),
    ("state", None, None, "same"),
]


@pytest.mark.extended
@pytest.mark.parametrize(("kind", "before", "after", "place"), CASES)
def test_a_new_job_equals_the_oracle(
    bed: Bed, topic: TopicFactory, kind: str, before: int | None, after: int | None, place: str
) -> None:
    """Two jobs begin from one checkpoint beside the old one, which goes on, too; each writes what
    came later, once."""
    source, *outputs = (topic(partitions=PARTITIONS) for _ in range(4))
    produce(bed.kafka.bootstrap, source, records(range(60)))
    old = bed.path / "old"
    bed.run(old, source, outputs[0], kind=kind, regions=before)
    assert bed.output(outputs[0], kind) == expected(range(60), kind, seen=range(0))
    if place == "copied":
        shutil.copytree(old, bed.path / "copy")
    origin = origin_in(old if place == "same" else bed.path / "copy")
    produce(bed.kafka.bootstrap, source, records(range(60, 100)))
    for at in (1, 2):
        new = bed.path / f"new-{at}"
        bed.run(new, source, outputs[at], kind=kind, regions=after, restore_from=origin)
        assert bed.output(outputs[at], kind) == expected(range(60, 100), kind, seen=range(60))
        assert len(newest(new).regions) == (after or 1)
    bed.run(old, source, outputs[0], kind=kind, regions=before)
    assert bed.output(outputs[0], kind) == expected(range(100), kind, seen=range(0))


@pytest.mark.extended
def test_a_renamed_topic_continues_at_the_old_offsets(bed: Bed, topic: TopicFactory) -> None:
    """It has the same records. One that is shorter is refused, before anything is written."""
    source, other, short, output = (topic(partitions=PARTITIONS) for _ in range(4))
    for name, numbers in ((source, range(60)), (other, range(100)), (short, range(40))):
        produce(bed.kafka.bootstrap, name, records(numbers))
    bed.run(bed.path / "old", source, topic(), kind="state")
    origin, new = origin_in(bed.path / "old"), bed.path / "new"
    with pytest.raises(SourceChangedError, match=r"position=15 log=\[0,10\)"):
        bed.run(new, short, output, kind="state", restore_from=origin, topic_map={source: short})
    assert not new.exists()
    bed.run(new, other, output, kind="state", restore_from=origin, topic_map={source: other})
    assert bed.output(output, "state") == expected(range(60, 100), "state", seen=range(60))


def longest(records: DataFrame) -> DataFrame:
    return records.groupBy("key").agg({"value": "max"}).toDF("key", "value")


def distinct(records: DataFrame) -> DataFrame:
    return records.dropDuplicates(["key"]).select("key", "value")


@pytest.mark.extended
@pytest.mark.parametrize(
    ("transform", "named"),
    [(longest, r"StructField\(count,LongType.*StructField\(max"), (distinct, "stateStoreSave")],
)
def test_a_changed_transform_is_refused_with_both_schemas(
    bed: Bed, topic: TopicFactory, transform: Callable[[DataFrame], DataFrame], named: str
) -> None:
    source, output = topic(partitions=PARTITIONS), topic()
    produce(bed.kafka.bootstrap, source, records(range(20)))
    bed.run(bed.path / "old", source, topic(), kind="state")
    produce(bed.kafka.bootstrap, source, records(range(20, 40)))
    origin, new = origin_in(bed.path / "old"), bed.path / "new"
    with pytest.raises(WrongJobError, match=named):
        bed.run(new, source, output, kind="state", transform=transform, restore_from=origin)
    assert bed.output(output, "state") == []
    assert not new.exists() or newest(new).checkpoint_id == 0, "nothing was decided"
