"""The keyed state of one task: a base in a backend, and over it the changes of the epoch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import repeat
from operator import itemgetter
from typing import cast

from sluice.runtime.contracts.keyed import StateTable, TaskTables, TimedTable
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.splits import SplitKey
from sluice.runtime.model.state.keyed_state import KeyedState
from sluice.runtime.state.backend import StateBackend, TableChanges
from sluice.runtime.state.entries import ABSENT, Entries, TimedEntries, Value, by_time

__all__ = ["EpochChanges", "SplitChanges", "TaskState"]

_MOST_SPLITS = 1 << 15
"""Ordinals are int16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitChanges:
    """The content of one split's section of a change file.

    Attributes:
        key: the split.
        restored: the state that the split came with, if it came in this epoch.
        tables: the changes.
    """

    key: SplitKey
    restored: KeyedState | None
    tables: TableChanges


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochChanges:
    """All that an epoch changed, frozen: the next epoch does not touch it.

    Attributes:
        splits: every split that the task has at the end of the epoch, also unchanged ones.
        size_bytes: memory of the changes.
    """

    splits: tuple[SplitChanges, ...]
    size_bytes: int


LoadSplits = Callable[[StateBackend, Mapping[int, KeyedState]], None]
"""Loads the state of splits from its files into a backend."""


class TaskState(TaskTables):
    """`TaskTables` of a task: `add_split` and `drop_split` between epochs. The task's thread.

    Attributes:
        overlay_bytes: memory of the changes of the epoch under way.
    """

    def __init__(self, backend: StateBackend, *, load: LoadSplits, overlay_mib: float) -> None:
        """Args:
        load: loads the files of splits that come with state.
        overlay_mib: from here on `is_full`.
        """
        self._backend = backend
        self._load = load
        self._most_overlay_bytes = int(overlay_mib * (1 << 20))
        self._ordinals: dict[SplitKey, int] = {}
        self._restored: dict[SplitKey, KeyedState] = {}
        self._overlays: dict[int, _Overlay] = {}
        self._next = 0
        self.overlay_bytes = 0

    @property
    def base_bytes(self) -> int:
        """Memory of the base."""
        return self._backend.size_bytes

    @property
    def is_full(self) -> bool:
        """The epoch has changed so much that its barrier should come before more is read."""
        return self.overlay_bytes >= self._most_overlay_bytes

    def add_splits(self, splits: Mapping[SplitKey, KeyedState | None]) -> None:
        """Take splits with their state; loads all of them at once, in parallel.

        Raises:
            DamagedCheckpointError: a file is not as the checkpoint names it.
            StorageError: a file cannot be read now.
        """
        states: dict[int, KeyedState] = {}
        for key, state in splits.items():
            if key in self._ordinals:
                raise ConfigError("a task has this split already", {"split": key}, "Report this.")
            ordinal = self._free_ordinal()
            self._backend.add_split(ordinal)
            self._ordinals[key] = ordinal
            self._overlays[ordinal] = _Overlay()
            if state is not None:
                self._restored[key] = states[ordinal] = state
        if states:
            self._load(self._backend, states)

    def add_split(self, key: SplitKey, state: KeyedState | None) -> None:
        """See `add_splits`."""
        self.add_splits({key: state})

    def drop_split(self, key: SplitKey) -> None:
        """Forget a split and its state."""
        ordinal = self._ordinals.pop(key)
        self._restored.pop(key, None)
        self.overlay_bytes -= self._overlays.pop(ordinal).size_bytes
        self._backend.drop_split(ordinal)

    def splits(self) -> Sequence[int]:
        return list(self._ordinals.values())

    def ordinal(self, split: SplitKey) -> int:
        return self._ordinals[split]

    def table(self, number: int) -> StateTable:
        return _Table(self, self._backend, self._overlays, number)

    def timed_table(self, number: int) -> TimedTable:
        return _TimedTable(self, self._backend, self._overlays, number)

    def rollback(self) -> None:
        """Forget what the epoch under way has changed."""
        for ordinal in self._overlays:
            self._overlays[ordinal] = _Overlay()
        self.overlay_bytes = 0

    def end_epoch(self) -> EpochChanges:
        """Freeze the epoch's changes, and make them part of the base: a new epoch begins."""
        frozen = tuple(
            SplitChanges(
                key=key,
                restored=self._restored.get(key),
                tables=self._overlays[ordinal].frozen(),
            )
            for key, ordinal in self._ordinals.items()
        )
        changes = EpochChanges(splits=frozen, size_bytes=self.overlay_bytes)
        for split, ordinal in zip(frozen, self._ordinals.values(), strict=True):
            self._backend.apply(ordinal, split.tables)
        self._restored.clear()
        self.rollback()
        return changes

    def close(self) -> None:
        """Free memory and local files. Safe to repeat."""
        self._overlays.clear()
        self._ordinals.clear()
        self._backend.close()

    def _free_ordinal(self) -> int:
        taken = set(self._ordinals.values())
        while self._next % _MOST_SPLITS in taken:
            self._next += 1
        ordinal = self._next % _MOST_SPLITS
        self._next += 1
        return ordinal


