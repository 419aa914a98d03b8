"""Commits of continuous epochs by the tasks that wrote them; by the driver if no task answers."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from sluice.runtime.continuous.task_messages import CommittedEpoch
from sluice.runtime.contracts import (
    INTERVALS_PER_TRANSACTION_TIMEOUT,
    Clock,
    CommitOutcome,
    CommitReport,
    Committer,
)
from sluice.runtime.errors import ConfigError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import BatchKey

__all__ = ["LostTimeout", "NativeCommits", "RequestedCommits", "TasksFirst"]

log = logging.getLogger(__name__)

_REPORT_S = 2.0  # above the time limit of a task, see `sluice.runtime.continuous.checkpoint_client`
_USUAL_S = 60.0
_SHARE = 0.45
_BY_TASK = CommitReport(outcome=CommitOutcome.COMMITTED, detail="the task's commit was accepted")


@dataclass(slots=True)
class _Attempt:
    """One attempt of a region.

    Attributes:
        attempt_id: its own.
        epochs: committables of its acknowledged epochs that are not committed on record, by batch
            id.
        requested: batch ids that its task shall commit and has not reported.
        committed: committables whose commit the task has reported as acknowledged.
        has_timed_out: it got a request in vain, and has sent no poll since.
    """

    attempt_id: int
    epochs: dict[int, tuple[StateEntry, ...]] = field(default_factory=dict)
    requested: set[int] = field(default_factory=set)
    committed: set[StateEntry] = field(default_factory=set)
    has_timed_out: bool = False

    def request(self, decided: frozenset[StateEntry]) -> set[StateEntry]:
        """Request the commits of decided epochs; returns the decided entries of this attempt."""
        mine: set[StateEntry] = set()
        for batch_id, entries in self.epochs.items():
            named = decided.intersection(entries)
            mine |= named
            # Else it was committed along with another sink's, or another sink has waited.
            if named - self.committed and not self.has_timed_out:
                self.requested.add(batch_id)
        return mine


class NativeCommits:
    """The epochs that running tasks shall commit, and the outcomes that they report. Driver.

    The I/O thread requests commits; the service's threads pass requests and reports on. A report
    counts only while the I/O thread waits for it, and only for commits that it says were
    acknowledged. The broker's verdict settles everything else (`outcome-from-broker`), whatever the
    task may still do.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._attempts: dict[str, _Attempt] = {}
        self._tried: dict[str, frozenset[StateEntry]] = {}  # by region; also of ended attempts
        self._wake_polls: Callable[[], None] = lambda: None

    def wake_polls_with(self, wake: Callable[[], None]) -> None:
        """Set the function that makes waiting polls return, so that they bring a request."""
        self._wake_polls = wake

    # --- of an attempt ----------------------------------------------------------------------------

    def begin(self, region: str, attempt_id: int) -> None:
        """A region's new attempt begins; no report of an older one counts any more."""
        with self._changed:
            self._attempts[region] = _Attempt(attempt_id)
            self._changed.notify_all()

    def end(self, region: str, attempt_id: int) -> None:
        """This attempt reports nothing any more: it is over, or it is being stopped."""
        with self._changed:
            if self._of(region, attempt_id) is not None:
                del self._attempts[region]
                self._changed.notify_all()

    def add_epoch(self, batch: BatchKey, committables: tuple[StateEntry, ...]) -> None:
        """An attempt acknowledges an epoch; its task can commit it later."""
        with self._changed:
            attempt = self._of(batch.region, batch.attempt_id)
            if attempt is not None and committables:
                attempt.epochs[batch.batch_id] = committables

    def remove_epochs(self, region: str, attempt_id: int, *, through: int) -> None:
        """Epochs up to this batch id are committed on record."""
        with self._changed:
            attempt = self._of(region, attempt_id)
            if attempt is not None:
                for batch_id in [each for each in attempt.epochs if each <= through]:
                    attempt.committed.difference_update(attempt.epochs.pop(batch_id))

    def requested(self, region: str, attempt_id: int) -> tuple[int, ...]:
        """Batch ids that the attempt's task shall commit, in order."""
        with self._changed:
            attempt = self._of(region, attempt_id)
            return () if attempt is None else tuple(sorted(attempt.requested))

    def report(self, region: str, attempt_id: int, epochs: Iterable[CommittedEpoch]) -> None:
        """A task reports the outcome of requested commits; others do not count
        (`callback-after-commit`)."""
        with self._changed:
            attempt = self._of(region, attempt_id)
            if attempt is None:
                return
            attempt.has_timed_out = False
            for epoch in epochs:
                if epoch.batch_id in attempt.requested:
                    attempt.requested.discard(epoch.batch_id)
                    entries = attempt.epochs.get(epoch.batch_id, ())
                    attempt.committed |= {e for e in entries if e.operator_id in epoch.operators}
            self._changed.notify_all()

    # --- of a decision ----------------------------------------------------------------------------

    def request(self, entries: Collection[StateEntry]) -> "RequestedCommits":
        """Let running tasks commit their epochs among these entries of a decision."""
        attempts: dict[str, int] = {}
        decided, mine = frozenset(entries), set[StateEntry]()
        with self._changed:
            for region, attempt in self._attempts.items():
                named = attempt.request(decided)
                if named:
                    attempts[region] = attempt.attempt_id
                    mine |= named
                if attempt.requested:
                    tries = (attempt.epochs.get(batch_id, ()) for batch_id in attempt.requested)
                    self._tried[region] = frozenset(chain.from_iterable(tries))
            tried = decided.intersection(chain.from_iterable(self._tried.values()))
        if attempts:
            self._wake_polls()
        return RequestedCommits(self, attempts, frozenset(mine), tried)

    def await_reports(
        self, attempts: Mapping[str, int], *, timeout_s: float
    ) -> frozenset[StateEntry]:
        """Wait until these attempts have reported or are over, or time is up; then withdraw the
        requests. Returns the entries whose commit was acknowledged."""
        with self._changed:
            self._changed.wait_for(
                lambda: not any(attempt.requested for attempt in self._running(attempts)), timeout_s
            )
            committed: set[StateEntry] = set()
            for attempt in self._running(attempts):
                attempt.has_timed_out |= bool(attempt.requested)
                attempt.requested.clear()
                committed |= attempt.committed
            return frozenset(committed)

    def _running(self, attempts: Mapping[str, int]) -> list[_Attempt]:
        found = (self._of(region, attempt_id) for region, attempt_id in attempts.items())
        return [attempt for attempt in found if attempt is not None]

    def _of(self, region: str, attempt_id: int) -> _Attempt | None:
        attempt = self._attempts.get(region)
        return attempt if attempt is not None and attempt.attempt_id == attempt_id else None


