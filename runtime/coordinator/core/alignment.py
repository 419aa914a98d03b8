"""From the trigger to the last acknowledgement: the first half of a checkpoint. Pure."""

from collections.abc import Iterable

from sluice.runtime.coordinator.core import failure_policy as rulings
from sluice.runtime.coordinator.core.checkpoint_states import Event, State
from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.coordinator.core.events import (
    Acknowledged,
    BarrierPolled,
    FetchBarrierOffsets,
    GiveBarrier,
    NothingDue,
    RegionBarrierOffsets,
    SplitsDiscovered,
    TriggerRequested,
)
from sluice.runtime.coordinator.core.pending_checkpoint import PendingCheckpoint
from sluice.runtime.coordinator.policy.assignment import to_least_loaded
from sluice.runtime.coordinator.region.pacing import records_in
from sluice.runtime.coordinator.region.pressure import left_behind
from sluice.runtime.coordinator.region.region_state import RegionState, region_of
from sluice.runtime.errors import FencedError, IllegalTransitionError
from sluice.runtime.model.model import Acknowledgement, Barrier, CheckpointKind

__all__ = [
    "acknowledged",
    "barrier_polled",
    "next_trigger_s",
    "region_cut",
    "splits_discovered",
    "trigger_asked",
    "trigger_due",
]

_OPEN = (State.ARMED, State.ALIGNING)


# --- triggers -----------------------------------------------------------------------------------


def trigger_asked(book: CoordinatorState, event: TriggerRequested) -> None:
    """Queue the wish; `trigger_due` follows in the same step."""
    _require_running(book)
    book.asked.setdefault(event.kind, event.requested_by)


def trigger_due(book: CoordinatorState, now_s: float) -> None:
    """Begin what was asked for, or the next interval's checkpoint, if its time has come."""
    if book.is_over or _begin_asked(book, now_s):
        return
    due_s = next_trigger_s(book)
    if due_s is not None and now_s >= due_s and _may_begin(book, CheckpointKind.CHECKPOINT, now_s):
        book.begin(CheckpointKind.CHECKPOINT, "interval", now_s, forced=book.has_late())


def _begin_asked(book: CoordinatorState, now_s: float) -> bool:
    """Begin what somebody has asked for, or turn an idle barrier into it, if nothing hinders."""
    kind = next(iter(book.asked), None)
    if kind is None or not _may_begin(book, kind, now_s):
        return False
    idle = next((p for p in book.pending.values() if p.state is State.ARMED), None)
    if idle is not None:
        idle.kind, idle.requested_by = kind, book.asked.pop(kind)
        book.force(idle, now_s)
        book.answer_trigger(idle)
    elif len(book.pending) < book.settings.max_concurrent:
        book.answer_trigger(book.begin(kind, book.asked.pop(kind), now_s, forced=True))
    else:
        return False
    return True


def _may_begin(book: CoordinatorState, kind: CheckpointKind, now_s: float) -> bool:
    """Whether it could be decided, behind the end of those whose held batch is too old for it."""
    rulings.end_held_old(book, now_s)
    return not book.is_over and book.may_decide(kind)


def next_trigger_s(book: CoordinatorState) -> float | None:
    """When the interval and the minimum pause allow the next barrier; None: never by itself."""
    interval_s = book.settings.interval_s
    if interval_s is None or book.is_over or not _has_room(book):
        return None
    is_due = book.is_any_behind() or book.last_barrier_s is None
    by_interval = float("-inf") if is_due else (book.last_barrier_s or 0.0) + interval_s
    pause_s = book.settings.min_pause_s
    by_pause = float("-inf") if book.last_end_s is None else book.last_end_s + pause_s
    return max(by_interval, by_pause)


def _has_room(book: CoordinatorState) -> bool:
    if len(book.pending) >= book.settings.max_concurrent:
        return False
    # A second idle one would serve nobody, and outlive the place that ends a region's life.
    is_idle = any(p.state is State.ARMED for p in book.pending.values())
    return not is_idle and book.may_decide(CheckpointKind.CHECKPOINT)


def _require_running(book: CoordinatorState) -> None:
    if book.is_over:
        raise book.error or FencedError("the job has ended", {}, "Start it again for more.")


# --- barriers -----------------------------------------------------------------------------------


