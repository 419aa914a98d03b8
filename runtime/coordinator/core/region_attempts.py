"""How an attempt of a region ends, and how the next one begins. Pure."""

from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.coordinator.core.events import (
    AbortWork,
    CommandAccepted,
    RegionFailed,
    RegionRegistered,
    RegionRestarted,
    RestartCommanded,
    RestartRequested,
)
from sluice.runtime.coordinator.core.failures import apply_failure, has_waited, of_batch
from sluice.runtime.coordinator.core.pending_checkpoint import PendingCheckpoint
from sluice.runtime.coordinator.policy.failure_errors import (
    attempt_stopped,
    epoch_too_old,
    never_polled,
    stopped_polling,
)
from sluice.runtime.coordinator.policy.state_tables import (
    FOR_CHECKPOINT,
    Event,
    RegionEvent,
    RegionPhase,
    State,
)
from sluice.runtime.coordinator.region.region_state import region_of
from sluice.runtime.errors import ConfigError, FencedError, RestartCommandedError
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.checkpoint_record import CheckpointKind

__all__ = [
    "drive_restart",
    "end_hanging",
    "end_pending_too_old",
    "end_too_old",
    "region_failed",
    "region_registered",
    "restart_commanded",
    "restart_requested",
]

_SHORTEST_POLL_TIMEOUT_S = 60.0  # Spark on a busy machine may need so long between two batches
_SHORTEST_START_TIMEOUT_S = 120.0  # and so long before the first one


# --- the end of an attempt ----------------------------------------------------------------------


def region_failed(state: CoordinatorState, event: RegionFailed, now_s: float) -> None:
    """A region's batch failed: its open epoch is aborted, its attempt ends."""
    region = region_of(state.regions, event.region)
    if event.attempt_id != region.attempt_id or not region.is_open:
        return  # the region reports an end that is known already
    failure = of_batch(state, event)
    if not event.permanent:
        _end_attempt(state, event.region, event.error, now_s)
    apply_failure(state, failure, now_s)


def end_too_old(
    state: CoordinatorState,
    checkpoint: PendingCheckpoint | None,
    ack: Acknowledgement,
    now_s: float,
) -> None:
    """A region has acknowledged a batch that may be lost already. In a checkpoint it would end the
    epochs of other regions, so this region alone reads again, as if its task had failed."""
    name, error = ack.batch.region, epoch_too_old(ack.batch.region)
    if has_waited(state, checkpoint, ack):
        _end_alone(state, name, error, now_s)
    else:
        _fail(state, name, error, now_s)


def end_pending_too_old(state: CoordinatorState, now_s: float) -> None:
    """End regions whose acknowledged batch waits for the next checkpoint and may be lost by then.
    It would end the epochs of other regions: each reads it again alone."""
    for name, region in state.regions.items():
        if region.pending_ack is not None and state.is_too_old(region.decide_by_s, now_s):
            _fail(state, name, epoch_too_old(name), now_s)


def end_hanging(state: CoordinatorState, now_s: float) -> None:
    """End regions that have stopped polling for barriers between two batches, or never began. They
    have no barrier, so no checkpoint of theirs expires, and Spark reports that they run."""
    state.liveness.watch(now_s)
    if state.is_over or not state.liveness.may_time_out(_SHORTEST_POLL_TIMEOUT_S):
        return
    timeout_s = state.settings.timeout_s
    poll_s = max(timeout_s, _SHORTEST_POLL_TIMEOUT_S)
    start_s = max(timeout_s, _SHORTEST_START_TIMEOUT_S)
    regions = state.regions
    found = {
        n: stopped_polling(n, regions[n].attempt_id, poll_s) for n in state.stopped_polling(poll_s)
    }
    for name in state.never_polled(start_s):
        region = regions[name]
        waited_s = start_s * (2 if region.plan.stateful else 1)
        found[name] = never_polled(name, region.attempt_id, region.address, waited_s)
    for name, error in found.items():
        _fail(state, name, error, now_s)


def _fail(state: CoordinatorState, name: str, error: BaseException, now_s: float) -> None:
    attempt_id = state.regions[name].attempt_id
    region_failed(state, RegionFailed(region=name, attempt_id=attempt_id, error=error), now_s)


def _end_attempt(state: CoordinatorState, name: str, error: BaseException, now_s: float) -> None:
    """End the attempt, and, unless checkpoints are regional, the epochs that it is part of."""
    if state.settings.handler.is_regional:
        _end_alone(state, name, error, now_s)
        return
    state.close_region(name, error, now_s)
    stopped = attempt_stopped(name)
    for checkpoint in state.pending.values():
        event = FOR_CHECKPOINT.get((RegionEvent.ENDED, checkpoint.state))
        if event is not None:
            state.abort(checkpoint, event, stopped, now_s)  # and all later ones
            state.regions[name].fence_at(checkpoint.checkpoint_id)
            break
    state.fail_waiting(name, stopped)


def _end_alone(state: CoordinatorState, name: str, error: BaseException, now_s: float) -> None:
    """End the attempt; other regions continue. Its acknowledged batches are decided with theirs,
    and its open one is skipped or given up, as the handler decides."""
    state.close_region(name, error, now_s)
    state.fail_waiting(name, error)


