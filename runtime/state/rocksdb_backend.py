"""State in RocksDB databases on the local disk, beyond what memory holds."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from sluice.runtime.errors import ConfigError, StorageError
from sluice.runtime.extras import extras_named
from sluice.runtime.state.backend import StateBackend, TableChanges
from sluice.runtime.state.entries import Value
from sluice.runtime.state.local_directory import LocalDirectory
from sluice.runtime.state.read_cache import ReadCache
from sluice.runtime.state.state_rows import slices

__all__ = ["RocksDbBackend"]

_BATCH_ENTRIES = 20_000
_FILE_BYTES = 64 << 20
_OPEN_FILES = 64  # of each database
_BLOOM_BITS = 10
_END_OF_TIME = (1 << 63) - 1
_SIGN = 1 << 63


class RocksDbBackend(StateBackend):
    """One database for each split, without a write-ahead log: the files of the checkpoint are the
    durable copy. The memory goes to a block cache and write buffers, shared by all splits, and to
    a cache of entries that were used last.

    A key in a database is the table's number (4 bytes), in timed tables the time with its sign
    flipped (8 bytes), and the entry's key. This is the order of state files.
    """

    def __init__(self, *, memory_bytes: int, directory: str | None = None) -> None:
        """Args:
        memory_bytes: for everything, also for the changes of the epoch under way.
        directory: where to keep the databases; None: where temporary files are.
        Raises:
            MissingRequirementError: the package is not installed; names the extra.
        """
        with extras_named():
            import rocksdict
        self._rocks: Any = rocksdict
        self._most_bytes = memory_bytes
        self._cache = rocksdict.Cache(memory_bytes // 4)
        self._buffers = rocksdict.WriteBufferManager.new_write_buffer_manager_with_cache(
            memory_bytes // 8, False, self._cache
        )
        self._entries = ReadCache(memory_bytes * 3 // 8)
        self._unlogged = self._rocks.WriteOptions()
        self._unlogged.disable_wal = True
        self._directory = LocalDirectory(directory)
        self._databases: dict[int, Any] = {}
        self._earliest: dict[tuple[int, int], int] = {}

    @property
    def size_bytes(self) -> int:
        return int(self._cache.get_usage()) + self._entries.size_bytes

    def require_room(self, changed_bytes: int) -> None:
        if changed_bytes > self._most_bytes:
            raise ConfigError(
                "an epoch changes more state than its memory holds",
                {"changed_mib": changed_bytes >> 20, "state_memory_mib": self._most_bytes >> 20},
                "Raise state_memory_mib, or make epochs smaller.",
            )

    def add_split(self, split: int) -> None:
        with self._failures_named(split):
            self._databases[split] = self._rocks.Rdict(
                str(self._directory.path / str(split)), self._options()
            )

    def drop_split(self, split: int) -> None:
        self._entries.forget_split(split)
        for table in [each for each in self._earliest if each[0] == split]:
            del self._earliest[table]
        with self._failures_named(split):
            self._databases.pop(split).close()
            self._rocks.Rdict.destroy(str(self._directory.path / str(split)))

    def load(self, split: int, batches: Iterable[pa.RecordBatch]) -> None:
        with self._failures_named(split):
            rows = iter(batches)
            paths = [
                self._write_file(self._directory.path / f"{split}-{at}.sst", first, rows)
                for at, first in enumerate(rows)
            ]
            if paths:
                moving = self._rocks.IngestExternalFileOptions()
                moving.set_move_files(True)
                self._databases[split].ingest_external_file(paths, moving)

    def apply(self, split: int, changes: TableChanges) -> None:
        for table, entries in changes.plain.items():
            self._write(split, zip(_places(table, None, entries), entries.values(), strict=True))
            self._entries.put((split, table), entries)
        for table, by_time in changes.timed.items():
            self._write(
                split,
                (
                    (head + key, value)
                    for time_ms, entries in by_time.items()
                    for head in [_place(table, time_ms)]
                    for key, value in entries.items()
                ),
            )
            if by_time and (split, table) in self._earliest:
                earliest = min(self._earliest[split, table], *by_time)
                self._earliest[split, table] = earliest

    def get(self, split: int, table: int, keys: Sequence[bytes]) -> list[Value]:
        return self._entries.get(
            (split, table), keys, lambda missing: self._read(split, _places(table, None, missing))
        )

    def scan(self, split: int, table: int, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        head = _place(table)
        for key, value in self._iterate(split, head + prefix, _after(head + prefix)):
            yield key[len(head) :], value

    def get_timed(
        self, split: int, table: int, times: Sequence[int], keys: Sequence[bytes]
    ) -> list[Value]:
        return self._read(split, _places(table, times, keys))

    def until(
        self, split: int, table: int, until_ms: int | None
    ) -> Iterator[tuple[int, Mapping[bytes, bytes]]]:
        last = _END_OF_TIME if until_ms is None else until_ms
        time_ms: int | None = None
        entries: dict[bytes, bytes] = {}
        for of_entry, key, value in self._timed(split, table, last):
            if of_entry != time_ms:
                if time_ms is not None:
                    yield time_ms, entries
                time_ms, entries = of_entry, {}
            entries[key] = value
        if time_ms is not None:
            yield time_ms, entries

    def timed_keys(self, split: int, table: int) -> Iterator[tuple[int, bytes]]:
        for time_ms, key, _ in self._timed(split, table, _END_OF_TIME):
            yield time_ms, key

    def close(self) -> None:
        databases, self._databases = self._databases, {}
        for split, database in databases.items():
            with self._failures_named(split):
                database.close()
        self._directory.close()

    def _read(self, split: int, places: Iterable[bytes]) -> list[Value]:
        with self._failures_named(split):
            found: list[Value] = self._databases[split].get(list(places))
            return found

    def _write_file(
        self, path: Path, first: pa.RecordBatch, following: Iterator[pa.RecordBatch]
    ) -> str:
        """A file of about `_FILE_BYTES`. It holds one batch in memory."""
        writer = self._rocks.SstFileWriter(self._options())
        writer.open(str(path))
        batches = chain([first], _up_to(following, _FILE_BYTES - first.nbytes))
        for table, times, keys, values in chain.from_iterable(map(slices, batches)):
            for place, value in zip(_places(table, times, keys), values, strict=True):
                writer[place] = value
        writer.finish()
        return str(path)

    def _write(self, split: int, entries: Iterable[tuple[bytes, Value]]) -> None:
        left = iter(entries)
        while some := list(islice(left, _BATCH_ENTRIES)):
            batch = self._rocks.WriteBatch(raw_mode=True)
            for place, value in some:
                if value is None:
                    batch.delete(place)
                else:
                    batch[place] = value
            with self._failures_named(split):
                self._databases[split].write(batch, self._unlogged)

    def _timed(self, split: int, table: int, last: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Time, key and value of each entry of a timed table up to a time, in order."""
        start = self._earliest.get((split, table))
        begin = _place(table, start)
        is_empty = True
        for place, value in self._iterate(split, begin, _after(_place(table, last))):
            time_ms = int.from_bytes(place[4:12], "big") - _SIGN
            if is_empty:
                self._earliest[split, table] = time_ms  # before it, only removed entries are
                is_empty = False
            yield time_ms, place[12:], value
        if is_empty:
            self._earliest[split, table] = min(last, _END_OF_TIME - 1) + 1

    def _iterate(self, split: int, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        bounds = self._rocks.ReadOptions()
        bounds.set_iterate_upper_bound(end)
        with self._failures_named(split):
            yield from self._databases[split].items(from_key=begin, read_opt=bounds)

    def _options(self) -> Any:  # noqa: ANN401 - the package has no useful types
        rocks = self._rocks
        tables = rocks.BlockBasedOptions()
        tables.set_block_cache(self._cache)
        tables.set_cache_index_and_filter_blocks(True)  # they count, too
        tables.set_pin_l0_filter_and_index_blocks_in_cache(True)
        tables.set_bloom_filter(_BLOOM_BITS, False)
        tables.set_data_block_index_type(rocks.DataBlockIndexType.binary_and_hash())
        options = rocks.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(tables)
        options.set_write_buffer_manager(self._buffers)
        options.set_compression_type(rocks.DBCompressionType.lz4())
        options.set_max_open_files(_OPEN_FILES)
        options.set_max_background_jobs(2)
        return options

    @contextlib.contextmanager
    def _failures_named(self, split: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if type(error) is not Exception:
                raise
            raise StorageError(  # the package has no type for RocksDB's errors
                "the local database of keyed state failed",
                {"split": split, "directory": self._directory.path, "error": error},
                "Check the disk and its free space. The task restarts from the last checkpoint.",
            ) from error


def _place(table: int, time_ms: int | None = None) -> bytes:
    head = table.to_bytes(4, "big")
    return head if time_ms is None else head + (time_ms + _SIGN).to_bytes(8, "big")


def _places(table: int, times: Sequence[int] | None, keys: Iterable[bytes]) -> Iterator[bytes]:
    if times is None:
        head = _place(table)
        return (head + key for key in keys)
    return (_place(table, time_ms) + key for time_ms, key in zip(times, keys, strict=True))


def _after(prefix: bytes) -> bytes:
    """The least key after all that begin with ``prefix``."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1])


def _up_to(batches: Iterator[pa.RecordBatch], most_bytes: int) -> Iterator[pa.RecordBatch]:
    """The next batches, of about so many bytes together."""
    while most_bytes > 0 and (batch := next(batches, None)) is not None:
        most_bytes -= batch.nbytes
        yield batch
