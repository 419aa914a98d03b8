"""The base of all windows: their state, when they come out, and when they are forgotten."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.runtime.contracts.keyed import (
    BarrierTime,
    Due,
    KeyedRows,
    OperatorScope,
    TableSpec,
)
from sluice.runtime.keyed.aggregates.accumulators import Accumulators, columns_of
from sluice.runtime.keyed.declarations import Aggregate, Window
from sluice.runtime.keyed.operators.aggregate import RowBuffer, output_of
from sluice.runtime.keyed.operators.event_times import LateRows, selected, times_of
from sluice.runtime.keyed.operators.operator_memory import OperatorMemory, present
from sluice.runtime.state.codec.row_codec import RowCodec

__all__ = ["CLOSING", "WINDOWS", "Longs", "WindowOperator", "WindowSettings"]

WINDOWS = TableSpec(name="windows", kind="window", is_timed=True)
"""(end, key) -> start and accumulators of each open window."""
CLOSING = TableSpec(name="closing", kind="timers", is_timed=True)
"""(end, key) of windows that come out at their end, if they are kept for longer than that."""
_FOREVER = (1 << 62) - 1
_MARKED = "windows have marks"
_MOST_ROWS = 100_000  # of a batch of output
Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSettings:
    """Picklable.

    Attributes:
        window, aggregates: as declared.
        on: column of event time.
        lateness_ms: a closed window still takes rows for so long; >= 0.
        late_topic: for late rows; None: they are only counted.
        updates: changed windows come out at each barrier; else a window comes out when it closes.
    """

    window: Window
    aggregates: Mapping[str, Aggregate]
    on: str
    lateness_ms: int = 0
    late_topic: str | None = None
    updates: bool = False


class WindowOperator:
    """Base of the operators of windows. Executor, the task's thread.

    A subclass folds rows into windows, and writes them with `_write`.
    """

    def __init__(self, settings: WindowSettings, scope: OperatorScope) -> None:
        self._settings = settings
        self._tables = scope.tables
        self._windows = scope.tables.timed_table(scope.numbers[WINDOWS.name])
        self._closing = scope.tables.timed_table(scope.numbers[CLOSING.name])
        self._memory = OperatorMemory(scope)
        self._late = LateRows(scope, topic=settings.late_topic)
        self._columns = columns_of(settings.aggregates)
        self._buffer = RowBuffer(tuple(dict.fromkeys((settings.on, *self._columns))))
        self._has_marks = not settings.updates and settings.lateness_ms > 0
        self._types: tuple[pa.Schema, pa.Schema] | None = None
        self._ready: set[int] = set()  # splits whose marks are as these settings need them

    def apply(self, rows: KeyedRows) -> Iterator[KeyedRows]:
        """See `KeyedOperator`."""
        times = times_of(rows.batch, self._settings.on)
        late = times.is_null().to_numpy(zero_copy_only=False)
        values: Longs = times.fill_null(0).to_numpy()
        for split in present(rows.splits):
            watermark = self._memory.watermark_ms(split)
            if watermark is not None:
                passed = watermark - self._settings.lateness_ms
                mine = (rows.splits == split) & ~late
                late[mine] |= self._is_late(split, rows, mine, values, passed)
        self._late.note(rows.batch, late)
        if late.any():
            rows = selected(rows, np.flatnonzero(~late))
        if not self._buffer.add(rows):
            self._fold_waiting()
            self._buffer.add(rows)
        if self._buffer.rows >= RowBuffer.LARGEST:
            self._fold_waiting()
        yield from ()

    def at_barrier(self, time: BarrierTime) -> Iterator[KeyedRows]:
        """See `KeyedOperator`."""
        for split in set(self._tables.splits()) - self._ready:
            self._set_marks(split)
        self._fold_waiting()
        yield from self._changed()
        now = _FOREVER if time.is_end else time.watermark_ms
        if now is not None:
            for split in self._tables.splits():
                yield from self._close(split, now)
        self._memory.end_epoch(time)

    def rollback(self) -> None:
        """See `KeyedOperator`."""
        self._buffer.clear()
        self._memory.rollback()
        self._types = None
        self._ready.clear()

    def due(self) -> Due:
        """See `KeyedOperator`."""
        if self._settings.updates:
            return Due()
        table = self._closing if self._has_marks else self._windows
        ends = (table.earliest_ms(split) for split in self._tables.splits())
        return Due(event_ms=min((end for end in ends if end is not None), default=None))

    def _is_late(
        self,
        split: int,
        rows: KeyedRows,
        mine: npt.NDArray[np.bool_],
        times: Longs,
        passed_ms: int,
    ) -> npt.NDArray[np.bool_]:
        """Which of the rows ``mine`` belong to no window that ends after ``passed_ms``."""
        raise NotImplementedError

    def _fold(self, rows: KeyedRows, times: Longs) -> None:
        """Fold rows into windows."""
        raise NotImplementedError

    def _changed(self) -> Iterator[KeyedRows]:
        """Write the epoch's windows; yields those that come out because they have changed."""
        raise NotImplementedError

    def _forget(
        self, split: int, ends: Sequence[int], keys: Sequence[bytes], starts: Longs
    ) -> None:
        """Windows have left the state."""

    def _fold_waiting(self) -> None:
        rows = self._buffer.take()
        if rows is None or not rows.batch.num_rows:
            return
        types = rows.key_schema, rows.batch.select(self._columns).schema
        self._types = types
        _, codec = self._accumulators(0)
        self._memory.keep_schemas(present(rows.splits), *types, codec.schema)
        self._fold(rows, times_of(rows.batch, self._settings.on).to_numpy())

    def _schemas(self) -> tuple[pa.Schema, pa.Schema]:
        """The schemas of the key, and of the columns of rows that are aggregated."""
        if self._types is None:
            key, rows, *_ = self._memory.schemas() or (pa.schema([]), pa.schema([]))
            self._types = key, rows
        return self._types

    def _accumulators(self, groups: int) -> tuple[Accumulators, RowCodec]:
        made = Accumulators(self._settings.aggregates, self._schemas()[1])
        made.resize(groups)
        start = pa.field("window_start", pa.int64())
        return made, RowCodec(pa.schema([start, *made.schema]))

    def _write(
        self, split: int, ends: list[int], keys: list[bytes], starts: Longs, total: Accumulators
    ) -> None:
        """Write changed windows."""
        _, codec = self._accumulators(0)
        columns = [pa.array(starts), *total.state().columns]
        values = codec.encode(pa.RecordBatch.from_arrays(columns, schema=codec.schema))
        self._windows.put(split, ends, keys, values)
        if self._has_marks:
            self._closing.put(split, ends, keys, [b""] * len(keys))

    def _read(self, codec: RowCodec, values: Sequence[bytes]) -> tuple[Longs, pa.RecordBatch]:
        """Starts and accumulators of windows."""
        found = codec.decode(values)
        starts: Longs = found.column(0).to_numpy()
        names = found.schema.names[1:]
        return starts, found.select(names)

    def _close(self, split: int, now_ms: int) -> Iterator[KeyedRows]:
        """Windows come out that end at ``now_ms`` or before; those that take no more rows leave."""
        if self._has_marks:
            for ends, keys, _ in _chunks(self._closing.due(split, now_ms)):
                stored = self._windows.get(split, ends, keys)
                yield self._closed(split, ends, keys, [v for v in stored if v is not None])
                self._closing.put(split, ends, keys, [None] * len(keys))
        is_output = not self._has_marks and not self._settings.updates
        for ends, keys, values in _chunks(
            self._windows.due(split, now_ms - self._settings.lateness_ms)
        ):
            if is_output:
                yield self._closed(split, ends, keys, values)
            self._drop(split, ends, keys, values)

    def _set_marks(self, split: int) -> None:
        """The state may be of a run without marks, or with them: its program had other settings."""
        self._ready.add(split)
        if not self._memory.replace_flag(split, _MARKED, value=self._has_marks):
            return
        watermark = self._memory.watermark_ms(split)
        passed = -_FOREVER if watermark is None else watermark
        if self._has_marks:
            for ends, keys, _ in list(_chunks(self._windows.due(split, _FOREVER))):
                is_open = [end > passed for end in ends]
                self._closing.put(
                    split,
                    list(compress(ends, is_open)),
                    list(compress(keys, is_open)),
                    [b""] * sum(is_open),
                )
            return
        for ends, keys, _ in list(_chunks(self._closing.due(split, _FOREVER))):
            self._closing.put(split, ends, keys, [None] * len(keys))
        if not self._settings.updates:  # those that have come out
            for ends, keys, values in list(_chunks(self._windows.due(split, passed))):
                self._drop(split, ends, keys, values)

    def _drop(
        self, split: int, ends: list[int], keys: list[bytes], values: Sequence[bytes]
    ) -> None:
        self._windows.put(split, ends, keys, [None] * len(keys))
        starts, _ = self._read(self._accumulators(0)[1], values)
        self._forget(split, ends, keys, starts)

    def _closed(
        self, split: int, ends: list[int], keys: list[bytes], values: Sequence[bytes]
    ) -> KeyedRows:
        total, codec = self._accumulators(len(keys))
        starts, state = self._read(codec, values)
        total.combine(np.arange(len(keys)), state)
        return self._output(split, ends, keys, starts, total)

    def _output(
        self, split: int, ends: list[int], keys: list[bytes], starts: Longs, total: Accumulators
    ) -> KeyedRows:
        bounds = {
            "window_start": pa.array(starts).cast(pa.timestamp("ms", "UTC")),
            "window_end": pa.array(ends, pa.int64()).cast(pa.timestamp("ms", "UTC")),
        }
        return output_of(split, keys, self._schemas()[0], bounds, total.results())


def _chunks(
    due: Iterator[tuple[int, list[tuple[bytes, bytes]]]],
) -> Iterator[tuple[list[int], list[bytes], list[bytes]]]:
    """Entries of a timed table in order, as times, keys and values of many."""
    times: list[int] = []
    entries: list[tuple[bytes, bytes]] = []
    for time_ms, found in due:
        times += [time_ms] * len(found)
        entries += found
        if len(times) >= _MOST_ROWS:
            yield times, [key for key, _ in entries], [value for _, value in entries]
            times, entries = [], []
    if times:
        yield times, [key for key, _ in entries], [value for _, value in entries]
