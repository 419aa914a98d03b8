"""Leads one job from a process without Spark: takes it over, and runs it through region hosts."""

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.resumable_attempts import ResumableAttempts
from sluice.runtime.checkpoint.run_record import RunRecord, RunRecordStore
from sluice.runtime.checkpoint.succession import has_last_record
from sluice.runtime.continuous.barrier_service import AttemptEpochs, BarrierService
from sluice.runtime.continuous.native_commits import LostTimeout, NativeCommits, TasksFirst
from sluice.runtime.contracts import RegionAttempt, RegionRegistration, SplitEnumerator
from sluice.runtime.coordinator.policy.checkpoint_plan import StartedJob
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.coordinator.shell.operator_commands import JobCommands
from sluice.runtime.coordinator.start.restoring import RestoreRequest
from sluice.runtime.coordinator.start.takeover import Takeover
from sluice.runtime.election.leader_election import LeaderElection
from sluice.runtime.errors import (
    FencedError,
    NotLeaderError,
    StorageError,
    StreamError,
    UnreachableError,
)
from sluice.runtime.graph.job_graph import Region
from sluice.runtime.history.job_history import JobHistory
from sluice.runtime.leading.region_hosts import AssignedRegion, RegionHosts
from sluice.runtime.service.coordinator_app import CoordinatorApp
from sluice.runtime.service.error_json import error_to_json
from sluice.runtime.service.hosting.host_messages import (
    HOSTS_KEY,
    AttemptReport,
    FixedEnd,
    HostAnswer,
    RunTopic,
)
from sluice.runtime.service.listening.listener import Listener
from sluice.runtime.service.metrics import job_registry
from sluice.runtime.service.page.live_job import LiveJob
from sluice.runtime.service.server import CoordinatorService
from sluice.runtime.service.service_messages import (
    AttemptMessage,
    EpochMessage,
    Message,
    NextBarrierMessage,
)
from sluice.runtime.spark.run.attempt_supervisor import RegionAttempts
from sluice.runtime.spark.run.hosting.job_description import JobDescription, coordinator_of
from sluice.runtime.spark.run.job_topics import prepared_topics
from sluice.runtime.spark.run.restore_request import request_of
from sluice.runtime.storage.file_system import OpenFileSystem
from sluice.runtime.storage.file_system_opening import absolute_uri

__all__ = ["JobLeader", "LeaderSettings"]

log = logging.getLogger(__name__)

_WATCH_S = 0.1
_RESTART_POLL_S = 0.02
_TELL_S = 10.0
_FOREVER_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderSettings:
    """How a leader deals with its hosts.

    Attributes:
        report_timeout_s: it waits so long for the reports of hosts; regions without one restart.
        host_timeout_s: a host that is silent for so long is lost.
        hosts: the first start of a job starts no region before so many hosts have joined; a later
            one waits for them as long as for reports.
        start_timeout_s: for its start, without the wait for reports.
    """

    report_timeout_s: float = 10.0
    host_timeout_s: float = 10.0
    hosts: int = 1
    start_timeout_s: float = 120.0


class _LeaderApp(CoordinatorApp):
    """Answers tasks only once their attempts are resumed: until then they repeat their messages.

    A coordinator that leads no more refuses every message. For a task of a region host that is no
    end: its host sends the message to the next leader.
    """

    is_ready = False

    def _next_barrier(self, body: NextBarrierMessage) -> dict[str, Any]:
        with self._led():
            return super()._next_barrier(body)

    def _epochs(self, body: EpochMessage) -> dict[str, Any]:
        with self._led():
            return super()._epochs(body)

    def _attempts(self, body: AttemptMessage) -> dict[str, Any]:
        with self._led():
            return super()._attempts(body)

    @contextlib.contextmanager
    def _led(self) -> Iterator[None]:
        try:
            yield
        except FencedError as err:
            if self._coordinator is not None and self._coordinator.status().state == "fenced":
                raise NotLeaderError(
                    "this coordinator leads the job no more",
                    {"leader_session_id": self.session},
                    "Send the message to the next leader.",
                ) from err
            raise

    def _of(self, body: Message) -> BarrierCoordinator:
        found = super()._of(body)
        if not self.is_ready:
            raise UnreachableError("the new leader takes the job over", {}, "Send it again.")
        return found