def region_registered(state: CoordinatorState, event: RegionRegistered, now_s: float) -> None:
    """A region's host reports what its attempt has open.

    While the attempt is current, that may still be decided, and its polls are timed from here on.
    Once it is over, work that no decision has and none can get is aborted before any further
    decision (`abort-before-skip`).

    Raises:
        FencedError: it is not the region's current attempt, or this coordinator is fenced.
    """
    registration = event.registration
    region = region_of(state.regions, registration.region)
    if state.is_fenced or registration.attempt_id != region.attempt_id:
        raise FencedError(
            "the region has a newer attempt, or another coordinator",
            {
                "region": registration.region,
                "attempt_id": registration.attempt_id,
                "current_attempt_id": region.attempt_id,
            },
            "Stop this attempt; a sweep aborts its open transactions.",
        )
    if region.is_open:
        region.address = registration.address or region.address
        state.liveness.started(registration.region, now_s, replayed=registration.replayed)
        return
    left = tuple(state.undecided_work(region, registration.open))
    if left:
        state.out.append(AbortWork(checkpoint_id=None, committables=left))


# --- the next attempt ---------------------------------------------------------------------------


def restart_requested(state: CoordinatorState, event: RestartRequested, now_s: float) -> None:
    """A region's host waits for the next attempt; `RegionRestarted` follows once the old work is
    settled."""
    region = region_of(state.regions, event.region)
    state.require_running()
    if region.is_open:
        _end_attempt(state, event.region, attempt_stopped(event.region), now_s)
    region.restart_requested = True
    state.unsettled.setdefault(event.region)


def restart_commanded(state: CoordinatorState, event: RestartCommanded, now_s: float) -> None:
    """An operator restarts regions: suspended ones, ones that wait for their restart strategy, and
    running ones. None of it counts as a failure, and each has all its attempts again."""
    state.require_running()
    for name in event.regions:
        # All are known before one is touched.
        region_of(state.regions, name, remedy="Choose one of these.")
    suspended = tuple(name for name, found in state.regions.items() if found.is_suspended)
    names = tuple(dict.fromkeys(event.regions)) or suspended
    if not names:
        raise ConfigError(
            "no region of the job is suspended",
            {"regions": ",".join(state.regions)},
            "Name a region to restart it while it runs.",
        )
    late = [name for name in names if name in suspended]
    if late and state.request is not None and state.request.ends_job:
        # The last checkpoint would hold its last snapshot, as if it had not been restarted.
        raise ConfigError(
            "the job is stopping, and takes no suspended region back",
            {"regions": ",".join(late)},
            "Start the job again once it has stopped: that restarts them.",
        )
    for name in names:
        _restart(state, name, now_s)
    state.out.append(CommandAccepted(regions=names))


def _restart(state: CoordinatorState, name: str, now_s: float) -> None:
    region = state.regions[name]
    if region.is_open:
        error = RestartCommandedError(
            "the region is restarted by command",
            {"region": name},
            "Let it end; its open range is read again.",
        )
        _end_alone(state, name, error, now_s)
    was_suspended = region.is_suspended
    region.resume()
    state.unsettled.setdefault(name)  # its host may wait for the next attempt already
    if not was_suspended:
        return
    # Checkpoints under way began without it, and do not wait for it. An idle one would.
    for checkpoint in state.pending.values():
        if checkpoint.state is State.ALIGNING:
            checkpoint.excused.add(name)
    fence(state, name, now_s, reason="is restarted by command")


def fence(state: CoordinatorState, name: str, now_s: float, *, reason: str) -> None:
    """Choose the slot whose aborted record ends the region's attempt. An idle checkpoint gives up
    its slot: it could wait for records for ever."""
    checkpoint = state.armed() or state.create(CheckpointKind.CHECKPOINT, "restart")
    checkpoint.reason = f"region {name} {reason}"
    state.move(checkpoint, Event.REGION_FAILED, now_s)
    state.regions[name].fence = checkpoint.checkpoint_id


def drive_restart(state: CoordinatorState, name: str, now_s: float) -> None:
    """Settle the old work of a region that failed, after a durable record of ours
    (`callback-after-commit`). The next attempt begins with that, once the restart strategy lets it.
    The old work of a suspended region is settled as well."""
    region = state.regions[name]
    if state.is_over:
        return
    is_due = region.phase is RegionPhase.SUSPENDED or (
        region.phase is RegionPhase.FAILED and region.restart_requested
    )
    if not is_due:
        del state.unsettled[name]
        return
    if region.begins_s is not None and now_s >= region.begins_s:
        region.begins_s = None
    if region.fence is None:
        fence(state, name, now_s, reason="is suspended" if region.is_suspended else "is restarted")
        return
    is_busy = region.fence in state.pending or any(p.touches(name) for p in state.pending.values())
    is_delayed = region.begins_s is not None and not region.is_suspended
    if region.fence > state.last_slot or is_busy or is_delayed:
        return
    region.settle()
    del state.unsettled[name]
    if region.is_open:
        region.history.began_s = now_s
        state.drop_cached_views()
        state.out.append(
            RegionRestarted(region=name, attempt_id=region.attempt_id, restored=region.record)
        )
