"""Joins rows of two sides that have the same key and times that are close.

Rows wait for the other side in buckets of time: (start of the bucket, key) -> rows. So a row's
partners are in a few known buckets, and a bucket leaves as a whole.

A row before the watermark is late, as in Flink's interval join. A row that waits is forgotten once
only late rows would be its partners. So no row that is accepted has lost a partner.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.runtime.contracts.keyed import (
    BarrierTime,
    Due,
    KeyedOperator,
    KeyedRows,
    OperatorScope,
    TableSpec,
)
from sluice.runtime.errors import ConfigError
from sluice.runtime.keyed.key_encoding import decode
from sluice.runtime.keyed.missing_columns import require_columns
from sluice.runtime.keyed.operators.aggregate import RowBuffer
from sluice.runtime.keyed.operators.event_times import LateRows, selected, times_of
from sluice.runtime.keyed.operators.operator_memory import (
    MEMORY_TABLE,
    OperatorMemory,
    declared_as,
    present,
)
from sluice.runtime.keyed.sides import LEFT, RIGHT, SIDE
from sluice.runtime.state.codec.row_codec import RowCodec

__all__ = ["IntervalJoin"]

_ROWS = (
    TableSpec(name="left", kind="join", is_timed=True),
    TableSpec(name="right", kind="join", is_timed=True),
)
_UNMATCHED = TableSpec(name="unmatched", kind="timers", is_timed=True)
_BUCKETS = 4  # in an interval: more buckets are finer to forget, fewer are faster to find
_FOREVER = (1 << 62) - 1
_HEAD = struct.Struct("<Iq?")  # length of the row, its time, whether it has had a partner
_Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalJoin:
    """A `KeyedFunction`. Rows come with their side (`sluice.runtime.keyed.sides`).

    Attributes:
        before_ms, after_ms: the right row's time is in [left - before, left + after]; >= 0.
        on: columns of event time, of the left and the right side.
        is_left: left rows without a partner come out with nulls.
        suffixes: for columns that both sides have; None: they are refused.
    """

    before_ms: int
    after_ms: int
    on: tuple[str, str]
    is_left: bool = False
    suffixes: tuple[str, str] | None = None

    @property
    def tables(self) -> Sequence[TableSpec]:
        """See `KeyedFunction`."""
        declared = {
            "before_ms": self.before_ms,
            "after_ms": self.after_ms,
            # An inner join does not keep which rows must come out without a partner.
            "how": "left" if self.is_left else "inner",
        }
        return *(declared_as(rows, declared) for rows in _ROWS), _UNMATCHED, MEMORY_TABLE

    @property
    def late_topic(self) -> str | None:
        """See `KeyedFunction`."""
        return None

    def open(self, scope: OperatorScope) -> KeyedOperator:
        """See `KeyedFunction`."""
        return _Operator(self, scope)


@dataclass(slots=True)
class _Waiting:
    """A row in the state.

    ``bucket``: its key's number, and the start of its bucket.
    """

    bucket: tuple[int, int]
    time_ms: int
    row: bytes
    is_matched: bool


@dataclass(frozen=True, slots=True)
class _Side:
    """Rows of one side with a split's new keys: those in the state, then the new ones."""

    waiting: list[_Waiting]
    codes: _Longs
    times: _Longs
    rows: pa.RecordBatch | None

    @property
    def old(self) -> int:
        """Number of rows in the state."""
        return len(self.waiting)


