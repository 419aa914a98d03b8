"""From the last acknowledgement to the mark, or to the end of an abort: the second half. Pure.

What follows a commit and nobody waits for: positions for lag tools, and retention. Pure.
"""

from collections.abc import Collection, Iterator

from sluice.runtime.checkpoint.lost_work import lost_by_region
from sluice.runtime.checkpoint.succession import taken_over
from sluice.runtime.contracts import CommitOutcome, FailureReason, PublishOutcome
from sluice.runtime.coordinator.core import failure_policy as rulings
from sluice.runtime.coordinator.core.checkpoint_states import Event, State
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
    Repair,
    Retire,
    ReturnBatches,
    StepFailed,
    SweepOrphans,
)
from sluice.runtime.coordinator.core.failure_attribution import grown_old, was_missed
from sluice.runtime.coordinator.core.lost_transactions import end_if_unknown, lose, repair_failed
from sluice.runtime.coordinator.core.pending_checkpoint import (
    ABORTABLE,
    DECIDED_OPEN,
    PendingCheckpoint,
)
from sluice.runtime.coordinator.core.reassignment import choose_moves
from sluice.runtime.coordinator.core.retries import end_if_hung, retry
from sluice.runtime.coordinator.core.suspension import is_the_end, suspended_at_the_end
from sluice.runtime.coordinator.policy.assignment import Move, extended, hand_over, moved
from sluice.runtime.coordinator.policy.commit_failpoints import RegionalStep
from sluice.runtime.errors import FencedError
from sluice.runtime.model.model import CheckpointKind, Verdict, committables_of

__all__ = [
    "commit_reported",
    "committed_on_record",
    "drive",
    "marked",
    "next_post_commit_s",
    "next_step_s",
    "orphans_swept",
    "post_commit_due",
    "published",
    "step_failed",
    "take_care",
    "work_aborted",
]

_PAUSE_S = 1.0
"""Short epochs share it: a group's offsets take the brokers longer than a commit does."""


def committed_on_record(book: CoordinatorState, checkpoint: PendingCheckpoint) -> None:
    """The newest positions are those of this checkpoint."""
    positions = tuple(split for region in checkpoint.regions for split in region.splits)
    book.untold = PublishPositions(checkpoint_id=checkpoint.checkpoint_id, positions=positions)


def post_commit_due(book: CoordinatorState, now_s: float) -> None:
    """Tell the newest positions, if there are any, and a while after the last ones."""
    due_s = next_post_commit_s(book)
    if due_s is None or now_s >= due_s or book.is_over:
        take_care(book, now_s)


def take_care(book: CoordinatorState, now_s: float) -> None:
    """Tell the newest positions now, if there are any."""
    if book.untold is not None:
        book.out += [book.untold, Retire(retained=book.settings.retained)]
        book.untold, book.told_s = None, now_s


def next_post_commit_s(book: CoordinatorState) -> float | None:
    """When time alone makes it due."""
    return None if book.untold is None or book.told_s is None else book.told_s + _PAUSE_S


_UNDECIDED = (State.ARMED, State.ALIGNING)


# --- what is due next ---------------------------------------------------------------------------


def drive(book: CoordinatorState, now_s: float) -> None:
    """Let every checkpoint under way, and every region that waits, take its next step."""
    rulings.end_silent(book, now_s)
    end_if_hung(book, now_s)
    for checkpoint in tuple(book.pending.values()):
        _drive_one(book, checkpoint, now_s)
    for name in tuple(book.restless):
        rulings.drive_restart(book, name, now_s)
    post_commit_due(book, now_s)


