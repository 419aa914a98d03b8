"""What Spark's own suites of its Kafka source check, on the installed format, in Spark.

`tests/unit/connectors/kafka/test_spark_conformance.py` lists all behaviours.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryListener

import sluice
from sluice import KafkaProgress
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.errors import ConfigError
from tests.integration.test_kafka_source_changes import delete_records
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import (
    Record,
    abandon_transaction,
    add_partitions,
    await_stable,
    create_topic,
    produce,
    produce_transaction,
    unique,
)
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.integration

QUERY_S = 600
METRICS = {"minOffsetsBehindLatest", "maxOffsetsBehindLatest", "avgOffsetsBehindLatest"}


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """Spark with the formats, as `sluice.install` leaves it."""
    installation = sluice.install(spark)
    yield spark
    installation.close()


def options(kafka: EmbeddedKafka, topic: str, **more: str) -> dict[str, str]:
    named = {} if "subscribePattern" in more or "assign" in more else {"subscribe": topic}
    return {"kafka.bootstrap.servers": kafka.bootstrap, **named, **more}


def load(session: SparkSession, given: dict[str, str]) -> DataFrame:
    return session.read.format("sluice-kafka").options(**given).load()


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


def send(kafka: EmbeddedKafka, topic: str, *values: int, partition: int | None = None) -> None:
    produce(kafka.bootstrap, topic, [Record(value=b"%d" % n, partition=partition) for n in values])


def test_each_run_of_a_loaded_frame_binds_its_ends_late(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """The same frame, its view and its RDD; with new partitions, and after retention."""
    name = topic(partitions=2)
    send(kafka, name, *range(10), partition=0)
    frame = load(session, options(kafka, name)).selectExpr("CAST(value AS STRING) AS value")
    split = load(session, options(kafka, name, minPartitions="6"))
    rdd = split.rdd
    frame.createOrReplaceTempView("late")
    assert numbers(frame) == list(range(10))
    assert rdd.getNumPartitions() >= 6
    assert rdd.count() == 10
    add_partitions(kafka.bootstrap, name, total=3)
    for partition in range(3):
        send(kafka, name, *range(10 * partition + 10, 10 * partition + 20), partition=partition)
    assert numbers(frame) == list(range(40))
    assert frame.count() == session.sql("SELECT * FROM late").count() == rdd.count() == 40
    assert numbers(frame.union(frame)) == sorted(2 * list(range(40)))
    assert numbers(frame.join(frame, "value")) == list(range(40))
    delete_records(kafka, name, 15)
    assert numbers(frame) == list(range(15, 40))
    assert split.rdd.count() == rdd.count() == 25


def test_given_ends_stay_and_latest_ends_move(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    name = topic(partitions=3)
    for partition in range(3):
        send(kafka, name, partition, partition=partition)
    between = options(
        kafka,
        name,
        startingOffsets=json.dumps({name: {"0": -2, "1": -2, "2": 0}}),
        endingOffsets=json.dumps({name: {"0": -1, "1": -1, "2": 1}}),
    )
    frame = load(session, between).selectExpr("CAST(value AS STRING) AS value")
    assert numbers(frame) == [0, 1, 2]
    send(kafka, name, 30, partition=2)
    assert numbers(frame) == [0, 1, 2]
    send(kafka, name, 20, partition=1)
    assert numbers(frame) == [0, 1, 2, 20]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"startingOffsetsByTimestamp": 1, "endingOffsetsByTimestamp": 2}, range(10, 20)),
        ({"startingOffsetsByTimestamp": 1}, range(10, 30)),
        ({"endingOffsetsByTimestamp": 2}, range(20)),
        ({"startingTimestamp": 1, "endingTimestamp": 2}, range(10, 20)),
        (
            {
                "startingTimestamp": 2,
                "startingOffsetsByTimestamp": 1,
                "startingOffsets": "earliest",
            },
            range(20, 30),
        ),
        ({"startingOffsetsByTimestamp": 1, "startingOffsets": "earliest"}, range(10, 30)),
        (
            {"startingOffsetsByTimestamp": 0, "endingOffsets": {"0": -1, "1": -1, "2": 1}},
            [n for n in range(30) if n % 3 != 2 or n == 2],
        ),
        (
            {"startingOffsets": {"0": -2, "1": -2, "2": 0}, "endingOffsetsByTimestamp": 2},
            range(20),
        ),
        (
            {"endingOffsetsByTimestamp": {"0": 1, "1": 1, "2": 2**63 - 1}},
            [n for n in range(30) if n < 10 or n % 3 == 2],
        ),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_timestamps_bound_a_frame(
    session: SparkSession,
    timed: tuple[dict[str, str], int],
    given: dict[str, Any],
    expected: Any,
) -> None:
    """Thirty records over three partitions, ten at each of three moments."""
    servers, first_ms = timed
    name = servers["subscribe"]

    def moment(value: Any) -> Any:
        return first_ms + 1000 * value if isinstance(value, int) and value < 3 else value

    def told(option: str, value: Any) -> str:
        if not option.endswith("ByTimestamp"):
            return json.dumps({name: value}) if isinstance(value, dict) else str(moment(value))
        each = value if isinstance(value, dict) else dict.fromkeys("012", value)
        return json.dumps({name: {number: moment(at) for number, at in each.items()}})

    frame = load(session, {**servers, **{option: told(option, v) for option, v in given.items()}})
    assert numbers(frame) == list(expected)


@pytest.fixture(scope="module")
def timed(kafka: EmbeddedKafka) -> tuple[dict[str, str], int]:
    """A topic of `test_timestamps_bound_a_frame`, and its first moment."""
    name, first_ms = unique("timed"), round(time.time() * 1000) - 5000
    create_topic(kafka.bootstrap, name, partitions=3)
    records = [
        Record(value=b"%d" % n, partition=n % 3, timestamp_ms=first_ms + n // 10 * 1000)
        for n in range(30)
    ]
    produce(kafka.bootstrap, name, records)
    return options(kafka, name), first_ms


@pytest.mark.parametrize(
    ("level", "seen"),
    [
        ("read_committed", [[], [1, 2, 3], [1, 2, 3], [1, 2, 3, 7, 8]]),
        ("read_uncommitted", [[1, 2, 3], [1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 7, 8]]),
    ],
)
def test_a_frame_sees_transactions_by_its_isolation_level(
    session: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    level: str,
    seen: list[list[int]],
) -> None:
    """One frame through an open, a committed, an aborted and another committed transaction."""
    name = topic()
    frame = load(session, options(kafka, name, **{"kafka.isolation.level": level}))
    values = frame.selectExpr("CAST(value AS STRING) AS value")
    found: list[list[int]] = []
    opened = abandon_transaction(kafka.bootstrap, name, [b"1", b"2", b"3"])
    found.append(numbers(values))
    opened.commit_transaction(QUERY_S)
    await_stable(kafka.bootstrap, name)
    found.append(numbers(values))
    for sent, commit in (([b"4", b"5"], False), ([b"7", b"8"], True)):
        produce_transaction(kafka.bootstrap, name, sent, commit=commit)
        await_stable(kafka.bootstrap, name)
        found.append(numbers(values))
    assert found == seen


PAIR = json.dumps({"t": {"0": 1, "1": 1}})
WRONG_FOR_BOTH = [
    ({}, "exactly one of three"),
    ({"subscribe": "t", "subscribePattern": "t.*"}, "exactly one of three"),
    ({"subscribe": "t", "assign": '{"a":[0]}'}, "exactly one of three"),
    ({"assign": ""}, "assign"),
    ({"subscribe": ""}, "at least one topic"),
    ({"subscribePattern": ""}, "not empty"),
    ({"subscribe": "t", "kafka.bootstrap.servers": None}, "bootstrap"),
    *(
        ({"subscribe": "t", f"kafka.{name}": "x"}, name)
        for name in (
            "auto.offset.reset",
            "enable.auto.commit",
            "interceptor.classes",
            "key.deserializer",
            "value.deserializer",
        )
    ),
    *(({"subscribe": "t", "minPartitions": n}, "minPartitions") for n in ("a", "1.0", "0", "-1")),
]


@pytest.mark.parametrize(
    ("stream", "given", "told"),
    [
        *((stream, *each) for stream in (False, True) for each in WRONG_FOR_BOTH),
        (True, {"subscribe": "t", "endingOffsets": "latest"}, "endingOffsets"),
        (True, {"subscribe": "t", "endingOffsetsByTimestamp": PAIR}, "endingOffsetsByTimestamp"),
        (
            True,
            {"subscribe": "t", "minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "15"},
            "minOffsetsPerTrigger=20 maxOffsetsPerTrigger=15",
        ),
        (False, {"subscribe": "t", "startingOffsets": "latest"}, "latest"),
        (False, {"subscribe": "t", "startingOffsets": '{"t":{"0":-1}}'}, "latest"),
        (False, {"subscribe": "t", "endingOffsets": "earliest"}, "earliest"),
        (False, {"subscribe": "t", "endingOffsets": '{"t":{"0":-2}}'}, "earliest"),
        (False, {"subscribe": "t", "maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger"),
    ],
)
def test_load_refuses_wrong_options(
    session: SparkSession, stream: bool, given: dict[str, str | None], told: str
) -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", **given}
    reader: Any = session.readStream if stream else session.read
    reader = reader.format("sluice-kafka")
    for name, value in options.items():
        reader = reader if value is None else reader.option(name, value)
    with pytest.raises(ConfigError, match=told):
        reader.load()


@pytest.mark.parametrize(
    ("kind", "option", "told"),
    [
        ("TEMPORARY VIEW", "startingOffset", "unknown option of the Kafka source"),
        ("TABLE", "startingOffsets", "Use CREATE TEMPORARY VIEW"),
    ],
)
def test_sql_refuses_wrong_options_when_it_is_analysed(
    session: SparkSession, kind: str, option: str, told: str
) -> None:
    options = f"`kafka.bootstrap.servers` '127.0.0.1:1', subscribe 't', {option} 'earliest'"
    with pytest.raises(AnalysisException, match=told):
        session.sql(f"CREATE {kind} wrong USING `sluice-kafka` OPTIONS ({options})")


@pytest.mark.parametrize("option", ["maxOffsetsPerTrigger '5'", "endingOffsets 'latest'"])
def test_sql_takes_options_that_a_frame_or_a_stream_has(session: SparkSession, option: str) -> None:
    options = f"`kafka.bootstrap.servers` '127.0.0.1:1', subscribe 't', {option}"
    session.sql(f"CREATE OR REPLACE TEMPORARY VIEW right USING `sluice-kafka` OPTIONS ({options})")


class Seen(StreamingQueryListener):
    """The progress of each batch, as a listener gets it."""

    def __init__(self) -> None:
        self.progress: list[KafkaProgress] = []

    def onQueryStarted(self, event: object) -> None:
        """Not needed."""

    def onQueryProgress(self, event: Any) -> None:
        self.progress += sluice.kafka_progress(event.progress)

    def onQueryTerminated(self, event: object) -> None:
        """Not needed."""


@pytest.mark.parametrize("limit", ["4", str(2**63 - 1)])
def test_progress_has_the_offsets_and_metrics_of_sparks_source(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path, limit: str
) -> None:
    name = topic(partitions=2)
    for partition in range(2):
        send(kafka, name, *range(5), partition=partition)
    given = options(kafka, name, startingOffsets="earliest", maxOffsetsPerTrigger=limit)
    seen = Seen()
    session.streams.addListener(seen)
    query = (
        session.readStream.format("sluice-kafka")
        .options(**given)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        query.processAllAvailable()
        found = [each for p in query.recentProgress for each in sluice.kafka_progress(p)]
        (last,) = sluice.kafka_progress(query.lastProgress)
        wait_for(lambda: seen.progress[-1:] == [last], timeout_s=QUERY_S)
    finally:
        query.stop()
        session.streams.removeListener(seen)
    assert last.end_offset == last.latest_offset == {name: {"0": 5, "1": 5}}
    assert set(last.metrics) == METRICS
    assert query.lastProgress.sources[0].metrics == {}, "Spark takes none from a Python source"
    assert {float(value) for value in last.metrics.values()} == {0.0}
    behind = [float(each.metrics.get("avgOffsetsBehindLatest", 0)) for each in found]
    assert any(behind) == (limit == "4")
    assert sum(p.numInputRows for p in query.recentProgress) == 10


def test_a_stream_joins_itself_and_counts_windows(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    name, now_s = topic(partitions=2), time.time()
    stream = (
        session.readStream.format("sluice-kafka")
        .options(**options(kafka, name, startingOffsets="earliest"))
        .load()
    )
    number = "CAST(CAST(value AS STRING) AS INT)"
    values = stream.selectExpr(f"{number} AS value", f"{number} % 5 AS key")
    windows = stream.withWatermark("timestamp", "10 seconds").groupBy(
        F.window("timestamp", "5 seconds")
    )
    joined = memory(values.join(values, "key"), "joined", tmp_path, "append")
    counted = memory(windows.count(), "counted", tmp_path, "complete")
    try:
        for sent in ((1, 2), (6, 3)):
            send(kafka, name, *sent)
            joined.processAllAvailable()
        counted.processAllAvailable()
    finally:
        joined.stop()
        counted.stop()
    assert sorted(map(tuple, session.table("joined").collect())) == sorted(
        [(1, 1, 1), (2, 2, 2), (3, 3, 3), (1, 6, 1), (1, 1, 6), (1, 6, 6)]
    )
    rows = session.table("counted").collect()
    assert sum(row["count"] for row in rows) == 4
    assert all(row.window.start.timestamp() >= now_s - 10 for row in rows)


def memory(frame: DataFrame, name: str, location: Path, mode: str) -> StreamingQuery:
    writer = frame.writeStream.format("memory").queryName(name).outputMode(mode)
    return writer.option("checkpointLocation", str(location / name)).start()


@pytest.mark.parametrize(("mode", "rows"), [("append", 5), ("update", -1)])
def test_progress_counts_the_rows_of_the_sink(
    session: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
    mode: str,
    rows: int,
) -> None:
    name, output = topic(), topic()
    send(kafka, name, *range(5))
    query = (
        session.readStream.format("sluice-kafka")
        .options(**options(kafka, name, startingOffsets="earliest"))
        .load()
        .select("value")
        .writeStream.format("sluice-kafka")
        .outputMode(mode)
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("topic", output)
        .option("transactionalIdPrefix", output)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(QUERY_S)
    assert [p.sink.numOutputRows for p in query.recentProgress][-1] == rows
