"""What a region's writers know of their rows before the first one."""

import pyarrow as pa
from pyspark.sql import SparkSession

from sluice import HdfsSink, KafkaSink, KafkaSource
from sluice.connectors.hdfs.writing.upload_writer import UploadWriterFactory
from sluice.connectors.kafka.sink.writer.kafka_writer import KafkaWriterFactory
from sluice.runtime.graph.pipeline import Pipeline, Step
from sluice.runtime.spark.frames.region_frames import writer_factories


def valued(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"key": batch["key"], "n": pa.nulls(batch.num_rows, pa.int32())})


def test_writers_of_files_get_the_types_that_functions_declare(spark: SparkSession) -> None:
    """Files of all epochs then have one schema; a Kafka sink takes each batch as it is."""
    del spark  # Spark reads the source's types
    source = KafkaSource(bootstrap_servers="broker:9092", topics=["in"])
    step = Step(kind="map_batches", name="f", uid=None, function=valued)
    files = HdfsSink("s3://bucket/lake/orders", columns=["n"])
    kafka = KafkaSink(bootstrap_servers="broker:9092", topic="out", transactional_id_prefix="p")
    pipeline = Pipeline(source, steps=[step], sinks=[files, kafka])
    made = writer_factories(pipeline, {"files": files, "kafka": kafka})
    assert isinstance(made["kafka"], KafkaWriterFactory)
    assert isinstance(made["files"], UploadWriterFactory)
    assert made["files"].rows == pa.schema({"n": pa.int32()})
