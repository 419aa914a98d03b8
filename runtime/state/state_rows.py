"""Rows of state files: the changes of an epoch in the order of files, and sorted streams as one.

Rows are in order of table, time and key, each of them once in a stream. A value that is null
removes. The order lets a merge and a restore read any amount with little memory.
"""

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.runtime.state.backend import TableChanges
from sluice.runtime.state.codec.expiry import ExpiryTimes, expired_rows
from sluice.runtime.state.entries import Value

__all__ = ["ROW_SCHEMA", "changed_rows", "merged_rows", "slices"]

ROW_SCHEMA = pa.schema(
    [
        pa.field("table", pa.int32(), nullable=False),
        pa.field("time", pa.int64()),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary()),
    ]
)
"""``time`` is null in tables without times."""

_MOST_ROWS = 1 << 14
_MOST_BYTES = 1 << 20  # a merge has a batch of each part in memory
_MOST_SORTED_BYTES = 1 << 30
_ORDER = [(name, "ascending") for name in ("table", "time", "key")]

_Place = tuple[int, int, bytes]


def changed_rows(changes: TableChanges) -> Iterator[pa.RecordBatch]:
    """An epoch's changes of one split as sorted rows. Little of it needs the interpreter."""
    for number in sorted({*changes.plain, *changes.timed}):
        rows = changes.plain.get(number)
        if rows:
            yield from _rows_of(number, list(rows), list(rows.values()), None)
        by_time = changes.timed.get(number)
        if by_time:
            keys = [key for rows in by_time.values() for key in rows]
            values = [value for rows in by_time.values() for value in rows.values()]
            times = np.repeat(list(by_time), [len(rows) for rows in by_time.values()])
            yield from _rows_of(number, keys, values, times)


def merged_rows(
    streams: Sequence[Iterator[pa.RecordBatch]], *, drops: ExpiryTimes | None = None
) -> Iterator[pa.RecordBatch]:
    """Sorted streams as one; of equal places, the row of the latest stream counts.

    Args:
        streams: oldest first.
        drops: nothing is older than the first stream, so leave out removals and expired entries.
    """
    heads = [head for stream in streams if (head := _Head.of(stream)) is not None]
    while heads:
        bound = min(head.last for head in heads)
        taken = [batch for head in heads if (batch := head.take(bound)).num_rows]
        heads = [head for head in heads if head.has_more()]
        rows = _last_of_each(taken)
        if drops is not None:
            rows = rows.filter(pa.array(_kept(rows, drops)))
        if rows.num_rows:
            yield rows


def slices(
    rows: pa.RecordBatch,
) -> Iterator[tuple[int, list[int] | None, list[bytes], list[Value]]]:
    """A batch cut by table: its number, times (None: it has none), keys and values."""
    tables = rows["table"].to_numpy()
    cuts = [0, *(np.flatnonzero(np.diff(tables)) + 1).tolist(), len(tables)]
    for start, end in itertools.pairwise(cuts):
        if start == end:
            return
        part = rows.slice(start, end - start)
        times = part["time"]
        yield (
            int(tables[start]),
            None if times.null_count else times.to_numpy().tolist(),
            _as_bytes(part["key"]),
            _as_values(part["value"]),
        )


@dataclass(slots=True)
class _Head:
    """The batch of a stream that is being taken."""

    stream: Iterator[pa.RecordBatch]
    batch: pa.RecordBatch
    start: int = 0

    @staticmethod
    def of(stream: Iterator[pa.RecordBatch]) -> "_Head | None":
        head = _Head(stream, _NO_ROWS)
        return head if head.has_more() else None

    @property
    def last(self) -> _Place:
        return self._place(self.batch.num_rows - 1)

    def take(self, bound: _Place) -> pa.RecordBatch:
        """The rows up to ``bound``."""
        rows = range(self.batch.num_rows)
        end = bisect_right(rows, bound, lo=self.start, key=self._place)
        taken = self.batch.slice(self.start, end - self.start)
        self.start = end
        return taken

    def has_more(self) -> bool:
        """Whether there is a row; reads the next batch if this one is used up."""
        while self.start >= self.batch.num_rows:
            following = next(self.stream, None)
            if following is None:
                return False
            self.batch, self.start = following, 0
        return True

    def _place(self, row: int) -> _Place:
        table, time, key, _ = self.batch.columns
        time_ms = time[row].as_py()
        return table[row].as_py(), _NULLS_LAST if time_ms is None else time_ms, key[row].as_py()


