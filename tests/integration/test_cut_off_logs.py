"""Logs that lose their newest records and grow again, on a real broker whose disk forgets.

Where the newest records were, others are then: only the leaders' epochs tell (KIP-320).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import sluice
from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.source.enumerator.discovery import KafkaCluster
from sluice.connectors.kafka.source.enumerator.leader_epochs import EpochRequest
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.errors import DataLostError, StreamError, UnreachableError
from sluice.runtime.job.job import Job
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import await_stable, create_topic, produce
from tests.kit.kafka.kafka_records import values as topic_values
from tests.kit.source.kafka_source_reading import (
    TIMEOUT_S,
    Splits,
    cut,
    rows,
    source,
    start,
    values,
)
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.integration

_FIRST, _LOST, _NEW = (
    [b"%s%d" % (what, n) for n in range(count)]
    for what, count in ((b"first", 7), (b"lost", 3), (b"new", 9))
)


@dataclass(frozen=True, slots=True)
class Log:
    """A topic of one partition with seven records, and three that its broker may lose."""

    kafka: EmbeddedKafka
    topic: str
    file: Path
    kept_bytes: int

    @classmethod
    def written(cls, kafka: EmbeddedKafka, directory: Path) -> "Log":
        topic = create_topic(kafka.bootstrap)
        produce(kafka.bootstrap, topic, _FIRST)
        (file,) = (directory / "data" / f"{topic}-0").glob("*.log")
        kept_bytes = file.stat().st_size
        produce(kafka.bootstrap, topic, _LOST)
        return cls(kafka, topic, file, kept_bytes)

    def lose(self) -> None:
        """The last three; then nine others come."""
        self.cut_off()
        self.grow()

    def cut_off(self) -> None:
        """The broker crashes, and its disk has only the first seven."""
        self.kafka.kill()
        with self.file.open("r+b") as file:
            file.truncate(self.kept_bytes)
        self.kafka.start()

    def grow(self) -> None:
        """Nine others come."""
        produce(self.kafka.bootstrap, self.topic, _NEW)

    def source(self, **arguments: Any) -> KafkaSource:
        """Of this topic."""
        return source(self.kafka, self.topic, **arguments)

    def read_to_the_end(self, **arguments: Any) -> Splits:
        """Where a source stands that has read all records."""
        return cut(*start(self.source(**arguments)))


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedKafka, Path]]:
    """A broker, and its directory."""
    directory = tmp_path_factory.mktemp("forgetful")
    with EmbeddedKafka(data_dir=directory) as kafka:
        yield kafka, directory


@pytest.fixture
def written(forgetful: tuple[EmbeddedKafka, Path]) -> Log:
    """A topic with ten records."""
    return Log.written(*forgetful)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_log_that_was_cut_off_and_has_grown_again_is_not_read_on(
    written: Log, fails: str
) -> None:
    """Nine records of the topic would be taken for six."""
    made = written.source(options={"failOnDataLoss": fails})
    positions = cut(*start(made))
    written.lose()
    enumerator, _ = start(made)
    with pytest.raises(DataLostError, match=r"-0\[7,10\)"):
        cut(enumerator, positions)


def test_a_new_leader_that_has_all_records_is_read_on(written: Log) -> None:
    positions = written.read_to_the_end()
    written.kafka.kill()
    written.kafka.start()
    produce(written.kafka.bootstrap, written.topic, _NEW)
    made = written.source()
    enumerator, _ = start(made)
    again = cut(enumerator, positions)
    (before,), (after,) = positions, again
    assert before.leader_epoch is not None
    assert after.leader_epoch is not None
    assert after.leader_epoch > before.leader_epoch
    assert values(rows(made, again)) == _NEW
    # The log's first record is still the former leader's: whose it is now its end tells.
    produce(written.kafka.bootstrap, written.topic, _NEW)
    assert values(rows(made, cut(enumerator, again))) == _NEW


def test_a_leader_that_is_newer_than_the_look_is_asked_for_what_it_knows(written: Log) -> None:
    """It refuses to answer for an earlier one."""
    (position,) = written.read_to_the_end()
    assert position.leader_epoch is not None
    written.kafka.restart()
    cluster = KafkaCluster(KafkaConnection(bootstrap_servers=written.kafka.bootstrap))
    question = EpochRequest(leader_epoch=0, current_leader_epoch=position.leader_epoch)
    assert cluster.epoch_ends({(written.topic, 0): question}, timeout_s=TIMEOUT_S) == {
        (written.topic, 0): 10
    }
    cluster.close()


@pytest.mark.parametrize(
    "hot_path",
    ["native", pytest.param("plain", marks=pytest.mark.extended)],
    indirect=True,
)
def test_a_range_is_not_read_from_another_log(written: Log, hot_path: str) -> None:
    """It was cut before; its last three records are gone, and others have their offsets."""
    ranges = written.read_to_the_end()
    written.lose()
    for fails in ("true", "false"):
        made = written.source(hot_path=hot_path, options={"failOnDataLoss": fails})
        with pytest.raises(DataLostError, match=r"-0\[7,10\)"):
            rows(made, ranges)


@pytest.mark.parametrize(
    "hot_path",
    ["native", pytest.param("plain", marks=pytest.mark.extended)],
    indirect=True,
)
@pytest.mark.parametrize("anew", [pytest.param(False, marks=pytest.mark.extended), True])
def test_a_follower_ends_where_the_log_is_another(written: Log, hot_path: str, anew: bool) -> None:
    """And does not go on behind what is new; the driver judges where the next one begins. Nor where
    its splits are dealt anew, and another consumer goes on."""
    made = written.source(hot_path=hot_path)
    (whole,) = cut(*start(made))
    follower = made.streaming_reader().follow([whole], None)
    try:
        wait_for(
            lambda: follower.poll() is None and follower.positions()[whole.key] == 10,
            what="all ten records",
            poll_s=0.0,
        )
        assert follower.records_read() == {whole.key: (10, *[whole.leader_epoch] * 2)}
        written.lose()
        if anew:
            follower.restart_at([whole.at_end()])
        with pytest.raises(UnreachableError, match="lacks records") as caught:
            wait_for(lambda: follower.poll() is not None, what="no record", poll_s=0.01)
        assert "position=10" in str(caught.value)
    finally:
        follower.close()


# --- whole pipelines ----------------------------------------------------------------------------


def _run_job(
    spark: SparkSession, written: Log, kafka: EmbeddedKafka, sink: str, directory: Path, **how: Any
) -> None:
    """Copy what is there, and end."""
    job = Job(
        "copy",
        spark,
        engine=how["engine"],
        checkpoint_dir=str(directory),
        interval_s=0.2,
        tolerable_failures=0,
    )
    tolerance = {"failOnDataLoss": how["fail_on_data_loss"]}
    job.source(written.source(bounded=True, options=tolerance)).sink(
        KafkaSink(
            bootstrap_servers=kafka.bootstrap, topic=sink, transactional_id_prefix=f"copy-{sink}"
        )
    )
    job.run()


def _run_drop_in(
    spark: SparkSession, written: Log, kafka: EmbeddedKafka, sink: str, directory: Path, **how: Any
) -> None:
    """As `_run_job`, by the format's names."""
    frame = (
        spark.readStream.format("sluice-kafka")
        .option("kafka.bootstrap.servers", written.kafka.bootstrap)
        .option("subscribe", written.topic)
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", how["fail_on_data_loss"])
        .load()
        .select("key", "value")
    )
    query = (
        frame.writeStream.format("sluice-kafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("topic", sink)
        .option("transactionalIdPrefix", f"copy-{sink}")
        .option("checkpointLocation", str(directory))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(600), "the query did not end by itself"
    finally:
        query.stop()


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with the whole format."""
    installation = sluice.install(spark)
    yield spark
    installation.close()


@pytest.mark.parametrize(
    "engine",
    [
        "continuous",
        *(pytest.param(name, marks=pytest.mark.extended) for name in ("micro-batch", "drop-in")),
    ],
)
def test_batch_identity_a_pipeline_stops_behind_a_truncated_log(
    session: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    written: Log,
    tmp_path: Path,
    engine: str,
) -> None:
    """It names the lost range and writes nothing more, whatever failOnDataLoss says."""
    sink = topic()
    run = partial(
        _run_drop_in if engine == "drop-in" else _run_job,
        session,
        written,
        kafka,
        sink,
        tmp_path,
        engine=engine,
    )
    run(fail_on_data_loss="true")
    written.lose()
    for fails in ("true", "false"):
        with pytest.raises((StreamError, StreamingQueryException), match=r"-0\[7,10\)"):
            run(fail_on_data_loss=fails)
        await_stable(kafka.bootstrap, sink)
        assert topic_values(kafka.bootstrap, sink) == _FIRST + _LOST


@pytest.mark.extended
def test_start_offsets_once_a_decided_batch_that_is_run_once_more_needs_all_its_records(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, written: Log, tmp_path: Path
) -> None:
    """Its ten records were decided, and the job died before Spark had noted its state; three of
    them are gone, so its state cannot be computed. Nothing is written twice."""
    sink = topic()

    def run(*, fails: str) -> None:
        job = Job("distinct", spark, checkpoint_dir=str(tmp_path), interval_s=0.2)
        options = {"failOnDataLoss": fails, "kafkaConsumer.pollTimeoutMs": "20000"}
        job.source(written.source(bounded=True, options=options)).transform(
            lambda frame: frame.dropDuplicates(["value"])
        ).sink(
            KafkaSink(
                bootstrap_servers=kafka.bootstrap,
                topic=sink,
                transactional_id_prefix=f"distinct-{sink}",
            )
        )
        job.run()

    def found() -> list[bytes]:
        await_stable(kafka.bootstrap, sink)
        return sorted(topic_values(kafka.bootstrap, sink))

    run(fails="true")
    (commits,) = tmp_path.glob("spark/*/*/commits")
    newest = max((path for path in commits.iterdir() if path.name.isdecimal()), key=_batch_id)
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    written.cut_off()
    for fails in ("true", "false"):
        with pytest.raises(DataLostError, match=r"-0\[7,10\)"):
            run(fails=fails)
        assert found() == sorted(_FIRST + _LOST)


def _batch_id(log: Path) -> int:
    return int(log.name)


@pytest.mark.extended
def test_batch_identity_a_truncated_logged_batch_is_refused(
    session: SparkSession, written: Log, tmp_path: Path
) -> None:
    """Spark has logged a batch of ten records, and died; three of them are gone, and nothing has
    come since. Its tasks would wait for them."""
    batches: dict[int, list[bytes]] = {}

    def run(*, fails: str, dies_at: int | None = None) -> None:
        def take(frame: DataFrame, batch_id: int) -> None:
            if batch_id == dies_at:
                raise RuntimeError("told to fail")
            batches[batch_id] = [bytes(row.value) for row in frame.collect()]

        frame = (
            session.readStream.format("sluice-kafka")
            .option("kafka.bootstrap.servers", written.kafka.bootstrap)
            .option("subscribe", written.topic)
            .option("startingOffsets", "earliest")
            .option("failOnDataLoss", fails)
            .load()
        )
        writer = frame.writeStream.foreachBatch(take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path)).start()
        try:
            assert query.awaitTermination(100), "the query did not end by itself"
        finally:
            query.stop()

    with pytest.raises(StreamingQueryException, match="told to fail"):
        run(fails="true", dies_at=1)
    written.cut_off()
    for fails in ("true", "false"):
        with pytest.raises(StreamingQueryException, match=r"-0\[7,10\)"):
            run(fails=fails)
    assert batches == {0: []}
