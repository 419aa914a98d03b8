"""What a Spark task of a Job runs: read, apply the Arrow functions, write, pre-commit.

Runs in an executor's Python worker, called by Spark once per task through ``mapInArrow``. A
chained task gets split descriptors and does everything in this one process; the task at the end
of a ``transform`` gets the records themselves. Either yields one row: a pickled `TaskResult`.
"""

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from runtime.contracts import SinkWriter, SplitReader, TaskScope, WriterFactory
from runtime.errors import StreamError
from runtime.failpoints import failpoint
from runtime.model import BatchKey, SplitRange, StateEntry
from runtime.service.client import CoordinatorAddress, CoordinatorClient

__all__ = [
    "RESULT_SCHEMA",
    "SPLITS_SCHEMA",
    "ArrowFunction",
    "BatchScope",
    "TaskResult",
    "apply_functions",
    "chained_task",
    "decode_splits",
    "encode_splits",
    "results_of",
    "sink_task",
]

ArrowFunction = Callable[[pa.RecordBatch], pa.RecordBatch]

RESULT_SCHEMA = "result binary"
SPLITS_SCHEMA = "splits string"

_FIELDS = (
    "source_id",
    "topic",
    "topic_id",
    "partition",
    "start_offset",
    "end_offset",
    "leader_epoch",
)


def encode_splits(splits: Sequence[SplitRange]) -> str:
    """The ranges of one chained task as the only column Spark moves for it."""
    return json.dumps([{name: getattr(s, name) for name in _FIELDS} for s in splits])


def decode_splits(text: str) -> tuple[SplitRange, ...]:
    """The ranges that `encode_splits` was given."""
    return tuple(SplitRange(**fields) for fields in json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScope:
    """What every task of one batch shares. Picklable; made anew for each batch.

    Attributes:
        address: where the coordinator answers.
        job_uid: of the job.
        batch, checkpoint_id, committed_through: see `runtime.contracts.TaskScope`.
        factories: writer factory by operator id of the sink.
    """

    address: CoordinatorAddress
    job_uid: str
    batch: BatchKey
    checkpoint_id: int
    committed_through: int
    factories: Mapping[str, WriterFactory]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """A task's answer: its committables, or the typed error that ended it.

    Attributes:
        committables: of all sinks; empty when nothing was produced.
        records_out: rows handed to the sinks.
        error: set when the task failed; Spark sees a finished task, so that it is not retried
            against a broker that has already refused, and the error keeps its type.
    """

    committables: tuple[StateEntry, ...] = ()
    records_out: int = 0
    error: StreamError | None = None


class _TaskWriters:
    """The writers of one task, one per sink."""

    def __init__(self, scope: BatchScope, source_ranges: tuple[SplitRange, ...]) -> None:
        registry = CoordinatorClient(scope.address)
        self._writers: list[SinkWriter] = [
            factory.open(
                TaskScope(
                    job_uid=scope.job_uid,
                    operator_id=operator_id,
                    batch=scope.batch,
                    checkpoint_id=scope.checkpoint_id,
                    committed_through=scope.committed_through,
                    task=_task_name(),
                    source_ranges=source_ranges,
                ),
                registry,
            )
            for operator_id, factory in scope.factories.items()
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


def _task_name() -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    return "" if context is None else f"{context.partitionId()}.{context.attemptNumber()}"


def _write_all(
    scope: BatchScope, source_ranges: tuple[SplitRange, ...], batches: Iterator[pa.RecordBatch]
) -> TaskResult:
    """Write and pre-commit; a typed error becomes the result, any other goes to Spark."""
    try:
        writers = _TaskWriters(scope, source_ranges)
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
    return TaskResult(committables=committables, records_out=writers.records_out)


def _row(result: TaskResult) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], ["result"])


def results_of(rows: Sequence[Sequence[bytes]]) -> list[TaskResult]:
    """The collected rows of a batch as values; raises the first error a task reported."""
    results: list[TaskResult] = [pickle.loads(row[0]) for row in rows]  # written by `_row`
    for result in results:
        if result.error is not None:
            raise result.error
    return results


def chained_task(
    scope: BatchScope, reader: SplitReader, functions: Sequence[ArrowFunction]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A task over split descriptors: reads, applies ``functions`` in order, writes."""

    def run(descriptors: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        splits = tuple(
            split
            for batch in descriptors
            for text in batch.column(0).to_pylist()
            for split in decode_splits(text)
        )
        if splits:
            yield _row(_write_all(scope, splits, apply_functions(reader.read(splits), functions)))

    return run


def apply_functions(
    batches: Iterator[pa.RecordBatch], functions: Sequence[ArrowFunction]
) -> Iterator[pa.RecordBatch]:
    """The chain's functions, in order, on each batch."""
    for batch in batches:
        for function in functions:
            batch = function(batch)
        yield batch


def sink_task(
    scope: BatchScope,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A task at the end of Spark's plan: writes the records it is given."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield _row(_write_all(scope, (), batches))

    return run
