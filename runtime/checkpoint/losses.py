"""Decided work that cannot be committed: whose it was, and the errors that say so. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from runtime.contracts import CommitOutcome, CommitReport
from runtime.errors import StreamError, TransactionLostError, TransactionUnknownError
from runtime.model import RegionRecord, StateEntry

__all__ = ["LostCommittables", "lost_by_region", "lost_error", "unknown_error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LostCommittables:
    """Decided work of one region that was certainly aborted."""

    region: RegionRecord
    committables: tuple[StateEntry, ...]


def lost_by_region(
    regions: Iterable[RegionRecord], lost: Iterable[StateEntry]
) -> tuple[LostCommittables, ...]:
    """Lost committables with the region whose ranges they held; pure."""
    gone = list(lost)
    return tuple(
        LostCommittables(region=region, committables=mine)
        for region in regions
        if (mine := tuple(entry for entry in region.committables if entry in gone))
    )


def lost_error(
    checkpoint_id: int, lost: Iterable[LostCommittables], reports: Iterable[CommitReport]
) -> TransactionLostError:
    """The error that names the ranges (rule 11).

    Args:
        reports: of the lost ones, and perhaps of others. Where they tell no ranges, all that the
            regions read is named: their lost part is in it.
    """
    found, told = list(lost), list(reports)
    gone = [report for report in told if report.outcome is CommitOutcome.ABORTED]
    ranges = sorted({each for report in gone for each in report.ranges})
    if not ranges or not all(report.ranges for report in gone):
        ranges = [
            f"{split.name}:[{split.start_offset},{split.end_offset})"
            for part in found
            for split in part.region.splits
            if not split.is_empty
        ]
    return TransactionLostError(
        "a decided transaction was aborted before it could be committed: its records are missing",
        {
            "checkpoint_id": checkpoint_id,
            "regions": ",".join(part.region.region for part in found),
            "ranges": " ".join(ranges),
            "details": "; ".join(sorted({report.detail for report in told if report.detail})),
        },
        "Raise the transaction timeout, and use on_lost='repair'. Where that cannot write them "
        "again, do it by hand, then 'sluice checkpoint accept-loss' lets the job start.",
    )


def unknown_error(checkpoint_id: int, details: Iterable[str]) -> StreamError:
    """The error for work that may or may not be visible."""
    return TransactionUnknownError(
        "whether decided work is visible cannot be told",
        {"checkpoint_id": checkpoint_id, "details": "; ".join(sorted(set(filter(None, details))))},
        "Nothing was deleted or repaired. Look at what the details name, a transaction with "
        "`sluice txn describe`, then start again.",
    )
