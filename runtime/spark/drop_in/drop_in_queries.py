"""The driver's side of drop-in queries: one coordinator for each run of a query.

It runs in the user's own process, because Spark's driver-side Python processes have no JVM and must
not know the checkpoint (`coordinator-in-driver`). The checkpoint location identifies a query, and
Spark's run id its run. Spark's logs are read, but never changed.
"""

import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.inspect.checkpoint_opening import DROP_IN
from sluice.runtime.contracts import DropInSink
from sluice.runtime.coordinator.region.status_views import JobStatus
from sluice.runtime.errors import ConfigError, FencedError
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.json_values import to_json
from sluice.runtime.service.drop_in_client import REGION, DropInMessage
from sluice.runtime.service.page.live_job import LiveJob
from sluice.runtime.service.server import CoordinatorService
from sluice.runtime.spark.drop_in.active_queries import ActiveQuery, active_query, find_query
from sluice.runtime.spark.drop_in.drop_in_run import DropInRun, PreCommitted
from sluice.runtime.spark.microbatch.query_logs import LoggedBatch, PlannedFiles, require_logged
from sluice.runtime.spark.session.spark_session import require_scheme, storage_options_of
from sluice.runtime.storage.file_system import FileSystem, close_quietly
from sluice.runtime.storage.file_system_opening import is_object_store, open_file_system

__all__ = ["DropInQueries", "DropInSinkMaker", "OpenRun", "record_of"]

log = logging.getLogger(__name__)

DropInSinkMaker = Callable[[Mapping[str, str], Callable[[str], str]], DropInSink]
"""Makes a sink from its options and the settings of its session, in the user's process."""

_QUERY_ID = "sql.streaming.queryId"  # Spark's local property
_START_TIMEOUT_S = 30.0
_QUERY_STOP_S = 10.0
_REAP_S = 1.0


@dataclass(slots=True, kw_only=True)
class OpenRun:
    """A run that lasts as long as a query.

    Attributes:
        sink: name and options of the sink that the run began with.
        record: makes the record of a batch.
        is_unknown: Spark does not answer whether the query is active, and that was logged.
    """

    active: ActiveQuery
    sink: tuple[str, Mapping[str, str]]
    began: DropInRun
    record: Callable[[int, PreCommitted], RegionRecord]
    is_unknown: bool = False

    def commit(self, batch_id: int, written: PreCommitted) -> None:
        """Decide, then commit; see `DropInRun.commit`."""
        self.began.commit(
            batch_id,
            lambda: self.record(batch_id, written),
            decide_by_s=written.decide_by_s,
        )


