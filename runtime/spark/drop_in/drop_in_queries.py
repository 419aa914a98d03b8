"""The driver's side of drop-in queries: one coordinator for each run of a query.

Lives in the user's own process, because Spark's driver-side Python processes have no JVM and may
not know the checkpoint (`coordinator-in-driver`). A query is known by its checkpoint location, its
run by Spark's run id. Spark's logs are read, never touched.
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
from sluice.runtime.model.model import Acknowledgement, BatchKey, RegionRecord
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
    """One run of one query, with what coordinates it.

    Attributes:
        asked: name and options of the sink that it was begun with.
        is_out_of_sight: Spark does not say whether it goes on, and that has been told.
    """

    active: ActiveQuery
    asked: tuple[str, Mapping[str, str]]
    coordinator: BarrierCoordinator
    service: CoordinatorService
    job_uid: str
    attempt_id: int
    operator_id: str
    writer_factory: bytes
    fs: FileSystem
    planned: PlannedFiles
    is_out_of_sight: bool = False

    def stop(self) -> None:
        with ExitStack() as stack:
            stack.callback(self.coordinator.stop)
            stack.callback(self.service.stop)
            self.coordinator.cancel()


class DropInQueries:
    """Handles what the drop-in sinks of this process's queries ask. Driver, service threads.

    Args:
        spark: the user's session.
        sinks: by Spark's name of the sink, what makes it from the options of ``writeStream``;
            raises ConfigError.
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
        # One for each location: a start that waits for its remotes holds up no other query.
        self._begins: dict[str, threading.Lock] = {}
        self._file_systems: dict[str, FileSystem] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._reaper = threading.Thread(target=self._reap, name="sluice-reaper", daemon=True)
        self._reaper.start()

    def watch(self, spark: SparkSession) -> None:
        """Another session of the same application: each one knows only its own queries."""
        if not any(known is spark for known in self._sessions):
            self._sessions.append(spark)

    def call(self, call: str, payload: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
        """One message of `sluice.runtime.service.drop_in_client.DropInClient`; safe to repeat."""
        message = DropInMessage.of(call, payload)
        if call == "begin":
            found = self._begin(message.format_name, message.location, message.options)
            return found.to_json()
        run = self._runs.get(message.location)
        if run is None or run.active.run_id != message.run_id:
            raise FencedError(
                "this run of the query is no longer coordinated here",
                {"location": message.location, "run_id": message.run_id},
                "Restart the query; nothing undecided became visible.",
            )
        if call == "commit":
            self._commit(run, message)
        else:
            self._abort(run, message.batch_id)
        return None

    @property
    def is_closed(self) -> bool:
        """Whether no run begins here any more."""
        return self._closed.is_set()

    def close(self) -> None:
        """End all runs, and their queries first: what a task wrote later nobody would sweep."""
        with self._lock:
            self._closed.set()
            begins = list(self._begins.values())
        for begin in begins:  # one that hangs finds all closed, and stops what it has made
            if begin.acquire(timeout=_START_TIMEOUT_S):
                begin.release()
        with self._lock:
            runs = list(self._runs.values())
            self._runs.clear()
        with ExitStack() as stack:  # one run's trouble leaves no other one to itself
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
        """The run's coordinator: sealed, settled and swept before any of its tasks start.

        Spark does not tell who asks. A start that was given up may still ask, or wait here, when
        the next one is the query that runs: its options must not decide where that one writes.
        """
        asked = (format_name, dict(options))
        with self._turn(location) as active:
            run = self._runs.get(location)
            if run is None or run.active.run_id != active.run_id:
                if run is not None:
                    run.stop()
                sink = self._maker(format_name)(options, active)
                run = self._start(location, active, asked, sink)
                self._keep(location, run)
            elif run.asked != asked:
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
    def _turn(self, location: str) -> Iterator[ActiveQuery]:
        """The query that runs, with nobody else beginning it meanwhile.

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
        """Known from now on, unless all are being stopped: then nobody would stop this one."""
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
        asked: tuple[str, Mapping[str, str]],
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
                ),
                is_newest=partial(has_last_record, store, session=started.session),
            )
            writer_factory = pickle.dumps(sink.writer_factory())
            opened.pop_all()  # they are the run's now
        return _Run(
            active=active,
            asked=asked,
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
        """Opened once: on hdfs each has a client of its own, and every batch asks three times."""
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
        """Decide, then commit; a batch decided by an earlier call or run is only waited for."""
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
                splits=logged.read_behind(before),
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
        """Rule `drop-in-abort`: Spark aborts also after a commit that raised, so the store is
        asked first."""
        batch = BatchKey(region=REGION, attempt_id=run.attempt_id, batch_id=batch_id)
        if run.coordinator.is_decided(batch):
            return
        run.coordinator.fail(
            REGION,
            run.attempt_id,
            StreamError(
                "Spark aborted a batch of this query",
                {"query_id": run.active.query_id, "batch_id": batch_id},
                "See the query's own error; a restart goes on from the last checkpoint.",
            ),
        )

    def _reap(self) -> None:
        """Stop the coordinators of runs that have ended, so that their prefix is free again."""
        while not self._closed.wait(_REAP_S):
            try:
                self._reap_once()
            except Exception:  # one query's JVM or coordinator must not end this for all others
                log.exception("ended queries were not looked for; tried again")

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
        """Whether it was still the one there: nobody else stops it then."""
        with self._lock:
            is_there = self._runs.get(location) is run
            if is_there:
                del self._runs[location]
        return is_there


def _replaced(location: str, run_id: str) -> FencedError:
    return FencedError(
        "another start of this query has begun, with options of its own",
        {"location": location, "run_id": run_id},
        "This call has written nothing. Start the query again, once.",
    )


def _has_ended(run: _Run) -> bool:
    try:
        is_over = not run.active.is_active()
    except Exception:  # its own JVM's trouble: asked again, and the others now
        if not run.is_out_of_sight:  # a JVM that has died never answers again
            log.exception("run was not looked at, asked again: run_id=%s", run.active.run_id)
        run.is_out_of_sight = True
        return False
    run.is_out_of_sight = False
    return is_over
