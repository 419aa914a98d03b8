"""Writes one task's rows into staged files by partition, with a bound on memory."""

import uuid
from dataclasses import dataclass
from typing import BinaryIO, Generic, Protocol, TypeVar

import pyarrow as pa

from sluice.connectors.hdfs.formats.file_format import FileFormat, FormatWriter
from sluice.connectors.hdfs.staging.committables import StagedFile
from sluice.connectors.hdfs.staging.staged_names import StagingAttempt, final_name, staged_name
from sluice.connectors.hdfs.writing.partition_paths import PartitionPaths
from sluice.runtime.storage.task_files import TaskFile, TaskFiles

__all__ = ["OutputFile", "OutputFiles", "StagedFiles", "TaskWriter"]

_MOST_OPEN = 64  # each is a connection to a DataNode
_BUFFERED_BY_ONE_BYTES = 64 << 20  # what a format buffers before it writes
_MOST_BUFFERED_BYTES = 256 << 20

_File = TypeVar("_File")
_Made = TypeVar("_Made", covariant=True)


class OutputFile(Protocol[_Made]):
    """One file being written. Python worker, one thread."""

    @property
    def stream(self) -> BinaryIO:
        """Takes the bytes; the format writer must not close it."""
        ...

    def finish(self, rows: int) -> _Made:
        """End a file of so many rows; returns what a committable says of it.

        Raises:
            StreamError: the store failed; the attempt has failed.
        """
        ...

    def abandon(self) -> None:
        """Close without a promise; the sweep deletes the file. Never raises."""
        ...


class OutputFiles(Protocol[_Made]):
    """The files of one attempt of one task, invisible to readers. Picklable or made in the task."""

    def create(self, directory: str, number: int, extension: str) -> OutputFile[_Made]:
        """A new file.

        Args:
            directory: of its partition, relative to the target; "" without partitions.
            number: among the files of the attempt.
            extension: of the format.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFiles(OutputFiles[StagedFile]):
    """Whole files under staged names.

    Attributes:
        files: of the target's store.
        path: absolute path, without scheme, of the attempt's own directory.
        attempt: that alone writes there.
        subtask: of the sink; >= 0.
        checkpoint_id: that the batch is expected to join; part of the final names.
    """

    files: TaskFiles
    path: str
    attempt: StagingAttempt
    subtask: int
    checkpoint_id: int

    def create(self, directory: str, number: int, extension: str) -> "_StagedFile":
        attempt_id = uuid.UUID(hex=self.attempt.attempt)
        written = f"part-{self.subtask:05d}-{attempt_id}-c{number:03d}{extension}"
        final = final_name(self.attempt, written, checkpoint_id=self.checkpoint_id)
        staged = _below(directory, staged_name(written))
        file = self.files.create(f"{self.path}/{staged}")
        return _StagedFile(file, staged=staged, final=_below(directory, final))


class _StagedFile(OutputFile[StagedFile]):
    def __init__(self, file: TaskFile, *, staged: str, final: str) -> None:
        self._file = file
        self._staged = staged
        self._final = final

    @property
    def stream(self) -> BinaryIO:
        return self._file.stream

    def finish(self, rows: int) -> StagedFile:
        length_bytes = self._file.finish()
        return StagedFile(
            staged=self._staged, final=self._final, length_bytes=length_bytes, rows=rows
        )

    def abandon(self) -> None:
        self._file.abandon()


class TaskWriter(Generic[_File]):
    """Splits rows by partition and writes a file for each. Python worker, one thread, one batch.

    If rows go to more partitions than may be open or buffered, it finishes the fullest file; later
    rows of that partition get another file.

    Args:
        files: makes them.
        form: of the files.
        partitions: has checked ``schema``.
        schema: of the rows.
        most_bytes: a file that has so many is finished; later rows of its partition get another
            one. None: no limit.
    """

    def __init__(
        self,
        *,
        files: OutputFiles[_File],
        form: FileFormat,
        partitions: PartitionPaths,
        schema: pa.Schema,
        most_bytes: int | None = None,
    ) -> None:
        self._files = files
        self._form = form
        self._partitions = partitions
        self._schema = partitions.check(schema)
        self._most_bytes = most_bytes
        self._open: dict[str, _OpenFile[_File]] = {}
        self._finished: list[_File] = []
        self._begun = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows.

        Raises:
            ConfigError: rows that the format, or a directory's name, cannot hold.
            StreamError: the store failed; the attempt has failed.
        """
        for directory, rows in self._partitions.split(batch):
            if directory not in self._open:
                self._make_room(_MOST_OPEN - 1)
                self._open[directory] = self._opened(directory)
            self._open[directory].write(rows)
            if self._most_bytes is not None and self._open[directory].bytes >= self._most_bytes:
                self._finish(directory)
            self._make_room(_MOST_OPEN)

    def finish(self) -> tuple[_File, ...]:
        """Finish all files; returns none if there were no rows. Raises as `write`."""
        while self._open:
            self._finish(next(iter(self._open)))
        return tuple(self._finished)

    def abandon(self) -> None:
        """Leave all files to the sweep; never raises."""
        for file in self._open.values():
            file.abandon()
        self._open.clear()

    def _opened(self, directory: str) -> "_OpenFile[_File]":
        number, self._begun = self._begun, self._begun + 1
        file = self._files.create(directory, number, self._form.extension)
        try:
            writer = self._form.open(file.stream, self._schema)
        except BaseException:
            file.abandon()
            raise
        return _OpenFile(file, writer)

    def _make_room(self, most_open: int) -> None:
        while len(self._open) > most_open or self._buffered_bytes() > _MOST_BUFFERED_BYTES:
            self._finish(
                max(self._open, key=lambda directory: self._open[directory].buffered_bytes)
            )

    def _buffered_bytes(self) -> int:
        return sum(file.buffered_bytes for file in self._open.values())

    def _finish(self, directory: str) -> None:
        self._finished.append(self._open[directory].finish())
        del self._open[directory]


class _OpenFile(Generic[_File]):
    def __init__(self, file: OutputFile[_File], writer: FormatWriter) -> None:
        self._file = file
        self._writer = writer
        self._given_bytes = 0

    @property
    def buffered_bytes(self) -> int:
        """At most what the writer holds of this file."""
        return min(self._given_bytes, _BUFFERED_BY_ONE_BYTES)

    @property
    def bytes(self) -> int:
        """Of the file, as far as the format has written it."""
        return self._file.stream.tell()

    def write(self, rows: pa.RecordBatch) -> None:
        """Append."""
        self._given_bytes += rows.nbytes
        self._writer.write(rows)

    def finish(self) -> _File:
        """Write the rest and close."""
        return self._file.finish(self._writer.close())

    def abandon(self) -> None:
        """Leave it as it is; never raises."""
        self._writer.abandon()
        self._file.abandon()


def _below(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name
