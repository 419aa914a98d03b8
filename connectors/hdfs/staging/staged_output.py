"""Lists the files in a staging directory after a write, counts rows if possible, renames the files
so that no reader takes them, and makes all durable."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from sluice.connectors.hdfs.staging.committables import StagedFile
from sluice.connectors.hdfs.staging.staged_names import (
    HIDDEN,
    StagingAttempt,
    final_name,
    staged_name,
)
from sluice.runtime.errors import IllegalTransitionError, StorageError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.storage.file_system import Entry, FileSystem

__all__ = ["StagedOutput", "make_names_durable", "rename_staged"]

_ONE_FILE_SYSTEM = (
    "Mount one file system on all hosts; if it is one already, report this bug with these numbers."
)
_OF_TASK = re.compile(r"part-(\d+)-")  # its number, in Spark's names
_MOST_NAMED = 10
_SPARKS_OWN = "_temporary"  # tasks write there before they commit to the directory


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedOutput:
    """One attempt's staging directory after its write. Driver, in the batch callback.

    Attributes:
        fs: rooted at the parent of the target.
        root: `sluice.connectors.hdfs.staging.staged_names.staging_root` of the sink.
        attempt: that wrote it.
        count: rows in the file at a URI; None if the format has no row count in its footer.
        leaves_rows_out: the writer omits some rows, such as nulls in CSV's only column, so a task's
            file may be empty.
    """

    fs: FileSystem
    root: str
    attempt: StagingAttempt
    count: Callable[[str], int] | None
    leaves_rows_out: bool = False

    @property
    def path(self) -> str:
        """Relative to the root of the file system."""
        return f"{self.root}/{self.attempt.path}"

    def files(
        self, *, rows: int | None, checkpoint_id: int, tasks: Set[int] = frozenset()
    ) -> tuple[StagedFile, ...]:
        """The files that hold ``rows``, durable. None: the rows were not counted during the write.

        A writer without rows leaves nothing, an empty file, or one with a header alone.

        Args:
            tasks: numbers of the Spark tasks that have each written a file.

        Raises:
            IllegalTransitionError: the files do not hold the rows that were written.
        """
        if rows == 0:
            return ()
        listed = tuple(self._below(""))
        found = tuple(self._with_rows(listed, checkpoint_id))
        if rows is None and not (found or tasks):
            return ()
        self._require_all_rows(found, rows or 0, tasks)
        here = [path for path, entry in listed if entry.length_bytes or self.leaves_rows_out]
        self._require_all_tasks(here, tasks)
        make_names_durable(self.fs, self.root, [f"{self.path}/{file.staged}" for file in found])
        return found

    def require(self, files: Sequence[StagedFile]) -> None:
        """Check that each file that tasks reported exists with its length, and make its directories
        durable. Retried tasks may have left more files.

        Raises:
            IllegalTransitionError: a file is absent, or has another length.
        """
        for file in files:
            found = self.fs.length_bytes(f"{self.path}/{file.staged}")
            if found != file.length_bytes:
                raise IllegalTransitionError(
                    "a file that a task staged looks different to the driver",
                    {
                        "file": f"{self.fs.uri}/{self.path}/{file.staged}",
                        "written": file.length_bytes,
                        "found": "no file" if found is None else found,
                    },
                    f"{_ONE_FILE_SYSTEM} No row becomes visible.",
                )
        make_names_durable(self.fs, self.root, [f"{self.path}/{file.staged}" for file in files])

    def _with_rows(
        self, listed: Iterable[tuple[str, Entry]], checkpoint_id: int
    ) -> Iterator[StagedFile]:
        for path, entry in listed:
            rows = None if self.count is None else self.count(f"{self.fs.uri}/{self.path}/{path}")
            if entry.length_bytes == 0 or rows == 0:
                continue
            directory, slash, written = path.rpartition("/")
            staged = rename_staged(self.fs, self.path, path)
            self.fs.make_durable(f"{self.path}/{staged}")
            final = final_name(self.attempt, written, checkpoint_id=checkpoint_id)
            yield StagedFile(
                staged=staged,
                final=f"{directory}{slash}{final}",
                length_bytes=entry.length_bytes,
                rows=rows,
            )

    def _below(self, directory: str) -> Iterator[tuple[str, Entry]]:
        for entry in self.fs.entries(f"{self.path}/{directory}" if directory else self.path):
            path = f"{directory}/{entry.name}" if directory else entry.name
            if entry.is_directory and entry.name != _SPARKS_OWN:
                yield from self._below(path)
            elif not entry.is_directory and not entry.name.startswith(HIDDEN):
                yield path, entry

    def _require_all_rows(self, files: tuple[StagedFile, ...], rows: int, tasks: Set[int]) -> None:
        """Refuse a listing that does not match the write; row for row if the format counts rows."""
        found = sum(file.rows or 0 for file in files)
        if self.count is not None:
            is_whole = found == rows
        else:  # if the writer omits rows, the tasks' files show that they wrote
            is_whole = rows > 0 and bool(files or (tasks and self.leaves_rows_out))
        if not is_whole:
            raise IllegalTransitionError(
                "the staged files do not hold the rows that were written",
                {"staging": self.path, "files": len(files), "written": rows, "found": found},
                f"{_ONE_FILE_SYSTEM} No row becomes visible.",
            )

    def _require_all_tasks(self, paths: Sequence[str], tasks: Set[int]) -> None:
        """Refuse a missing file of a task: it may have written to a disk of its own host."""
        names = (path.rpartition("/")[2] for path in paths)
        found = {int(named[1]) for name in names if (named := _OF_TASK.match(name))}
        missing = sorted(tasks - found)
        if missing:
            raise IllegalTransitionError(
                "files of some tasks are missing",
                {
                    "staging": f"{self.fs.uri}/{self.path}",
                    "files": len(paths),
                    "missing_tasks": ",".join(map(str, missing[:_MOST_NAMED])),
                    "missing": len(missing),
                },
                f"{_ONE_FILE_SYSTEM} No row becomes visible.",
            )


def rename_staged(fs: FileSystem, root: str, path: str) -> str:
    """Give a file of Spark's writers its `staged_name`; returns its path.

    Args:
        root: directory of the attempt.
        path: of the file, below it.
    Raises:
        StorageError: it is unknown which name the file has; the attempt has failed.
    """
    directory, slash, written = path.rpartition("/")
    staged = f"{directory}{slash}{staged_name(written)}"
    if not fs.move(f"{root}/{path}", f"{root}/{staged}"):
        raise StorageError(
            "a file was not renamed in its staging directory",
            {"file": f"{fs.uri}/{root}/{path}", "name": staged_name(written)},
            "Look for another program that changes this directory. No row becomes visible.",
        )
    failpoint("mid-stage")
    return staged


def make_names_durable(fs: FileSystem, root: str, files: Iterable[str]) -> None:
    """Sync directories from ``root`` down to where the files' own ones are named: a synced file in
    a lost directory is lost."""
    found: set[str] = set()
    for file in files:
        directory, _, _ = file.rpartition("/")  # synced with the file
        while directory != root:
            directory, _, _ = directory.rpartition("/")
            found.add(directory)
    for directory in sorted(found):
        fs.sync_directory(directory)
