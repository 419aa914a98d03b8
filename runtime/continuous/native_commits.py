"""Commits of continuous epochs by the tasks that wrote them; by hand only where none answers."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from sluice.runtime.continuous.task_messages import CommittedEpoch
from sluice.runtime.contracts import (
    Clock,
    CommitListener,
    CommitOutcome,
    CommitReport,
    Committer,
    RegionProgress,
)
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.model import BatchKey, StateEntry

__all__ = ["AskedCommits", "NativeCommits", "TasksFirst"]

log = logging.getLogger(__name__)

_ANSWER_S = (
    2.0  # above what a task takes at most, see `sluice.runtime.continuous.checkpoint_client`
)
_BY_TASK = CommitReport(outcome=CommitOutcome.COMMITTED, detail="the task's commit was accepted")


@dataclass(slots=True)
class _Attempt:
    """One life of a region.

    Attributes:
        attempt_id: its own.
        told: committables of its acknowledged epochs that are not committed on record, by batch id.
        asked: batch ids that it shall commit, and has not answered.
        committed: of what it told, what it says was acknowledged.
        is_silent: it was asked, and has not asked anything since.
    """

    attempt_id: int
    told: dict[int, tuple[StateEntry, ...]] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    committed: set[StateEntry] = field(default_factory=set)
    is_silent: bool = False

    def ask(self, decided: frozenset[StateEntry]) -> set[StateEntry]:
        """Of these, what it told; the batches that it shall commit for them are asked for."""
        mine: set[StateEntry] = set()
        for batch_id, told in self.told.items():
            named = decided.intersection(told)
            mine |= named
            # Else it was committed along with another sink's, or another sink has waited.
            if named - self.committed and not self.is_silent:
                self.asked.add(batch_id)
        return mine


class NativeCommits:
    """Which epochs living tasks are asked to commit, and what they say. Driver.

    The thread for remote steps asks, the service's threads tell and answer. An answer is heard as
    long as it is waited for, and counts only for what it says was acknowledged: all else is settled
    by the verdict (`outcome-from-broker`), whatever the task may still do.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._attempts: dict[str, _Attempt] = {}
        self._tried: dict[str, frozenset[StateEntry]] = {}  # by region; also of lives that are over
        self._wake: Callable[[], None] = lambda: None

    def wakes(self, wake: Callable[[], None]) -> None:
        """How whoever waits for a barrier is made to look here, too."""
        self._wake = wake

    # --- of a life --------------------------------------------------------------------------------

    def begin(self, region: str, attempt_id: int) -> None:
        """A new life of a region; nothing is expected of an older one any more."""
        with self._changed:
            self._attempts[region] = _Attempt(attempt_id)
            self._changed.notify_all()

    def end(self, region: str, attempt_id: int) -> None:
        """This life answers nothing any more: it is over, or it is being stopped."""
        with self._changed:
            if self._of(region, attempt_id) is not None:
                del self._attempts[region]
                self._changed.notify_all()

    def told(self, batch: BatchKey, committables: tuple[StateEntry, ...]) -> None:
        """A life acknowledges an epoch, and keeps what can commit it."""
        with self._changed:
            attempt = self._of(batch.region, batch.attempt_id)
            if attempt is not None and committables:
                attempt.told[batch.batch_id] = committables

    def settled(self, region: str, attempt_id: int, *, through: int) -> None:
        """Epochs up to this batch id are committed on record."""
        with self._changed:
            attempt = self._of(region, attempt_id)
            if attempt is not None:
                for batch_id in [each for each in attempt.told if each <= through]:
                    attempt.committed.difference_update(attempt.told.pop(batch_id))

    def wanted(self, region: str, attempt_id: int) -> tuple[int, ...]:
        """Batch ids that the life shall commit, in order."""
        with self._changed:
            attempt = self._of(region, attempt_id)
            return () if attempt is None else tuple(sorted(attempt.asked))

    def answered(self, region: str, attempt_id: int, epochs: Iterable[CommittedEpoch]) -> None:
        """What a life says of epochs that it was asked for; nothing else is heard
        (`callback-after-commit`)."""
        with self._changed:
            attempt = self._of(region, attempt_id)
            if attempt is None:
                return
            attempt.is_silent = False
            for epoch in epochs:
                if epoch.batch_id in attempt.asked:
                    attempt.asked.discard(epoch.batch_id)
                    told = attempt.told.get(epoch.batch_id, ())
                    attempt.committed |= {e for e in told if e.operator_id in epoch.operators}
            self._changed.notify_all()

    # --- of a decision ----------------------------------------------------------------------------

    def ask(self, entries: Collection[StateEntry]) -> "AskedCommits":
        """Have living tasks commit what they told of these, which a decision names."""
        attempts: dict[str, int] = {}
        decided, mine = frozenset(entries), set[StateEntry]()
        with self._changed:
            for region, attempt in self._attempts.items():
                named = attempt.ask(decided)
                if named:
                    attempts[region] = attempt.attempt_id
                    mine |= named
                if attempt.asked:
                    told = (attempt.told.get(batch_id, ()) for batch_id in attempt.asked)
                    self._tried[region] = frozenset(chain.from_iterable(told))
            tried = decided.intersection(chain.from_iterable(self._tried.values()))
        if attempts:
            self._wake()
        return AskedCommits(self, attempts, frozenset(mine), tried)

    def await_answers(
        self, attempts: Mapping[str, int], *, timeout_s: float
    ) -> frozenset[StateEntry]:
        """What these lives say was acknowledged, once all have answered or are over, or time is up;
        then nothing is asked of them any more."""
        with self._changed:
            self._changed.wait_for(
                lambda: not any(attempt.asked for attempt in self._living(attempts)), timeout_s
            )
            committed: set[StateEntry] = set()
            for attempt in self._living(attempts):
                attempt.is_silent |= bool(attempt.asked)
                attempt.asked.clear()
                committed |= attempt.committed
            return frozenset(committed)

    def _living(self, attempts: Mapping[str, int]) -> list[_Attempt]:
        found = (self._of(region, attempt_id) for region, attempt_id in attempts.items())
        return [attempt for attempt in found if attempt is not None]

    def _of(self, region: str, attempt_id: int) -> _Attempt | None:
        attempt = self._attempts.get(region)
        return attempt if attempt is not None and attempt.attempt_id == attempt_id else None


