"""Count records per key and window of event time; each window comes out once, when it closes.

Values are JSON with a time: {"at": "2026-01-01T12:00:30Z"}. Records whose windows are closed, and
records without such a time, go to the topic ``--late``.
"""

import argparse
import json
import sys
from datetime import datetime

import pyarrow as pa
from pyspark.sql import SparkSession

import sluice
from sluice import KafkaSink, KafkaSource, fast_start


def time_of(value: bytes | None) -> datetime | None:
    """The time in a record; None: it has none."""
    try:
        return datetime.fromisoformat(json.loads(value or b"")["at"])
    except (ValueError, LookupError, TypeError):
        return None


def times_of(records: pa.RecordBatch) -> pa.Array:
    """The event time of each record."""
    times = [time_of(value) for value in records["value"].to_pylist()]
    return pa.array(times, pa.timestamp("ms", "UTC"))


def as_json(windows: pa.RecordBatch) -> pa.RecordBatch:
    """Kafka records of the windows."""
    values = [
        json.dumps({"start": row["window_start"].isoformat(), "count": row["count"]}).encode()
        for row in windows.to_pylist()
    ]
    return pa.RecordBatch.from_pydict({"key": windows["key"], "value": values})


def main() -> None:
    """Parse the command line and run the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True, help="host:port of the Kafka cluster")
    parser.add_argument("--input", required=True, help="topic to read, from its beginning")
    parser.add_argument("--output", required=True, help="topic to write")
    parser.add_argument("--late", help="topic of late records; without it they are only counted")
    parser.add_argument("--checkpoint", required=True, help="checkpoint directory (URI or path)")
    parser.add_argument("--size", default="1 minute", help="of a window")
    parser.add_argument("--delay", default="10 s", help="how much records may be out of order")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds of one epoch")
    parser.add_argument("--until-end", action="store_true", help="stop at the end of the input")
    parser.add_argument("--master", default="local[2]", help="Spark master")
    args = parser.parse_args()
    builder = SparkSession.builder.master(args.master).appName("windows")
    spark = builder.config(map=fast_start(args.master)).getOrCreate()
    job = sluice.Job("windows", spark, checkpoint_dir=args.checkpoint, interval_s=args.interval)
    disorder = sluice.BoundedOutOfOrderness(args.delay)
    time = sluice.EventTime(times_of, strategy=disorder, max_future="1 hour")
    source = KafkaSource(
        bootstrap_servers=args.bootstrap, topics=[args.input], time=time, bounded=args.until_end
    )
    prefix = f"windows-{args.output}"
    sink = KafkaSink(
        bootstrap_servers=args.bootstrap, topic=args.output, transactional_id_prefix=prefix
    )
    keyed = job.source(source).key_by("key", partitioned=True)
    windows = keyed.window(sluice.Tumbling(args.size), on="event_time", late_topic=args.late)
    windows.aggregate(count=sluice.Count()).map_batches(as_json).sink(sink)
    job.run()


if __name__ == "__main__":
    try:
        main()
    except sluice.StreamError as error:  # the text has the error, its location and a remedy
        sys.exit(f"{type(error).__name__}: {error}")
