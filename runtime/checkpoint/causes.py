"""Why a checkpoint or a region's life has ended, as errors for people. Pure."""

from collections.abc import Sequence

from runtime.checkpoint.pending import PendingCheckpoint
from runtime.checkpoint.regions import RegionState
from runtime.errors import CheckpointFailedError, FencedError, RegionGivenUpError, StreamError
from runtime.failed_tasks import in_short

__all__ = [
    "given_up",
    "grown_old",
    "never_asked",
    "region_grown_old",
    "stopped",
    "stopped_asking",
    "timed_out",
    "too_many",
]

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
    failures: int, tolerable: int, blamed: Sequence[str], cause: BaseException
) -> RegionGivenUpError:
    """For a job that has failed more often in a row than it tolerates."""
    error = RegionGivenUpError(
        "the job has ended: it failed more often in a row than it tolerates",
        {
            "failures": failures,
            "tolerable_failures": tolerable,
            "regions": ",".join(blamed),
            "cause": in_short(cause),
        },
        "Nothing undecided became visible. Remove the cause and start the job again. A function "
        "that raised is to be corrected, or may leave such records out: on_error= of map_batches "
        "(docs/poison-records.md).",
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
        "parked region, again.",
    )
    error.__cause__ = cause
    return error


def stopped_asking(region: RegionState, limit_s: float) -> StreamError:
    """For a query that hangs between two batches."""
    return StreamError(
        "the query of a region has stopped asking for its next batch",
        {"region": region.plan.name, "generation": region.generation, "silent_s": limit_s},
        "Its thread hangs between two batches, as on a file system that does not answer, or "
        "its driver cannot reach the coordinator. The region begins again at the last "
        "checkpoint, as often as the job tolerates.",
    )


def never_asked(region: RegionState, limit_s: float) -> StreamError:
    """For a query that was started, and hangs before its first batch."""
    return StreamError(
        "the query of a region was started and has never asked for a batch",
        {
            "region": region.plan.name,
            "generation": region.generation,
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
