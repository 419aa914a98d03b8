"""Why a checkpoint or a region's life has ended, as errors for people. Pure.

Who holds up a checkpoint, and who only waits for somebody else. Pure.

A failure is counted for those who hold up an epoch. A region that waits for them, for its next life
or for a commit has done nothing, and one that has nothing to read says nothing about the others.
"""

from collections.abc import Sequence

from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.coordinator.core.pending_checkpoint import PendingCheckpoint
from sluice.runtime.coordinator.region.region_state import RegionState
from sluice.runtime.errors import (
    CheckpointFailedError,
    FencedError,
    RegionGivenUpError,
    StreamError,
)
from sluice.runtime.model.model import Acknowledgement
from sluice.runtime.model.timestamps import is_past
from sluice.runtime.process.failed_tasks import in_short

__all__ = [
    "given_up",
    "grown_old",
    "has_waited",
    "holding_up",
    "is_back",
    "never_requested",
    "region_grown_old",
    "stopped",
    "stopped_asking",
    "timed_out",
    "too_many",
    "too_old",
    "waits_for_a_commit",
    "was_held_too_long",
    "was_missed",
]


def is_back(region: RegionState) -> bool:
    """Whether the region was away and has only come back: its life is not its first one, and it has
    completed no checkpoint, with a batch or without.

    A region that never had anything to read was never away.
    """
    return region.is_open and region.history.count > 0 and region.completed_in <= region.attempt_id


def has_waited(
    book: CoordinatorState, checkpoint: PendingCheckpoint | None, ack: Acknowledgement | None
) -> bool:
    """Whether a region's work grew old before its barrier came, for another held up the barrier.

    Nobody is to blame for that: whoever was away has paid for it, or pays by its carries, and a
    region that had to wait as long for its own next life would make the next one's work grow old.
    Nor is anybody to blame for what this host has slept since: see `was_missed`.
    """
    if checkpoint is None or checkpoint.barrier_s is None or ack is None:
        return False
    name = ack.batch.region
    return (
        book.regions[name].has_decided
        and book.is_too_old(ack.decide_by_s, checkpoint.barrier_s)
        and any(
            is_back(found) or _was_waited_for(found)
            for other, found in book.regions.items()
            if other != name
        )
    )


def was_missed(attended_by_s: float | None, now_s: float) -> bool:
    """Whether work that is too old would not be, without what the clock of the steps has missed
    since it was begun: the host slept, or nobody ran this driver, and no region was slow.

    Each such end needs another pause, for what is read again is begun behind it.
    """
    return attended_by_s is not None and now_s < attended_by_s


def _was_waited_for(region: RegionState) -> bool:
    """Whether the last decision was taken without the region, behind its time limit: that of one
    whose life has ended nobody waited for."""
    return region.is_open and region.skipped > 0


def was_held_too_long(book: CoordinatorState, region: RegionState) -> bool:
    """Whether the region's held batch, which has grown old, had time for a checkpoint that comes
    when it is due: then something else has held up that checkpoint."""
    settings = book.settings
    due_s = region.held_since_s + (settings.interval_s or 0.0) + settings.min_pause_s
    return not is_past(region.decide_by_s, due_s)


def holding_up(
    book: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float, *, grew_old: bool
) -> list[str]:
    """Open regions for which a checkpoint has waited in vain.

    Args:
        grew_old: it ends since work in it would be lost, maybe long before its time is up: then who
            has no barrier had to have the time to ask for one.
    """
    waited_s = 0.0 if checkpoint.barrier_s is None else now_s - checkpoint.barrier_s
    could_ask = not grew_old or waited_s >= book.settings.timeout_s / 2
    return [
        name
        for name, region in book.regions.items()
        if region.is_open
        and name not in checkpoint.acks
        and name not in checkpoint.skipped
        and (could_ask or region.late is not None or name in checkpoint.barriers)
        and not waits_for_a_commit(book, checkpoint, name)
    ]


def waits_for_a_commit(book: CoordinatorState, checkpoint: PendingCheckpoint, name: str) -> bool:
    """Whether the region cannot cut yet: its batch is in an older checkpoint, whose end it awaits.
    A region that follows its splits goes on meanwhile."""
    if book.regions[name].plan.follows or name in checkpoint.barriers:
        return False
    return any(
        found.checkpoint_id < checkpoint.checkpoint_id and found.acks.get(name) is not None
        for found in book.pending.values()
    )


