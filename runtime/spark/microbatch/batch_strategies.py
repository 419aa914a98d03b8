"""How a region runs one batch: by chained tasks, through Spark's planner, or into files. Driver.

The launcher chooses a strategy once for each attempt of a region; the batch callback runs it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StructField, StructType

from sluice.runtime.contracts import AttemptRegistry, FrameWriter, StagedFrame, TaskScope
from sluice.runtime.errors import IllegalTransitionError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import Barrier, BatchKey, SplitRange
from sluice.runtime.spark.session.spark_session import own_workers
from sluice.runtime.spark.tasks.file_pass_through import FilePassThrough
from sluice.runtime.spark.tasks.region_tasks import (
    RegionTasks,
    ResultRow,
    TaskOutput,
    TaskResult,
    results_of,
    write_task,
)

__all__ = [
    "BatchOutput",
    "BatchStrategy",
    "ChainedBatch",
    "FileRows",
    "FilesBatch",
    "OpenBatch",
    "PlannedBatch",
    "UnwrittenRows",
    "require_all_rows_passed",
    "require_each_range_once",
]

_RESULT = StructType([StructField("result", BinaryType())])  # Spark would parse a DDL in each epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBatch:
    """A batch that Spark has planned and that has not run yet.

    Attributes:
        key: its identity.
        frame: its rows, after the user's functions.
        operator_states: from the region's last decided record.
    """

    key: BatchKey
    frame: DataFrame
    operator_states: tuple[StateEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOutput:
    """Everything that a batch has pre-committed.

    Attributes:
        results: of its tasks.
        staged: files that Spark's own writers have staged.
    """

    results: Sequence[TaskResult]
    staged: Sequence[StagedFrame] = ()


class BatchStrategy(Protocol):
    """Runs a batch. Driver, the batch callback's thread."""

    def run(self, barrier: Barrier, batch: OpenBatch) -> BatchOutput:
        """Run the batch's frame once; returns when all of its output is pre-committed.

        Raises:
            StreamError: a task reported it, or tasks did not run exactly once.
        """
        ...


class FileRows(Protocol):
    """How a batch's rows reach Spark's file writers, on their way through the tasks' own sinks."""

    def rows_for_files(
        self, barrier: Barrier, frame: DataFrame, output: FilePassThrough
    ) -> DataFrame:
        """The rows for the file writers; running them also writes to the tasks' own sinks."""
        ...

    def require_complete(self, barrier: Barrier, output: BatchOutput) -> None:
        """Raise IllegalTransitionError unless the tasks' results match ranges and staged rows."""
        ...


class ChainedBatch(BatchStrategy, FileRows):
    """The source's tasks read, apply the functions, write and pre-commit: the frame's
    rows are their results, or the records for the file writers."""

    def run(self, barrier: Barrier, batch: OpenBatch) -> BatchOutput:
        results = results_of(batch.frame.collect())
        require_each_range_once(results, barrier)
        return BatchOutput(results=results)

    def rows_for_files(
        self, barrier: Barrier, frame: DataFrame, output: FilePassThrough
    ) -> DataFrame:
        """See `FileRows.rows_for_files`: the source's tasks have written them."""
        return frame

    def require_complete(self, barrier: Barrier, output: BatchOutput) -> None:
        require_all_rows_passed(output.results, output.staged)
        require_each_range_once(output.results, barrier)


class PlannedBatch(BatchStrategy, FileRows):
    """Spark's planner is between read and write: tasks at the end of the frame write and
    pre-commit.

    Args:
        tasks: shared by these tasks.
    """

    def __init__(self, tasks: RegionTasks) -> None:
        self._tasks = tasks

    def run(self, barrier: Barrier, batch: OpenBatch) -> BatchOutput:
        written = self._written(barrier, batch.frame, ResultRow(), _RESULT)
        return BatchOutput(results=results_of(written.collect()))

    def rows_for_files(
        self, barrier: Barrier, frame: DataFrame, output: FilePassThrough
    ) -> DataFrame:
        return self._written(barrier, frame, output, frame.schema)

    def require_complete(self, barrier: Barrier, output: BatchOutput) -> None:
        require_all_rows_passed(output.results, output.staged)

    def _written(
        self, barrier: Barrier, frame: DataFrame, output: TaskOutput, schema: StructType
    ) -> DataFrame:
        with own_workers(frame.sparkSession):
            return frame.mapInArrow(write_task(self._tasks, barrier.checkpoint_id, output), schema)


