"""Entries of a database that were used last, in Python dicts."""

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat

from sluice.runtime.state.entries import ABSENT, ENTRY_BYTES, Value

__all__ = ["ReadCache"]

_Table = tuple[int, int]


class ReadCache:
    """The value of keys, or that there is none. One thread.

    Two generations: each entry that is used goes to the younger one. Once that has half of the
    memory, it replaces the older one.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes // 2
        self._young: dict[_Table, dict[bytes, Value]] = {}
        self._old: dict[_Table, dict[bytes, Value]] = {}
        self._young_bytes = 0
        self._old_bytes = 0

    @property
    def size_bytes(self) -> int:
        """About the memory that the entries take."""
        return self._young_bytes + self._old_bytes

    def get(
        self, table: _Table, keys: Sequence[bytes], read: Callable[[list[bytes]], list[Value]]
    ) -> list[Value]:
        """The value of each key; ``read`` gets those that are not here, in order of bytes."""
        young = self._young.setdefault(table, {})
        found = list(map(young.get, keys, repeat(ABSENT)))
        if not any(value is ABSENT for value in found):
            return found
        missing = [key for key, value in zip(keys, found, strict=True) if value is ABSENT]
        old = self._old.get(table, {})
        added: dict[bytes, Value] = {key: old[key] for key in missing if key in old}
        unknown = sorted(key for key in missing if key not in added)
        added.update(zip(unknown, read(unknown), strict=True))
        self._add(table, added)
        return [
            added[key] if value is ABSENT else value for key, value in zip(keys, found, strict=True)
        ]

    def put(self, table: _Table, changes: Mapping[bytes, Value]) -> None:
        """Note values that were written."""
        self._add(table, changes)

    def forget_split(self, split: int) -> None:
        """Forget all tables of a split."""
        for tables in (self._young, self._old):
            for table in [each for each in tables if each[0] == split]:
                del tables[table]

    def _add(self, table: _Table, entries: Mapping[bytes, Value]) -> None:
        young = self._young.setdefault(table, {})
        before = len(young)
        young.update(entries)
        if grown := len(young) - before:
            sizes = sum(map(len, entries)) + sum(len(v) for v in entries.values() if v is not None)
            self._young_bytes += grown * (ENTRY_BYTES + sizes // len(entries))
        if self._young_bytes > self._most_bytes:
            self._old, self._old_bytes = self._young, self._young_bytes
            self._young, self._young_bytes = {}, 0
