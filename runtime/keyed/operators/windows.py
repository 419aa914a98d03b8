"""Aggregates of windows of event time: the function, and tumbling and sliding windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.runtime.contracts.keyed import KeyedOperator, KeyedRows, OperatorScope, TableSpec
from sluice.runtime.keyed.aggregates.accumulators import Accumulators, Groups
from sluice.runtime.keyed.declarations import Session, Sliding, Tumbling
from sluice.runtime.keyed.operators.aggregate import RowBuffer
from sluice.runtime.keyed.operators.open_windows import (
    CLOSING,
    WINDOWS,
    Longs,
    WindowOperator,
    WindowSettings,
)
from sluice.runtime.keyed.operators.operator_memory import MEMORY_TABLE, declared_as, present
from sluice.runtime.keyed.operators.session_windows import SESSIONS, SessionOperator
from sluice.runtime.model.timestamps import duration_ms

__all__ = ["WindowAggregation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAggregation(WindowSettings):
    """A `KeyedFunction`: aggregates of the rows of each key and window."""

    @property
    def tables(self) -> Sequence[TableSpec]:
        """See `KeyedFunction`."""
        sessions = (SESSIONS,) if isinstance(self.window, Session) else ()
        windows = declared_as(WINDOWS, self.window, self.aggregates)
        return windows, CLOSING, *sessions, MEMORY_TABLE

    def open(self, scope: OperatorScope) -> KeyedOperator:
        """See `KeyedFunction`."""
        if isinstance(self.window, Session):
            return SessionOperator(self, scope)
        return _AlignedOperator(self, self.window, scope)


class _AlignedOperator(WindowOperator):
    """Windows that are the same for all keys; a row is in one of them, or in several."""

    def __init__(
        self, settings: WindowSettings, window: Tumbling | Sliding, scope: OperatorScope
    ) -> None:
        super().__init__(settings, scope)
        self._size = duration_ms(window.size, setting="size")
        slide = window.slide if isinstance(window, Sliding) else window.size
        self._slide = duration_ms(slide, setting="slide")
        self._offset = duration_ms(window.offset, setting="offset")
        self._begin()

    def rollback(self) -> None:
        super().rollback()
        self._begin()

    def _begin(self) -> None:
        self._groups = Groups()
        self._folded: Accumulators | None = None

    def _last_start(self, times: Longs) -> Longs:
        """The start of the last window of each time."""
        return (times - self._offset) // self._slide * self._slide + self._offset

    def _is_late(
        self,
        split: int,
        rows: KeyedRows,
        mine: npt.NDArray[np.bool_],
        times: Longs,
        passed_ms: int,
    ) -> npt.NDArray[np.bool_]:
        return self._last_start(times[mine]) + self._size <= passed_ms

    def _fold(self, rows: KeyedRows, times: Longs) -> None:
        self._folded = self._folded or self._accumulators(0)[0]
        passed = np.full(int(rows.splits.max()) + 1, np.iinfo(np.int64).min)
        for split in present(rows.splits):
            watermark = self._memory.watermark_ms(split)
            if watermark is not None:
                passed[split] = watermark - self._settings.lateness_ms
        starts = self._last_start(times)
        if self._size <= self._slide:
            self._fold_windows(rows, np.arange(len(times)), starts)
            return
        chunk = max(1, RowBuffer.LARGEST * self._slide // self._size)
        for first in range(0, len(times), chunk):
            places = np.arange(first, min(first + chunk, len(times)))
            found = [places], [starts[places]]
            while len(places):
                begins = found[1][-1] - self._slide
                last = np.maximum(times[places], passed[rows.splits[places]])
                is_open = begins + self._size > last
                places, begins = places[is_open], begins[is_open]
                found[0].append(places)
                found[1].append(begins)
            # In the order of the rows, which `First`, `Last` and `Collect` depend on.
            of_rows, of_windows = map(np.concatenate, found)
            order = np.argsort(of_rows, kind="stable")
            self._fold_windows(rows, of_rows[order], of_windows[order])

    def _fold_windows(self, rows: KeyedRows, places: Longs, starts: Longs) -> None:
        """Fold each row of ``places`` into the window that begins at its start."""
        assert self._folded is not None
        of_rows = rows.splits[places]
        found, at = np.unique(starts, return_inverse=True)
        pairs, place_of = np.unique(of_rows.astype(np.int64) * len(found) + at, return_inverse=True)
        windows = [(pair // len(found), int(found[pair % len(found)])) for pair in pairs.tolist()]
        is_all = self._size <= self._slide  # each row is in one window
        keys = rows.keys if is_all else rows.keys.take(pa.array(places))
        batch = rows.batch if is_all else rows.batch.take(pa.array(places))
        ids = self._groups.ids(windows, place_of, keys)
        self._folded.resize(self._groups.count)
        self._folded.add(ids, batch)

    def _changed(self) -> Iterator[KeyedRows]:
        groups, folded = self._groups, self._folded
        self._begin()
        if folded is None:
            return
        state = folded.state()
        by_split: dict[int, list[tuple[int, dict[bytes, int]]]] = {}
        for (split, start), index in groups.of.items():
            by_split.setdefault(split, []).append((start, index))
        for split, windows in by_split.items():
            keys = [key for _, index in windows for key in index]
            ids = np.fromiter((n for _, index in windows for n in index.values()), np.int64)
            lengths = [len(index) for _, index in windows]
            starts = np.repeat([start for start, _ in windows], lengths)
            ends = (starts + self._size).tolist()
            total, codec = self._accumulators(len(keys))
            stored = self._windows.get(split, ends, keys)
            has = np.flatnonzero([value is not None for value in stored])
            if len(has):
                _, earlier = self._read(codec, [value for value in stored if value is not None])
                total.combine(has, earlier)
            total.combine(np.arange(len(keys)), state.take(pa.array(ids)))
            self._write(split, ends, keys, starts, total)
            if self._settings.updates:
                yield self._output(split, ends, keys, starts, total)
