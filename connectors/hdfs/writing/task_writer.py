"""Writes one task's rows into staged files by partition, with a bound on memory."""

import uuid
from dataclasses import dataclass

import pyarrow as pa

from sluice.connectors.hdfs.formats.file_format import FileFormat, FormatWriter
from sluice.connectors.hdfs.staging.committables import StagedFile
from sluice.connectors.hdfs.staging.staged_names import StagingAttempt, final_name, staged_name
from sluice.connectors.hdfs.writing.partition_paths import PartitionPaths
from sluice.runtime.storage.task_files import TaskFile, TaskFiles

__all__ = ["StagingLocation", "TaskWriter"]

_MOST_OPEN = 64  # each is a connection to a DataNode
_BUFFERED_BY_ONE_BYTES = 64 << 20  # what a format buffers before it writes
_MOST_BUFFERED_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingLocation:
    """The staging location of one attempt of one task.

    Attributes:
        path: absolute path, without scheme, of the attempt's own directory.
        attempt: that alone writes there.
        subtask: of the sink; >= 0.
        checkpoint_id: that the batch is expected to join; part of the final names.
    """

    path: str
    attempt: StagingAttempt
    subtask: int
    checkpoint_id: int


class TaskWriter:
    """Splits rows by partition and writes a file for each. Python worker, one thread, one batch.

    If rows go to more partitions than may be open or buffered, it finishes the fullest file; later
    rows of that partition get another file.

    Args:
        files: of the target's store.
        form: of the files.
        partitions: has checked ``schema``.
        schema: of the rows.
        place: where to stage.
    """

    def __init__(
        self,
        *,
        files: TaskFiles,
        form: FileFormat,
        partitions: PartitionPaths,
        schema: pa.Schema,
        place: StagingLocation,
    ) -> None:
        self._files = files
        self._form = form
        self._partitions = partitions
        self._schema = partitions.check(schema)
        self._place = place
        self._open: dict[str, _OpenFile] = {}
        self._finished: list[StagedFile] = []
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
            self._make_room(_MOST_OPEN)

    def finish(self) -> tuple[StagedFile, ...]:
        """Finish all files; returns none if there were no rows. Raises as `write`."""
        while self._open:
            self._finish(next(iter(self._open)))
        return tuple(self._finished)

    def abandon(self) -> None:
        """Leave all files to the sweep; never raises."""
        for file in self._open.values():
            file.abandon()
        self._open.clear()

    def _opened(self, directory: str) -> "_OpenFile":
        place = self._place
        attempt_id = uuid.UUID(hex=place.attempt.attempt)
        number, self._begun = self._begun, self._begun + 1
        written = f"part-{place.subtask:05d}-{attempt_id}-c{number:03d}{self._form.extension}"
        final = final_name(place.attempt, written, checkpoint_id=place.checkpoint_id)
        staged = _below(directory, staged_name(written))
        file = self._files.create(f"{place.path}/{staged}")
        try:
            writer = self._form.open(file.stream, self._schema)
        except BaseException:
            file.abandon()
            raise
        return _OpenFile(file, writer, staged=staged, final=_below(directory, final))

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


class _OpenFile:
    def __init__(self, file: TaskFile, writer: FormatWriter, *, staged: str, final: str) -> None:
        self._file = file
        self._writer = writer
        self._staged = staged
        self._final = final
        self._given_bytes = 0

    @property
    def buffered_bytes(self) -> int:
        """At most what the writer holds of this file."""
        return min(self._given_bytes, _BUFFERED_BY_ONE_BYTES)

    def write(self, rows: pa.RecordBatch) -> None:
        """Append."""
        self._given_bytes += rows.nbytes
        self._writer.write(rows)

    def finish(self) -> StagedFile:
        """Write the rest and close; returns the staged file."""
        rows = self._writer.close()
        length_bytes = self._file.finish()
        return StagedFile(
            staged=self._staged, final=self._final, length_bytes=length_bytes, rows=rows
        )

    def abandon(self) -> None:
        """Leave it as it is; never raises."""
        self._writer.abandon()
        self._file.abandon()


def _below(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name
