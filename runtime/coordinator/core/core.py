"""The coordinator's decisions: a pure state machine. Events and the clock in, actions out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sluice.runtime.contracts import RegisteredAttempt, SweepView
from sluice.runtime.coordinator.core import (
    acknowledgements,
    alignment,
    failed_steps,
    post_commit,
    region_attempts,
    requested_checkpoint,
)
from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState, JobPhase
from sluice.runtime.coordinator.core.events import (
    AbortedWork,
    Acknowledged,
    Action,
    BarrierPolled,
    CheckpointRequested,
    CommitReported,
    CoreEvent,
    FilesCopied,
    Marked,
    OrphansSwept,
    Published,
    RegionBarrierOffsets,
    RegionFailed,
    RegionRegistered,
    Repaired,
    RestartCommanded,
    RestartRequested,
    SplitsDiscovered,
    StepFailed,
    StopRequested,
    Tick,
    TriggerRequested,
)
from sluice.runtime.coordinator.core.pending_checkpoint import RemoteStep
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, RegionPlan
from sluice.runtime.coordinator.policy.state_tables import DECIDED_OPEN, State
from sluice.runtime.coordinator.region.job_time import JobTime
from sluice.runtime.coordinator.region.region_pace import Pace
from sluice.runtime.coordinator.region.region_state import (
    Fate,
    RegionState,
    RegisteredAttempts,
    region_of,
)
from sluice.runtime.coordinator.region.status_views import (
    CheckpointStatus,
    JobStatus,
    region_view,
)
from sluice.runtime.errors import FencedError
from sluice.runtime.functions.record_counts import counter_totals, record_totals
from sluice.runtime.model.checkpoint_record import Assignment, RegionRecord
from sluice.runtime.model.json_text import well_formed
from sluice.runtime.model.rate_limit import RateEstimator
from sluice.runtime.model.splits import BatchKey, SplitRange
from sluice.runtime.model.state.task_inputs import TaskInputs

__all__ = ["CoordinatorCore"]


class CoordinatorCore:
    """Decides for one job. Called by one thread; does no I/O and reads no clock.

    Args:
        settings: when checkpoints are taken.
        plans: the job's regions.
        records: last decided record of each region, its splits handed over.
        assignment: of splits to regions, as decided.
        attempt_id: of this run: the id of its first own record (its fencing record, or checkpoint
            0).
        last_decided: newest decided checkpoint; all of them are committed on record by now.
        draw: a random number in [0, 1): it spreads restarts.
        resumed: attempts of an earlier coordinator that continue, by region; every other region
            begins with ``attempt_id``.
    """

    def __init__(
        self,
        settings: CheckpointSettings,
        plans: Sequence[RegionPlan],
        records: Mapping[str, RegionRecord],
        *,
        assignment: Assignment,
        attempt_id: int,
        last_decided: int,
        draw: Callable[[], float],
        resumed: Mapping[str, int] | None = None,
    ) -> None:
        attempts = resumed or {}
        self._registered = RegisteredAttempts()
        self._state = CoordinatorState(
            settings=settings,
            regions={
                plan.name: RegionState(
                    plan=plan,
                    attempt_id=attempts.get(plan.name, attempt_id),
                    record=records[plan.name],
                    pace=Pace(limit=settings.first_epoch_records),
                    rate=_estimator(plan, settings),
                    completed_in=_completed_in(records[plan.name], last_decided),
                )
                for plan in plans
            },
            assignment=assignment,
            last_slot=attempt_id,
            next_id=attempt_id + 1,
            last_committed=last_decided,
            last_decided=last_decided,
            draw=draw,
            time=JobTime.restored(plans, records.values()),
        )
        self._state.planned = self._state.decided_broadcasts()

    def step(
        self, event: CoreEvent, now_s: float, *, slept_s: float = 0.0, wall_ms: int = 0
    ) -> list[Action]:
        """Take in one event; return the actions, in order. A refused event raises.

        ``slept_s``: how long the host has slept, which ``now_s`` leaves out; ages include it.
        ``wall_ms``: the wall clock, for barriers.

        Raises:
            FencedError: the sender's attempt is over.
            IllegalTransitionError: a bug, here or in the sender.
        """
        state = self._state
        if state.is_fenced and not isinstance(event, _REQUESTS):
            return []
        state.open_step(slept_s, wall_ms)
        if not isinstance(event, _ROUTINE):
            state.drop_cached_views()
        _HANDLERS[type(event)](state, event, now_s)
        if not state.is_fenced:
            actions = len(state.out)
            post_commit.drive(state, now_s)
            alignment.trigger_due(state, now_s)
            if len(state.out) > actions:  # the next step of a new checkpoint may be due already
                post_commit.drive(state, now_s)
        return state.close_step()

    def deadline_s(self) -> float | None:
        """When the next `Tick` is due, if time alone can make something due."""
        if self._state.is_fenced:
            return None
        moments = (
            alignment.next_trigger_s(self._state),
            post_commit.next_step_s(self._state),
            requested_checkpoint.deadline_s(self._state),
        )
        return min((moment for moment in moments if moment is not None), default=None)

    # --- views ------------------------------------------------------------------------------------

    @property
    def last_committed(self) -> int:
        """Newest checkpoint that is committed on record."""
        return self._state.last_committed

    @property
    def settled_through(self) -> int:
        """Every checkpoint id up to this one is committed on record, or aborted for good."""
        return min(self._state.pending, default=self._state.next_id) - 1

    @property
    def is_idle(self) -> bool:
        """Whether no checkpoint under way can make progress by itself."""
        return self._state.is_fenced or all(
            p.remote is RemoteStep.HALTED for p in self._state.pending.values()
        )

    @property
    def is_fenced(self) -> bool:
        """Whether another session has taken over."""
        return self._state.is_fenced

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self._state.is_over

    def is_live(self, region: str, attempt_id: int) -> bool:
        """Whether this attempt of the region is current."""
        found = region_of(self._state.regions, region)
        return found.is_open and found.attempt_id == attempt_id

    def is_suspended(self, region: str) -> bool:
        """Whether the region has failed for good, and no command has restarted it."""
        return self._state.regions[region].is_suspended

    @property
    def suspended(self) -> tuple[str, ...]:
        """The suspended regions."""
        return tuple(name for name, found in self._state.regions.items() if found.is_suspended)

    def why_ended(self, region: str) -> BaseException | None:
        """Why the region's last attempt ended; None: its first one is current."""
        return self._state.regions[region].ended_by

    def pending_ratios(self, now_s: float) -> dict[str, float]:
        """`PendingTime.ratio` by region, except suspended ones."""
        return self._state.pending_ratios(now_s)

    def task_inputs(self, region: str, attempt_id: int) -> TaskInputs:
        """What an attempt's functions begin with; FencedError if it is over."""
        found = region_of(self._state.regions, region)
        found.require(attempt_id)
        versions = self._state.planned
        if not found.plan.follows:
            versions = () if found.barrier is None else found.barrier.broadcasts
        reads = found.plan.reads
        return TaskInputs(
            states=found.record.operator_states,
            broadcasts=tuple(v for v in versions if v.operator_id in reads),
        )

    def open_attempts(self) -> dict[str, int]:
        """The attempts that have not ended, by region."""
        regions = self._state.regions.items()
        return {name: region.attempt_id for name, region in regions if region.is_open}

    def positions(self) -> dict[str, tuple[SplitRange, ...]]:
        """The start of each region's next epoch; for a suspended one, of its next attempt."""
        return {name: region.positions() for name, region in self._state.regions.items()}

    def is_decided(self, batch: BatchKey) -> bool:
        """Whether a decided checkpoint contains this batch, or a later one of its region."""
        region = self._state.regions.get(batch.region)
        return region is not None and region.is_decided(batch)

    def is_committed(self, batch: BatchKey) -> bool:
        """Whether its checkpoint is committed on record."""
        return self.is_decided(batch) and not self._state.has(batch)

    def require_wanted(self, batch: BatchKey) -> None:
        """Refuse work of a batch that cannot become part of a decision any more.

        Raises:
            FencedError: its attempt is over, or it is decided without this work.
        """
        region = region_of(self._state.regions, batch.region)
        region.require(batch.attempt_id)
        is_repaired = any(
            checkpoint.state is State.REPAIRING and checkpoint.has(batch)
            for checkpoint in self._state.pending.values()
        )
        if region.is_decided(batch) and not is_repaired:
            raise FencedError(
                "the batch is decided already",
                {"batch": batch},
                "Let this late attempt of a finished task end; its work is not needed.",
            )

    def require_awaited(self, batch: BatchKey) -> None:
        """Refuse to wait for a batch that will not be committed in this attempt of its region.

        Raises:
            FencedError: it was aborted, never acknowledged, or its region is being stopped.
        """
        region = region_of(self._state.regions, batch.region)
        region.require(batch.attempt_id)
        is_pending = region.pending_ack is not None and region.pending_ack.batch == batch
        if not is_pending and not self._state.has(batch):
            raise FencedError(
                "the batch is not part of any checkpoint under way",
                {"batch": batch},
                "Let the attempt end: the batch was aborted or never acknowledged.",
            )

    def has_committed(self, batch: BatchKey) -> bool:
        """As `is_committed`; raises as `require_awaited` if it is not."""
        if not self.is_committed(batch):
            self.require_awaited(batch)
            return False
        return True

    def fate(self, batch: BatchKey) -> Fate:
        """The fate of a batch, for a sweep (`ids-never-reused`)."""
        region = self._state.regions.get(batch.region)
        if region is None or batch.attempt_id < region.attempt_id:
            return Fate.OUTDATED
        if self._state.has(batch):
            return Fate.OPEN
        if region.is_decided(batch):
            return Fate.SETTLED
        return Fate.OPEN if region.is_open else Fate.DISCARDED

    def register(self, attempt: RegisteredAttempt, at_s: float = 0.0) -> None:
        """Note open work of a task before its first record; idempotent.

        Args:
            at_s: now, on a clock that counts while the host sleeps.

        Raises:
            FencedError: see `require_wanted`.
        """
        self.require_wanted(attempt.batch)
        self._registered.add(attempt, at_s)

    def open_since(self) -> dict[tuple[str, str], float]:
        """See `RegisteredAttempts.open_since`."""
        return self._registered.open_since(self.fate)

    def swept(self) -> None:
        """The sweep of the last `sweep_view` was complete."""
        self._registered.swept()

    def sweep_view(self, job_uid: str) -> SweepView:
        """The view for a sweep; each call counts as one (`RegisteredAttempts.orphans`)."""
        return SweepView(
            job_uid=job_uid,
            attempt_ids={name: r.attempt_id for name, r in self._state.regions.items()},
            protected=tuple(
                entry
                for checkpoint in self._state.pending.values()
                if checkpoint.state in DECIDED_OPEN
                for entry in checkpoint.remaining
            ),
            orphans=self._registered.orphans(self.fate),
            settled={
                name: batch.batch_id
                for name, r in self._state.regions.items()
                if (batch := r.record.batch) is not None
                and batch.attempt_id == r.attempt_id
                and self.is_committed(batch)
            },
        )

    def status(self, *, now_s: float, now_ms: int) -> JobStatus:
        """The status of the job; ``now_s`` on the clock of the events is ``now_ms`` on the wall.
        The core does not know names of operators: counters are by operator id."""
        state = self._state
        ratios = state.pending_ratios(now_s)
        states = [entry for r in state.regions.values() for entry in r.record.operator_states]

        def wall_ms(moment_s: float) -> int:
            return now_ms - round((now_s - moment_s) * 1000)

        return JobStatus(
            state=_phase_in_words(state),
            drop_limit=state.settings.drop_limit,
            error="" if state.error is None else well_formed(str(state.error)),
            last_decided=state.last_decided,
            last_committed=state.last_committed,
            pending=tuple(
                CheckpointStatus(
                    checkpoint_id=p.checkpoint_id,
                    kind=p.kind.value,
                    state=p.state.value,
                    requested_by=p.requested_by,
                    age_s=None if p.barrier_s is None else now_s - p.barrier_s,
                    acknowledged=tuple(p.acks),
                )
                for p in state.pending.values()
            ),
            regions=tuple(
                region_view(name, region, ratios.get(name), now_s=now_s, wall_ms=wall_ms)
                for name, region in state.regions.items()
            ),
            counters=counter_totals(states),
            function_records=record_totals(states),
            time=state.time.view(state.regions.values()),
        )


