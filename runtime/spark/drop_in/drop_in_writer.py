"""The drop-in sinks: ``df.writeStream.format("sluice-kafka")``, or ``"sluice-files"``.

Spark makes this writer anew, in short-lived driver-side Python processes without a JVM, before the
tasks of each batch, before each ``commit`` and before each ``abort`` (`drop-in-abort`). It
therefore holds no connection and decides nothing: the service that `install` started in the user's
process seals, sweeps, decides and commits, known by the query's checkpoint location. What the tasks
write with comes from there, too: only that process has a JVM to ask.
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
from sluice.runtime.model.model import BatchKey, StateEntry
from sluice.runtime.model.timestamps import earliest
from sluice.runtime.process.gc_freeze import freeze_once
from sluice.runtime.service.drop_in_client import REGION, DropInClient, QueryRun
from sluice.runtime.service.service_client import CoordinatorClient

__all__ = ["DropInStreamWriter", "refuse_frame"]

_BATCH_ID = "streaming.sql.batchId"


def refuse_frame(format_name: str, *, instead: str) -> NoReturn:
    """Of a frame that is no stream, as in ``foreachBatch``, nobody would decide what is written.

    Args:
        instead: what writes such frames.
    Raises:
        ConfigError: always.
    """
    raise ConfigError(
        "frames that are no streams are not written in this format",
        {"format": format_name},
        "Write the stream itself, df.writeStream.format(…), and not in foreachBatch, where a batch "
        f"that is tried again is written again; a frame by {instead}.",
    )


@dataclass(frozen=True)
class _PreCommitted(WriterCommitMessage):
    """What a task returns to Spark: its committables, empty when it wrote nothing; until when they
    must be decided; and for which run of the query: by Spark's id, too, for two queries that begin
    at one location, emptied in between, have the same attempt."""

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
                "Call sluice.install(spark) once, and give checkpointLocation as an option of "
                "writeStream (a session-wide default does not reach the sink).",
            )
        self._service = service
        self._location = location
        # Idempotent per run of the query: the first call seals and sweeps, before any task starts.
        self._run: QueryRun = service.begin(format_name, location, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows and pre-commit them; a decided batch's replay writes nothing."""
        context = TaskContext.get()
        batch_id = None if context is None else context.getLocalProperty(_BATCH_ID)
        if context is None or batch_id is None:
            raise ConfigError("not in a task of a streaming query", {}, "Spark calls this method.")
        batch = BatchKey(
            region=REGION,
            attempt_id=self._run.attempt_id,
            batch_id=int(batch_id),
        )
        coordinator = CoordinatorClient(self._run.address)
        if coordinator.is_decided(batch):
            for _ in iterator:
                pass  # a stateful operator upstream commits its state when it is read to its end
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
        freeze_once()
        return _PreCommitted(
            self._run.run_id, self._run.attempt_id, committables, writer.decide_by_s
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Decide, then commit. Returns only when the batch is committed on record.

        Raises:
            FencedError: the work is an earlier run's; the present one has swept it
                (`callback-after-commit`).
            IllegalTransitionError: a task's message is missing; nothing was decided.
        """
        if self._is_of_another_run(messages):
            raise FencedError(
                "the query has been restarted since this batch was written",
                {"location": self._location, "batch_id": batchId},
                "Nothing is lost: the restarted query reads its range again.",
            )
        written = _written(messages)
        if len(written) < len(messages):
            # What it wrote would be in no decision, and the batch's ranges would count as read.
            raise IllegalTransitionError(
                "Spark commits a batch of which a task has not said what it wrote",
                {
                    "location": self._location,
                    "batch_id": batchId,
                    "missing": len(messages) - len(written),
                },
                "Nothing of it becomes visible. Start the query again: it reads the range again.",
            )
        self._service.commit(
            self._location,
            self._run,
            batchId,
            [entry for message in written for entry in message.committables],
            decide_by_s=earliest(message.decide_by_s for message in written),
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Told also after a `commit` that raised: the service asks its store first
        (`drop-in-abort`).

        Without a task's message nobody knows whose batch it was: the call may be a stopped run's,
        late, and end the run that has begun since. The query ends either way, and its run with it.
        """
        if _written(messages) and not self._is_of_another_run(messages):
            self._service.abort(self._location, self._run, batchId)

    def _is_of_another_run(self, messages: Sequence[WriterCommitMessage | None]) -> bool:
        """This process asked for the query's present run when it began; the tasks did so before."""
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
