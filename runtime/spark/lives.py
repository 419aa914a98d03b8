"""The lives of a job's regions: begun, watched, begun again after a failure, ended."""

import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from pyspark import cloudpickle

from runtime.checkpoint.coordinator import BarrierCoordinator
from runtime.checkpoint.file_system import FileSystem
from runtime.errors import StreamError
from runtime.job import Job
from runtime.model import RegionRecord
from runtime.service.client import CoordinatorAddress
from runtime.spark.frames import output_mode, source_frame, transformed
from runtime.spark.job_graph import Region
from runtime.spark.job_source import SourcePlan, data_source_for
from runtime.spark.region import RegionQuery, RegionSpec
from runtime.spark.region_start import initial_offset, location_of, make_ready
from runtime.spark.session import own_workers, query_settings
from runtime.spark.tasks import RESULT_SCHEMA, Chain, RegionTasks

__all__ = ["RegionLives"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Life:
    region: Region
    generation: int
    query: RegionQuery


class RegionLives:
    """One query for each region, replaced when it fails. Used by the thread that runs the job.

    A life that failed, or whose checkpoint expired, is told to the coordinator, which counts and
    stops the job when it were too many (`CheckpointSettings.tolerable_failures`) or the error
    would come again. Otherwise the region's query is stopped, its open work aborted, its Spark
    logs rewound, and a query of a new generation goes on at the last decision (rules 9 and 12).
    """

    def __init__(
        self,
        job: Job,
        coordinator: BarrierCoordinator,
        fs: FileSystem,
        *,
        job_uid: str,
        address: CoordinatorAddress,
        batches_to_retain: int,
    ) -> None:
        self._job = job
        self._coordinator = coordinator
        self._fs = fs
        self._job_uid = job_uid
        self._address = address
        self._batches_to_retain = batches_to_retain
        self._lives: dict[str, _Life] = {}

    def begin(self, region: Region, generation: int, restored: RegionRecord, *, after: int) -> None:
        """Start the region's query at the ends of ``restored``, decided by checkpoint ``after``."""
        location = location_of(region, generation)
        make_ready(self._fs, region, location, restored)
        tasks = RegionTasks(
            address=self._address,
            job_uid=self._job_uid,
            region=region.name,
            generation=generation,
            factories={i: sink.writer_factory() for i, sink in region.sinks.items()},
        )
        query = RegionQuery(
            RegionSpec(
                tasks=tasks,
                location=location,
                source_name=region.source_name,
                chained=region.pipeline.is_chained,
                stateful=region.stateful,
                output_mode=output_mode(region.pipeline),
            ),
            self._coordinator,
            self._fs,
        )
        first = initial_offset(restored, generation=generation, after=after)
        plan = self._source_plan(region, tasks, initial=first)
        self._lives[region.name] = _Life(region=region, generation=generation, query=query)
        with query_settings(self._job.spark, batches_to_retain=self._batches_to_retain):
            with self._workers_of(region):
                records = source_frame(self._job.spark, data_source_for(plan))
            frame = records.name(region.source_name).load()
            query.start(transformed(frame, region.pipeline))

    def _workers_of(self, region: Region) -> AbstractContextManager[None]:
        chained = region.pipeline.is_chained  # then to read is to write
        return own_workers(self._job.spark) if chained else nullcontext()

    def _source_plan(self, region: Region, tasks: RegionTasks, *, initial: str) -> SourcePlan:
        reader = region.pipeline.source.reader()
        chain: bytes | None = None
        if region.functions is not None:
            whole = Chain(tasks=tasks, reader=reader, functions=region.functions)
            # Spark sends along the broadcast variables that this thread has pickled.
            chain = cloudpickle.dumps(whole)  # type: ignore[no-untyped-call]
        return SourcePlan(
            format_name=f"sluice-{self._job_uid}-{region.name}",
            address=self._address,
            region=region.name,
            generation=tasks.generation,
            initial_offset=initial,
            tasks=self._job.spark.sparkContext.defaultParallelism,
            chain=chain,
            reader=reader,
            schema_ddl=region.pipeline.source.schema_ddl() if chain is None else RESULT_SCHEMA,
        )

    def watch(self) -> None:
        """Look at every life; replace those that have ended.

        Raises:
            StreamError: a query was stopped from outside, or cannot go on.
        """
        for life in list(self._lives.values()):
            if self._coordinator.is_over:
                return  # whoever waits for the coordinator learns why
            if not self._coordinator.is_live(life.region.name, life.generation):
                self._replace(life, "its checkpoint failed")
            elif not life.query.is_active:
                self._replace(life, self._failed(life))

    def _failed(self, life: _Life) -> BaseException:
        """Tell the coordinator what the batch callback did not see."""
        name, error = life.region.name, life.query.failure()
        if error is None:
            raise StreamError(
                "a region's query ended without an error",
                {"region": name},
                "Was it stopped from outside the job? Start the job again.",
            )
        self._coordinator.fail(name, life.generation, error)
        return error

    def _replace(self, life: _Life, why: object) -> None:
        name, timeout_s = life.region.name, self._job.settings.settle_timeout_s
        life.query.prepare_stop()
        life.query.stop()
        try:
            restarted = self._coordinator.restart_region(name, timeout_s=timeout_s)
        except StreamError:
            if self._coordinator.is_over:
                return
            raise
        log.warning(
            "region restarted: region=%s generation=%d why=%s", name, restarted.generation, why
        )
        after = self._coordinator.last_committed
        self.begin(life.region, restarted.generation, restarted.restored, after=after)

    def stop(self) -> None:
        """Wake the callbacks first, then stop the queries (rule 12)."""
        queries = [life.query for life in self._lives.values()]
        for query in queries:
            query.prepare_stop()
        self._coordinator.cancel()
        for query in queries:
            try:
                query.stop()
            except Exception:  # a signal to all processes ends Spark's first: the rest goes on
                log.exception("a region's query was not stopped in order: region=%s", query.name)
