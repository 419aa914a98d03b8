"""Keyed state under fire: a number for each record of a key, made by a function with state of
every kind, or a count per key, or per window.

``WORK`` is ``number`` (the default), ``count`` or ``window``; ``BACKEND`` a state backend,
``STATE_MIB`` its budget; ``REPARTITION`` sends records through a topic of the job. ``REGIONS``,
``REGIONAL``, ``RESTLESS`` and ``TIMEOUT_S``: as in the other programs of the bed.
"""

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from sluice import (
    BoundedOutOfOrderness,
    Count,
    EventTime,
    Job,
    KafkaSink,
    KafkaSource,
    ListState,
    MapState,
    Tumbling,
    ValueState,
)
from sluice.runtime.checker.records.payload import ORIGIN_HEADER
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from tests.chaos.command_line import parsed
from tests.chaos.restless_regions import Restless

_KEPT = 3
_TICK_MS = 500
_TOLERABLE = 10_000
_TEXT = pa.schema({"key": pa.binary(), "value": pa.binary()})
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
OUTPUT = _TEXT.append(pa.field("headers", _HEADERS)).append(pa.field("partition", pa.int32()))
"""Of numbers: in the partition of their record, with a header that says which one that is."""

STATES = {
    "count": ValueState(pa.int64()),
    "last": ListState(pa.int64()),
    "parities": MapState(pa.int64(), pa.int64()),
    "ticks": ValueState(pa.int64()),
}


def number(key: bytes | None, rows: pa.RecordBatch, state: Any, timers: Any) -> pa.RecordBatch:
    """Number a key's records from 1 on; kinds of state that contradict each other end the task."""
    before = state.count.value or 0
    _require_whole(key, before, state)
    numbers = list(range(before + 1, before + 1 + rows.num_rows))
    state.count.value = numbers[-1]
    state.last.extend(numbers)
    kept = list(state.last)[-_KEPT:]
    state.last.clear()
    state.last.extend(kept)
    for parity in (0, 1):
        more = sum(number % 2 == parity for number in numbers)
        state.parities[parity] = state.parities.get(parity, 0) + more
    timers.at_time((timers.now_ms or 0) + _TICK_MS)
    values = [b"%d" % each for each in numbers]
    headers = [[(ORIGIN_HEADER, each)] for each in _origins(rows)]
    columns = [[key] * len(values), values, headers, rows.column("partition").cast(pa.int32())]
    return pa.record_batch(columns, schema=OUTPUT)


def tick(key: bytes | None, time_ms: int, state: Any, timers: Any) -> None:
    """A timer comes after the record that set it, and in order."""
    del timers
    if time_ms <= (state.ticks.value or 0) or not state.count.value:
        raise AssertionError(f"a timer of {key!r} fires twice, or out of order: {time_ms}")
    state.ticks.value = time_ms


def _require_whole(key: bytes | None, count: int, state: Any) -> None:
    last = list(state.last)
    due = list(range(max(1, count - _KEPT + 1), count + 1))
    parities = sum(state.parities.get(parity, 0) for parity in (0, 1))
    if last != due or parities != count:
        raise AssertionError(f"the states of {key!r} are of different epochs: {count} {last}")


def _origins(rows: pa.RecordBatch) -> Iterator[bytes]:
    """Which record of the load each row is: its header says it, or else its value."""
    columns = rows.column("value").to_pylist(), rows.column("headers").to_pylist()
    for value, headers in zip(*columns, strict=True):
        named = [header["value"] for header in headers or () if header["key"] == ORIGIN_HEADER]
        yield named[0] if named else (value or b"").partition(b"|")[0]


def text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Counts as decimal text; of a window, the key begins with its start."""
    keys, counts = batch.column("key").to_pylist(), batch.column("count").to_pylist()
    if "window_start" in batch.schema.names:
        starts = batch.column("window_start").cast(pa.int64()).to_pylist()
        keys = [b"%d|%s" % (start, key) for start, key in zip(starts, keys, strict=True)]
    return pa.record_batch([keys, [b"%d" % count for count in counts]], schema=_TEXT)


def numbered(stream: Any) -> Any:
    """The stream's records, each with its number among those of its key."""
    keyed = stream.key_by("key", partitioned=True)
    return keyed.process(number, state=STATES, on_timer=tick, output=OUTPUT)


def _worked(stream: Any) -> Any:
    keyed = stream.key_by("key", partitioned="REPARTITION" not in os.environ)
    match os.environ.get("WORK", "number"):
        case "count":
            return keyed.aggregate(count=Count()).map_batches(text)
        case "window":
            windows = keyed.window(Tumbling("1 s"), on="event_time")
            return windows.aggregate(count=Count()).map_batches(text)
        case _:
            return keyed.process(number, state=STATES, on_timer=tick, output=OUTPUT)


def _settings() -> Iterator[tuple[str, Any]]:
    yield "regions", int(os.environ.get("REGIONS", "1"))
    yield "timeout_s", float(os.environ.get("TIMEOUT_S", "600"))
    yield "state_backend", os.environ.get("BACKEND", "memory")
    yield "state_memory_mib", int(os.environ.get("STATE_MIB", "64"))
    if "REGIONAL" in os.environ:
        yield "checkpoint_handler", RegionalCheckpointHandler(max_failed_ratio=0.75)
        yield "tolerable_failures", _TOLERABLE
    if "RESTLESS" in os.environ:
        yield "load_balancer", Restless()


def main() -> None:
    """Parse the command line of the examples and run the job."""
    args = parsed(__doc__)
    spark = SparkSession.builder.master(args.master).appName("mortal keyed").getOrCreate()
    job = Job(
        "mortal-keyed",
        spark,
        checkpoint_dir=args.checkpoint,
        interval_s=args.interval,
        engine=args.engine,
        **dict(_settings()),
    )
    source = KafkaSource(
        bootstrap_servers=args.bootstrap,
        topics=[args.input],
        bounded=args.until_end,
        name="in",
        time=EventTime("kafka", strategy=BoundedOutOfOrderness("1 s")),
    )
    sink = KafkaSink(
        bootstrap_servers=args.bootstrap,
        topic=args.output,
        transactional_id_prefix=f"mortal-keyed-{args.output}",
    )
    _worked(job.source(source)).sink(sink)
    job.run()


if __name__ == "__main__":
    main()
