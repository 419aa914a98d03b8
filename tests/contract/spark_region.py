"""A region on Spark, reached as a job reaches it."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from sluice import KafkaSink, KafkaSource
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.continuous.barrier_service import BarrierService
from sluice.runtime.contracts import RegionAttempt, RegionHandle
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.graph.job_graph import job_plan, regions_of
from sluice.runtime.job.job import Job
from sluice.runtime.service.server import CoordinatorService
from sluice.runtime.spark.frames.plan_analysis import PlanAnalysis
from sluice.runtime.spark.microbatch.region_query import RegionQuery
from sluice.runtime.spark.run.region_launcher import ContinuousRegions, RegionLauncher
from sluice.runtime.spark.session.spark_session import prepare
from tests.kit.kafka.kafka_records import Record, produce, unique
from tests.kit.waiting import wait_for

_BAD = b"bad"


def _refuse_bad(batch: pa.RecordBatch) -> pa.RecordBatch:
    if pc.any(pc.equal(batch.column("value"), pa.scalar(_BAD, pa.binary()))).as_py():
        raise ValueError("a bad record")
    return batch


class _CountingLauncher(RegionLauncher):
    def launch(self, attempt: RegionAttempt) -> RegionQuery:
        query = super().launch(attempt)
        _BEGUN.append(attempt.attempt_id)
        return query


_BEGUN: list[int] = []


class SparkBed:
    """A chained region from topic to topic, under a coordinator with its service."""

    def __init__(
        self, spark: SparkSession, bootstrap: str, source: str, sink: str, directory: Path
    ) -> None:
        _BEGUN.clear()
        self._bootstrap, self._source = bootstrap, source
        prepare(spark)
        job = Job(
            "handled", spark, checkpoint_dir=str(directory), interval_s=0.1, engine="micro-batch"
        )
        job.source(KafkaSource(bootstrap_servers=bootstrap, topics=[source])).map_batches(
            _refuse_bad
        ).sink(
            KafkaSink(
                bootstrap_servers=bootstrap, topic=sink, transactional_id_prefix=unique("handled")
            )
        )
        graph, (region,) = regions_of(job.spec.pipelines, [False])
        plan = job_plan(
            job.spec.name,
            graph,
            [region],
            checkpoints=job.spec.settings,
            spark_version=spark.version,
            cluster_ids=[],
        )
        store = open_store(job.spec.checkpoint_dir)
        self._coordinator = BarrierCoordinator(
            plan,
            store,
            sinks={i: each.coordinator() for i, each in region.sinks.items()},
            sources={region.source_id: region.pipeline.source.enumerator(region.source_id)},
            settings=job.spec.settings,
        )
        self._started = self._coordinator.start(60.0)
        self._service = CoordinatorService(self._coordinator)
        self._service.start()
        launcher = _CountingLauncher(
            job.spec,
            {region.name: region},
            self._coordinator,
            store.fs,
            job_uid=self._started.job_uid,
            address=self._service.coordinator_address,
            batches_to_retain=100,
            replayable=self._coordinator.replayable,
            analyses={region.name: PlanAnalysis()},
            continuous=ContinuousRegions(
                names=(),
                barrier_service=BarrierService(self._coordinator),
                ends=lambda _: None,
                lost_timeout_s=60.0,
            ),
        )
        self.handle: RegionHandle = launcher.handles()[region.name]

    def attempt(self, attempt_id: int | None = None) -> RegionAttempt:
        (restored,) = self._started.regions.values()
        first = self._started.attempt_id if attempt_id is None else attempt_id
        return RegionAttempt(attempt_id=first, restored=restored, after=0)

    def begun(self) -> list[int]:
        return list(_BEGUN)

    def fail(self) -> None:
        produce(self._bootstrap, self._source, [Record(value=_BAD)])

    def wait_for_commit(self) -> int:
        before = self._coordinator.last_committed
        produce(self._bootstrap, self._source, [Record(value=b"good")])
        wait_for(lambda: self._coordinator.last_committed > before, what="a committed record")
        return self._coordinator.last_committed

    def stop(self) -> None:
        """The end of the test."""
        self._coordinator.cancel()
        self.handle.stop(10**6, timeout_s=60.0)
        self._service.stop()
        self._coordinator.stop()
