"""Which of Spark's files a query needs to resume after a batch.

::

    metadata                                 id of the query
    sources/…                                first offsets of sources that keep them
    offsets/41, offsets/42, commits/42       Spark plans from the last two batches
    state/0/_metadata/metadata               an operator: stores, partitions; or v2/BATCH
    state/0/_stateSchema/default/0_7c9cd7c5  schemas of `transformWithState`
    state/0/1/…                              stores of partition 1: `state_versions`
    state/0/1/left-keyToNumValues/…          a store with a name, as of a join

Spark reads its commit log's last entry only. A batch that is not in it runs again when the query
starts; then the state before this batch is needed.
"""

import functools
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import TypeVar

from sluice.runtime.checkpoint.checkpoint_slots import STATE
from sluice.runtime.errors import DamagedCheckpointError
from sluice.runtime.model.checkpoint_record import StateSnapshot
from sluice.runtime.savepoint.state_versions import (
    StoreIds,
    files_in_snapshot,
    ids_in_commit,
    store_version,
)
from sluice.runtime.storage.file_copies import THREADS
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["files_of_batch", "is_shared", "location_of"]

_T = TypeVar("_T")
_NAME = re.compile(r"[^/,]+")
_STORE = re.compile(r"[^/,._][^/,.]*")
_STATE_DATA = re.compile(r"\d+_[0-9a-f-]+\.(?:zip|changelog)(?:\.crc)?|[^/]+\.sst|\d+-[^/]+\.log")
_SCHEMAS = "_metadata"
_NO_STORES = frozenset({"SSTs", "logs"})


def location_of(state: StateSnapshot) -> str:
    """Spark's checkpoint location of a query, relative to the job's checkpoint directory."""
    return str(PurePosixPath(state.location).parent)


def is_shared(path: str) -> bool:
    """Whether a file is never replaced, because its name is unique: those of keyed state, and data
    of Spark's state stores; pure."""
    is_keyed = path.startswith(f"{STATE}/")
    return is_keyed or _STATE_DATA.fullmatch(path.rpartition("/")[2]) is not None


def files_of_batch(fs: FileSystem, location: str, batch_id: int) -> list[str]:
    """The files that a query needs to resume after a batch, sorted, relative to ``fs``.

    Args:
        location: Spark's checkpoint location.
        batch_id: the last batch; if Spark has not completed it, the files to run it again.
    Raises:
        DamagedCheckpointError: a file is missing or cannot be read.
    """
    return sorted(_BatchFiles(fs, location, batch_id).listed())


class _BatchFiles:
    def __init__(self, fs: FileSystem, location: str, batch_id: int) -> None:
        self._fs = fs
        self._location = location
        self._batch_id = batch_id
        self._ids_after = functools.cache(self._read_ids)

    def listed(self) -> set[str]:
        last = self._batch_id
        done = last if self._fs.exists(self._at(f"commits/{last}")) else last - 1
        found = {self._at("metadata"), *self._below("sources")}
        found |= {self._at(f"offsets/{each}") for each in (last - 1, last) if each >= 0}
        if done >= 0:
            found.add(self._at(f"commits/{done}"))
        for path in found:
            self._require(self._fs.exists(path), path)
        stores = self._ids_after(done) if done >= 0 else None
        for operator in {operator for operator, _ in stores or ()}:
            found |= set(self._of_operator(operator, done))
        with ThreadPoolExecutor(THREADS, "sluice-listing") as pool:
            for paths in pool.map(lambda key: list(self._of_partition(key, done)), stores or ()):
                found |= set(paths)
        return found

    def _of_operator(self, operator: str, batch_id: int) -> Iterator[str]:
        """Its own description, without what later batches added."""
        for name in ("_metadata", "_stateSchema"):
            for path in self._below(f"state/{operator}/{name}"):
                number = re.match(r"\d+", path.rpartition("/")[2])
                if number is None or int(number[0]) <= batch_id:
                    yield path

    def _of_partition(self, key: tuple[str, str], batch_id: int) -> Iterator[str]:
        directory = self._at("state/{}/{}".format(*key))
        names = self._fs.names(directory, _NAME)
        named = [each for each in names if _STORE.fullmatch(each) and each not in _NO_STORES]
        stores = [f"{directory}/{each}" for each in named] or [directory]
        found: set[str] = set()
        for store in stores:
            found |= set(self._of_store(store, batch_id, key))
        for each in self._ids_at(batch_id + 1, key) or ():
            path = f"{directory}/{batch_id + 1}_{each}.changelog"
            self._require(any(f"/{batch_id + 1}_{each}." in taken for taken in found), path)
        yield from found

    def _of_store(self, directory: str, batch_id: int, key: tuple[str, str]) -> Iterator[str]:
        names = self._fs.names(directory, _NAME)
        if _SCHEMAS in names:
            yield from self._below(f"{directory}/{_SCHEMAS}".removeprefix(f"{self._location}/"))
        version = store_version(names, batch_id + 1, lambda number: self._ids_at(number, key))
        if version is None:
            raise _missing({"uri": self._fs.uri, "path": directory, "version": batch_id + 1})
        yield from (f"{directory}/{name}" for name in version.names)
        for snapshot in version.snapshots:
            path = f"{directory}/{snapshot}"
            listed = self._parsed(files_in_snapshot, self._read(path), path)
            yield from (f"{directory}/{name}" for name in listed)

    def _ids_at(self, version: int, key: tuple[str, str]) -> frozenset[str] | None:
        ids = self._ids_after(version - 1)
        return None if ids is None else ids.get(key, frozenset())

    def _read_ids(self, batch_id: int) -> StoreIds | None:
        """The ids of the state versions after a batch; None if Spark has deleted the entry."""
        path = self._at(f"commits/{batch_id}")
        data = self._fs.read(path)
        return None if data is None else self._parsed(ids_in_commit, data, path)

    def _read(self, path: str) -> bytes:
        data = self._fs.read(path)
        self._require(data is not None, path)
        return data or b""

    def _parsed(self, parse: Callable[[bytes], _T], data: bytes, path: str) -> _T:
        try:
            return parse(data)
        except ValueError as error:
            raise DamagedCheckpointError(
                "a file of Spark's state cannot be read",
                {"uri": self._fs.uri, "path": path, "error": error},
                "Choose another checkpoint or savepoint, and keep this file.",
            ) from error

    def _require(self, is_there: bool, path: str) -> None:
        if not is_there:
            raise _missing({"uri": self._fs.uri, "path": path})

    def _below(self, directory: str) -> Iterator[str]:
        """All files below a directory, without those that Hadoop hides."""
        for entry in self._fs.entries(self._at(directory)):
            path = f"{directory}/{entry.name}"
            if entry.is_directory:
                yield from self._below(path)
            elif not entry.name.startswith("."):
                yield self._at(path)

    def _at(self, path: str) -> str:
        return f"{self._location}/{path}"


def _missing(where: dict[str, object]) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        "a file that the state of a checkpoint needs is missing",
        where,
        "Choose a newer checkpoint, or a savepoint: Spark deletes the files of old batches.",
    )
