"""`assert_exactly_once` on a job of Sluice with several outputs: topics, Parquet on HDFS, JSON."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice import HdfsSink, KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checker import Record
from sluice.runtime.embedded.hdfs.embedded_hdfs import EmbeddedHdfs
from sluice.runtime.errors import ConfigError
from sluice.runtime.job.job import Job
from sluice.testing import NotExactlyOnceError, assert_exactly_once
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record as Sent
from tests.kit.kafka.kafka_records import produce, unique

pytestmark = [pytest.mark.integration, pytest.mark.extended]

ORDERS = [{"id": number, "kind": "ab"[number % 2]} for number in range(20)]


def parsed(frame: DataFrame) -> DataFrame:
    order = F.from_json(F.col("value").cast("string"), "id int, kind string")
    return frame.select(order.alias("order")).select("order.*")


def row_of(record: Record) -> dict[str, object]:
    found: dict[str, object] = json.loads(record.value or b"")
    return found


def test_every_output_of_one_job_is_compared(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    hdfs: EmbeddedHdfs,
    tmp_path: Path,
) -> None:
    source, even, odd = (topic(partitions=2) for _ in range(3))
    parquet, rows = f"{hdfs.uri}/{unique('data')}/rows", tmp_path / "rows"
    sent = [Sent(value=json.dumps(one).encode(), partition=one["id"] % 2) for one in ORDERS]  # type: ignore[operator]
    produce(kafka.bootstrap, source, sent)

    def routed(batch: pa.RecordBatch) -> pa.RecordBatch:
        names = [even if json.loads(v)["kind"] == "a" else odd for v in batch["value"].to_pylist()]
        return pa.RecordBatch.from_arrays([batch["value"], pa.array(names)], ["value", "topic"])

    job = Job("outputs", spark, checkpoint_dir=str(tmp_path / "checkpoint"), interval_s=0.2)
    orders, *copied = (
        job.source(
            KafkaSource(
                bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True, name=f"orders-{n}"
            )
        )
        for n in range(3)
    )
    orders.map_batches(routed).sink(
        KafkaSink(bootstrap_servers=kafka.bootstrap, transactional_id_prefix=even)
    )
    copied[0].transform(parsed, name="parquet").sink(
        HdfsSink(parquet, partition_by=["kind"], name="table")
    )
    copied[1].transform(parsed, name="json").sink(HdfsSink(str(rows), format="json"))
    job.run()

    def expected(record: Record) -> Record:
        return record._replace(topic=even if row_of(record)["kind"] == "a" else odd)

    for output in (even, odd):
        verdict = assert_exactly_once(source, output, expected=expected, bootstrap=kafka.bootstrap)
        assert verdict.found == 10
        assert any("10 records that the mapping sends" in note for note in verdict.notes)
    for place in (parquet, rows):
        verdict = assert_exactly_once(source, place, expected=row_of, bootstrap=kafka.bootstrap)
        assert (verdict.expected, verdict.found) == (20, 20)
    with pytest.raises(NotExactlyOnceError) as caught:
        assert_exactly_once(ORDERS[1:], parquet)
    (fault,) = caught.value.verdict.faults
    assert (fault.kind, fault.count) == ("unexpected", 1)
    (shown,) = fault.places
    assert shown.startswith(f"{parquet}/kind=a/part-")
    assert shown.endswith("""value='{"id":0,"kind":"a"}'""")
    with pytest.raises(ConfigError, match="no such file"):
        assert_exactly_once(ORDERS, f"{parquet}-absent")
