"""A driver process: the coordinator's production code without threads, and its regions."""

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

from sluice.runtime.checkpoint.resumable_attempts import ListedAttempts
from sluice.runtime.contracts import FailureReason, SplitEnumerator
from sluice.runtime.coordinator.committing.commit_steps import RunIdentity
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.coordinator.core.core import CoordinatorCore
from sluice.runtime.coordinator.core.events import (
    Action,
    CoreEvent,
    EndJob,
    FailBatches,
    OrphansSwept,
    Progress,
    RegionRegistered,
    RegionRestarted,
    RemoteAction,
    RestartCommanded,
    RestartRequested,
    ReturnBatches,
    SplitsDiscovered,
    StepFailed,
    StopRequested,
    SweepOrphans,
    Tick,
    TriggerRequested,
)
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.coordinator.shell.attempt_listing import AttemptListing
from sluice.runtime.coordinator.shell.io_executor import IoExecutor
from sluice.runtime.coordinator.start.recovery import with_lineage
from sluice.runtime.coordinator.start.startup import Found, StartSequence
from sluice.runtime.errors import (
    ConfigError,
    IllegalTransitionError,
    LeadershipLostError,
    StorageError,
    StreamError,
)
from sluice.runtime.model.checkpoint_record import (
    CheckpointKind,
    CheckpointRecord,
    RegionRecord,
    StateEntry,
)
from sluice.runtime.model.splits import BatchKey, SplitRange
from tests.kit.fakes import FakeSource
from tests.kit.files.fake_file_system import SimulatedCrashError
from tests.simulation.continuous import ContinuousAttempt, Engine, Task
from tests.simulation.copies import Copies
from tests.simulation.files import FILES, Staging, make_file_sink, open_files
from tests.simulation.job_plan import plan_of
from tests.simulation.kafka import make_sink
from tests.simulation.led import takeover_of
from tests.simulation.people import RegionBrokenError
from tests.simulation.rewriting import Rewriter
from tests.simulation.run_watch import RunWatch
from tests.simulation.spark import Life
from tests.simulation.state_logs import require_way_back

if TYPE_CHECKING:
    from tests.simulation.world import World

_START_S = 60.0
_SHORT_START_S = 0.5
_IDLE_S = 0.1
_SELDOM = 0.12


class _Source(FakeSource):
    """It becomes bounded in the calm. Its end then has all partitions that exist. The end of a
    source that is bounded from its start has those that one run has found."""

    def is_finished(self, positions: Sequence[SplitRange]) -> bool:
        """See `SplitEnumerator.is_finished`."""
        return self.known >= set(self.ends) and super().is_finished(positions)


