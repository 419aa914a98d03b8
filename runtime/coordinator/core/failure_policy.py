"""Regions that do not acknowledge: the handler's ruling, expiry, failure, return. Pure."""

from collections.abc import Sequence

from sluice.runtime.contracts import FailureReason
from sluice.runtime.coordinator.core.checkpoint_states import Event, State
from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.coordinator.core.events import (
    AbortWork,
    RegionFailed,
    RegionRegistered,
    RegionRestarted,
    RestartRequested,
)
from sluice.runtime.coordinator.core.failure_attribution import (
    given_up,
    grown_old,
    has_waited,
    holding_up,
    never_requested,
    region_grown_old,
    stopped,
    stopped_asking,
    timed_out,
    too_many,
    too_old,
    waits_for_a_commit,
    was_held_too_long,
    was_missed,
)
from sluice.runtime.coordinator.core.pending_checkpoint import ABORTABLE, PendingCheckpoint
from sluice.runtime.coordinator.core.suspension import end_or_suspend, fence, may_suspend
from sluice.runtime.coordinator.policy.handlers import HandlerDecision
from sluice.runtime.coordinator.region.region_state import region_of
from sluice.runtime.errors import (
    CheckpointFailedError,
    FencedError,
    RestartCommandedError,
    StorageUnreachableError,
)
from sluice.runtime.model.model import Acknowledgement, CheckpointKind

__all__ = [
    "drive_restart",
    "end_grown_old",
    "end_held_old",
    "end_silent",
    "region_failed",
    "region_registered",
    "restart_requested",
    "rule",
    "waits_for_older",
    "withdrawn",
]

_SHORTEST_SILENCE_S = 60.0  # Spark on a busy machine may need so long between two batches
_SHORTEST_START_S = 120.0  # and so long before the first one
_NOT_ATTRIBUTED = (StorageUnreachableError, RestartCommandedError)
_EXCUSED_ATTEMPTS = 3
"""So many lives of a region in a row may hold up others by their replays: its own failure brings
one, and a neighbour that gave up its epoch for that another, which may take the first one along."""


