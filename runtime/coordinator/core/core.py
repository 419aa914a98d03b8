"""The coordinator's decisions: a pure state machine. Events and the clock in, actions out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.runtime.contracts import RegisteredAttempt, SweepView
from sluice.runtime.coordinator.core import alignment as aligning
from sluice.runtime.coordinator.core import failure_policy as rulings
from sluice.runtime.coordinator.core import lost_transactions as lost_slices
from sluice.runtime.coordinator.core import post_commit as settling
from sluice.runtime.coordinator.core import suspension as suspending
from sluice.runtime.coordinator.core.checkpoint_states import State
from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.coordinator.core.events import (
    AbortedWork,
    Acknowledged,
    Action,
    BarrierPolled,
    CommitReported,
    CoreEvent,
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
from sluice.runtime.coordinator.core.pending_checkpoint import DECIDED_OPEN
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, RegionPlan
from sluice.runtime.coordinator.region.pacing import Pace
from sluice.runtime.coordinator.region.pressure import Pressure
from sluice.runtime.coordinator.region.region_state import Fate, RegionState, region_of
from sluice.runtime.errors import FencedError
from sluice.runtime.failover.attempt_history import first_line
from sluice.runtime.functions.at_most_once import DropLimit, dropped_in_all
from sluice.runtime.model.model import Assignment, BatchKey, RegionRecord, SplitRange
from sluice.runtime.model.rate_limit import RateEstimator
from sluice.runtime.model.well_formed import well_formed

__all__ = [
    "AttemptView",
    "CheckpointStatus",
    "CoordinatorCore",
    "JobStatus",
    "RegionStatusView",
    "SuspendedView",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStatus:
    """A checkpoint under way, for people; ``age_s``: since its barrier, None before it."""

    checkpoint_id: int
    kind: str
    state: str
    requested_by: str
    age_s: float | None
    acknowledged: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """A life of a region that has ended, for people; see `RegionAttempt`."""

    attempt_id: int
    ended_ms: int
    why: str
    committed_after_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendedView:
    """A region that has failed for good, for people: since when (wall clock), and why."""

    since_ms: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionStatusView:
    """A region, for people.

    Attributes:
        region, attempt_id, is_open, batch_id: which life it is in.
        splits: end offsets, by name.
        begins_ms: when its restart strategy lets the next life begin; None: it does not wait.
        ended: lives that have ended in this run.
        attempts: the newest of them, oldest first.
        pending_ratio, pressure: see `pressure`; None before its first barrier.
        suspended: it has failed for good and waits for a command; None: it is not.
        snapshot_age_s: since the decision of the last checkpoint that it completed in this run.
        lags: records not read yet, by split; where known. Of a suspended region they are asked for
            every few seconds, of others they are those behind the last cut.
        lag_records: their sum; None: of no split known.
        lost_records: of them, those that retention has deleted already; suspended regions only.
        has_alarm: its pressure has been high for too long.
        rate_limit: records per second that it may read now; None: no limit.
        dropped: offsets that approximate recovery has left out, in the life of the directory.
    """

    region: str
    attempt_id: int
    is_open: bool
    batch_id: int | None
    splits: Mapping[str, int]
    begins_ms: int | None
    ended: int
    attempts: tuple[AttemptView, ...]
    pending_ratio: float | None
    pressure: str | None
    rate_limit: float | None
    dropped: int
    suspended: SuspendedView | None = None
    snapshot_age_s: float | None = None
    lags: Mapping[str, int] = field(default_factory=dict)
    lag_records: int | None = None
    lost_records: int = 0
    has_alarm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """The job, for people: ``running``, ``finished``, ``stopped``, ``failed`` or ``fenced``.

    ``drop_limit``: what approximate recovery may leave out; None: nothing is ever left out.
    """

    state: str
    drop_limit: DropLimit | None
    error: str
    last_decided: int
    last_committed: int
    pending: tuple[CheckpointStatus, ...]
    regions: tuple[RegionStatusView, ...]


class CoordinatorCore:
    """Decides for one job. Called by one thread; does no I/O and never looks at a clock.

    Args:
        settings: when checkpoints are taken.
        plans: the job's regions.
        records: last decided record of each region, its splits handed over.
        assignment: of splits to regions, as decided.
        attempt_id: of this run: the id of its first own record (its seal, or checkpoint 0).
        last_decided: newest decided checkpoint; all of them are committed on record by now.
        draw: a random number in [0, 1), for restarts that shall not come together.
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
    ) -> None:
        self._book = CoordinatorState(
            settings=settings,
            regions={
                plan.name: RegionState(
                    plan=plan,
                    attempt_id=attempt_id,
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
        )

    def step(self, event: CoreEvent, now_s: float, *, missed_s: float = 0.0) -> list[Action]:
        """Take in one event; what to do now, in order. A refused event raises and changes nothing.

        ``missed_s``: what ``now_s`` leaves out, since nobody waited meanwhile: ages go on.

        Raises:
            FencedError: the sender's attempt is over.
            IllegalTransitionError: a bug, here or in the sender.
        """
        book = self._book
        if book.is_fenced and not isinstance(event, _ASKING):
            return []
        book.open_step(missed_s)
        if not isinstance(event, _ROUTINE):
            book.look_again()
        _dispatch(book, event, now_s)
        if not book.is_fenced:
            told = len(book.out)
            settling.drive(book, now_s)
            aligning.trigger_due(book, now_s)
            if len(book.out) > told:  # what has just begun may be due already
                settling.drive(book, now_s)
        return book.close_step()

    def deadline_s(self) -> float | None:
        """When the next `Tick` is due, if time alone can make something due."""
        if self._book.is_fenced:
            return None
        moments = (aligning.next_trigger_s(self._book), settling.next_step_s(self._book))
        return min((moment for moment in moments if moment is not None), default=None)

    # --- questions --------------------------------------------------------------------------------

    @property
    def last_committed(self) -> int:
        """Newest checkpoint that is committed on record."""
        return self._book.last_committed

    @property
    def settled_through(self) -> int:
        """Every checkpoint id up to this one is committed on record, or aborted for good."""
        return min(self._book.pending, default=self._book.next_id) - 1

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way that can go on by itself."""
        return self._book.is_fenced or all(p.halted for p in self._book.pending.values())

    @property
    def is_fenced(self) -> bool:
        """Whether another session has taken over."""
        return self._book.is_fenced

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self._book.is_over

    def is_live(self, region: str, attempt_id: int) -> bool:
        """Whether this life of the region has not ended."""
        found = region_of(self._book.regions, region)
        return found.is_open and found.attempt_id == attempt_id

    def is_suspended(self, region: str) -> bool:
        """Whether the region has failed for good, and nobody has asked for its next life."""
        return self._book.regions[region].suspended is not None

    def why_ended(self, region: str) -> BaseException | None:
        """What ended the region's last life; None: its first one lives."""
        return self._book.regions[region].ended_by

    def pending_ratios(self, now_s: float) -> dict[str, float]:
        """See `ratio`, by region; not of suspended ones."""
        return self._book.pending_ratios(now_s)

    def positions(self) -> dict[str, tuple[SplitRange, ...]]:
        """Where each region's next cut starts; for a suspended one, where its next life goes on."""
        return {name: region.positions() for name, region in self._book.regions.items()}

    def is_decided(self, batch: BatchKey) -> bool:
        """Whether a decided checkpoint contains this batch, or a later one of its region."""
        region = self._book.regions.get(batch.region)
        return region is not None and region.is_decided(batch)

    def is_committed(self, batch: BatchKey) -> bool:
        """Whether its checkpoint is committed on record."""
        return self.is_decided(batch) and not any(
            checkpoint.has(batch) for checkpoint in self._book.pending.values()
        )

    def require_wanted(self, batch: BatchKey) -> None:
        """Refuse work of a batch that cannot become part of a decision any more.

        Raises:
            FencedError: its attempt is over, or it is decided without this work.
        """
        region = region_of(self._book.regions, batch.region)
        region.require(batch.attempt_id)
        is_repaired = any(
            checkpoint.state is State.REPAIRING and checkpoint.has(batch)
            for checkpoint in self._book.pending.values()
        )
        if region.is_decided(batch) and not is_repaired:
            raise FencedError(
                "the batch is decided already",
                {"batch": batch},
                "This is a late attempt of a finished task; its work is not needed.",
            )

    def require_awaited(self, batch: BatchKey) -> None:
        """Refuse to wait for a batch that will not be committed in this life of its region.

        Raises:
            FencedError: it was aborted, never acknowledged, or its region is being stopped.
        """
        region = region_of(self._book.regions, batch.region)
        region.require(batch.attempt_id)
        is_held = region.held is not None and region.held.batch == batch
        if not is_held and not any(p.has(batch) for p in self._book.pending.values()):
            raise FencedError(
                "the batch is not part of any checkpoint under way",
                {"batch": batch},
                "It was aborted, or never acknowledged; its range is read again.",
            )

    def fate(self, batch: BatchKey) -> Fate:
        """What a sweep must know of a batch (`ids-never-reused`)."""
        region = self._book.regions.get(batch.region)
        if region is None or batch.attempt_id < region.attempt_id:
            return Fate.OUTDATED
        if any(checkpoint.has(batch) for checkpoint in self._book.pending.values()):
            return Fate.OPEN
        if region.is_decided(batch):
            return Fate.SETTLED
        return Fate.OPEN if region.is_open else Fate.DISCARDED

    def sweep_view(self, job_uid: str, orphans: Sequence[RegisteredAttempt]) -> SweepView:
        """What a sweep may know now."""
        return SweepView(
            job_uid=job_uid,
            attempt_ids={name: r.attempt_id for name, r in self._book.regions.items()},
            protected=tuple(
                entry
                for checkpoint in self._book.pending.values()
                if checkpoint.state in DECIDED_OPEN
                for entry in checkpoint.remaining
            ),
            orphans=tuple(orphans),
            settled={
                name: batch.batch_id
                for name, r in self._book.regions.items()
                if (batch := r.record.batch) is not None
                and batch.attempt_id == r.attempt_id
                and self.is_committed(batch)
            },
        )

    def status(self, *, now_s: float, now_ms: int) -> JobStatus:
        """A picture for people; ``now_s`` on the clock of the events is ``now_ms`` on the wall."""
        book = self._book
        ratios = book.pending_ratios(now_s)

        def wall_ms(moment_s: float) -> int:
            return now_ms - round((now_s - moment_s) * 1000)

        return JobStatus(
            state=_state_of(book),
            drop_limit=book.settings.drop_limit,
            error="" if book.error is None else well_formed(str(book.error)),
            last_decided=book.last_decided,
            last_committed=book.last_committed,
            pending=tuple(
                CheckpointStatus(
                    checkpoint_id=p.checkpoint_id,
                    kind=p.kind.value,
                    state=p.state.value,
                    requested_by=p.requested_by,
                    age_s=None if p.barrier_s is None else now_s - p.barrier_s,
                    acknowledged=tuple(p.acks),
                )
                for p in book.pending.values()
            ),
            regions=tuple(
                _region_view(name, region, ratios.get(name), now_s=now_s, wall_ms=wall_ms)
                for name, region in book.regions.items()
            ),
        )


def _region_view(
    name: str,
    region: RegionState,
    ratio: float | None,
    *,
    now_s: float,
    wall_ms: Callable[[float], int],
) -> RegionStatusView:
    completed_s, suspended = region.completed_s, region.suspended
    return RegionStatusView(
        region=name,
        attempt_id=region.attempt_id,
        is_open=region.is_open,
        batch_id=region.record.batch_id,
        splits={split.name: split.end_offset for split in region.positions()},
        begins_ms=None if region.begins_s is None else wall_ms(region.begins_s),
        ended=region.history.count,
        attempts=tuple(
            AttemptView(
                attempt_id=attempt.attempt_id,
                ended_ms=wall_ms(attempt.ended_s),
                why=attempt.why,
                committed_after_s=attempt.committed_after_s,
            )
            for attempt in region.history.attempts
        ),
        pending_ratio=ratio,
        pressure=None if ratio is None else Pressure.of(ratio).value,
        suspended=None
        if suspended is None
        else SuspendedView(since_ms=wall_ms(suspended.since_s), why=first_line(suspended.cause)),
        snapshot_age_s=None if completed_s is None else now_s - completed_s,
        rate_limit=None if region.rate is None else region.rate.rate,
        dropped=dropped_in_all(region.record.operator_states),
    )


def _estimator(plan: RegionPlan, settings: CheckpointSettings) -> RateEstimator | None:
    if plan.rate_limit is None or not settings.interval_s:
        return None
    return RateEstimator(plan.rate_limit, settings.interval_s)


def _completed_in(record: RegionRecord, last_decided: int) -> int:
    return last_decided if record.snapshot_id is None else record.snapshot_id


def _state_of(book: CoordinatorState) -> str:
    if book.is_fenced:
        return "fenced"
    if not book.is_over:
        return "running"
    if book.error is not None:
        return "failed"
    return "finished" if book.is_finished else "stopped"


def _ticked(book: CoordinatorState, event: Tick, now_s: float) -> None:
    """Time alone; `CoordinatorCore.step` does what is due."""


def _triggered(book: CoordinatorState, event: TriggerRequested, now_s: float) -> None:
    aligning.trigger_asked(book, event)


def _polled(book: CoordinatorState, event: BarrierPolled, now_s: float) -> None:
    aligning.barrier_polled(book, event, now_s)


def _discovered(book: CoordinatorState, event: SplitsDiscovered, now_s: float) -> None:
    aligning.splits_discovered(book, event)


def _swept(book: CoordinatorState, event: OrphansSwept, now_s: float) -> None:
    settling.orphans_swept(book, event)


def _stop_asked(book: CoordinatorState, event: StopRequested, now_s: float) -> None:
    """Nobody waits any longer, also not for what is decided: the next start commits it."""
    book.end(event.error, now_s)
    error = book.error or FencedError("the job is being stopped", {}, "Start it again for more.")
    for name in book.regions:
        book.cancel_waiting(name, error)


_ASKING = (
    BarrierPolled,
    Acknowledged,
    RegionRegistered,
    RestartRequested,
    RestartCommanded,
    TriggerRequested,
)
"""Somebody waits for an answer, if only for an error."""

_ROUTINE = (Tick, BarrierPolled, RegionBarrierOffsets, Acknowledged)
"""What every region tells in every checkpoint: by itself it changes no other region's standing."""

_HANDLERS: Mapping[type, Callable[[CoordinatorState, Any, float], None]] = {
    Tick: _ticked,
    TriggerRequested: _triggered,
    BarrierPolled: _polled,
    RegionBarrierOffsets: aligning.region_cut,
    SplitsDiscovered: _discovered,
    Acknowledged: aligning.acknowledged,
    RegionFailed: rulings.region_failed,
    RegionRegistered: rulings.region_registered,
    RestartRequested: rulings.restart_requested,
    RestartCommanded: suspending.restart_commanded,
    Published: settling.published,
    CommitReported: settling.commit_reported,
    Repaired: lost_slices.repaired,
    Marked: settling.marked,
    AbortedWork: settling.work_aborted,
    OrphansSwept: _swept,
    StepFailed: settling.step_failed,
    StopRequested: _stop_asked,
}


def _dispatch(book: CoordinatorState, event: CoreEvent, now_s: float) -> None:
    _HANDLERS[type(event)](book, event, now_s)
