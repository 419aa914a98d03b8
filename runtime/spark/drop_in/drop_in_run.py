"""One run of a drop-in sink in the user's process: its coordinator, and how a batch is decided."""

import pickle
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Self

from pyspark.sql import DataFrame

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.run_record import RunRecord, RunRecordStore
from sluice.runtime.checkpoint.succession import has_last_record
from sluice.runtime.contracts import DropInSink, WriterFactory
from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
    JobPlan,
    RegionPlan,
)
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.errors import StreamError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.graph.operator_ids import OperatorSpec, build_graph
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.checkpoint_record import RegionRecord, StateEntry
from sluice.runtime.model.splits import Barrier, BatchKey
from sluice.runtime.model.timestamps import earliest
from sluice.runtime.service.drop_in_client import REGION, QueryRun
from sluice.runtime.service.page.live_job import LiveJob
from sluice.runtime.service.server import CoordinatorService, ServedRun
from sluice.runtime.service.service_client import fetch_issued_token
from sluice.runtime.spark.microbatch.batch_strategies import OpenBatch, PlannedBatch
from sluice.runtime.spark.tasks.region_tasks import BATCH_ID, RegionTasks
from sluice.runtime.storage.delegation_tokens import fetching_tokens
from sluice.runtime.storage.file_system_opening import absolute_uri

__all__ = ["DropInRun", "PreCommitted"]

