"""A sink as the coordinator uses it: one thread calls it at a time, and one committer commits the
work of all its regions."""

import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import cast

from sluice.runtime.continuous.native_commits import TasksFirst
from sluice.runtime.contracts import (
    CheckpointCommitter,
    Clock,
    CommitListener,
    CommitOutcome,
    CommitReport,
    Committer,
    FailedTask,
    FailureReason,
    RegionCheckpointFailedDetail,
    RegionProgress,
    RegionWork,
    SinkContext,
    SinkCoordinator,
    SweepReport,
    SweepView,
)
from sluice.runtime.coordinator.committing import commit_ledger
from sluice.runtime.errors import UnreachableError
from sluice.runtime.model.checkpoint_record import StateEntry

__all__ = ["SerialSink", "SharedCommitter"]

log = logging.getLogger(__name__)

_CLOSE_S = 10.0
_COMMITTED = CommitReport(outcome=CommitOutcome.COMMITTED)


class SerialSink:
    """A `SinkCoordinator` with three locks: for its committer, its renewal, and all other calls.

    So neither a commit nor a renewal waits for a sweep that waits for a dead broker.

    Args:
        sink: of the connector.
        tasks_first: the sink's continuous tasks, which commit first; None: it has none.
    """

    def __init__(self, sink: SinkCoordinator, tasks_first: TasksFirst | None = None) -> None:
        self._sink = sink
        self._lock = threading.Lock()
        self._committing = threading.Lock()
        self._renewing = threading.Lock()
        self.tasks_first = tasks_first
        self.facts: Mapping[str, str] = {}  # the answer of `check`

    @contextmanager
    def committing(self) -> Iterator[Committer]:
        """The connector's committer, for this thread alone. It may exist only after `claim`."""
        with self._committing:
            yield self._sink.committer

    def await_visible(self, *, timeout_s: float) -> bool:
        """See `Committer.await_visible`."""
        with self.committing() as committer:
            return committer.await_visible(timeout_s=timeout_s)

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        """See `SinkCoordinator.check`. Raises ConfigError also as `TasksFirst.require_short`."""
        with self._lock:
            facts = self.facts = self._sink.check(timeout_s=timeout_s)
        if self.tasks_first is not None:
            self.tasks_first.require_short(facts)
        return facts

    def claim(self, context: SinkContext, *, timeout_s: float) -> None:
        """See `SinkCoordinator.claim`."""
        with self._lock:
            self._sink.claim(context, timeout_s=timeout_s)

    def sweep(self, view: SweepView, *, timeout_s: float) -> SweepReport:
        """See `SinkCoordinator.sweep`."""
        with self._lock:
            return self._sink.sweep(view, timeout_s=timeout_s)

    def renew(self) -> None:
        """See `SinkCoordinator.renew`."""
        with self._renewing:
            self._sink.renew()

    def close(self) -> None:
        """See `SinkCoordinator.close`. If a renewal hangs, for example on a mount that is gone, the
        sink stays open and its lease is not released: the job must end."""
        if not self._renewing.acquire(timeout=_CLOSE_S):
            log.warning("sink is not closed, a renewal of its lease hangs: waited_s=%.0f", _CLOSE_S)
            return
        try:
            with self._committing, self._lock:
                self._sink.close()
        finally:
            self._renewing.release()


@cache  # a run-time check of a protocol takes as long as a commit's own work
def _listens(committer: type[Committer]) -> bool:
    return issubclass(committer, CommitListener)


@cache
def _names_checkpoints(committer: type[Committer]) -> bool:
    return issubclass(committer, CheckpointCommitter)


