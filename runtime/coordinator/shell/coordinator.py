"""The barrier checkpoint coordinator of one job: threads and clients around the pure core."""

import contextlib
import dataclasses
import logging
import math
import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Self, TypeVar

from sluice.runtime.checkpoint.succession import has_last_record
from sluice.runtime.continuous.native_commits import TasksFirst
from sluice.runtime.contracts import (
    Clock,
    Coordinator,
    MetadataStore,
    RegionRegistration,
    RegisteredAttempt,
    SinkCoordinator,
    SplitEnumerator,
)
from sluice.runtime.coordinator.committing.commit_steps import RunIdentity, drive
from sluice.runtime.coordinator.committing.repairs import Repairer
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.coordinator.core.core import CoordinatorCore
from sluice.runtime.coordinator.core.events import (
    Acknowledged,
    BarrierPolled,
    CommandAccepted,
    FetchBarrierOffsets,
    RegionFailed,
    RegionRegistered,
    RestartCommanded,
    RestartRequested,
    TriggerRequested,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
    JobPlan,
    StartedJob,
)
from sluice.runtime.coordinator.policy.failure_policy import PERMANENT_ERRORS
from sluice.runtime.coordinator.region.status_views import JobStatus, WaitingForResources
from sluice.runtime.coordinator.shell.action_dispatcher import (
    BatchWaiters,
    ListenerThread,
    ProgressListener,
    WakeUp,
)
from sluice.runtime.coordinator.shell.attempt_listing import AttemptListing
from sluice.runtime.coordinator.shell.io_executor import IoExecutor
from sluice.runtime.coordinator.shell.open_transactions import OpenTransactions
from sluice.runtime.coordinator.shell.region_watch import RegionWatch, view_of_regions
from sluice.runtime.coordinator.shell.request_thread import FileCopier, RequestThread
from sluice.runtime.coordinator.shell.restart_waits import RequestedRestart, result_within
from sluice.runtime.coordinator.shell.run_threads import RunThreads
from sluice.runtime.coordinator.shell.source_service import (
    SerialSource,
    SourceService,
    answer_in,
    given,
)
from sluice.runtime.coordinator.start.recovery import with_lineage
from sluice.runtime.coordinator.start.restoring import RestoreRequest
from sluice.runtime.coordinator.start.startup import Found, StartSequence
from sluice.runtime.coordinator.start.takeover import Takeover
from sluice.runtime.election.leader_election import LeaderElection
from sluice.runtime.errors import UnreachableError, WaitedTooLongError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.checkpoint_record import CheckpointKind, CheckpointRecord
from sluice.runtime.model.splits import Barrier, BatchKey
from sluice.runtime.model.state.task_inputs import TaskInputs
from sluice.runtime.ownership.lease_watch import LeaseWatch
from sluice.runtime.process.closing import close_logged
from sluice.runtime.process.host_clock import slept_s, wall_ms
from sluice.runtime.process.pause_tolerant_clock import PauseTolerantClock

