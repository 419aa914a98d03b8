"""The first half of a checkpoint: from its trigger to the last acknowledgement. Pure.

It ends complete, complete without some regions, or given up.
"""

from collections.abc import Iterable

from sluice.runtime.contracts import FailureReason
from sluice.runtime.coordinator.core.broadcasts import awaits_broadcast, broadcasts_in
from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState, JobPhase
from sluice.runtime.coordinator.core.events import (
    BarrierPolled,
    FetchBarrierOffsets,
    GiveBarrier,
    NothingDue,
    RegionBarrierOffsets,
    SplitsDiscovered,
    Triggered,
    TriggerRequested,
)
from sluice.runtime.coordinator.core.failures import (
    apply_failure,
    delaying_regions,
    of_checkpoint,
    of_ended_regions,
    of_expiry,
)
from sluice.runtime.coordinator.core.pending_checkpoint import PUBLISHES_ALL, PendingCheckpoint
from sluice.runtime.coordinator.core.region_attempts import end_pending_too_old
from sluice.runtime.coordinator.core.requested_checkpoint import is_wanted, is_withheld
from sluice.runtime.coordinator.policy.assignment import to_least_loaded
from sluice.runtime.coordinator.policy.failure_errors import (
    checkpoint_expired,
    checkpoint_too_old,
    failed_task,
    keyed_partitions_changed,
    regions_ended,
)
from sluice.runtime.coordinator.policy.handlers import HandlerDecision
from sluice.runtime.coordinator.policy.state_tables import (
    FOR_REGION,
    Event,
    RegionEvent,
    RegionPhase,
    State,
)
from sluice.runtime.coordinator.region.region_pace import records_in
from sluice.runtime.coordinator.region.region_state import RegionState, region_of
from sluice.runtime.model.checkpoint_record import CheckpointKind
from sluice.runtime.model.splits import Barrier

__all__ = [
    "barrier_polled",
    "complete_if_due",
    "next_trigger_s",
    "offsets_fetched",
    "open_for",
    "splits_discovered",
    "trigger_due",
    "trigger_requested",
    "withdrawn",
]

_OPEN = (State.ARMED, State.ALIGNING)


# --- triggers -----------------------------------------------------------------------------------


def trigger_requested(state: CoordinatorState, event: TriggerRequested, now_s: float) -> None:
    """Queue the request; `trigger_due` follows in the same step."""
    state.require_running()
    state.trigger_requests.setdefault(event.kind, event.requested_by)


def trigger_due(state: CoordinatorState, now_s: float) -> None:
    """Begin a requested checkpoint, or the next interval's one, if its time has come."""
    if state.is_over or _begin_request(state, now_s) or _begin_triggered(state, now_s):
        return
    due_s = next_trigger_s(state)
    if due_s is not None and now_s >= due_s and _may_begin(state, CheckpointKind.CHECKPOINT, now_s):
        state.begin(CheckpointKind.CHECKPOINT, "interval", now_s, forced=state.has_timed_out())


def _begin_request(state: CoordinatorState, now_s: float) -> bool:
    request = state.request
    if request is None or not is_wanted(state, request):
        return False
    requested_by = "stop" if request.ends_job else "user"
    begun = _begin(state, request.kind, requested_by, now_s)
    if begun is None or state.request is None:
        return False
    request.checkpoint_id = begun.checkpoint_id
    return True


def _begin_triggered(state: CoordinatorState, now_s: float) -> bool:
    kind = next(iter(state.trigger_requests), None)
    begun = None if kind is None else _begin(state, kind, state.trigger_requests[kind], now_s)
    if kind is None or begun is None:
        return False
    del state.trigger_requests[kind]
    state.out.append(Triggered(checkpoint_id=begun.checkpoint_id, kind=kind))
    return True


def _begin(
    state: CoordinatorState, kind: CheckpointKind, requested_by: str, now_s: float
) -> PendingCheckpoint | None:
    """Begin a requested checkpoint, or turn an idle one into it, if it may begin."""
    if not _may_begin(state, kind, now_s):
        return None
    begun = state.armed()
    if begun is not None:
        begun.kind, begun.requested_by = kind, requested_by
        state.force(begun, now_s)
    elif not _is_full(state):
        begun = state.begin(kind, requested_by, now_s, forced=True)
    return begun


