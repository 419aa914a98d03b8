"""PyFlink's DataStream API with a Python function, exactly-once: every value gains a "!".

Settings, and why. Parallelism 2, object reuse, checkpoints, transaction timeout, ``linger.ms`` and
``batch.size``: see ``FlinkSqlCopy.java``. The execution mode is PyFlink's default, ``process``: a
Python process for each subtask. The other mode, ``thread``, has all subtasks in the JVM under one
interpreter lock. Its operator did not open here, so it is not measured. Rows go to Python in
bundles that end at their default size, or with a checkpoint. The values are strings, as PyFlink's
Kafka connector reads and writes them without a format of tables.
"""

import argparse
import os
import sys
from pathlib import Path

from pyflink.common import Configuration, SimpleStringSchema, Types, WatermarkStrategy
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.connectors.base import DeliveryGuarantee
from pyflink.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)


def exclaim(value: str) -> str:
    """The function of the benchmark."""
    return value + "!"


def main() -> None:
    """Run until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "input", "output", "directory", "connector"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--interval", type=float, required=True)
    args = parser.parse_args()
    os.environ["FLINK_LOG_DIR"] = args.directory
    settings = Configuration()
    settings.set_string("python.executable", sys.executable)
    settings.set_string("python.client.executable", sys.executable)
    settings.set_string("restart-strategy.type", "none")  # a failure must be seen
    settings.set_string("execution.checkpointing.interval", f"{args.interval * 1000:.0f} ms")
    settings.set_string("execution.checkpointing.dir", (Path(args.directory) / "cp").as_uri())
    settings.set_string("pipeline.object-reuse", "true")
    settings.set_string("pipeline.jars", Path(args.connector).as_uri())
    flink = StreamExecutionEnvironment.get_execution_environment(settings)
    flink.set_parallelism(2)
    source = (
        KafkaSource.builder()
        .set_bootstrap_servers(args.bootstrap)
        .set_topics(args.input)
        .set_group_id(f"pyflink-{args.output}")
        .set_property("isolation.level", "read_committed")
        .set_starting_offsets(KafkaOffsetsInitializer.earliest())
        .set_value_only_deserializer(SimpleStringSchema())
        .build()
    )
    serializer = (
        KafkaRecordSerializationSchema.builder()
        .set_topic(args.output)
        .set_value_serialization_schema(SimpleStringSchema())
        .build()
    )
    sink = (
        KafkaSink.builder()
        .set_bootstrap_servers(args.bootstrap)
        .set_record_serializer(serializer)
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix(f"pyflink-{args.output}")
        .set_property("transaction.timeout.ms", "600000")
        .set_property("linger.ms", "20")
        .set_property("batch.size", "1000000")
        .build()
    )
    stream = flink.from_source(source, WatermarkStrategy.no_watermarks(), "source")
    stream.map(exclaim, output_type=Types.STRING()).sink_to(sink)
    flink.execute("copy")


if __name__ == "__main__":
    main()