@dataclass(slots=True)
class JobLeader:
    """One leadership of one job. Coordinator process; `run` in one thread, once.

    Args:
        description: of the job.
        store: its checkpoint directory.
        election: that this process has won; None: nothing is elected, and a start takes over.
        listener: of the service.
        open_fs: opens the directory of a savepoint.
        settings: for hosts.
        on_step: called with the name of each step of the start, see `BarrierCoordinator.start`.
        check: called between two steps after it. Both may raise to end the leadership; the job then
            continues without this process, which must end.
        on_leading: called with the address of the service, once the start is over.
        keep_description: puts ``description`` into the checkpoint directory again.
    """

    description: JobDescription
    store: CheckpointStore
    election: LeaderElection | None
    listener: Listener
    open_fs: OpenFileSystem
    settings: LeaderSettings = field(default_factory=LeaderSettings)
    on_step: Callable[[str], None] = lambda _: None
    check: Callable[[], None] = lambda: None
    on_leading: Callable[[str], None] = lambda _: None
    keep_description: Callable[[], None] = lambda: None
    _reports: Sequence[AttemptReport] = ()
    _awaited_hosts: int = 1

    def run(self) -> None:
        """Lead until the job ends.

        Raises:
            NotLeaderError: a later coordinator leads, or a remote call failed before this one did.
                Tasks continue, so this process must end without a word to them.
            StreamError: the error that ended the job; each host raises it, too.
        """
        with contextlib.ExitStack() as stack:
            led = self._made(stack)
            try:
                self._lead(led, self._begun(led, stack))
            except NotLeaderError:
                raise
            except StreamError as err:
                led.end("failed", err)
                raise
            led.end(led.coordinator.status().state)

    def _made(self, stack: contextlib.ExitStack) -> "_Led":
        description = self.description
        commits, lost_timeout = NativeCommits(), LostTimeout(description.lost_timeout_s)
        history = JobHistory(self.store.fs, lambda: coordinator.status(), savepoints=list)
        stack.enter_context(history)
        hosts = RegionHosts(
            description.digest,
            timeout_s=self.settings.host_timeout_s,
            fixed_ends=lambda source_id: _ends_of(sources[source_id]),
            before_refusal=self.keep_description,
        )
        coordinator, sources = coordinator_of(
            description,
            self.store,
            listeners=[history],
            tasks_first=TasksFirst(
                commits, lost_timeout, between_barriers_s=description.between_barriers_s
            ),
            open_fs=self.open_fs,
            election=self.election,
            takeover=Takeover(
                attempts=ResumableAttempts(self.store.fs),
                collect=lambda own, regions: self._collect(led, stack, own, regions),
            ),
        )
        barrier_service = BarrierService(coordinator, commits)
        app = _LeaderApp(
            coordinator,
            commands=JobCommands(coordinator, hosts=None),
            barrier_service=barrier_service,
            registry=job_registry(coordinator, history_failures=lambda: history.write_failures),
            pages=LiveJob(
                coordinator, checkpoint_uri=absolute_uri(self.store.fs.uri), history=history.view
            ),
        )
        app.mount(HOSTS_KEY, hosts)
        handles = {
            each.name: AssignedRegion(each.name, each.functions or (), hosts, barrier_service)
            for each in description.regions
        }
        led = _Led(
            coordinator=coordinator,
            hosts=hosts,
            app=app,
            handles=handles,
            attempts=RegionAttempts(coordinator, handles, outage_limit_s=_FOREVER_S),
            lost_timeout=lost_timeout,
            history=history,
            service=stack.enter_context(CoordinatorService(app, listener=self.listener)),
        )
        return led

    def _collect(
        self, led: "_Led", stack: contextlib.ExitStack, own_attempt: int, regions: Collection[str]
    ) -> list[RegionRegistration]:
        """The fencing record is durable: let hosts find this leader, and wait for their reports."""
        records, is_newest = RunRecordStore(self.store.fs), self._is_newest(led)
        # A job that has run continues on the hosts that are left: the others may never come back.
        self._awaited_hosts = 1 if regions else self.settings.hosts
        stack.enter_context(
            records.accept_hosts(_run_record(led, own_attempt), is_newest=is_newest)
        )
        self._reports = led.hosts.collect(
            regions,
            hosts=self.settings.hosts if regions else 0,
            timeout_s=self.settings.report_timeout_s,
        )
        return [report.registration for report in self._reports]

    def _is_newest(self, led: "_Led") -> Callable[[], bool]:
        return partial(has_last_record, self.store, session=led.coordinator.session)

    def _announce(self, led: "_Led", started: StartedJob, stack: contextlib.ExitStack) -> None:
        """Let people and tools find this leader."""
        records, is_newest = RunRecordStore(self.store.fs), self._is_newest(led)
        token = led.service.command_address.token
        run = replace(_run_record(led, started.attempt_id), token=token)
        records.announce(run, is_newest=is_newest)
        stack.enter_context(records.accept_commands(run, is_newest=is_newest))
        if self.election is not None:
            self.election.announce(run)

    def _begun(self, led: "_Led", stack: contextlib.ExitStack) -> StartedJob:
        """As `_started`. If a server is away, the job lives on: another coordinator may start."""
        try:
            return self._started(led, stack)
        except (StorageError, UnreachableError) as err:
            raise NotLeaderError(
                "a coordinator could not take over",
                {"leader_session_id": led.coordinator.session, "reason": str(err)},
                "Start the coordinator again. Tasks of an earlier one continue meanwhile.",
            ) from err

    def _started(self, led: "_Led", stack: contextlib.ExitStack) -> StartedJob:
        """Start the coordinator, and resume attempts of an earlier one."""
        started = led.coordinator.start(
            timeout_s=self.settings.start_timeout_s,
            restore_from=self._origin(),
            on_step=self.on_step,
        )
        led.history.begin(
            {
                "attempt_id": started.attempt_id,
                "run_attempt": started.run_attempt,
                "restored_from": started.restored_from,
            }
        )
        led.hosts.topics = self._topics(started)
        self._announce(led, started, stack)
        reports = {(each.region, each.attempt_id): each for each in self._reports}
        for region in self.description.regions:
            attempt_id = started.resumed.get(region.name)
            if attempt_id is not None:
                led.resume(region, started, reports[region.name, attempt_id])
        led.app.is_ready = True
        led.publish(started)
        log.info(
            "leader started: session=%s attempt_id=%d resumed=%s",
            started.session,
            started.attempt_id,
            ",".join(f"{name}.{found}" for name, found in started.resumed.items()),
        )
        self.on_leading(led.service.address)
        return started

    def _topics(self, started: StartedJob) -> tuple[RunTopic, ...]:
        """Create or check the repartition topics before any region begins or resumes."""
        found = prepared_topics(self.description.regions, started, self.description.uid)
        return tuple(RunTopic.of(source_id, topic) for source_id, topic in found.items())

    def _origin(self) -> RestoreRequest | int | None:
        """Each leader repeats the request. The start executes it once: a later leader finds it on
        record, and continues from the newest decision."""
        description = self.description
        return request_of(
            description.restore_from,
            description.restore_rules,
            description.clusters,
            self.store.fs,
            open_at=self.open_fs,
            analyses={},  # no region has Spark's state
        )

    def _lead(self, led: "_Led", started: StartedJob) -> None:
        while not led.hosts.await_hosts(self._awaited_hosts, timeout_s=_WATCH_S):
            self.check()
        for name, record in started.regions.items():
            if name not in started.resumed:
                after = started.restored_from or 0
                attempt = RegionAttempt(attempt_id=started.attempt_id, restored=record, after=after)
                led.attempts.add(attempt, is_begun=False)
        while not led.coordinator.wait(
            timeout_s=_RESTART_POLL_S if led.attempts.is_restarting else _WATCH_S
        ):
            self.check()
            led.hosts.watch()
            led.attempts.watch()
            led.publish(started)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Led:
    """The parts of a leadership."""

    coordinator: BarrierCoordinator
    hosts: RegionHosts
    app: _LeaderApp
    handles: Mapping[str, AssignedRegion]
    attempts: RegionAttempts
    lost_timeout: LostTimeout
    history: JobHistory
    service: CoordinatorService

    def resume(self, region: Region, started: StartedJob, report: AttemptReport) -> None:
        """Continue an attempt: its task acknowledges nothing twice, and its undecided epoch joins
        the next checkpoint."""
        record = started.regions[region.name]
        epochs = AttemptEpochs.resumed(
            region.name, report.attempt_id, region.functions or (), record
        )
        self.handles[region.name].resume(epochs, self.hosts.host_of(report))
        attempt = RegionAttempt(
            attempt_id=report.attempt_id, restored=record, after=started.restored_from or 0
        )
        self.attempts.add(attempt, is_begun=True)
        try:
            for each in report.registered:
                with contextlib.suppress(FencedError):  # it is decided already
                    self.coordinator.register(each)
            for result in report.epochs:
                if not epochs.is_decided(result.batch):
                    epochs.acknowledge(self.coordinator, result)
        except StreamError as err:
            self.coordinator.fail(region.name, report.attempt_id, err)

    def publish(self, started: StartedJob) -> None:
        """Answer hosts with this from now on."""
        self.hosts.publish(
            HostAnswer(
                is_known=False,
                clock_s=0.0,
                job_uid=started.job_uid,
                lost_timeout_s=self.lost_timeout.seconds,
                last_committed=self.coordinator.last_committed,
            )
        )

    def end(self, state: str, error: StreamError | None = None) -> None:
        """The job has ended: end its attempts, settle decided work, and let the hosts know."""
        self.attempts.stop()
        last = self.coordinator.last_committed if self.coordinator.started else 0
        self.coordinator.stop()
        self.hosts.publish(
            HostAnswer(
                is_known=False,
                clock_s=0.0,
                job_uid=""
                if self.coordinator.started is None
                else self.coordinator.started.job_uid,
                last_committed=last,
                end=state,
                error=None if error is None else error_to_json(error),
            )
        )
        self.hosts.await_end_told(_TELL_S)


def _run_record(led: _Led, attempt_id: int) -> RunRecord:
    """For hosts: with the token of tasks."""
    work = led.service.coordinator_address
    return RunRecord(
        leader_session_id=led.coordinator.session,
        address=led.service.address,
        attempt_id=attempt_id,
        job_uid=work.job_uid,
        token=work.token,
        ca=work.ca,
    )


def _ends_of(source: SplitEnumerator) -> tuple[FixedEnd, ...] | None:
    found = source.fixed_ends()
    if found is None:
        return None
    return tuple(FixedEnd(split=split, end_offset=end) for split, end in found.items())
