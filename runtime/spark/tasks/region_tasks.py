"""The Spark tasks of a Job: they read, apply the Arrow functions, write and pre-commit.

Each runs in an executor's Python worker, once per task. A chained task gets split ranges and does
everything in this one process (`Chain.copy_ranges`). The task at the end of a ``transform`` gets
the records through ``mapInArrow`` (`write_task`). A `TaskOutput` decides what Spark gets from the
task: one row with the pickled `TaskResult`, or the records for Spark's file writers.
"""

import contextlib
import functools
import importlib.metadata
import itertools
import pickle
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import pyarrow as pa
from pyspark import cloudpickle

from sluice.runtime.continuous.barrier_service import KEYED_STATE
from sluice.runtime.contracts import SinkWriter, SplitReader, TaskScope, WriterFactory
from sluice.runtime.errors import ConfigError, FunctionFailedError, StreamError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.functions.at_most_once import offsets_in
from sluice.runtime.functions.broadcasts import LoadTable, no_table
from sluice.runtime.functions.function_run import ChainedFunction, FunctionRun
from sluice.runtime.functions.function_states import FunctionStates
from sluice.runtime.functions.split_clocks import SplitClocks, clocks_of
from sluice.runtime.functions.stage_timer import ALL_STAGES, WRITING_STAGES, StageTimer
from sluice.runtime.functions.task_writers import TaskWriters
from sluice.runtime.keyed.kept_state import KeptTasks, KeyedBatch, KeyedBatchResult, OpenKeyedBatch
from sluice.runtime.keyed.keyed_plan import LOADING, STATE_FILES, KeyedPlan, LoadReports
from sluice.runtime.keyed.keyed_run import KeyedRun
from sluice.runtime.keyed.keyed_task import KeyedTask
from sluice.runtime.model.acknowledgement import RecordCounts, StageTimes
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.json_text import well_formed
from sluice.runtime.model.splits import BatchKey, SplitRange
from sluice.runtime.model.state.keyed_state import KeyedState
from sluice.runtime.process.failed_tasks import note_task
from sluice.runtime.process.worker_memory import tidy_after_task
from sluice.runtime.service.service_client import CoordinatorAddress, CoordinatorClient

__all__ = [
    "BATCH_ID",
    "RESULT_SCHEMA",
    "Chain",
    "RegionTasks",
    "ResultRow",
    "TaskOutput",
    "TaskResult",
    "Writing",
    "load_sent",
    "pickled_for_tasks",
    "results_of",
    "without_errors",
    "write_task",
]

RESULT_SCHEMA = "result binary"
_ERROR_CHARACTERS = 2_000
BATCH_ID = "streaming.sql.batchId"
"""Spark's local property for the batch id; its own foreach sink reads it, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionTasks:
    """Everything that the tasks of one attempt of a region share. Picklable.

    Attributes:
        address: of the coordinator's service.
        job_uid, region, attempt_id: the attempt that the tasks belong to.
        factories: writer factory by operator id of the sink.
        dead_letter_sink: operator id of the sink that takes dead letters.
        load_table: reads the table of a broadcast stream.
    """

    address: CoordinatorAddress
    job_uid: str
    region: str
    attempt_id: int
    factories: Mapping[str, WriterFactory]
    dead_letter_sink: str | None = None
    load_table: LoadTable = no_table


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """A task's result, sent to the driver by pickle: its committables, or the error that ended it.

    Attributes:
        ranges: assigned to a chained task; empty at the end of a transform.
        times: the same ranges with the times of their rows; empty: the source has none.
        dropped: the task read none of its ranges: they are left out.
        committables: of all sinks; empty when nothing was produced.
        decide_by_s: see `sluice.runtime.contracts.SinkWriter`.
        records_out: rows written to the sinks.
        task: ``partition.attempt`` of the Spark task.
        counts: of the functions that count their records, by operator id.
        examples: a description of one failed record for each of them.
        failed_rows: failed rows for each of them; see `FunctionRun`.
        operator_states: that the task has changed; it is its region's only one of the batch then.
        keyed: of the task's splits after the batch; None: the region is not keyed.
        stages: its times, as far as they are known.
        error: set when the task failed. Spark sees a finished task, so it does not retry against a
            broker that has already refused, and the error keeps its type.
    """

    ranges: tuple[SplitRange, ...] = ()
    times: tuple[SplitRange, ...] = ()
    dropped: bool = False
    committables: tuple[StateEntry, ...] = ()
    decide_by_s: float | None = None
    records_out: int = 0
    task: str = ""
    counts: Mapping[str, RecordCounts] = field(default_factory=dict)
    examples: Mapping[str, str] = field(default_factory=dict)
    failed_rows: Mapping[str, int] = field(default_factory=dict)
    operator_states: tuple[StateEntry, ...] = ()
    keyed: KeyedBatchResult | None = None
    stages: StageTimes | None = None
    error: StreamError | None = None


_KEPT = KeptTasks()
"""Of this Python worker."""

Writing = Generator[pa.RecordBatch, None, TaskResult]
"""Yields each batch once it is written; returns the result after the pre-commit."""


class TaskOutput(Protocol):
    """Decides which rows Spark gets from a task, and how the result reaches the driver."""

    def conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """``batch`` in the types that Spark expects; raises ConfigError if it does not fit."""
        ...

    def deliver(self, writing: Writing) -> Iterator[pa.RecordBatch]:
        """Run ``writing`` to its end; yields the task's rows for Spark."""
        ...


