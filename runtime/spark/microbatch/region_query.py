"""One region of a Job as one Spark streaming query."""

import datetime as dt
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from sluice.runtime.contracts import Coordinator, FrameWriter, OpenWork, RegionRegistration
from sluice.runtime.errors import DeliveryError, FencedError, StreamError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.functions.at_most_once import DropBudget, drops_after
from sluice.runtime.functions.function_run import (
    ChainedFunction,
    require_other_topics,
    require_within_limits,
)
from sluice.runtime.functions.function_states import states_after
from sluice.runtime.functions.record_counts import added, totals_after
from sluice.runtime.functions.split_clocks import clocks_of
from sluice.runtime.model import offsets
from sluice.runtime.model.acknowledgement import Acknowledgement, RecordCounts, StageTimes
from sluice.runtime.model.checkpoint_record import RegionRecord, StateEntry
from sluice.runtime.model.event_time import least_watermark_ms
from sluice.runtime.model.splits import Barrier, BatchKey, SplitRange, ranges_text
from sluice.runtime.model.state.keyed_state import Due, KeyedState
from sluice.runtime.model.timestamps import earliest, later
from sluice.runtime.process.failed_tasks import task_failed
from sluice.runtime.spark.microbatch import query_logs
from sluice.runtime.spark.microbatch.batch_strategies import BatchOutput, BatchStrategy, OpenBatch
from sluice.runtime.spark.microbatch.event_times import EventTimes
from sluice.runtime.spark.microbatch.query_end import (
    await_commit_log,
    logs_outage,
    state_mismatch,
    stop_query,
)
from sluice.runtime.spark.microbatch.spark_state import StateDescriber
from sluice.runtime.spark.microbatch.stateful_batches import (
    ReplayProgress,
    late_rows,
    repeats_its_result,
    tasks_done,
    wants_another,
    without_rows,
)
from sluice.runtime.spark.session.spark_session import require_query_settings
from sluice.runtime.spark.tasks.region_tasks import RegionTasks, TaskResult
from sluice.runtime.storage.divided_directory import SPARK, spark_root
from sluice.runtime.storage.file_system import FileSystem, require_writable
from sluice.runtime.storage.file_system_opening import hadoop_uri

__all__ = ["RegionQuery", "RegionSpec"]

log = logging.getLogger(__name__)

_SHORTEST_STOP_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSpec:
    """Everything that one attempt of a region needs.

    Attributes:
        tasks: shared by its tasks: the attempt's identity, and the sinks that they write to.
        strategy: runs its batches.
        location: Spark's checkpoint location for this query, relative to the job's.
        source_name: Spark's name of the source, the key in its offset log.
        stateful: the frame keeps state, so a decided batch that Spark replays runs into ``noop``.
        output_mode: Spark's, for a stateful frame; else ``append``.
        repeats_result: see `sluice.runtime.spark.frames.plan_analysis.PlanAnalysis`.
        files: writers of the sink that Spark's own writers write, by operator id; at most one.
        operator_states: in the record that this attempt begins with.
        event_times: the event time of its records, if a sink needs it.
        functions: of a chained region.
        frame_name: name of the transform, for its counts.
        drops: bounds the records that its batches may drop; None: none.
        outage_timeout_s: how long a batch may wait for an unreachable file system. The query's
            stop has to wait as long.
    """

    tasks: RegionTasks
    strategy: BatchStrategy
    location: str
    source_name: str
    stateful: bool
    output_mode: str
    repeats_result: bool = False
    files: Mapping[str, FrameWriter] = field(default_factory=dict)
    operator_states: tuple[StateEntry, ...] = ()
    event_times: EventTimes | None = None
    functions: tuple[ChainedFunction, ...] = ()
    frame_name: str = ""
    drops: DropBudget | None = None
    outage_timeout_s: float = 0.0