__all__ = ["BarrierCoordinator"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_JOIN_S = 5.0
_LONGEST_STEP_S = 5.0  # the core makes a step at least once a second


class BarrierCoordinator(Coordinator):
    """`Coordinator` for one run of one job. Driver; every method thread-safe.

    One thread owns the core, one runs its remote steps in order, one sweeps, one renews leases, one
    calls listeners. Threads that poll for a barrier also fetch its offsets. No lock is held during
    I/O, except those of `SerialSink` and `SerialSource`: connectors are called by
    one thread at a time.

    Args:
        job: the plan of the job.
        store: the checkpoint directory.
        sinks, sources: by operator id.
        settings: when checkpoints are taken.
        listeners: notified of progress.
        clock: monotonic seconds without host suspension; for waits.
        slept: seconds of host suspension, for ages; see `sluice.runtime.process.host_clock`.
        repairer: writes lost work again, for ``on_lost="repair"``.
        tasks_first: of sinks that continuous tasks write to.
        require_known, require_restorable: see `StartSequence`.
        new_job_uid: of a job that has no checkpoint yet; None: any.
        copier: writes savepoints and full checkpoints; None: nothing does.
        election: of which this process is the leader now; None: nothing is elected.
        takeover: for attempts that may outlive their coordinator; None: there are none.

    Attributes:
        waiting_for_resources: set by the engine, for the status.
    """

    def __init__(
        self,
        job: JobPlan,
        store: MetadataStore,
        *,
        sinks: Mapping[str, SinkCoordinator],
        sources: Mapping[str, SplitEnumerator],
        settings: CheckpointSettings | None = None,
        listeners: Sequence[ProgressListener] = (),
        clock: Clock = time.monotonic,
        slept: Clock = slept_s,
        repairer: Repairer | None = None,
        tasks_first: Mapping[str, TasksFirst] | None = None,
        require_known: Callable[[CheckpointRecord], None] = lambda _: None,
        require_restorable: Callable[[CheckpointRecord], None] = lambda _: None,
        new_job_uid: str | None = None,
        copier: FileCopier | None = None,
        election: LeaderElection | None = None,
        takeover: Takeover | None = None,
    ) -> None:
        elected = election and election.campaign(timeout_s=0.0)
        self.session = elected or str(uuid.uuid4())
        self._election = election
        self._takeover = takeover
        self._job = job
        self._plans = {region.name: region for region in job.regions}
        self._store = store
        tasks = tasks_first or {}
        self._sinks = {key: SerialSink(sink, tasks.get(key)) for key, sink in sinks.items()}
        self._sources = {key: SerialSource(source) for key, source in sources.items()}
        self._settings = settings or CheckpointSettings()
        self._clock = clock
        self._core_clock = PauseTolerantClock(clock, longest_step_s=_LONGEST_STEP_S)
        self._slept = slept
        self._repairer = repairer
        self._require_known = require_known
        self._require_restorable = require_restorable
        self._new_job_uid = new_job_uid or str(uuid.uuid4())
        self._copier = copier
        self._requests: RequestThread | None = None
        self._listeners = ListenerThread(listeners)
        self._waiters = BatchWaiters()
        self._wake = WakeUp()
        self._barrier_service = SourceService(self._sources, settings=self._settings, clock=clock)
        self._leases = LeaseWatch(
            self._sinks, interval_s=self._settings.renew_interval_s, age_clock=self._age_clock
        )
        self._names = {node.operator_id: node.name for node in job.graph}
        self._transactions = OpenTransactions(self._names, ages=self._age_clock)
        self._started: StartedJob | None = None
        self._threads: RunThreads | None = None
        self._watch: RegionWatch | None = None
        self.waiting_for_resources: WaitingForResources | None = None
        self._stop_once = threading.Lock()
        self._stopped = False

    # --- the run ----------------------------------------------------------------------------------

    def start(
        self,
        timeout_s: float,
        *,
        restore_from: int | RestoreRequest | None = None,
        registrations: Sequence[RegionRegistration] = (),
        on_step: Callable[[str], None] = lambda _: None,
    ) -> StartedJob:
        """Read, verify, fence, settle earlier decisions, and begin to trigger checkpoints.

        Args:
            timeout_s: for the whole start; repairs get more.
            restore_from: checkpoint id to resume from, instead of the newest decision. Or the
                request to begin a new job with the state of another one.
            registrations: of attempts of earlier runs that a handle still reaches. The start aborts
                their open work that no decision names. The caller stops them before it starts new
                attempts.
            on_step: called with the name of each step, all of which follow the checks. It may
                raise at those of `sluice.runtime.coordinator.start.startup.MAY_STOP_AT`.

        Raises:
            ConfigError, WrongJobError, DamagedCheckpointError, UnsupportedFormatError: nothing was
                changed.
            StreamError: see `sluice.runtime.coordinator.start.startup.StartSequence.run`.
        """
        election = self._election
        sequence = StartSequence(
            plan=self._job,
            settings=self._settings,
            store=self._store,
            sinks=self._sinks,
            sources=self._sources,
            session=self.session,
            clock=self._clock,
            repairer=self._repairer,
            require_known=self._require_known,
            require_restorable=self._require_restorable,
            require_leased=self._leases.require_renewed,
            require_elected=(lambda: None) if election is None else election.require_leading,
            new_job_uid=self._new_job_uid,
            registrations=registrations,
            takeover=self._takeover,
        )
        self._leases.start()
        found = drive(sequence.run(timeout_s=timeout_s, restore_from=restore_from), on_step)
        self._started = found.started(self.session, self._plans)
        self._begin(found, self._started)
        log.info(
            "job started: job=%s job_uid=%s attempt_id=%d restored_from=%s run_attempt=%d",
            *(self._job.name, self._started.job_uid, found.attempt_id),
            *(self._started.restored_from, found.run_attempt),
        )
        return self._started

    def _begin(self, found: Found, started: StartedJob) -> None:
        core = CoordinatorCore(
            self._settings,
            self._job.regions,
            started.regions,
            assignment=found.assignment,
            attempt_id=found.attempt_id,
            last_decided=found.record.checkpoint_id,
            draw=random.random,
            resumed=started.resumed,
        )
        io_executor = IoExecutor(
            store=self._store,
            sinks=self._sinks,
            sources=self._sources,
            identity=RunIdentity(
                plan=with_lineage(self._job, found.lineage, attempt_id=found.attempt_id),
                job_uid=started.job_uid,
                session=self.session,
                attempt_id=found.attempt_id,
                run_attempt=found.run_attempt,
                restored_from=started.restored_from,
                cluster_ids=found.cluster_ids,
            ),
            settings=self._settings,
            age_clock=self._age_clock,
            wall_ms=wall_ms,
            before_decision=self._leases.require,
            repairer=self._repairer,
            kept=found.kept,
            on_copy=lambda due: self._running().dispatcher.answer_request(due),
            listing=AttemptListing.of(
                *(self._takeover, core, self._ask),
                run_attempt_id=found.attempt_id,
                resumed_from=found.record.checkpoint_id,
            ),
        )
        self._threads = RunThreads(
            core,
            io_executor,
            job=self._job.name,
            job_uid=started.job_uid,
            sinks=self._sinks,
            settings=self._settings,
            leases=self._leases,
            election=self._election,
            waiters=self._waiters,
            wake=self._wake,
            listeners=self._listeners,
            clock=self._clock,
            core_clock=self._core_clock,
            ages=self._age_clock,
        )
        self._threads.start()
        self._start_requests(self._threads)
        self._transactions.begin({name: sink.facts for name, sink in self._sinks.items()})
        self._watch = self._region_watch()
        self._watch.start()

    def _region_watch(self) -> RegionWatch:
        return RegionWatch(
            lambda: self._ask(lambda core: view_of_regions(core, self._core_clock())),
            sources=self._sources,
            interval_s=self._settings.refresh_interval_s,
            alarm_s=None if self._settings.is_external else self._settings.pressure_alarm_s,
            timeout_s=self._settings.call_timeout_s,
            clock=self._clock,
            warn=lambda: self._transactions.warn(self._ask(lambda core: core.open_since())),
        )

    def _start_requests(self, threads: RunThreads) -> None:
        self._requests = RequestThread(
            step=threads.loop.step,
            expect=threads.dispatcher.expect_request,
            end_offsets=lambda: self._barrier_service.end_offsets(
                threads.loop.step, lambda: self._ask(lambda core: core.positions())
            ),
            copier=self._copier,
            suspended=lambda: self._ask(lambda core: core.suspended),
            is_newest=partial(has_last_record, self._store, session=self.session),
            limit_s=self._settings.timeout_s,
            full_every=self._settings.full_checkpoint_every,
            clock=self._clock,
        )
        self._requests.start()
        if self._settings.full_checkpoint_every is not None:
            self._listeners.add(self._requests)

    def add_listener(self, listener: ProgressListener) -> None:
        """Add a listener for all progress from now on."""
        self._listeners.add(listener)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether the job has ended; raises the error that ended it.

        A bounded job has ended when its final checkpoint is committed on record and readers can
        see all of it (`commit-acknowledged`).
        """
        return self._running().dispatcher.wait(timeout_s)

    def cancel(self) -> None:
        """End the job now and wake every callback and poller; do not wait."""
        if self._threads is not None:
            self._threads.cancel()

    def stop(self) -> None:
        """End the job, settle decided checkpoints within a bound, release all. Repeatable."""
        with self._stop_once:
            if self._stopped:
                return
            self._stopped = True
            with contextlib.ExitStack() as stack:  # run in reverse; one failure prevents no other
                for name, source in self._sources.items():
                    stack.callback(close_logged, source.close, f"source {name}")
                for name, sink in self._sinks.items():
                    stack.callback(close_logged, sink.close, f"sink {name}")
                stack.callback(self._listeners.stop, timeout_s=_JOIN_S)
                stack.callback(self._leases.stop, timeout_s=_JOIN_S)
                if self._threads is not None:
                    stack.callback(self._threads.stop)
                if self._watch is not None:
                    stack.callback(self._watch.stop, timeout_s=_JOIN_S)
                if self._requests is not None:
                    stack.callback(self._requests.stop, timeout_s=_JOIN_S)
                self.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- what the engine calls --------------------------------------------------------------------

    def poll_barrier(
        self,
        region: str,
        attempt_id: int,
        *,
        wait_s: float,
        has_read: bool = False,
        until: Callable[[], bool] = lambda: False,
    ) -> Barrier | None:
        """See `poll_barrier`. This thread fetches the barrier offsets of the sources."""
        threads = self._running()
        polled = BarrierPolled(region=region, attempt_id=attempt_id, has_read=has_read)
        deadline_s = time.monotonic() + wait_s
        while True:
            version = self._wake.version
            if until():
                return None
            answer = self._poll(threads, polled, self._barrier_service.deadline_s())
            if isinstance(answer, Barrier):
                return answer
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return None
            self._wake.wait(version, min(left_s, answer))

    def wake_waiters(self) -> None:
        self._wake.notify()

    def _poll(self, threads: RunThreads, polled: BarrierPolled, until_s: float) -> Barrier | float:
        """The barrier, or in how many seconds to poll again unless something changes."""
        answer = answer_in(threads.loop.step(polled))
        if not isinstance(answer, FetchBarrierOffsets):
            return given(answer, otherwise_s=math.inf)
        sources = self._plans[polled.region].source_ids
        try:
            if self._barrier_service.discover(sources, threads.loop.step, until_s=until_s):
                return self._poll(threads, polled, until_s)  # the next barrier has the new splits
            cut = self._barrier_service.cut(answer, sources, until_s=until_s)
        except PERMANENT_ERRORS as err:
            self.fail(polled.region, polled.attempt_id, err)
            raise
        actions = [] if cut is None else threads.loop.step(cut)
        return given(answer_in(actions), otherwise_s=self._settings.idle_poll_s)

    def replayable(self, batch: Barrier) -> Barrier:
        """See `sluice.runtime.coordinator.shell.source_service.SourceService.replayable`."""
        return self._barrier_service.replayable(batch)

    def task_inputs(self, region: str, attempt_id: int) -> TaskInputs:
        """See `CoordinatorCore.task_inputs`."""
        return self._ask(lambda core: core.task_inputs(region, attempt_id))

    def is_decided(self, batch: BatchKey) -> bool:
        return self._ask(lambda core: core.is_decided(batch))

    def require_newest(self) -> None:
        self._running().require_newest()

    def is_committed(self, batch: BatchKey) -> bool:
        return self._ask(lambda core: core.is_committed(batch))

    def acknowledge(self, ack: Acknowledgement) -> None:
        failpoint("before-ack")
        self._running().loop.step(Acknowledged(ack=ack))
        failpoint("after-ack")

    def await_committed(self, batch: BatchKey, *, timeout_s: float | None = None) -> None:
        waiter = self._waiters.add(batch)
        try:
            if self._ask(lambda core: core.has_committed(batch)):
                return
            if not waiter.wait(timeout_s):
                raise WaitedTooLongError(
                    "the batch was not committed in time",
                    {"batch": batch, "waited_s": timeout_s},
                    "Call await_committed again; do not write the batch again, it may be decided.",
                )
        finally:
            self._waiters.remove(batch, waiter)

    def fail(self, region: str, attempt_id: int, error: BaseException) -> None:
        """See `sluice.runtime.contracts.Coordinator.fail`. Permanent errors end the job."""
        threads, permanent = self._running(), isinstance(error, PERMANENT_ERRORS)
        if permanent:
            threads.end_if_replaced()
        failed = RegionFailed(
            region=region, attempt_id=attempt_id, error=error, permanent=permanent
        )
        threads.loop.step(failed)
        threads.sweep_soon()

    def register_region(self, registration: RegionRegistration) -> None:
        """Register an attempt of a region, new or ended, with its open work.

        Raises:
            FencedError: the region has a newer attempt, or the job another coordinator.
        """
        self._running().loop.step(RegionRegistered(registration=registration))

    def request_restart(self, region: str) -> RequestedRestart:
        """Request a region's next attempt, which starts once the old one is settled
        (`callback-after-commit`).

        The caller has stopped the region's query. The new ``attempt_id`` is the id of a durable
        record of this run, larger than every earlier one. Never blocks: epochs of other regions may
        be open.

        Raises:
            StreamError: the job has ended.
        """
        threads = self._running()
        answer = threads.dispatcher.expect_restart(region)
        threads.loop.step(RestartRequested(region=region))
        return RequestedRestart(
            answer,
            sweep=threads.sweep_soon,
            sweep_limit_s=self._settings.call_timeout_s,
            clock=self._clock,
        )

    def restart_regions(self, regions: Sequence[str] = ()) -> tuple[str, ...]:
        """Restart these regions, suspended or not; without names, all suspended regions.

        Returns their names. Their engine finds out by `is_live` and `is_suspended`.

        Raises:
            ConfigError: no region is named, and none is suspended.
            WrongJobError: the job has no such region; nothing was changed.
            StreamError: the job has ended.
        """
        actions = self._running().loop.step(RestartCommanded(regions=tuple(regions)))
        (accepted,) = (action for action in actions if isinstance(action, CommandAccepted))
        log.warning("regions restarted by command: regions=%s", ",".join(accepted.regions))
        self._running().sweep_soon()
        return accepted.regions

    def trigger(
        self, kind: CheckpointKind, *, requested_by: str, timeout_s: float | None = None
    ) -> int:
        """Trigger a checkpoint now; returns its id as soon as it has begun."""
        threads = self._running()
        answer = threads.dispatcher.expect_trigger(kind)
        threads.loop.step(TriggerRequested(kind=kind, requested_by=requested_by))
        limit_s = self._settings.timeout_s if timeout_s is None else timeout_s
        return result_within(answer, limit_s, {"kind": kind.value, "waits_for": "trigger"})

    @property
    def requests(self) -> RequestThread:
        """For savepoints, full checkpoints, and stops in order."""
        self._running()
        assert self._requests is not None  # made with the threads
        return self._requests

    def register(self, attempt: RegisteredAttempt) -> float:
        at_s = self._age_clock()
        self._ask(lambda core: core.register(attempt, at_s))
        log.debug("attempt registered: attempt=%s", attempt)
        return self._age_clock()

    # --- queries ----------------------------------------------------------------------------------

    @property
    def plan(self) -> JobPlan:
        """The job that it coordinates."""
        return self._job

    @property
    def started(self) -> StartedJob | None:
        """The result of the start; None before."""
        return self._started

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, well or not."""
        return self._ask(lambda core: core.is_over)

    def is_live(self, region: str, attempt_id: int) -> bool:
        """Whether this attempt of the region runs: it has not failed, expired or restarted."""
        return self._ask(lambda core: core.is_live(region, attempt_id))

    def is_suspended(self, region: str) -> bool:
        """Whether the region has failed for good, and no command has restarted it."""
        return self._ask(lambda core: core.is_suspended(region))

    def why_ended(self, region: str) -> BaseException | None:
        """The error that ended the region's last attempt; None while the first one runs."""
        return self._ask(lambda core: core.why_ended(region))

    @property
    def last_committed(self) -> int:
        """Newest checkpoint with a completion marker."""
        return self._ask(lambda core: core.last_committed)

    @property
    def settled_through(self) -> int:
        """All checkpoints up to this id have a completion marker, or are aborted for good: their
        ids may be used again (`sluice.runtime.contracts.TaskScope.committed_through`)."""
        return self._ask(lambda core: core.settled_through)

    def status(self) -> JobStatus:
        """The state of the job for people; returns within milliseconds."""
        now_s = self._core_clock()
        status, since = self._ask(
            lambda core: (core.status(now_s=now_s, now_ms=wall_ms()), core.open_since())
        )
        waiting = self.waiting_for_resources if status.state == "running" else None
        status = dataclasses.replace(
            status,
            state=status.state if waiting is None else "WAITING_FOR_RESOURCES",
            waiting_for_resources=waiting,
            counters={self._names.get(i, i): found for i, found in status.counters.items()},
            function_records={self._names.get(i, i): n for i, n in status.function_records.items()},
            transactions=self._transactions.views(since),
            election=None if self._election is None else self._election.view(),
        )
        return status if self._watch is None else self._watch.with_lags(status)

    # --- inside -----------------------------------------------------------------------------------

    def _running(self) -> RunThreads:
        if self._threads is None:
            raise UnreachableError(
                "the coordinator has not been started yet", {"job": self._job.name}, "Retry later."
            )
        return self._threads

    def _age_clock(self) -> float:
        return self._clock() + self._slept()

    def _ask(self, question: Callable[[CoordinatorCore], T]) -> T:
        return self._running().loop.ask(question)