class DropInQueries:
    """Serves the calls of the drop-in sinks of this process's queries. Driver, service threads.

    Args:
        spark: the user's session.
        sinks: makes a sink from the options of ``writeStream``, by Spark's name of the sink; may
            raise ConfigError.
        service: tasks reach the runs at its port.
    """

    def __init__(
        self, spark: SparkSession, sinks: Mapping[str, DropInSinkMaker], service: CoordinatorService
    ) -> None:
        self._spark = spark
        self._sessions = [spark]
        self._sinks = sinks
        self._service = service
        self._runs: dict[str, OpenRun] = {}
        # One lock for each location: a start that waits for its remotes delays no other query.
        self._begins: dict[str, threading.Lock] = {}
        self._file_systems: dict[str, FileSystem] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._reaper = threading.Thread(target=self._reap, name="sluice-reaper", daemon=True)
        self._reaper.start()

    def watch(self, spark: SparkSession) -> None:
        """Add another session of the same application: each session knows only its own queries."""
        if not any(known is spark for known in self._sessions):
            self._sessions.append(spark)

    def make_sink(
        self, format_name: str, options: Mapping[str, str], setting: Callable[[str], str]
    ) -> DropInSink:
        """A sink of this format.

        Raises:
            ConfigError: wrong options, or an unknown format.
        """
        maker = self._sinks.get(format_name)
        if maker is None:
            raise ConfigError(
                "no drop-in sink has this name",
                {"format": format_name, "known": ",".join(sorted(self._sinks))},
                "Call sluice.install(spark) with the Sluice that Spark's processes import.",
            )
        return maker(options, setting)

    def call(self, call: str, payload: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
        """One message of `sluice.runtime.service.drop_in_client.DropInClient`; safe to repeat."""
        message = DropInMessage.of(call, payload)
        if call == "begin":
            run = self._begin(message.format_name, message.location, message.options)
            return to_json(run.began.for_tasks(run.active.run_id))
        found = self._runs.get(message.location)
        if found is None or found.active.run_id != message.run_id:
            raise FencedError(
                "this run of the query is no longer coordinated here",
                {"location": message.location, "run_id": message.run_id},
                "Restart the query; no undecided record became visible.",
            )
        if call == "commit":
            found.commit(
                message.batch_id,
                PreCommitted(committables=message.entries, decide_by_s=message.decide_by_s),
            )
        else:
            found.began.abort(message.batch_id, query_id=found.active.query_id)
        return None

    def write_batch(
        self,
        frame: DataFrame,
        batch_id: int,
        *,
        format_name: str,
        location: str,
        options: Mapping[str, str],
    ) -> None:
        """Write a batch of a query whose callback this is; a decided one is only run."""
        run = self._begin(format_name, location, options)
        if run.began.is_decided(batch_id):
            run.began.replay_batch(frame, batch_id)
            return
        run.began.write_batch(frame, batch_id, run.record, query_id=run.active.query_id)

    def statuses(self) -> list[tuple[str, JobStatus]]:
        """Of each open run: the id of its query, and the status of its coordinator."""
        with self._lock:
            runs = list(self._runs.values())
        return [(run.active.query_id, run.began.coordinator.status()) for run in runs]

    def pages(self) -> list[LiveJob]:
        """What people see of each open run."""
        with self._lock:
            return [run.began.page for run in self._runs.values()]

    @property
    def is_closed(self) -> bool:
        """Whether new runs are refused."""
        return self._closed.is_set()

    def close(self) -> None:
        """Stop all queries, then their runs: no sweep would abort the work of a later task."""
        with self._lock:
            self._closed.set()
            begins = list(self._begins.values())
        for begin in begins:  # a start that hangs finds this closed, and stops its run
            if begin.acquire(timeout=_START_TIMEOUT_S):
                begin.release()
        with self._lock:
            runs = list(self._runs.values())
            self._runs.clear()
        with ExitStack() as stack:  # an error of one run must not keep other runs open
            for run in runs:
                stack.callback(run.began.stop)
                stack.callback(run.active.stop, timeout_s=_QUERY_STOP_S)
            for run in runs:
                run.began.coordinator.cancel()  # a query that waits for a commit can be stopped now

    # --- the run of a query -------------------------------------------------------------------

    def _begin(self, format_name: str, location: str, options: Mapping[str, str]) -> OpenRun:
        """The run: its coordinator has fenced, settled and swept before any task starts.

        Spark does not identify the caller. A start that was abandoned may still call this, or wait
        here, while a later start of the query is the active one. Its options must not decide where
        the active query writes.
        """
        sink = (format_name, dict(options))
        with self._locked(location) as active:
            run = self._runs.get(location)
            if run is None or run.active.run_id != active.run_id:
                if run is not None:
                    run.began.stop()
                made = self.make_sink(format_name, options, active.setting)
                run = self._start(location, active, sink, made)
                self.keep(location, run)
            elif run.sink != sink:
                raise _replaced(location, active.run_id)
        return run

    @contextmanager
    def _locked(self, location: str) -> Iterator[ActiveQuery]:
        """The active query of a location, while no other call can begin its run.

        Raises:
            FencedError: it is another run than before the wait.
        """
        before: list[ActiveQuery] = []
        with self.turn(location, waits=lambda: before.append(self._find(location))):
            active = self._find(location)
            if before and before[0].run_id != active.run_id:
                raise _replaced(location, active.run_id)
            yield active

    @contextmanager
    def turn(self, place: str, *, waits: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Let one thread at a time begin or use the run of a place.

        Args:
            waits: called before the wait, if another thread is inside.
        Raises:
            FencedError: runs are being stopped.
        """
        with self._lock:
            begin = self._begins.setdefault(place, threading.Lock())
        if not begin.acquire(blocking=False):
            waits()
            begin.acquire()
        try:
            self._require_open(place)
            yield
        finally:
            begin.release()

    def run_at(self, place: str) -> OpenRun | None:
        """The run that is open there."""
        return self._runs.get(place)

    def begin_run(
        self, name: str, sink: DropInSink, store: str, *, check: Callable[[RegionRecord], None]
    ) -> DropInRun:
        """Begin a run of the store at this URI; see `DropInRun.start`."""
        return DropInRun.start(
            name,
            sink,
            CheckpointStore(self.file_system(store)),
            service=self._service,
            spark_version=self._spark.version,
            check=check,
        )

    def query_of(self, frame: DataFrame) -> ActiveQuery | None:
        """The active query in whose batch callback a frame is used.

        Spark runs the batches of a query in a session of its own, which also a thread of the user
        has by the frame. A frame of another session, such as rows from pandas, is known by the
        thread.
        """
        java = frame.sparkSession._jsparkSession  # noqa: SLF001 - not in Python
        query_id = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        found = self._active()
        own = (each for each in found if each.session == java)
        return next(own, next((each for each in found if each.query_id == query_id), None))

    def callbacks(self) -> frozenset[tuple[str, str]]:
        """Ids of the active queries with a batch callback, each with the id of its run."""
        found = self._active()
        return frozenset((each.query_id, each.run_id) for each in found if each.has_callback)

    def _active(self) -> list[ActiveQuery]:
        queries = itertools.chain.from_iterable(each.streams.active for each in (*self._sessions,))
        return [active_query(query) for query in queries]

    def _find(self, location: str) -> ActiveQuery:
        return find_query(tuple(self._sessions), self.file_system(location))

    def _require_open(self, location: str) -> None:
        if self._closed.is_set():
            raise FencedError(
                "drop-in queries are being stopped in this process",
                {"location": location},
                "Call sluice.install(spark) again, then start the query.",
            )

    def keep(self, place: str, run: OpenRun) -> None:
        """Register the run. If `close` was called meanwhile, stop the run here."""
        with self._lock:
            if not self._closed.is_set():
                self._runs[place] = run
                return
        run.began.stop()
        self._require_open(place)

    def _start(
        self,
        location: str,
        active: ActiveQuery,
        options: tuple[str, Mapping[str, str]],
        sink: DropInSink,
    ) -> OpenRun:
        active.require_micro_batches()
        active.require_settings()
        require_scheme(self._spark, location)
        fs = self.file_system(location)
        began = self.begin_run(
            f"query-{active.query_id}",
            sink,
            f"{location}/{DROP_IN}",
            check=lambda record: require_logged(fs, record),
        )
        return OpenRun(
            active=active, sink=options, began=began, record=record_of(began, active, fs)
        )

    def file_system(self, uri: str) -> FileSystem:
        """Opened once: on HDFS each has its own client, and every batch needs it three times."""
        known = self._file_systems.get(uri)
        if known is not None:
            return known
        options = storage_options_of(self._spark) if is_object_store(uri) else None
        made = open_file_system(uri, self._jvm, options)
        kept = self._file_systems.setdefault(uri, made)
        if kept is not made:  # two starts at once
            close_quietly(made)
        return kept

    @property
    def _jvm(self) -> Any:  # noqa: ANN401 - py4j's view
        return self._spark.sparkContext._jvm  # noqa: SLF001 - the only way to Hadoop's FileSystem

    def _reap(self) -> None:
        """Stop the coordinators of ended runs, so that their prefix is free again."""
        while not self._closed.wait(_REAP_S):
            try:
                self._reap_once()
            except Exception:  # an error of one query must not stop this loop
                log.exception("the search for ended queries failed and is repeated")

    def _reap_once(self) -> None:
        with self._lock:
            runs = list(self._runs.items())
        for location, run in runs:
            if _has_ended(run) and self.forget(location, run):
                try:
                    run.began.stop()
                except Exception:
                    log.exception("run was not stopped: run_id=%s", run.active.run_id)

    def forget(self, location: str, run: OpenRun) -> bool:
        """Whether this call removed the run; then the caller must stop it."""
        with self._lock:
            is_registered = self._runs.get(location) is run
            if is_registered:
                del self._runs[location]
        return is_registered


def record_of(
    began: DropInRun, active: ActiveQuery, fs: FileSystem
) -> Callable[[int, PreCommitted], RegionRecord]:
    """Makes the record of a query's batch, with what Spark has logged of it.

    Args:
        fs: rooted at the query's checkpoint location.
    """
    planned = PlannedFiles(fs)

    def record(batch_id: int, written: PreCommitted) -> RegionRecord:
        logged = LoggedBatch.read(fs, batch_id, planned=planned)
        before = LoggedBatch.read(fs, batch_id - 1, planned=None)
        return RegionRecord(
            region=REGION,
            attempt_id=began.attempt_id,
            query_id=active.query_id,
            batch_id=batch_id,
            splits=logged.ranges_since(before),
            offset_log_version=logged.version,
            other_offsets_sha256=logged.others_sha256,
            committables=tuple(written.committables),
        )

    return record


def _replaced(location: str, run_id: str) -> FencedError:
    return FencedError(
        "another start of this query uses other options",
        {"location": location, "run_id": run_id},
        "Start the query again, once. This call has written no record.",
    )


def _has_ended(run: OpenRun) -> bool:
    try:
        is_over = not run.active.is_active()
    except Exception:  # an error of its JVM: check the other runs, and this one again later
        if not run.is_unknown:  # logged once: a dead JVM never answers again
            log.exception(
                "the state of a run is unknown and is checked again: run_id=%s", run.active.run_id
            )
        run.is_unknown = True
        return False
    run.is_unknown = False
    return is_over
