"""A savepoint, a full checkpoint or a stop, from its request to its end. Pure.

There is one at a time. Its checkpoint is begun again if it is aborted, until its time is up. The
job continues after a request that fails.
"""

from collections.abc import Mapping

from sluice.runtime.contracts import FailureReason
from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.coordinator.core.events import (
    CheckpointRequested,
    CopyFiles,
    FilesCopied,
    RequestEnded,
)
from sluice.runtime.coordinator.core.pending_checkpoint import (
    CheckpointRequest,
    PendingCheckpoint,
)
from sluice.runtime.coordinator.policy.state_tables import ABORTABLE, RegionPhase, State
from sluice.runtime.coordinator.region.region_state import RegionState
from sluice.runtime.errors import ConfigError, WaitedTooLongError
from sluice.runtime.model.checkpoint_record import CheckpointKind
from sluice.runtime.model.splits import SplitKey

__all__ = [
    "checkpoint_requested",
    "deadline_s",
    "end_if_late",
    "files_copied",
    "is_wanted",
    "is_withheld",
    "note_decided",
    "note_marked",
]

_SPARE_BATCHES = 5
"""Spark deletes an old batch while it runs a later one, so the limit is this many batches lower."""


def checkpoint_requested(state: CoordinatorState, event: CheckpointRequested, now_s: float) -> None:
    """Note the request; its checkpoint begins in the same step if it may.

    Raises:
        ConfigError: another request is under way.
        StreamError: the job has ended.
    """
    state.require_running()
    if state.request is not None:
        raise ConfigError(
            "a savepoint, full checkpoint or stop is under way",
            {"kind": state.request.kind.value, "checkpoint_id": state.request.checkpoint_id},
            "Wait until it has ended.",
        )
    state.request = CheckpointRequest(
        kind=event.kind,
        is_copied=event.is_copied,
        drain_to=event.drain_to,
        until_s=now_s + event.limit_s,
    )


def is_wanted(state: CoordinatorState, request: CheckpointRequest) -> bool:
    """Whether its checkpoint is to begin now: it has none, or that one was aborted.

    It waits for the end offsets of a drain. It also waits for batches that an earlier checkpoint
    was decided without: their sinks may have kept files pending.
    """
    if request.is_copying or _is_begun(state, request):
        return False
    standing = state.in_service().values()
    is_late = any(
        region.pending_ack is not None or region.phase is RegionPhase.TIMED_OUT
        for region in standing
    )
    return not is_late and all(_has_drained(region, request.drain_to) for region in standing)


def _is_begun(state: CoordinatorState, request: CheckpointRequest) -> bool:
    found = _checkpoint_of(state, request)
    return found is not None and found.state is not State.ABORTING


def _checkpoint_of(state: CoordinatorState, request: CheckpointRequest) -> PendingCheckpoint | None:
    return None if request.checkpoint_id is None else state.pending.get(request.checkpoint_id)


def _has_drained(region: RegionState, drain_to: Mapping[SplitKey, int]) -> bool:
    splits = (*region.discovered.values(), *region.record.splits)
    return all(split.end_offset >= drain_to.get(split.key, 0) for split in splits)


def end_if_late(state: CoordinatorState, now_s: float) -> None:
    """Give up a request whose time is up, unless it may be decided already. Its checkpoint goes on
    as an ordinary one."""
    request, until_s = state.request, deadline_s(state)
    if request is None or until_s is None or now_s < until_s:
        return
    checkpoint = _checkpoint_of(state, request)
    if checkpoint is not None and checkpoint.kind is request.kind:
        checkpoint.kind, checkpoint.requested_by = CheckpointKind.CHECKPOINT, "interval"
    state.request = None
    state.out.append(RequestEnded(error=_late(state, request, checkpoint)))


def _late(
    state: CoordinatorState, request: CheckpointRequest, checkpoint: PendingCheckpoint | None
) -> WaitedTooLongError:
    missing = {
        name: region
        for name, region in state.in_service().items()
        if checkpoint is None or name not in checkpoint.acks
    }
    causes = [str(region.ended_by) for region in missing.values() if region.ended_by is not None]
    undrained = [n for n, region in missing.items() if not _has_drained(region, request.drain_to)]
    return WaitedTooLongError(
        "the last checkpoint was not committed in time"
        if request.ends_job
        else "the requested checkpoint was not committed in time",
        {
            "kind": request.kind.value,
            "missing_regions": ",".join(missing) or "none",
            "not_drained": ",".join(undrained) or "none",
            "last_failure": causes[-1] if causes else "none",
        },
        "Read the log for what the regions wait for, or give it more time. The job continues.",
    )


def deadline_s(state: CoordinatorState) -> float | None:
    """When time alone ends the request; None: there is none, or it may be decided already."""
    request = state.request
    if request is None or request.is_copying:
        return None
    checkpoint = _checkpoint_of(state, request)
    is_open = checkpoint is None or checkpoint.state in (*ABORTABLE, State.ABORTING)
    return request.until_s if is_open else None


# --- the copy -----------------------------------------------------------------------------------


def note_decided(state: CoordinatorState, checkpoint: PendingCheckpoint) -> None:
    """From the decision on, Spark must keep the batches that the record names."""
    request = state.request
    if (
        request is None
        or not request.is_copied
        or request.checkpoint_id != checkpoint.checkpoint_id
    ):
        return
    request.batches = {
        record.region: record.batch_id
        for record in checkpoint.regions
        if record.state is not None and record.batch_id is not None
    }


def is_withheld(state: CoordinatorState, region: RegionState) -> bool:
    """Whether the region must not begin another batch: Spark could delete the one that is being
    copied. Checkpoints take it as a region with nothing to read."""
    kept = state.settings.spark_batches
    named = None if state.request is None else state.request.batches.get(region.plan.name)
    last = region.record.batch_id
    if named is None or kept is None or last is None:
        return False
    return last + 1 - named >= kept - _SPARE_BATCHES


def note_marked(state: CoordinatorState, checkpoint: PendingCheckpoint) -> bool:
    """The checkpoint is committed on record: copy its files. Whether the job ends now."""
    request = state.request
    if request is None or request.checkpoint_id != checkpoint.checkpoint_id:
        return False
    if request.is_copied:
        request.is_copying = True
        suspended = (n for n, why in checkpoint.skipped.items() if why is FailureReason.SUSPENDED)
        state.out.append(
            CopyFiles(checkpoint_id=checkpoint.checkpoint_id, suspended=tuple(suspended))
        )
        return False
    state.request = None
    state.out.append(RequestEnded())
    return request.ends_job


def files_copied(state: CoordinatorState, event: FilesCopied, now_s: float) -> None:
    """There is a copy, or none: Spark may delete the batches. A stop ends the job only with its
    copy."""
    request = state.request
    if request is None or request.checkpoint_id != event.checkpoint_id:
        return  # the job has ended meanwhile
    state.request = None
    if request.ends_job and event.error is None:
        state.end(None, now_s)
