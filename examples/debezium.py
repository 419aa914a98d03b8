"""Turn Debezium's change events into a topic of current rows as JSON, exactly once.

The change events are JSON, or with ``--registry`` Avro. Compact the output: it has tombstones.
Needs the extra ``registry``.
"""

import argparse
import json
import sys
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from sluice import DeadLetters, Job, JsonSerializer, KafkaSink, KafkaSource, StreamError, fast_start
from sluice.registry import AvroRegistryDeserializer, SchemaRegistry

OPS = ("c", "r", "u", "d")  # created, read by a snapshot, updated, deleted


def row_of_json(value: bytes | None) -> str | None:
    """The row after a change; None: it is deleted."""
    if value is None:  # Debezium's own tombstone, after a delete
        return None
    event = json.loads(value)
    change = event.get("payload", event)  # with or without the converter's schemas
    if change["op"] not in OPS:
        raise ValueError(f"a change with op={change['op']} is of no row")
    return json.dumps(change["after"]) if change["op"] != "d" else None


def rows_of_json(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Key and current row of each change event."""
    rows = [row_of_json(value) for value in batch["value"].to_pylist()]
    return pa.RecordBatch.from_arrays([batch["key"], pa.array(rows, pa.string())], ["key", "value"])


def rows_of_avro(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same of deserialized change events."""
    op, after = (pc.struct_field(batch["value"], name) for name in ("op", "after"))
    if not pc.all(pc.is_in(op.drop_null(), pa.array(OPS))).as_py():
        raise ValueError("a change is of no row")
    places = [None if each == "d" else at for at, each in enumerate(op.to_pylist())]
    rows = pa.RecordBatch.from_arrays([after.take(pa.array(places, pa.int64()))], ["value"])
    return JsonSerializer()(rows.add_column(0, "key", batch["key"]))


def main() -> None:
    """Parse the command line and run the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True, help="host:port of the Kafka cluster")
    parser.add_argument("--registry", help="URL of the schema registry, for Avro")
    parser.add_argument("--input", required=True, help="Debezium's topic, from its beginning")
    parser.add_argument("--output", required=True, help="compacted topic to write")
    parser.add_argument("--dead", required=True, help="topic for records that are no row's change")
    parser.add_argument("--checkpoint", required=True, help="checkpoint directory (URI or path)")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds of one epoch")
    parser.add_argument("--until-end", action="store_true", help="stop at the end of the input")
    parser.add_argument("--from", dest="origin", metavar="URI", help="savepoint to start from")
    parser.add_argument("--regions", type=int, metavar="N", help="parts of the input")
    parser.add_argument("--master", default="local[2]", help="Spark master")
    args = parser.parse_args()
    builder = SparkSession.builder.master(args.master).appName("debezium")
    spark = builder.config(map=fast_start(args.master)).getOrCreate()
    job = Job(
        "debezium",
        spark,
        checkpoint_dir=args.checkpoint,
        interval_s=args.interval,
        regions=args.regions,
        restore_from=args.origin,
    )
    at, dead, make_rows = args.bootstrap, DeadLetters(topic=args.dead), rows_of_json
    given: dict[str, Any] = {"topics": [args.input], "bounded": args.until_end}
    if args.registry:
        registry, make_rows = SchemaRegistry(url=args.registry), rows_of_avro
        change = registry.latest(f"{args.input}-value")
        avro = AvroRegistryDeserializer(registry=registry, reader_schema=change)
        given |= {"value_deserializer": avro, "on_error": dead}
    source = KafkaSource(bootstrap_servers=at, **given)
    rows = job.source(source).map_batches(make_rows, on_error=dead)
    prefix = f"debezium-{args.output}"
    rows.sink(KafkaSink(bootstrap_servers=at, topic=args.output, transactional_id_prefix=prefix))
    job.run()


if __name__ == "__main__":
    try:
        main()
    except StreamError as error:  # the text has the error, its location and a remedy
        sys.exit(f"{type(error).__name__}: {error}")