class SharedCommitter:
    """Publishes the work of all regions of one sink. Driver; the thread that starts the job calls
    it, then the I/O thread.

    It receives the pre-committed work of each region, then each decision, oldest first:

    - of *completed* regions everything pre-committed for this checkpoint and older ones is
      published, oldest first and each region in its order (`continuous-order`): while anything
      older of a region is not certainly published, nothing newer of it is. Other regions do not
      wait for it;
    - of *failed* regions everything that no earlier decision published stays pending: neither
      published nor aborted, until the region's next completed checkpoint publishes it, or `abort`
      ends it. The scope makes no difference. A failed region without work delays nothing.

    A repeated notification has no further effect. It keeps nothing that a recovery needs: its
    ledger saves requests and keeps the order. ``_metadata`` names decided work, and the next start
    passes it again. Pending work is undecided, so a crash ends it with its region and the sweep
    aborts it.

    Args:
        sink: commits single committables, after its tasks have tried.
        name: of the sink.
        clock: divides a time limit among several epochs.
    """

    def __init__(self, sink: SerialSink, *, name: str, clock: Clock = time.monotonic) -> None:
        self._name = name
        self._sink = sink
        self._clock = clock
        self._ledger = commit_ledger.Ledger()
        self._listener_failure: tuple[int, FailureReason, str] | None = None

    def pre_committed(self, checkpoint_id: int, work: RegionWork) -> None:
        """Pre-committed work of regions for a checkpoint; at the latest with its decision.

        A repeated call for a region and checkpoint replaces the earlier work (a repair). Pending
        work of an older checkpoint that is named here has joined this one.
        """
        self._ledger = commit_ledger.pre_committed(self._ledger, checkpoint_id, work)

    def notify_checkpoint_complete(
        self, checkpoint_id: int, *, timeout_s: float, after_crash: bool
    ) -> Mapping[StateEntry, CommitReport]:
        """Every region completed: publish all of this and older checkpoints.

        Returns a report for each decided committable that is not forgotten (see `Committer.commit`
        for outcomes and ``after_crash``). The next notification tries again all work that is not
        COMMITTED. A repeated older notification only does that.

        Raises:
            IllegalTransitionError: the checkpoint was notified before with other failed regions.
        """
        return self._complete(checkpoint_id, (), timeout_s=timeout_s, after_crash=after_crash)

    def notify_regional_checkpoint_complete(
        self, detail: RegionCheckpointFailedDetail, *, timeout_s: float, after_crash: bool
    ) -> Mapping[StateEntry, CommitReport]:
        """Some regions completed: publish their work, keep the work of the failed ones pending.

        Reports as `notify_checkpoint_complete`, for decided work; pending work has none.
        """
        return self._complete(
            detail.checkpoint_id,
            detail.failed_regions,
            timeout_s=timeout_s,
            after_crash=after_crash,
        )

    def abort(
        self, committables: Sequence[StateEntry], *, timeout_s: float
    ) -> Mapping[StateEntry, CommitReport]:
        """A region's checkpoint was aborted: discard its work, and later work of the region.

        The work is forgotten for any answer of the remote; the sweep finds the rest.

        Raises:
            IllegalTransitionError: a decision names some of it; the call aborted nothing.
        """
        self._ledger, gone = commit_ledger.aborted(self._ledger, committables)
        with self._sink.committing() as committer:
            reports = committer.abort(gone, timeout_s=timeout_s)
        return dict(zip(gone, reports, strict=True))

    def pending(self, region: str, *, through: int) -> tuple[StateEntry, ...]:
        """Work that a region pre-committed for checkpoints up to ``through`` and that no decision
        names yet, in order."""
        return commit_ledger.pending(self._ledger, region, through=through)

    def regions_published(
        self, checkpoint_id: int, regions: Sequence[RegionProgress], *, timeout_s: float
    ) -> CommitReport:
        """See `CommitListener.regions_published`; COMMITTED at once if the sink has none.

        After that the checkpoint is finished, and its published work is forgotten.
        """
        if commit_ledger.checkpoints_due(self._ledger, checkpoint_id):
            return CommitReport(
                outcome=CommitOutcome.PENDING, detail="some of its work is not published yet"
            )
        report, reason = _COMMITTED, FailureReason.EXPIRED
        with self._sink.committing() as committer:
            if _listens(type(committer)):
                listener = cast(CommitListener, committer)
                try:
                    report = listener.regions_published(checkpoint_id, regions, timeout_s=timeout_s)
                except UnreachableError as err:
                    reason = FailureReason.ERROR
                    report = CommitReport(outcome=CommitOutcome.PENDING, detail=str(err))
        if report.outcome is CommitOutcome.COMMITTED:
            self._ledger = commit_ledger.forgotten(self._ledger, checkpoint_id)
            if self._listener_failure is not None and self._listener_failure[0] < checkpoint_id:
                self._listener_failure = None
        else:
            self._listener_failure = checkpoint_id, reason, report.detail
        return report

    def failed_listener(self, *, before: int) -> FailedTask | None:
        """The sink's commit listener as a failed task, if it did not complete the decision before
        this one at once. It has completed it by now, because decisions are committed in order."""
        if self._listener_failure is None or self._listener_failure[0] >= before:
            return None
        _, reason, detail = self._listener_failure
        return FailedTask(
            subtask_id=0,
            task_name=self._name,
            region=None,
            reason=reason,
            message=detail.partition("\n")[0],
        )

    def _complete(
        self, checkpoint_id: int, failed: Collection[str], *, timeout_s: float, after_crash: bool
    ) -> Mapping[StateEntry, CommitReport]:
        deadline_s = self._clock() + timeout_s
        self._ledger = commit_ledger.decided(self._ledger, checkpoint_id, failed)
        left_s = timeout_s
        for due in commit_ledger.checkpoints_due(self._ledger, checkpoint_id):
            entries = commit_ledger.wave(self._ledger, due)
            if entries:
                self._publish(due, entries, timeout_s=left_s, after_crash=after_crash)
                left_s = max(0.0, deadline_s - self._clock())
        return commit_ledger.reports_of(self._ledger, checkpoint_id)

    def _publish(
        self,
        checkpoint_id: int,
        entries: tuple[StateEntry, ...],
        *,
        timeout_s: float,
        after_crash: bool,
    ) -> None:
        """Commit, in a task of the sink if one can. Entries tried before are verified first."""
        after_crash = after_crash or any(entry in self._ledger.answers for entry in entries)
        tasks = self._sink.tasks_first
        try:
            with self._sink.committing() as committer:
                if _names_checkpoints(type(committer)):
                    cast(CheckpointCommitter, committer).begin_checkpoint(checkpoint_id)
                commit = committer.commit if tasks is None else partial(tasks.commit, committer)
                reports = commit(entries, timeout_s=timeout_s, after_crash=after_crash)
        except UnreachableError as err:
            pending = CommitReport(outcome=CommitOutcome.PENDING, detail=str(err))
            reports = [pending] * len(entries)
        self._ledger = commit_ledger.reported(self._ledger, entries, reports)
