"""``df.write`` into a drop-in sink: one decision for the whole frame. Driver, the user's thread.

The tasks write and pre-commit; then the user's process decides and commits, as for a batch of a
query. A write with ``batchId`` is known by its checkpoint location, its sink and that id. In a
``foreachBatch`` callback it is exact: Spark repeats the newest batch only. A repeated batch is left
out if its rows are certainly those that were written, and else refused. The next write
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
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from sluice.runtime.contracts import DropInSink
from sluice.runtime.errors import ConfigError, WrongJobError
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.service.drop_in_client import REGION
from sluice.runtime.spark.drop_in.active_queries import ActiveQuery
from sluice.runtime.spark.drop_in.drop_in_queries import DropInQueries, OpenRun, record_of
from sluice.runtime.spark.drop_in.drop_in_run import DropInRun, PreCommitted
from sluice.runtime.spark.drop_in.other_writers import (
    BESIDE,
    FRAMES,
    OtherWriter,
    writer_at,
    writers_at,
)
from sluice.runtime.spark.drop_in.written_batches import BatchWrite, Runs, WrittenBatches
from sluice.runtime.spark.microbatch.query_logs import require_logged
from sluice.runtime.spark.session.spark_session import (
    SHUFFLE_RETRY,
    default_fs,
    require_scheme,
    require_setting,
)
from sluice.runtime.spark.tasks.region_tasks import BATCH_ID
from sluice.runtime.storage.file_system_opening import canonical_uri, needs_jvm

__all__ = ["FrameWrite", "FrameWrites"]

log = logging.getLogger(__name__)

_OWN_LOCATION = "Give the write a new checkpointLocation: each query needs its own."


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
        self._written = WrittenBatches()

    def save(self, write: FrameWrite) -> None:
        """Write the frame, all or nothing; returns after the commit is on record.

        Raises:
            ConfigError: ``batchId`` without a location, or not the id of the callback's batch; a
                location that the next driver may not find; or two writes of a batch share one; or
                a former writer of the query has decided the batch.
            WrongJobError: another query has written there, or one of the two belongs to no query.
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
        call = _Call(
            write=write, store=store, sink=sink, query=query, runs=self._runs(write, query)
        )
        with self._queries.turn(store):
            self._save_at(call)

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

    def _runs(self, write: FrameWrite, query: ActiveQuery | None) -> Runs:
        """See `BatchWrite`; none for a write without ``batchId``."""
        if write.batch_id is None:
            return frozenset()
        if query is None:
            return self._queries.callbacks()
        return frozenset({(query.query_id, query.run_id)})

    def _store(self, write: FrameWrite, sink: DropInSink, query: ActiveQuery | None) -> str:
        """URI of the decisions of this sink. Sinks of one location do not share their batches."""
        location, spark = write.location, write.frame.sparkSession
        if location is not None:
            require_scheme(spark, location)
        elif write.batch_id is None:
            location = self._temporary.name
        elif query is not None:
            location = query.location
        else:
            raise ConfigError(
                "batchId needs a checkpoint location",
                {"format": write.format_name, "batchId": write.batch_id},
                "Set the option checkpointLocation: a batch is known there by its id.",
            )
        identity = (write.format_name, *sink.target())
        digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:16]
        kind = "frames" if write.batch_id is None else "batches"
        # Spelled in one way: threads wait for each other by this name.
        return f"{_canonical(location, spark)}/{FRAMES}/{kind}-{digest}"

    def _save_at(self, call: "_Call") -> None:
        """Write by the run of the callback's query, or by one for this frame alone."""
        store, of_query = call.store, call.query if call.write.batch_id is not None else None
        open_run = self._open_run_at(call)
        if open_run is not None:
            began = open_run.began
        else:
            logs = None
            if of_query is not None:
                of_query.require_micro_batches()  # else Spark has not logged the batch's plan yet
                self._require_unwritten(call, of_query)
                logs = self._queries.file_system(of_query.location)
            name = store.rpartition("/")[2]
            began = self._queries.begin_run(name, call.sink, store, check=call.require_query)
            if of_query is not None and logs is not None:
                open_run = OpenRun(
                    active=of_query,
                    sink=_sink_of(call.write),
                    began=began,
                    record=record_of(began, of_query, logs),
                )
                self._queries.keep(store, open_run)
        record = _record_of(began, call.runs) if open_run is None else open_run.record
        is_written = False
        try:
            self._write(call, began, record)
            is_written = True
        finally:
            if open_run is None or not is_written:  # the next run settles and sweeps
                if open_run is not None:
                    self._queries.forget(store, open_run)
                began.stop()

    def _require_unwritten(self, call: "_Call", query: ActiveQuery) -> None:
        """Refuse a batch that another writer of the query has decided, before the first write of
        this one.

        Raises:
            ConfigError: the program had another writer when the batch was decided.
        """
        batch_id, open_at = call.write.batch_id, self._queries.file_system
        assert batch_id is not None
        place = call.store.rpartition(f"/{FRAMES}/")[0]
        own = writer_at(call.store, open_at, place=place)
        if own is not None and own.has_decided(batch_id, query.query_id):
            return
        home = _canonical(query.location, call.write.frame.sparkSession)
        for each in dict.fromkeys((place, home)):
            for other in writers_at(each, open_at):
                if self._has_doubled(call, other, batch_id, query.query_id):
                    is_new = own is None or own.newest_batch is None or not other.is_of_callback
                    _refuse(other, batch_id, call.store, is_certain=is_new and each == place)

    def _has_doubled(self, call: "_Call", other: OtherWriter, batch_id: int, query_id: str) -> bool:
        """Whether a write of the batch may double what another writer has decided."""
        if other.store == call.store or not other.has_decided(batch_id, query_id):
            return False
        before = self._written.find(other.store, batch_id)
        if before is not None and before.runs & call.runs:
            return False  # this run's callback has both writers
        return other.may_share_output(call.sink)

    def _open_run_at(self, call: "_Call") -> OpenRun | None:
        """The open run of the store, if this run of the query began it with these options.

        Ends any other open run of the store.
        """
        open_run = self._queries.run_at(call.store)
        if open_run is None:
            return None
        run_id = None if call.query is None else call.query.run_id
        if open_run.active.run_id == run_id and open_run.sink == _sink_of(call.write):
            return open_run
        if self._queries.forget(call.store, open_run):
            open_run.began.stop()
        return None

    def _write(
        self,
        call: "_Call",
        began: DropInRun,
        record: Callable[[int, PreCommitted], RegionRecord],
    ) -> None:
        frame, batch_id = call.write.frame, call.write.batch_id
        query_id = "" if call.query is None else call.query.query_id
        if batch_id is None:
            newest = began.restored.batch_id
            batch_id = (-1 if newest is None else newest) + 1
            began.write_batch(frame, batch_id, record, query_id=query_id)
            return
        written = BatchWrite(frame=weakref.ref(frame), sink=_sink_of(call.write), runs=call.runs)
        is_decided = began.is_decided(batch_id)
        if is_decided:
            self._require_repeated(call, written, began, batch_id)
        self._written.begin(call.store, batch_id, written)  # if it fails, it may be decided
        if is_decided:
            began.replay_batch(frame, batch_id)
            log.info("a frame is written already: batch_id=%d location=%s", batch_id, call.store)
        else:
            began.write_batch(frame, batch_id, record, query_id=query_id)
        self._written.complete(call.store, batch_id)

    def _require_repeated(
        self, call: "_Call", written: BatchWrite, began: DropInRun, batch_id: int
    ) -> None:
        """Refuse to leave out rows that may not be those of the decided batch."""
        if began.is_decided(batch_id + 1):
            raise ConfigError(
                "batchId is below the last one written here",
                {"batchId": batch_id, "location": call.store},
                "Give each query its own checkpointLocation; Spark repeats the newest batch only.",
            )
        earlier = began.restored
        _require_this_store(call.sink, earlier, batch_id)
        if earlier.batch_id == batch_id:
            _require_runs(earlier, call)
            if call.query is not None and earlier.offset_log_version:
                require_logged(self._queries.file_system(call.query.location), earlier)
        before = self._written.find(call.store, batch_id)
        if before is not None and not written.has_rows_of(before):
            raise ConfigError(
                "two writes of a batch have one sink and one location",
                {"batchId": batch_id, "location": call.store},
                "Give each write of a batch its own checkpointLocation. To repeat a write, save "
                "the same DataFrame object.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A write, and where it belongs.

    Attributes:
        store: URI of the sink's decisions.
        query: in whose callback the frame is used.
        runs: see `BatchWrite`.
    """

    write: FrameWrite
    store: str
    sink: DropInSink
    query: ActiveQuery | None
    runs: Runs

    def require_query(self, record: RegionRecord) -> None:
        """Refuse the batches of another query: its ids name other rows."""
        if self.write.batch_id is None or record.batch_id is None:
            return
        now = None if self.query is None else self.query.query_id
        before = None if record.query_id.startswith(BESIDE) else record.query_id or None
        if before == now:
            return
        where = {"written_by": before or "no query", "query_id": now or "no query"}
        if before is not None and now is not None:
            raise WrongJobError(
                "another query has written at this checkpoint location", where, _OWN_LOCATION
            )
        raise WrongJobError(
            "a query and a write outside of it share a checkpoint location",
            where,
            f"{_OWN_LOCATION} In a foreachBatch function, save in its own thread, or wrap the "
            "function of another thread with pyspark.inheritable_thread_target.",
        )


def _require_runs(earlier: RegionRecord, call: _Call) -> None:
    """Refuse to leave out a batch of the callback of a query that has ended for good."""
    if call.query is not None or not earlier.query_id.startswith(BESIDE):
        return
    before = set(earlier.query_id.removeprefix(BESIDE).split(","))
    now = {query_id for query_id, _ in call.runs}
    if now and not before & now:
        raise WrongJobError(
            "another query has written at this checkpoint location",
            {"written_by": ",".join(sorted(before)), "query_id": ",".join(sorted(now))},
            _OWN_LOCATION,
        )


def _canonical(location: str, spark: SparkSession) -> str:
    fs = default_fs(spark) if needs_jvm(location) else ""
    return canonical_uri(location, default_fs=fs).rstrip("/")


def _refuse(other: OtherWriter, batch_id: int, store: str, *, is_certain: bool) -> None:
    """ConfigError, or a warning where both writers may belong to one callback."""
    if is_certain:
        raise ConfigError(
            "another writer of this query has decided the batch already",
            {"batchId": batch_id, "decided_in": other.store, "location": store},
            "Start the query once with its former writer, which completes the batch; then change "
            "the writer. If this write has another output, give it a checkpointLocation of its "
            "own.",
        )
    log.warning(
        "another writer of this query has decided the batch already. Sluice writes it now: if both "
        "have one output, its records are doubled: batch_id=%d decided_in=%s location=%s",
        batch_id,
        other.store,
        store,
    )


def _require_this_store(sink: DropInSink, earlier: RegionRecord, batch_id: int) -> None:
    """Refuse to leave out a batch that may have gone to another place.

    Args:
        earlier: when the run began; later batches of a run have the same sink.
    """
    if earlier.batch_id != batch_id or all(map(sink.may_have_written, earlier.committables)):
        return
    raise ConfigError(
        "this batch is written already, through another address of the store",
        {"batchId": batch_id, "path": sink.settings().get("path", "")},
        "If it is the same store, write this batch with its former address. Give another store a "
        "checkpointLocation of its own.",
    )


def _sink_of(write: FrameWrite) -> tuple[str, Mapping[str, str]]:
    return write.format_name, dict(write.options)


def _record_of(began: DropInRun, runs: Runs) -> Callable[[int, PreCommitted], RegionRecord]:
    """Makes the record of a frame that belongs to no known batch of a query."""
    beside = ",".join(sorted(query_id for query_id, _ in runs))

    def record(batch_id: int, written: PreCommitted) -> RegionRecord:
        return RegionRecord(
            region=REGION,
            attempt_id=began.attempt_id,
            query_id=f"{BESIDE}{beside}" if beside else "",
            batch_id=batch_id,
            offset_log_version=0,
            committables=tuple(written.committables),
        )

    return record
