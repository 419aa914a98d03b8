"""The drop-in sinks: ``df.writeStream.format("sluice-kafka")``, or ``"sluice-files"``.

Spark creates this writer before the tasks of each batch, before each ``commit`` and before each
``abort`` (`drop-in-abort`), in short-lived driver-side Python processes without a JVM. It keeps no
connection and decides nothing. The service that `install` started in the user's process
fences, sweeps, decides and commits; it knows a query by its checkpoint location. The tasks' writer
factory also comes from that process, because only it has a JVM.
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from sluice.runtime.contracts import SinkWriter, TaskScope, WriterFactory
from sluice.runtime.errors import ConfigError, FencedError, IllegalTransitionError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.model.timestamps import earliest
from sluice.runtime.process.worker_memory import tidy_after_task
from sluice.runtime.service.drop_in_client import REGION, DropInClient, QueryRun
from sluice.runtime.service.service_client import CoordinatorClient
from sluice.runtime.spark.tasks.region_tasks import BATCH_ID

__all__ = ["DropInStreamWriter", "refuse_frame"]


def refuse_frame(format_name: str) -> NoReturn:
    """Refuse a frame that Spark writes itself: its decision needs the user's process.

    Raises:
        ConfigError: always.
    """
    raise ConfigError(
        "this format writes frames by save() only",
        {"format": format_name},
        "Call df.write.format(…).save() in the Python process that called sluice.install(spark).",
    )


@dataclass(frozen=True)
class _PreCommitted(WriterCommitMessage):
    """A task's result for Spark: its committables (empty if it wrote nothing), the time limit of
    their decision, and the run of the query. The attempt id alone does not identify the run: if a
    location is emptied between two queries, both have the same attempt id."""

    run_id: str
    attempt_id: int
    committables: tuple[StateEntry, ...] = ()
    decide_by_s: float | None = None


class DropInStreamWriter(DataSourceStreamArrowWriter):
    """Writer of one batch. Constructor, `commit`, `abort`: driver side; `write`: executor.

    Args:
        format_name: Spark's name of the sink.
        options: of ``writeStream``, checked by the connector.
        service: in the user's process; None: `sluice.install` was not called.
    """

    def __init__(
        self, format_name: str, options: Mapping[str, str], service: DropInClient | None
    ) -> None:
        location = options.get("checkpointLocation")
        if service is None or location is None:
            missing = "sluice.install(spark)" if service is None else "checkpointLocation"
            raise ConfigError(
                f"the drop-in sink needs {missing}",
                {"format": format_name},
                "Call sluice.install(spark) once, and set checkpointLocation as an option of "
                "writeStream (a session-wide default does not reach the sink).",
            )
        self._service = service
        self._location = location
        # Idempotent per run of the query: the first call fences and sweeps, before any task starts.
        self._run: QueryRun = service.begin(format_name, location, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows and pre-commit them; a decided batch's replay writes nothing."""
        context = TaskContext.get()
        batch_id = None if context is None else context.getLocalProperty(BATCH_ID)
        if context is None or batch_id is None:
            raise ConfigError(
                "this call is outside a task of a streaming query", {}, "Leave this call to Spark."
            )
        batch = BatchKey(
            region=REGION,
            attempt_id=self._run.attempt_id,
            batch_id=int(batch_id),
        )
        coordinator = CoordinatorClient(self._run.address)
        if coordinator.is_decided(batch):
            for _ in iterator:
                pass  # a stateful operator upstream commits its state after its last row
            return _PreCommitted(self._run.run_id, self._run.attempt_id)
        scope = TaskScope(
            job_uid=self._run.job_uid,
            operator_id=self._run.operator_id,
            batch=batch,
            checkpoint_id=self._run.committed_through + 1,
            committed_through=self._run.committed_through,
            task=f"{context.partitionId()}.{context.attemptNumber()}",
        )
        factory: WriterFactory = pickle.loads(self._run.writer_factory)  # by `DropInQueries`
        writer = factory.open(scope, coordinator)
        committables = _write_all(writer, iterator)
        tidy_after_task()
        return _PreCommitted(
            self._run.run_id, self._run.attempt_id, committables, writer.decide_by_s
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Decide, then commit. Returns only when the batch is committed on record.

        Raises:
            FencedError: an earlier run wrote the batch, and the current run has swept it
                (`callback-after-commit`).
            IllegalTransitionError: a task's message is missing; nothing was decided.
        """
        if self._is_of_another_run(messages):
            raise FencedError(
                "the query has been restarted since this batch was written",
                {"location": self._location, "batch_id": batchId},
                "Ignore this: the restarted query reads the range again, and no record is lost.",
            )
        written = _written(messages)
        if len(written) < len(messages):
            # No decision would name its output, and the batch's ranges would count as read.
            raise IllegalTransitionError(
                "Spark commits a batch, but the message of a task is missing",
                {
                    "location": self._location,
                    "batch_id": batchId,
                    "missing": len(messages) - len(written),
                },
                "Start the query again: it reads the range again. No output of this batch becomes "
                "visible.",
            )
        self._service.commit(
            self._location,
            self._run,
            batchId,
            [entry for message in written for entry in message.committables],
            decide_by_s=earliest(message.decide_by_s for message in written),
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Spark calls this also after a `commit` that raised, so the service reads its store first
        (`drop-in-abort`).

        Without a task's message the run of the batch is unknown. The call may be a late one of a
        stopped run, and would end the run that has begun since. The query ends anyway, and its run
        with it.
        """
        if _written(messages) and not self._is_of_another_run(messages):
            self._service.abort(self._location, self._run, batchId)

    def _is_of_another_run(self, messages: Sequence[WriterCommitMessage | None]) -> bool:
        """Whether the tasks wrote for an earlier run than this process has begun."""
        present = (self._run.run_id, self._run.attempt_id)
        return any((each.run_id, each.attempt_id) != present for each in _written(messages))


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[_PreCommitted]:
    return [message for message in messages if isinstance(message, _PreCommitted)]


def _write_all(writer: SinkWriter, batches: Iterator[pa.RecordBatch]) -> tuple[StateEntry, ...]:
    try:
        for batch in batches:
            if batch.num_rows:
                writer.write(batch)
        return tuple(writer.pre_commit())
    except BaseException:
        writer.abort()
        raise
