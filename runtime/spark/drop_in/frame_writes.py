"""``df.write`` into a drop-in sink: one decision for the whole frame. Driver, the user's thread.

The tasks write and pre-commit; then the user's process decides and commits, as for a batch of a
query. A write with ``batchId`` is known by its checkpoint location, its sink and that id. In a
``foreachBatch`` callback it is exact: Spark repeats the newest batch only. The next write
of the same sink at the same location finishes a decided one, and aborts any other, before it
writes. So a kill leaves these to the next write:

- before the decision: nothing is visible; its transactions and staged files are aborted;
- after the decision: the commits, or the rest of them, and the mark that they are complete;
- after the mark: nothing. A repeated batch is not written again.

Without a checkpoint location the decision lasts as long as this process.
"""

import hashlib
import logging
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame

from sluice.runtime.contracts import TaskSink
from sluice.runtime.errors import ConfigError, WrongJobError
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.service.drop_in_client import REGION
from sluice.runtime.spark.drop_in.active_queries import ActiveQuery
from sluice.runtime.spark.drop_in.drop_in_queries import DropInQueries, OpenRun, record_of
from sluice.runtime.spark.drop_in.drop_in_run import DropInRun, PreCommitted
from sluice.runtime.spark.microbatch.query_logs import require_logged
from sluice.runtime.spark.session.spark_session import SHUFFLE_RETRY, require_setting
from sluice.runtime.spark.tasks.region_tasks import BATCH_ID

__all__ = ["FrameWrite", "FrameWrites"]

log = logging.getLogger(__name__)

_DIRECTORY = "sluice-writes"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameWrite:
    """A checked call of ``save()``.

    Attributes:
        options: for the sink.
        batch_id: the option ``batchId``.
        location: the option ``checkpointLocation``.
    """

    frame: DataFrame
    format_name: str
    options: Mapping[str, str]
    batch_id: int | None
    location: str | None


