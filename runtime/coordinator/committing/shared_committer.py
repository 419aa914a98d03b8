"""One committer for all regions of a sink, around the committer of single committables."""

import time
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import cast

from sluice.runtime.contracts import (
    Clock,
    CommitListener,
    CommitOutcome,
    CommitReport,
    Committer,
    RegionCheckpointFailedDetail,
    RegionProgress,
    RegionWork,
)
from sluice.runtime.coordinator.committing import commit_ledger as core
from sluice.runtime.errors import UnreachableError
from sluice.runtime.model.checkpoint_record import StateEntry

__all__ = ["RegionalCommitter"]


@cache  # a run-time check of a protocol takes as long as a commit's own work
def _listens(committer: type[Committer]) -> bool:
    return issubclass(committer, CommitListener)


class RegionalCommitter:
    """`sluice.runtime.contracts.SharedCommitter` over any `Committer`. Driver.

    There is one for each sink and coordinator. The thread that starts the job calls it, then the
    I/O thread. Its ledger saves requests and keeps the order; a recovery makes a new one from the
    records.

    Args:
        committer: commits single committables.
        clock: divides a time limit among several epochs.
    """

    def __init__(self, committer: Committer, *, clock: Clock = time.monotonic) -> None:
        self._committer = committer
        self._listener = cast(CommitListener, committer) if _listens(type(committer)) else None
        self._clock = clock
        self._ledger = core.Ledger()

    def pre_committed(self, checkpoint_id: int, work: RegionWork) -> None:
        """See `SharedCommitter.pre_committed`."""
        self._ledger = core.pre_committed(self._ledger, checkpoint_id, work)

    def notify_checkpoint_complete(
        self, checkpoint_id: int, *, timeout_s: float, after_crash: bool
    ) -> Mapping[StateEntry, CommitReport]:
        """See `SharedCommitter.notify_checkpoint_complete`."""
        return self._complete(checkpoint_id, (), timeout_s=timeout_s, after_crash=after_crash)

    def notify_regional_checkpoint_complete(
        self, detail: RegionCheckpointFailedDetail, *, timeout_s: float, after_crash: bool
    ) -> Mapping[StateEntry, CommitReport]:
        """See `SharedCommitter.notify_regional_checkpoint_complete`."""
        return self._complete(
            detail.checkpoint_id,
            detail.failed_regions,
            timeout_s=timeout_s,
            after_crash=after_crash,
        )

    def abort(
        self, committables: Sequence[StateEntry], *, timeout_s: float
    ) -> Mapping[StateEntry, CommitReport]:
        """See `SharedCommitter.abort`."""
        self._ledger, gone = core.aborted(self._ledger, committables)
        reports = self._committer.abort(gone, timeout_s=timeout_s)
        return dict(zip(gone, reports, strict=True))

    def pending(self, region: str, *, through: int) -> tuple[StateEntry, ...]:
        """See `SharedCommitter.pending`."""
        return core.pending(self._ledger, region, through=through)

    def regions_published(
        self, checkpoint_id: int, regions: Sequence[RegionProgress], *, timeout_s: float
    ) -> CommitReport:
        """See `CommitListener.regions_published`."""
        if core.checkpoints_due(self._ledger, checkpoint_id):
            return CommitReport(
                outcome=CommitOutcome.PENDING, detail="some of its work is not published yet"
            )
        report = self._report_progress(checkpoint_id, regions, timeout_s=timeout_s)
        if report.outcome is CommitOutcome.COMMITTED:
            self._ledger = core.forgotten(self._ledger, checkpoint_id)
        return report

    def _report_progress(
        self, checkpoint_id: int, regions: Sequence[RegionProgress], *, timeout_s: float
    ) -> CommitReport:
        if self._listener is None:
            return CommitReport(outcome=CommitOutcome.COMMITTED)
        try:
            return self._listener.regions_published(checkpoint_id, regions, timeout_s=timeout_s)
        except UnreachableError as err:
            return CommitReport(outcome=CommitOutcome.PENDING, detail=str(err))

    def _complete(
        self, checkpoint_id: int, failed: Collection[str], *, timeout_s: float, after_crash: bool
    ) -> Mapping[StateEntry, CommitReport]:
        deadline_s = self._clock() + timeout_s
        self._ledger = core.decided(self._ledger, checkpoint_id, failed)
        left_s = timeout_s
        for due in core.checkpoints_due(self._ledger, checkpoint_id):
            entries = core.wave(self._ledger, due)
            if entries:
                self._publish(entries, timeout_s=left_s, after_crash=after_crash)
                left_s = max(0.0, deadline_s - self._clock())
        return core.reports_of(self._ledger, checkpoint_id)

    def _publish(
        self, entries: tuple[StateEntry, ...], *, timeout_s: float, after_crash: bool
    ) -> None:
        was_tried = any(entry in self._ledger.answers for entry in entries)
        try:
            reports = self._committer.commit(
                entries, timeout_s=timeout_s, after_crash=after_crash or was_tried
            )
        except UnreachableError as err:
            pending = CommitReport(outcome=CommitOutcome.PENDING, detail=str(err))
            reports = [pending] * len(entries)
        self._ledger = core.reported(self._ledger, entries, reports)