def _may_begin(state: CoordinatorState, kind: CheckpointKind, now_s: float) -> bool:
    """Whether it could be decided, after regions whose pending batch is too old for it have
    ended."""
    end_pending_too_old(state, now_s)
    return not state.is_over and state.may_decide(kind)


def next_trigger_s(state: CoordinatorState) -> float | None:
    """When the interval and the minimum pause allow the next barrier; None: never by itself."""
    interval_s = state.settings.interval_s
    if interval_s is None or state.is_over or not _has_room(state):
        return None
    is_due = state.has_backlog() or state.last_barrier_s is None
    by_interval = float("-inf") if is_due else (state.last_barrier_s or 0.0) + interval_s
    pause_s = state.settings.min_pause_s
    by_pause = float("-inf") if state.last_end_s is None else state.last_end_s + pause_s
    return max(by_interval, by_pause)


def _has_room(state: CoordinatorState) -> bool:
    if _is_full(state):
        return False
    # A second idle one is of no use, and would outlive the slot that ends a region's attempt.
    return state.armed() is None and state.may_decide(CheckpointKind.CHECKPOINT)


def _is_full(state: CoordinatorState) -> bool:
    return state.is_held or len(state.pending) >= state.settings.max_concurrent


# --- barriers -----------------------------------------------------------------------------------


def barrier_polled(state: CoordinatorState, event: BarrierPolled, now_s: float) -> None:
    """Give the region its barrier, request its barrier offsets, or answer that nothing is due."""
    region = region_of(state.regions, event.region)
    is_good_end = state.phase is JobPhase.FINISHED or (state.is_over and state.error is None)
    if is_good_end and event.attempt_id == region.attempt_id:
        state.out.append(NothingDue())  # a good end: the query waits until it is stopped
        return
    state.require_running()
    region.require(event.attempt_id)
    state.liveness.polled(event.region, now_s)
    if region.phase is RegionPhase.STARTING:
        region.needs_sweep = False
    region.advance(RegionEvent.POLLED)
    if region.phase is RegionPhase.TIMED_OUT and region.barrier is not None:
        # Spark may not have logged it: with another barrier its range would be left out for ever.
        state.out.append(GiveBarrier(barrier=region.barrier))
        return
    checkpoint = open_for(state, event.region)
    if checkpoint is None:
        state.out.append(NothingDue())
    elif event.region in checkpoint.barriers:
        state.out.append(GiveBarrier(barrier=checkpoint.barriers[event.region]))
    elif is_withheld(state, region) or awaits_broadcast(state, checkpoint, region):
        if checkpoint.state is State.ALIGNING:
            checkpoint.acks[event.region] = None  # as a region with nothing to read
        state.out.append(NothingDue())
    elif (pause_s := _idle_s(state, region, checkpoint, event, now_s)) > 0:
        state.out.append(NothingDue(poll_in_s=pause_s))
    else:
        state.out.append(
            FetchBarrierOffsets(
                checkpoint_id=checkpoint.checkpoint_id,
                region=event.region,
                attempt_id=region.attempt_id,
                positions=region.positions(),
                max_records=region.epoch_limit(state.settings),
                has_read=event.has_read,
                may_finish=all(state.has_ended(name) for name in region.plan.upstream),
                input_ms=state.time.input_ms(region.plan, state.regions),
            )
        )


def _idle_s(
    state: CoordinatorState,
    region: RegionState,
    checkpoint: PendingCheckpoint,
    event: BarrierPolled,
    now_s: float,
) -> float:
    """Seconds before the region's sources are polled again; 0 if the checkpoint waits for its
    answer, or the region has something to do without new records."""
    is_requested = checkpoint.state is not State.ARMED or event.has_read
    if is_requested or state.wants_batch(region, checkpoint, now_s, is_last=False):
        return 0.0
    return region.idle.left_s(checkpoint.checkpoint_id, now_s)


