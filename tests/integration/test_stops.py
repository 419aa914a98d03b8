"""Savepoints and stops in order of real jobs: everything is committed, nothing is open, and the next
start resumes."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from typer.testing import CliRunner

from sluice import HdfsSink, KafkaSource, Roll
from sluice.connectors.hdfs.staging.pending_files import PENDING_KIND
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.job.job import Job
from sluice.runtime.job.job_cli import app
from sluice.runtime.model.checkpoint_record import CheckpointKind
from sluice.runtime.savepoint.savepoint import open_savepoint
from tests.integration.test_job_handle import Copies, unchanged
from tests.integration.test_signals import await_count, copying, open_transactions
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, values
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.integration]


@pytest.fixture
def copies(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> Copies:
    made = Copies(spark, kafka, topic, tmp_path / "checkpoint")
    made.produce(500)
    return made


def counted(records: DataFrame) -> DataFrame:
    """Numbers by their remainder, with state."""
    rest = (F.col("value").cast("string").cast("int") % 7).cast("string")
    found = records.groupBy(rest.alias("key")).count()
    return found.select("key", F.col("count").cast("string").cast("binary").alias("value"))


@pytest.mark.parametrize(
    "engine", [pytest.param("micro-batch", marks=pytest.mark.extended), "continuous"]
)
def test_a_drained_job_has_written_everything_and_left_nothing_open(
    copies: Copies, engine: str
) -> None:
    handle = copies.job(engine).start()
    assert handle.stop(drain=True) is None
    assert (handle.status().state, handle.exception) == ("stopped", None)
    assert copies.count() == copies.given
    store = open_store(str(copies.directory))
    last = store.read(max(store.slots()))
    assert last is not None
    assert (last.kind, store.is_committed(last.checkpoint_id)) == (CheckpointKind.FINAL, True)
    copies.expect_exactly_once_after_restart(engine)


@pytest.mark.extended
def test_a_stateful_job_ends_with_a_whole_savepoint(copies: Copies) -> None:
    """It is written while records flow, below a directory of the user's own."""
    to = copies.directory.parent / "elsewhere"
    with copies.job("micro-batch", transform=counted).start() as handle:
        wait_for(copies.count)
        first = handle.savepoint(to=str(to))
        copies.produce(100)
        last = handle.stop(savepoint=str(to), drain=True)
        assert handle.wait()
    assert last is not None
    for path in (first, last):
        assert Path(path.removeprefix("file://"), "_metadata").is_file()
        assert path.startswith(f"file://{to}/savepoint-")
    assert copies.open_transactions() == []


@pytest.mark.extended
def test_a_savepoint_names_no_file_outside(copies: Copies) -> None:
    """A sink that keeps rows for many epochs publishes them first, also without new records."""
    path = copies.directory.parent / "rows"
    job = Job("rolls", copies.spark, checkpoint_dir=copies.directory, interval_s=0.1)
    source = KafkaSource(bootstrap_servers=copies.bootstrap, topics=[copies.source])
    job.source(source).map_batches(unchanged).sink(
        HdfsSink(str(path), columns=("value",), roll=Roll(age=3600.0))
    )
    with job.start() as handle:
        wait_for(lambda: handle.status().records >= copies.given)
        assert not list(path.glob("part-*"))
        saved = open_savepoint(handle.savepoint())
        assert copies.spark.read.parquet(str(path)).count() == copies.given
    kinds = {entry.kind for r in saved.record.regions for entry in r.operator_states}
    assert PENDING_KIND not in kinds
    assert not saved.record.committables


@pytest.mark.extended
def test_the_program_of_a_stopped_job_ends_with_code_0(
    kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """``sluice job stop`` in another process, while records flow."""
    source, sink, location = topic(partitions=2), topic(partitions=2), tmp_path / "checkpoint"
    records = [Record(value=b"%06d" % n, partition=n % 2) for n in range(300)]
    produce(kafka.bootstrap, source, records)
    with (tmp_path / "errors").open("wb") as errors:
        process = copying(kafka, source, sink, location, errors)
        try:
            await_count(kafka, sink, 300)
            produce(kafka.bootstrap, source, records)
            stopped = CliRunner().invoke(app, ["stop", str(location), "--drain"])
            assert stopped.exception is None, stopped.output
            assert process.wait(PATIENCE_S) == 0, (tmp_path / "errors").read_text()
        finally:
            process.kill()
            process.wait()
    assert len(values(kafka.bootstrap, sink)) == 600
    assert open_transactions(kafka, sink) == []