class _Overlay:
    """The changes of the epoch under way in one split."""

    __slots__ = ("plain", "size_bytes", "timed")

    def __init__(self) -> None:
        self.plain: dict[int, Entries] = {}
        self.timed: dict[int, TimedEntries] = {}
        self.size_bytes = 0

    def frozen(self) -> TableChanges:
        return TableChanges(
            plain={number: table.values for number, table in self.plain.items()},
            timed={number: dict(table.until(None)) for number, table in self.timed.items()},
        )


class _Tables:
    def __init__(
        self, state: TaskState, backend: StateBackend, overlays: dict[int, _Overlay], number: int
    ) -> None:
        self._state = state
        self._backend = backend
        self._overlays = overlays
        self._number = number

    def _grown(self, overlay: _Overlay, size_bytes: int) -> None:
        overlay.size_bytes += size_bytes
        self._state.overlay_bytes += size_bytes
        self._backend.require_room(self._state.overlay_bytes)


class _Table(_Tables, StateTable):
    def get(self, split: int, keys: Sequence[bytes]) -> list[Value]:
        entries = self._overlays[split].plain.get(self._number)
        if entries is None:
            return self._backend.get(split, self._number, keys)
        found = list(map(entries.values.get, keys, repeat(ABSENT)))
        missing = [key for key, value in zip(keys, found, strict=True) if value is ABSENT]
        if not missing:
            return found
        base = iter(self._backend.get(split, self._number, missing))
        return [next(base) if value is ABSENT else value for value in found]

    def put(self, split: int, keys: Sequence[bytes], values: Sequence[Value]) -> None:
        overlay = self._overlays[split]
        entries = overlay.plain.get(self._number)
        if entries is None:
            entries = overlay.plain[self._number] = Entries(is_base=False)
        before = entries.size_bytes
        entries.put(keys, values)
        self._grown(overlay, entries.size_bytes - before)

    def scan(self, split: int, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        entries = self._overlays[split].plain.get(self._number)
        base = self._backend.scan(split, self._number, prefix)
        if entries is None:
            yield from base
            return
        changed = entries.values
        for entry in base:
            if entry[0] not in changed:
                yield entry
        for key, value in entries.starting_with(prefix):
            if value is not None:
                yield key, value


class _TimedTable(_Tables, TimedTable):
    def get(self, split: int, times: Sequence[int], keys: Sequence[bytes]) -> list[Value]:
        found = self._backend.get_timed(split, self._number, times, keys)
        table = self._overlays[split].timed.get(self._number)
        if table is None:
            return found
        return [
            table.at(time).get(key, base)
            for time, key, base in zip(times, keys, found, strict=True)
        ]

    def put(
        self,
        split: int,
        times: Sequence[int],
        keys: Sequence[bytes],
        values: Sequence[Value],
    ) -> None:
        overlay = self._overlays[split]
        table = overlay.timed.get(self._number)
        if table is None:
            table = overlay.timed[self._number] = TimedEntries(is_base=False)
        grown = (table.put(*each) for each in by_time(times, keys, values).items())
        self._grown(overlay, sum(grown))

    def due(self, split: int, until_ms: int) -> Iterator[tuple[int, list[tuple[bytes, bytes]]]]:
        return self._merged(split, until_ms)

    def earliest_ms(self, split: int) -> int | None:
        changed = self._overlays[split].timed.get(self._number)
        added = None if changed is None else changed.earliest_ms()
        last, now = None, cast(Mapping[bytes, Value], {})
        for time, key in self._backend.timed_keys(split, self._number):
            if time != last:
                if added is not None and time >= added:
                    break
                last, now = time, {} if changed is None else changed.at(time)
            if now.get(key, ABSENT) is not None:
                return time
        return added

    def _merged(
        self, split: int, until_ms: int | None
    ) -> Iterator[tuple[int, list[tuple[bytes, bytes]]]]:
        """The entries at each time, with what the epoch had changed when this was called."""
        table = self._overlays[split].timed.get(self._number)
        changed = {t: dict(entries) for t, entries in table.until(until_ms)} if table else {}
        base = self._backend.until(split, self._number, until_ms)
        return _with_changes(base, changed)


def _with_changes(
    base: Iterator[tuple[int, Mapping[bytes, bytes]]], changed: Mapping[int, Mapping[bytes, Value]]
) -> Iterator[tuple[int, list[tuple[bytes, bytes]]]]:
    none: Mapping[bytes, bytes] = {}
    added = ((time, none) for time in changed)  # in order, as `until` gave them
    last = None
    for time, entries in merge(base, added, key=itemgetter(0)):
        if time == last:
            continue  # of the base, it came first
        last = time
        now: dict[bytes, Value] = {**entries, **changed.get(time, {})}
        found = sorted((key, value) for key, value in now.items() if value is not None)
        if found:
            yield time, found
