"""Which version of each broadcast stream an epoch uses: one in all regions. Pure."""

from collections.abc import Iterable

from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.coordinator.core.pending_checkpoint import PendingCheckpoint
from sluice.runtime.coordinator.region.region_state import RegionState
from sluice.runtime.model.state.broadcast_version import BroadcastVersion

__all__ = ["awaits_broadcast", "broadcasts_in", "renew_planned"]


def broadcasts_in(
    state: CoordinatorState, checkpoint: PendingCheckpoint, region: RegionState, *, has_read: bool
) -> tuple[tuple[BroadcastVersion, ...], tuple[BroadcastVersion, ...]]:
    """The versions of the region's broadcast streams, in this epoch and in the next one.

    The first barrier of a checkpoint fixes them for all regions: the newest decided ones, unless a
    task has begun the epoch with those of the last barrier. A region that has begun it with others
    reads it again.
    """
    reads = region.plan.reads
    if reads and checkpoint.broadcasts is None:
        decided = state.decided_broadcasts()
        checkpoint.broadcasts = state.planned if region.plan.follows and has_read else decided
        checkpoint.next_broadcasts = state.planned = decided
        state.planned_age = 0

    def mine(found: Iterable[BroadcastVersion]) -> tuple[BroadcastVersion, ...]:
        return tuple(version for version in found if version.operator_id in reads)

    return mine(checkpoint.broadcasts or ()), mine(checkpoint.next_broadcasts)


def renew_planned(state: CoordinatorState) -> None:
    """A checkpoint is decided. While all readers are idle, no barrier brings them newer versions,
    and retention deletes the files of those that they have: a new task could not load them. Then
    the newest ones count, and a task that has begun its epoch with others reads it again."""
    state.planned_age += 1
    if state.planned_age >= state.settings.retained:
        state.planned, state.planned_age = state.decided_broadcasts(), 0


def awaits_broadcast(
    state: CoordinatorState, checkpoint: PendingCheckpoint, region: RegionState
) -> bool:
    """Whether a stream that the region waits for has no version yet."""
    fixed = checkpoint.broadcasts
    found = state.decided_broadcasts() if fixed is None else fixed
    return any(v.is_empty and v.operator_id in region.plan.waits_for for v in found)
