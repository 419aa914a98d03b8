"""A directory of published files, and a plain reader that lists and reads it all along."""

import contextlib
import io
import itertools
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.runtime.checker import Record
from sluice.runtime.errors import StorageError
from sluice.runtime.storage.file_system import FileSystem
from tests.kit.threads.joined_thread import JoinedThread

_CHECKPOINT = re.compile(r"part-(\d{12})-")

Rows = Iterable[tuple[int, int]]
"""Source partition and offset of each row of a file, as they lie in it."""


def out_of_order(files: Mapping[str, Rows]) -> list[str]:
    """Places at which files do not keep the order of the source's partitions. Pure.

    Within a file the offsets of a partition grow. Files of one checkpoint share no stretch of a
    partition. Rows of a later checkpoint follow those of an earlier one; a file's name has its
    checkpoint.
    """
    faults: list[str] = []
    stretches: dict[int, list[tuple[int, int, int, str]]] = defaultdict(list)
    for path, rows in files.items():
        found = _CHECKPOINT.match(path.rpartition("/")[2])
        assert found is not None, f"{path} does not say which checkpoint published it"
        offsets: dict[int, list[int]] = defaultdict(list)
        for partition, offset in rows:
            offsets[partition].append(offset)
        for partition, mine in offsets.items():
            faults += [
                f"{path}: partition {partition}: {after} behind {before}"
                for before, after in itertools.pairwise(mine)
                if after <= before
            ]
            stretches[partition].append((int(found[1]), min(mine), max(mine), path))
    for partition, parts in stretches.items():
        for (_, _, last, path), (_, first, _, later) in itertools.pairwise(sorted(parts)):
            if first <= last:
                faults.append(f"{later}: partition {partition}: {first} behind {last} in {path}")
    return faults


_MARK = "_SUCCESS"
_PAUSE_S = 0.05
_STOP_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFiles:
    """Parquet files below one directory, as a reader that passes over hidden names finds them.

    Attributes:
        fs: the file system, opened at the directory's parent.
        name: of the directory.
    """

    fs: FileSystem
    name: str

    @property
    def uri(self) -> str:
        """The target for a program."""
        return f"{self.fs.uri}/{self.name}"

    def lengths(self) -> dict[str, int]:
        """Bytes by path."""
        return dict(self._below(self.name))

    def read(self, path: str) -> pa.Table:
        """The rows of one file."""
        data = self.fs.read(path)
        assert data is not None, f"{path} has vanished"
        return pq.read_table(io.BytesIO(data))

    def records(self, *, topic: str) -> Iterator[Record]:
        """Every row as the record of ``topic`` that it is, by partition and offset."""
        rows = [row for path in self.lengths() for row in self.read(path).to_pylist()]
        rows.sort(key=lambda row: (row["partition"], row["offset"]))
        for row in rows:
            yield Record(topic, row["partition"], row["offset"], row["key"], row["value"])

    def out_of_order(self) -> list[str]:
        """See `out_of_order`, of all files with their columns ``partition`` and ``offset``."""
        return out_of_order(
            {
                path: zip(
                    table.column("partition").to_pylist(),
                    table.column("offset").to_pylist(),
                    strict=True,
                )
                for path in self.lengths()
                for table in [self.read(path)]
            }
        )

    def unmarked(self) -> list[str]:
        """Directories with files whose success file is missing, or older than one of them.

        Only a local file system has times that are fine enough.
        """
        root = Path(self.fs.uri.removeprefix("file://"))
        newest_ns: dict[Path, int] = defaultdict(int)
        for path in map(root.joinpath, self.lengths()):
            newest_ns[path.parent] = max(newest_ns[path.parent], path.stat().st_mtime_ns)
        marks = {directory: directory / _MARK for directory in newest_ns}
        return [
            str(directory)
            for directory, mark in marks.items()
            if not mark.exists() or mark.stat().st_mtime_ns < newest_ns[directory]
        ]

    def _below(self, directory: str) -> Iterator[tuple[str, int]]:
        for entry in self.fs.entries(directory):
            path = f"{directory}/{entry.name}"
            if entry.name.startswith((".", "_")):
                continue
            if entry.is_directory:
                yield from self._below(path)
            else:
                yield path, entry.length_bytes


class DirectoryObserver(JoinedThread):
    """Lists again and again, and reads each file at first sight, in a thread of its own.

    It lives in the test's process, so it survives every kill. A fault is a file that cannot be read
    whole, is gone, or has another length than at first sight. A file system that does not answer is
    no fault.
    """

    def __init__(self, files: PublishedFiles) -> None:
        super().__init__("directory observer", stop_s=_STOP_S)
        self._files = files
        self.faults: list[str] = []
        self.seen: dict[str, int] = {}

    def _work(self) -> None:
        pause_s = _PAUSE_S
        while not self._stopping.wait(pause_s):
            began_s = time.thread_time()
            with contextlib.suppress(StorageError):
                self._look()
            # Files become many, and each look lists them all: a fifth of a core at most.
            pause_s = max(_PAUSE_S, 4 * (time.thread_time() - began_s))
        self._look()  # for the files that were published last

    def _look(self) -> None:
        present = self._files.lengths()
        self.faults += [f"{path} has vanished" for path in self.seen if path not in present]
        for path, length in present.items():
            if path not in self.seen:
                self._read(path)
            elif self.seen[path] != length:
                self.faults.append(f"{path} had {self.seen[path]} bytes, and has {length}")
            self.seen[path] = length

    def _read(self, path: str) -> None:
        try:
            self._files.read(path)
        except (OSError, ValueError) as err:  # pyarrow's errors of a file that is not whole
            self.faults.append(f"{path} cannot be read: {err}")
