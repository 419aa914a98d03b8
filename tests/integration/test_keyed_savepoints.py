"""Keyed state of real jobs in checkpoints: kept, shown, restored elsewhere, recomputed."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from sluice import Count, Job, KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checkpoint.checkpoint_slots import slot_name
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.job.job_cli import checkpoint_app
from sluice.runtime.model.checkpoint_record import CheckpointRecord, Verdict
from sluice.runtime.savepoint.savepoint import open_savepoint
from sluice.runtime.savepoint.savepoint_directory import verify
from sluice.runtime.spark.state.state_cli import app as state_app
from tests.integration.test_keyed_state import counted, expected, records
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import produce, read
from tests.kit.keyed_program import counting_job

pytestmark = pytest.mark.integration


def _decided(directory: Path) -> list[CheckpointRecord]:
    store = open_store(str(directory))
    found = (store.read(checkpoint_id) for checkpoint_id in store.slots())
    return [each for each in found if each is not None and each.verdict is Verdict.DECIDED]


def _text(counts: pa.RecordBatch) -> pa.RecordBatch:
    text = counts["count"].cast(pa.string()).cast(pa.binary())
    return pa.RecordBatch.from_pydict({"key": counts["key"], "value": text})


def _repartitioned(
    spark: SparkSession, kafka: EmbeddedKafka, source: str, sink: str, directory: Path, **given: Any
) -> Job:
    partitions = given.pop("partitions")
    settings = {"interval_s": 0.2, "regions": 1, "engine": "continuous", **given}
    job = Job("counts", spark, checkpoint_dir=str(directory), **settings)
    stream = job.source(
        KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True)
    )
    counts = stream.key_by("key", partitions=partitions).aggregate(count=Count())
    counts.map_batches(_text).sink(
        KafkaSink(bootstrap_servers=kafka.bootstrap, topic=sink, transactional_id_prefix=sink)
    )
    return job


@pytest.mark.extended
def test_a_job_keeps_the_files_of_its_records_and_shows_their_rows(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    source, sink = topic(partitions=4), topic(partitions=2)
    for run in (1, 2):
        produce(kafka.bootstrap, source, records(50))
        counting_job(
            spark, kafka.bootstrap, source, sink, tmp_path, engine="continuous", regions=1
        ).run()
        assert counted(kafka.bootstrap, sink) == expected(50 * run)
    directory = tmp_path / "checkpoint"
    named = {file.path for made in _decided(directory) for file in made.keyed_files}
    present = {str(path.relative_to(directory)) for path in directory.glob("state/*/*")}
    assert named <= present
    older = max(made.regions[0].attempt_id for made in _decided(directory))
    left = {path for path in present - named if int(path.split("/")[2].split("-")[0]) < older}
    assert left == set()
    shown = CliRunner().invoke(
        checkpoint_app,
        ["inspect", str(directory), "--state", "--limit", "100", "--json"],
        catch_exceptions=False,
    )
    tables = json.loads(shown.output)["regions"][0]["keyed_state"]["tables"]
    (rows,) = (table["rows"] for table in tables if table["name"] == "aggregates")
    assert {row["key"]["key"]: row["value"]["count_0"] for row in rows} == expected(100)


@pytest.mark.extended
def test_a_new_job_counts_on_from_the_state_of_another_one(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """With other regions and the other engine, in a directory of its own."""
    source, sink, other = topic(partitions=4), topic(partitions=2), topic(partitions=2)
    produce(kafka.bootstrap, source, records(30))
    counting_job(
        spark, kafka.bootstrap, source, sink, tmp_path / "a", engine="continuous", regions=1
    ).run()
    last = _decided(tmp_path / "a/checkpoint")[-1]
    uri = str(tmp_path / "a/checkpoint" / slot_name(last.checkpoint_id))
    verify(open_savepoint(uri))
    produce(kafka.bootstrap, source, records(20))
    job = counting_job(
        spark,
        kafka.bootstrap,
        source,
        other,
        tmp_path / "b",
        engine="micro-batch",
        regions=2,
        restore_from=uri,
    )
    job.run()
    assert counted(kafka.bootstrap, other) == expected(50)
    assert min(int(r.value or b"") for r in read(kafka.bootstrap, other)) > 30
    first = open_store(str(tmp_path / "b/checkpoint")).read(0)
    assert first is not None
    assert all(file.path.startswith("state/restored-") for file in first.keyed_files)


@pytest.mark.extended
def test_a_recomputed_job_counts_on_with_other_key_groups_and_partitions(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    source, sink, other = topic(partitions=4), topic(partitions=2), topic(partitions=2)
    produce(kafka.bootstrap, source, records(30))
    _repartitioned(spark, kafka, source, sink, tmp_path / "a", partitions=4).run()
    assert counted(kafka.bootstrap, sink) == expected(30)
    last = _decided(tmp_path / "a")[-1]
    arguments = ["recompute", str(tmp_path / "a" / slot_name(last.checkpoint_id)), "--to"]
    arguments += [str(tmp_path / "saved"), "--max-parallelism", "2048", "--partitions", "6"]
    made = CliRunner().invoke(state_app, arguments, catch_exceptions=False)
    uri = made.output.strip().splitlines()[-1]
    produce(kafka.bootstrap, source, records(20))
    _repartitioned(
        spark,
        kafka,
        source,
        other,
        tmp_path / "b",
        partitions=6,
        restore_from=uri,
        regions=2,
        engine="micro-batch",
    ).run()
    assert counted(kafka.bootstrap, other) == expected(50)
    assert min(int(r.value or b"") for r in read(kafka.bootstrap, other)) > 30