class FrameWrites:
    """Writes frames. In a callback, the run of a sink lasts as long as the query.

    Args:
        queries: of the application; keeps the runs.
    """

    def __init__(self, queries: DropInQueries) -> None:
        self._queries = queries
        self._has_warned = False
        self._temporary = tempfile.TemporaryDirectory(prefix="sluice-writes-")
        self._lock = threading.Lock()
        # By store: the newest batch and the query's run, with its sink and the plan of its rows.
        self._written: dict[str, tuple[tuple[int, str], object]] = {}

    def save(self, write: FrameWrite) -> None:
        """Write the frame, all or nothing; returns after the commit is on record.

        Raises:
            ConfigError: ``batchId`` without a location, or not the id of the callback's batch; or
                two writes of a batch share a location.
            WrongJobError: another query has written there.
            DamagedCheckpointError: Spark has lost the plan of a decided batch, which has other rows
                now.
            StreamError: the frame was not written, or not committed; see the error.
        """
        context = write.frame.sparkSession.sparkContext
        query = self._queries.query_of(write.frame)
        batch = context.getLocalProperty(BATCH_ID)  # None: also in a thread of the user
        if write.batch_id is None:
            self._warn_once()
        elif batch not in (None, str(write.batch_id)):
            raise ConfigError(
                "batchId is not the id of this batch",
                {"batchId": write.batch_id, "batch": batch},
                "Set it to the second argument of the foreachBatch function.",
            )
        setting = write.frame.sparkSession.conf
        require_setting(SHUFFLE_RETRY, setting.get(SHUFFLE_RETRY, None))
        sink = self._queries.make_sink(
            write.format_name, write.options, lambda name: str(setting.get(name))
        )
        store = self._store(write, sink, query)
        with self._queries.turn(store):
            self._save_at(store, write, sink, query)

    def close(self) -> None:
        """Delete the decisions that last as long as this process."""
        self._temporary.cleanup()

    def _warn_once(self) -> None:
        with self._lock:
            has_warned, self._has_warned = self._has_warned, True
        if not has_warned:
            log.warning(
                "a frame without batchId is written at least once: if save() is repeated after an "
                "error, its records may be written twice. In foreachBatch, set the options batchId "
                "and checkpointLocation"
            )

    def _store(self, write: FrameWrite, sink: TaskSink, query: ActiveQuery | None) -> str:
        """URI of the decisions of this sink. Sinks of one location do not share their batches."""
        location = write.location
        if location is None and write.batch_id is None:
            location = self._temporary.name
        elif location is None and query is not None:
            location = query.location
        elif location is None:
            raise ConfigError(
                "batchId needs a checkpoint location",
                {"format": write.format_name, "batchId": write.batch_id},
                "Set the option checkpointLocation: a batch is known there by its id.",
            )
        settings = sink.settings()
        names = ("transactional_id_prefix", "path")
        identity = (write.format_name, sink.name, *map(settings.get, names))
        digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:16]
        kind = "frames" if write.batch_id is None else "batches"
        return f"{location.rstrip('/')}/{_DIRECTORY}/{kind}-{digest}"

    def _save_at(
        self, store: str, write: FrameWrite, sink: TaskSink, query: ActiveQuery | None
    ) -> None:
        """Write by the run of the callback's query, or by one for this frame alone."""
        of_query = query if write.batch_id is not None else None
        open_run = self._open_run_at(store, write, query)
        if open_run is not None:
            began = open_run.began
        else:
            logs = None
            if of_query is not None:
                of_query.require_micro_batches()  # else Spark has not logged the batch's plan yet
                logs = self._queries.file_system(of_query.location)
            began = self._queries.begin_run(
                store.rpartition("/")[2], sink, store, check=lambda record: _check(record, query)
            )
            if of_query is not None and logs is not None:
                open_run = OpenRun(
                    active=of_query,
                    sink=_sink_of(write),
                    began=began,
                    record=record_of(began, of_query, logs),
                )
                self._queries.keep(store, open_run)
        record = _record_of(began) if open_run is None else open_run.record
        is_written = False
        try:
            self._write(store, write, began, query, record)
            is_written = True
        finally:
            if open_run is None or not is_written:  # the next run settles and sweeps
                if open_run is not None:
                    self._queries.forget(store, open_run)
                began.stop()

    def _open_run_at(
        self, store: str, write: FrameWrite, query: ActiveQuery | None
    ) -> OpenRun | None:
        """The open run of the store, if this run of the query began it with these options.

        Ends any other open run of the store.
        """
        open_run = self._queries.run_at(store)
        if open_run is None:
            return None
        run_id = None if query is None else query.run_id
        if open_run.active.run_id == run_id and open_run.sink == _sink_of(write):
            return open_run
        if self._queries.forget(store, open_run):
            open_run.began.stop()
        return None

    def _write(
        self,
        store: str,
        write: FrameWrite,
        began: DropInRun,
        query: ActiveQuery | None,
        record: Callable[[int, PreCommitted], RegionRecord],
    ) -> None:
        newest = began.restored.batch_id
        batch_id = (-1 if newest is None else newest) + 1
        if write.batch_id is not None:
            batch_id = write.batch_id
        query_id, run_id = ("", "") if query is None else (query.query_id, query.run_id)
        if began.is_decided(batch_id):  # one without an id never is
            self._require_repeated(store, write, began, batch_id, query)
            began.replay_batch(write.frame, batch_id)
            log.info("a frame is written already: batch_id=%d location=%s", batch_id, store)
        else:
            began.write_batch(write.frame, batch_id, record, query_id=query_id)
        self._written[store] = (batch_id, run_id), _rows_of(write)

    def _require_repeated(
        self,
        store: str,
        write: FrameWrite,
        began: DropInRun,
        batch_id: int,
        query: ActiveQuery | None,
    ) -> None:
        """Refuse to leave out rows that may not be those of the decided batch."""
        if began.is_decided(batch_id + 1):
            raise ConfigError(
                "batchId is below the last one written here",
                {"batchId": batch_id, "location": store},
                "Give each query its own checkpointLocation; Spark repeats the newest batch only.",
            )
        if query is None:
            return
        earlier = began.restored
        if earlier.batch_id == batch_id and earlier.offset_log_version:
            require_logged(self._queries.file_system(query.location), earlier)
        before = self._written.get(store)
        if before is None or before[0] != (batch_id, query.run_id):
            return
        if before[1] != _rows_of(write):
            raise ConfigError(
                "two writes of a batch have one sink and one location",
                {"batchId": batch_id, "location": store},
                "Give each write of a foreachBatch function its own checkpointLocation.",
            )


def _sink_of(write: FrameWrite) -> tuple[str, Mapping[str, str]]:
    return write.format_name, dict(write.options)


def _rows_of(write: FrameWrite) -> object:
    """Equal for two calls that write the same rows to the same sink."""
    return _sink_of(write), write.frame.semanticHash()


def _record_of(began: DropInRun) -> Callable[[int, PreCommitted], RegionRecord]:
    """Makes the record of a frame that belongs to no batch of a query."""

    def record(batch_id: int, written: PreCommitted) -> RegionRecord:
        return RegionRecord(
            region=REGION,
            attempt_id=began.attempt_id,
            batch_id=batch_id,
            offset_log_version=0,
            committables=tuple(written.committables),
        )

    return record


def _check(record: RegionRecord, query: ActiveQuery | None) -> None:
    """Refuse the batches of another query: its ids name other rows."""
    if query is not None and record.query_id not in ("", query.query_id):
        raise WrongJobError(
            "another query has written at this checkpoint location",
            {"written_by": record.query_id, "query_id": query.query_id},
            "Give the write a new checkpointLocation: each query needs its own.",
        )