class UnwrittenRows(FileRows):
    """`FileRows` of a planned region whose only sink is the file sink: no task writes."""

    def rows_for_files(
        self, barrier: Barrier, frame: DataFrame, output: FilePassThrough
    ) -> DataFrame:
        return frame

    def require_complete(self, barrier: Barrier, output: BatchOutput) -> None:
        """See `FileRows.require_complete`: there are no results."""


class FilesBatch(BatchStrategy):
    """Spark's own writers write the frame's rows into staged files.

    Args:
        rows: how the rows get there.
        writers: of the file sinks, by operator id.
        pass_through: brings the tasks' results to the driver.
        job_uid: of the job.
        registry: where the writers register their attempts.
    """

    def __init__(
        self,
        rows: FileRows,
        writers: Mapping[str, FrameWriter],
        pass_through: FilePassThrough,
        *,
        job_uid: str,
        registry: AttemptRegistry,
    ) -> None:
        self._rows = rows
        self._writers = writers
        self._pass_through = pass_through
        self._job_uid = job_uid
        self._registry = registry

    def run(self, barrier: Barrier, batch: OpenBatch) -> BatchOutput:
        rows = self._rows.rows_for_files(barrier, batch.frame, self._pass_through)
        staged = [
            writer.write(rows, self._scope(operator_id, barrier, batch), self._registry)
            for operator_id, writer in self._writers.items()
        ]
        output = BatchOutput(results=self._pass_through.take_results(), staged=staged)
        self._rows.require_complete(barrier, output)
        return output

    def _scope(self, operator_id: str, barrier: Barrier, batch: OpenBatch) -> TaskScope:
        states = batch.operator_states
        return TaskScope(
            job_uid=self._job_uid,
            operator_id=operator_id,
            batch=batch.key,
            checkpoint_id=barrier.checkpoint_id,
            committed_through=barrier.checkpoint_id - 1,
            operator_states=tuple(each for each in states if each.operator_id == operator_id),
            publishes_all=barrier.publishes_all,
        )


def require_each_range_once(results: Sequence[TaskResult], barrier: Barrier) -> None:
    """A chained batch writes while Spark reads: the tasks' ranges must be the barrier's, once.

    Raises:
        IllegalTransitionError: Spark ran a task twice or not at all, and reported success.
    """
    assigned = sorted(_bounds(split) for result in results for split in result.ranges)
    is_keyed = barrier.new_state is not None  # then an empty range has state, too
    expected = sorted(_bounds(s) for s in barrier.splits if is_keyed or not s.is_empty)
    if assigned != expected:
        raise IllegalTransitionError(
            "tasks of a batch did not read each assigned range exactly once",
            {"region": barrier.region, "assigned": assigned, "expected": expected},
            "Report this bug with these ranges. No output of this batch becomes visible.",
        )


def require_all_rows_passed(results: Sequence[TaskResult], staged: Sequence[StagedFrame]) -> None:
    """The tasks' results must account for each row that Spark's writers wrote.

    If an update of an accumulator fails, Spark logs it and still calls the task done. No decision
    would name that task's transaction.

    Raises:
        IllegalTransitionError: a result is missing, or counts rows that no file has.
    """
    written = sum(result.records_out for result in results)
    if any(found.rows != written for found in staged):
        raise IllegalTransitionError(
            "the tasks' results do not match the rows in the staged files",
            {"written": written, "staged": ",".join(str(found.rows) for found in staged)},
            "Start the job again, and read the driver's log for the reason. No output of this "
            "batch becomes visible.",
        )


def _bounds(split: SplitRange) -> tuple[str, int, int, int]:
    return (split.topic, split.partition, split.start_offset, split.end_offset)