class ResultRow(TaskOutput):
    """The usual `TaskOutput`: one row, which holds the pickled result. Executor."""

    def conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """See `TaskOutput.conform`: Spark does not see these rows."""
        return batch

    def deliver(self, writing: Writing) -> Iterator[pa.RecordBatch]:
        result = pickle.dumps(_drained(writing))
        yield pa.RecordBatch.from_arrays([pa.array([result], pa.binary())], ["result"])


def _drained(writing: Writing) -> TaskResult:
    """Write everything, keep nothing."""
    while True:
        try:
            next(writing)
        except StopIteration as end:
            result: TaskResult = end.value
            return result


def results_of(rows: Sequence[Sequence[bytes]]) -> list[TaskResult]:
    """The collected rows of a batch as values; raises the first error that a task reported."""
    return without_errors([pickle.loads(row[0]) for row in rows])  # written by `ResultRow`


def without_errors(results: list[TaskResult]) -> list[TaskResult]:
    """``results``; raises the first error that a task reported."""
    for result in results:
        if result.error is not None:
            raise result.error
    return results


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The whole path of a chained region's records, in one task. Picklable.

    Attributes:
        tasks: shared by all its tasks.
        reader: of the source.
        functions: applied to each batch, in order.
        job_name: for dead letters.
        output: decides what Spark gets from the task.
        most_dropped: if a range holds at most this many offsets, a second attempt of its task
            drops it instead of reading it again.
        keyed: where its keyed state is; None: no function has any.
    """

    tasks: RegionTasks
    reader: SplitReader
    functions: tuple[ChainedFunction, ...]
    job_name: str
    output: TaskOutput = field(default_factory=ResultRow)
    most_dropped: int = 0
    keyed: KeyedPlan | None = None

    def copy_ranges(
        self,
        checkpoint_id: int,
        splits: tuple[SplitRange, ...],
        keyed: KeyedBatch | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Read ``splits``, apply the functions, write, pre-commit; yields the rows for Spark.

        Args:
            keyed: the state that the batch begins with; some of the splits may be empty then.
        """
        yield from self.output.deliver(self._writing(checkpoint_id, splits, keyed))

    def _writing(
        self, checkpoint_id: int, splits: tuple[SplitRange, ...], keyed: KeyedBatch | None
    ) -> Writing:
        # A task without offsets still ends windows and fires timers.
        if 0 < offsets_in(splits) <= self.most_dropped and _is_second_attempt():
            return _dropping(self.tasks, splits)
        read = splits if keyed is None else tuple(s for s in splits if not s.is_empty)
        return _write_and_pre_commit(
            self.tasks,
            checkpoint_id,
            splits,
            iter(()) if keyed is not None and not read else self.reader.read(read),
            output=self.output,
            functions=self.functions,
            job_name=self.job_name,
            open_keyed=None if keyed is None else partial(self._open_keyed, keyed, splits),
        )

    def _open_keyed(
        self, batch: KeyedBatch, splits: tuple[SplitRange, ...], key: BatchKey
    ) -> OpenKeyedBatch:
        plan, tasks = self.keyed, self.tasks
        assert plan is not None  # a keyed region has one

        def on_outage(error: StreamError) -> None:
            CoordinatorClient(tasks.address).waits(key, STATE_FILES, why=str(error))

        def load(state: KeyedState, splits: tuple[SplitRange, ...]) -> KeyedTask:
            client = CoordinatorClient(tasks.address)
            # The checkpoint waits while the load makes progress, however long it takes.
            reports = LoadReports(lambda: client.waits(key, KEYED_STATE, why=LOADING))
            loaded = plan.open(
                self.functions,
                restored=state,
                splits=splits,
                region=tasks.region,
                attempt_id=tasks.attempt_id,
                on_outage=on_outage,
                job_name=self.job_name,
                on_progress=reports,
            )
            reports.end()
            client.waited(key, KEYED_STATE)
            return loaded

        owner = (tasks.job_uid, tasks.region, tasks.attempt_id)
        return _KEPT.open(owner, batch, splits, load)