def too_old(book: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> list[str]:
    """Regions whose own work grew old, if that of others did not: only these took them along. One
    that had nothing to cut has no work."""
    acks = checkpoint.acknowledged()
    old = [ack.batch.region for ack in acks if book.is_too_old(ack.decide_by_s, now_s)]
    return old if len(old) < len(acks) else []


_OLD = (
    "Nothing of it is visible, and it is read again. Raise transactionTimeout, or lower the "
    "records per epoch or the interval."
)


def timed_out(
    checkpoint: PendingCheckpoint, missing: Sequence[str], *, timeout_s: float
) -> CheckpointFailedError:
    """For a checkpoint that was not complete in time."""
    return CheckpointFailedError(
        "the checkpoint expired: not every region acknowledged in time",
        {
            "checkpoint_id": checkpoint.checkpoint_id,
            "timeout_s": timeout_s,
            "missing": ",".join(missing),
        },
        "It is read again. Raise the timeout, or lower the records per epoch.",
    )


def grown_old(checkpoint: PendingCheckpoint, missing: Sequence[str]) -> CheckpointFailedError:
    """For a checkpoint that was not decided while it was safe."""
    return CheckpointFailedError(
        "the checkpoint grew old before its decision: a broker may soon end a transaction of it",
        {"checkpoint_id": checkpoint.checkpoint_id, "missing": ",".join(missing)},
        _OLD,
    )


def region_grown_old(region: str) -> CheckpointFailedError:
    """For a region whose epoch came too late to be decided."""
    return CheckpointFailedError(
        "an epoch grew old before its decision: its broker may soon end a transaction of it",
        {"region": region},
        _OLD,
    )


def too_many(
    failures: int, tolerable: int, attributed: Sequence[str], cause: BaseException
) -> RegionGivenUpError:
    """For a job that has failed more often in a row than it tolerates."""
    error = RegionGivenUpError(
        "the job has ended: it failed more often in a row than it tolerates",
        {
            "failures": failures,
            "tolerable_failures": tolerable,
            "regions": ",".join(attributed),
            "cause": in_short(cause),
        },
        "Nothing undecided became visible. Remove the cause and start the job again. A function "
        "that raised is to be corrected, or may leave such records out: on_error= of map_batches "
        "(docs/guide/functions.md).",
    )
    error.__cause__ = cause
    return error


def given_up(region: RegionState, strategy: object, cause: BaseException) -> RegionGivenUpError:
    """For a region that its restart strategy lets begin no more."""
    error = RegionGivenUpError(
        "a region failed more often than its restart strategy allows",
        {
            "region": region.plan.name,
            "attempts": region.history.count,
            "strategy": str(strategy),
            "cause": in_short(cause),
        },
        "Nothing undecided became visible. Remove the cause and start the job, or the "
        "suspended region, again.",
    )
    error.__cause__ = cause
    return error


def stopped_asking(region: RegionState, limit_s: float) -> StreamError:
    """For a query that hangs between two batches."""
    return StreamError(
        "the query of a region has stopped asking for its next batch",
        {"region": region.plan.name, "attempt_id": region.attempt_id, "silent_s": limit_s},
        "Its thread hangs between two batches, as on a file system that does not answer, or "
        "its driver cannot reach the coordinator. The region begins again at the last "
        "checkpoint, as often as the job tolerates.",
    )


def never_requested(region: RegionState, limit_s: float) -> StreamError:
    """For a query that was started, and hangs before its first batch."""
    return StreamError(
        "the query of a region was started and has never asked for a batch",
        {
            "region": region.plan.name,
            "attempt_id": region.attempt_id,
            "waited_s": limit_s * (2 if region.plan.stateful else 1),
            **({"address": region.asks_at} if region.asks_at else {}),
        },
        "Can its source runner, a Python process beside Spark's driver, reach the coordinator? "
        "Job(host=...) must be an address at which the driver's machine answers itself, too, with "
        "no firewall between; raise timeout_s where a start merely takes longer. The region begins "
        "again at the last checkpoint, as often as the job tolerates.",
    )


def stopped(name: str) -> FencedError:
    """For what waits for a region whose life is over."""
    return FencedError(
        "the region is being stopped", {"region": name}, "Its open range is read again."
    )
