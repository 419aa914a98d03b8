"""Keyed state and output are valid together: in both engines, moved between them and to other
regions, and after kills."""

import itertools
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sluice import Count, EventTime, Job, KafkaConnection, KafkaSink, KafkaSource, Tumbling
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.connectors.testing import killing
from sluice.connectors.testing.topics import created_topics
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.errors import ConfigError, MissingRequirementError
from sluice.testing import kill_and_restart
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read, unique
from tests.kit.keyed_program import count_by_key, count_while_splits_move, counting_job
from tests.kit.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

KEYS = 7  # of each partition
KILLS = ("pre-commit", "pre-commit", "decision", "commit")
STEPS = (
    "before-state-adopted",
    "after-state-adopted",
    "before-state-loaded",
    "after-state-frozen",
    "before-state-written",
    "after-state-loaded",
    "after-state-written",
)


def records(count: int) -> list[Record]:
    """``count`` for each key of each of four partitions."""
    return [
        Record(key=b"%d-%d" % (partition, key), value=b"", partition=partition)
        for _ in range(count)
        for partition in range(4)
        for key in range(KEYS)
    ]


def counted(bootstrap: str, sink: str) -> dict[str, int]:
    """The last count of each key, after a check that none is repeated, and none goes back."""
    last: dict[str, int] = {}
    for record in read(bootstrap, sink):
        assert record.key is not None
        assert record.value is not None
        key, count = record.key.decode(), int(record.value)
        assert count > last.get(key, 0), f"{key}: {count} after {last.get(key)}"
        last[key] = count
    return last


def assignments(directory: Path) -> int:
    """How often the job has moved splits."""
    store = open_store(str(directory))
    records = [store.read(slot) for slot in store.slots()]
    return max(found.assignment.version for found in records if found and found.assignment)


def expected(count: int) -> dict[str, int]:
    return {f"{partition}-{key}": count for partition in range(4) for key in range(KEYS)}


@pytest.mark.parametrize(
    "runs",
    [
        (("micro-batch", 2), ("continuous", 1)),
        pytest.param(
            (("continuous", 1), ("micro-batch", 3), ("continuous", 2)), marks=pytest.mark.extended
        ),
    ],
    ids=str,
)
def test_a_job_counts_on_with_another_engine_and_other_regions(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
    runs: tuple[tuple[str, int], ...],
) -> None:
    source, sink = topic(partitions=4), topic(partitions=2)
    for run, (engine, regions) in enumerate(runs, start=1):
        produce(kafka.bootstrap, source, records(20))
        counting_job(
            spark, kafka.bootstrap, source, sink, tmp_path, engine=engine, regions=regions
        ).run()
        assert counted(kafka.bootstrap, sink) == expected(20 * run)


@pytest.mark.extended
@pytest.mark.parametrize("engine", ["micro-batch", "continuous"])
def test_counts_are_exact_after_the_death_of_tasks(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path, engine: str
) -> None:
    """Twice in a row: of a first attempt, and of the one that has restored its state."""
    source, sink = topic(partitions=4), topic(partitions=2)
    produce(kafka.bootstrap, source, records(100))
    counting_job(spark, kafka.bootstrap, source, sink, tmp_path, engine=engine, kills=2).run()
    assert len(list(tmp_path.glob("killed-*"))) == 2
    assert counted(kafka.bootstrap, sink) == expected(100)


@pytest.mark.extended
@pytest.mark.parametrize("engine", ["micro-batch", "continuous"])
def test_counts_are_exact_after_kills(kafka: EmbeddedKafka, tmp_path: Path, engine: str) -> None:
    """Of the driver and everything else at once."""
    with created_topics(KafkaConnection(bootstrap_servers=kafka.bootstrap)) as create:
        source, sink = create("events", partitions=4), create("counts", partitions=2)
        produce(kafka.bootstrap, source.name, records(100))
        report = kill_and_restart(
            count_by_key,
            [source.bootstrap, source.name, sink.name, tmp_path, engine],
            at=KILLS,
            timeout=PATIENCE_S,
        )
        assert len(report.kills) == len(KILLS)
        assert counted(kafka.bootstrap, sink.name) == expected(100)


@dataclass(frozen=True, slots=True)
class _DiesOnce:
    """Passes windows on as text; its first process dies."""

    mark: Path

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            self.mark.touch(exist_ok=False)
        except FileExistsError:
            counts = batch["count"].cast(pa.string()).cast(pa.binary())
            return pa.RecordBatch.from_pydict({"key": batch["key"], "value": counts})
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it lives")


