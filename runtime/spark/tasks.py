"""What a Spark task of a Job runs: read, apply the Arrow functions, write, pre-commit.

Runs in an executor's Python worker, once per task. A chained task gets split ranges and does
everything in this one process, inside Spark's read of the source; the task at the end of a
``transform`` gets the records themselves, through ``mapInArrow``. Either yields one row: a
pickled `TaskResult`.
"""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from runtime.contracts import SinkWriter, SplitReader, TaskScope, WriterFactory
from runtime.errors import IllegalTransitionError, StreamError
from runtime.failpoints import failpoint
from runtime.model import Barrier, BatchKey, SplitRange, StateEntry
from runtime.service.client import CoordinatorAddress, CoordinatorClient

__all__ = [
    "RESULT_SCHEMA",
    "ArrowFunction",
    "Chain",
    "RegionTasks",
    "TaskResult",
    "apply_functions",
    "require_each_range_once",
    "results_of",
    "sink_task",
]

ArrowFunction = Callable[[pa.RecordBatch], pa.RecordBatch]

RESULT_SCHEMA = "result binary"
_BATCH_ID = "streaming.sql.batchId"  # Spark's local property; its own foreach sink reads it, too


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionTasks:
    """What the tasks of one life of a region share. Picklable.

    Attributes:
        address: where the coordinator answers.
        job_uid, region, generation: whose tasks these are.
        factories: writer factory by operator id of the sink.
    """

    address: CoordinatorAddress
    job_uid: str
    region: str
    generation: int
    factories: Mapping[str, WriterFactory]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """A task's answer: its committables, or the typed error that ended it.

    Attributes:
        ranges: what a chained task was dealt; empty at the end of a transform.
        committables: of all sinks; empty when nothing was produced.
        records_out: rows handed to the sinks.
        error: set when the task failed; Spark sees a finished task, so that it is not retried
            against a broker that has already refused, and the error keeps its type.
    """

    ranges: tuple[SplitRange, ...] = ()
    committables: tuple[StateEntry, ...] = ()
    records_out: int = 0
    error: StreamError | None = None


class _TaskWriters:
    """The writers of one task, one per sink."""

    def __init__(
        self, tasks: RegionTasks, checkpoint_id: int, source_ranges: tuple[SplitRange, ...]
    ) -> None:
        registry = CoordinatorClient(tasks.address)
        batch, task = _identity(tasks)
        self._writers: list[SinkWriter] = [
            factory.open(
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
        ]
        self.records_out = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            for writer in self._writers:
                writer.write(batch)
            self.records_out += batch.num_rows

    def pre_commit(self) -> tuple[StateEntry, ...]:
        return tuple(entry for writer in self._writers for entry in writer.pre_commit())

    def abort(self) -> None:
        for writer in self._writers:
            writer.abort()


def _identity(tasks: RegionTasks) -> tuple[BatchKey, str]:
    """The batch that this task works for, and the task's name, as Spark tells them."""
    from pyspark import TaskContext

    context = TaskContext.get()
    batch_id = None if context is None else context.getLocalProperty(_BATCH_ID)
    if context is None or batch_id is None:
        raise StreamError(
            "a task was not told which batch it works for",
            {"region": tasks.region, "generation": tasks.generation},
            "Does PYSPARK_PIN_THREAD=false stand in the environment? Leave it out.",
        )
    batch = BatchKey(region=tasks.region, generation=tasks.generation, batch_id=int(batch_id))
    return batch, f"{context.partitionId()}.{context.attemptNumber()}"


def _write_all(
    tasks: RegionTasks,
    checkpoint_id: int,
    source_ranges: tuple[SplitRange, ...],
    batches: Iterator[pa.RecordBatch],
) -> TaskResult:
    """Write and pre-commit; a typed error becomes the result, any other goes to Spark."""
    try:
        writers = _TaskWriters(tasks, checkpoint_id, source_ranges)
        try:
            for batch in batches:
                writers.write(batch)
            committables = writers.pre_commit()
        except BaseException:
            writers.abort()
            raise
    except StreamError as err:
        return TaskResult(error=err)
    failpoint("after-pre-commit")
    return TaskResult(
        ranges=source_ranges, committables=committables, records_out=writers.records_out
    )


def _row(result: TaskResult) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], ["result"])


def results_of(rows: Sequence[Sequence[bytes]]) -> list[TaskResult]:
    """The collected rows of a batch as values; raises the first error a task reported."""
    results: list[TaskResult] = [pickle.loads(row[0]) for row in rows]  # written by `_row`
    for result in results:
        if result.error is not None:
            raise result.error
    return results


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


def _bounds(split: SplitRange) -> tuple[str, int, int, int]:
    return (split.topic, split.partition, split.start_offset, split.end_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The whole way of a chained region's records, in one task. Picklable.

    Attributes:
        tasks: what all its tasks share.
        reader: of the source.
        functions: applied to each batch, in order.
    """

    tasks: RegionTasks
    reader: SplitReader
    functions: tuple[ArrowFunction, ...]

    def run(self, checkpoint_id: int, splits: tuple[SplitRange, ...]) -> pa.RecordBatch:
        """Read ``splits``, apply the functions, write, pre-commit; the row with the result."""
        records = apply_functions(self.reader.read(splits), self.functions)
        return _row(_write_all(self.tasks, checkpoint_id, splits, records))


def apply_functions(
    batches: Iterator[pa.RecordBatch], functions: Sequence[ArrowFunction]
) -> Iterator[pa.RecordBatch]:
    """The chain's functions, in order, on each batch."""
    for batch in batches:
        for function in functions:
            batch = function(batch)
        yield batch


def sink_task(
    tasks: RegionTasks, checkpoint_id: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A task at the end of Spark's plan: writes the records it is given.

    Args:
        checkpoint_id: the checkpoint that the batch is expected to join.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield _row(_write_all(tasks, checkpoint_id, (), batches))

    return run
