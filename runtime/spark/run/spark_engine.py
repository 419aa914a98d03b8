"""Runs a `Job`: checks it, starts its coordinator and regions, watches them, ends them."""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore, open_store
from sluice.runtime.checkpoint.run_record import RunRecord, RunRecordStore
from sluice.runtime.checkpoint.succession import has_last_record
from sluice.runtime.continuous.barrier_service import BarrierService
from sluice.runtime.continuous.native_commits import LostTimeout, NativeCommits, TasksFirst
from sluice.runtime.contracts import (
    AgeingSource,
    RegionAttempt,
    SplitEnumerator,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import StartedJob
from sluice.runtime.coordinator.region.status_views import JobStatus
from sluice.runtime.coordinator.shell.action_dispatcher import ProgressListener
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.coordinator.shell.operator_commands import JobCommands
from sluice.runtime.coordinator.start.restoring import RestoreRequest
from sluice.runtime.coordinator.start.startup import MAY_STOP_AT
from sluice.runtime.election.leader_election import LeaderElection
from sluice.runtime.errors import (
    ConfigError,
    FencedError,
    JobFinishedError,
    WaitedTooLongError,
)
from sluice.runtime.functions.at_most_once import DropBudget, dropped_in_all
from sluice.runtime.graph.job_graph import Region, require_chained
from sluice.runtime.graph.pipeline import Recovery
from sluice.runtime.history.job_history import JobHistory
from sluice.runtime.job_registry.job_registrar import JobRegistrar
from sluice.runtime.job_registry.registration import SUBMISSION_VARIABLE, Registration
from sluice.runtime.process.host_clock import wall_ms
from sluice.runtime.service.coordinator_app import CoordinatorApp
from sluice.runtime.service.listening.listener import Listener
from sluice.runtime.service.metrics import job_registry
from sluice.runtime.service.page.live_job import LiveJob
from sluice.runtime.service.page.page_routes import api_routes, page_routes
from sluice.runtime.service.read_only_server import ReadOnlyServer
from sluice.runtime.service.server import CoordinatorService
from sluice.runtime.spark.microbatch.region_start import (
    batches_to_retain,
    delete_vanished,
    require_rewindable,
)
from sluice.runtime.spark.run.attempt_supervisor import RegionAttempts
from sluice.runtime.spark.run.console import ConsoleProgress, RunTotals
from sluice.runtime.spark.run.hosting.hosted_run import HostedRun, require_hostable
from sluice.runtime.spark.run.hosting.job_description import coordinator_of, describe
from sluice.runtime.spark.run.job_spec import JobSpec
from sluice.runtime.spark.run.job_topics import named, prepared
from sluice.runtime.spark.run.region_launcher import ContinuousRegions, RegionLauncher
from sluice.runtime.spark.run.region_layout import Layout, between_barriers_s, lay_out
from sluice.runtime.spark.run.resource_watch import ResourceWatch, SparkSlots
from sluice.runtime.spark.run.restore_request import origin_of
from sluice.runtime.spark.run.spark_files import require_spark_directory, spark_files
from sluice.runtime.spark.run.standby import Standby
from sluice.runtime.spark.session.hosts import HostExclusion, SparkExecutors
from sluice.runtime.spark.session.interrupts import EndRequests, ended_by_signals
from sluice.runtime.spark.session.session_web_hdfs import checkpoint_web_address
from sluice.runtime.spark.session.spark_session import (
    enter_session,
    is_fair,
    local_properties,
    prepare,
    require_scheme,
    require_task_retries,
)
from sluice.runtime.storage.file_system import FileSystem, OpenFileSystem, close_quietly
from sluice.runtime.storage.file_system_opening import absolute_uri, open_file_system

__all__ = ["JobResult", "JobRun", "run_job"]

log = logging.getLogger(__name__)

_START_TIMEOUT_S = 30.0
_AGE_TIMEOUT_S = 3.0
_WATCH_S = 0.1
_RESTART_POLL_S = 0.02  # a restart of a region needs three calls of `watch`


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """The result of a finished run.

    Attributes:
        job_uid: of the job.
        restored_from: checkpoint id that it resumed from, None for a new job.
        last_checkpoint_id: newest checkpoint that is committed on record.
        elapsed_s: of this run, Spark's own start not included.
    """

    job_uid: str
    restored_from: int | None
    last_checkpoint_id: int | None
    elapsed_s: float


class JobRun:
    """One run of a job: `check`, then `run`, in the thread that runs the job. Any thread may call
    the other methods.

    Args:
        job: the described job.
        is_foreground: whether its thread is the user's. Then a terminal shows progress. Otherwise
            the thread gets the job's session and the local properties of the thread that made this.

    Attributes:
        totals: what it has committed so far.
    """

    def __init__(self, job: JobSpec, *, is_foreground: bool) -> None:
        self._job = job
        self._properties = None if is_foreground else local_properties(job.spark)
        self._began_s = time.monotonic()
        self._ended_s: float | None = None
        is_drawn = is_foreground and sys.stderr.isatty()
        self.totals = ConsoleProgress(job.name) if is_drawn else RunTotals(job.name)
        self._layout: Layout | None = None
        self._coordinator: BarrierCoordinator | None = None
        self._read_only: ReadOnlyServer | None = None
        self._commands: JobCommands | None = None
        self._hosted: HostedRun | None = None
        self._standby = Standby(job, self.totals)
        self._is_settled = threading.Event()  # it has started, or will not

    @property
    def elapsed_s(self) -> float:
        """From its begin to its end, or to now."""
        return (self._ended_s or time.monotonic()) - self._began_s

    @property
    def metrics_address(self) -> str | None:
        """Of its read-only server; None: it does not run."""
        return None if self._read_only is None else self._read_only.address

    @property
    def is_standby(self) -> bool:
        """Whether it waits until the leader of the job is gone."""
        return self._standby.is_waiting

    def status(self) -> JobStatus | None:
        """The coordinator's status; None before it has started."""
        return None if self._coordinator is None else self._coordinator.status()

    def result(self) -> JobResult | None:
        """The result so far; None before the coordinator has started."""
        if (finished := self._standby.finished) is not None:
            return JobResult(
                job_uid=finished.job_uid,
                restored_from=None,
                last_checkpoint_id=finished.last_checkpoint_id,
                elapsed_s=self.elapsed_s,
            )
        coordinator = self._coordinator
        if self._hosted is not None:
            last = self._hosted.last
            return (
                None
                if last is None
                else JobResult(
                    job_uid=last.job_uid,
                    restored_from=None,
                    last_checkpoint_id=last.last_committed,
                    elapsed_s=self.elapsed_s,
                )
            )
        if coordinator is None or coordinator.started is None:
            return None
        return JobResult(
            job_uid=coordinator.started.job_uid,
            restored_from=coordinator.started.restored_from,
            last_checkpoint_id=coordinator.last_committed,
            elapsed_s=self.elapsed_s,
        )

    def commands(self, timeout_s: float | None) -> JobCommands:
        """Commands to the job, once it has started.

        Raises:
            WaitedTooLongError: it has not started in time.
            FencedError: it ended before.
        """
        where = {"job": self._job.name}
        if self._job.is_led_elsewhere:
            raise ConfigError(
                "the coordinator of this job is another process",
                where,
                "Use `sluice job` with the checkpoint directory: it follows the leader.",
            )
        if not self._is_settled.wait(timeout_s):
            raise WaitedTooLongError(
                "the job has not started in time", where, "Repeat the command later."
            )
        if self._commands is None:
            raise FencedError("the job ended before its start was over", where, "Start it again.")
        return self._commands

    def check(self) -> None:
        """Check session and pipelines, and that sources and sinks answer; raises as `Job.run`."""
        job = self._job
        if self._properties is not None:
            enter_session(job.spark, self._properties)
        prepare(job.spark)
        require_scheme(job.spark, job.checkpoint_dir)
        job = self._job = named(job)
        if job.recovery is not Recovery.REGION:
            require_task_retries(job.spark, recovery=job.recovery.value)
        if job.recovery is Recovery.APPROXIMATE:
            require_chained(job.pipelines)
        if any(pipeline.is_keyed for pipeline in job.pipelines):
            job.state.require_available()
        self._layout = layout = lay_out(job)
        if job.is_led_elsewhere:
            require_hostable(job, layout)
        require_spark_directory(job, layout.batched)

    def run(self, ends: EndRequests, *, on_step: Callable[[], None] = lambda: None) -> None:
        """Start it, and watch it until it ends; see `sluice.runtime.job.job.Job.run`.

        Args:
            ends: requests for its end.
            on_step: called at each step of the start, all of which follow the checks of the
                checkpoint directory.
        Raises:
            BaseException: the error that ended it, or that of ``ends``.
        """
        try:
            with contextlib.suppress(JobFinishedError):  # by the leader, while this one waited
                (self._host if self._job.is_led_elsewhere else self._run)(ends, on_step)
        finally:
            self.totals.close()
            self._ended_s = time.monotonic()
            self._is_settled.set()

    def _host(self, ends: EndRequests, on_step: Callable[[], None]) -> None:
        job, layout = self._job, self._layout
        assert layout is not None  # `check` was called
        jvm = job.spark.sparkContext._jvm  # noqa: SLF001 - PySpark's only way to Hadoop's classes
        store = open_store(job.checkpoint_dir, jvm, job.storage_options)
        try:
            self._hosted = HostedRun(job, layout, store)
            self._hosted.run(ends, on_step)
        finally:
            close_quietly(store.fs)

    def _run(self, ends: EndRequests, on_step: Callable[[], None]) -> None:
        job, layout = self._job, self._layout
        assert layout is not None  # `check` was called
        jvm = job.spark.sparkContext._jvm  # noqa: SLF001 - PySpark's only way to Hadoop's classes
        with contextlib.ExitStack() as stack:
            store = open_store(job.checkpoint_dir, jvm, job.storage_options)
            stack.callback(close_quietly, store.fs)
            election = self._standby.elect(store, stack, ends, on_step)
            opening = _opening(job)
            files = stack.enter_context(spark_files(job, layout.batched, store.fs, opening))
            retain = batches_to_retain(store, retained=job.settings.retained)
            registrar = JobRegistrar(
                job.registry, opening, was_stopped=lambda: coordinator.status().state == "stopped"
            )
            stack.enter_context(registrar)
            history = JobHistory(
                store.fs, lambda: coordinator.status(), savepoints=lambda: _copies_of(coordinator)
            )
            stack.enter_context(history)
            listeners = [*job.listeners, self.totals, history]
            commits, lost_timeout = NativeCommits(), LostTimeout(job.coordinator_lost_timeout_s)
            between_s = between_barriers_s(job)
            tasks_first = TasksFirst(commits, lost_timeout, between_barriers_s=between_s)
            made = (job, layout, store, files, listeners, tasks_first, election)
            coordinator, sources = _coordinator(*made, spark_batches=retain)
            stack.callback(coordinator.stop)
            registry = job_registry(coordinator, history_failures=lambda: history.write_failures)
            shown = LiveJob(
                coordinator, checkpoint_uri=absolute_uri(store.fs.uri), history=history.view
            )
            if job.metrics_port is not None:  # before the start, which takes the job over
                self._read_only = ReadOnlyServer(
                    registry,
                    host=job.metrics_host,
                    port=job.metrics_port,
                    routes=[*page_routes(), *api_routes(shown)],
                )
                stack.enter_context(self._read_only)
            listener = stack.enter_context(Listener.of(job.service))
            started = self._start(
                coordinator, origin_of(job, layout, files, jvm=jvm), history, ends, on_step
            )
            names = {region.name for region in layout.regions}
            delete_vanished(files, names, attempt_id=started.attempt_id)
            streaming = ContinuousRegions(
                names=layout.continuous,
                barrier_service=BarrierService(coordinator, commits),
                ends=lambda source_id: sources[source_id].fixed_ends(),
                lost_timeout_s=lost_timeout.seconds,
            )
            hosts = HostExclusion(SparkExecutors(job.spark))
            self._commands = JobCommands(coordinator, hosts=hosts)
            self._is_settled.set()
            _run_regions(
                *(job, layout, started, coordinator, self._commands, hosts),
                *(store, retain, ends, streaming, registry, shown),
                files=files,
                election=election,
                listener=listener,
                on_address=partial(self._register, registrar, started),
            )

    def _start(
        self,
        coordinator: BarrierCoordinator,
        origin: RestoreRequest | int | None,
        history: JobHistory,
        ends: EndRequests,
        on_step: Callable[[], None],
    ) -> StartedJob:
        def step(name: str) -> None:
            on_step()
            if name in MAY_STOP_AT:
                ends.check()

        started = coordinator.start(timeout_s=_START_TIMEOUT_S, restore_from=origin, on_step=step)
        self._coordinator = coordinator
        history.begin(
            {
                "attempt_id": started.attempt_id,
                "run_attempt": started.run_attempt,
                "restored_from": started.restored_from,
            }
        )
        ends.check()
        return started

    def _register(self, registrar: JobRegistrar, started: StartedJob, address: str) -> None:
        registrar.begin(_registration(self._job, started, address, self.metrics_address))


def run_job(job: JobSpec) -> JobResult:
    """Run it in this thread; Ctrl-C and SIGTERM request its end."""
    run = JobRun(job, is_foreground=True)
    with ended_by_signals() as interrupts:
        run.check()
        run.run(interrupts)
    result = run.result()
    assert result is not None  # it has started, and ended without an error
    return result


def _coordinator(
    job: JobSpec,
    layout: Layout,
    store: CheckpointStore,
    files: FileSystem,
    listeners: Sequence[ProgressListener],
    tasks_first: TasksFirst,
    election: LeaderElection | None,
    *,
    spark_batches: int,
) -> tuple[BarrierCoordinator, dict[str, SplitEnumerator]]:
    """See `coordinator_of`: with Spark's logs, and in this process."""
    return coordinator_of(
        describe(job, layout),
        store,
        listeners=listeners,
        tasks_first=tasks_first,
        spark_batches=spark_batches,
        open_fs=_opening(job),
        election=election,
        files=files,
        require_restorable=partial(require_rewindable, files, layout.regions),
    )


def _opening(job: JobSpec) -> OpenFileSystem:
    jvm = job.spark.sparkContext._jvm  # noqa: SLF001 - PySpark's only way to Hadoop's classes
    return partial(open_file_system, jvm=jvm, storage_options=job.storage_options)


def _copies_of(coordinator: BarrierCoordinator) -> list[dict[str, Any]]:
    """The savepoints and full checkpoints of this run."""
    return [asdict(view) for view in coordinator.requests.views() if view.parent]


def _announced(
    store: CheckpointStore,
    started: StartedJob,
    service: CoordinatorService,
    election: LeaderElection | None,
) -> contextlib.AbstractContextManager[None]:
    """Publish the address of this run, for tasks that get no answer and for operators."""
    is_newest = partial(has_last_record, store, session=started.session)
    run = RunRecord(
        leader_session_id=started.session,
        address=service.address,
        attempt_id=started.attempt_id,
        job_uid=started.job_uid,
        token=service.command_address.token,
        ca=service.ca,
    )
    records = RunRecordStore(store.fs)
    records.announce(run, is_newest=is_newest)
    if election is not None:
        election.announce(run)
    return records.accept_commands(run, is_newest=is_newest)


def _registration(
    job: JobSpec, started: StartedJob, address: str, read_only_address: str | None
) -> Registration:
    now_ms = wall_ms()
    return Registration(
        job_uid=started.job_uid,
        name=job.name,
        checkpoint_uri=absolute_uri(job.checkpoint_dir),
        address=address,
        read_only_address=read_only_address,
        host=job.spark.sparkContext.getConf().get("spark.driver.host") or "",
        run_attempt=started.run_attempt,
        started_ms=now_ms,
        renewed_ms=now_ms,
        submission_id=os.environ.get(SUBMISSION_VARIABLE),
    )


def _run_regions(
    job: JobSpec,
    layout: Layout,
    started: StartedJob,
    coordinator: BarrierCoordinator,
    commands: JobCommands,
    hosts: HostExclusion,
    store: CheckpointStore,
    retain: int,
    ends: EndRequests,
    continuous: ContinuousRegions,
    registry: CollectorRegistry,
    shown: LiveJob,
    *,
    files: FileSystem,
    election: LeaderElection | None,
    listener: Listener,
    on_address: Callable[[str], None],
) -> None:
    """Serve the coordinator, run every region, and watch until the end."""
    barrier_service = continuous.barrier_service
    assert isinstance(barrier_service, BarrierService)  # of this process
    regions = prepared(layout.regions, started, job.uid)
    _warn_of_shared_cores(job, len(regions) - len(continuous.names))
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(
            CoordinatorService(
                CoordinatorApp(
                    coordinator,
                    checkpoint_uri=absolute_uri(store.fs.uri),
                    checkpoint_web=checkpoint_web_address(job.spark.sparkContext, store.fs),
                    zookeeper=job.ha.nodes_of(job.name, store.fs.uri) if job.ha else None,
                    commands=commands,
                    barrier_service=barrier_service,
                    registry=registry,
                    pages=shown,
                ),
                listener=listener,
            )
        )
        stack.enter_context(_announced(store, started, service, election))
        on_address(service.address)
        launcher = RegionLauncher(
            job,
            {region.name: region for region in regions},
            coordinator,
            files,
            job_uid=started.job_uid,
            address=service.coordinator_address,
            batches_to_retain=retain,
            continuous=continuous,
            replayable=coordinator.replayable,
            drops=_drop_budget(job, started),
            analyses=layout.analyses,
        )
        attempts = RegionAttempts(
            coordinator, launcher.handles(), outage_limit_s=job.settings.settle_timeout_s
        )
        stack.callback(attempts.stop)
        _warn_of_outlived(regions, started)
        resources = ResourceWatch(
            SparkSlots(job.spark),
            needed=len(continuous.names) + (len(continuous.names) < len(regions)),
            timeout_s=job.resource_timeout_s,
            report=partial(setattr, coordinator, "waiting_for_resources"),
        )
        try:
            with ends.held():
                _begin(attempts, started, regions, ends)
                _watch(coordinator, attempts, hosts, resources, ends)
        except SystemExit:
            log.warning(
                "interrupted: job=%s last_committed=%d", job.name, coordinator.last_committed
            )
            raise


def _begin(
    attempts: RegionAttempts, started: StartedJob, regions: Sequence[Region], ends: EndRequests
) -> None:
    for region in regions:
        attempts.begin(_first_attempt(started, region))
        ends.check()


def _first_attempt(started: StartedJob, region: Region) -> RegionAttempt:
    return RegionAttempt(
        attempt_id=started.attempt_id,
        restored=started.regions[region.name],
        after=started.restored_from or 0,
    )


def _watch(
    coordinator: BarrierCoordinator,
    attempts: RegionAttempts,
    hosts: HostExclusion,
    resources: ResourceWatch,
    ends: EndRequests,
) -> None:
    """Watch until the job ends; raises the error that ended it."""
    while not coordinator.wait(timeout_s=_RESTART_POLL_S if attempts.is_restarting else _WATCH_S):
        ends.check()
        attempts.watch()
        hosts.enforce()
        resources.check()


def _warn_of_shared_cores(job: JobSpec, micro_batches: int) -> None:
    if micro_batches > 1 and not is_fair(job.spark):
        log.warning(
            "the regions share Spark's cores first come, first served: set "
            "spark.scheduler.mode=FAIR, so that one with a backlog does not delay other regions"
        )


def _warn_of_outlived(regions: Sequence[Region], started: StartedJob) -> None:
    """Copies keep their records' timestamps, and an output may delete them at once."""
    for source_id in dict.fromkeys(region.source_id for region in regions):
        mine = [region for region in regions if region.source_id == source_id]
        source = mine[0].pipeline.source
        if not isinstance(source, AgeingSource):
            continue
        positions = [split for region in mine for split in started.regions[region.name].splits]
        for sink in mine[0].sinks.values():
            found = source.outlived(sink, positions, timeout_s=_AGE_TIMEOUT_S)
            if found is not None:
                log.warning(
                    "the output deletes copies of old records as soon as they are written: "
                    "source=%s sink=%s %s. Drop the column timestamp, raise the topic's "
                    "retention.ms, or set its message.timestamp.type=LogAppendTime.",
                    source.name,
                    sink.name,
                    found,
                )


def _drop_budget(job: JobSpec, started: StartedJob) -> DropBudget | None:
    limit = job.settings.drop_limit
    if limit is None:
        return None
    so_far = {name: dropped_in_all(r.operator_states) for name, r in started.regions.items()}
    log.warning(
        "approximate recovery: the ranges of a failed task are dropped: job=%s "
        "max_dropped_records=%d max_dropped_in_all=%s dropped_so_far=%d",
        job.name,
        limit.per_checkpoint,
        limit.in_all,
        sum(so_far.values()),
    )
    return DropBudget(limit, so_far)