@dataclass(frozen=True, slots=True)
class RequestedCommits:
    """The commits that tasks were requested to do.

    Attributes:
        attempts: attempt id by region.
        entries: of the decision; empty if no running task has written any of it.
        tried: entries of the decision that a task was requested to commit, now or earlier along
            with another sink's. It may have committed them, even if it no longer runs.
    """

    _commits: NativeCommits
    attempts: Mapping[str, int]
    entries: frozenset[StateEntry]
    tried: frozenset[StateEntry]

    def await_acknowledged(self, *, timeout_s: float) -> frozenset[StateEntry]:
        """The entries whose commit was acknowledged; see `NativeCommits.await_reports`."""
        return self.entries & self._commits.await_reports(self.attempts, timeout_s=timeout_s)


class LostTimeout:
    """How long a continuous task runs without an answer from its coordinator.

    Always below half of the transaction timeout of every sink that the tasks write to. So the task
    ends in the first half, and the next coordinator aborts its open work in the second half, before
    the broker does. Driver, one thread.

    Args:
        requested_s: the user's setting; None: a minute, or less if a sink needs that.

    Attributes:
        seconds: the timeout; final once `allow` was called for every sink.
    """

    def __init__(self, requested_s: float | None) -> None:
        self._requested_s = requested_s
        self.seconds = _USUAL_S if requested_s is None else requested_s

    def allow(self, transaction_timeout_s: float) -> None:
        """Respect the transaction timeout of a sink.

        Raises:
            ConfigError: the user's own setting is not below half of that.
        """
        if self._requested_s is None:
            self.seconds = min(self.seconds, _SHARE * transaction_timeout_s)
        elif self._requested_s >= transaction_timeout_s / 2:
            raise ConfigError(
                "a continuous task would outlive its coordinator for too long",
                {
                    "coordinator_lost_timeout_s": self._requested_s,
                    "transaction_timeout_s": transaction_timeout_s,
                },
                "Keep coordinator_lost_timeout_s below half of the transaction timeout, leave it "
                "out, or raise the transaction timeout.",
            )