def test_windows_of_a_batch_without_records_come_out_of_spark_s_second_attempt(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """The end of the input has a batch of its own, and its worker dies."""
    source, sink = topic(partitions=1), topic(partitions=1)
    produce(kafka.bootstrap, source, [Record(key=b"a", value=b"", partition=0)] * 3)
    job = Job(
        "windows",
        spark,
        checkpoint_dir=tmp_path / "checkpoint",
        interval_s=0.1,
        engine="micro-batch",
    )
    stream = job.source(
        KafkaSource(
            bootstrap_servers=kafka.bootstrap,
            topics=[source],
            bounded=True,
            time=EventTime("kafka"),
        )
    )
    windows = stream.key_by("key", partitioned=True).window(Tumbling("1 minute"), on="event_time")
    windows.aggregate(count=Count()).map_batches(_DiesOnce(tmp_path / "died")).sink(
        KafkaSink(bootstrap_servers=kafka.bootstrap, topic=sink, transactional_id_prefix=sink)
    )
    job.run()
    assert (tmp_path / "died").exists()
    assert [record.value for record in read(kafka.bootstrap, sink)] == [b"3"]


@pytest.mark.extended
def test_counts_are_exact_while_splits_move(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """With each decision, and tasks die meanwhile. How many decisions a run has is not known."""
    source, sink = topic(partitions=4), topic(partitions=2)
    for run in itertools.count(1):
        produce(kafka.bootstrap, source, records(100))
        counting_job(
            spark, kafka.bootstrap, source, sink, tmp_path, engine="continuous", kills=2, moves=True
        ).run()
        assert counted(kafka.bootstrap, sink) == expected(100 * run)
        if assignments(tmp_path / "checkpoint") > 2:
            break


@pytest.mark.extended
@pytest.mark.parametrize("step", STEPS)
def test_counts_are_exact_after_a_kill_at_each_step_of_state(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setitem(killing.STEPS, step, (step,))
    count = 1_000 if "adopted" in step else 200  # a move needs several epochs
    with created_topics(KafkaConnection(bootstrap_servers=kafka.bootstrap)) as create:
        source, sink = create("events", partitions=4), create("counts", partitions=2)
        produce(kafka.bootstrap, source.name, records(count))
        kill_and_restart(
            count_while_splits_move,
            [source.bootstrap, source.name, sink.name, tmp_path],
            at=step,
            timeout=PATIENCE_S,
        )
        assert counted(kafka.bootstrap, sink.name) == expected(count)


@pytest.mark.parametrize("engine", ["micro-batch", "continuous"])
def test_partitions_that_share_their_keys_end_the_job(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path, engine: str
) -> None:
    """Each task reads one partition, and sees nothing wrong: the coordinator compares."""
    source, sink = topic(partitions=2), topic()
    sent = [Record(key=b"%d" % key, value=b"", partition=key % 2) for key in range(40)]
    sent += [Record(key=b"%d" % key, value=b"", partition=(key + 1) % 2) for key in range(40)]
    produce(kafka.bootstrap, source, sent)
    job = counting_job(spark, kafka.bootstrap, source, sink, tmp_path, engine=engine, regions=2)
    with pytest.raises(ConfigError, match="a key is in two partitions") as raised:
        job.run()
    assert f"{source}-0" in str(raised.value)
    assert f"{source}-1" in str(raised.value)


def test_a_job_whose_backend_is_not_installed_ends_before_its_start(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not in each attempt of its tasks."""
    monkeypatch.setitem(sys.modules, "rocksdict", None)  # as if it was not installed
    job = Job("counting", spark, checkpoint_dir=str(tmp_path / "cp"), state_backend="rocksdb")
    source = KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[topic()])
    counts = job.source(source).key_by("key", partitioned=True).aggregate(count=Count())
    counts.map_batches(_only_key).sink(
        KafkaSink(
            bootstrap_servers=kafka.bootstrap,
            topic=topic(),
            transactional_id_prefix=unique("counting"),
        )
    )
    with pytest.raises(MissingRequirementError, match=r"sluice-spark\[state\]"):
        job.run()
    assert not (tmp_path / "cp").exists()


def _only_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["key"])
