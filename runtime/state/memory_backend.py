"""State in Python dicts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

import pyarrow as pa

from sluice.runtime.errors import ConfigError
from sluice.runtime.state.backend import StateBackend, TableChanges
from sluice.runtime.state.entries import Entries, TimedEntries, Value, by_time
from sluice.runtime.state.state_rows import slices

__all__ = ["MemoryBackend"]


class MemoryBackend(StateBackend):
    """A dict for each table and split. All state must fit in memory."""

    def __init__(self, *, memory_bytes: int) -> None:
        """Args:
        memory_bytes: for everything, also for the changes of the epoch under way.
        """
        self._most_bytes = memory_bytes
        self._splits: dict[int, _Split] = {}
        self._size_bytes: int | None = 0

    @property
    def size_bytes(self) -> int:
        if self._size_bytes is None:
            self._size_bytes = sum(split.size_bytes for split in self._splits.values())
        return self._size_bytes

    def require_room(self, changed_bytes: int) -> None:
        used_bytes = self.size_bytes + changed_bytes
        if used_bytes > self._most_bytes:
            raise ConfigError(
                "keyed state needs more memory than it may have",
                {"used_mib": used_bytes >> 20, "state_memory_mib": self._most_bytes >> 20},
                'Set state_backend="rocksdb", or raise state_memory_mib.',
            )

    def add_split(self, split: int) -> None:
        self._splits[split] = _Split()

    def drop_split(self, split: int) -> None:
        del self._splits[split]
        self._size_bytes = None

    def apply(self, split: int, changes: TableChanges) -> None:
        self._splits[split].apply(changes)
        self._size_bytes = None

    def get(self, split: int, table: int, keys: Sequence[bytes]) -> list[Value]:
        entries = self._splits[split].plain.get(table)
        return list(map(entries.values.get, keys)) if entries else [None] * len(keys)

    def scan(self, split: int, table: int, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        entries = self._splits[split].plain.get(table)
        found = entries.starting_with(prefix) if entries else iter(())
        return cast(Iterator[tuple[bytes, bytes]], found)

    def get_timed(
        self, split: int, table: int, times: Sequence[int], keys: Sequence[bytes]
    ) -> list[Value]:
        entries = self._splits[split].timed.get(table)
        if entries is None:
            return [None] * len(keys)
        return [entries.at(time).get(key) for time, key in zip(times, keys, strict=True)]

    def until(
        self, split: int, table: int, until_ms: int | None
    ) -> Iterator[tuple[int, Mapping[bytes, bytes]]]:
        entries = self._splits[split].timed.get(table)
        found = entries.until(until_ms) if entries else iter(())
        return cast(Iterator[tuple[int, Mapping[bytes, bytes]]], found)

    def timed_keys(self, split: int, table: int) -> Iterator[tuple[int, bytes]]:
        for time_ms, entries in self.until(split, table, None):
            yield from ((time_ms, key) for key in entries)

    def load(self, split: int, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            for number, times, keys, values in slices(batch):
                if times is None:
                    changes = TableChanges(plain={number: dict(zip(keys, values, strict=True))})
                else:
                    changes = TableChanges(timed={number: by_time(times, keys, values)})
                self.apply(split, changes)
            self.require_room(0)

    def close(self) -> None:
        self._splits.clear()


class _Split:
    def __init__(self) -> None:
        self.plain: dict[int, Entries] = {}
        self.timed: dict[int, TimedEntries] = {}
        self.size_bytes = 0

    def apply(self, changes: TableChanges) -> None:
        for number, entries in changes.plain.items():
            table = self.plain.setdefault(number, Entries(is_base=True))
            before = table.size_bytes
            table.put(entries.keys(), entries.values())
            self.size_bytes += table.size_bytes - before
        for number, times in changes.timed.items():
            timed = self.timed.setdefault(number, TimedEntries(is_base=True))
            for time_ms, entries in times.items():
                self.size_bytes += timed.put(time_ms, entries)