def _drive_one(book: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> None:
    rulings.rule(book, checkpoint, now_s)
    if checkpoint.state in _UNDECIDED or not checkpoint.may_act(now_s):
        return
    is_next_slot = checkpoint.checkpoint_id == book.last_slot + 1
    is_oldest = next(iter(book.pending)) == checkpoint.checkpoint_id
    state = checkpoint.state
    if state is State.PRE_COMMITTED and is_next_slot:
        if not (_is_doomed(book) or rulings.waits_for_older(book, checkpoint)):
            _start_deciding(book, checkpoint, now_s)
    elif state is State.DECIDING:
        _decide_again(book, checkpoint, now_s)
    elif state is State.WITHDRAWING or (state is State.ABORTING and is_next_slot):
        _publish(book, checkpoint, Verdict.ABORTED)
    elif is_oldest and state in DECIDED_OPEN:
        _settle(book, checkpoint, now_s)


def _is_doomed(book: CoordinatorState) -> bool:
    """Whether the job ends by a loss as soon as the rest of that decision is settled. Another one
    could not be committed before somebody has looked at the loss, and be lost as well."""
    return any(checkpoint.is_doomed for checkpoint in book.pending.values())


def next_step_s(book: CoordinatorState) -> float | None:
    """When time alone makes something due: a ruling, an expiry or another try."""
    moments = [moment for p in book.pending.values() for moment in _due(book, p)]
    if not book.is_over:
        moments += [
            region.begins_s
            for region in map(book.regions.__getitem__, book.restless)
            if region.begins_s is not None and region.restart_requested
        ]
    post_commit_s = next_post_commit_s(book)
    if post_commit_s is not None:
        moments.append(post_commit_s)
    return min(moments, default=None)


def _due(book: CoordinatorState, checkpoint: PendingCheckpoint) -> Iterator[float]:
    if checkpoint.state in (State.ALIGNING, State.PRE_COMMITTED):
        if checkpoint.barrier_s is not None:
            afters_s = book.settings.handler.deadlines_s(timeout_s=book.settings.timeout_s)
            rulings_s = (checkpoint.barrier_s + after_s for after_s in afters_s)
            yield from (moment_s for moment_s in rulings_s if moment_s > checkpoint.looked_s)
        if checkpoint.decide_by_s is not None:
            yield checkpoint.decide_by_s - book.missed_s
        return
    is_waiting = not (checkpoint.in_flight or checkpoint.halted) and checkpoint.retry_at_s > 0
    if is_waiting and checkpoint.state not in ABORTABLE:
        yield checkpoint.retry_at_s


# --- deciding -----------------------------------------------------------------------------------


def _start_deciding(book: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> None:
    unswept = [name for name in checkpoint.skipped if book.regions[name].needs_sweep]
    if checkpoint.must_sweep or unswept:
        for name in unswept:
            book.regions[name].needs_sweep = False
        checkpoint.in_flight = True
        book.out.append(SweepOrphans(checkpoint_id=checkpoint.checkpoint_id))
        return
    checkpoint.regions = tuple(
        region.skipped_record()
        if name in checkpoint.skipped
        else region.record_with(checkpoint.acks[name])
        for name, region in book.regions.items()
    )
    whole = extended(book.assignment, checkpoint.regions)
    moves = choose_moves(book, checkpoint)
    checkpoint.assignment = moved(whole, moves)
    checkpoint.steps = _steps(checkpoint, moves)
    book.move(checkpoint, Event.PUBLISH_STARTED, now_s)
    _publish(book, checkpoint, Verdict.DECIDED)


def _decide_again(book: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> None:
    """Its publish was not answered. What has grown old meanwhile is not decided any more, if it is
    not decided already."""
    if not book.is_too_old(checkpoint.decide_by_s, now_s):
        _publish(book, checkpoint, Verdict.DECIDED)
        return
    checkpoint.was_missed = was_missed(checkpoint.attended_by_s, now_s)
    book.move(checkpoint, Event.GREW_OLD, now_s)
    checkpoint.reason = str(grown_old(checkpoint, ()))
    _publish(book, checkpoint, Verdict.ABORTED)


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


def orphans_swept(book: CoordinatorState, event: OrphansSwept) -> None:
    """What failed regions left open is aborted, or was not reached: then the next sweep does it."""
    checkpoint = book.pending[event.checkpoint_id]
    checkpoint.in_flight = checkpoint.must_sweep = False


def _publish(book: CoordinatorState, checkpoint: PendingCheckpoint, verdict: Verdict) -> None:
    is_decision = verdict is Verdict.DECIDED
    undecided = checkpoint.discarded or checkpoint.acknowledged()
    thrown_away = tuple(ack.region for ack in undecided)
    checkpoint.in_flight = True
    book.out.append(
        Publish(
            checkpoint_id=checkpoint.checkpoint_id,
            kind=checkpoint.kind,
            verdict=verdict,
            requested_by=checkpoint.requested_by,
            reason="" if is_decision else checkpoint.reason,
            regions=checkpoint.regions if is_decision else thrown_away,
            assignment=checkpoint.assignment if is_decision else None,
            steps=checkpoint.steps if is_decision else (),
            decide_by_s=checkpoint.decide_by_s if is_decision else None,
        )
    )


def published(book: CoordinatorState, event: Published, now_s: float) -> None:
    """The place is ours, taken, or not known yet."""
    checkpoint = book.pending[event.checkpoint_id]
    if event.outcome is PublishOutcome.UNKNOWN:
        retry(book, checkpoint, now_s)
        return
    checkpoint.in_flight = False
    is_late = event.outcome is PublishOutcome.DECIDED and checkpoint.state is not State.WITHDRAWING
    if event.outcome is PublishOutcome.TAKEN or is_late:
        book.move(checkpoint, Event.SLOT_TAKEN, now_s)
        book.fence(taken_over(event.checkpoint_id))
        return
    book.last_slot = event.checkpoint_id
    if checkpoint.state is State.ABORTING:
        book.move(checkpoint, Event.ABORT_RECORD_DURABLE, now_s)
        book.discard(checkpoint)
        return
    if checkpoint.state is State.WITHDRAWING and event.outcome is PublishOutcome.OURS:
        rulings.withdrawn(book, checkpoint, now_s)
        return
    book.move(checkpoint, Event.METADATA_DURABLE, now_s)
    book.tolerate_anew()
    book.last_decided = event.checkpoint_id
    book.assignment = checkpoint.assignment or book.assignment
    handed_over = hand_over(checkpoint.regions, book.assignment)
    for record, goes_on in zip(checkpoint.regions, handed_over, strict=True):
        region = book.regions[record.region]
        is_end = record.region in checkpoint.finished
        region.decided(event.checkpoint_id, record, goes_on, is_end=is_end)
        if record.region not in checkpoint.skipped:
            region.completed_s = now_s
    checkpoint.remaining = committables_of(checkpoint.regions)


def work_aborted(book: CoordinatorState, event: AbortedWork, now_s: float) -> None:
    """The abort is done; what could not be reached is left to the sweep."""
    if event.checkpoint_id is not None:
        book.finish(book.pending[event.checkpoint_id], now_s)


# --- committing ---------------------------------------------------------------------------------


def _settle(book: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> None:
    """The next step of a decided checkpoint; only the oldest one, so commits keep their order."""
    if checkpoint.state is State.DECIDED and not checkpoint.remaining:
        book.move(checkpoint, Event.ALL_COMMITTED, now_s)
    checkpoint.in_flight = True
    if checkpoint.state is State.COMMITTED:
        book.out.append(
            MarkCommitted(checkpoint_id=checkpoint.checkpoint_id, regions=checkpoint.regions)
        )
    elif checkpoint.state is State.REPAIRING:
        lost = lost_by_region(checkpoint.regions, checkpoint.lost)
        book.out.append(Repair(checkpoint_id=checkpoint.checkpoint_id, lost=lost))
    else:
        book.out.append(
            Commit(
                checkpoint_id=checkpoint.checkpoint_id,
                committables=checkpoint.remaining,
                after_crash=checkpoint.after_crash,
                regions=checkpoint.regions,
                skipped=dict(checkpoint.skipped),
            )
        )


def commit_reported(book: CoordinatorState, event: CommitReported, now_s: float) -> None:
    """Strike out what is committed; the rest is tried again, repaired, or ends the job."""
    checkpoint = book.pending[event.checkpoint_id]
    checkpoint.in_flight = False
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
        lose(book, checkpoint, lost, event, now_s)
    elif checkpoint.remaining:
        open_reports = (r for r in event.reports if r.outcome is not CommitOutcome.COMMITTED)
        retry(book, checkpoint, now_s, details={r.detail for r in open_reports if r.detail})
        if unknown:
            end_if_unknown(book, checkpoint, event, now_s)


def marked(book: CoordinatorState, event: Marked, now_s: float) -> None:
    """Committed on record: callbacks return, then lag tools and retention are served."""
    checkpoint = book.pending[event.checkpoint_id]
    if not event.durable:
        retry(book, checkpoint, now_s)
        return
    checkpoint.in_flight = False
    book.move(checkpoint, Event.MARK_DURABLE, now_s)
    book.last_committed = event.checkpoint_id
    _tell_histories(book, checkpoint, now_s)
    book.finish(checkpoint, now_s)
    batches = checkpoint.batches()
    for batch in batches:
        book.silence.returned(batch.region, now_s)
    book.out.append(ReturnBatches(checkpoint_id=event.checkpoint_id, batches=batches))
    committed_on_record(book, checkpoint)
    if checkpoint.kind is CheckpointKind.FINAL and is_the_end(book, checkpoint):
        book.is_finished = True
        take_care(book, now_s)  # before whoever runs the job hears of its end
        book.end(suspended_at_the_end(book), now_s)


def _tell_histories(book: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> None:
    """Lives that ended before learn how long their region was away from what is committed."""
    for name, region in book.regions.items():
        if name not in checkpoint.skipped and checkpoint.checkpoint_id > region.attempt_id:
            region.history.committed(region.attempt_id, now_s)


# --- steps that are not answered ----------------------------------------------------------------


def step_failed(book: CoordinatorState, event: StepFailed, now_s: float) -> None:
    """A remote step failed in a way that trying again cannot help."""
    checkpoint = book.pending.get(event.checkpoint_id)
    is_fenced = isinstance(event.error, FencedError)
    if checkpoint is not None and checkpoint.state is State.REPAIRING and not is_fenced:
        repair_failed(book, checkpoint, event.error, now_s)
        return
    if checkpoint is not None:
        checkpoint.in_flight, checkpoint.halted = False, True
    if is_fenced:
        book.fence(event.error)
    else:
        book.end(event.error, now_s)
