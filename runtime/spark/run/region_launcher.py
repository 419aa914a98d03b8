"""Starts one attempt of a region: prepares its logs, sends its plan to Spark, starts its query."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sluice.runtime.checkpoint.checkpoint_slots import STATE
from sluice.runtime.continuous.barrier_service import AttemptEpochs, BarrierService
from sluice.runtime.contracts import (
    ContinuousSource,
    Coordinator,
    FrameWriter,
    JobTopicSource,
    NarrowingSource,
    RegionAttempt,
    RegionHandle,
    Source,
    SplitReader,
)
from sluice.runtime.functions.at_most_once import DropBudget, dropped_in_all
from sluice.runtime.functions.broadcasts import LoadTable, no_table
from sluice.runtime.functions.function_run import require_other_topics
from sluice.runtime.graph.job_graph import Region
from sluice.runtime.keyed.broadcast import broadcast_table
from sluice.runtime.keyed.keyed_plan import KeyedPlan
from sluice.runtime.model.splits import Barrier, SplitKey
from sluice.runtime.service.hosted_region import HostedRegion, RunningAttempt
from sluice.runtime.service.hosting.relay import Relays
from sluice.runtime.service.service_client import CoordinatorAddress, fetch_issued_token
from sluice.runtime.spark.frames.plan_analysis import PlanAnalysis
from sluice.runtime.spark.frames.pruning import in_full, kept_by
from sluice.runtime.spark.frames.region_frames import (
    arrow_schema,
    chained_schema,
    output_mode,
    source_frame,
    transformed,
    writer_factories,
)
from sluice.runtime.spark.microbatch.batch_strategies import (
    BatchStrategy,
    ChainedBatch,
    FileRows,
    FilesBatch,
    PlannedBatch,
    UnwrittenRows,
)
from sluice.runtime.spark.microbatch.event_times import EventTimes, event_time_of
from sluice.runtime.spark.microbatch.job_source import (
    CopyRanges,
    RangeTask,
    ReadRanges,
    SourcePlan,
    data_source_for,
)
from sluice.runtime.spark.microbatch.region_query import RegionQuery, RegionSpec
from sluice.runtime.spark.microbatch.region_start import (
    delete_attempts,
    initial_offset,
    location_of,
    make_ready,
    replayed,
)
from sluice.runtime.spark.run.job_spec import JobSpec
from sluice.runtime.spark.session.session_web_hdfs import state_store
from sluice.runtime.spark.session.spark_session import (
    is_local,
    own_workers,
    query_settings,
    quick_python,
    require_running,
    scheduler_pool,
)
from sluice.runtime.spark.tasks.continuous_attempt import ContinuousAttempt, ContinuousChain
from sluice.runtime.spark.tasks.file_pass_through import FilePassThrough, TaskResults
from sluice.runtime.spark.tasks.region_tasks import (
    RESULT_SCHEMA,
    Chain,
    RegionTasks,
    ResultRow,
    TaskOutput,
    pickled_for_tasks,
)
from sluice.runtime.state.state_files import StateStore
from sluice.runtime.storage.divided_directory import holder_of
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["ContinuousRegions", "RegionLauncher"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuousRegions:
    """The regions that run continuously, and their settings.

    Attributes:
        names: of the regions.
        barrier_service: their tasks poll it, or what answers for it, for barriers.
        ends: by operator id of a source: where its splits end; None: they do not end.
        lost_timeout_s: how long a task runs without an answer from its coordinator.
    """

    names: Collection[str]
    barrier_service: BarrierService | Relays
    ends: Callable[[str], Mapping[SplitKey, int] | None]
    lost_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _BatchMode:
    """How a region runs its micro-batches; chosen once for each attempt.

    Attributes:
        strategy: runs a batch on the driver.
        ranges: the work of a source task.
        schema: of the rows that such a task yields.
        frame: makes the query's frame from the source's.
        workers: context in which the source's frame is made.
    """

    strategy: BatchStrategy
    ranges: RangeTask
    schema: StructType | str
    frame: Callable[[DataFrame], DataFrame]
    workers: Callable[[SparkSession], AbstractContextManager[None]]


class RegionLauncher:
    """Starts queries or continuous tasks for a job's regions. Driver, the job's thread.

    Args:
        coordinator: of the job; None: in another process, and all regions are continuous.
        replayable: the part of a batch that its sources still have, for a batch that Spark replays.
        analyses: of the regions' frames, by region.
    """

    def __init__(
        self,
        job: JobSpec,
        regions: Mapping[str, Region],
        coordinator: Coordinator | None,
        fs: FileSystem,
        *,
        job_uid: str,
        address: CoordinatorAddress,
        batches_to_retain: int,
        continuous: ContinuousRegions,
        replayable: Callable[[Barrier], Barrier],
        drops: DropBudget | None = None,
        analyses: Mapping[str, PlanAnalysis],
    ) -> None:
        self._continuous = continuous
        self._job = job
        self._regions = regions
        self._coordinator = coordinator
        self._fs = fs
        self._job_uid = job_uid
        self._address = address
        self._batches_to_retain = batches_to_retain
        self._replayable = replayable
        self._drops = drops
        self._analyses = analyses

    def handles(self) -> dict[str, RegionHandle]:
        """The handle of every region, by name."""
        return {name: HostedRegion(name, self.launch) for name in self._regions}

    def launch(self, attempt: RegionAttempt) -> RunningAttempt:
        """Start a region's new attempt in its engine; when this raises, nothing runs.

        Raises:
            StorageUnreachableError: a file system is away; try again when it is back.
            ConfigError: the session has been stopped.
            SourceChangedError, DataLostError: the source lacks a part of a batch that Spark
                replays.
        """
        require_running(self._job.spark)
        region = self._regions[attempt.region]
        if region.name in self._continuous.names:
            return self._start_continuous(attempt, region)
        return self._start_query(attempt, region)

    def _tasks(self, region: Region, attempt_id: int) -> RegionTasks:
        return RegionTasks(
            address=self._address,
            job_uid=self._job_uid,
            region=region.name,
            attempt_id=attempt_id,
            factories=writer_factories(region.pipeline, region.task_sinks),
            dead_letter_sink=region.dead_letter_sink,
            load_table=self._load_table(region),
        )

    def _load_table(self, region: Region) -> LoadTable:
        """How tasks of a region read the tables of broadcast streams."""
        if not any(function.broadcasts for function in region.functions or ()):
            return no_table
        return partial(broadcast_table, read=self._state_store().rows)

    def _state_store(self) -> StateStore:
        """The checkpoint directory as tasks see it."""
        fetch_token = partial(fetch_issued_token, self._address)
        files = holder_of(self._fs, STATE)
        return state_store(self._job.spark.sparkContext, files, fetch_token=fetch_token)

    def _keyed_plan(self, region: Region) -> KeyedPlan | None:
        """Where the keyed state of a region is; None: it has no keys."""
        if not region.pipeline.is_keyed:
            return None
        source = region.pipeline.source
        return KeyedPlan(
            store=self._state_store(),
            source_id=region.source_id,
            settings=self._job.state,
            max_parallelism=source.max_parallelism if isinstance(source, JobTopicSource) else 0,
            time_column=None if (time := region.pipeline.event_time) is None else time.column,
        )

    # --- continuous ---------------------------------------------------------------------------

    def _start_continuous(self, attempt: RegionAttempt, region: Region) -> ContinuousAttempt:
        """Start the long task of a region; Spark writes no logs for it (`restore-by-attempt`)."""
        source, functions = region.pipeline.source, region.functions
        assert isinstance(source, ContinuousSource)  # the choice of the engine requires it
        assert functions is not None
        splits = tuple(split.at_end() for split in attempt.restored.splits)
        require_other_topics(functions, splits)
        epochs = AttemptEpochs(
            region=region.name,
            attempt_id=attempt.attempt_id,
            functions=functions,
            operator_states=attempt.restored.operator_states,
            splits=tuple(split.key for split in splits),
            keyed_state=attempt.restored.keyed_state,
        )
        chain = ContinuousChain(
            tasks=self._tasks(region, attempt.attempt_id),
            reader=source.streaming_reader(),
            functions=functions,
            job_name=self._job.name,
            splits=splits,
            ends=self._continuous.ends(region.source_id),
            begins_after=attempt.after,
            lost_timeout_s=self._continuous.lost_timeout_s,
            keyed=self._keyed_plan(region),
            keyed_state=attempt.restored.keyed_state,
            operator_states=attempt.restored.operator_states,
        )
        delete_attempts(self._fs, region.name, attempt_id=attempt.attempt_id)  # of micro-batches
        self._continuous.barrier_service.open(epochs)
        running = ContinuousAttempt(
            self._job.spark,
            chain,
            epochs,
            heartbeat_timeout_s=self._job.settings.timeout_s,
            no_core_s=self._job.resource_timeout_s,
        )
        running.start()
        return running

    # --- micro-batches ------------------------------------------------------------------------

    def _start_query(self, attempt: RegionAttempt, region: Region) -> RegionQuery:
        """Start the query of a region's new attempt.

        The caller has stopped its old query and aborted its open work. This method rewinds the
        region's Spark logs (`restore-by-attempt`).
        """
        restored, attempt_id = attempt.restored, attempt.attempt_id
        assert self._coordinator is not None  # in this process, as for every query
        if self._drops is not None:
            self._drops.restored(attempt.region, dropped_in_all(restored.operator_states))
        location = location_of(region, restored, attempt_id=attempt_id)
        make_ready(self._fs, region, location, restored, attempt_id=attempt_id)
        again = replayed(self._fs, region, location, restored)
        left = None if again is None else self._replayable(again)
        tasks = self._tasks(region, attempt_id)
        files = {i: sink.frame_writer() for i, sink in region.frame_sinks.items()}
        event_time = None
        if region.pipeline.event_time is None:  # else sinks use the watermarks of the source
            event_time = event_time_of(tuple(region.sinks.values()))
        source = self._source_of(region)
        reader, times = source.reader(), None
        if event_time is not None:
            times = EventTimes.begin(event_time, self._job.spark.sparkContext)
            reader = times.reader(reader)
        choose = self._chained if region.pipeline.is_chained else self._planned
        mode = choose(region, tasks, reader, files, ddl=source.schema_ddl())
        query = RegionQuery(
            RegionSpec(
                tasks=tasks,
                strategy=mode.strategy,
                files=files,
                location=location,
                source_name=region.source_name,
                stateful=region.stateful,
                output_mode=output_mode(region.pipeline),
                repeats_result=self._analyses[region.name].repeats_result,
                operator_states=restored.operator_states,
                event_times=times,
                functions=region.functions or (),
                frame_name=region.pipeline.steps[-1].name if region.stateful else "",
                drops=self._drops,
                outage_timeout_s=self._job.settings.settle_timeout_s,
            ),
            self._coordinator,
            self._fs,
        )
        plan = SourcePlan(
            format_name=f"sluice-{self._job_uid}-{region.name}",
            address=self._address,
            region=region.name,
            attempt_id=attempt_id,
            initial_offset=initial_offset(restored, attempt_id=attempt_id, after=attempt.after),
            ranges=mode.ranges,
            schema=mode.schema,
            replayed=left,
        )
        try:
            self._run(region, query, plan, mode, is_new=restored.batch_id is None)
        except BaseException:
            query.prepare_stop()
            query.stop()
            raise
        return query

    def _run(
        self,
        region: Region,
        query: RegionQuery,
        plan: SourcePlan,
        mode: _BatchMode,
        *,
        is_new: bool,
    ) -> None:
        spark, retain = self._job.spark, self._batches_to_retain
        with query_settings(spark, batches_to_retain=retain):
            with mode.workers(spark), quick_python(spark):
                records = source_frame(spark, data_source_for(plan))
            frame = records.name(region.source_name).load()
            with scheduler_pool(spark, f"{self._job.name}-{region.name}"):
                query.start(mode.frame(frame))
            query.require_settings(batches_to_retain=retain, is_new=is_new)

    def _chained(
        self,
        region: Region,
        tasks: RegionTasks,
        reader: SplitReader,
        files: Mapping[str, FrameWriter],
        *,
        ddl: str,
    ) -> _BatchMode:
        """The source's tasks do everything; a file sink gets the rows that they have written."""
        strategy: BatchStrategy = ChainedBatch()
        output: TaskOutput = ResultRow()
        schema: StructType | str = RESULT_SCHEMA
        if files:
            schema = chained_schema(region.pipeline)
            output = self._pass_through(arrow_schema(schema))
            strategy = self._files_batch(ChainedBatch(), files, output)
        assert region.functions is not None
        chain = Chain(
            tasks=tasks,
            reader=reader,
            functions=region.functions,
            job_name=self._job.name,
            output=output,
            most_dropped=0 if self._drops is None else self._drops.left(),
            keyed=self._keyed_plan(region),
        )
        return _BatchMode(
            strategy=strategy,
            ranges=CopyRanges(
                chain=pickled_for_tasks(chain, region=region.name),
                parallelism=(
                    1  # a region has one list of each operator state
                    if any(function.state is not None for function in region.functions)
                    else self._job.spark.sparkContext.defaultParallelism
                ),
            ),
            schema=schema,
            frame=lambda records: records,
            workers=own_workers,  # these tasks keep transactional ids
        )

    def _planned(
        self,
        region: Region,
        tasks: RegionTasks,
        reader: SplitReader,
        files: Mapping[str, FrameWriter],
        *,
        ddl: str,
    ) -> _BatchMode:
        """Spark's planner is between the source's tasks and those that write."""
        strategy: BatchStrategy = PlannedBatch(tasks)
        if files:
            rows: FileRows = PlannedBatch(tasks) if tasks.factories else UnwrittenRows()
            strategy = self._files_batch(rows, files, self._pass_through(None))
        spark = self._job.spark
        known = spark.sparkContext.defaultParallelism if is_local(spark) else None
        return _BatchMode(
            strategy=strategy,
            ranges=ReadRanges(reader=reader, parallelism=known),
            schema=ddl,
            frame=lambda records: _transformed(records, region),
            workers=lambda _: nullcontext(),
        )

    def _pass_through(self, columns: pa.Schema | None) -> FilePassThrough:
        results = self._job.spark.sparkContext.accumulator([], TaskResults())
        return FilePassThrough(columns=columns, results=results)

    def _files_batch(
        self, rows: FileRows, files: Mapping[str, FrameWriter], output: FilePassThrough
    ) -> FilesBatch:
        assert self._coordinator is not None  # as for every query
        return FilesBatch(rows, files, output, job_uid=self._job_uid, registry=self._coordinator)

    def _source_of(self, region: Region) -> Source:
        """The source without the columns that the frame does not read."""
        source, read = region.pipeline.source, self._analyses[region.name].columns
        if read is None or not isinstance(source, NarrowingSource):
            return source
        return source.narrowed(read)


def _transformed(records: DataFrame, region: Region) -> DataFrame:
    """The user's functions over all columns that the source has."""
    pipeline = region.pipeline
    schema = cast(StructType, StructType.fromDDL(pipeline.source.schema_ddl()))
    return kept_by(transformed(in_full(records, schema), pipeline), pipeline.sinks)