def rule(book: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> None:
    """All acknowledged; or the handler goes on without some; or too late."""
    checkpoint.looked_s = now_s
    if checkpoint.state is State.ALIGNING and _may_rule(book, checkpoint, now_s):
        alignment = book.alignment(checkpoint, now_s)
        ruling = book.settings.handler.rule(alignment, timeout_s=book.settings.timeout_s)
        if ruling is HandlerDecision.DECIDE:
            suspended = [n for n in book.regions if n not in checkpoint.acks]
            reasons = dict.fromkeys(suspended, FailureReason.SUSPENDED) | alignment.left_out()
            _complete(book, checkpoint, reasons, now_s)
        elif ruling is HandlerDecision.GIVE_UP:
            expired = alignment.waiting and _is_late(book, checkpoint, now_s)
            if alignment.failed and not expired:
                _give_up(book, checkpoint, sorted(alignment.failed), now_s)
            else:
                _expire(book, checkpoint, now_s)
        elif _is_late(book, checkpoint, now_s):
            _expire(book, checkpoint, now_s)
        elif not alignment.starting:  # each of those may change the ruling when it has begun
            until_s = _next_deadline_s(book, checkpoint)
            book.outlook.wait_for(checkpoint.checkpoint_id, alignment.waiting, until_s)
    if checkpoint.state is State.PRE_COMMITTED and _is_late(book, checkpoint, now_s):
        _expire(book, checkpoint, now_s)


def _may_rule(book: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> bool:
    """Whether the handler's ruling may be another one than the last."""
    is_waiting = book.outlook.is_waiting(checkpoint.checkpoint_id, checkpoint.acks, now_s)
    return not is_waiting or _is_late(book, checkpoint, now_s)


def waits_for_older(book: CoordinatorState, checkpoint: PendingCheckpoint) -> bool:
    """Whether an older epoch of a region that follows its splits is decided, and not committed yet.

    A repair of that one would come behind what the region has written since, which can be given up
    only as long as it is not decided (`two-phase-repair`).
    """
    older = [
        found
        for found in book.pending.values()
        if found.checkpoint_id < checkpoint.checkpoint_id and found.remaining
    ]
    streaming = [name for name, region in book.regions.items() if region.plan.follows]
    return any(
        found.touches(name) for found in older for name in streaming if checkpoint.touches(name)
    )


def _next_deadline_s(book: CoordinatorState, checkpoint: PendingCheckpoint) -> float:
    """Until then an acknowledgement changes the ruling only if it is the last; behind the first of
    the handler's deadlines every one may, for the late ones are counted."""
    after_s = book.settings.handler.deadlines_s(timeout_s=book.settings.timeout_s)
    return (checkpoint.barrier_s or 0.0) + min(after_s, default=0.0)


def _is_late(book: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> bool:
    return book.is_too_old(checkpoint.decide_by_s, now_s) or _is_overdue(book, checkpoint, now_s)


def _is_overdue(book: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> bool:
    started_s = now_s if checkpoint.barrier_s is None else checkpoint.barrier_s
    return now_s - started_s >= book.settings.timeout_s


def _complete(
    book: CoordinatorState,
    checkpoint: PendingCheckpoint,
    left_out: dict[str, FailureReason],
    now_s: float,
) -> None:
    checkpoint.skipped = left_out
    # A cut up to the end is no end: it is one with the acknowledgement.
    checkpoint.finished.intersection_update(checkpoint.acks)
    # What stood before a life that is starting was swept before it began.
    checkpoint.must_sweep = any(
        reason is FailureReason.ERROR and not book.regions[name].is_starting
        for name, reason in left_out.items()
    )
    for name, reason in left_out.items():
        if reason is FailureReason.EXPIRED and name in checkpoint.barriers:
            book.regions[name].late = checkpoint.barriers[name]
            book.regions[name].pace.late()
    book.move(checkpoint, Event.REST_SKIPPED if left_out else Event.ALL_ACKED, now_s)
    idle = next((p for p in book.pending.values() if p.state is State.ARMED), None)
    if idle is not None and book.has_late():
        book.force(idle, now_s)  # begun when nobody was late, it would wait for something to cut
    whole = book.standing().keys()
    is_last = checkpoint.finished >= whole and whole <= checkpoint.acks.keys()
    if is_last and checkpoint.kind is CheckpointKind.CHECKPOINT:
        checkpoint.kind, checkpoint.requested_by = CheckpointKind.FINAL, "end"


def _give_up(
    book: CoordinatorState, checkpoint: PendingCheckpoint, failed: list[str], now_s: float
) -> None:
    """A region has failed, and the handler does not go on without it."""
    paying = [name for name in failed if not book.regions[name].is_excused]
    causes = _causes(book, paying)
    error = CheckpointFailedError(
        "the checkpoint failed: regions of it ended",
        {
            "checkpoint_id": checkpoint.checkpoint_id,
            "failed": ",".join(failed),
            "error": "; ".join(str(cause) for cause in _causes(book, failed)),
        },
        "All its regions read their ranges again.",
    )
    book.abort(checkpoint, Event.REGION_FAILED, error, now_s)
    if book.settings.restart_strategy is not None or not paying:
        return  # each of them was counted when it failed
    # An outage is not counted; beside another failure it says nothing about that one.
    causes.sort(key=lambda cause: isinstance(cause, StorageUnreachableError))
    counted = [cause for cause in causes if not isinstance(cause, RestartCommandedError)]
    if counted or not causes:
        attributed = [
            name for name in paying if not isinstance(book.regions[name].ended_by, _NOT_ATTRIBUTED)
        ]
        _count_failure(
            book, counted[0] if counted else error, now_s, attributed=attributed or paying
        )


def _causes(book: CoordinatorState, names: Sequence[str]) -> list[BaseException]:
    return [cause for name in names if (cause := book.regions[name].ended_by) is not None]


def _expire(book: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> None:
    missing = [
        name
        for name, region in book.regions.items()
        if name not in checkpoint.acks and region.is_open
    ]
    grew_old = book.is_too_old(checkpoint.decide_by_s, now_s)
    guilty = holding_up(book, checkpoint, now_s, grew_old=grew_old)
    error = (
        grown_old(checkpoint, guilty or missing)
        if grew_old
        else timed_out(checkpoint, guilty or missing, timeout_s=book.settings.timeout_s)
    )
    # A late one has its barrier from an older checkpoint: an abort alone would leave it as it is.
    # So would it one that stands still between two batches, and the next checkpoint missed it, too.
    silent = set(book.silent(book.settings.timeout_s / 2))
    stuck = [name for name in guilty if book.regions[name].late is not None or name in silent]
    if grew_old and not _is_overdue(book, checkpoint, now_s):
        checkpoint.was_missed = was_missed(checkpoint.attended_by_s, now_s)
    for name in () if checkpoint.was_missed else guilty:
        if name in checkpoint.barriers or book.regions[name].late is not None:
            book.regions[name].pace.expired()
    waited = any(has_waited(book, checkpoint, ack) for ack in checkpoint.acks.values())
    if not guilty:
        waited = waited or any(waits_for_a_commit(book, checkpoint, name) for name in missing)
    book.abort(checkpoint, Event.EXPIRED, error, now_s)
    for name in stuck:
        book.close_region(name, error, now_s, fence=checkpoint.checkpoint_id)
    if waited or checkpoint.was_missed or _replays_excuse(book, guilty):
        return
    _attribute(book, checkpoint, error, now_s, slow=guilty or too_old(book, checkpoint, now_s))


def _replays_excuse(book: CoordinatorState, names: Sequence[str]) -> bool:
    """Whether a checkpoint waited for nothing but replays, each of which may take as long as it
    gets on: its neighbours read again, and nobody is to blame. Notes that it was excused.

    Where every life's replay takes longer than the time-out, regions end each other's epochs for
    ever: after a few lives without a decision such a checkpoint has failed like any other.
    """
    if not names or not all(book.silence.is_replaying(name) for name in names):
        return False
    attempts = [book.replayed.setdefault(name, set()) for name in names]
    for name, found in zip(names, attempts, strict=True):
        found.add(book.regions[name].attempt_id)
    return all(len(found) <= _EXCUSED_ATTEMPTS for found in attempts)


def withdrawn(book: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> None:
    """It grew old while nobody knew whether it was decided; its abort has landed in its place."""
    error = grown_old(checkpoint, ())
    book.abort(checkpoint, Event.ABORT_RECORD_DURABLE, error, now_s)
    book.discard(checkpoint)
    if not checkpoint.was_missed:
        _attribute(book, checkpoint, error, now_s, slow=())


def _attribute(
    book: CoordinatorState,
    checkpoint: PendingCheckpoint,
    error: BaseException,
    now_s: float,
    *,
    slow: Sequence[str],
) -> None:
    # All acknowledged, and it was still too late: no region is to blame more than another. One that
    # had nothing to cut was not too late.
    attributed = slow or [batch.region for batch in checkpoint.batches()]
    if book.settings.restart_strategy is None:
        _count_failure(book, error, now_s, attributed=attributed)
    else:
        for name in attributed:
            _ask_strategy(book, name, error, now_s, is_attributed=bool(slow))


def _count_failure(
    book: CoordinatorState, error: BaseException, now_s: float, *, attributed: Sequence[str]
) -> None:
    if isinstance(error, StorageUnreachableError):
        return  # an outage: the engine waits, and how long
    book.count_failure()
    if book.failures > book.settings.tolerable_failures:
        if not may_suspend(book, attributed):
            tolerable = book.settings.tolerable_failures
            error = too_many(book.failures, tolerable, attributed, error)
        book.tolerate_anew()  # those that are left begin anew
        end_or_suspend(book, attributed, error, now_s)


def _ask_strategy(
    book: CoordinatorState,
    name: str,
    error: BaseException,
    now_s: float,
    *,
    is_attributed: bool = True,
) -> None:
    """When the region may begin again; if never, the job ends, or goes on without it."""
    strategy, region = book.settings.restart_strategy, book.regions[name]
    if strategy is None or book.is_over or isinstance(error, StorageUnreachableError):
        return  # an outage: the engine waits, and how long
    after = strategy.after_failure(region.restarts, now_s, draw=book.draw())
    if after is None:
        end_or_suspend(
            book, [name] if is_attributed else (), given_up(region, strategy, error), now_s
        )
        return
    region.restarts = after
    if not region.is_open:
        region.begins_s = after.due_s


# --- regions that fail and come back ------------------------------------------------------------


def region_failed(book: CoordinatorState, event: RegionFailed, now_s: float) -> None:
    """A region's batch failed: its open epoch is aborted, its life ends."""
    region = region_of(book.regions, event.region)
    if event.attempt_id != region.attempt_id or not region.is_open:
        return  # the echo of an end that is known already
    if event.permanent:
        end_or_suspend(book, [event.region], event.error, now_s)
        return
    is_regional = book.settings.handler.is_regional
    # By a checkpoint that contains it, carries it, or is given up and counted.
    is_shown = is_regional and (
        region.late is not None
        or any(
            p.touches(event.region) or (p.state is State.ALIGNING and event.region not in p.acks)
            for p in book.pending.values()
        )
    )
    if is_regional:
        _end_alone(book, event.region, event.error, now_s)
    else:
        _end_attempt(book, event.region, event.error, now_s)
    if book.settings.restart_strategy is not None:
        _ask_strategy(book, event.region, event.error, now_s)
    elif not is_shown and not book.ran_at_last_failure(event.region, event.attempt_id):
        _count_failure(book, event.error, now_s, attributed=[event.region])


def end_grown_old(
    book: CoordinatorState, checkpoint: PendingCheckpoint | None, ack: Acknowledgement, now_s: float
) -> None:
    """A region has acknowledged what may be lost already. In a checkpoint it would take the others'
    epochs along, so it alone reads again, like one whose task has failed."""
    name, region = ack.batch.region, book.regions[ack.batch.region]
    error = region_grown_old(name)
    if was_missed(region.attended_by_s, now_s):
        _end_excused(book, name, error, now_s)
        return
    if has_waited(book, checkpoint, ack):
        _end_alone(book, name, error, now_s)
        return
    failed = RegionFailed(region=name, attempt_id=region.attempt_id, error=error)
    region_failed(book, failed, now_s)


def end_held_old(book: CoordinatorState, now_s: float) -> None:
    """Regions whose acknowledged batch waits for the next checkpoint, which it would take along
    with the others' epochs: each reads it again alone, and pays for it unless it had the time."""
    for name, region in book.regions.items():
        if region.held is None or not book.is_too_old(region.decide_by_s, now_s):
            continue
        error = region_grown_old(name)
        if was_missed(region.attended_by_s, now_s):
            _end_excused(book, name, error, now_s)
        elif was_held_too_long(book, region):
            _end_alone(book, name, error, now_s)
        else:
            failed = RegionFailed(region=name, attempt_id=region.attempt_id, error=error)
            region_failed(book, failed, now_s)


def end_silent(book: CoordinatorState, now_s: float) -> None:
    """Regions that have stopped asking for barriers between two batches, or have never begun to. No
    barrier is cut for them, so no checkpoint of theirs expires, and Spark says that they run."""
    book.silence.watch(now_s)
    if book.is_over or not book.silence.is_anybody(_SHORTEST_SILENCE_S):
        return
    timeout_s = book.settings.timeout_s
    silence_s, start_s = max(timeout_s, _SHORTEST_SILENCE_S), max(timeout_s, _SHORTEST_START_S)
    found = {name: stopped_asking(book.regions[name], silence_s) for name in book.silent(silence_s)}
    found |= {
        name: never_requested(book.regions[name], start_s) for name in book.never_requested(start_s)
    }
    for name, error in found.items():
        attempt = book.regions[name].attempt_id
        region_failed(book, RegionFailed(region=name, attempt_id=attempt, error=error), now_s)


def restart_requested(book: CoordinatorState, event: RestartRequested, now_s: float) -> None:
    """A region wants a new life; `RegionRestarted` follows once its old one is settled."""
    region = region_of(book.regions, event.region)
    if book.is_over:
        raise book.error or FencedError("the job has ended", {}, "Start it again for more.")
    if region.is_open and book.settings.handler.is_regional:
        _end_alone(book, event.region, stopped(event.region), now_s)
    elif region.is_open:
        _end_attempt(book, event.region, stopped(event.region), now_s)
    region.restart_requested = True
    book.restless.setdefault(event.region)


def region_registered(book: CoordinatorState, event: RegionRegistered, now_s: float) -> None:
    """A life says what it has open. While it goes on, that may still be decided, and it is watched
    from here on; once it is over, what no decision has and none can get is aborted before any
    further one (`abort-before-skip`).

    Raises:
        FencedError: it is not the region's present life, or this coordinator is fenced.
    """
    told = event.registration
    region = region_of(book.regions, told.region)
    if book.is_fenced or told.attempt_id != region.attempt_id:
        raise FencedError(
            "the region has a newer life, or another coordinator",
            {
                "region": told.region,
                "attempt_id": told.attempt_id,
                "current_generation": region.attempt_id,
            },
            "Stop this life; what it left open is swept with its attempt.",
        )
    if region.is_open:
        region.asks_at = told.address
        book.silence.begun(told.region, now_s, replayed=told.replayed)
        region.attempts(book.missed_s)
    left = () if region.is_open else tuple(book.undecidable(region, told.open))
    if left:
        book.out.append(AbortWork(checkpoint_id=None, committables=left))


def _end_alone(book: CoordinatorState, name: str, error: BaseException, now_s: float) -> None:
    """The others go on; what it has acknowledged is decided with them, what it has not is carried
    or given up, as the handler rules."""
    book.close_region(name, error, now_s, fence=None)
    book.cancel_waiting(name, error)


def _end_excused(book: CoordinatorState, name: str, error: BaseException, now_s: float) -> None:
    """Nor does it pay where the handler gives up the checkpoint that it is missing from."""
    _end_alone(book, name, error, now_s)
    book.regions[name].is_excused = True


def _end_attempt(book: CoordinatorState, name: str, cause: BaseException, now_s: float) -> None:
    book.close_region(name, cause, now_s, fence=None)
    error = stopped(name)
    first = next((p for p in book.pending.values() if p.state in ABORTABLE), None)
    if first is not None:
        book.abort(first, Event.REGION_FAILED, error, now_s)
    book.close_region(name, error, now_s, fence=None if first is None else first.checkpoint_id)
    book.cancel_waiting(name, error)


def drive_restart(book: CoordinatorState, name: str, now_s: float) -> None:
    """A region returns behind a durable record of ours, its old work settled
    (`callback-after-commit`), when its restart strategy lets it. What its old life left is aborted
    without waiting for that; of one that is suspended nothing else is done."""
    region = book.regions[name]
    if book.is_over:
        return
    if region.is_fenced_off or (not region.restart_requested and region.suspended is None):
        del book.restless[name]
        return
    if region.begins_s is not None and now_s >= region.begins_s:
        region.begins_s = None
    if region.fence is None:
        why = "is restarted" if region.suspended is None else "is suspended"
        fence(book, name, now_s, reason=why)
        return
    is_busy = region.fence in book.pending or any(p.touches(name) for p in book.pending.values())
    if region.fence > book.last_slot or is_busy:
        return
    if region.suspended is not None:
        region.fence_off()
        del book.restless[name]
    elif region.begins_s is None:
        region.reopen()
        del book.restless[name]
        book.look_again()
        book.out.append(
            RegionRestarted(region=name, attempt_id=region.attempt_id, restored=region.record)
        )
