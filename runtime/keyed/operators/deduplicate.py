"""Passes on the first row of each key, and forgets the key after some time."""

from __future__ import annotations

import struct
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

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
from sluice.runtime.keyed.operators.operator_memory import (
    FORGETTING_PARTS,
    MEMORY_TABLE,
    OperatorMemory,
    present,
)

__all__ = ["Deduplication"]

_SEEN = TableSpec(name="seen", kind="deduplicate")
_FORGET = TableSpec(name="forget", kind="timers", is_timed=True)
_TIME = struct.Struct("<q")
_Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduplication:
    """A `KeyedFunction`.

    Attributes:
        within_ms: so much after a row that has passed, the next row of its key passes; > 0.
        on: column of event time; None: the time of a row is the processing time of its barrier.
    """

    within_ms: int
    on: str | None = None

    @property
    def tables(self) -> Sequence[TableSpec]:
        """See `KeyedFunction`."""
        clock = "" if self.on is None else " by event time"
        return replace(_SEEN, kind=_SEEN.kind + clock), _FORGET, MEMORY_TABLE

    @property
    def late_topic(self) -> str | None:
        """See `KeyedFunction`."""
        return None

    def open(self, scope: OperatorScope) -> KeyedOperator:
        """See `KeyedFunction`."""
        if self.on is None:
            return _ByProcessingTime(self.within_ms, scope)
        return _ByEventTime(self.within_ms, self.on, scope)


@dataclass(frozen=True, slots=True)
class _Keys:
    """The rows of a split by their keys.

    Attributes:
        places: of the rows.
        codes: the number of each row's key.
        names: the keys by their numbers.
    """

    places: _Longs
    codes: _Longs
    names: list[bytes]

    @classmethod
    def of(cls, rows: KeyedRows, split: int) -> _Keys:
        places = np.flatnonzero(rows.splits == split)
        encoded = rows.keys.take(pa.array(places)).dictionary_encode()
        codes = encoded.indices.to_numpy().astype(np.int64)
        return cls(places, codes, encoded.dictionary.to_pylist())


def _passed(rows: KeyedRows, places: Sequence[_Longs]) -> Iterator[KeyedRows]:
    """The rows at these places."""
    passed = np.zeros(rows.batch.num_rows, bool)
    for each in places:
        passed[each] = True
    if passed.any():
        yield rows if passed.all() else selected(rows, np.flatnonzero(passed))