def write_task(
    tasks: RegionTasks, checkpoint_id: int, output: TaskOutput
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A task at the end of Spark's plan: writes the records that Spark passes to it.

    Args:
        checkpoint_id: the checkpoint that the batch is expected to join.
        output: decides what Spark gets from the task.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writing = _write_and_pre_commit(tasks, checkpoint_id, (), batches, output=output)
        yield from output.deliver(writing)
        tidy_after_task()

    return run


def _write_and_pre_commit(
    tasks: RegionTasks,
    checkpoint_id: int,
    source_ranges: tuple[SplitRange, ...],
    batches: Iterator[pa.RecordBatch],
    *,
    output: TaskOutput,
    functions: Sequence[ChainedFunction] | None = None,
    job_name: str = "",
    open_keyed: Callable[[BatchKey], OpenKeyedBatch] | None = None,
) -> Writing:
    """Write the functions' output for each batch and yield it; pre-commit at the end.

    A typed error becomes the result, and no further batch is yielded; Spark gets any other error.
    """
    timer = StageTimer(WRITING_STAGES if functions is None else ALL_STAGES)
    try:
        key, task = _identity(tasks)
        states = _function_states(tasks, functions or (), CoordinatorClient(tasks.address))
        keyed = None if open_keyed is None else open_keyed(key)
        clocks = _clocks(states.functions, source_ranges, 0 if keyed is None else keyed.time.now_ms)
        writers: TaskWriters[SinkWriter] | None = None
        try:
            writers = _opened(tasks, key, task, checkpoint_id, source_ranges)
            letters = writers.write_dead_letter
            if keyed is None:
                run: FunctionRun | KeyedRun = FunctionRun(states.functions, job_name=job_name)
                applied = run.applied(timer.reading(batches), letters)
            else:
                run = keyed.begin(states.functions)
                applied = itertools.chain(
                    run.applied(timer.reading(batches), letters),
                    run.at_barrier(keyed.time, letters),
                )
            for batch in map(output.conform, applied):
                timer.enter("write_s")
                writers.write(batch)
                yield batch
                timer.enter("function_s")
            changed = states.end_epoch()
            timer.enter("flush_s")
            kept = None if keyed is None else keyed.end(key)
            committables = writers.pre_commit()
            if keyed is not None and kept is not None:
                keyed.keep(kept)
        except BaseException:
            if writers is not None:
                writers.abort()
            if keyed is not None:
                keyed.close()
            raise
    except StreamError as err:
        note_task(err, _task_name())
        return TaskResult(error=err)
    except Exception as err:
        encodable = _encodable(err)
        if encodable is err:
            raise
        raise encodable from None
    failpoint("after-pre-commit")
    return TaskResult(
        ranges=source_ranges,
        times=() if clocks is None else tuple(clocks.ended(split) for split in source_ranges),
        committables=committables,
        decide_by_s=writers.decide_by_s,
        records_out=writers.records_out,
        task=task,
        counts=run.counts,
        examples=run.examples,
        failed_rows=run.failed_rows,
        operator_states=changed,
        keyed=kept,
        stages=timer.times(),
    )


def _clocks(
    functions: Sequence[ChainedFunction], splits: Sequence[SplitRange], now_ms: int
) -> SplitClocks | None:
    """The clocks of the task's splits; None: their rows have no time."""
    clocks = clocks_of(functions)
    if clocks is not None:
        clocks.keep(split.key for split in splits)
        clocks.note_time(now_ms)
    return clocks


def _function_states(
    tasks: RegionTasks, functions: Sequence[ChainedFunction], link: CoordinatorClient
) -> FunctionStates:
    """The functions of a task with their operator states and tables, as its epoch begins with
    them."""
    if not any(function.state or function.broadcasts for function in functions):
        return FunctionStates(functions)
    inputs = link.task_inputs(tasks.region, tasks.attempt_id)
    states = FunctionStates(functions, inputs.states, tasks.load_table)
    states.adopt(inputs.broadcasts)
    return states


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
    """The batch that this task works for, and the task's name, both from Spark."""
    from pyspark import TaskContext

    context = TaskContext.get()
    batch_id = None if context is None else context.getLocalProperty(BATCH_ID)
    if context is None or batch_id is None:
        raise StreamError(
            "Spark did not pass the batch id to a task",
            {"region": tasks.region, "attempt_id": tasks.attempt_id},
            "Remove PYSPARK_PIN_THREAD=false from the environment, if it is set.",
        )
    batch = BatchKey(region=tasks.region, attempt_id=tasks.attempt_id, batch_id=int(batch_id))
    return batch, _task_name()


def _task_name() -> str:
    """``partition.attempt`` of the Spark task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return "" if context is None else f"{context.partitionId()}.{context.attemptNumber()}"


def _is_second_attempt() -> bool:
    """Whether an earlier attempt of this task failed, or its executor was lost."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


def _dropping(tasks: RegionTasks, splits: tuple[SplitRange, ...]) -> Writing:
    """Report the ranges as dropped without reading them. The earlier attempt's output is in a
    transaction of its own, which no decision names: the sweep aborts it (`ids-never-reused`)."""
    _, task = _identity(tasks)
    yield from ()
    return TaskResult(ranges=splits, dropped=True, task=task)


def _encodable(error: Exception) -> Exception:
    """``error``, or the same text in UTF-8.

    Spark's worker raises if it cannot encode an error that it reports. The JVM then waits until the
    checkpoint expires.
    """
    text = "".join(traceback.format_exception(error))
    if well_formed(text) == text:
        return error
    return FunctionFailedError(
        "a task failed with an error that is not valid UTF-8",
        {"error": well_formed(text)[-_ERROR_CHARACTERS:]},
        "Correct the function, or let on_error skip such records; Spark retries the task.",
    )


def pickled_for_tasks(work: object, *, region: str) -> bytes:
    """The work of a task as bytes. Spark sends along the broadcast variables that this thread has
    pickled.

    Raises:
        ConfigError: a function holds an object that cannot be pickled; a retry would fail, too.
    """
    try:
        sent = cloudpickle.dumps(work)  # type: ignore[no-untyped-call]  # PySpark's
    except Exception as err:  # an object's own pickling code may raise any error
        raise ConfigError(
            "a function cannot be sent to Spark's workers",
            {"region": region, "error": f"{type(err).__name__}: {err}"},
            "Create sessions, clients, locks and open files inside the function, when it is first "
            "called: they exist in this process alone.",
        ) from err
    return pickle.dumps(_Sent(sent))


class _Sent:
    """Loads as the work itself, if the executor has the driver's version of Sluice."""

    def __init__(self, work: bytes) -> None:
        self._work = work

    def __reduce__(self) -> tuple[object, tuple[str, bytes]]:
        return load_sent, (_version(), self._work)


def load_sent(version: str, work: bytes) -> object:
    """In the executor: the work that a driver with this version has sent.

    Raises:
        ConfigError: the versions differ, so the work could mean something else here.
    """
    here = _version()
    if here != version and here and version:  # a source tree without metadata has none
        raise ConfigError(
            "an executor has another Sluice",
            {"driver": version, "executor": here},
            "Install the driver's version of sluice-spark for all executors.",
        )
    loaded: object = pickle.loads(work)
    return loaded


@functools.cache
def _version() -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("sluice-spark")
    return ""
