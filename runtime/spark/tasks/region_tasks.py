"""What a Spark task of a Job runs: read, apply the Arrow functions, write, pre-commit.

Runs in an executor's Python worker, once per task. A chained task gets split ranges and does
everything in this one process, inside Spark's read of the source; the task at the end of a
``transform`` gets the records themselves, through ``mapInArrow``. Either yields one row: a
pickled `TaskResult`; or the records, where they go on into files, and leaves its result in
`sluice.runtime.spark.tasks.file_pass_through.FilePassThrough`.
"""

import pickle
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from sluice.runtime.contracts import SinkWriter, SplitReader, StagedFrame, TaskScope, WriterFactory
from sluice.runtime.errors import FunctionFailedError, IllegalTransitionError, StreamError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.functions.at_most_once import offsets_in
from sluice.runtime.functions.function_run import ChainedFunction, FunctionRun
from sluice.runtime.functions.task_writers import TaskWriters
from sluice.runtime.model.model import Barrier, BatchKey, SplitRange
from sluice.runtime.model.well_formed import well_formed
from sluice.runtime.process.gc_freeze import freeze_once
from sluice.runtime.service.service_client import CoordinatorAddress, CoordinatorClient

if TYPE_CHECKING:
    pass
from sluice.runtime.spark.tasks.task_result import TaskResult, without_errors

if TYPE_CHECKING:
    from sluice.runtime.spark.tasks.file_pass_through import FilePassThrough

__all__ = [
    "RESULT_SCHEMA",
    "Chain",
    "RegionTasks",
    "pass_through_task",
    "require_all_rows_passed",
    "require_each_range_once",
    "results_of",
    "sink_task",
]

RESULT_SCHEMA = "result binary"
_MOST_SAID = 2_000
_BATCH_ID = "streaming.sql.batchId"  # Spark's local property; its own foreach sink reads it, too


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionTasks:
    """What the tasks of one life of a region share. Picklable.

    Attributes:
        address: where the coordinator answers.
        job_uid, region, attempt_id: whose tasks these are.
        factories: writer factory by operator id of the sink.
        dead_letter_sink: which of them takes dead letters.
    """

    address: CoordinatorAddress
    job_uid: str
    region: str
    attempt_id: int
    factories: Mapping[str, WriterFactory]
    dead_letter_sink: str | None = None


def _opened(
    tasks: RegionTasks,
    batch: BatchKey,
    task: str,
    checkpoint_id: int,
    source_ranges: tuple[SplitRange, ...],
) -> TaskWriters[SinkWriter]:
    registry = CoordinatorClient(tasks.address)
    writers = {
        operator_id: factory.open(
            TaskScope(
                job_uid=tasks.job_uid,
                operator_id=operator_id,
                batch=batch,
                checkpoint_id=checkpoint_id,
                # A region's next batch runs once its last one is committed on record.
                committed_through=checkpoint_id - 1,
                task=task,
                source_ranges=source_ranges,
            ),
            registry,
        )
        for operator_id, factory in tasks.factories.items()
    }
    return TaskWriters(writers, dead_letter_sink=tasks.dead_letter_sink)


def _identity(tasks: RegionTasks) -> tuple[BatchKey, str]:
    """The batch that this task works for, and the task's name, as Spark tells them."""
    from pyspark import TaskContext

    context = TaskContext.get()
    batch_id = None if context is None else context.getLocalProperty(_BATCH_ID)
    if context is None or batch_id is None:
        raise StreamError(
            "a task was not told which batch it works for",
            {"region": tasks.region, "attempt_id": tasks.attempt_id},
            "Does PYSPARK_PIN_THREAD=false stand in the environment? Leave it out.",
        )
    batch = BatchKey(region=tasks.region, attempt_id=tasks.attempt_id, batch_id=int(batch_id))
    return batch, f"{context.partitionId()}.{context.attemptNumber()}"


def _writing(
    tasks: RegionTasks,
    checkpoint_id: int,
    source_ranges: tuple[SplitRange, ...],
    batches: Iterator[pa.RecordBatch],
    *,
    functions: FunctionRun | None = None,
    pass_through: "FilePassThrough | None" = None,
) -> Generator[pa.RecordBatch, None, TaskResult]:
    """Write what the functions make of each batch and yield it; pre-commit at the end.

    A typed error becomes the result, and no further batch is yielded; any other goes to Spark.
    """
    functions = functions or FunctionRun()
    try:
        key, task = _identity(tasks)
        writers = _opened(tasks, key, task, checkpoint_id, source_ranges)
        try:
            applied = functions.applied(batches, writers.write_dead_letter)
            for batch in applied if pass_through is None else map(pass_through.conform, applied):
                writers.write(batch)
                yield batch
            committables = writers.pre_commit()
        except BaseException:
            writers.abort()
            raise
    except StreamError as err:
        return TaskResult(error=err)
    except Exception as err:
        told = _for_spark(err)
        if told is err:
            raise
        raise told from None
    failpoint("after-pre-commit")
    return TaskResult(
        ranges=source_ranges,
        committables=committables,
        decide_by_s=writers.decide_by_s,
        records_out=writers.records_out,
        task=task,
        counts=functions.counts,
        examples=functions.examples,
        failed_rows=functions.failed_rows,
    )


