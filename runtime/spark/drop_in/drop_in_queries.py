"""The driver's side of drop-in queries: one coordinator for each run of a query.

It runs in the user's own process, because Spark's driver-side Python processes have no JVM and must
not know the checkpoint (`coordinator-in-driver`). The checkpoint location identifies a query, and
Spark's run id its run. Spark's logs are read, but never changed.
"""

import logging
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

from pyspark.sql import SparkSession

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.inspect.checkpoint_opening import DROP_IN
from sluice.runtime.checkpoint.run_record import RunRecord, RunRecordStore
from sluice.runtime.checkpoint.succession import has_last_record
from sluice.runtime.contracts import TaskSink
from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
    JobPlan,
    RegionPlan,
)
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.errors import ConfigError, FencedError, StreamError
from sluice.runtime.graph.operator_ids import OperatorSpec, build_graph
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.json_values import to_json
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.service.drop_in_client import REGION, DropInMessage, QueryRun
from sluice.runtime.service.server import CoordinatorService
from sluice.runtime.spark.drop_in.active_queries import ActiveQuery, find_query
from sluice.runtime.spark.microbatch.query_logs import LoggedBatch, PlannedFiles, require_logged
from sluice.runtime.storage.file_system import FileSystem, close_quietly
from sluice.runtime.storage.file_system_opening import open_file_system

__all__ = ["DropInQueries", "DropInSinkMaker"]

log = logging.getLogger(__name__)

DropInSinkMaker = Callable[[Mapping[str, str], ActiveQuery], TaskSink]
"""Makes a query's drop-in sink from the options of ``writeStream``, in the user's process."""

_START_TIMEOUT_S = 30.0
_COMMIT_TIMEOUT_S = 120.0
_QUERY_STOP_S = 10.0
_REAP_S = 1.0


@dataclass(slots=True, kw_only=True)
class _Run:
    """One run of one query, with its coordinator.

    Attributes:
        sink: name and options of the sink that the run began with.
        is_unknown: Spark does not answer whether the run is active, and that was logged.
    """

    active: ActiveQuery
    sink: tuple[str, Mapping[str, str]]
    coordinator: BarrierCoordinator
    service: CoordinatorService
    job_uid: str
    attempt_id: int
    operator_id: str
    writer_factory: bytes
    fs: FileSystem
    planned: PlannedFiles
    is_unknown: bool = False

    def stop(self) -> None:
        with ExitStack() as stack:
            stack.callback(self.coordinator.stop)
            stack.callback(self.service.stop)
            self.coordinator.cancel()