class Process:
    """One driver process: a coordinator with its regions, from its start to its kill.

    ``wish``: the checkpoint that it was asked to go back to.
    """

    def __init__(self, world: "World", number: int, wish: int | None = None) -> None:
        self.world = world
        self.number = number
        self.wish = wish
        self.session = f"session-{number}"
        self._plan = plan_of(world.profile, world.random)
        self.paused = False
        self.dead = False
        self.error: BaseException | None = None
        self.finished = False
        self.results: dict[BatchKey, BaseException | None] = {}
        self.attempts: list[Life | ContinuousAttempt] = []
        self.core: CoordinatorCore
        self.found: Found
        self.staging: Staging
        self.engine: Engine
        self.source = _Source("source", world.ends, bounded=False)
        self._sinks: dict[str, SerialSink] = {}
        if not world.profile.only_files:
            self._sinks["sink"] = SerialSink(make_sink(self))
        if self._plan.regions[0].follows:
            self.engine = Engine(self)
            self._sinks["sink"].tasks_first = self.engine.tasks_first
        if world.profile.files:
            fs = open_files(world)
            self._sinks[FILES] = SerialSink(make_file_sink(world, fs))
            self.staging = Staging(self, fs)
        self._store = world.open_store()
        self._settings = world.draw_settings()
        self._sources: dict[str, SplitEnumerator] = (
            {} if world.profile.external else {"source": self.source}
        )
        self._rewriter = Rewriter(self)
        self._queue: list[RemoteAction] = []
        self._at_work_for = 0
        self._working: Generator[str, None, CoreEvent | None] | None = None
        self._sweeping: Generator[str, None, int] | None = None
        self.left_out: list[FailureReason] = []
        self.suspended: list[str] = []
        self._sweeps_asked: list[Callable[[], object]] = []  # called after the next sweep
        self._sweeps_begun: list[Callable[[], object]] = []
        self._restarting: set[str] = set()
        self._joined: dict[tuple[str, int], Task] = {}
        self.copies = Copies(self)
        # Threads that have something to do whenever they like.
        self._seldom = (self._tick, self._tick, self._tick, self._tick, self._sweep, self._renew)
        self._begin = self._start()
        self.running = False
        self.watch = RunWatch(self)

    # --- starting ---------------------------------------------------------------------------------

    def _start(self) -> Generator[None, None, None]:
        sequence = StartSequence(
            plan=self._plan,
            settings=self._settings,
            store=self._store,
            sinks=self._sinks,
            sources=self._sources,
            session=self.session,
            clock=self.world.clock,
            pause=self.world.nap,
            wall_ms=lambda: self.number,
            repairer=self._rewriter,
            require_restorable=self._require_way_back,
            takeover=takeover_of(self, self._joined) if self.world.profile.outlived else None,
            require_elected=self._require_elected,
        )
        timeout_s = _SHORT_START_S if self.world.profile.accepted else _START_S
        steps = sequence.run(timeout_s=timeout_s, restore_from=self.wish)
        while True:
            yield
            try:
                self.world.reached(self, next(steps))
            except StopIteration as end:
                self.found = end.value
                break
        self.world.watch.started(self.found.record.checkpoint_id, self.found.attempt_id)
        records = self.found.regions
        if (self.world.profile.shared or self.world.profile.topic) and self.is_newest():
            self.world.watch.shares(self.found.lineage, records.values())
        self.core = CoordinatorCore(
            self._settings,
            self._plan.regions,
            records,
            assignment=self.found.assignment,
            attempt_id=self.found.attempt_id,
            last_decided=self.found.record.checkpoint_id,
            draw=self.world.random.random,
            resumed=self.found.started(self.session, records).resumed,
        )
        listing = None
        if sequence.takeover is not None:
            listing = AttemptListing(
                sequence.takeover.attempts,
                self.core.open_attempts,
                listed=ListedAttempts(
                    run_attempt_id=self.found.attempt_id,
                    resumed_from=self.found.record.checkpoint_id,
                    attempts=self.core.open_attempts(),
                ),
            )
        self._io_executor = IoExecutor(
            store=self._store,
            sinks=self._sinks,
            sources=self._sources,
            identity=RunIdentity(
                plan=with_lineage(self._plan, self.found.lineage, attempt_id=self.found.attempt_id),
                job_uid=self.found.record.job_uid,
                session=self.session,
                attempt_id=self.found.attempt_id,
                run_attempt=self.found.run_attempt,
                restored_from=self.found.record.checkpoint_id,
            ),
            settings=self._settings,
            age_clock=self.world.ages,
            wall_ms=lambda: self.number,
            repairer=self._rewriter,
            kept=self.found.kept,
            on_copy=self.copies.begin,
            listing=listing,
        )
        for record in records.values():
            found = self.found.resumed.get(record.region)
            if found is None:
                self._live(record, self.found.attempt_id)
            else:
                task = self._joined[record.region, found.attempt_id]
                self.attempts.append(ContinuousAttempt.resumed(self, record, task))
        self.running = True

    @property
    def keeps_state_logs(self) -> bool:
        """Whether Spark's logs and state are played: a drop-in query's are its own."""
        return self.world.profile.stateful and not self.world.profile.external

    def _require_way_back(self, record: CheckpointRecord) -> None:
        if self.keeps_state_logs:
            require_way_back(self.world, self.regions, record)

    def _require_elected(self) -> None:
        """The newest lease is read here; its holder is the process that was started last."""
        if self.world.profile.led and self.number < len(self.world.processes):
            raise LeadershipLostError("another process leads", {"number": self.number}, "Wait.")

    def require_newest(self) -> None:
        """As the callback of a replayed batch does before it returns."""
        self._io_executor.require_newest()

    def is_newest(self) -> bool:
        """Whether no other process has begun a run after this one."""
        last = self.world.history[-1:]
        return all(record.leader_session_id == self.session for record in last)

    def _live(self, record: RegionRecord, attempt_id: int) -> None:
        if self._plan.regions[0].follows:
            self.attempts.append(ContinuousAttempt(self, record, attempt_id))
            return
        first = 1
        if self.world.profile.external:
            first = max(self.world.spark.committed, default=0) + 1
        self.attempts.append(Life(self, record, attempt_id, first))

    def _live_again(self, record: RegionRecord, attempt_id: int) -> None:
        """After a sweep, as `RequestedRestart` has it; not for ever, where brokers are away."""
        if self.world.fault(self.world.profile.unreached, "a broker keeps a sweep too long"):
            self._live(record, attempt_id)
        else:
            self._sweeps_asked.append(lambda: self._live(record, attempt_id))

    # --- running ----------------------------------------------------------------------------------

    def step(self) -> None:
        """One step of one of its threads."""
        try:
            if not self.running:
                next(self._begin, None)
                return
            self._move()
        except StreamError as err:
            self._end(err)
        except SimulatedCrashError:
            self.world.kill(self)
        self.world.watch.require_unbroken()

    def _end(self, error: StreamError) -> None:
        self.error = error
        self.dead = True
        self.world.note(f"coordinator {self.number} ends: {error.args[0]}")
        self.world.people.hear(self)

    def renew(self) -> None:
        """What its own thread does every few seconds, independent of the other threads."""
        try:
            self._renew()
        except StreamError as err:
            self._end(err)

    def _move(self) -> None:
        world = self.world
        living = [attempt for attempt in self.attempts if not attempt.dead]
        if living and world.roll(world.profile.fail_region):
            self._fail(world.random.choice(living))
            return
        if world.profile.suspend and self._is_commanded():
            self._command()
            return
        if world.roll(world.profile.asked) and not self.core.is_over:
            self._ask(living)
            return
        world.sleep()
        drawn = world.random.random()
        if drawn < _SELDOM:
            self._seldom[int(drawn / _SELDOM * len(self._seldom))]()
            return
        now_s = world.clock()
        ready: list[Callable[[], None]] = [
            attempt.step for attempt in living if attempt.is_awake(now_s)
        ]
        if self._working is not None or self._queue:
            ready += (self._work, self._work)
        if self._sweeping is not None or self._sweeps_asked:
            ready.append(self._sweep)
        if self.copies.are_due:
            ready.append(self.copies.end)
        if len(living) < len(self.attempts):
            ready.append(self._restart_dead)
        if ready:
            world.random.choice(ready)()
        else:
            world.clock.advance(_IDLE_S)
            self._tick()

    def _tick(self) -> None:
        """The clock ticks: at any move of the rough time, and in the calm when the core has asked for
        it."""
        if self.world.calm:
            due_s = self.core.deadline_s()
            if due_s is None or due_s > self.world.clock():
                return
        self.tell(Tick())

    def _renew(self) -> None:
        if self.running:
            self._require_elected()
        for sink in self._sinks.values():
            sink.renew()

    def _fail(self, attempt: Life | ContinuousAttempt) -> None:
        """An attempt fails, at times permanently."""
        self.world.note(f"region {attempt.region} fails")
        is_for_good = self.world.profile.suspend and self.world.roll(0.3)
        error = RegionBrokenError("no use") if is_for_good else RuntimeError("failed four times")
        attempt.fail(error, permanent=is_for_good)

    def require_no_bug(self, attempt: Life | ContinuousAttempt, error: BaseException) -> None:
        """`IllegalTransitionError` is a bug if the attempt is live and no later run has fenced it. After
        its end another process may have swept its open work."""
        if isinstance(error, IllegalTransitionError):
            is_ours = self.is_newest() and self.core.is_live(attempt.region, attempt.attempt_id)
            self.world.require(not is_ours, f"a bug in a living region: {error}")

    def _ask(self, living: list[Life | ContinuousAttempt]) -> None:
        drawn = self.world.random.random()
        if drawn < 0.3:
            self.copies.request()
        elif drawn < 0.5:
            kind = self.world.random.choice((CheckpointKind.SAVEPOINT, CheckpointKind.FULL))
            self.world.note(f"somebody asks for a {kind.value} checkpoint")
            self.tell(TriggerRequested(kind=kind, requested_by="person"))
        elif drawn < 0.9 and living:
            attempt = self.world.random.choice(living)
            self.world.note(f"region {attempt.region} shall begin again")
            attempt.end()
            self._restarting.add(attempt.region)
            self.tell(RestartRequested(region=attempt.region))
        elif drawn >= 0.9:
            self.world.note("somebody stops the job")
            self.tell(StopRequested())

    def _is_commanded(self) -> bool:
        if self.core.is_over:
            return False
        if self.world.calm:
            is_watched = self.world.seed % 2 and any(map(self.core.is_suspended, self.regions))
            return bool(is_watched) and self.world.random.random() < 0.1
        return self.world.roll(self.world.profile.command)

    def _command(self) -> None:
        names = self.world.random.sample(self.regions, self.world.random.randint(0, 2))
        try:
            self.core.is_over or self._commanded(RestartCommanded(regions=tuple(names)))
        except ConfigError:
            return  # none is named, and none is suspended; or the job stops

    def _commanded(self, event: RestartCommanded) -> None:
        suspended = [name for name in self.regions if self.core.is_suspended(name)]
        self.tell(event, raises=True)
        self.suspended += suspended

    @property
    def regions(self) -> list[str]:
        """Their names, in this run."""
        return [plan.name for plan in self._plan.regions]

    def _work(self) -> None:
        """The step thread: one remote step up to its next point."""
        if self._working is None:
            if not self._queue:
                return
            action = self._queue.pop(0)
            self._at_work_for = getattr(action, "checkpoint_id", 0)
            self._working = self._io_executor.perform(action)
        try:
            self.world.reached(self, next(self._working))
        except StopIteration as end:
            self._working = None
            if end.value is not None:
                self.tell(end.value)
        except StreamError as err:
            self._working = None
            self.tell(StepFailed(checkpoint_id=self._at_work_for, error=err))

    @property
    def waiting_actions(self) -> tuple[RemoteAction, ...]:
        """The next actions of its step thread; none while it works."""
        return () if self._working is not None else tuple(self._queue)

    def retire_step(self) -> bool:
        """One step of its step thread; whether its action is not complete yet."""
        self._work()
        return self._working is not None

    def _sweep(self) -> None:
        if self._sweeping is None:
            if self.world.profile.outlived:  # its tasks have left it, and would tell it nothing
                self._io_executor.require_newest()
            view = self.core.sweep_view(self.found.record.job_uid)
            self._sweeping = self._io_executor.sweep(view)
            self._sweeps_begun, self._sweeps_asked = self._sweeps_asked, []
        try:
            is_over = next(self._sweeping, None) is None
        except StorageError:  # the housekeeper tries again later
            if not self.world.profile.outlived:
                raise  # nothing in these worlds makes a sweep fail
            self._sweeping = None
            self._sweeps_asked = [*self._sweeps_begun, *self._sweeps_asked]
            self._sweeps_begun = []
            return
        if is_over:
            self._sweeping = None
            for swept in self._sweeps_begun:
                swept()

    def _restart_dead(self) -> None:
        dead = [attempt for attempt in self.attempts if attempt.dead]
        for attempt in [attempt for attempt in dead if not self.core.is_suspended(attempt.region)]:
            if attempt.region not in self._restarting and not self.core.is_over:
                self._restarting.add(attempt.region)
                self.tell(RegionRegistered(registration=attempt.registration()))
                self.tell(RestartRequested(region=attempt.region))
                return

    def discover(self) -> None:
        """A region that asks for its barrier looks for new splits first."""
        found = self.source.discover(timeout_s=1)
        if found:
            self.tell(SplitsDiscovered(source_id="source", splits=found))

    def tell(self, event: CoreEvent, *, raises: bool = False) -> list[Action]:
        """Give the core an event and carry out what does not block."""
        self.watch.told(event)
        try:
            actions = self.core.step(event, self.world.clock(), slept_s=self.world.slept_s)
        except StreamError:
            if raises:
                raise
            return []
        self.watch.took(event)
        for action in actions:
            self._carry_out(action)
        return actions

    def _carry_out(self, action: Action) -> None:
        self.watch.ordered(action)
        self.copies.ordered(action)
        if isinstance(action, RemoteAction):
            self._queue.append(action)
        elif isinstance(action, Progress):
            if action.state is State.DECIDED:
                self.left_out += action.skipped.values()
        elif isinstance(action, SweepOrphans):
            swept = OrphansSwept(checkpoint_id=action.checkpoint_id)
            self._sweeps_asked.append(lambda: self.tell(swept))
        elif isinstance(action, ReturnBatches):
            self.results |= dict.fromkeys(action.batches)
            for attempt in self.attempts:
                attempt.returns(action.batches)
        elif isinstance(action, FailBatches):
            self.results |= dict.fromkeys(action.batches, action.error)
        elif isinstance(action, RegionRestarted):
            self._restarting.discard(action.region)
            self.attempts = [
                attempt for attempt in self.attempts if attempt.region != action.region
            ]
            self._live_again(action.restored, action.attempt_id)
        elif isinstance(action, EndJob):
            self.error = action.error
            self.finished = action.finished and action.error is None
            self.world.note(f"the job of coordinator {self.number} ends: {action.error or 'whole'}")
            self.world.people.hear(self)

    def abort_at_the_broker(self, entries: list[StateEntry], *, timeout_s: float) -> None:
        """Abort rewritten work that will not be recorded."""
        with self._sinks["sink"].committing() as committer:
            committer.abort(entries, timeout_s=timeout_s)

    def is_stuck(self) -> bool:
        """Whether it makes no further move."""
        return self.dead or (
            self.running and self.core.is_over and self.core.is_idle and not self._queue
        )