_NULLS_LAST = 1 << 63  # as Arrow sorts them; a table has no times or only times
_NO_ROWS = pa.RecordBatch.from_pylist([], schema=ROW_SCHEMA)


def _last_of_each(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    rows = pa.concat_batches(batches)
    # The sort is stable: of equal places, the row of the latest stream comes last.
    rows = rows.take(pc.sort_indices(rows, sort_keys=_ORDER))
    is_last = np.ones(rows.num_rows, bool)
    is_last[:-1] = _differs(rows)
    return rows if is_last.all() else rows.filter(pa.array(is_last))


def _differs(rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Whether each row has another place than the next one."""
    differs: npt.NDArray[np.bool_] = np.zeros(rows.num_rows - 1, bool)
    for column in (rows["table"], rows["time"].fill_null(0), rows["key"]):
        differs |= pc.not_equal(column[:-1], column[1:]).to_numpy(zero_copy_only=False)
    return differs


def _kept(rows: pa.RecordBatch, expired_by: ExpiryTimes) -> npt.NDArray[np.bool_]:
    values = rows["value"]
    expired = expired_rows(rows["table"].to_numpy(), values, expired_by)
    kept: npt.NDArray[np.bool_] = values.is_valid().to_numpy(zero_copy_only=False) & ~expired
    return kept


def _rows_of(
    number: int, keys: list[bytes], values: list[Value], times: npt.NDArray[np.int64] | None
) -> Iterator[pa.RecordBatch]:
    """The rows of one table in order; a lot of them by a merge, for an array holds 2 GiB."""
    of_row = max(map(len, keys)) + max((len(v) for v in values if v is not None), default=0)
    step = max(1, _MOST_SORTED_BYTES // max(1, of_row))
    runs = [
        _sliced(_sorted_run(number, keys[at : at + step], values[at : at + step], times_of))
        for at in range(0, len(keys), step)
        for times_of in [None if times is None else times[at : at + step]]
    ]
    return runs[0] if len(runs) == 1 else merged_rows(runs)


def _sorted_run(
    number: int, keys: list[bytes], values: list[Value], times: npt.NDArray[np.int64] | None
) -> pa.RecordBatch:
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array(np.full(len(keys), number, np.int32)),
            pa.nulls(len(keys), pa.int64()) if times is None else pa.array(times, pa.int64()),
            _binaries(keys),
            _binaries(values),
        ],
        schema=ROW_SCHEMA,
    )
    order = _ORDER[2:] if times is None else _ORDER[1:]
    return rows.take(pc.sort_indices(rows, sort_keys=order))


def _binaries(values: Sequence[Value]) -> pa.BinaryArray:
    """In pieces: between them, other threads have their turn."""
    pieces = range(0, len(values), _MOST_ROWS)
    return pa.concat_arrays([pa.array(values[at : at + _MOST_ROWS], pa.binary()) for at in pieces])


def _sliced(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    of_row = max(1, rows.nbytes // max(1, rows.num_rows))
    step = max(1, min(_MOST_ROWS, _MOST_BYTES // of_row))
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)


def _as_bytes(values: pa.BinaryArray) -> list[bytes]:
    if not len(values):
        return []
    offsets = np.frombuffer(values.buffers()[1], np.int32)
    offsets = offsets[values.offset : values.offset + len(values) + 1]
    first = int(offsets[0])
    data = (values.buffers()[2] or pa.py_buffer(b"")).slice(first, int(offsets[-1]) - first)
    text, ends = data.to_pybytes(), (offsets - first).tolist()
    return [text[a:b] for a, b in itertools.pairwise(ends)]


def _as_values(values: pa.BinaryArray) -> list[Value]:
    found: list[Value] = list(_as_bytes(values))
    for at in np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)).tolist():
        found[at] = None
    return found
