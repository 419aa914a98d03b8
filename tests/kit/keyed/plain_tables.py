"""A task's tables as plain dicts that are copied whole: what every real `TaskTables` must equal."""

import copy
from collections.abc import Iterator, Sequence

from sluice.runtime.contracts.keyed import StateTable, TaskTables, TimedTable
from sluice.runtime.model.splits import SplitKey

__all__ = ["PlainTables"]

_Entries = dict[tuple[int, int], dict[bytes, bytes]]
_TimedEntries = dict[tuple[int, int], dict[tuple[int, bytes], bytes]]


class PlainTables(TaskTables):
    """All tables of one task. A rollback returns to the copy of the last barrier.

    Attributes:
        plain: by table and split, then key.
        timed: the same, then time and key.
    """

    def __init__(self, splits: Sequence[SplitKey]) -> None:
        self.plain: _Entries = {}
        self.timed: _TimedEntries = {}
        self._ended: tuple[_Entries, _TimedEntries] = ({}, {})
        self._splits = {split: number for number, split in enumerate(splits)}

    def table(self, number: int) -> StateTable:
        """See `TaskTables.table`."""
        return _Plain(self, number)

    def timed_table(self, number: int) -> TimedTable:
        """See `TaskTables.timed_table`."""
        return _Timed(self, number)

    def splits(self) -> Sequence[int]:
        """See `TaskTables.splits`."""
        return sorted(self._splits.values())

    def ordinal(self, split: SplitKey) -> int:
        """See `TaskTables.ordinal`."""
        return self._splits[split]

    def end_epoch(self) -> None:
        """A barrier: what is there now is what a rollback returns to."""
        self._ended = copy.deepcopy((self.plain, self.timed))

    def rollback(self) -> None:
        """The epoch under way is read again."""
        self.plain, self.timed = copy.deepcopy(self._ended)

    def contents(self) -> tuple[_Entries, _TimedEntries]:
        """All entries, without empty tables."""
        plain = {at: entries for at, entries in self.plain.items() if entries}
        timed = {at: entries for at, entries in self.timed.items() if entries}
        return plain, timed


class _Plain(StateTable):
    def __init__(self, tables: PlainTables, number: int) -> None:
        self._tables, self._number = tables, number

    def _entries(self, split: int) -> dict[bytes, bytes]:
        return self._tables.plain.setdefault((self._number, split), {})

    def get(self, split: int, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._entries(split).get(key) for key in keys]

    def put(self, split: int, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        for key, value in zip(keys, values, strict=True):
            self._entries(split).pop(key, None)
            if value is not None:
                self._entries(split)[key] = value

    def scan(self, split: int, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        found = [each for each in self._entries(split).items() if each[0].startswith(prefix)]
        return iter(found)


class _Timed(TimedTable):
    def __init__(self, tables: PlainTables, number: int) -> None:
        self._tables, self._number = tables, number

    def _entries(self, split: int) -> dict[tuple[int, bytes], bytes]:
        return self._tables.timed.setdefault((self._number, split), {})

    def get(self, split: int, times: Sequence[int], keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._entries(split).get(at) for at in zip(times, keys, strict=True)]

    def put(
        self,
        split: int,
        times: Sequence[int],
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
    ) -> None:
        for time_ms, key, value in zip(times, keys, values, strict=True):
            self._entries(split).pop((time_ms, key), None)
            if value is not None:
                self._entries(split)[time_ms, key] = value

    def due(self, split: int, until_ms: int) -> Iterator[tuple[int, list[tuple[bytes, bytes]]]]:
        found: dict[int, list[tuple[bytes, bytes]]] = {}
        for (time_ms, key), value in sorted(self._entries(split).items()):
            if time_ms <= until_ms:
                found.setdefault(time_ms, []).append((key, value))
        return iter(found.items())

    def earliest_ms(self, split: int) -> int | None:
        return min((time_ms for time_ms, _ in self._entries(split)), default=None)