def barrier_polled(book: CoordinatorState, event: BarrierPolled, now_s: float) -> None:
    """Give the region its barrier, ask it to cut, or say that nothing is due."""
    region = region_of(book.regions, event.region)
    is_good_end = book.is_over and (book.error is None or book.is_finished)
    if is_good_end and event.attempt_id == region.attempt_id:
        book.out.append(NothingDue())  # a good end: the query idles until it is stopped
        return
    _require_running(book)
    region.require(event.attempt_id)
    book.silence.asked(event.region, now_s)
    region.attempts(book.missed_s)
    if region.is_starting:
        region.is_starting = region.needs_sweep = False
    if region.late is not None:
        # Spark may not have logged it: another cut would leave its range out for ever.
        book.out.append(GiveBarrier(barrier=region.late))
        return
    checkpoint = _open_for(book, event.region)
    if checkpoint is None:
        book.out.append(NothingDue())
    elif event.region in checkpoint.barriers:
        book.out.append(GiveBarrier(barrier=checkpoint.barriers[event.region]))
    elif (pause_s := _quiet_s(region, checkpoint, event, now_s)) > 0:
        book.out.append(NothingDue(look_in_s=pause_s))
    else:
        book.out.append(
            FetchBarrierOffsets(
                checkpoint_id=checkpoint.checkpoint_id,
                region=event.region,
                attempt_id=region.attempt_id,
                positions=region.positions(),
                max_records=region.epoch_limit(book.settings),
                has_read=event.has_read,
            )
        )


def _quiet_s(
    region: RegionState, checkpoint: PendingCheckpoint, event: BarrierPolled, now_s: float
) -> float:
    """Seconds before the region is worth another look; 0 where somebody waits for its answer, or
    there is something without a look."""
    is_asked = checkpoint.state is not State.ARMED or event.has_read
    if is_asked or region.wants_a_batch(now_s, is_last=False):
        return 0.0
    return region.quiet.left_s(checkpoint.checkpoint_id, now_s)


def region_cut(book: CoordinatorState, event: RegionBarrierOffsets, now_s: float) -> None:
    """A region's sources have cut: its barrier, or nothing to cut."""
    region = region_of(book.regions, event.region)
    region.require(event.attempt_id)
    checkpoint = _open_for(book, event.region)
    if checkpoint is None or checkpoint.checkpoint_id != event.checkpoint_id:
        book.out.append(NothingDue())
        return
    asked = {split.key for split in event.splits} if event.asked is None else event.asked
    if asked != {split.key for split in region.positions()}:
        # Cut before a decision gave one of them away, or before a new one came: the end of the
        # others is not the region's.
        book.out.append(NothingDue())
        return
    region.work = {
        split.key: records_in([split]) + event.waiting.get(split.key, 0) for split in event.splits
    }
    known = checkpoint.barriers.get(event.region)
    takes_part = event.has_read or region.wants_a_batch(now_s, is_last=event.finished)
    if known is None and (takes_part or not _is_empty(event)):
        known = _give_barrier(book, checkpoint, event, now_s)
        book.note_cut(event.region)
    if known is not None:
        book.out.append(GiveBarrier(barrier=known))
        return
    region.finished = event.finished
    region.pace.is_behind = region.owes_a_batch = False
    book.note_cut(event.region)
    if event.finished:
        checkpoint.finished.add(event.region)
    is_armed = checkpoint.state is State.ARMED
    if is_armed and event.finished and all(r.finished for r in book.standing().values()):
        book.force(checkpoint, now_s)  # nothing will ever come again: the final one
    if checkpoint.state is State.ALIGNING:
        checkpoint.acks[event.region] = None
    pause_s = region.quiet.looked(
        checkpoint.checkpoint_id,
        now_s,
        least_s=book.settings.idle_poll_s,
        longest_s=book.settings.quiet_look_s,
    )
    book.out.append(NothingDue(look_in_s=pause_s))


def _give_barrier(
    book: CoordinatorState, checkpoint: PendingCheckpoint, event: RegionBarrierOffsets, now_s: float
) -> Barrier:
    region = book.regions[event.region]
    # Where a region that follows its splits ends the epoch, it alone knows: a later cut that finds
    # nothing tells that it has reached the end. What a state gives when the watermark has passed
    # the last records, if anything, comes in the batch behind theirs, at once.
    region.owes_a_batch = event.finished and region.plan.stateful and not _is_empty(event)
    is_last = event.finished and not (region.plan.follows or region.owes_a_batch)
    barrier = Barrier(
        checkpoint_id=checkpoint.checkpoint_id,
        region=event.region,
        attempt_id=event.attempt_id,
        splits=event.splits,
        is_last=is_last,
    )
    checkpoint.barriers[event.region] = barrier
    region.cuts[checkpoint.checkpoint_id] = event.splits
    region.pace.cut(event.splits, now_s)
    if not region.plan.follows:
        region.missed_s = book.missed_s
    if region.rate is not None:
        region.rate.cut(records_in(event.splits), splits=len(event.splits), now_s=now_s)
    due_in_s = 0.0 if region.is_behind(book.settings) else book.settings.interval_s or 0.0
    region.asked = event.splits
    region.pending.begin(now_s, due_in_s=due_in_s)
    region.finished = is_last
    if is_last:
        checkpoint.finished.add(event.region)
    if checkpoint.state is State.ARMED:
        book.move(checkpoint, Event.BARRIER_CUT, now_s)
    return barrier


def _is_empty(event: RegionBarrierOffsets) -> bool:
    return all(split.is_empty for split in event.splits)


