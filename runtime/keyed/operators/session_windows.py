"""Aggregates of sessions: rows of a key with pauses of at most a gap; sessions that touch merge."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.runtime.contracts.keyed import KeyedRows, OperatorScope, TableSpec
from sluice.runtime.keyed.aggregates.accumulators import Accumulators
from sluice.runtime.keyed.declarations import Session
from sluice.runtime.keyed.operators.open_windows import Longs, WindowOperator, WindowSettings
from sluice.runtime.keyed.operators.operator_memory import present
from sluice.runtime.model.timestamps import duration_ms

__all__ = ["SESSIONS", "SessionOperator"]

SESSIONS = TableSpec(name="sessions", kind="sessions")
"""key -> start and end of each of its open sessions, 8 bytes each, little-endian."""
_Span = tuple[int, int]
_SPAN = struct.Struct("<qq")


class SessionOperator(WindowOperator):
    """Keeps the bounds of each key's sessions apart from their accumulators: rows need only them
    to find their session."""

    def __init__(self, settings: WindowSettings, scope: OperatorScope) -> None:
        super().__init__(settings, scope)
        assert isinstance(settings.window, Session)
        self._gap = duration_ms(settings.window.gap, setting="gap")
        self._sessions = scope.tables.table(scope.numbers[SESSIONS.name])
        self._touched: dict[int, dict[tuple[int, bytes], None]] = {}  # of the epoch

    def rollback(self) -> None:
        super().rollback()
        self._touched = {}

    def _is_late(
        self,
        split: int,
        rows: KeyedRows,
        mine: npt.NDArray[np.bool_],
        times: Longs,
        passed_ms: int,
    ) -> npt.NDArray[np.bool_]:
        """A row whose own session is over may still belong to an open one."""
        places = np.flatnonzero(mine)
        late = times[places] + self._gap <= passed_ms
        if not late.any():
            return late
        self._fold_waiting()  # the rows before these may have opened a session
        keys = rows.keys.take(pa.array(places)).to_pylist()
        spans = self._spans(split, {keys[at] for at in np.flatnonzero(late).tolist()})
        for at, time_ms in enumerate(times[places].tolist()):
            of_key = spans.get(keys[at])
            if of_key is None:
                continue
            near = [s for s in of_key if s[0] - self._gap <= time_ms <= s[1]]
            late[at] = bool(late[at]) and not near
            if not late[at]:
                start = min([time_ms, *(s[0] for s in near)])
                end = max([time_ms + self._gap, *(s[1] for s in near)])
                spans[keys[at]] = [*(s for s in of_key if s not in near), (start, end)]
        return late

    def _spans(self, split: int, keys: set[bytes]) -> dict[bytes, list[_Span]]:
        """The open sessions of keys."""
        order = sorted(keys)
        stored = self._sessions.get(split, order)
        return {key: _unpacked(value) for key, value in zip(order, stored, strict=True)}

    def _fold(self, rows: KeyedRows, times: Longs) -> None:
        for split in present(rows.splits):
            places = np.flatnonzero(rows.splits == split)
            at = pa.array(places)
            self._fold_split(split, rows.keys.take(at), times[places], rows.batch.take(at))

    def _fold_split(
        self, split: int, keys: pa.LargeBinaryArray, times: Longs, batch: pa.RecordBatch
    ) -> None:
        encoded = keys.dictionary_encode()
        codes, distinct = encoded.indices.to_numpy(), encoded.dictionary.to_pylist()
        known = list(map(_unpacked, self._sessions.get(split, distinct)))
        lengths = [len(spans) for spans in known]
        bounds = np.array([span for spans in known for span in spans], np.int64).reshape(-1, 2)
        owners = np.concatenate([np.repeat(np.arange(len(distinct)), lengths), codes])
        begins = np.concatenate([bounds[:, 0], times])
        ends = np.concatenate([bounds[:, 1], times + self._gap])
        session_of, session_key, starts, stops = _merged(owners, begins, ends)
        # Sessions that no row touches stay as they are.
        is_touched = np.zeros(len(starts), bool)
        is_touched[session_of[len(bounds) :]] = True
        number = np.cumsum(is_touched) - 1
        old = np.flatnonzero(is_touched[session_of[: len(bounds)]])
        total, codec = self._accumulators(int(is_touched.sum()))
        old_keys = [distinct[at] for at in owners[old].tolist()]
        old_ends = bounds[old, 1].tolist()
        if old_keys:
            stored = self._windows.get(split, old_ends, old_keys)
            _, state = self._read(codec, [value for value in stored if value is not None])
            _combine(total, number[session_of[old]], state)
            self._windows.put(split, old_ends, old_keys, [None] * len(old))
            if self._has_marks:
                self._closing.put(split, old_ends, old_keys, [None] * len(old))
        total.add(number[session_of[len(bounds) :]], batch)
        new_keys = [distinct[at] for at in session_key[is_touched].tolist()]
        new_ends = stops[is_touched].tolist()
        self._write(split, new_ends, new_keys, starts[is_touched], total)
        every = np.stack([starts, stops], axis=1)
        first = np.searchsorted(session_key, np.arange(len(distinct) + 1))
        spans = [every[a:b].astype("<i8").tobytes() for a, b in pairwise(first)]
        self._sessions.put(split, distinct, spans)
        if self._settings.updates:
            touched = self._touched.setdefault(split, {})
            for span in zip(old_ends, old_keys, strict=True):
                touched.pop(span, None)
            touched.update(dict.fromkeys(zip(new_ends, new_keys, strict=True)))

    def _changed(self) -> Iterator[KeyedRows]:
        touched, self._touched = self._touched, {}
        for split, found in touched.items():
            ends, keys = [end for end, _ in found], [key for _, key in found]
            stored = self._windows.get(split, ends, keys)
            yield self._closed(split, ends, keys, [value for value in stored if value is not None])

    def _forget(
        self, split: int, ends: Sequence[int], keys: Sequence[bytes], starts: Longs
    ) -> None:
        gone: dict[bytes, set[_Span]] = {}
        for key, start, end in zip(keys, starts.tolist(), ends, strict=True):
            gone.setdefault(key, set()).add((start, end))
        order = list(gone)
        left = [
            b"".join(_SPAN.pack(*span) for span in _unpacked(stored) if span not in gone[key])
            for key, stored in zip(order, self._sessions.get(split, order), strict=True)
        ]
        self._sessions.put(split, order, [spans or None for spans in left])


def _combine(total: Accumulators, ids: Longs, state: pa.RecordBatch) -> None:
    """Fold the state of sessions into those that they became part of, in the order of time."""
    left = np.arange(len(ids))
    while len(left):
        _, first = np.unique(ids[left], return_index=True)
        total.combine(ids[left[first]], state.take(pa.array(left[first])))
        left = np.delete(left, first)


def _merged(owners: Longs, begins: Longs, ends: Longs) -> tuple[Longs, Longs, Longs, Longs]:
    """Merge intervals of an owner that overlap or touch.

    Returns:
        The session of each interval; and of each session its owner, start and end, sorted by owner
        and start.
    """
    order = np.lexsort((begins, owners))
    owner, begin, end = owners[order], begins[order], ends[order]
    # The largest end so far of the same owner, as its rank: ranks of later owners are larger.
    rank = np.empty(len(end), np.int64)
    rank[np.argsort(end, kind="stable")] = np.arange(len(end))
    largest = np.maximum.accumulate(owner * len(end) + rank) - owner * len(end)
    reached = np.sort(end)[largest]
    is_first = np.ones(len(end), bool)
    is_first[1:] = (owner[1:] != owner[:-1]) | (begin[1:] > reached[:-1])
    session = np.cumsum(is_first) - 1
    session_of = np.empty(len(end), np.int64)
    session_of[order] = session
    first = np.flatnonzero(is_first)
    last = np.append(first[1:], len(end)) - 1
    return session_of, owner[first], begin[first], reached[last]


def _unpacked(stored: bytes | None) -> list[_Span]:
    return [] if stored is None else list(_SPAN.iter_unpack(stored))