def _estimator(plan: RegionPlan, settings: CheckpointSettings) -> RateEstimator | None:
    if plan.rate_limit is None or not settings.interval_s:
        return None
    return RateEstimator(plan.rate_limit, settings.interval_s)


def _completed_in(record: RegionRecord, last_decided: int) -> int:
    return last_decided if record.snapshot_id is None else record.snapshot_id


def _phase_in_words(state: CoordinatorState) -> str:
    if state.request is not None and state.request.ends_job:
        return "stopping"
    is_incomplete = state.phase is JobPhase.FINISHED and state.error is not None
    return (JobPhase.FAILED if is_incomplete else state.phase).value


def _stop_requested(state: CoordinatorState, event: StopRequested, now_s: float) -> None:
    """End all waits, also for decided batches: the next start commits them."""
    state.end(event.error, now_s)
    error = state.error or FencedError(
        "the job is being stopped", {}, "Start the job again; it resumes from the last checkpoint."
    )
    for name in state.regions:
        state.fail_waiting(name, error)


_REQUESTS = (
    BarrierPolled,
    Acknowledged,
    RegionRegistered,
    RestartRequested,
    RestartCommanded,
    TriggerRequested,
    CheckpointRequested,
)
"""The sender waits for an answer, if only for an error."""

_ROUTINE = (Tick, BarrierPolled, RegionBarrierOffsets, Acknowledged)
"""Events of every region in every checkpoint. They change no cached view of other regions."""

_HANDLERS: Mapping[type, Callable[[CoordinatorState, Any, float], None]] = {
    Tick: lambda *_: None,  # time alone; `CoordinatorCore.step` does all due steps
    TriggerRequested: alignment.trigger_requested,
    CheckpointRequested: requested_checkpoint.checkpoint_requested,
    FilesCopied: requested_checkpoint.files_copied,
    BarrierPolled: alignment.barrier_polled,
    RegionBarrierOffsets: alignment.offsets_fetched,
    SplitsDiscovered: alignment.splits_discovered,
    Acknowledged: acknowledgements.acknowledged,
    RegionFailed: region_attempts.region_failed,
    RegionRegistered: region_attempts.region_registered,
    RestartRequested: region_attempts.restart_requested,
    RestartCommanded: region_attempts.restart_commanded,
    Published: post_commit.published,
    CommitReported: post_commit.commit_reported,
    Repaired: failed_steps.repaired,
    Marked: post_commit.marked,
    AbortedWork: post_commit.work_aborted,
    OrphansSwept: post_commit.orphans_swept,
    StepFailed: post_commit.step_failed,
    StopRequested: _stop_requested,
}
