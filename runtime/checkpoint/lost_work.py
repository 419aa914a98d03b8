"""Decided work that cannot be committed: its regions, and its errors. Pure."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sluice.runtime.contracts import CommitOutcome, CommitReport, UnsettledWork
from sluice.runtime.errors import StreamError, TransactionLostError, TransactionUnknownError
from sluice.runtime.model.checkpoint_record import RegionRecord, StateEntry

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
    """Lost committables with the region whose ranges they hold."""
    gone = list(lost)
    return tuple(
        LostCommittables(region=region, committables=mine)
        for region in regions
        if (mine := tuple(entry for entry in region.committables if entry in gone))
    )


def digest_of(entry: StateEntry) -> str:
    """The name of a committable: SHA-256 of its payload."""
    return hashlib.sha256(entry.payload).hexdigest()


def unsettled_works(
    regions: Iterable[RegionRecord], answers: Iterable[tuple[StateEntry, CommitReport]]
) -> tuple[UnsettledWork, ...]:
    """The lost and unknown committables of a decision.

    Args:
        regions: of the decision, with every repair applied.
        answers: of the last attempt; some may belong to other decisions.
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
        reports: of the lost ones, and perhaps of others. If they have no ranges, the error names
            all ranges that the regions read: these contain the lost ones.
    """
    found, answers = list(lost), list(reports)
    gone = [report for report in answers if report.outcome is CommitOutcome.ABORTED]
    ranges = sorted({each for report in gone for each in report.ranges})
    if not ranges or not all(report.ranges for report in gone):
        ranges = [each for part in found for each in _ranges_of(part.region)]
    return TransactionLostError(
        "a decided transaction was aborted: its records are missing",
        {
            "checkpoint_id": checkpoint_id,
            "regions": ",".join(part.region.region for part in found),
            "ranges": " ".join(ranges),
            "details": "; ".join(sorted({report.detail for report in answers if report.detail})),
        },
        "Raise the transaction timeout, and use on_lost='repair'. If a repair cannot write the "
        "records again, run 'sluice checkpoint accept-loss', which lists the ranges. Write their "
        "records yourself, then start the job.",
    )


def why_lost(
    checkpoint_id: int,
    lost: Sequence[LostCommittables],
    reports: Iterable[CommitReport],
    failed: Mapping[str, BaseException],
) -> BaseException:
    """Why a repair failed; or an error with all ranges, if several regions lost work.

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
    """The error for work that may or may not be visible; ``works`` are those of the decision."""
    unknown = [work for work in works if work.outcome is CommitOutcome.UNKNOWN]
    return TransactionUnknownError(
        "decided work may or may not be visible: its outcome is unknown",
        {
            "checkpoint_id": checkpoint_id,
            "ranges": " ".join(sorted({each for work in unknown for each in work.ranges})),
            "details": "; ".join(sorted(set(filter(None, details)))),
        },
        "Inspect what the details name, a transaction with `sluice txn describe`, then start the "
        "job again; nothing was deleted or repaired. If the outcome stays unknown, for example "
        "because the id has expired, decide it with 'sluice checkpoint accept-loss'.",
    )
