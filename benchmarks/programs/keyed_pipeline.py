"""The keyed pipelines under measurement; records as of `benchmarks.peers.records`.

The key is the last ``--digits`` digits of a record's number. ``--work`` says what happens to a key:
``count`` writes changed counts, ``process`` calls a function that writes each tenth record of a
key, ``windows`` counts per ten seconds of event time, ``keep`` keeps the last value of each key and
writes the keys, ``copy`` keeps nothing.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from benchmarks.programs.pipeline import ProgressFile, exclaim
from sluice import (
    BoundedOutOfOrderness,
    Count,
    EventTime,
    Job,
    KafkaSink,
    KafkaSource,
    Last,
    Tumbling,
    ValueState,
    fast_start,
)

_KEY_END = 16
_TIME = slice(17, 33)
_OUTPUT = pa.schema({"value": pa.binary()})


def times(batch: pa.RecordBatch) -> pa.Array:
    """The event time of each record, which its third field has in microseconds."""
    text = pc.binary_slice(batch.column("value"), _TIME.start, _TIME.stop)
    return pc.cast(pc.cast(text, pa.string()), pa.int64()).cast(pa.timestamp("us", "UTC"))


class Keys:
    """A function that keeps of each record its key, and what else is asked for."""

    def __init__(self, digits: int, *columns: str) -> None:
        self._digits = digits
        self._columns = columns

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Apply it."""
        value = batch.column("value")
        columns = {"key": pc.binary_slice(value, _KEY_END - self._digits, _KEY_END)}
        if "event_time" in self._columns:
            columns["event_time"] = times(batch)
        if "value" in self._columns:
            columns["value"] = value
        return pa.record_batch(columns)


def each_tenth(key: Any, rows: pa.RecordBatch, state: Any, timers: Any) -> pa.RecordBatch | None:  # noqa: ANN401 - a user's function
    """Count a key's records, and write each tenth one, see `judge_tenths`."""
    del timers
    phase = key[-1] - ord("0")
    before = state.count.value or 0
    state.count.value = after = before + rows.num_rows
    due = range((before + phase) // 10 + 1, (after + phase) // 10 + 1)
    if not due:
        return None
    values = [b"%s %d" % (key, 10 * times - phase) for times in due]
    return pa.record_batch({"value": pa.array(values, pa.binary())}, schema=_OUTPUT)


def _text(column: pa.Array) -> pa.Array:
    return pc.cast(pc.cast(column, pa.string()), pa.binary())


def counted(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Key and count."""
    return pa.record_batch({"key": batch.column("key"), "value": _text(batch.column("count"))})


def of_windows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same; the key begins with its window."""
    window = _text(pc.cast(batch.column("window_start"), pa.int64()))
    key = pc.binary_join_element_wise(window, batch.column("key"), pa.scalar(b"|", pa.binary()))
    return pa.record_batch({"key": key, "value": _text(batch.column("count"))})


def kept(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The key, and how long its value is."""
    length = pc.binary_length(batch.column("last"))
    return pa.record_batch({"key": batch.column("key"), "value": _text(length)})


def _worked(stream: Any, args: argparse.Namespace) -> Any:  # noqa: ANN401 - a stream of any kind
    if args.work == "copy":
        return stream.map_batches(exclaim)
    columns = {"windows": ["event_time"], "keep": ["value"]}.get(args.work, [])
    keyed = stream.map_batches(Keys(args.digits, *columns)).key_by(
        "key", **({} if args.repartition else {"partitioned": True})
    )
    if args.work == "count":
        return keyed.aggregate(count=Count()).map_batches(counted)
    if args.work == "keep":
        return keyed.aggregate(last=Last("value")).map_batches(kept)
    if args.work == "windows":
        windows = keyed.window(Tumbling("10 s"), on="event_time")
        return windows.aggregate(count=Count()).map_batches(of_windows)
    return keyed.process(each_tenth, state={"count": ValueState(pa.int64())}, output=_OUTPUT)


def _arguments() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in ("bootstrap", "input", "output", "checkpoint", "progress"):
        yield f"--{name}", {"required": True}
    yield "--interval", {"type": float, "default": 1.0}
    yield "--work", {"choices": ["count", "process", "windows", "keep", "copy"], "required": True}
    yield "--digits", {"type": int, "default": 4}
    yield "--backend", {"choices": ["memory", "rocksdb"], "default": "memory"}
    yield "--memory-mib", {"type": int, "default": 1024, "help": "of a task's state"}
    yield "--repartition", {"action": "store_true", "help": "through a topic of the job"}
    yield "--regions", {"type": int, "default": 2}
    yield "--tasks", {"type": int, "default": 2, "help": "that run at the same time"}
    yield "--until-end", {"action": "store_true", "help": "stop at the end of the input"}


def main() -> None:
    """Run until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, options in _arguments():
        parser.add_argument(name, **options)
    args = parser.parse_args()
    master = f"local[{args.tasks}]"
    spark = (
        SparkSession.builder.master(master)
        .appName("keyed")
        .config(map=fast_start(master))
        .getOrCreate()
    )
    job = Job(
        "keyed",
        spark,
        checkpoint_dir=args.checkpoint,
        interval_s=args.interval,
        listeners=[ProgressFile(Path(args.progress))],
        regions=args.regions,
        engine="continuous",
        state_backend=args.backend,
        state_memory_mib=args.memory_mib,
    )
    time = EventTime(times, strategy=BoundedOutOfOrderness("5 s"))
    source = KafkaSource(
        bootstrap_servers=args.bootstrap,
        topics=[args.input],
        columns=["value", "topic", "partition", *(["offset"] if args.work == "windows" else [])],
        include_headers=False,
        bounded=args.until_end,
        time=time if args.work == "windows" else None,
    )
    sink = KafkaSink(
        bootstrap_servers=args.bootstrap,
        topic=args.output,
        transactional_id_prefix=f"keyed-{args.output}",
    )
    _worked(job.source(source), args).sink(sink)
    job.run()


if __name__ == "__main__":
    main()