@dataclass(frozen=True, slots=True)
class AskedCommits:
    """What tasks were asked to commit.

    Attributes:
        lives: attempt by region.
        entries: of the decision; none: no task that lives has written any of it.
        tried: of the decision, what a task was asked for, now or along with another sink's before:
            it may have committed that, whether it lives or not.
    """

    _commits: NativeCommits
    attempts: Mapping[str, int]
    entries: frozenset[StateEntry]
    tried: frozenset[StateEntry]

    def acknowledged(self, *, timeout_s: float) -> frozenset[StateEntry]:
        """Those of the entries whose commit was; see `NativeCommits.await_answers`."""
        return self.entries & self._commits.await_answers(self.attempts, timeout_s=timeout_s)


class TasksFirst:
    """A `Committer` that leaves a first try to the tasks. Driver; one thread at a time.

    Args:
        by_hand: commits what no task has acknowledged, by the verdict, for the task may have tried;
            looked up when needed, since a sink's committer may exist only after its claim.
        commits: of the job.
        answer_s: how long tasks are waited for.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        by_hand: Callable[[], Committer],
        commits: NativeCommits,
        *,
        answer_s: float = _ANSWER_S,
        clock: Clock = time.monotonic,
    ) -> None:
        self._by_hand = by_hand
        self._commits = commits
        self._answer_s = answer_s
        self._clock = clock

    def commit(
        self, committables: Sequence[StateEntry], *, timeout_s: float, after_crash: bool
    ) -> list[CommitReport]:
        """See `Committer.commit`."""
        if after_crash:
            return self._by_hand().commit(committables, timeout_s=timeout_s, after_crash=True)
        deadline_s = self._clock() + timeout_s
        asked = self._commits.ask(committables)
        theirs, done = asked.entries | asked.tried, frozenset[StateEntry]()
        reports = self._finished(
            [entry for entry in committables if entry not in theirs],
            deadline_s,
            after_crash=False,
        )
        if asked.entries:
            failpoint("after-tasks-asked")
            limit_s = max(0.0, min(self._answer_s, deadline_s - self._clock()))
            done = asked.acknowledged(timeout_s=limit_s)
            failpoint("after-tasks-answered")
        left = [entry for entry in committables if entry in theirs - done]
        if left:
            log.info("epochs that no task has committed: transactions=%d", len(left))
        reports |= dict.fromkeys(done, _BY_TASK)
        reports |= self._finished(left, deadline_s, after_crash=True)
        return [reports[entry] for entry in committables]

    def _finished(
        self, entries: Sequence[StateEntry], deadline_s: float, *, after_crash: bool
    ) -> dict[StateEntry, CommitReport]:
        if not entries:
            return {}
        left_s = max(0.0, deadline_s - self._clock())
        found = self._by_hand().commit(entries, timeout_s=left_s, after_crash=after_crash)
        return dict(zip(entries, found, strict=True))

    def abort(self, committables: Sequence[StateEntry], *, timeout_s: float) -> list[CommitReport]:
        """See `Committer.abort`."""
        return self._by_hand().abort(committables, timeout_s=timeout_s)

    def await_visible(self, *, timeout_s: float) -> bool:
        """See `Committer.await_visible`."""
        return self._by_hand().await_visible(timeout_s=timeout_s)

    def regions_published(
        self, checkpoint_id: int, regions: Sequence[RegionProgress], *, timeout_s: float
    ) -> CommitReport:
        """See `CommitListener`; of one that is none nothing is left to do."""
        committer = self._by_hand()
        if not isinstance(committer, CommitListener):
            return CommitReport(outcome=CommitOutcome.COMMITTED)
        return committer.regions_published(checkpoint_id, regions, timeout_s=timeout_s)
