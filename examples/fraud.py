"""Report each payment of over 500 that follows one of under 1 of the same account within a minute.

Values are amounts as decimal text, keys are accounts, times are Kafka's. The state of an account is
the time of its last small payment; a timer forgets it.
"""

import argparse
import sys
from types import SimpleNamespace

import pyarrow as pa
from pyspark.sql import SparkSession

import sluice
from sluice import EventTime, KafkaSink, KafkaSource, ValueState, fast_start

MINUTE_MS = 60_000
ALERT = pa.schema([("key", pa.binary()), ("value", pa.binary())])


def suspicious(
    account: bytes, payments: pa.RecordBatch, state: SimpleNamespace, timers: sluice.Timers
) -> list[dict[str, bytes]]:
    """The alerts for the payments of one account, in their order."""
    alerts = []
    times = payments["event_time"].cast(pa.int64()).to_pylist()
    for at_ms, value in zip(times, payments["value"].to_pylist(), strict=True):
        amount, small_ms = float(value), state.small_ms.value
        if small_ms is not None and amount > 500 and at_ms - small_ms <= MINUTE_MS:
            alerts.append({"key": account, "value": value})
        if small_ms is not None:
            timers.delete_event_time(small_ms + MINUTE_MS + 1)
            state.small_ms.clear()
        if amount < 1:
            state.small_ms.value = at_ms
            timers.at_event_time(at_ms + MINUTE_MS + 1)
    return alerts


def forget(account: bytes, time_ms: int, state: SimpleNamespace, timers: sluice.Timers) -> None:
    """A minute has passed without another payment."""
    state.small_ms.clear()


def main() -> None:
    """Parse the command line and run the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True, help="host:port of the Kafka cluster")
    parser.add_argument("--input", required=True, help="topic to read, from its beginning")
    parser.add_argument("--output", required=True, help="topic to write")
    parser.add_argument("--checkpoint", required=True, help="checkpoint directory (URI or path)")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds of one epoch")
    parser.add_argument("--until-end", action="store_true", help="stop at the end of the input")
    parser.add_argument("--master", default="local[2]", help="Spark master")
    args = parser.parse_args()
    builder = SparkSession.builder.master(args.master).appName("fraud")
    spark = builder.config(map=fast_start(args.master)).getOrCreate()
    job = sluice.Job("fraud", spark, checkpoint_dir=args.checkpoint, interval_s=args.interval)
    topics, time = [args.input], EventTime("kafka")
    source = KafkaSource(
        bootstrap_servers=args.bootstrap, topics=topics, time=time, bounded=args.until_end
    )
    prefix = f"fraud-{args.output}"
    sink = KafkaSink(
        bootstrap_servers=args.bootstrap, topic=args.output, transactional_id_prefix=prefix
    )
    accounts = job.source(source).key_by("key", partitioned=True)
    state = {"small_ms": ValueState(pa.int64())}
    accounts.process(suspicious, on_timer=forget, state=state, output=ALERT).sink(sink)
    job.run()


if __name__ == "__main__":
    try:
        main()
    except sluice.StreamError as error:  # the text has the error, its location and a remedy
        sys.exit(f"{type(error).__name__}: {error}")
