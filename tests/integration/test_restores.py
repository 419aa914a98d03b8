"""A new job from the state of another one: same, fewer and more regions, copied directories."""

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from sluice import HdfsSink, KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checkpoint.checkpoint_slots import slot_name
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.errors import ConfigError, SourceChangedError, WrongJobError
from sluice.runtime.job.job import Job
from sluice.runtime.model.checkpoint_record import CheckpointRecord, Verdict
from sluice.runtime.savepoint.full_checkpoints import write_full_checkpoint
from sluice.runtime.savepoint.savepoint_writer import savepoint_name, write_savepoint
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.kit.kafka.kafka_fixture import BrokerByLevel, TopicFactory
from tests.kit.kafka.kafka_records import Record, create_topic, produce, read, unique
from tests.kit.waiting import PATIENCE_S

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

    def run(self, directory: Path, source: str, sink: str, **options: Any) -> None:
        """Run a job to the end of its input."""
        self.job(directory, source, sink, **options).run()

    def job(
        self,
        directory: Path,
        source: str,
        sink: str,
        *,
        kind: str = "chained",
        regions: int | None = None,
        transform: Callable[[DataFrame], DataFrame] = counted,
        **restore: Any,
    ) -> Job:
        """A job that ends with its input."""
        job = Job(
            "restored",
            self.spark,
            checkpoint_dir=directory,
            interval_s=0.1,
            tolerable_failures=0,
            regions=regions,
            **restore,
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
        return job

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


def origin_in(directory: Path, how: str = "ordinary") -> str:
    """The newest checkpoint of a job as it is, as a savepoint, or as a full checkpoint."""
    record, fs = newest(directory), open_store(str(directory)).fs
    if how == "savepoint":
        return write_savepoint(
            fs,
            record,
            open_file_system(f"{directory}-savepoints"),
            name=savepoint_name(record, "0a1b2c"),
        ).uri
    if how == "full":
        return write_full_checkpoint(fs, record).uri
    return f"{fs.uri}/{slot_name(record.checkpoint_id)}"


def moved(directory: Path, origin: str) -> str:
    """The same after its directory was copied elsewhere, and the job's was deleted."""
    whole = (
        directory if origin.startswith(f"file://{directory}/") else Path(f"{directory}-savepoints")
    )
    copied = directory.with_name("elsewhere")
    shutil.copytree(whole, copied)
    shutil.rmtree(directory)
    shutil.rmtree(whole, ignore_errors=True)
    return origin.replace(str(whole), str(copied), 1)


def test_a_moved_savepoint_with_state_begins_a_new_job(bed: Bed, topic: TopicFactory) -> None:
    """Its counts go on from the old ones, and its transactions are its own."""
    source, first, second = topic(partitions=PARTITIONS), topic(), topic()
    produce(bed.kafka.bootstrap, source, records(range(60)))
    bed.run(bed.path / "old", source, first, kind="state")
    produce(bed.kafka.bootstrap, source, records(range(60, 100)))
    before = newest(bed.path / "old")
    origin = moved(bed.path / "old", origin_in(bed.path / "old", "savepoint"))
    new = bed.path / "new"
    bed.run(new, source, second, kind="state", restore_from=origin)
    assert bed.output(second, "state") == expected(range(60, 100), "state", seen=range(60))
    first_record = open_store(str(new)).read(0)
    assert first_record is not None
    assert first_record.settings["restored_from_uri"] == origin
    assert first_record.job_uid != before.job_uid


REGIONS = {"same": (2, 2), "fewer": (3, 1), "more": (1, 3)}
# Each origin with each kind of job and place; and each kind with fewer, the same and more regions.
OFTEN = {
    ("ordinary", "chained", "same", "same"),
    ("savepoint", "chained", "fewer", "moved"),
    ("full", "chained", "more", "moved"),
    ("ordinary", "files", "more", "moved"),
    ("savepoint", "files", "same", "same"),
    ("full", "files", "fewer", "same"),
    ("ordinary", "state", "one", "moved"),
    ("savepoint", "state", "one", "same"),
    ("full", "state", "one", "moved"),
    ("full", "state", "one", "same"),
}
KINDS = [("chained", name) for name in REGIONS] + [("files", name) for name in REGIONS]
CASES = [
    pytest.param(
        *(how, kind, *REGIONS.get(name, (None, None)), place),
        id=f"{how}-{kind}-{name}-{place}",
        marks=[] if (how, kind, name, place) in OFTEN else [pytest.mark.long],
    )
    for how in ("savepoint", "full", "ordinary")
    for kind, name in [*KINDS, ("state", "one")]  # a frame with state has one region
    for place in ("same", "moved")
]


@pytest.mark.extended
@pytest.mark.parametrize(("how", "kind", "before", "after", "place"), CASES)
def test_a_new_job_equals_the_oracle(
    bed: Bed,
    topic: TopicFactory,
    how: str,
    kind: str,
    before: int | None,
    after: int | None,
    place: str,
) -> None:
    """Two jobs begin from one origin at the same time. The old one goes on beside them if it is
    still there. Each writes what came later, once."""
    source, *outputs = (topic(partitions=PARTITIONS) for _ in range(4))
    produce(bed.kafka.bootstrap, source, records(range(60)))
    old = bed.path / "old"
    # Chained jobs without a number of cores for each region run in the other engine afterwards.
    bed.run(old, source, outputs[0], kind=kind, regions=before, engine="micro-batch")
    assert bed.output(outputs[0], kind) == expected(range(60), kind, seen=range(0))
    origin = origin_in(old, how)
    if place == "moved":
        origin = moved(old, origin)
    produce(bed.kafka.bootstrap, source, records(range(60, 100)))
    new = [bed.path / f"new-{at}" for at in (1, 2)]
    jobs = [
        bed.job(path, source, output, kind=kind, regions=after, restore_from=origin)
        for path, output in zip(new, outputs[1:], strict=True)
    ]
    if place == "same":
        jobs.append(bed.job(old, source, outputs[0], kind=kind, regions=before))
    with contextlib.ExitStack() as started:
        for handle in [started.enter_context(job.start()) for job in jobs]:
            assert handle.wait(PATIENCE_S)
    for path, output in zip(new, outputs[1:], strict=True):
        assert bed.output(output, kind) == expected(range(60, 100), kind, seen=range(60))
        assert len(newest(path).regions) == (after or 1)
    if place == "same":
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


@pytest.mark.extended
def test_another_cluster_needs_each_topic_by_name(
    bed: Bed, topic: TopicFactory, kafka_by_level: BrokerByLevel
) -> None:
    """The name says that the records are the same; the topic has another id there."""
    there = Bed(bed.spark, kafka_by_level(1), bed.path)
    source, output = topic(partitions=PARTITIONS), unique("out")
    for name, partitions in ((source, PARTITIONS), (output, 1)):
        create_topic(there.kafka.bootstrap, name, partitions=partitions)
    produce(bed.kafka.bootstrap, source, records(range(60)))
    produce(there.kafka.bootstrap, source, records(range(100)))
    bed.run(bed.path / "old", source, topic(), kind="state")
    origin, new = origin_in(bed.path / "old"), bed.path / "new"
    with pytest.raises(ConfigError, match=f"another Kafka cluster.*topics={source}"):
        there.run(new, source, output, kind="state", restore_from=origin)
    assert not new.exists()
    named = {source: source}
    there.run(new, source, output, kind="state", restore_from=origin, topic_map=named)
    assert there.output(output, "state") == expected(range(60, 100), "state", seen=range(60))


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
