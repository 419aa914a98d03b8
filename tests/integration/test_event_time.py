"""Event time on a real broker and real Spark: windows are exact, and splits are read in step."""

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from sluice import (
    BoundedOutOfOrderness,
    Count,
    EventTime,
    Header,
    Job,
    KafkaSink,
    KafkaSource,
    Tumbling,
)
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.continuous.task_time import TaskTime
from sluice.runtime.functions.function_run import ChainedFunction, FunctionRun
from sluice.runtime.functions.split_clocks import SplitClocks, clocks_of
from sluice.runtime.model.splits import Barrier
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read
from tests.kit.source.kafka_source_reading import source, start
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.integration

PARTITIONS, WINDOW_MS, DELAY_MS = 4, 100, 20


def records(first_ms: int, count: int) -> list[Record]:
    """Each partition at its own pace, and at most `DELAY_MS` out of order."""
    return [
        Record(
            key=b"%d-%d" % (partition, at % 3),
            value=b"",
            partition=partition,
            headers=(("at", b"%d" % (first_ms + at * (partition + 1) - at * 7_919 % DELAY_MS)),),
        )
        for at in range(count)
        for partition in range(PARTITIONS)
    ]


def windows_of(given: list[Record]) -> Counter[tuple[str, int]]:
    return Counter(
        ((each.key or b"").decode(), int(each.headers[0][1] or b"") // WINDOW_MS * WINDOW_MS)
        for each in given
    )


def as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    starts = pc.cast(pc.cast(batch["window_start"], pa.int64()), pa.string())
    value = pc.binary_join_element_wise(starts, pc.cast(batch["count"], pa.string()), ":")
    return pa.RecordBatch.from_pydict({"key": batch["key"], "value": pc.cast(value, pa.binary())})


def counting(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    names: tuple[str, str],
    directory: Path,
    *,
    engine: str,
    regions: int = 2,
    partitioned: bool = True,
) -> Job:
    job = Job(
        "windows",
        spark,
        checkpoint_dir=directory / "checkpoint",
        interval_s=0.1,
        regions=regions,
        engine=engine,
    )
    time = EventTime(Header("at"), strategy=BoundedOutOfOrderness(DELAY_MS / 1000))
    stream = job.source(
        KafkaSource(
            bootstrap_servers=kafka.bootstrap,
            topics=[names[0]],
            bounded=True,
            time=time,
            options={} if engine == "continuous" else {"maxOffsetsPerTrigger": "800"},
        )
    )
    counts = (
        stream.key_by("key", partitioned=partitioned)
        .window(Tumbling(WINDOW_MS / 1000), on="event_time")
        .aggregate(count=Count())
    )
    counts.map_batches(as_text).sink(
        KafkaSink(bootstrap_servers=kafka.bootstrap, topic=names[1], transactional_id_prefix="w")
    )
    return job


def emitted(kafka: EmbeddedKafka, topic: str) -> Counter[tuple[str, int]]:
    """The count of each window, after a check that each came out once."""
    found: Counter[tuple[str, int]] = Counter()
    for each in read(kafka.bootstrap, topic):
        start_ms, count = (each.value or b"").decode().split(":")
        window = (each.key or b"").decode(), int(start_ms)
        assert window not in found, f"{window} came out twice"
        found[window] = int(count)
    return found


@pytest.mark.extended
def test_windows_are_exact_in_both_engines_and_with_other_regions(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """The times of a run follow those of the run before; no row is late, though regions and
    partitions are at different times."""
    names = topic(partitions=PARTITIONS), topic()
    expected: Counter[tuple[str, int]] = Counter()
    for run, (engine, regions) in enumerate((("continuous", 2), ("micro-batch", 1))):
        given = records(1_000_000 * (run + 1), 2_000)
        produce(kafka.bootstrap, names[0], given)
        expected += windows_of(given)
        job = counting(spark, kafka, names, tmp_path, engine=engine, regions=regions)
        job.run()
        assert emitted(kafka, names[1]) == expected


@pytest.mark.extended
@pytest.mark.parametrize("engine", ["continuous", "micro-batch"])
def test_windows_through_a_repartition_topic_are_exact(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path, engine: str
) -> None:
    names = topic(partitions=PARTITIONS), topic()
    given = records(1_000_000, 2_000)
    produce(kafka.bootstrap, names[0], given)
    counting(spark, kafka, names, tmp_path, engine=engine, regions=1, partitioned=False).run()
    assert emitted(kafka, names[1]) == windows_of(given)


def test_splits_of_a_skewed_backlog_are_read_in_step(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """One partition has few records for the time of many in the other. The state of windows is as
    large as the spread of the times that are read."""
    name, drift_ms = topic(partitions=2), 1_000
    dense = [Record(value=b"x" * 100, partition=0, timestamp_ms=at) for at in range(1, 30_001)]
    sparse = [Record(value=b"x", partition=1, timestamp_ms=at) for at in range(1, 30_001, 10)]
    produce(kafka.bootstrap, name, [*sparse, *dense])
    time = EventTime("kafka", strategy=BoundedOutOfOrderness(0), idle_after="1 m", max_drift="1 s")
    made = source(kafka, name, time=time)
    _, positions = start(made)
    (function,) = made.functions
    clocks = function.function
    assert isinstance(clocks, SplitClocks)
    chained = ChainedFunction(name="time", operator_id="t", function=clocks, takes_context=True)
    assert clocks_of([chained]) is clocks
    stream = made.streaming_reader().follow(positions, None)
    paused: set[int] = set()
    try:
        task = TaskTime(stream, clocks)
        task.note_barrier(
            Barrier(checkpoint_id=1, region="r", attempt_id=0, splits=positions, time_ms=1)
        )
        run = FunctionRun([chained])
        largest = {0: 0, 1: 0}

        def step() -> bool:
            batch = stream.poll()
            if batch is not None:
                list(run.applied(iter((batch,)), lambda *_: None))
                times = pc.cast(pc.cast(batch["timestamp"], pa.timestamp("ms", "UTC")), pa.int64())
                for number, at in zip(
                    batch["partition"].to_pylist(), times.to_pylist(), strict=True
                ):
                    largest[number] = max(largest[number], at)
                task.align()
                paused.update(key[2] for key in task.paused)
                if all(largest.values()):
                    spread = abs(largest[0] - largest[1])
                    # One batch may pass the limit before the next look at the times.
                    assert spread <= drift_ms + 10 * batch.num_rows + drift_ms
            return sum(stream.positions().values()) == len(dense) + len(sparse)

        wait_for(step, what="all records", poll_s=0.0)
        assert paused
    finally:
        stream.close()