def _open_for(book: CoordinatorState, region: str) -> PendingCheckpoint | None:
    """The oldest checkpoint that this region can still join."""
    for checkpoint in book.pending.values():
        if checkpoint.state in _OPEN and region not in checkpoint.acks:
            return checkpoint
    return None


def splits_discovered(book: CoordinatorState, event: SplitsDiscovered) -> None:
    """Give new splits to the least loaded regions that read the source; to suspended ones, where
    they lie unread, only if no other reads it."""
    readers = {
        name: region
        for name, region in book.regions.items()
        if event.source_id in region.plan.source_ids
    }
    known = {split.key for region in readers.values() for split in region.positions()}
    new = [split for split in event.splits if split.key not in known]
    if not readers or not new:
        return
    target_regions = [region for region in readers.values() if region.suspended is None]
    for name, splits in to_least_loaded(new, _loads(target_regions or readers.values())).items():
        readers[name].discovered |= {split.key: split for split in splits}
        if not splits:
            continue
        readers[name].finished = readers[name].is_written = False
        for checkpoint in book.pending.values():
            if checkpoint.state in _OPEN:
                checkpoint.finished.discard(name)


def _loads(readers: Iterable[RegionState]) -> dict[str, int]:
    return {region.plan.name: len(region.positions()) for region in readers}


# --- acknowledgements ---------------------------------------------------------------------------


def acknowledged(book: CoordinatorState, event: Acknowledged, now_s: float) -> None:
    """Step 3: the batch joins its checkpoint, or waits for the next one.

    A batch is known by (region, attempt, batch id) alone; its checkpoint id is a hint
    (`batch-identity`).
    """
    ack = event.ack
    region = region_of(book.regions, ack.batch.region)
    if region.is_decided(ack.batch) or _is_known(book, region, ack):
        return  # said before: an answer was lost
    region.require(ack.batch.attempt_id)
    region.require_new_ranges(ack)
    _require_own_splits(book, ack)
    left = left_behind(region.asked, ack.region.splits) if region.plan.follows else 0
    region.pending.end(now_s, read=records_in(ack.region.splits), left=left)
    if region.rate is not None:
        region.rate.finished(now_s)
    region.again_s = None if ack.again_in_s is None else now_s + ack.again_in_s
    region.state_is_due = ack.state_is_due
    region.late = None
    region.is_starting = False
    region.keep_until(ack.decide_by_s, book.missed_s)
    checkpoint = _open_for(book, ack.batch.region)
    if checkpoint is None and region.held is not None:
        raise IllegalTransitionError(
            "a region acknowledged a second batch before its first was decided",
            {"batch": ack.batch, "waiting": region.held.batch},
            "Sluice bug: stop the job, keep its log, restart from the last checkpoint.",
        )
    if book.settings.handler.is_regional and book.is_too_old(ack.decide_by_s, now_s):
        region.held = ack  # its life ends, and throws it away
        rulings.end_grown_old(book, checkpoint, ack, now_s)
        return
    if checkpoint is not None:
        _join(book, checkpoint, ack, now_s)
        return
    region.held, region.held_since_s = ack, now_s + book.missed_s
    if book.settings.is_external:
        book.begin(CheckpointKind.CHECKPOINT, "spark", now_s, forced=True)


def _require_own_splits(book: CoordinatorState, ack: Acknowledgement) -> None:
    """Refuse a batch that reads another region's splits.

    Raises:
        IllegalTransitionError: both would read the same records.
    """
    mine = book.assignment.regions[ack.batch.region]
    unknown = {split.key for split in ack.region.splits} - mine
    for name, region in book.regions.items() if unknown else ():
        others = book.assignment.regions[name] | region.discovered.keys()
        if name != ack.batch.region and unknown & others:
            raise IllegalTransitionError(
                "a batch reads a split of another region",
                {
                    "region": ack.batch.region,
                    "owner": name,
                    "splits": ",".join(
                        f"{t}-{number}" for _, t, number in sorted(unknown & others)
                    ),
                    "batch_id": ack.batch.batch_id,
                },
                "Spark's log and the checkpoint do not fit; restart from the checkpoint.",
            )


def _join(
    book: CoordinatorState, checkpoint: PendingCheckpoint, ack: Acknowledgement, now_s: float
) -> None:
    region = book.regions[ack.batch.region]
    checkpoint.acks[ack.batch.region] = ack
    checkpoint.decide_by(region.decide_by_s, region.attended_by_s)
    region.cuts[checkpoint.checkpoint_id] = ack.region.splits
    if ack.batch.region in checkpoint.barriers:
        region.pace.finished(now_s, target_s=book.settings.epoch_target_s)
    if checkpoint.state is State.ARMED:
        book.move(checkpoint, Event.BARRIER_CUT, now_s)


def _is_known(book: CoordinatorState, region: RegionState, ack: Acknowledgement) -> bool:
    if region.held is not None and region.held.batch == ack.batch:
        return True
    return any(checkpoint.has(ack.batch) for checkpoint in book.pending.values())
