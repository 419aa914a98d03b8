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
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import TypeVar

from sluice.runtime.errors import DamagedCheckpointError
from sluice.runtime.model.checkpoint_record import StateSnapshot
from sluice.runtime.savepoint.file_copies import THREADS
from sluice.runtime.savepoint.state_versions import (
    StoreIds,
    files_in_snapshot,
    ids_in_commit,
    store_version,
)
from sluice.runtime.storage.file_system import FileSystem

__all__ = [
    "files_of_batch",
    "is_shared",
    "location_of",
]

_T = TypeVar("_T")
_NAME = re.compile(r"[^/,]+")
_NUMBER = re.compile(r"\d+")
_STORE = re.compile(r"[^/,._][^/,.]*")
_STATE_DATA = re.compile(r"\d+_[0-9a-f-]+\.(?:zip|changelog)(?:\.crc)?|[^/]+\.sst|\d+-[^/]+\.log")
_SCHEMAS = "_metadata"
_NO_STORES = frozenset({"SSTs", "logs"})


def location_of(state: StateSnapshot) -> str:
    """Spark's checkpoint location of a query, relative to the job's checkpoint directory."""
    return str(PurePosixPath(state.location).parent)


def is_shared(path: str) -> bool:
    """Whether Spark never replaces a file, because its name is unique; pure."""
    return _STATE_DATA.fullmatch(path.rpartition("/")[2]) is not None


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
        operators = self._fs.names(self._at("state"), _NUMBER) if done >= 0 else []
        with ThreadPoolExecutor(THREADS, "sluice-listing") as pool:
            for operator in operators:
                found |= set(self._of_operator(operator, done))
                partitions = self._fs.names(self._at(f"state/{operator}"), _NUMBER)
                for paths in pool.map(
                    lambda each, operator=operator: list(self._of_partition(operator, each, done)),
                    partitions,
                ):
                    found |= set(paths)
        return found

    def _of_operator(self, operator: str, batch_id: int) -> Iterator[str]:
        """Its own description, without what later batches added."""
        for name in ("_metadata", "_stateSchema"):
            for path in self._below(f"state/{operator}/{name}"):
                number = re.match(r"\d+", path.rpartition("/")[2])
                if number is None or int(number[0]) <= batch_id:
                    yield path

    def _of_partition(self, operator: str, partition: str, batch_id: int) -> Iterator[str]:
        directory = self._at(f"state/{operator}/{partition}")
        names = self._fs.names(directory, _NAME)
        stores = [each for each in names if _STORE.fullmatch(each) and each not in _NO_STORES]
        for store in (directory, *(f"{directory}/{each}" for each in stores)):
            of_store = names if store == directory else self._fs.names(store, _NAME)
            if store == directory and stores:
                continue
            if _SCHEMAS in of_store:
                yield from self._below(f"{store}/{_SCHEMAS}"[len(self._location) + 1 :])
            yield from self._of_store(store, of_store, batch_id, (operator, partition))

    def _of_store(
        self, directory: str, names: Iterable[str], batch_id: int, key: tuple[str, str]
    ) -> Iterator[str]:
        def ids_at(version: int) -> frozenset[str] | None:
            ids = self._ids_after(version - 1)
            return None if ids is None else ids.get(key, frozenset())

        version = store_version(names, batch_id + 1, ids_at)
        where = f"{directory}/{batch_id + 1}_….changelog"
        if version is None:
            raise _missing({"uri": self._fs.uri, "path": where})
        yield from (f"{directory}/{name}" for name in version.names)
        for snapshot in version.snapshots:
            path = f"{directory}/{snapshot}"
            data = self._read(path)
            listed = self._parsed(files_in_snapshot, data, path)
            yield from (f"{directory}/{name}" for name in listed)

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