def offsets_fetched(state: CoordinatorState, event: RegionBarrierOffsets, now_s: float) -> None:
    """A region's sources have returned barrier offsets: its barrier, or nothing to read."""
    region = region_of(state.regions, event.region)
    region.require(event.attempt_id)
    if event.input_ms is not None:
        state.time.topics.note_ends(event.log_ends, event.input_ms)
        state.cached_views.is_timed = False
    checkpoint = open_for(state, event.region)
    if checkpoint is None or checkpoint.checkpoint_id != event.checkpoint_id:
        state.out.append(NothingDue())
        return
    asked = {split.key for split in event.splits} if event.requested is None else event.requested
    if asked != {split.key for split in region.positions()}:
        # The offsets are older than a reassignment or a new split: the end of these splits is not
        # the end of the region.
        state.out.append(NothingDue())
        return
    region.work = {
        split.key: records_in([split]) + event.waiting.get(split.key, 0) for split in event.splits
    }
    state.note_unread(region, now_s)
    known = checkpoint.barriers.get(event.region)
    publishes_all = event.finished or checkpoint.kind in PUBLISHES_ALL
    is_end = event.finished and _is_empty(event) and not event.has_read and region.wants_end
    takes_part = is_end or event.has_read
    takes_part |= state.wants_batch(region, checkpoint, now_s, is_last=publishes_all)
    if known is None and (takes_part or not _is_empty(event)):
        known = _give_barrier(state, checkpoint, event, now_s, is_end=is_end)
        state.note_barrier(event.region)
    if known is not None:
        state.out.append(GiveBarrier(barrier=known))
        return
    region.finished = event.finished
    region.pace.has_backlog = region.owes_batch = False
    state.note_barrier(event.region)
    if event.finished:
        checkpoint.finished.add(event.region)
    is_armed = checkpoint.state is State.ARMED
    if is_armed and event.finished and all(r.finished for r in state.in_service().values()):
        state.force(checkpoint, now_s)  # no record will ever come again: the final one
    if checkpoint.state is State.ALIGNING:
        checkpoint.acks[event.region] = None
    pause_s = region.idle.found_nothing(
        checkpoint.checkpoint_id,
        now_s,
        least_s=state.settings.idle_poll_s,
        longest_s=state.settings.idle_refresh_s,
    )
    state.out.append(NothingDue(poll_in_s=pause_s))


def _give_barrier(
    state: CoordinatorState,
    checkpoint: PendingCheckpoint,
    event: RegionBarrierOffsets,
    now_s: float,
    *,
    is_end: bool,
) -> Barrier:
    region = state.regions[event.region]
    broadcasts, next_broadcasts = broadcasts_in(state, checkpoint, region, has_read=event.has_read)
    # A streaming region ends its epoch by itself: it has reached the end of its input when a later
    # poll finds nothing. A state may return rows once the watermark has passed the last records:
    # they come in the batch after the last one, at once.
    has_state = region.plan.stateful or (region.plan.keyed and not region.plan.follows)
    region.owes_batch = event.finished and has_state and not _is_empty(event)
    is_last = is_end or (event.finished and not (region.plan.follows or region.owes_batch))
    region.has_ended = region.has_ended or is_end
    watermark_ms, time_ms = state.barrier_time(checkpoint, region)
    barrier = Barrier(
        checkpoint_id=checkpoint.checkpoint_id,
        region=event.region,
        attempt_id=event.attempt_id,
        splits=event.splits,
        publishes_all=is_last or checkpoint.kind in PUBLISHES_ALL,
        watermark_ms=watermark_ms,
        time_ms=time_ms,
        aligned_ms=state.time.least_of_others(event.region, state.regions.values()),
        is_end=is_end,
        new_state=region.state_for(event.splits),
        broadcasts=broadcasts,
        next_broadcasts=next_broadcasts,
    )
    checkpoint.barriers[event.region] = barrier
    region.open_ranges[checkpoint.checkpoint_id] = event.splits
    region.pace.begin(event.splits, now_s)
    if region.rate is not None:
        region.rate.cut(records_in(event.splits), splits=len(event.splits), now_s=now_s)
    due_in_s = 0.0 if region.has_backlog(state.settings) else state.settings.interval_s or 0.0
    region.barrier = barrier
    region.pending_time.begin(now_s, due_in_s=due_in_s)
    region.finished = is_last
    if is_last:
        checkpoint.finished.add(event.region)
    region.advance(RegionEvent.BARRIER_GIVEN)
    state.region_event(RegionEvent.BARRIER_GIVEN, checkpoint, now_s)
    return barrier


def _is_empty(event: RegionBarrierOffsets) -> bool:
    return all(split.is_empty for split in event.splits)


def open_for(state: CoordinatorState, region: str) -> PendingCheckpoint | None:
    """The oldest checkpoint that this region can still join."""
    for checkpoint in state.pending.values():
        if checkpoint.state in _OPEN and region not in checkpoint.acks:
            return checkpoint
    return None


