"""PyFlink's DataStream API with a `KeyedProcessFunction`, exactly-once: each tenth record of a key.

The key is the last digits of a record's number. A function keeps a count per key as `ValueState`,
and writes key and count as one text whenever the count and the key's last digit make a multiple
of 10: so outputs come all along, and not only when all keys reach ten.

Settings, and why. The state backend is that of the run; RocksDB has incremental checkpoints. The
cache of state in Python holds all keys: by default it holds 1,000, and each other key costs a round
trip to the JVM.
Parallelism 2, object reuse, checkpoints, transaction timeout, ``linger.ms`` and ``batch.size``: see
``FlinkSqlCopy.java``. The execution mode and the strings: see ``pyflink_copy.py``. Key and count
are one text, because the connector's string schema writes values without a key.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from pyflink.common import Configuration, SimpleStringSchema, Types, WatermarkStrategy
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.connectors.base import DeliveryGuarantee
from pyflink.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from pyflink.datastream.state import ValueStateDescriptor


class EachTenth(KeyedProcessFunction):  # type: ignore[misc]  # untyped
    """The function of the benchmark."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Declare the state."""
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> Iterator[str]:
        """Count a record."""
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        key = ctx.get_current_key()
        if (count + int(key[-1])) % 10 == 0:
            yield f"{key} {count}"


def main() -> None:
    """Run until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "input", "output", "directory", "connector"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--interval", type=float, required=True)
    parser.add_argument("--digits", type=int, required=True)
    parser.add_argument("--backend", choices=["hashmap", "rocksdb"], required=True)
    args = parser.parse_args()
    os.environ["FLINK_LOG_DIR"] = args.directory
    settings = Configuration()
    settings.set_string("python.executable", sys.executable)
    settings.set_string("python.client.executable", sys.executable)
    settings.set_string("restart-strategy.type", "none")  # a failure must be seen
    settings.set_string("execution.checkpointing.interval", f"{args.interval * 1000:.0f} ms")
    settings.set_string("execution.checkpointing.dir", (Path(args.directory) / "cp").as_uri())
    settings.set_string("pipeline.object-reuse", "true")
    settings.set_string("state.backend.type", args.backend)
    settings.set_string("execution.checkpointing.incremental", "true")  # of rocksdb only
    settings.set_string("python.state.cache-size", str(10**args.digits))
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
    keyed = stream.key_by(lambda value: value[16 - args.digits : 16], key_type=Types.STRING())
    keyed.process(EachTenth(), output_type=Types.STRING()).sink_to(sink)
    flink.execute("process")


if __name__ == "__main__":
    main()
