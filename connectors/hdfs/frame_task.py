"""What a task runs at the end of a frame whose files Python writes: rows in, one answer out."""

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from connectors.hdfs.committables import StagedFile
from connectors.hdfs.formats import FileFormat
from connectors.hdfs.partition_paths import PartitionPaths
from connectors.hdfs.staging import StagingAttempt
from connectors.hdfs.task_files import TaskFiles
from connectors.hdfs.task_writer import StagingPlace, TaskWriter
from runtime.errors import StreamError
from runtime.model import BatchKey

__all__ = ["ANSWER_SCHEMA", "FrameTask", "files_of"]

ANSWER_SCHEMA = "answer binary"
"""Of the rows that tasks yield, in Spark's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTask:
    """Writes one task's rows into the staging directory of the batch's attempt. Picklable.

    Attributes:
        files: how tasks write to the target's store.
        form: of the files.
        partitions: columns that become directories; has checked the rows' schema.
        root: of the sink's staging, absolute, without scheme; the driver has made it.
        path: of the attempt's staging directory, below ``root``.
        batch: whose rows these are.
        checkpoint_id: that the batch is expected to join.
    """

    files: TaskFiles
    form: FileFormat
    partitions: PartitionPaths
    root: str
    path: str
    batch: BatchKey
    checkpoint_id: int

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write all rows; yield one row, pickled: the files, or the typed error that ended it.

        Spark sees a finished task then: the error keeps its type, and what was refused is not
        tried again.
        """
        answer: tuple[StagedFile, ...] | StreamError
        try:
            answer = self._staged(batches)
        except StreamError as err:
            answer = err
        yield pa.RecordBatch.from_arrays(
            [pa.array([pickle.dumps(answer)], pa.binary())], ["answer"]
        )

    def _staged(self, batches: Iterator[pa.RecordBatch]) -> tuple[StagedFile, ...]:
        writer: TaskWriter | None = None
        try:
            for batch in batches:
                if batch.num_rows:
                    writer = writer or self._writer(batch.schema)
                    writer.write(batch)
            return () if writer is None else writer.finish()
        except BaseException:
            if writer is not None:
                writer.abandon()
            raise

    def _writer(self, schema: pa.Schema) -> TaskWriter:
        """Names are drawn for each attempt of each task: two of one task share no file."""
        self.files.require(self.root)
        return TaskWriter(
            files=self.files,
            form=self.form,
            partitions=self.partitions,
            schema=schema,
            place=StagingPlace(
                path=self.path,
                attempt=StagingAttempt.draw(self.batch),
                subtask=_subtask(),
                checkpoint_id=self.checkpoint_id,
            ),
        )


def files_of(rows: Sequence[Sequence[bytes]]) -> tuple[StagedFile, ...]:
    """The files of all tasks; raises the first error that one reported."""
    found: list[StagedFile] = []
    for row in rows:
        answer: tuple[StagedFile, ...] | StreamError = pickle.loads(row[0])  # written by `run`
        if isinstance(answer, StreamError):
            raise answer
        found.extend(answer)
    return tuple(found)


def _subtask() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