def splits_discovered(state: CoordinatorState, event: SplitsDiscovered, now_s: float) -> None:
    """Assign new splits to the least loaded regions that read the source. Suspended regions, which
    do not read them, get new splits only if no other region reads the source."""
    readers = {
        name: region
        for name, region in state.regions.items()
        if event.source_id in region.plan.source_ids
    }
    known = {split.key for region in readers.values() for split in region.positions()}
    new = [split for split in event.splits if split.key not in known]
    if not readers or not new:
        return
    if known and any(region.plan.keyed for region in readers.values()):
        state.end(keyed_partitions_changed(known, {split.key for split in new}), now_s)
        return
    target_regions = [region for region in readers.values() if not region.is_suspended]
    for name, splits in to_least_loaded(new, _loads(target_regions or readers.values())).items():
        readers[name].discovered |= {split.key: split for split in splits}
        if not splits:
            continue
        readers[name].finished = readers[name].is_written = False
        for checkpoint in state.pending.values():
            if checkpoint.state in _OPEN:
                checkpoint.finished.discard(name)


def _loads(readers: Iterable[RegionState]) -> dict[str, int]:
    return {region.plan.name: len(region.positions()) for region in readers}


# --- the end ------------------------------------------------------------------------------------


def complete_if_due(state: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> None:
    """Complete a checkpoint if all regions acknowledged, or if its handler skips the missing ones;
    give it up if it is too late."""
    checkpoint.evaluated_s = now_s
    if checkpoint.state is State.ALIGNING and _may_change(state, checkpoint, now_s):
        alignment = state.alignment(checkpoint, now_s)
        timeout_s = _timeout_s(state, checkpoint)
        decision = state.settings.handler.rule(alignment, timeout_s=timeout_s)
        if decision is HandlerDecision.DECIDE:
            suspended = [n for n in state.regions if n not in checkpoint.acks]
            reasons = dict.fromkeys(suspended, FailureReason.SUSPENDED) | alignment.left_out()
            _complete(state, checkpoint, reasons, now_s)
        elif decision is HandlerDecision.GIVE_UP:
            expired = alignment.waiting and _is_late(state, checkpoint, now_s)
            if alignment.failed and not expired:
                _give_up(state, checkpoint, sorted(alignment.failed), now_s)
            else:
                _expire(state, checkpoint, now_s)
        elif _is_late(state, checkpoint, now_s):
            _expire(state, checkpoint, now_s)
        elif not alignment.starting:  # each of those may change the decision when it has begun
            until_s = _next_deadline_s(state, checkpoint)
            state.cached_views.wait_for(checkpoint.checkpoint_id, alignment.waiting, until_s)
    if checkpoint.state is State.PRE_COMMITTED and _is_late(state, checkpoint, now_s):
        _expire(state, checkpoint, now_s)


def _may_change(state: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> bool:
    """Whether the handler may decide differently than the last time."""
    is_waiting = state.cached_views.is_waiting(checkpoint.checkpoint_id, checkpoint.acks, now_s)
    return not is_waiting or _is_late(state, checkpoint, now_s)


def _next_deadline_s(state: CoordinatorState, checkpoint: PendingCheckpoint) -> float:
    """Until then only the last acknowledgement changes the handler's decision. After the first of
    its deadlines each one may, for the handler counts the missing ones."""
    after_s = state.settings.handler.deadlines_s(timeout_s=state.settings.timeout_s)
    return (checkpoint.barrier_s or 0.0) + min(after_s, default=0.0)


def _timeout_s(state: CoordinatorState, checkpoint: PendingCheckpoint) -> float:
    """From its barrier on. A batch that loads keyed state may take as long as it makes progress:
    else each attempt would load it, and be ended, for ever."""
    timeout_s, barrier_s = state.settings.timeout_s, checkpoint.barrier_s
    if barrier_s is None or not state.liveness.loads_state:
        return timeout_s
    loading_s = max(map(state.liveness.loading_s, checkpoint.barriers), default=barrier_s)
    return timeout_s + max(0.0, loading_s - barrier_s)


def _is_late(state: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> bool:
    started_s = now_s if checkpoint.barrier_s is None else checkpoint.barrier_s
    is_overdue = now_s - started_s >= _timeout_s(state, checkpoint)
    return is_overdue or state.is_too_old(checkpoint.decide_by_s, now_s)


def _complete(
    state: CoordinatorState,
    checkpoint: PendingCheckpoint,
    skipped: dict[str, FailureReason],
    now_s: float,
) -> None:
    checkpoint.skipped = skipped
    waited_s = now_s - (checkpoint.barrier_s or now_s)
    checkpoint.failed_tasks = tuple(
        failed_task(name, reason, state.regions[name].cause, waited_s=waited_s)
        for name, reason in skipped.items()
    )
    # Only an acknowledged range that ends with the input ends the region.
    checkpoint.finished.intersection_update(checkpoint.acks)
    # The work of the attempt before one that is starting was settled before that may start.
    checkpoint.must_sweep = any(
        reason is FailureReason.ERROR and state.regions[name].phase is not RegionPhase.STARTING
        for name, reason in skipped.items()
    )
    for name in [name for name in skipped if name in checkpoint.barriers]:
        region = state.regions[name]
        if FOR_REGION.get((Event.REST_SKIPPED, region.phase)) is RegionEvent.BATCH_SKIPPED:
            region.advance(RegionEvent.BATCH_SKIPPED)
            region.pace.timed_out()
    state.move(checkpoint, Event.REST_SKIPPED if skipped else Event.ALL_ACKED, now_s)
    idle = state.armed()
    if idle is not None and state.has_timed_out():
        state.force(idle, now_s)  # it was begun before that, and would wait for records to read
    in_service = state.in_service().keys()
    is_last = checkpoint.finished >= in_service and in_service <= checkpoint.acks.keys()
    if is_last and checkpoint.kind is CheckpointKind.CHECKPOINT:
        checkpoint.kind, checkpoint.requested_by = CheckpointKind.FINAL, "end"


def _give_up(
    state: CoordinatorState, checkpoint: PendingCheckpoint, failed: list[str], now_s: float
) -> None:
    """Abort: a region has failed, and the handler does not decide without it."""
    causes = [cause for name in failed if (cause := state.regions[name].ended_by) is not None]
    error = regions_ended(checkpoint.checkpoint_id, failed, causes)
    failure = of_ended_regions(state, failed, error)
    state.abort(checkpoint, Event.REGION_FAILED, error, now_s)
    apply_failure(state, failure, now_s)


def _expire(state: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> None:
    """Abort: the time of the checkpoint is up, or work in it is too old."""
    grew_old = state.is_too_old(checkpoint.decide_by_s, now_s)
    delaying = delaying_regions(state, checkpoint, now_s, grew_old=grew_old)
    missing = delaying or [
        name
        for name, region in state.regions.items()
        if name not in checkpoint.acks and region.is_open
    ]
    error = (
        checkpoint_too_old(checkpoint.checkpoint_id, missing)
        if grew_old
        else checkpoint_expired(
            checkpoint.checkpoint_id, missing, timeout_s=state.settings.timeout_s
        )
    )
    # The abort ends the attempts with a barrier or a batch in it. A region that timed out has its
    # barrier from an older checkpoint, and one that hangs between two batches has none. The next
    # checkpoint would wait for them, too.
    timed_out = {name for name in delaying if state.regions[name].phase is RegionPhase.TIMED_OUT}
    hanging = set(state.stopped_polling(state.settings.timeout_s / 2))
    for name in delaying:
        if name in checkpoint.barriers or name in timed_out:
            state.regions[name].pace.expired()
    failure = of_expiry(state, checkpoint, error, delaying, now_s)
    state.abort(checkpoint, Event.EXPIRED, error, now_s)
    for name in delaying:
        if name in timed_out or name in hanging:
            state.close_region(name, error, now_s)
            state.regions[name].fence_at(checkpoint.checkpoint_id)
    apply_failure(state, failure, now_s)


def withdrawn(state: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> None:
    """Abort: work grew old before it was known whether it was decided, and the aborted record is
    durable in the checkpoint's slot."""
    error = checkpoint_too_old(checkpoint.checkpoint_id, ())
    state.abort(checkpoint, Event.ABORT_RECORD_DURABLE, error, now_s)
    state.discard(checkpoint)
    # All regions with a batch share the failure.
    apply_failure(state, of_checkpoint(checkpoint, error, ()), now_s)
