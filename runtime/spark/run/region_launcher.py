"""Begins one life of a region: its logs made ready, its plan sent to Spark, its query started."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import cast

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sluice.runtime.continuous.barrier_service import AttemptLog, BarrierService
from sluice.runtime.contracts import (
    ContinuousSource,
    Coordinator,
    NarrowingSource,
    RegionAttempt,
    RegionHandle,
    Source,
    SplitReader,
)
from sluice.runtime.functions.at_most_once import DropBudget, dropped_in_all
from sluice.runtime.functions.function_run import require_other_topics
from sluice.runtime.graph.job_graph import Region
from sluice.runtime.model.model import Barrier, SplitKey
from sluice.runtime.service.hosted_region import HostedRegion, RunningAttempt
from sluice.runtime.service.service_client import CoordinatorAddress
from sluice.runtime.spark.frames.plan_analysis import PlanAnalysis
from sluice.runtime.spark.frames.pruning import in_full, kept_by
from sluice.runtime.spark.frames.region_frames import (
    arrow_schema,
    chained_schema,
    output_mode,
    source_frame,
    transformed,
)
from sluice.runtime.spark.microbatch.event_times import EventTimes, event_time_of
from sluice.runtime.spark.microbatch.job_source import SourcePlan, data_source_for
from sluice.runtime.spark.microbatch.region_query import RegionQuery, RegionSpec
from sluice.runtime.spark.microbatch.region_start import (
    delete_attempts,
    initial_offset,
    location_of,
    make_ready,
    replayed,
)
from sluice.runtime.spark.run.job_spec import JobSpec
from sluice.runtime.spark.session.spark_session import (
    is_local,
    own_workers,
    query_settings,
    quick_python,
    require_running,
    scheduler_pool,
)
from sluice.runtime.spark.tasks.continuous_attempt import ContinuousAttempt, ContinuousChain
from sluice.runtime.spark.tasks.file_pass_through import FilePassThrough, TaskAnswers
from sluice.runtime.spark.tasks.region_tasks import RESULT_SCHEMA, Chain, RegionTasks
from sluice.runtime.spark.tasks.sending import as_sent
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["ContinuousRegions", "RegionLauncher"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuousRegions:
    """Which regions run continuously, and what that takes.

    Attributes:
        names: of the regions.
        desk: where their tasks ask for barriers.
        ends: by operator id of a source: where its splits end; None: nowhere.
        lost_timeout_s: how long a task goes on without hearing of its coordinator.
    """

    names: Collection[str]
    barrier_service: BarrierService
    ends: Callable[[str], Mapping[SplitKey, int] | None]
    lost_timeout_s: float


class RegionLauncher:
    """Starts queries or continuous tasks for a job's regions. Driver, the job's thread.

    Args:
        replayable: what is left of a batch that Spark runs once more, by the word of its sources.
    """

    def __init__(
        self,
        job: JobSpec,
        regions: Mapping[str, Region],
        coordinator: Coordinator,
        fs: FileSystem,
        *,
        job_uid: str,
        address: CoordinatorAddress,
        batches_to_retain: int,
        continuous: ContinuousRegions,
        replayable: Callable[[Barrier], Barrier],
        drops: DropBudget | None = None,
        looks: Mapping[str, PlanAnalysis],
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
        self._looks = looks

    def handles(self) -> dict[str, RegionHandle]:
        """Of every region, by name."""
        return {name: HostedRegion(name, self.launch) for name in self._regions}

    def launch(self, attempt: RegionAttempt) -> RunningAttempt:
        """Start a region's new life, in the engine that runs it; when it raises, nothing runs.

        Raises:
            StorageUnreachableError: a file system is away; try again when it is back.
            ConfigError: the session has been stopped.
            SourceChangedError, DataLostError: a batch that Spark runs once more is not whole.
        """
        require_running(self._job.spark)
        region = self._regions[attempt.region]
        if region.name in self._continuous.names:
            return self._follow(attempt, region)
        return self._query(attempt, region)

    def _follow(self, attempt: RegionAttempt, region: Region) -> ContinuousAttempt:
        """Begin the long task of a region; Spark writes no logs for it (`restore-by-attempt`)."""
        source, functions = region.pipeline.source, region.functions
        assert isinstance(source, ContinuousSource)  # or it would not have been chosen
        assert functions is not None
        splits = tuple(split.at_end() for split in attempt.restored.splits)
        require_other_topics(functions, splits)
        book = AttemptLog(
            region=region.name,
            attempt_id=attempt.attempt_id,
            functions=functions,
            operator_states=attempt.restored.operator_states,
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
        )
        delete_attempts(self._fs, region.name, attempt_id=attempt.attempt_id)  # in the other engine
        self._continuous.barrier_service.open(book)
        running = ContinuousAttempt(
            self._job.spark, chain, book, silence_timeout_s=self._job.settings.timeout_s
        )
        running.start()
        return running

    def _tasks(self, region: Region, attempt_id: int) -> RegionTasks:
        return RegionTasks(
            address=self._address,
            job_uid=self._job_uid,
            region=region.name,
            attempt_id=attempt_id,
            factories={i: sink.writer_factory() for i, sink in region.task_sinks.items()},
            dead_letter_sink=region.dead_letter_sink,
        )

    def _query(self, attempt: RegionAttempt, region: Region) -> RegionQuery:
        """Start the query of a region's new life.

        Its old query is stopped and its open work aborted: here its Spark logs are rewound
        (`restore-by-attempt`).
        """
        restored, attempt_id = attempt.restored, attempt.attempt_id
        if self._drops is not None:
            self._drops.restored(attempt.region, dropped_in_all(restored.operator_states))
        location = location_of(region, restored, attempt_id=attempt_id)
        make_ready(self._fs, region, location, restored, attempt_id=attempt_id)
        again = replayed(self._fs, region, location, restored)
        left = None if again is None else self._replayable(again)
        tasks = self._tasks(region, attempt_id)
        pass_through = self._pass_through(region)
        asked = event_time_of(tuple(region.sinks.values()))
        times = None if asked is None else EventTimes.begin(asked, self._job.spark.sparkContext)
        query = RegionQuery(
            RegionSpec(
                tasks=tasks,
                files={i: sink.frame_writer() for i, sink in region.frame_sinks.items()},
                pass_through=pass_through,
                location=location,
                source_name=region.source_name,
                chained=region.pipeline.is_chained,
                stateful=region.stateful,
                output_mode=output_mode(region.pipeline),
                repeats_result=self._looks[region.name].repeats_result,
                operator_states=restored.operator_states,
                event_times=times,
                functions=region.functions or (),
                drops=self._drops,
                outage_timeout_s=self._job.settings.settle_timeout_s,
            ),
            self._coordinator,
            self._fs,
        )
        first = initial_offset(restored, attempt_id=attempt_id, after=attempt.after)
        source = self._source_of(region)
        reader = source.reader()
        if times is not None:
            reader = times.reader(reader)
        try:
            ddl = source.schema_ddl()
            plan = self._source_plan(region, tasks, pass_through, reader, initial=first, ddl=ddl)
            self._start(
                region, query, replace(plan, replayed=left), is_new=restored.batch_id is None
            )
        except BaseException:
            query.prepare_stop()
            query.stop()
            raise
        return query

    def _start(self, region: Region, query: RegionQuery, plan: SourcePlan, *, is_new: bool) -> None:
        retain = self._batches_to_retain
        with query_settings(self._job.spark, batches_to_retain=retain):
            with self._workers_of(region), quick_python(self._job.spark):
                records = source_frame(self._job.spark, data_source_for(plan))
            frame = records.name(region.source_name).load()
            with scheduler_pool(self._job.spark, f"{self._job.name}-{region.name}"):
                query.start(self._frame(frame, region))
            query.require_settings(batches_to_retain=retain, is_new=is_new)

    def _frame(self, records: DataFrame, region: Region) -> DataFrame:
        """What the query runs: the user's functions over all columns that the source has."""
        pipeline = region.pipeline
        if pipeline.is_chained:
            return records
        schema = cast(StructType, StructType.fromDDL(pipeline.source.schema_ddl()))
        return kept_by(transformed(in_full(records, schema), pipeline), pipeline.sinks)

    def _source_of(self, region: Region) -> Source:
        """The source without the columns that nobody reads."""
        source, read = region.pipeline.source, self._looks[region.name].columns
        if read is None or not isinstance(source, NarrowingSource):
            return source
        return source.narrowed(read)

    def _workers_of(self, region: Region) -> AbstractContextManager[None]:
        chained = region.pipeline.is_chained  # then to read is to write
        return own_workers(self._job.spark) if chained else nullcontext()

    def _pass_through(self, region: Region) -> FilePassThrough | None:
        """A life has answers of its own: a late task of the last one adds nothing to them."""
        if not region.frame_sinks:
            return None
        answers = self._job.spark.sparkContext.accumulator([], TaskAnswers())
        chained = region.pipeline.is_chained
        columns = arrow_schema(chained_schema(region.pipeline)) if chained else None
        return FilePassThrough(columns=columns, answers=answers)

    def _source_plan(
        self,
        region: Region,
        tasks: RegionTasks,
        pass_through: FilePassThrough | None,
        reader: SplitReader,
        *,
        initial: str,
        ddl: str,
    ) -> SourcePlan:
        chain: bytes | None = None
        if region.functions is not None:
            whole = Chain(
                tasks=tasks,
                reader=reader,
                functions=region.functions,
                job_name=self._job.name,
                pass_through=pass_through,
                most_dropped=0 if self._drops is None else self._drops.left(),
            )
            chain = as_sent(whole, region=region.name)
        return SourcePlan(
            format_name=f"sluice-{self._job_uid}-{region.name}",
            address=self._address,
            region=region.name,
            attempt_id=tasks.attempt_id,
            initial_offset=initial,
            tasks=self._job.spark.sparkContext.defaultParallelism,
            # Of a cluster, whose executors may still be coming, nobody knows what runs at once.
            shares_tasks=is_local(self._job.spark),
            chain=chain,
            reader=reader if chain is None else None,
            schema=ddl if chain is None else _schema_of_chain(region, pass_through),
        )


def _schema_of_chain(region: Region, pass_through: FilePassThrough | None) -> StructType | str:
    """Of the rows that Spark is given by the tasks of a chained region."""
    return RESULT_SCHEMA if pass_through is None else chained_schema(region.pipeline)
