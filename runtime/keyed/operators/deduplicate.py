"""Passes on the first row of each key, and forgets the key after some time."""

from __future__ import annotations

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
from sluice.runtime.keyed.operators.event_times import LateRows, selected, times_of
from sluice.runtime.keyed.operators.operator_memory import MEMORY_TABLE, OperatorMemory, present

__all__ = ["Deduplication"]

_SEEN = TableSpec(name="seen", kind="deduplicate")
_FORGET = TableSpec(name="forget", kind="timers", is_timed=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduplication:
    """A `KeyedFunction`.

    Attributes:
        within_ms: a barrier forgets a key once it is so much later than the key's first row; > 0.
        on: column of event time; None: the time of a row is the processing time of its barrier.
    """

    within_ms: int
    on: str | None = None

    @property
    def tables(self) -> Sequence[TableSpec]:
        """See `KeyedFunction`."""
        return _SEEN, _FORGET, MEMORY_TABLE

    @property
    def late_topic(self) -> str | None:
        """See `KeyedFunction`."""
        return None

    def open(self, scope: OperatorScope) -> KeyedOperator:
        """See `KeyedFunction`."""
        return _Operator(self, scope)


class _Operator:
    """Executor, the task's thread. ``seen`` holds the keys, ``forget`` when to forget them."""

    def __init__(self, function: Deduplication, scope: OperatorScope) -> None:
        self._function = function
        self._tables = scope.tables
        self._seen = scope.tables.table(scope.numbers[_SEEN.name])
        self._forget = scope.tables.timed_table(scope.numbers[_FORGET.name])
        self._memory = OperatorMemory(scope)
        self._late = LateRows(scope, topic=None)
        self._new: dict[int, list[bytes]] = {}  # of the epoch, by processing time

    def apply(self, rows: KeyedRows) -> Iterator[KeyedRows]:
        self._memory.keep_schemas(present(rows.splits), rows.key_schema)
        times = None
        if self._function.on is not None:
            times = times_of(rows.batch, self._function.on)
            rows, times = self._on_time(rows, times)
        passed = np.zeros(rows.batch.num_rows, bool)
        for split in present(rows.splits):
            passed[self._first_rows(split, rows, times)] = True
        if passed.any():
            yield rows if passed.all() else selected(rows, np.flatnonzero(passed))

    def at_barrier(self, time: BarrierTime) -> Iterator[KeyedRows]:
        for split, keys in self._new.items():
            times = [time.now_ms + self._function.within_ms] * len(keys)
            self._forget.put(split, times, keys, [b""] * len(keys))
        self._new = {}
        now = time.now_ms if self._function.on is None else time.watermark_ms
        if now is not None:
            for split in self._tables.splits():
                self._forget_until(split, now)
        if self._function.on is not None:
            self._memory.end_epoch(time)
        yield from ()

    def rollback(self) -> None:
        self._new = {}
        self._memory.rollback()

    def due(self) -> Due:
        return Due()

    def _on_time(self, rows: KeyedRows, times: pa.Int64Array) -> tuple[KeyedRows, pa.Int64Array]:
        """The rows whose key a barrier would not have forgotten yet."""
        late = times.is_null().to_numpy(zero_copy_only=False)
        values = times.fill_null(0).to_numpy()
        for split in present(rows.splits):
            watermark = self._memory.watermark_ms(split)
            if watermark is not None:
                is_over = values + self._function.within_ms <= watermark
                late |= (rows.splits == split) & is_over
        if not late.any():
            return rows, times
        self._late.note(rows.batch, late)
        kept = np.flatnonzero(~late)
        return selected(rows, kept), times.take(pa.array(kept))

    def _first_rows(
        self, split: int, rows: KeyedRows, times: pa.Int64Array | None
    ) -> npt.NDArray[np.int64]:
        """The places of the first rows of keys that are new; remembers them."""
        mine = np.flatnonzero(rows.splits == split)
        encoded = rows.keys.take(pa.array(mine)).dictionary_encode()
        first = np.full(len(encoded.dictionary), len(mine))
        np.minimum.at(first, encoded.indices.to_numpy(), np.arange(len(mine)))
        keys = encoded.dictionary.to_pylist()
        known = self._seen.get(split, keys)
        new = [at for at, value in enumerate(known) if value is None]
        keys = [keys[at] for at in new]
        places: npt.NDArray[np.int64] = mine[first[new]]
        self._seen.put(split, keys, [b""] * len(keys))
        if times is None:
            self._new.setdefault(split, []).extend(keys)
        else:
            until = (times.take(pa.array(places)).to_numpy() + self._function.within_ms).tolist()
            self._forget.put(split, until, keys, [b""] * len(keys))
        return places

    def _forget_until(self, split: int, now: int) -> None:
        for time_ms, entries in list(self._forget.due(split, now)):
            keys = [key for key, _ in entries]
            self._seen.put(split, keys, [None] * len(keys))
            self._forget.put(split, [time_ms] * len(keys), keys, [None] * len(keys))