class _Operator:
    """Executor, the task's thread."""

    def __init__(self, function: IntervalJoin, scope: OperatorScope) -> None:
        self._function = function
        self._tables = scope.tables
        self._rows = [scope.tables.timed_table(scope.numbers[table.name]) for table in _ROWS]
        self._unmatched = scope.tables.timed_table(scope.numbers[_UNMATCHED.name])
        self._memory = OperatorMemory(scope)
        self._late = LateRows(scope, topic=None)
        self._buffers = [RowBuffer(None), RowBuffer(None)]
        self._width = max(1, (function.before_ms + function.after_ms) // _BUCKETS)
        # How much later than itself a row of each side has its last partner.
        self._reach = (function.after_ms, function.before_ms)

    def apply(self, rows: KeyedRows) -> Iterator[KeyedRows]:
        if not rows.batch.num_rows:
            return
        side = _side_of(rows.batch)
        rows = self._on_time(side, _without_side(rows))
        if not self._buffers[side].add(rows):
            yield from self._fold()
            self._buffers[side].add(rows)
        if sum(buffer.rows for buffer in self._buffers) >= RowBuffer.LARGEST:
            yield from self._fold()

    def at_barrier(self, time: BarrierTime) -> Iterator[KeyedRows]:
        yield from self._fold()
        now = _FOREVER if time.is_end else time.watermark_ms
        if now is not None:
            for split in self._tables.splits():
                if self._function.is_left:
                    yield from self._without_partner(split, now - self._reach[LEFT] - 1)
                for side in (LEFT, RIGHT):
                    self._forget(split, side, now - self._reach[side] - self._width)
        self._memory.end_epoch(time)

    def rollback(self) -> None:
        for buffer in self._buffers:
            buffer.clear()
        self._memory.rollback()

    def due(self) -> Due:
        if not self._function.is_left:
            return Due()
        times = (self._unmatched.earliest_ms(split) for split in self._tables.splits())
        first = min((time for time in times if time is not None), default=None)
        return Due(event_ms=None if first is None else first + self._reach[LEFT] + 1)

    def _on_time(self, side: int, rows: KeyedRows) -> KeyedRows:
        """The rows that are not before the watermark: none of their partners is forgotten."""
        times = times_of(rows.batch, self._function.on[side])
        late = times.is_null().to_numpy(zero_copy_only=False)
        values: _Longs = times.fill_null(0).to_numpy()
        for split in present(rows.splits):
            watermark = self._memory.watermark_ms(split)
            if watermark is not None:
                late |= (rows.splits == split) & (values < watermark)
        if not late.any():
            return rows
        self._late.note(rows.batch, late)
        return selected(rows, np.flatnonzero(~late))

    # --- matching -------------------------------------------------------------------------------

    def _fold(self) -> Iterator[KeyedRows]:
        """Join the rows that wait in memory with all others, and put them into the state."""
        taken = [buffer.take() for buffer in self._buffers]
        for side, rows in enumerate(taken):
            if rows is not None:
                types = rows.key_schema, rows.batch.schema
                self._memory.keep_schemas(present(rows.splits), *types, of=_ROWS[side].name)
        self._require_same_keys()
        splits = {s for rows in taken if rows is not None for s in present(rows.splits)}
        for split in sorted(splits):
            mine = [
                None if rows is None else selected(rows, np.flatnonzero(rows.splits == split))
                for rows in taken
            ]
            yield from self._fold_split(split, mine)

    def _require_same_keys(self) -> None:
        """Equal values of different types would not be found: their encoded keys differ."""
        keys = [found[0] for side in _ROWS if (found := self._memory.schemas(side.name))]
        if len(keys) > 1 and keys[LEFT].types != keys[RIGHT].types:
            raise ConfigError(
                "the sides of a join have keys of different types",
                {
                    "left": ", ".join(map(str, keys[LEFT].types)),
                    "right": ", ".join(map(str, keys[RIGHT].types)),
                },
                "Cast the key of one side in a map_batches before its key_by.",
            )

    def _fold_split(self, split: int, new: Sequence[KeyedRows | None]) -> Iterator[KeyedRows]:
        keys = pa.concat_arrays([rows.keys for rows in new if rows is not None])
        encoded = keys.dictionary_encode()
        codes, distinct = encoded.indices.to_numpy().astype(np.int64), encoded.dictionary
        names = distinct.to_pylist()
        first = new[LEFT]
        lefts = 0 if first is None else first.batch.num_rows
        of_side = codes[:lefts], codes[lefts:]
        times = [
            np.zeros(0, np.int64)
            if rows is None
            else times_of(rows.batch, self._function.on[side]).to_numpy()
            for side, rows in enumerate(new)
        ]
        before, after = self._function.before_ms, self._function.after_ms
        sides = []
        for side, (early, late) in ((LEFT, (after, before)), (RIGHT, (before, after))):
            # Its rows are partners of the other side's new rows.
            other = RIGHT - side
            waiting = self._waiting(
                split, side, names, of_side[other], times[other] - early, times[other] + late
            )
            sides.append(self._joined(side, waiting, of_side[side], times[side], new[side]))
        nulls = _with_null(distinct, self._key_schema(new))
        left, right = sides
        pairs = self._pairs(left, right, nulls)
        if len(pairs[0]):
            yield self._output(split, left, right, pairs, distinct)
        self._keep(split, LEFT, names, left, set(pairs[0].tolist()))
        self._keep(split, RIGHT, names, right, set())

    def _pairs(
        self, left: _Side, right: _Side, nulls: npt.NDArray[np.bool_]
    ) -> tuple[_Longs, _Longs]:
        """Places of the rows of each pair of which one is new."""
        before, after = self._function.before_ms, self._function.after_ms
        left_codes = np.where(nulls[left.codes], -1, left.codes)  # null is no one's partner
        right_codes = np.where(nulls[right.codes], -2, right.codes)
        new_left = _matches(
            left_codes[left.old :],
            left.times[left.old :] - before,
            left.times[left.old :] + after,
            right_codes,
            right.times,
        )
        old_left = _matches(
            left_codes[: left.old],
            left.times[: left.old] - before,
            left.times[: left.old] + after,
            right_codes[right.old :],
            right.times[right.old :],
        )
        return (
            np.concatenate([new_left[0] + left.old, old_left[0]]),
            np.concatenate([new_left[1], old_left[1] + right.old]),
        )

    def _output(
        self,
        split: int,
        left: _Side,
        right: _Side,
        pairs: tuple[_Longs, _Longs],
        distinct: pa.LargeBinaryArray,
    ) -> KeyedRows:
        assert left.rows is not None
        assert right.rows is not None
        made = self._batch(left.rows.take(pa.array(pairs[0])), right.rows.take(pa.array(pairs[1])))
        return KeyedRows(
            batch=made,
            splits=np.full(made.num_rows, split, np.int16),
            keys=distinct.take(pa.array(left.codes[pairs[0]])),
            key_schema=self._schemas(LEFT)[0],
        )

    def _batch(self, left: pa.RecordBatch, right: pa.RecordBatch | None) -> pa.RecordBatch:
        """The columns of both sides, the key's once.

        Raises:
            ConfigError: both have a column, and there are no suffixes.
        """
        if right is None:
            known = self._memory.schemas(_ROWS[RIGHT].name)
            schema = pa.schema([]) if known is None else known[1]
            right = pa.RecordBatch.from_arrays(
                [pa.nulls(left.num_rows, kind) for kind in schema.types], schema.names
            )
        key = set(self._schemas(LEFT)[0].names) & set(left.schema.names)
        added = [name for name in right.schema.names if name not in key]
        both = set(left.schema.names) & set(added)
        if both and self._function.suffixes is None:
            raise ConfigError(
                "both sides of a join have a column of the same name",
                {"columns": ", ".join(sorted(both))},
                'Set suffixes=("_left", "_right"), or select columns before key_by.',
            )
        ours, theirs = self._function.suffixes or ("", "")
        names = [name + ours * (name in both) for name in left.schema.names]
        names += [name + theirs * (name in both) for name in added]
        columns = [*left.columns, *(right.column(name) for name in added)]
        return pa.RecordBatch.from_arrays(columns, names)

    # --- state ----------------------------------------------------------------------------------

    def _schemas(self, side: int) -> list[pa.Schema]:
        found = self._memory.schemas(_ROWS[side].name)
        assert found is not None  # rows of this side have come
        return found

    def _key_schema(self, new: Sequence[KeyedRows | None]) -> pa.Schema:
        return next(rows.key_schema for rows in new if rows is not None)

    def _waiting(
        self,
        split: int,
        side: int,
        names: Sequence[bytes],
        codes: _Longs,
        earliest: _Longs,
        latest: _Longs,
    ) -> list[_Waiting]:
        """The rows of a side in all buckets that have a time of an interval."""
        first, last = earliest // self._width, latest // self._width
        found: set[tuple[int, int]] = set()
        while len(codes):
            found.update(zip(codes.tolist(), (first * self._width).tolist(), strict=True))
            first = first + 1
            more = first <= last
            codes, first, last = codes[more], first[more], last[more]
        order = sorted(found)
        stored = self._rows[side].get(
            split, [start for _, start in order], [names[code] for code, _ in order]
        )
        # A bucket leaves as a whole, and may have rows that a barrier has passed already.
        watermark = self._memory.watermark_ms(split)
        least = None if watermark is None else watermark - self._reach[side]
        return [
            _Waiting(bucket, time_ms, row, is_matched)
            for bucket, value in zip(order, stored, strict=True)
            for time_ms, row, is_matched in _unpacked(value)
            if least is None or time_ms >= least
        ]

    def _joined(
        self,
        side: int,
        waiting: list[_Waiting],
        codes: _Longs,
        times: _Longs,
        new: KeyedRows | None,
    ) -> _Side:
        """The rows of a side in one batch."""
        batches = [] if new is None else [new.batch]
        if waiting:
            codec = RowCodec(self._schemas(side)[1])
            batches.insert(0, codec.decode([each.row for each in waiting]))
        old_codes = [each.bucket[0] for each in waiting]
        old_times = [each.time_ms for each in waiting]
        return _Side(
            waiting=waiting,
            codes=np.concatenate([np.array(old_codes, np.int64), codes]),
            times=np.concatenate([np.array(old_times, np.int64), times]),
            rows=pa.concat_batches(batches) if batches else None,
        )

    def _keep(
        self, split: int, side: int, names: Sequence[bytes], rows: _Side, matched: set[int]
    ) -> None:
        """Put new rows into their buckets, and note which old ones have a partner now."""
        table = self._rows[side]
        buckets: dict[tuple[int, int], list[bytes]] = {}
        changed = {
            rows.waiting[at].bucket
            for at in matched
            if self._function.is_left and at < rows.old and not rows.waiting[at].is_matched
        }
        for at, each in enumerate(rows.waiting):
            if each.bucket in changed:
                is_matched = each.is_matched or at in matched
                packed = _packed(each.time_ms, each.row, is_matched=is_matched)
                buckets.setdefault(each.bucket, []).append(packed)
        new = range(rows.old, len(rows.codes))
        if new and rows.rows is not None:
            codec = RowCodec(self._schemas(side)[1])
            encoded = codec.encode(rows.rows.slice(rows.old))
            codes, times = rows.codes[rows.old :].tolist(), rows.times[rows.old :].tolist()
            missing = dict.fromkeys(
                (code, time_ms // self._width * self._width)
                for code, time_ms in zip(codes, times, strict=True)
            )
            absent = [bucket for bucket in missing if bucket not in buckets]
            stored = table.get(split, [at for _, at in absent], [names[c] for c, _ in absent])
            for bucket, value in zip(absent, stored, strict=True):
                buckets[bucket] = [] if value is None else [value]
            for at, code, time_ms, row in zip(new, codes, times, encoded, strict=True):
                packed = _packed(time_ms, row, is_matched=at in matched)
                buckets[code, time_ms // self._width * self._width].append(packed)
            if side == LEFT and self._function.is_left:
                alone = [at - rows.old for at in new if at not in matched]
                self._unmatched.put(
                    split,
                    *_distinct([(times[at], names[codes[at]]) for at in alone]),
                )
        starts, keys = [start for _, start in buckets], [names[code] for code, _ in buckets]
        table.put(split, starts, keys, [b"".join(pieces) for pieces in buckets.values()])

    def _without_partner(self, split: int, until_ms: int) -> Iterator[KeyedRows]:
        """Left rows up to this time that have had no partner."""
        for time_ms, entries in list(self._unmatched.due(split, until_ms)):
            keys = [key for key, _ in entries]
            bucket = time_ms // self._width * self._width
            stored = self._rows[LEFT].get(split, [bucket] * len(keys), keys)
            alone = [
                (key, row)
                for key, value in zip(keys, stored, strict=True)
                for at, row, is_matched in _unpacked(value)
                if at == time_ms and not is_matched
            ]
            self._unmatched.put(split, [time_ms] * len(keys), keys, [None] * len(keys))
            if alone:
                key_schema, schema = self._schemas(LEFT)
                rows = RowCodec(schema).decode([row for _, row in alone])
                yield KeyedRows(
                    batch=self._batch(rows, None),
                    splits=np.full(len(alone), split, np.int16),
                    keys=pa.array([key for key, _ in alone], pa.large_binary()),
                    key_schema=key_schema,
                )

    def _forget(self, split: int, side: int, until_ms: int) -> None:
        for start, entries in list(self._rows[side].due(split, until_ms)):
            keys = [key for key, _ in entries]
            self._rows[side].put(split, [start] * len(keys), keys, [None] * len(keys))


def _side_of(batch: pa.RecordBatch) -> int:
    sides = require_columns(batch, [SIDE]).column(0)
    side = sides[0].as_py()
    assert side in (LEFT, RIGHT)  # the repartition source writes it
    return int(side)


def _without_side(rows: KeyedRows) -> KeyedRows:
    names = [name for name in rows.batch.schema.names if name != SIDE]
    return KeyedRows(
        batch=rows.batch.select(names),
        splits=rows.splits,
        keys=rows.keys,
        key_schema=rows.key_schema,
    )


def _with_null(distinct: pa.LargeBinaryArray, schema: pa.Schema) -> npt.NDArray[np.bool_]:
    """Which keys have a column that is null."""
    nulls = np.zeros(len(distinct), bool)
    for column in decode(distinct, schema):
        nulls |= column.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _matches(
    codes: _Longs, earliest: _Longs, latest: _Longs, other_codes: _Longs, other_times: _Longs
) -> tuple[_Longs, _Longs]:
    """Places of each row, and of each other row with its code and a time in its interval."""
    known = np.unique(other_times)
    rank = np.searchsorted(known, other_times)
    width = len(known) + 1
    order = np.lexsort((rank, other_codes))
    places = other_codes[order] * width + rank[order]
    first = np.searchsorted(places, codes * width + np.searchsorted(known, earliest))
    end = np.searchsorted(places, codes * width + np.searchsorted(known, latest, side="right"))
    counts = np.maximum(end - first, 0)
    ours = np.repeat(np.arange(len(codes)), counts)
    offsets = np.arange(len(ours)) - np.repeat(np.cumsum(counts) - counts, counts)
    return ours, order[np.repeat(first, counts) + offsets]


def _distinct(
    entries: list[tuple[int, bytes]],
) -> tuple[list[int], list[bytes], list[bytes | None]]:
    found = list(dict.fromkeys(entries))
    return [time_ms for time_ms, _ in found], [key for _, key in found], [b""] * len(found)


def _packed(time_ms: int, row: bytes, *, is_matched: bool) -> bytes:
    return _HEAD.pack(len(row), time_ms, is_matched) + row


def _unpacked(value: bytes | None) -> Iterator[tuple[int, bytes, bool]]:
    """Time, row, and whether it has had a partner, of each row of a bucket."""
    at = 0
    while value is not None and at < len(value):
        length, time_ms, is_matched = _HEAD.unpack_from(value, at)
        start = at + _HEAD.size
        at = start + length
        yield time_ms, value[start:at], is_matched
