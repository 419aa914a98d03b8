"""Decided work that cannot be committed: whose it was, and the errors that say so. Pure."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sluice.runtime.contracts import CommitOutcome, CommitReport, UnsettledWork
from sluice.runtime.errors import StreamError, TransactionLostError, TransactionUnknownError
from sluice.runtime.model.model import RegionRecord, StateEntry

__all__ = [
    "LostCommittables",
    "digest_of",
    "lost_by_region",
    "lost_error",
    "unknown_error",
    "unsettled_works",
    "why_lost",
]

_UNSETTLED = frozenset({CommitOutcome.ABORTED, CommitOutcome.UNKNOWN})


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


def digest_of(entry: StateEntry) -> str:
    """Names a committable, whatever it is named by elsewhere: SHA-256 of its payload."""
    return hashlib.sha256(entry.payload).hexdigest()


def unsettled_works(
    regions: Iterable[RegionRecord], answers: Iterable[tuple[StateEntry, CommitReport]]
) -> tuple[UnsettledWork, ...]:
    """What of a decision is lost or unknown; pure.

    Args:
        regions: of the decision, with every repair applied.
        answers: of the last try; others may be among them.
    """
    writer = {entry: region for region in regions for entry in region.committables}
    return tuple(
        UnsettledWork(
            digest=digest_of(entry),
            outcome=report.outcome,
            region=writer[entry].region,
            ranges=report.ranges or _ranges_of(writer[entry]),
            detail=report.detail,
        )
        for entry, report in answers
        if report.outcome in _UNSETTLED and entry in writer
    )


def _ranges_of(region: RegionRecord) -> tuple[str, ...]:
    return tuple(
        f"{split.name}:[{split.start_offset},{split.end_offset})"
        for split in region.splits
        if not split.is_empty
    )


def lost_error(
    checkpoint_id: int, lost: Iterable[LostCommittables], reports: Iterable[CommitReport]
) -> TransactionLostError:
    """The error that names the ranges (`two-phase-repair`).

    Args:
        reports: of the lost ones, and perhaps of others. Where they tell no ranges, all that the
            regions read is named: their lost part is in it.
    """
    found, told = list(lost), list(reports)
    gone = [report for report in told if report.outcome is CommitOutcome.ABORTED]
    ranges = sorted({each for report in gone for each in report.ranges})
    if not ranges or not all(report.ranges for report in gone):
        ranges = [each for part in found for each in _ranges_of(part.region)]
    return TransactionLostError(
        "a decided transaction was aborted before it could be committed: its records are missing",
        {
            "checkpoint_id": checkpoint_id,
            "regions": ",".join(part.region.region for part in found),
            "ranges": " ".join(ranges),
            "details": "; ".join(sorted({report.detail for report in told if report.detail})),
        },
        "Raise the transaction timeout, and use on_lost='repair'. Where that cannot write them "
        "again, 'sluice checkpoint accept-loss' names them once more and lets the job start; write "
        "them by hand before that start.",
    )


def why_lost(
    checkpoint_id: int,
    lost: Sequence[LostCommittables],
    reports: Iterable[CommitReport],
    failed: Mapping[str, BaseException],
) -> BaseException:
    """What kept a repair from being one; or all ranges, where there are several to name.

    Args:
        failed: errors of repairs, by region.
    """
    for part in lost:
        error = failed.get(part.region.region)
        if error and (len(lost) == 1 or not isinstance(error, TransactionLostError)):
            return error
    return lost_error(checkpoint_id, lost, reports)


def unknown_error(
    checkpoint_id: int, details: Iterable[str], works: Iterable[UnsettledWork]
) -> StreamError:
    """The error for work that may or may not be visible; ``works``: of the decision, if any."""
    unknown = [work for work in works if work.outcome is CommitOutcome.UNKNOWN]
    return TransactionUnknownError(
        "whether decided work is visible cannot be told",
        {
            "checkpoint_id": checkpoint_id,
            "ranges": " ".join(sorted({each for work in unknown for each in work.ranges})),
            "details": "; ".join(sorted(set(filter(None, details)))),
        },
        "Nothing was deleted or repaired. Look at what the details name, a transaction with "
        "`sluice txn describe`, then start again. If nobody can tell for good, as when its id has "
        "expired, 'sluice checkpoint accept-loss' takes your word for it.",
    )
