"""Entries of one state table of one split in Python dicts: a base in memory, or an epoch's changes.

In an epoch's changes a value of None is a removal; a base holds no None. Sizes are estimates of
the memory that Python needs.
"""

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import repeat
from typing import cast

__all__ = ["ABSENT", "ENTRY_BYTES", "Entries", "TimedEntries", "Value", "by_time"]

Value = bytes | None

ENTRY_BYTES = 180
"""Memory of an entry beside the bytes of its key and value: headers, rounding, the dict's slot."""

ABSENT: Value = bytes(bytearray(b"\0absent"))
"""The key is absent. Compare by identity; None is a removed key."""

_BLOCK_KEYS = 1024
_LIVELY_HEAP = 64


class Entries:
    """Key -> value. Keys are put in order for `starting_with` only, from its first call on.

    Attributes:
        values: for reading; `put` alone changes it.
        size_bytes: of all entries.
    """

    __slots__ = ("_index", "_is_base", "_length", "size_bytes", "values")

    def __init__(self, *, is_base: bool) -> None:
        self.values: dict[bytes, Value] = {}
        self.size_bytes = 0
        self._is_base = is_base
        self._index: _SortedKeys | None = None
        self._length: int | None = None

    def put(self, keys: Collection[bytes], values: Collection[Value]) -> None:
        """Set the values of different keys."""
        if not keys:
            return
        if self._index is None and self._are_alike(values):
            before = len(self.values)
            self.values.update(zip(keys, values, strict=True))
            if grown := len(self.values) - before:
                usual = sum(map(len, keys)) // len(keys)  # keys of a table are of about one size
                self.size_bytes += grown * (usual + (self._length or 0) + ENTRY_BYTES)
            return
        self._put_each(keys, values)

    def _are_alike(self, values: Collection[Value]) -> bool:
        """Whether all values have one length, also those before: then no old value is looked at,
        which is not in the processor's cache."""
        if (self.values and self._length is None) or None in values:
            return False
        lengths = set(map(len, cast(Collection[bytes], values)))
        if not self.values and len(lengths) == 1:
            (self._length,) = lengths
        return lengths == {self._length}

    def _put_each(self, keys: Collection[bytes], values: Collection[Value]) -> None:
        others = {len(value) for value in values if value is not None} - {self._length}
        if others or not self._is_base:
            self._length = None
        old = list(map(self.values.get, keys, repeat(ABSENT)))
        self.size_bytes += _total(values) - _total(old)
        added = [key for key, was in zip(keys, old, strict=True) if was is ABSENT]
        self.size_bytes += sum(map(len, added)) + ENTRY_BYTES * len(added)
        if self._index is not None:
            self._index.add(added)
        self.values.update(zip(keys, values, strict=True))
        if self._is_base and None in values:
            self._drop([key for key, value in zip(keys, values, strict=True) if value is None])

    def starting_with(self, prefix: bytes) -> Iterator[tuple[bytes, Value]]:
        """The entries whose key begins with ``prefix``. Not while they change."""
        if not prefix:
            return iter(self.values.items())
        if self._index is None:
            self._index = _SortedKeys(self.values)
        values = self.values
        return ((key, values[key]) for key in self._index.starting_with(prefix))

    def _drop(self, keys: list[bytes]) -> None:
        for key in keys:
            del self.values[key]
        self.size_bytes -= sum(map(len, keys)) + ENTRY_BYTES * len(keys)
        if self._index is not None:
            self._index.remove(keys)


class TimedEntries:
    """Time -> key -> value, with a heap of the times."""

    __slots__ = ("_by_time", "_heap", "_is_base")

    def __init__(self, *, is_base: bool) -> None:
        self._by_time: dict[int, Entries] = {}
        self._heap: list[int] = []
        self._is_base = is_base

    @property
    def size_bytes(self) -> int:
        """Of all entries."""
        return sum(entries.size_bytes + ENTRY_BYTES for entries in self._by_time.values())

    def at(self, time_ms: int) -> Mapping[bytes, Value]:
        """The entries at one time."""
        entries = self._by_time.get(time_ms)
        return entries.values if entries else {}

    def put(self, time_ms: int, changes: Mapping[bytes, Value]) -> int:
        """Set each key's value at one time; returns by how many bytes the table has grown."""
        entries = self._by_time.get(time_ms)
        if entries is None:
            entries = self._by_time[time_ms] = Entries(is_base=self._is_base)
            heapq.heappush(self._heap, time_ms)
        before = entries.size_bytes
        entries.put(changes.keys(), changes.values())
        if not entries.values:
            del self._by_time[time_ms]
            if len(self._heap) > 2 * len(self._by_time) + _LIVELY_HEAP:
                self._heap = sorted(self._by_time)
        return entries.size_bytes - before

    def until(self, until_ms: int | None) -> Iterator[tuple[int, Mapping[bytes, Value]]]:
        """The entries at each time <= ``until_ms``, earliest first. Not while they change."""
        heap, last = self._heap, None
        while heap and heap[0] not in self._by_time:
            heapq.heappop(heap)
        front = [(heap[0], 0)] if heap else []
        while front:
            time_ms, at = heapq.heappop(front)
            if until_ms is not None and time_ms > until_ms:
                return
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(heap):
                    heapq.heappush(front, (heap[child], child))
            if time_ms != last and time_ms in self._by_time:
                last = time_ms
                yield time_ms, self._by_time[time_ms].values

    def earliest_ms(self) -> int | None:
        """The earliest time with an entry that is not a removal."""
        for time_ms, entries in self.until(None):
            if any(value is not None for value in entries.values()):
                return time_ms
        return None


def by_time(
    times: Iterable[int], keys: Iterable[bytes], values: Iterable[Value]
) -> dict[int, dict[bytes, Value]]:
    """The entries by their times."""
    found: dict[int, dict[bytes, Value]] = {}
    for time, key, value in zip(times, keys, values, strict=True):
        found.setdefault(time, {})[key] = value
    return found


class _SortedKeys:
    """Different keys in order, in blocks, so that one more costs little."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        ordered = sorted(keys)
        self._blocks = [
            ordered[at : at + _BLOCK_KEYS] for at in range(0, len(ordered), _BLOCK_KEYS)
        ] or [[]]
        self._firsts = [block[0] if block else b"" for block in self._blocks]

    def add(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            at = self._block_of(key)
            block = self._blocks[at]
            insort(block, key)
            if len(block) > 2 * _BLOCK_KEYS:
                half = block[_BLOCK_KEYS:]
                del block[_BLOCK_KEYS:]
                self._blocks.insert(at + 1, half)
                self._firsts.insert(at + 1, half[0])

    def remove(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            at = self._block_of(key)
            block = self._blocks[at]
            del block[bisect_left(block, key)]
            if not block and at:
                del self._blocks[at], self._firsts[at]

    def starting_with(self, prefix: bytes) -> Iterator[bytes]:
        for at in range(self._block_of(prefix), len(self._blocks)):
            block = self._blocks[at]
            for key in block[bisect_left(block, prefix) :]:
                if not key.startswith(prefix):
                    return
                yield key

    def _block_of(self, key: bytes) -> int:
        """The last block that begins at or before ``key``; else the first one."""
        return max(bisect_right(self._firsts, key) - 1, 0)


def _total(values: Iterable[Value]) -> int:
    return sum(len(value) for value in values if value is not None and value is not ABSENT)
