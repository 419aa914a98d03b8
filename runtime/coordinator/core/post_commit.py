"""From the last acknowledgement to the marker, or to the end of an abort: the second half. Pure.

After the commit come two steps without a waiting callback: positions for lag tools, and retention.
"""

from collections.abc import Collection, Iterator

from sluice.runtime.checkpoint.lost_work import lost_by_region
from sluice.runtime.checkpoint.succession import taken_over
from sluice.runtime.contracts import CommitOutcome, FailureReason, PublishOutcome
from sluice.runtime.coordinator.core.alignment import complete_if_due, withdrawn
from sluice.runtime.coordinator.core.broadcasts import renew_planned
from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.coordinator.core.events import (
    AbortedWork,
    Commit,
    CommitReported,
    MarkCommitted,
    Marked,
    OrphansSwept,
    Publish,
    Published,
    PublishPositions,
    RegionalStep,
    Repair,
    Retire,
    ReturnBatches,
    StepFailed,
    SweepOrphans,
)
from sluice.runtime.coordinator.core.failed_steps import (
    end_if_hung,
    end_if_unknown,
    lose,
    repair_failed,
    retry,
)
from sluice.runtime.coordinator.core.failures import is_the_end, suspended_at_the_end
from sluice.runtime.coordinator.core.pending_checkpoint import PendingCheckpoint, RemoteStep
from sluice.runtime.coordinator.core.reassignment import choose_moves
from sluice.runtime.coordinator.core.region_attempts import drive_restart, end_hanging
from sluice.runtime.coordinator.core.requested_checkpoint import (
    end_if_late,
    note_decided,
    note_marked,
)
from sluice.runtime.coordinator.policy.assignment import (
    Move,
    extended,
    hand_over,
    moved,
    with_partitions,
)
from sluice.runtime.coordinator.policy.failure_errors import checkpoint_too_old
from sluice.runtime.coordinator.policy.state_tables import ABORTABLE, DECIDED_OPEN, Event, State
from sluice.runtime.errors import FencedError
from sluice.runtime.model.checkpoint_record import CheckpointKind, Verdict, committables_of

__all__ = [
    "commit_reported",
    "drive",
    "marked",
    "next_step_s",
    "orphans_swept",
    "published",
    "step_failed",
    "work_aborted",
]

_PAUSE_S = 1.0
"""Short epochs share one publication: group offsets take the brokers longer than a commit."""


_UNDECIDED = (State.ARMED, State.ALIGNING)


# --- due steps ----------------------------------------------------------------------------------


def drive(state: CoordinatorState, now_s: float) -> None:
    """Let every checkpoint under way, and every region with unsettled work, take its next step."""
    end_hanging(state, now_s)
    end_if_hung(state, now_s)
    end_if_late(state, now_s)
    for checkpoint in tuple(state.pending.values()):
        _drive_one(state, checkpoint, now_s)
    for name in tuple(state.unsettled):
        drive_restart(state, name, now_s)
    due_s = _next_positions_s(state)
    if due_s is None or now_s >= due_s or state.is_over:
        _publish_positions(state, now_s)