class _ByProcessingTime:
    """Executor, the task's thread. ``seen`` holds the keys, ``forget`` when to forget them."""

    def __init__(self, within_ms: int, scope: OperatorScope) -> None:
        self._within_ms = within_ms
        self._tables = scope.tables
        self._now_ms = scope.now_ms
        self._seen = scope.tables.table(scope.numbers[_SEEN.name])
        self._forget = scope.tables.timed_table(scope.numbers[_FORGET.name])
        self._memory = OperatorMemory(scope)
        self._new: dict[int, list[bytes]] = {}  # of the epoch
        self._earliest_ms: dict[int, int | None] = {}  # of ``forget``, by split

    def apply(self, rows: KeyedRows) -> Iterator[KeyedRows]:
        splits, now_ms = present(rows.splits), self._now_ms()
        self._memory.keep_schemas(splits, rows.key_schema)
        for split in splits:  # the last barrier may be long ago
            self._forget_until(split, now_ms)
        yield from _passed(rows, [self._first_rows(split, rows) for split in splits])

    def at_barrier(self, time: BarrierTime) -> Iterator[KeyedRows]:
        for split, keys in self._new.items():
            times = [time.now_ms + self._within_ms] * len(keys)
            self._forget.put(split, times, keys, [b""] * len(keys))
        self._new = {}
        self._earliest_ms.clear()
        for split in self._tables.splits():
            self._forget_until(split, time.now_ms)
        yield from ()

    def rollback(self) -> None:
        self._new = {}
        self._earliest_ms.clear()
        self._memory.rollback()

    def due(self) -> Due:
        times = [self._earliest_of(split) for split in self._tables.splits()]
        first = min((ms for ms in times if ms is not None), default=None)
        return Due(time_ms=None if first is None else first + self._within_ms // FORGETTING_PARTS)

    def _first_rows(self, split: int, rows: KeyedRows) -> _Longs:
        """The places of the first rows of keys that are new; remembers them."""
        found = _Keys.of(rows, split)
        known = self._seen.get(split, found.names)
        new = [at for at, value in enumerate(known) if value is None]
        keys = [found.names[at] for at in new]
        self._seen.put(split, keys, [b""] * len(keys))
        self._new.setdefault(split, []).extend(keys)
        first = np.full(len(known), len(found.codes))
        np.minimum.at(first, found.codes, np.arange(len(found.codes)))
        places: _Longs = found.places[first[new]]
        return places

    def _earliest_of(self, split: int) -> int | None:
        if split not in self._earliest_ms:
            self._earliest_ms[split] = self._forget.earliest_ms(split)
        return self._earliest_ms[split]

    def _forget_until(self, split: int, now_ms: int) -> None:
        earliest_ms = self._earliest_of(split)
        if earliest_ms is None or earliest_ms > now_ms:
            return
        for time_ms, entries in list(self._forget.due(split, now_ms)):
            keys = [key for key, _ in entries]
            self._seen.put(split, keys, [None] * len(keys))
            self._forget.put(split, [time_ms] * len(keys), keys, [None] * len(keys))
        del self._earliest_ms[split]


class _ByEventTime:
    """Executor, the task's thread. ``seen`` holds the times of the rows of a key that have passed,
    8 bytes each, in order; ``forget`` when to forget them.

    A row of a key is a repeated one if a row has passed that is less than ``within_ms`` earlier or
    later. Barriers do not matter for that, since an epoch may have hours of rows. A row that is not
    late is later than the watermark less ``within_ms``. So a time is forgotten once the watermark
    is twice as much later.
    """

    def __init__(self, within_ms: int, on: str, scope: OperatorScope) -> None:
        self._within_ms, self._on = within_ms, on
        self._tables = scope.tables
        self._seen = scope.tables.table(scope.numbers[_SEEN.name])
        self._forget = scope.tables.timed_table(scope.numbers[_FORGET.name])
        self._memory = OperatorMemory(scope)
        self._late = LateRows(scope, topic=None)

    def apply(self, rows: KeyedRows) -> Iterator[KeyedRows]:
        self._memory.keep_schemas(present(rows.splits), rows.key_schema)
        rows, times = self._on_time(rows)
        splits = present(rows.splits)
        yield from _passed(rows, [self._first_rows(split, rows, times) for split in splits])

    def at_barrier(self, time: BarrierTime) -> Iterator[KeyedRows]:
        if time.watermark_ms is not None:
            for split in self._tables.splits():
                self._forget_until(split, time.watermark_ms)
        self._memory.end_epoch(time)
        yield from ()

    def rollback(self) -> None:
        self._memory.rollback()

    def due(self) -> Due:
        return Due()  # a later barrier forgets the same

    def _on_time(self, rows: KeyedRows) -> tuple[KeyedRows, _Longs]:
        """The rows near which no time is forgotten yet, and their times."""
        times = times_of(rows.batch, self._on)
        late = times.is_null().to_numpy(zero_copy_only=False)
        values: _Longs = times.fill_null(0).to_numpy()
        for split in present(rows.splits):
            watermark = self._memory.watermark_ms(split)
            if watermark is not None:
                is_over = values + self._within_ms <= watermark
                late |= (rows.splits == split) & is_over
        if not late.any():
            return rows, values
        self._late.note(rows.batch, late)
        kept = np.flatnonzero(~late)
        return selected(rows, kept), values[kept]

    def _first_rows(self, split: int, rows: KeyedRows, of_rows: _Longs) -> _Longs:
        """The places of the rows that pass; remembers their times."""
        found = _Keys.of(rows, split)
        times, codes = of_rows[found.places], found.codes
        known = self._seen.get(split, found.names)
        is_known = np.array([value is not None for value in known], bool)
        last = np.zeros(len(known), np.int64)
        last[is_known] = np.frombuffer(b"".join([v[-8:] for v in known if v is not None]), "<i8")
        # The latest time of a key decides about rows near it, and about later ones. Of these rows,
        # the first one passes and decides about all others, if they are near it. The keys of all
        # other rows are looked at row by row.
        far = np.flatnonzero(~is_known[codes] | (np.abs(times - last[codes]) >= self._within_ms))
        first = np.full(len(known), len(codes))
        np.minimum.at(first, codes[far], far)
        is_odd = np.abs(times[far] - times[first[codes[far]]]) >= self._within_ms
        is_odd |= is_known[codes[far]] & (times[far] < last[codes[far]])
        has_odd = np.zeros(len(known), bool)
        has_odd[codes[far[is_odd]]] = True
        new = np.flatnonzero((first < len(codes)) & ~has_odd)
        passed = first[new].tolist()
        keys = [found.names[code] for code in new.tolist()]
        values = _singly(times[first[new]])
        for at in np.flatnonzero(is_known[new]).tolist():
            values[at] = (known[new[at]] or b"") + values[at]
        self._seen.put(split, keys, values)
        if has_odd.any():
            more, changed = self._apart(codes, times, known, np.flatnonzero(has_odd[codes]))
            self._seen.put(split, [found.names[code] for code in changed], list(changed.values()))
            keys += [found.names[code] for code in codes[more].tolist()]
            passed += more
        self._keep_until(split, times[passed].tolist(), keys)
        places: _Longs = found.places[passed]
        return places

    def _apart(
        self, codes: _Longs, times: _Longs, known: Sequence[bytes | None], rows: _Longs
    ) -> tuple[list[int], dict[int, bytes]]:
        """Which of the rows are apart from all that have passed, and the times of their keys."""
        passed: list[int] = []
        lists: dict[int, list[int]] = {}
        changed: dict[int, list[int]] = {}
        for at, code, time_ms in zip(
            rows.tolist(), codes[rows].tolist(), times[rows].tolist(), strict=True
        ):
            if code not in lists:
                lists[code] = _unpacked(known[code] or b"")
            of_key = lists[code]
            near = bisect_left(of_key, time_ms - self._within_ms + 1)
            if near == len(of_key) or of_key[near] >= time_ms + self._within_ms:
                insort(of_key, time_ms)
                passed.append(at)
                changed[code] = of_key
        return passed, {code: _packed(of_key) for code, of_key in changed.items()}

    def _keep_until(self, split: int, times: Sequence[int], keys: Sequence[bytes]) -> None:
        until = [time_ms + 2 * self._within_ms for time_ms in times]
        self._forget.put(split, until, keys, [b""] * len(keys))

    def _forget_until(self, split: int, watermark_ms: int) -> None:
        found = self._forget.due(split, watermark_ms)
        due = [(time_ms, key) for time_ms, entries in found for key, _ in entries]
        if not due:
            return
        times, keys = [time_ms for time_ms, _ in due], [key for _, key in due]
        self._forget.put(split, times, keys, [None] * len(due))
        names = list(dict.fromkeys(keys))
        known = self._seen.get(split, names)
        kept = self._kept(known, watermark_ms - 2 * self._within_ms)
        self._seen.put(split, names, kept)
        # Another program may have had another ``within``.
        left = [(_TIME.unpack_from(v)[0], k) for v, k in zip(kept, names, strict=True) if v]
        self._keep_until(split, [time_ms for time_ms, _ in left], [key for _, key in left])

    @staticmethod
    def _kept(known: Sequence[bytes | None], last_ms: int) -> list[bytes | None]:
        """The times of each key without those up to ``last_ms``; None: there are no others."""
        kept: list[bytes | None] = [None] * len(known)
        places = [at for at, value in enumerate(known) if value is not None]
        latest = np.frombuffer(b"".join([v[-8:] for v in known if v is not None]), "<i8")
        for number in np.flatnonzero(latest > last_ms).tolist():
            at = places[number]
            kept[at] = _packed([each for each in _unpacked(known[at] or b"") if each > last_ms])
        return kept


def _singly(times: _Longs) -> list[bytes]:
    """Each time as it is stored."""
    data = times.astype("<i8").tobytes()
    return [data[at : at + _TIME.size] for at in range(0, len(data), _TIME.size)]


def _packed(times: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(times)}q", *times)


def _unpacked(value: bytes) -> list[int]:
    return [time_ms for (time_ms,) in _TIME.iter_unpack(value)]