_START_TIMEOUT_S = 30.0
_COMMIT_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PreCommitted:
    """The result of the tasks of a batch.

    Attributes:
        decide_by_s: see `sluice.runtime.contracts.SinkWriter`.
    """

    committables: Sequence[StateEntry]
    decide_by_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DropInRun:
    """A started coordinator of one region and one sink. Driver, any thread.

    Attributes:
        restored: the region's record when the run began.
        page: what people see of it.
    """

    coordinator: BarrierCoordinator
    served: ServedRun
    job_uid: str
    attempt_id: int
    operator_id: str
    writer_factory: WriterFactory
    restored: RegionRecord
    page: LiveJob

    @classmethod
    def start(
        cls,
        name: str,
        sink: DropInSink,
        store: CheckpointStore,
        *,
        service: CoordinatorService,
        spark_version: str,
        check: Callable[[RegionRecord], None],
    ) -> Self:
        """Fence earlier runs, settle decided work, sweep the rest, and answer tasks.

        Args:
            name: of the job that the store belongs to.
            service: tasks reach the run at its port.
            check: raises an error if the region cannot resume from its record.
        """
        graph = build_graph([OperatorSpec(kind="sink", name=sink.name, uid=sink.uid)])
        operator_id = graph[0].operator_id
        coordinator = BarrierCoordinator(
            JobPlan(
                name=name,
                regions=(RegionPlan(name=REGION, sink_ids=(operator_id,), keeps_logs=True),),
                graph=graph,
                settings={f"{sink.name}.{k}": v for k, v in sink.settings().items()},
                sluice_version=version("sluice-spark"),
                spark_version=spark_version,
            ),
            store,
            sinks={operator_id: sink.coordinator()},
            sources={},
            settings=CheckpointSettings(interval_s=None),
        )
        with ExitStack() as opened:
            opened.callback(coordinator.stop)
            started = coordinator.start(timeout_s=_START_TIMEOUT_S)
            check(started.regions[REGION])
            served = service.serve_run(coordinator)
            opened.callback(served.stop)
            RunRecordStore(store.fs).announce(
                RunRecord(
                    leader_session_id=started.session,
                    address=served.address,
                    attempt_id=started.attempt_id,
                    job_uid=started.job_uid,
                ),
                is_newest=partial(has_last_record, store, session=started.session),
            )
            writer_factory = sink.writer_factory()
            opened.pop_all()  # the run closes them now
        return cls(
            coordinator=coordinator,
            served=served,
            job_uid=started.job_uid,
            attempt_id=started.attempt_id,
            operator_id=operator_id,
            writer_factory=writer_factory,
            restored=started.regions[REGION],
            page=LiveJob(coordinator, checkpoint_uri=absolute_uri(store.fs.uri)),
        )

    def stop(self) -> None:
        """End the run: no later task or batch belongs to it."""
        with ExitStack() as stack:
            stack.callback(self.coordinator.stop)
            stack.callback(self.served.stop)
            self.coordinator.cancel()

    def for_tasks(self, run_id: str) -> QueryRun:
        """The run as its tasks need it; ``run_id`` is Spark's."""
        address = self.served.coordinator_address
        with fetching_tokens(partial(fetch_issued_token, address)):
            writer_factory = pickle.dumps(self.writer_factory)
        return QueryRun(
            run_id=run_id,
            job_uid=self.job_uid,
            attempt_id=self.attempt_id,
            operator_id=self.operator_id,
            committed_through=self.coordinator.settled_through,
            address=address,
            writer_factory=writer_factory,
        )

    def batch(self, batch_id: int) -> BatchKey:
        """Identity of a batch of this run."""
        return BatchKey(region=REGION, attempt_id=self.attempt_id, batch_id=batch_id)

    def is_decided(self, batch_id: int) -> bool:
        """Whether a decision of this run or an earlier one contains the batch."""
        return self.coordinator.is_decided(self.batch(batch_id))

    def write_batch(
        self,
        frame: DataFrame,
        batch_id: int,
        record: Callable[[int, PreCommitted], RegionRecord],
        *,
        query_id: str,
    ) -> None:
        """Write a frame as one batch; returns once it is committed on record. After an error the
        run has ended, and the next one settles the batch.

        Args:
            record: makes the batch's record.
        """
        try:
            written = self._write(frame, batch_id)
            self.commit(
                batch_id, lambda: record(batch_id, written), decide_by_s=written.decide_by_s
            )
        except BaseException:
            with suppress(StreamError):  # the run may have ended; the first error names the reason
                self.abort(batch_id, query_id=query_id)
            raise
        failpoint("before-return")

    def replay_batch(self, frame: DataFrame, batch_id: int) -> None:
        """Wait for the commit of a decided batch, and run the frame without writing it: a stateful
        operator commits its state after its last row (`batch-identity`)."""
        self.coordinator.await_committed(self.batch(batch_id), timeout_s=_COMMIT_TIMEOUT_S)
        frame.write.format("noop").mode("overwrite").save()

    def _write(self, frame: DataFrame, batch_id: int) -> PreCommitted:
        """Run the frame once; its tasks write and pre-commit. Raises the error of a task."""
        batch = self.batch(batch_id)
        tasks = RegionTasks(
            address=self.served.coordinator_address,
            job_uid=self.job_uid,
            region=REGION,
            attempt_id=self.attempt_id,
            factories={self.operator_id: self.writer_factory},
        )
        barrier = Barrier(
            checkpoint_id=self.coordinator.settled_through + 1,
            region=REGION,
            attempt_id=self.attempt_id,
            splits=(),
        )
        context = frame.sparkSession.sparkContext
        before = context.getLocalProperty(BATCH_ID)
        context.setLocalProperty(BATCH_ID, str(batch_id))
        try:
            output = PlannedBatch(tasks).run(barrier, OpenBatch(key=batch, frame=frame))
        finally:
            context.setLocalProperty(BATCH_ID, before)  # type: ignore[arg-type]  # None: not set
        return PreCommitted(
            committables=[entry for each in output.results for entry in each.committables],
            decide_by_s=earliest(each.decide_by_s for each in output.results),
        )

    def commit(
        self, batch_id: int, record: Callable[[], RegionRecord], *, decide_by_s: float | None
    ) -> None:
        """Decide, then commit; for a batch that an earlier call or run has decided, only wait.

        Args:
            record: makes the batch's record; called if it is not decided yet.
        """
        batch = self.batch(batch_id)
        if not self.coordinator.is_decided(batch):
            self.coordinator.acknowledge(
                Acknowledgement(
                    batch=batch, checkpoint_id=None, region=record(), decide_by_s=decide_by_s
                )
            )
        self.coordinator.await_committed(batch, timeout_s=_COMMIT_TIMEOUT_S)

    def abort(self, batch_id: int, *, query_id: str) -> None:
        """Rule `drop-in-abort`: Spark aborts also after a commit that raised, so check the store
        first."""
        if self.coordinator.is_decided(self.batch(batch_id)):
            return
        self.coordinator.fail(
            REGION,
            self.attempt_id,
            StreamError(
                "a batch of this sink was aborted",
                {"query_id": query_id, "batch_id": batch_id},
                "Read the query's own error; a restart resumes from the last checkpoint.",
            ),
        )