@dataclass(frozen=True, slots=True)
class TasksFirst:
    """The continuous tasks of a job, as their sinks use them: they commit first, and end in time if
    they lose their coordinator. Driver; one thread at a time.

    Attributes:
        commits: of the job.
        lost_timeout: of the job; `require_short` limits it to what the sinks allow.
        between_barriers_s: the job's interval, or its pause between checkpoints if that is longer.
        report_s: how long to wait for the tasks' reports.
        clock: monotonic seconds.
    """

    commits: NativeCommits
    lost_timeout: LostTimeout
    between_barriers_s: float = field(kw_only=True, default=0.0)
    report_s: float = field(kw_only=True, default=_REPORT_S)
    clock: Clock = field(kw_only=True, default=time.monotonic)

    def require_short(self, facts: Mapping[str, str]) -> None:
        """Refuse continuous tasks for a sink whose transaction timeout is too short for them.

        Args:
            facts: of the sink's check.
        Raises:
            ConfigError: as `LostTimeout.allow`; or each transaction would be too old at its
                barrier, so the region would read the same records forever.
        """
        if "transaction_timeout_s" not in facts:
            return
        timeout_s = float(facts["transaction_timeout_s"])
        self.lost_timeout.allow(timeout_s)
        if self.between_barriers_s > timeout_s / INTERVALS_PER_TRANSACTION_TIMEOUT:
            raise ConfigError(
                "a continuous task's transaction would be too old at its barrier",
                {
                    "between_barriers_s": self.between_barriers_s,
                    "transaction_timeout_s": timeout_s,
                },
                "Keep interval_s and min_pause_s below a third of the transaction timeout "
                "(transactionTimeout, or the broker's maximum), or use engine='micro-batch'.",
            )

    def commit(
        self,
        committer: Committer,
        committables: Sequence[StateEntry],
        *,
        timeout_s: float,
        after_crash: bool,
    ) -> list[CommitReport]:
        """As `Committer.commit`. The sink's committer gets the entries that no task has
        acknowledged, and settles them by the broker's verdict if a task may have tried."""
        if after_crash:
            return committer.commit(committables, timeout_s=timeout_s, after_crash=True)
        deadline_s = self.clock() + timeout_s

        def committed(
            entries: Sequence[StateEntry], *, after_crash: bool
        ) -> dict[StateEntry, CommitReport]:
            if not entries:
                return {}
            left_s = max(0.0, deadline_s - self.clock())
            found = committer.commit(entries, timeout_s=left_s, after_crash=after_crash)
            return dict(zip(entries, found, strict=True))

        requested = self.commits.request(committables)
        theirs, done = requested.entries | requested.tried, frozenset[StateEntry]()
        reports = committed([e for e in committables if e not in theirs], after_crash=False)
        if requested.entries:
            failpoint("after-tasks-asked")
            limit_s = max(0.0, min(self.report_s, deadline_s - self.clock()))
            done = requested.await_acknowledged(timeout_s=limit_s)
            failpoint("after-tasks-answered")
        left = [entry for entry in committables if entry in theirs - done]
        if left:
            log.info("the driver commits epochs that no task has committed: count=%d", len(left))
        reports |= dict.fromkeys(done, _BY_TASK)
        reports |= committed(left, after_crash=True)
        return [reports[entry] for entry in committables]