class DropInQueries:
    """Serves the calls of the drop-in sinks of this process's queries. Driver, service threads.

    Args:
        spark: the user's session.
        sinks: makes a sink from the options of ``writeStream``, by Spark's name of the sink; may
            raise ConfigError.
        host: address at which executors reach this process.
    """

    def __init__(
        self, spark: SparkSession, sinks: Mapping[str, DropInSinkMaker], *, host: str
    ) -> None:
        self._spark = spark
        self._sessions = [spark]
        self._sinks = sinks
        self._host = host
        self._runs: dict[str, _Run] = {}
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

    def call(self, call: str, payload: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
        """One message of `sluice.runtime.service.drop_in_client.DropInClient`; safe to repeat."""
        message = DropInMessage.of(call, payload)
        if call == "begin":
            found = self._begin(message.format_name, message.location, message.options)
            return to_json(found)
        run = self._runs.get(message.location)
        if run is None or run.active.run_id != message.run_id:
            raise FencedError(
                "this run of the query is no longer coordinated here",
                {"location": message.location, "run_id": message.run_id},
                "Restart the query; no undecided record became visible.",
            )
        if call == "commit":
            self._commit(run, message)
        else:
            self._abort(run, message.batch_id)
        return None

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
                stack.callback(run.stop)
                stack.callback(run.active.stop, timeout_s=_QUERY_STOP_S)
            for run in runs:
                run.coordinator.cancel()  # a query that waits for a commit can be stopped now

    def _maker(self, format_name: str) -> DropInSinkMaker:
        maker = self._sinks.get(format_name)
        if maker is None:
            raise ConfigError(
                "no drop-in sink has this name",
                {"format": format_name, "known": ",".join(sorted(self._sinks))},
                "Call sluice.install(spark) with the Sluice that Spark's processes import.",
            )
        return maker

    # --- the run of a query -------------------------------------------------------------------

    def _begin(self, format_name: str, location: str, options: Mapping[str, str]) -> QueryRun:
        """The run's coordinator: it has fenced, settled and swept before any task starts.

        Spark does not identify the caller. A start that was abandoned may still call this, or wait
        here, while a later start of the query is the active one. Its options must not decide where
        the active query writes.
        """
        sink = (format_name, dict(options))
        with self._locked(location) as active:
            run = self._runs.get(location)
            if run is None or run.active.run_id != active.run_id:
                if run is not None:
                    run.stop()
                made = self._maker(format_name)(options, active)
                run = self._start(location, active, sink, made)
                self._keep(location, run)
            elif run.sink != sink:
                raise _replaced(location, active.run_id)
        return QueryRun(
            run_id=run.active.run_id,
            job_uid=run.job_uid,
            attempt_id=run.attempt_id,
            operator_id=run.operator_id,
            committed_through=run.coordinator.settled_through,
            address=run.service.coordinator_address,
            writer_factory=run.writer_factory,
        )

    @contextmanager
    def _locked(self, location: str) -> Iterator[ActiveQuery]:
        """The active query of a location, while no other call can begin its run.

        Raises:
            FencedError: it is another run than before the wait.
        """
        with self._lock:
            begin = self._begins.setdefault(location, threading.Lock())
        before = None
        if not begin.acquire(blocking=False):
            before = self._find(location)
            begin.acquire()
        try:
            self._require_open(location)
            active = self._find(location)
            if before is not None and before.run_id != active.run_id:
                raise _replaced(location, active.run_id)
            yield active
        finally:
            begin.release()

    def _find(self, location: str) -> ActiveQuery:
        return find_query(tuple(self._sessions), self._file_system(location))

    def _require_open(self, location: str) -> None:
        if self._closed.is_set():
            raise FencedError(
                "drop-in queries are being stopped in this process",
                {"location": location},
                "Call sluice.install(spark) again, then start the query.",
            )

    def _keep(self, location: str, run: _Run) -> None:
        """Register the run. If `close` was called meanwhile, stop the run here."""
        with self._lock:
            if not self._closed.is_set():
                self._runs[location] = run
                return
        run.stop()
        self._require_open(location)

    def _start(
        self,
        location: str,
        active: ActiveQuery,
        options: tuple[str, Mapping[str, str]],
        sink: TaskSink,
    ) -> _Run:
        active.require_micro_batches()
        active.require_settings()
        graph = build_graph([OperatorSpec(kind="sink", name=sink.name, uid=sink.uid)])
        operator_id = graph[0].operator_id
        fs = self._file_system(location)
        store = CheckpointStore(self._file_system(f"{location}/{DROP_IN}"))
        coordinator = BarrierCoordinator(
            JobPlan(
                name=f"query-{active.query_id}",
                regions=(RegionPlan(name=REGION, sink_ids=(operator_id,), keeps_logs=True),),
                graph=graph,
                settings={f"{sink.name}.{k}": v for k, v in sink.settings().items()},
                sluice_version=version("sluice-spark"),
                spark_version=self._spark.version,
            ),
            store,
            sinks={operator_id: sink.coordinator()},
            sources={},
            settings=CheckpointSettings(interval_s=None),
        )
        with ExitStack() as opened:
            opened.callback(coordinator.stop)
            started = coordinator.start(timeout_s=_START_TIMEOUT_S)
            require_logged(fs, started.regions[REGION])
            service = CoordinatorService(coordinator, host=self._host)
            opened.callback(service.stop)
            service.start()
            RunRecordStore(store.fs).announce(
                RunRecord(
                    leader_session_id=started.session,
                    address=service.address,
                    attempt_id=started.attempt_id,
                    job_uid=started.job_uid,
                ),
                is_newest=partial(has_last_record, store, session=started.session),
            )
            writer_factory = pickle.dumps(sink.writer_factory())
            opened.pop_all()  # the run closes them now
        return _Run(
            active=active,
            sink=options,
            coordinator=coordinator,
            service=service,
            job_uid=started.job_uid,
            attempt_id=started.attempt_id,
            operator_id=operator_id,
            writer_factory=writer_factory,
            fs=fs,
            planned=PlannedFiles(fs),
        )

    def _file_system(self, uri: str) -> FileSystem:
        """Opened once: on HDFS each has its own client, and every batch needs it three times."""
        known = self._file_systems.get(uri)
        if known is not None:
            return known
        made = open_file_system(uri, self._jvm)
        kept = self._file_systems.setdefault(uri, made)
        if kept is not made:  # two starts at once
            close_quietly(made)
        return kept

    @property
    def _jvm(self) -> Any:  # noqa: ANN401 - py4j's view
        return self._spark.sparkContext._jvm  # noqa: SLF001 - the only way to Hadoop's FileSystem

    # --- one batch ----------------------------------------------------------------------------

    def _commit(self, run: _Run, message: DropInMessage) -> None:
        """Decide, then commit; for a batch that an earlier call or run has decided, only wait."""
        batch_id = message.batch_id
        batch = BatchKey(region=REGION, attempt_id=run.attempt_id, batch_id=batch_id)
        if not run.coordinator.is_decided(batch):
            logged = LoggedBatch.read(run.fs, batch_id, planned=run.planned)
            before = LoggedBatch.read(run.fs, batch_id - 1, planned=None)
            region = RegionRecord(
                region=REGION,
                attempt_id=run.attempt_id,
                query_id=run.active.query_id,
                batch_id=batch_id,
                splits=logged.ranges_since(before),
                offset_log_version=logged.version,
                other_offsets_sha256=logged.others_sha256,
                committables=message.entries,
            )
            run.coordinator.acknowledge(
                Acknowledgement(
                    batch=batch,
                    checkpoint_id=None,
                    region=region,
                    decide_by_s=message.decide_by_s,
                )
            )
        run.coordinator.await_committed(batch, timeout_s=_COMMIT_TIMEOUT_S)

    def _abort(self, run: _Run, batch_id: int) -> None:
        """Rule `drop-in-abort`: Spark aborts also after a commit that raised, so check the store
        first."""
        batch = BatchKey(region=REGION, attempt_id=run.attempt_id, batch_id=batch_id)
        if run.coordinator.is_decided(batch):
            return
        run.coordinator.fail(
            REGION,
            run.attempt_id,
            StreamError(
                "Spark aborted a batch of this query",
                {"query_id": run.active.query_id, "batch_id": batch_id},
                "Read the query's own error; a restart resumes from the last checkpoint.",
            ),
        )

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
            if _has_ended(run) and self._forget(location, run):
                try:
                    run.stop()
                except Exception:
                    log.exception("run was not stopped: run_id=%s", run.active.run_id)

    def _forget(self, location: str, run: _Run) -> bool:
        """Whether this call removed the run; then the caller must stop it."""
        with self._lock:
            is_registered = self._runs.get(location) is run
            if is_registered:
                del self._runs[location]
        return is_registered


def _replaced(location: str, run_id: str) -> FencedError:
    return FencedError(
        "another start of this query uses other options",
        {"location": location, "run_id": run_id},
        "Start the query again, once. This call has written no record.",
    )


def _has_ended(run: _Run) -> bool:
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