def _drive_one(state: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> None:
    complete_if_due(state, checkpoint, now_s)
    if checkpoint.state in _UNDECIDED or not checkpoint.may_act(now_s):
        return
    is_next_slot = checkpoint.checkpoint_id == state.last_slot + 1
    is_oldest = next(iter(state.pending)) == checkpoint.checkpoint_id
    stage = checkpoint.state
    if stage is State.PRE_COMMITTED and is_next_slot:
        if not (_is_doomed(state) or _waits_for_older(state, checkpoint)):
            _start_deciding(state, checkpoint, now_s)
    elif stage is State.DECIDING:
        _decide_again(state, checkpoint, now_s)
    elif stage is State.WITHDRAWING or (stage is State.ABORTING and is_next_slot):
        _publish(state, checkpoint, Verdict.ABORTED)
    elif is_oldest and stage in DECIDED_OPEN:
        _settle(state, checkpoint, now_s)


def _is_doomed(state: CoordinatorState) -> bool:
    """Whether the job ends by a loss as soon as the rest of that decision is settled. Another
    decision could not be committed before an operator accepts the loss, and be lost as well."""
    return any(checkpoint.is_doomed for checkpoint in state.pending.values())


def _waits_for_older(state: CoordinatorState, checkpoint: PendingCheckpoint) -> bool:
    """Whether an older epoch of a streaming region is decided, and not committed yet.

    A repair of that one would come after what the region has written since, which can be given up
    only as long as it is not decided (`two-phase-repair`).
    """
    older = [
        found
        for found in state.pending.values()
        if found.checkpoint_id < checkpoint.checkpoint_id and found.remaining
    ]
    streaming = [name for name, region in state.regions.items() if region.plan.follows]
    return any(
        found.touches(name) for found in older for name in streaming if checkpoint.touches(name)
    )


def next_step_s(state: CoordinatorState) -> float | None:
    """When time alone makes a step due: a decision of the handler, an expiry or a retry."""
    moments = [moment for p in state.pending.values() for moment in _due(state, p)]
    if not state.is_over:
        moments += [
            region.begins_s
            for region in map(state.regions.__getitem__, state.unsettled)
            if region.begins_s is not None and region.restart_requested
        ]
    positions_s = _next_positions_s(state)
    if positions_s is not None:
        moments.append(positions_s)
    return min(moments, default=None)


def _next_positions_s(state: CoordinatorState) -> float | None:
    """When time alone lets the newest positions be published."""
    if state.unpublished is None or state.published_s is None:
        return None
    return state.published_s + _PAUSE_S


def _publish_positions(state: CoordinatorState, now_s: float) -> None:
    if state.unpublished is not None:
        copied = None if state.request is None else state.request.checkpoint_id
        retire = Retire(retained=state.settings.retained, copied=copied)
        state.out += [state.unpublished, retire]
        state.unpublished, state.published_s = None, now_s


def _due(state: CoordinatorState, checkpoint: PendingCheckpoint) -> Iterator[float]:
    if checkpoint.state in (State.ALIGNING, State.PRE_COMMITTED):
        if checkpoint.barrier_s is not None:
            afters_s = state.settings.handler.deadlines_s(timeout_s=state.settings.timeout_s)
            deadlines_s = (checkpoint.barrier_s + after_s for after_s in afters_s)
            yield from (moment_s for moment_s in deadlines_s if moment_s > checkpoint.evaluated_s)
        if checkpoint.decide_by_s is not None:
            yield checkpoint.decide_by_s - state.slept_s
        return
    is_waiting = checkpoint.remote is RemoteStep.IDLE and checkpoint.retry_at_s > 0
    if is_waiting and checkpoint.state not in ABORTABLE:
        yield checkpoint.retry_at_s


# --- deciding -----------------------------------------------------------------------------------


def _start_deciding(state: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> None:
    unswept = [name for name in checkpoint.skipped if state.regions[name].needs_sweep]
    if checkpoint.must_sweep or unswept:
        if _has_unmarked_batch(state, checkpoint.skipped):
            return
        for name in unswept:
            state.regions[name].needs_sweep = False
        checkpoint.remote = RemoteStep.IN_FLIGHT
        state.out.append(SweepOrphans(checkpoint_id=checkpoint.checkpoint_id))
        return
    checkpoint.regions = with_partitions(
        region.skipped_record()
        if name in checkpoint.skipped
        else region.record_with(checkpoint.acks[name])
        for name, region in state.regions.items()
    )
    given_up = (state.regions[name].given_up(ack) for name, ack in checkpoint.acks.items())
    whole = extended(state.assignment, checkpoint.regions, given_up=frozenset().union(*given_up))
    balancer = state.settings.balancer
    moves = () if balancer is None else choose_moves(state, checkpoint, balancer)
    checkpoint.assignment = moved(whole, moves)
    checkpoint.steps = _steps(checkpoint, moves)
    state.move(checkpoint, Event.PUBLISH_STARTED, now_s)
    _publish(state, checkpoint, Verdict.DECIDED)


def _has_unmarked_batch(state: CoordinatorState, regions: Collection[str]) -> bool:
    """Whether an older batch of these regions is decided and not marked. A sweep aborts what its
    failed tasks left open only after the mark (`abort-before-skip`)."""
    decided = [found for found in state.pending.values() if found.state in DECIDED_OPEN]
    return any(found.acks.get(name) is not None for found in decided for name in regions)


def _decide_again(state: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> None:
    """Repeat a publish without an answer. If the checkpoint has grown old meanwhile, try an ABORTED
    record instead."""
    if not state.is_too_old(checkpoint.decide_by_s, now_s):
        _publish(state, checkpoint, Verdict.DECIDED)
        return
    state.move(checkpoint, Event.GREW_OLD, now_s)
    checkpoint.reason = str(checkpoint_too_old(checkpoint.checkpoint_id, ()))
    _publish(state, checkpoint, Verdict.ABORTED)


def _steps(checkpoint: PendingCheckpoint, moves: Collection[Move]) -> tuple[RegionalStep, ...]:
    left_out = checkpoint.skipped.values()
    # A batch's checkpoint id is that of its barrier: an older one was decided without it.
    begun = {ack.checkpoint_id for ack in checkpoint.acknowledged()}
    found = {
        RegionalStep.SKIP: FailureReason.ERROR in left_out,
        RegionalStep.HOLD: FailureReason.EXPIRED in left_out,
        RegionalStep.RELEASE: bool(begun - {None, checkpoint.checkpoint_id}),
        RegionalStep.MOVE: bool(moves),
    }
    return tuple(step for step, is_done in found.items() if is_done)


def orphans_swept(state: CoordinatorState, event: OrphansSwept, now_s: float) -> None:
    """Open work of failed regions is aborted; the next sweep repeats this for unreachable
    brokers."""
    checkpoint = state.pending[event.checkpoint_id]
    checkpoint.remote, checkpoint.must_sweep = RemoteStep.IDLE, False


def _publish(state: CoordinatorState, checkpoint: PendingCheckpoint, verdict: Verdict) -> None:
    is_decision = verdict is Verdict.DECIDED
    undecided = checkpoint.discarded or checkpoint.acknowledged()
    discarded = tuple(ack.region for ack in undecided)
    checkpoint.remote = RemoteStep.IN_FLIGHT
    state.out.append(
        Publish(
            checkpoint_id=checkpoint.checkpoint_id,
            kind=checkpoint.kind,
            verdict=verdict,
            requested_by=checkpoint.requested_by,
            reason="" if is_decision else checkpoint.reason,
            regions=checkpoint.regions if is_decision else discarded,
            assignment=checkpoint.assignment if is_decision else None,
            steps=checkpoint.steps if is_decision else (),
            decide_by_s=checkpoint.decide_by_s if is_decision else None,
        )
    )


def published(state: CoordinatorState, event: Published, now_s: float) -> None:
    """The slot is ours, taken, or the answer is unknown."""
    checkpoint = state.pending[event.checkpoint_id]
    if event.outcome is PublishOutcome.UNKNOWN:
        retry(state, checkpoint, now_s)
        return
    checkpoint.remote = RemoteStep.IDLE
    is_late = event.outcome is PublishOutcome.DECIDED and checkpoint.state is not State.WITHDRAWING
    if event.outcome is PublishOutcome.TAKEN or is_late:
        state.move(checkpoint, Event.SLOT_TAKEN, now_s)
        state.fence(taken_over(event.checkpoint_id))
        return
    state.last_slot = event.checkpoint_id
    if checkpoint.state is State.ABORTING:
        state.move(checkpoint, Event.ABORT_RECORD_DURABLE, now_s)
        state.discard(checkpoint)
        return
    if checkpoint.state is State.WITHDRAWING and event.outcome is PublishOutcome.OURS:
        withdrawn(state, checkpoint, now_s)
        return
    state.move(checkpoint, Event.METADATA_DURABLE, now_s)
    state.reset_failures()
    state.last_decided = event.checkpoint_id
    state.assignment = checkpoint.assignment or state.assignment
    next_records = hand_over(checkpoint.regions, state.assignment)
    for record, next_record in zip(checkpoint.regions, next_records, strict=True):
        region = state.regions[record.region]
        is_end = record.region in checkpoint.finished
        ack = checkpoint.acks.get(record.region)
        region.decided(event.checkpoint_id, record, next_record, is_end=is_end, ack=ack)
        if record.region not in checkpoint.skipped:
            region.completed_s = now_s
            region.late_rows += 0 if ack is None else ack.late_rows
    renew_planned(state)
    checkpoint.remaining = committables_of(checkpoint.regions)
    note_decided(state, checkpoint)


def work_aborted(state: CoordinatorState, event: AbortedWork, now_s: float) -> None:
    """The abort is done; a sweep repeats it for unreachable brokers."""
    if event.checkpoint_id is not None:
        state.finish(state.pending[event.checkpoint_id], now_s)


# --- committing ---------------------------------------------------------------------------------


def _settle(state: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> None:
    """Take the next step of a decided checkpoint: only the oldest one, so commits keep their
    order."""
    if checkpoint.state is State.DECIDED and not checkpoint.remaining:
        state.move(checkpoint, Event.ALL_COMMITTED, now_s)
    checkpoint.remote = RemoteStep.IN_FLIGHT
    if checkpoint.state is State.COMMITTED:
        state.out.append(
            MarkCommitted(checkpoint_id=checkpoint.checkpoint_id, regions=checkpoint.regions)
        )
    elif checkpoint.state is State.REPAIRING:
        lost = lost_by_region(checkpoint.regions, checkpoint.lost)
        state.out.append(Repair(checkpoint_id=checkpoint.checkpoint_id, lost=lost))
    else:
        state.out.append(
            Commit(
                checkpoint_id=checkpoint.checkpoint_id,
                committables=checkpoint.remaining,
                after_crash=checkpoint.after_crash,
                regions=checkpoint.regions,
                failed_tasks=checkpoint.failed_tasks,
            )
        )


def commit_reported(state: CoordinatorState, event: CommitReported, now_s: float) -> None:
    """Remove committed committables; retry or repair the rest, or end the job."""
    checkpoint = state.pending[event.checkpoint_id]
    checkpoint.remote = RemoteStep.IDLE
    checkpoint.after_crash = True
    answers = list(zip(event.committables, event.reports, strict=True))
    lost = [entry for entry, report in answers if report.outcome is CommitOutcome.ABORTED]
    unknown = [entry for entry, report in answers if report.outcome is CommitOutcome.UNKNOWN]
    checkpoint.remaining = tuple(
        entry for entry, report in answers if report.outcome is not CommitOutcome.COMMITTED
    )
    if not unknown:
        checkpoint.unknown_since_s = None
    if lost:
        lose(state, checkpoint, lost, event, now_s)
    elif checkpoint.remaining:
        open_reports = (r for r in event.reports if r.outcome is not CommitOutcome.COMMITTED)
        retry(state, checkpoint, now_s, details={r.detail for r in open_reports if r.detail})
        if unknown:
            end_if_unknown(state, checkpoint, event, now_s)


def marked(state: CoordinatorState, event: Marked, now_s: float) -> None:
    """Committed on record: callbacks return, then positions are published and retention runs."""
    checkpoint = state.pending[event.checkpoint_id]
    if not event.durable:
        retry(state, checkpoint, now_s)
        return
    checkpoint.remote = RemoteStep.IDLE
    state.move(checkpoint, Event.MARK_DURABLE, now_s)
    state.last_committed = event.checkpoint_id
    _update_histories(state, checkpoint, now_s)
    state.finish(checkpoint, now_s)
    batches = checkpoint.batches()
    for batch in batches:
        state.liveness.returned(batch.region, now_s)
    state.out.append(ReturnBatches(checkpoint_id=event.checkpoint_id, batches=batches))
    state.unpublished = PublishPositions(
        checkpoint_id=checkpoint.checkpoint_id,
        positions=tuple(split for region in checkpoint.regions for split in region.splits),
    )
    is_stop = note_marked(state, checkpoint)
    is_end = checkpoint.kind is CheckpointKind.FINAL and is_the_end(state, checkpoint)
    if is_stop or (is_end and not state.is_held):
        _publish_positions(state, now_s)  # before the engine is notified of the end
        state.end(suspended_at_the_end(state) if is_end else None, now_s, is_finished=is_end)


def _update_histories(state: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> None:
    """Note in ended attempts how long their region was absent from committed checkpoints."""
    for name, region in state.regions.items():
        if name not in checkpoint.skipped and checkpoint.checkpoint_id > region.attempt_id:
            region.history.committed(region.attempt_id, now_s)


# --- steps that failed --------------------------------------------------------------------------


def step_failed(state: CoordinatorState, event: StepFailed, now_s: float) -> None:
    """A remote step failed with an error that no repetition can help."""
    checkpoint = state.pending.get(event.checkpoint_id)
    is_fenced = isinstance(event.error, FencedError)
    if checkpoint is not None and checkpoint.state is State.REPAIRING and not is_fenced:
        repair_failed(state, checkpoint, event.error, now_s)
        return
    if checkpoint is not None:
        checkpoint.remote = RemoteStep.HALTED
    if is_fenced:
        state.fence(event.error)
    else:
        state.end(event.error, now_s)
