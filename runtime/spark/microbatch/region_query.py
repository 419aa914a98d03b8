"""One region of a Job as one Spark streaming query."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType, StructField, StructType

from sluice.runtime.contracts import (
    Coordinator,
    FrameWriter,
    OpenWork,
    RegionRegistration,
    StagedFrame,
    TaskScope,
)
from sluice.runtime.errors import FencedError, StorageError, StorageUnreachableError, StreamError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.functions.at_most_once import DropBudget, drops_after
from sluice.runtime.functions.function_run import (
    ChainedFunction,
    require_other_topics,
    require_within_limits,
)
from sluice.runtime.functions.record_counts import added, totals_after
from sluice.runtime.model import offsets
from sluice.runtime.model.model import (
    Acknowledgement,
    Barrier,
    BatchKey,
    RecordCounts,
    RegionRecord,
    SplitRange,
    StateEntry,
)
from sluice.runtime.model.timestamps import earliest
from sluice.runtime.process.failed_tasks import task_failed
from sluice.runtime.spark.microbatch import query_logs
from sluice.runtime.spark.microbatch.event_times import EventTimes
from sluice.runtime.spark.microbatch.next_batch import (
    repeats_its_result,
    wants_another,
    without_rows,
)
from sluice.runtime.spark.microbatch.query_stop import stop_query
from sluice.runtime.spark.microbatch.replays import ReplayTold, tasks_done
from sluice.runtime.spark.microbatch.spark_state import StateDescriber
from sluice.runtime.spark.session.spark_session import own_workers, require_query_settings
from sluice.runtime.spark.tasks.file_pass_through import FilePassThrough
from sluice.runtime.spark.tasks.region_tasks import (
    RegionTasks,
    pass_through_task,
    require_all_rows_passed,
    require_each_range_once,
    results_of,
    sink_task,
)
from sluice.runtime.spark.tasks.task_result import TaskResult
from sluice.runtime.storage.file_system import FileSystem, require_writable
from sluice.runtime.storage.file_system_opening import needs_jvm
from sluice.runtime.storage.hadoop_errors import FailureKind, causes_of, exception_of, failure_kind

__all__ = ["RegionQuery", "RegionSpec"]

log = logging.getLogger(__name__)

_LOG_TIMEOUT_S = 5.0
_LEAST_STOP_S = 60.0
_POLL_S = 0.01
_RESULT = StructType([StructField("result", BinaryType())])  # as text it is parsed in every epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSpec:
    """All that one run of a region needs to know.

    Attributes:
        tasks: what its tasks share: whose query this is, and the sinks that they write.
        location: Spark's checkpoint location for this query, relative to the job's.
        source_name: Spark's name of the source, the key in its offset log.
        chained: the tasks that read write, too: the frame's rows are their results, or go on.
        stateful: the frame keeps state: a decided batch that Spark replays runs into ``noop``.
        output_mode: Spark's, for a stateful frame; else ``append``.
        repeats_result: see `sluice.runtime.spark.frames.plan_analysis.PlanAnalysis`.
        files: the sink that Spark's own writers write, by operator id; at most one.
        passing: how its rows get there and the tasks' answers back, where there is one.
        operator_states: in the record that this life begins with.
        event_times: how far its records are, where a sink asks for it.
        functions: of a chained region.
        drops: what may be left out of its batches; None: nothing.
        outage_timeout_s: how long a batch may wait for a file system that is away, which its
            query's stop has to wait for, too.
    """

    tasks: RegionTasks
    location: str
    source_name: str
    chained: bool
    stateful: bool
    output_mode: str
    repeats_result: bool = False
    files: Mapping[str, FrameWriter] = field(default_factory=dict)
    pass_through: FilePassThrough | None = None
    operator_states: tuple[StateEntry, ...] = ()
    event_times: EventTimes | None = None
    functions: tuple[ChainedFunction, ...] = ()
    drops: DropBudget | None = None
    outage_timeout_s: float = 0.0


class RegionQuery:
    """Runs a region until it is stopped or fails. Driver.

    `start` and `stop` are called by the job's thread; the batch callback runs in the one thread
    in which Spark calls back into Python, one batch at a time.

    Args:
        wall_ms: the driver's wall clock, by which a split says since when it is idle.
    """

    def __init__(
        self,
        spec: RegionSpec,
        coordinator: Coordinator,
        fs: FileSystem,
        *,
        wall_ms: Callable[[], int] = lambda: round(time.time() * 1000),
    ) -> None:
        self._spec = spec
        self._coordinator = coordinator
        self._fs = fs
        self._wall_ms = wall_ms
        self._state = StateDescriber(fs, spec.location) if spec.stateful else None
        self._stopping = threading.Event()
        self._operator_states = spec.operator_states  # in the last decided record
        self._query: StreamingQuery | None = None
        self._returned: int | None = None  # last batch id whose callback returned normally
        self._acknowledged: int | None = None  # checkpoint id of the last barrier
        self._open: tuple[OpenWork, ...] = ()
        self._replayed: int | None = None  # tasks of the batch that is run once more
        self.error: BaseException | None = None

    @property
    def name(self) -> str:
        """The region's name."""
        return self._spec.tasks.region

    def start(self, frame: DataFrame) -> None:
        """Start the query over ``frame``, the region's functions applied (or run in its read).

        Inside `sluice.runtime.spark.session.spark_session.query_settings`.
        """
        tasks = self._spec.tasks
        self._query = (
            frame.writeStream.foreachBatch(self._on_batch)
            # Of two jobs in one session, whose sources may have the same name.
            .queryName(f"{tasks.region}.{tasks.attempt_id} of {tasks.job_uid}")
            .outputMode(self._spec.output_mode if self._spec.stateful else "append")
            .option("checkpointLocation", f"{self._fs.uri}/{self._spec.location}")
            .start()
        )

    def require_settings(self, *, batches_to_retain: int, is_new: bool) -> None:
        """Whether the query was made as it has to be; see `require_query_settings`.

        Args:
            is_new: nothing of it was decided before: its directory is empty.
        """
        assert self._query is not None  # asked behind `start`
        begins_state = is_new and self._spec.stateful
        require_query_settings(
            self._query, batches_to_retain=batches_to_retain, begins_state=begins_state
        )

    @property
    def is_active(self) -> bool:
        """Whether Spark still runs the query."""
        return self._query is not None and self._query.isActive

    def prepare_stop(self) -> None:
        """What the callback raises from here on is the stop's doing, not a failure."""
        self._stopping.set()

    def stop(self) -> None:
        """Stop the query, and release what its writers hold; the caller wakes its callback, or it
        may take long (`callback-after-commit`).

        Raises:
            WaitedTooLongError: the callback goes on: the region gets no next life.
        """
        try:
            if self._query is not None:
                self._let_spark_log()
                timeout_s = max(_LEAST_STOP_S, self._spec.outage_timeout_s)
                stop_query(self._query, region=self.name, timeout_s=timeout_s)
        finally:
            self._close_writers()

    def _let_spark_log(self) -> None:
        """Give Spark a moment to write its commit log: a stop would interrupt it, loudly."""
        deadline_s = time.monotonic() + _LOG_TIMEOUT_S
        entry = f"{self._spec.location}/commits/{self._returned}"
        while self._returned is not None and self.is_active and time.monotonic() < deadline_s:
            try:
                if self._fs.exists(entry):
                    return
            except StorageError:  # nothing can be written there either
                return
            time.sleep(_POLL_S)  # Spark tells nobody when it has written its commit log

    def _close_writers(self) -> None:
        for writer in self._spec.files.values():
            writer.close()

    def require_writable(self) -> None:
        """Whether a new life could write its logs and stage its files now.

        Raises: StorageUnreachableError where it is too early; StorageError.
        """
        require_writable(self._fs, "spark")
        try:
            for operator_id, writer in self._spec.files.items():
                writer.require_writable(job_uid=self._spec.tasks.job_uid, operator_id=operator_id)
        finally:
            self._close_writers()  # asked of a life that is over, it opens them once more

    def registration(self) -> RegionRegistration:
        """See `sluice.runtime.contracts.RegionHandle.register`."""
        return RegionRegistration(
            region=self._spec.tasks.region,
            attempt_id=self._spec.tasks.attempt_id,
            acknowledged=self._acknowledged,
            open=self._open,
            address=self._spec.tasks.address.address,
            replayed=self._replayed,
        )

    def failure(self) -> BaseException | None:
        """Why the query ended, the typed error where there is one."""
        if self.error is not None:
            return self.error
        if self._query is None:
            return None
        found = self._logs_outage(self._query) or self._query.exception()
        return None if found is None else self._typed(found)

    def _typed(self, err: BaseException) -> BaseException:
        """What a function or Spark raised as an error of the region; any other as it is."""
        if isinstance(err, StreamError) or not isinstance(err, Exception):
            return err
        tasks, what = self._spec.tasks, "the query of a region failed"
        return task_failed(what, err, region=tasks.region, attempt_id=tasks.attempt_id)

    def _logs_outage(self, query: StreamingQuery) -> StorageUnreachableError | None:
        """Spark writes its logs beside the checkpoints, and ends the query where it cannot."""
        if not needs_jvm(self._fs.uri):
            return None
        found = query._jsq.exception()  # noqa: SLF001 - the chain of causes in Java
        if not found.isDefined():
            return None
        said = [exception_of(cause) for cause in causes_of(found.get())]
        if failure_kind(said) is not FailureKind.UNREACHABLE:
            return None
        return StorageUnreachableError(
            "Spark could not write its logs in the checkpoint directory",
            {"uri": self._fs.uri, "error": said[-1].text},
            "Check that NameNode and DataNodes are up, reachable and not in safe mode.",
        )

    # --- the batch callback -----------------------------------------------------------------

    def _on_batch(self, frame: DataFrame, batch_id: int) -> None:
        try:
            self._run_batch(frame, batch_id)
            self._returned = batch_id
        except BaseException as err:  # noqa: BLE001 - kept here whole, Spark gets its name alone
            self._keep(err)
            # Spark matches the text of this error with a regular expression that overflows the
            # stack on a long one, so it gets a short one without a cause.
            raise RuntimeError(f"region {self._spec.tasks.region}: {type(err).__name__}") from None

    def _keep(self, err: BaseException) -> None:
        if self._stopping.is_set():
            log.debug("batch ended by stop: region=%s error=%s", self._spec.tasks.region, err)
            return
        self.error = error = self._typed(err)
        self._coordinator.fail(self._spec.tasks.region, self._spec.tasks.attempt_id, error)

    def _run_batch(self, frame: DataFrame, batch_id: int) -> None:
        spec, tasks = self._spec, self._spec.tasks
        # However long the batch takes, nobody looks for records meanwhile: that is no silence.
        cut_ms = self._wall_ms()
        offset = query_logs.read_offset(self._fs, spec.location, batch_id, spec.source_name)
        barrier = offsets.decode(offset)
        batch = BatchKey(region=tasks.region, attempt_id=barrier.attempt_id, batch_id=batch_id)
        if offsets.is_initial(offset) or self._coordinator.is_decided(batch):
            self._replay_state(frame)
            return
        if barrier.attempt_id != tasks.attempt_id:
            raise FencedError(
                "Spark replays a batch that an earlier life of this region cut and nobody decided",
                {"region": tasks.region, "batch_id": batch_id, "attempt_id": barrier.attempt_id},
                "Restart the job: the region's logs are rewound at start.",
            )
        require_other_topics(spec.functions, barrier.splits)
        if spec.repeats_result and repeats_its_result(spec.output_mode, barrier.splits):
            frame = without_rows(frame)
        region = self._pre_commit(frame, batch, barrier, cut_ms=cut_ms)
        self._coordinator.await_committed(batch)
        self._open = ()
        if spec.drops is not None:
            spec.drops.committed(tasks.region)
        self._operator_states = region.operator_states
        failpoint("before-return")

    def _replay_state(self, frame: DataFrame) -> None:
        """Nothing is written for this batch; Spark still has to commit its state version."""
        if self._spec.stateful:
            done = tasks_done(frame.sparkSession.sparkContext)
            with ReplayTold(done, self._tell_replayed):
                frame.write.format("noop").mode("overwrite").save()
            self._replayed = None

    def _tell_replayed(self, tasks: int) -> None:
        self._replayed = tasks
        self._coordinator.register_region(self.registration())

    def _pre_commit(
        self, frame: DataFrame, batch: BatchKey, barrier: Barrier, *, cut_ms: int
    ) -> RegionRecord:
        results, staged = self._written(frame, batch, barrier)
        by_tasks = (entry for result in results for entry in result.committables)
        by_writers = (entry for part in staged for entry in part.committables)
        if self._spec.chained:
            require_each_range_once(results, barrier)
        counts = self._counted(results, barrier)
        dropped = self._dropped(results, barrier)
        splits, least_watermark_ms = self._splits_after(barrier, cut_ms=cut_ms)
        region = RegionRecord(
            region=batch.region,
            attempt_id=batch.attempt_id,
            query_id="" if self._query is None else self._query.id,
            batch_id=batch.batch_id,
            splits=splits,
            committables=(*by_tasks, *by_writers),
            least_watermark_ms=least_watermark_ms,
            state=None if self._state is None else self._state.after(batch.batch_id),
            operator_states=(
                *(e for part in staged for e in part.operator_states),
                *totals_after(self._operator_states, counts),
                *drops_after(self._operator_states, dropped),
            ),
        )
        self._open = (OpenWork(batch=batch, committables=region.committables),)
        self._coordinator.acknowledge(
            Acknowledgement(
                batch=batch,
                checkpoint_id=barrier.checkpoint_id,
                region=region,
                again_in_s=min(
                    (part.again_in_s for part in staged if part.again_in_s is not None),
                    default=None,
                ),
                state_is_due=self._spec.stateful and wants_another(self._query, frame),
                counts=added(
                    {function.name: counts[function.operator_id]}
                    for function in self._spec.functions
                    if function.operator_id in counts
                ),
                dropped=dropped,
                decide_by_s=earliest(result.decide_by_s for result in results),
            )
        )
        self._acknowledged = barrier.checkpoint_id
        return region

    def _counted(
        self, results: Sequence[TaskResult], barrier: Barrier
    ) -> Mapping[str, RecordCounts]:
        """What the functions counted, by operator id; PoisonRecordsError where too many failed."""
        functions = self._spec.functions
        none = {f.operator_id: RecordCounts() for f in functions if f.policy is not None}
        counts = added([none, *(result.counts for result in results)])
        examples = {i: said for result in results for i, said in result.examples.items()}
        failed_rows: Counter[str] = Counter()
        for result in results:
            failed_rows.update(result.failed_rows)
        where = {"region": barrier.region, "checkpoint_id": barrier.checkpoint_id}
        require_within_limits(functions, counts, examples, where, failed_rows=failed_rows)
        return counts

    def _dropped(self, results: Sequence[TaskResult], barrier: Barrier) -> tuple[SplitRange, ...]:
        """What second attempts left out; DropLimitError where that is too much."""
        dropped = tuple(split for result in results if result.dropped for split in result.ranges)
        if self._spec.drops is not None:
            self._spec.drops.claim(barrier.region, barrier.checkpoint_id, dropped)
        return dropped

    def _splits_after(
        self, barrier: Barrier, *, cut_ms: int
    ) -> tuple[tuple[SplitRange, ...], int | None]:
        if self._spec.event_times is None:
            return barrier.splits, None
        return self._spec.event_times.after_batch(barrier.splits, cut_ms=cut_ms)

    def _written(
        self, frame: DataFrame, batch: BatchKey, barrier: Barrier
    ) -> tuple[Sequence[TaskResult], Sequence[StagedFrame]]:
        """Run the frame once; what its tasks answered, and what Spark's own writers staged."""
        if self._spec.pass_through is None:
            return results_of(self._results(frame, barrier).collect()), ()
        rows = self._passed_on(frame, barrier, self._spec.pass_through)
        staged: list[StagedFrame] = []
        for operator_id, writer in self._spec.files.items():
            scope = TaskScope(
                job_uid=self._spec.tasks.job_uid,
                operator_id=operator_id,
                batch=batch,
                checkpoint_id=barrier.checkpoint_id,
                committed_through=barrier.checkpoint_id - 1,
                operator_states=tuple(
                    entry for entry in self._operator_states if entry.operator_id == operator_id
                ),
                is_last=barrier.is_last,
            )
            staged.append(writer.write(rows, scope, self._coordinator))
        results = self._spec.pass_through.take()
        if self._spec.chained or self._spec.tasks.factories:
            require_all_rows_passed(results, staged)
        return results, staged

    def _passed_on(
        self, frame: DataFrame, barrier: Barrier, pass_through: FilePassThrough
    ) -> DataFrame:
        """The rows for Spark's writers, written by the tasks' own sinks on the way."""
        if self._spec.chained or not self._spec.tasks.factories:
            return frame
        write = pass_through_task(self._spec.tasks, barrier.checkpoint_id, pass_through)
        with own_workers(frame.sparkSession):
            return frame.mapInArrow(write, frame.schema)

    def _results(self, frame: DataFrame, barrier: Barrier) -> DataFrame:
        """The frame whose rows are the tasks' results; to collect it is to run the tasks."""
        if self._spec.chained:
            return frame
        write = sink_task(self._spec.tasks, barrier.checkpoint_id)
        with own_workers(frame.sparkSession):
            return frame.mapInArrow(write, _RESULT)