class RegionQuery:
    """Runs a region until it is stopped or fails. Driver.

    The job's thread calls `start` and `stop`. The batch callback runs in the one thread in which
    Spark calls back into Python, one batch at a time.

    Args:
        wall_ms: the driver's wall clock, which dates the idle time of a split.
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
        self._has_warned = False  # of late rows
        self._ranges = ""  # of the running batch, for errors
        self._replayed: int | None = None  # finished tasks of a batch that Spark replays
        self.error: BaseException | None = None

    @property
    def name(self) -> str:
        """The region's name."""
        return self._spec.tasks.region

    def start(self, frame: DataFrame) -> None:
        """Start the query over ``frame``; the caller holds the settings of
        `sluice.runtime.spark.session.spark_session.query_settings`."""
        tasks = self._spec.tasks
        location = f"{hadoop_uri(spark_root(self._fs))}/{self._spec.location}"
        self._query = (
            frame.writeStream.foreachBatch(self._on_batch)
            # Two jobs of one session may have sources of the same name.
            .queryName(f"{tasks.region}.{tasks.attempt_id} of {tasks.job_uid}")
            .outputMode(self._spec.output_mode if self._spec.stateful else "append")
            .option("checkpointLocation", location)
            .start()
        )

    def require_settings(self, *, batches_to_retain: int, is_new: bool) -> None:
        """Check that the query has the settings it needs; see `require_query_settings`.

        Args:
            is_new: none of its batches was decided before: its directory is empty.
        """
        assert self._query is not None  # called after `start`
        begins_state = is_new and self._spec.stateful
        require_query_settings(
            self._query, batches_to_retain=batches_to_retain, begins_state=begins_state
        )

    @property
    def is_active(self) -> bool:
        """Whether Spark still runs the query."""
        return self._query is not None and self._query.isActive

    def prepare_stop(self) -> None:
        """From here on an error of the callback comes from the stop and is not a failure."""
        self._stopping.set()

    def stop(self) -> None:
        """Stop the query and close its file writers. If the caller does not wake the callback, this
        may take long (`callback-after-commit`).

        Raises:
            WaitedTooLongError: the callback still runs, so no next attempt may begin.
        """
        try:
            if self._query is not None:
                if self._returned is not None:
                    entry = f"{self._spec.location}/commits/{self._returned}"
                    await_commit_log(self._query, self._fs, entry)
                timeout_s = max(_SHORTEST_STOP_S, self._spec.outage_timeout_s)
                stop_query(self._query, region=self.name, timeout_s=timeout_s)
        finally:
            self._close_writers()

    def _close_writers(self) -> None:
        for writer in self._spec.files.values():
            writer.close()

    def require_writable(self) -> None:
        """Check that a new attempt could write its logs and stage its files now.

        Raises: StorageUnreachableError if it is too early; StorageError.
        """
        require_writable(self._fs, SPARK)
        try:
            for operator_id, writer in self._spec.files.items():
                writer.require_writable(job_uid=self._spec.tasks.job_uid, operator_id=operator_id)
        finally:
            self._close_writers()  # the check opens them again after the attempt's end

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
        """Why the query ended; the typed error if there is one."""
        if self.error is not None:
            return self.error
        if self._query is None:
            return None
        found = logs_outage(self._query, spark_root(self._fs)) or self._query.exception()
        return None if found is None else self._typed(found)

    def _typed(self, err: BaseException) -> BaseException:
        """An untyped error of a function or of Spark as an error of the region."""
        if isinstance(err, StreamError) or not isinstance(err, Exception):
            return err
        tasks, what = self._spec.tasks, "the query of a region failed"
        mismatch = state_mismatch(err, region=tasks.region) if self._spec.stateful else None
        if mismatch is not None:
            return mismatch
        return task_failed(
            what, err, region=tasks.region, attempt_id=tasks.attempt_id, ranges=self._ranges
        )

    # --- the batch callback -----------------------------------------------------------------

    def _on_batch(self, frame: DataFrame, batch_id: int) -> None:
        try:
            self._run_batch(frame, batch_id)
            self._returned = batch_id
        except BaseException as err:  # noqa: BLE001 - kept here as it is; Spark gets its name alone
            self._keep(err)
            # Spark matches the text of this error with a regular expression that overflows the
            # stack on a long one, so it gets a short one without a cause.
            raise RuntimeError(f"region {self._spec.tasks.region}: {type(err).__name__}") from None

    def _keep(self, err: BaseException) -> None:
        if self._stopping.is_set():
            log.debug("batch ended by stop: region=%s error=%s", self._spec.tasks.region, err)
            return
        self.error = error = self._typed(err)
        if self._ranges and isinstance(error, DeliveryError):
            where: dict[str, object] = error.args[1]
            if "source_offset" not in where:  # a task after Spark's plan knows no ranges
                where.setdefault("source_ranges", self._ranges)
        self._coordinator.fail(self._spec.tasks.region, self._spec.tasks.attempt_id, error)

    def _run_batch(self, frame: DataFrame, batch_id: int) -> None:
        spec, tasks = self._spec, self._spec.tasks
        # The enumerator fetches nothing while the batch runs: that time does not make a split idle.
        fetched_ms = self._wall_ms()
        offset = query_logs.read_offset(self._fs, spec.location, batch_id, spec.source_name)
        barrier = offsets.decode(offset)
        batch = BatchKey(region=tasks.region, attempt_id=barrier.attempt_id, batch_id=batch_id)
        if offsets.is_initial(offset) or self._coordinator.is_decided(batch):
            self._replay_state(frame)
            return
        if barrier.attempt_id != tasks.attempt_id:
            raise FencedError(
                "Spark replays an undecided batch of an earlier attempt of this region",
                {"region": tasks.region, "batch_id": batch_id, "attempt_id": barrier.attempt_id},
                "Restart the job: the start rewinds the region's logs.",
            )
        self._ranges = ranges_text(barrier.splits)
        require_other_topics(spec.functions, barrier.splits)
        if spec.repeats_result and repeats_its_result(spec.output_mode, barrier.splits):
            frame = without_rows(frame)
        opened = OpenBatch(key=batch, frame=frame, operator_states=self._operator_states)
        output = spec.strategy.run(barrier, opened)
        region = self._acknowledge(barrier, opened, output, fetched_ms=fetched_ms)
        self._coordinator.await_committed(batch)
        self._open, self._ranges = (), ""
        self._operator_states = region.operator_states
        if spec.drops is not None:
            spec.drops.committed(tasks.region)
        failpoint("before-return")

    def _replay_state(self, frame: DataFrame) -> None:
        """Write nothing for this batch; Spark still has to commit its state version."""
        if self._spec.stateful:
            done = tasks_done(frame.sparkSession.sparkContext)
            with ReplayProgress(done, self._report_replayed):
                frame.write.format("noop").mode("overwrite").save()
            # Spark logs a batch that returns now. A newer run may have restored, and log others.
            self._coordinator.require_newest()
            self._replayed = None

    def _report_replayed(self, tasks: int) -> None:
        self._replayed = tasks
        self._coordinator.register_region(self.registration())

    def _acknowledge(
        self, barrier: Barrier, batch: OpenBatch, output: BatchOutput, *, fetched_ms: int
    ) -> RegionRecord:
        counts = self._counts(output.results, barrier)
        dropped = self._dropped(output.results, barrier)
        region = self._record(barrier, batch, output, counts, dropped, fetched_ms=fetched_ms)
        self._open = (OpenWork(batch=batch.key, committables=region.committables),)
        keyed = [result.keyed for result in output.results if result.keyed is not None]
        self._coordinator.acknowledge(
            Acknowledgement(
                batch=batch.key,
                checkpoint_id=barrier.checkpoint_id,
                region=region,
                again_in_s=min(
                    (part.again_in_s for part in output.staged if part.again_in_s is not None),
                    default=None,
                ),
                state_is_due=self._spec.stateful and wants_another(self._query, batch.frame),
                due=Due.first(each.due for each in keyed),
                key_samples=tuple(sample for each in keyed for sample in each.key_samples),
                counts=added(
                    [
                        *(
                            {function.name: counts[function.operator_id]}
                            for function in self._spec.functions
                            if function.operator_id in counts
                        ),
                        self._late(),
                    ]
                ),
                dropped=dropped,
                decide_by_s=earliest(result.decide_by_s for result in output.results),
                stages=StageTimes.slowest(result.stages for result in output.results),
            )
        )
        self._acknowledged = barrier.checkpoint_id
        return region

    def _record(
        self,
        barrier: Barrier,
        batch: OpenBatch,
        output: BatchOutput,
        counts: Mapping[str, RecordCounts],
        dropped: tuple[SplitRange, ...],
        *,
        fetched_ms: int,
    ) -> RegionRecord:
        splits, least_watermark_ms = self._timed(barrier, output.results, fetched_ms=fetched_ms)
        return RegionRecord(
            region=batch.key.region,
            attempt_id=batch.key.attempt_id,
            query_id="" if self._query is None else self._query.id,
            batch_id=batch.key.batch_id,
            splits=splits,
            committables=(
                *(entry for result in output.results for entry in result.committables),
                *(entry for part in output.staged for entry in part.committables),
            ),
            least_watermark_ms=least_watermark_ms,
            state=None if self._state is None else self._state.after(batch.key.batch_id),
            keyed_state=_keyed_state(barrier, output.results),
            operator_states=(
                *(entry for part in output.staged for entry in part.operator_states),
                *totals_after(batch.operator_states, counts),
                *drops_after(batch.operator_states, dropped),
                *states_after(
                    batch.operator_states,
                    [entry for result in output.results for entry in result.operator_states],
                    self._spec.functions,
                ),
            ),
        )

    def _timed(
        self, barrier: Barrier, results: Sequence[TaskResult], *, fetched_ms: int
    ) -> tuple[tuple[SplitRange, ...], int | None]:
        """The batch's splits with the times of their rows, and the region's lowest watermark."""
        closed = tuple(
            replace(s, barrier_watermark_ms=later(s.barrier_watermark_ms, barrier.watermark_ms))
            for s in barrier.splits
        )
        clocks, own = clocks_of(self._spec.functions), self._spec.event_times
        if clocks is None:
            return (closed, None) if own is None else own.after_batch(closed, fetched_ms=fetched_ms)
        timed = {split.key: split for result in results for split in result.times}
        splits = tuple(
            replace(
                split,
                largest_timestamp_ms=timed.get(split.key, split).largest_timestamp_ms,
                watermark_ms=timed.get(split.key, split).watermark_ms,
            )
            for split in closed
        )
        return splits, least_watermark_ms(splits, clocks.time, now_ms=fetched_ms)

    def _counts(
        self, results: Sequence[TaskResult], barrier: Barrier
    ) -> Mapping[str, RecordCounts]:
        """The functions' counts by operator id; PoisonRecordsError if too many records failed."""
        functions = self._spec.functions
        none = {f.operator_id: RecordCounts() for f in functions if f.is_counted}
        counts = added([none, *(result.counts for result in results)])
        examples = {i: text for result in results for i, text in result.examples.items()}
        failed_rows: Counter[str] = Counter()
        for result in results:
            failed_rows.update(result.failed_rows)
        where = {"region": barrier.region, "checkpoint_id": barrier.checkpoint_id}
        require_within_limits(functions, counts, examples, where, failed_rows=failed_rows)
        return counts

    def _late(self) -> Mapping[str, RecordCounts]:
        """The rows that a stateful transform dropped as late; the first ones are a warning."""
        rows, watermark_ms = late_rows(self._query) if self._spec.stateful else (0, 0)
        if not rows:
            return {}
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "Spark dropped rows that are later than the watermark; raise its delay, or filter "
                "timestamps from the future before withWatermark: region=%s operator=%s rows=%d "
                "watermark=%s ahead_of_clock_s=%d",
                self.name,
                self._spec.frame_name,
                rows,
                dt.datetime.fromtimestamp(watermark_ms / 1000, dt.UTC).isoformat(),
                max(0, watermark_ms - self._wall_ms()) // 1000,
            )
        return {self._spec.frame_name: RecordCounts(late=rows)}

    def _dropped(self, results: Sequence[TaskResult], barrier: Barrier) -> tuple[SplitRange, ...]:
        """The ranges that second attempts dropped; DropLimitError if they are too many."""
        dropped = tuple(split for result in results if result.dropped for split in result.ranges)
        if self._spec.drops is not None:
            self._spec.drops.claim(barrier.region, barrier.checkpoint_id, dropped)
        return dropped


def _keyed_state(barrier: Barrier, results: Sequence[TaskResult]) -> KeyedState | None:
    """The state of all splits after a batch; None: the region is not keyed."""
    if barrier.new_state is None:
        return None
    if not barrier.splits:  # it has no tasks
        return barrier.new_state
    return KeyedState.merged(r.keyed.state for r in results if r.keyed is not None)