def _for_spark(error: Exception) -> Exception:
    """``error``, or one that says the same in UTF-8: Spark's worker raises at any other while it
    tells the JVM, which then waits for the rest until the checkpoint expires."""
    said = "".join(traceback.format_exception(error))
    if well_formed(said) == said:
        return error
    return FunctionFailedError(
        "a task failed with an error that has no UTF-8",
        {"error": well_formed(said)[-_MOST_SAID:]},
        "Spark tries the task again. Correct the function, or let on_error leave such records out.",
    )


def _drained(writing: Generator[pa.RecordBatch, None, TaskResult]) -> TaskResult:
    """Write everything, keep nothing."""
    while True:
        try:
            next(writing)
        except StopIteration as end:
            result: TaskResult = end.value
            return result


def _row(result: TaskResult) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], ["result"])


def results_of(rows: Sequence[Sequence[bytes]]) -> list[TaskResult]:
    """The collected rows of a batch as values; raises the first error a task reported."""
    return without_errors([pickle.loads(row[0]) for row in rows])  # written by `_row`


def require_each_range_once(results: Sequence[TaskResult], barrier: Barrier) -> None:
    """A chained batch writes while Spark reads: the tasks' ranges must be the barrier's, once.

    Raises:
        IllegalTransitionError: Spark ran a task twice, or not at all, and called the batch whole.
    """
    dealt = sorted(_bounds(split) for result in results for split in result.ranges)
    cut = sorted(_bounds(split) for split in barrier.splits if not split.is_empty)
    if dealt != cut:
        raise IllegalTransitionError(
            "the tasks of a batch were not dealt what its barrier cut, each range once",
            {"region": barrier.region, "dealt": dealt, "cut": cut},
            "Nothing of it becomes visible. This is a bug: please report it with these ranges.",
        )


def require_all_rows_passed(results: Sequence[TaskResult], staged: Sequence[StagedFrame]) -> None:
    """Each row that Spark's writers were given was written, and is answered for, by a task.

    Spark logs an accumulator's update that fails and calls the task done all the same: its
    transaction would be in no decision.

    Raises:
        IllegalTransitionError: an answer is missing, or counts rows that no file has.
    """
    answered = sum(result.records_out for result in results)
    if any(found.rows != answered for found in staged):
        raise IllegalTransitionError(
            "the tasks' answers are not about the rows that went on into files",
            {"answered": answered, "staged": ",".join(str(found.rows) for found in staged)},
            "Nothing of it becomes visible. Start the job again; the driver's log may say why.",
        )


def _bounds(split: SplitRange) -> tuple[str, int, int, int]:
    return (split.topic, split.partition, split.start_offset, split.end_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The whole way of a chained region's records, in one task. Picklable.

    Attributes:
        tasks: what all its tasks share.
        reader: of the source.
        functions: applied to each batch, in order.
        job_name: for dead letters.
        passing: where the rows go on to Spark's own writers; None: they end here.
        most_dropped: offsets that a second attempt of a task leaves out instead of reading them
            again; one with more reads them.
    """

    tasks: RegionTasks
    reader: SplitReader
    functions: tuple[ChainedFunction, ...]
    job_name: str
    pass_through: "FilePassThrough | None" = None
    most_dropped: int = 0

    def run(self, checkpoint_id: int, splits: tuple[SplitRange, ...]) -> Iterator[pa.RecordBatch]:
        """Read ``splits``, apply the functions, write, pre-commit.

        Yields the row with the result; or the rows themselves, the result going by `pass_through`.
        """
        writing = self._work(checkpoint_id, splits)
        if self.pass_through is None:
            yield _row(_drained(writing))
        else:
            yield from self.pass_through.on(writing)

    def _work(
        self, checkpoint_id: int, splits: tuple[SplitRange, ...]
    ) -> Generator[pa.RecordBatch, None, TaskResult]:
        if offsets_in(splits) <= self.most_dropped and _is_second_attempt():
            return _dropping(self.tasks, splits)
        return _writing(
            self.tasks,
            checkpoint_id,
            splits,
            self.reader.read(splits),
            functions=FunctionRun(self.functions, job_name=self.job_name),
            pass_through=self.pass_through,
        )


def _is_second_attempt() -> bool:
    """Whether an earlier attempt of this task failed, or its executor was lost."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


def _dropping(
    tasks: RegionTasks, splits: tuple[SplitRange, ...]
) -> Generator[pa.RecordBatch, None, TaskResult]:
    """Answer for the ranges without reading them. What the earlier attempt produced is in a
    transaction of its own, which no decision names: it is swept (`ids-never-reused`)."""
    _, task = _identity(tasks)
    yield from ()
    return TaskResult(ranges=splits, dropped=True, task=task)


def sink_task(
    tasks: RegionTasks, checkpoint_id: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A task at the end of Spark's plan: writes the records it is given.

    Args:
        checkpoint_id: the checkpoint that the batch is expected to join.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield _row(_drained(_writing(tasks, checkpoint_id, (), batches)))
        freeze_once()

    return run


def pass_through_task(
    tasks: RegionTasks, checkpoint_id: int, pass_through: "FilePassThrough"
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A task before the end of Spark's plan: writes the records, and hands them on to files.

    Args:
        checkpoint_id: the checkpoint that the batch is expected to join.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from pass_through.on(_writing(tasks, checkpoint_id, (), batches))
        freeze_once()

    return run
