"""Why a checkpoint, a region's attempt or a job has ended, as errors for people. Pure."""

from collections import Counter
from collections.abc import Collection, Sequence

from sluice.runtime.contracts import FailedTask, FailureReason
from sluice.runtime.errors import (
    CheckpointFailedError,
    FencedError,
    RegionGivenUpError,
    SourceChangedError,
    StreamError,
)
from sluice.runtime.failover.attempt_history import first_line
from sluice.runtime.model.splits import SplitKey
from sluice.runtime.process.failed_tasks import failed_subtask, in_short

__all__ = [
    "attempt_stopped",
    "checkpoint_expired",
    "checkpoint_too_old",
    "epoch_too_old",
    "failed_task",
    "keyed_partitions_changed",
    "never_polled",
    "region_given_up",
    "regions_ended",
    "stopped_polling",
    "too_many_failures",
]

_TOO_OLD = (
    "Raise transactionTimeout, or lower the records per epoch or the interval. None of it is "
    "visible, and its ranges are read again."
)


def failed_task(
    region: str, reason: FailureReason, cause: BaseException | None, *, waited_s: float
) -> FailedTask:
    """For a region that a decision skips.

    Args:
        cause: the error that ended its attempt; None: it has not ended.
        waited_s: since the checkpoint's barrier.
    """
    if reason is FailureReason.EXPIRED:
        message = f"has not acknowledged {waited_s:.1f} s after the barrier"
        return FailedTask(
            subtask_id=0, task_name=region, region=region, reason=reason, message=message
        )
    subtask_id, task_name = failed_subtask(cause) or (0, region)
    return FailedTask(
        subtask_id=subtask_id,
        task_name=task_name,
        region=region,
        reason=reason,
        message="" if cause is None else first_line(cause),
    )


def keyed_partitions_changed(
    known: Collection[SplitKey], new: Collection[SplitKey]
) -> SourceChangedError:
    """The topic of a keyed pipeline has got partitions: its producers now send keys elsewhere than
    where their state is.

    Args:
        known, new: splits of its source.
    """
    before = Counter(topic for _, topic, _ in known)
    now = before + Counter(topic for _, topic, _ in new)
    grown = sorted({topic for _, topic, _ in new})
    return SourceChangedError(
        "the topic of a keyed pipeline has other partitions than its state",
        {
            "topics": ",".join(grown),
            "partitions_before": ",".join(str(before[topic]) for topic in grown),
            "partitions_now": ",".join(str(now[topic]) for topic in grown),
        },
        "Use key_by(..., partitioned=False), or read a new topic in a new job. Records since the "
        "change may have met the state of another partition: restore an older checkpoint.",
    )


def regions_ended(
    checkpoint_id: int, failed: Sequence[str], causes: Sequence[BaseException]
) -> CheckpointFailedError:
    """For a checkpoint whose handler does not skip the regions that failed."""
    return CheckpointFailedError(
        "the checkpoint failed, because attempts of its regions failed",
        {
            "checkpoint_id": checkpoint_id,
            "failed": ",".join(failed),
            "error": "; ".join(str(cause) for cause in causes),
        },
        "Remove the cause if it recurs. All regions of the checkpoint read their ranges again.",
    )


def checkpoint_expired(
    checkpoint_id: int, missing: Sequence[str], *, timeout_s: float
) -> CheckpointFailedError:
    """For a checkpoint that was not complete in time."""
    return CheckpointFailedError(
        "the checkpoint expired: not every region acknowledged in time",
        {"checkpoint_id": checkpoint_id, "timeout_s": timeout_s, "missing": ",".join(missing)},
        "Raise the timeout, or lower the records per epoch. The ranges are read again.",
    )


def checkpoint_too_old(checkpoint_id: int, missing: Sequence[str]) -> CheckpointFailedError:
    """For a checkpoint that was not decided while it was safe."""
    return CheckpointFailedError(
        "the checkpoint is too old to decide: brokers may abort its transactions",
        {"checkpoint_id": checkpoint_id, "missing": ",".join(missing)},
        _TOO_OLD,
    )


def epoch_too_old(region: str) -> CheckpointFailedError:
    """For a region whose epoch came too late to be decided."""
    return CheckpointFailedError(
        "an epoch is too old to decide: brokers may abort its transactions",
        {"region": region},
        _TOO_OLD,
    )


def too_many_failures(
    failures: int, tolerable: int, attributed: Sequence[str], cause: BaseException
) -> RegionGivenUpError:
    """For a job that has failed more often in a row than it tolerates."""
    error = RegionGivenUpError(
        "the job failed more often in a row than it tolerates",
        {
            "failures": failures,
            "tolerable_failures": tolerable,
            "regions": ",".join(attributed),
            "cause": in_short(cause),
        },
        "Remove the cause and start the job again; nothing undecided became visible. Correct a "
        "function that raised, or let it leave out such records: on_error= of map_batches "
        "(docs/guide/functions.md).",
    )
    error.__cause__ = cause
    return error


def region_given_up(
    region: str, attempts: int, strategy: object, cause: BaseException
) -> RegionGivenUpError:
    """For a region that its restart strategy does not restart again."""
    error = RegionGivenUpError(
        "a region failed more often than its restart strategy allows",
        {
            "region": region,
            "attempts": attempts,
            "strategy": str(strategy),
            "cause": in_short(cause),
        },
        "Remove the cause and start the job, or the suspended region, again. Nothing undecided "
        "became visible.",
    )
    error.__cause__ = cause
    return error


def stopped_polling(region: str, attempt_id: int, timeout_s: float) -> StreamError:
    """For a query that hangs between two batches."""
    return StreamError(
        "a region's query no longer requests its next batch",
        {"region": region, "attempt_id": attempt_id, "timeout_s": timeout_s},
        "Check whether its thread hangs between two batches, as on a file system that does not "
        "answer, and whether its driver reaches the coordinator. The region restarts from the "
        "last checkpoint, as often as the job tolerates.",
    )


def never_polled(region: str, attempt_id: int, address: str, timeout_s: float) -> StreamError:
    """For a query that was started, and hangs before its first batch."""
    return StreamError(
        "a region's query started, but never requested a batch",
        {
            "region": region,
            "attempt_id": attempt_id,
            "waited_s": timeout_s,
            **({"address": address} if address else {}),
        },
        "Check whether its source runner, a Python process beside Spark's driver, reaches the "
        "coordinator. Job(host=...) must be an address at which the driver's machine answers "
        "itself, too, with no firewall between; raise timeout_s where a start merely takes longer. "
        "The region restarts from the last checkpoint, as often as the job tolerates.",
    )


def attempt_stopped(region: str) -> FencedError:
    """For callbacks that wait for a region whose attempt is over."""
    return FencedError(
        "the region is being stopped", {"region": region}, "Let it end; its range is read again."
    )
