"""Finishes pre-committed Kafka transactions of any process: rule `outcome-from-broker`'s order,
with EndTxn."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from sluice.connectors.kafka.sink.committer.commit_outcomes import Judgement, judge
from sluice.connectors.kafka.sink.committer.transaction_requests import (
    EndOutcome,
    TransactionState,
    Wire,
)
from sluice.connectors.kafka.sink.handles import (
    TransactionHandle,
    TransactionIdentity,
    decode_handle,
)
from sluice.runtime.contracts import Clock, CommitOutcome, CommitReport
from sluice.runtime.errors import AuthenticationError, StreamError
from sluice.runtime.model.model import StateEntry

__all__ = ["KafkaCommitter"]

log = logging.getLogger(__name__)

_FIRST_WAIT_S = 0.005
_LONGEST_WAIT_S = 0.25
_SHORTEST_LOOK_S = 0.5
_ATTEMPT_S = 10.0  # of one request round inside a longer commit


class KafkaCommitter:
    """Makes transactions visible, or discards them; implements `Committer`.

    Driver or command line, one thread. Nothing is kept between calls, so a committer of another
    process continues where this one stopped.

    After a crash, and before an abort, the verdict comes first: EndTxn goes out only while the
    coordinator describes the transaction as Ongoing with exactly the handle's producer id and
    epoch. Otherwise the writers are alive, their ids are not initialised before the committed mark,
    and EndTxn may go straight; but only its clean success counts, any other answer is settled by
    the verdict.

    Args:
        wire: asks the cluster; from one thread.
        ids: what all of the sink's transactional ids begin with; for who waits until readers see
            what was committed.
        clock, sleep: monotonic seconds.
    """

    def __init__(
        self,
        wire: Wire,
        *,
        ids: str = "",
        clock: Clock = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._wire = wire
        self._ids = ids
        self._clock = clock
        self._sleep = sleep

    def commit(
        self, committables: Sequence[StateEntry], *, timeout_s: float, after_crash: bool
    ) -> list[CommitReport]:
        """See `Committer.commit`. Raises UnsupportedFormatError for another sink's entries."""
        handles = [decode_handle(entry) for entry in committables]
        reports = self._finish(
            [handle.identity for handle in handles],
            commit=True,
            verdict_first=after_crash,
            deadline=self._clock() + timeout_s,
        )
        for at, (handle, report) in enumerate(zip(handles, reports, strict=True)):
            if report.outcome in (CommitOutcome.ABORTED, CommitOutcome.UNKNOWN):
                _log_lost(handle, report)
                reports[at] = replace(report, ranges=tuple(map(str, handle.sources)))
        return reports

    def abort(self, committables: Sequence[StateEntry], *, timeout_s: float) -> list[CommitReport]:
        """See `Committer.abort`."""
        identities = [decode_handle(entry).identity for entry in committables]
        return self.abort_transactions(identities, timeout_s=timeout_s)

    def commit_transactions(
        self, transactions: Sequence[TransactionIdentity], *, timeout_s: float
    ) -> list[CommitReport]:
        """As `commit` after a crash, for transactions known by name only; ``sluice txn``."""
        return self._finish(
            transactions,
            commit=True,
            verdict_first=True,
            deadline=self._clock() + timeout_s,
        )

    def abort_transactions(
        self, transactions: Sequence[TransactionIdentity], *, timeout_s: float
    ) -> list[CommitReport]:
        """As `abort`, for transactions known by name only; what the sweep uses (`abort-by-endtxn`).

        Version 5 accepts an abort also behind a native commit, and then describes the very epoch
        as aborted: its records are there, and somebody would write them again.
        """
        return self._finish(
            transactions,
            commit=False,
            verdict_first=True,
            deadline=self._clock() + timeout_s,
        )

    def await_visible(self, *, timeout_s: float) -> bool:
        """See `Committer.await_visible`: none of the ids has markers on their way.

        Raises:
            AuthenticationError: the last look, too, was refused.
        """
        deadline = self._clock() + timeout_s
        wait_s = _FIRST_WAIT_S
        while True:
            refused: AuthenticationError | None = None
            try:
                if self._is_all_visible(deadline):
                    return True
            except AuthenticationError as err:
                refused = err  # by one broker, for a moment, or for good
            # A look that is cut off costs its connection.
            is_last = deadline - self._clock() < wait_s + _SHORTEST_LOOK_S
            self._wait(wait_s, deadline)
            if is_last and refused is not None:
                raise refused
            if is_last:
                return False
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)

    def _is_all_visible(self, deadline: float) -> bool:
        found = self._wire.list_transactions(
            self._ids,
            timeout_s=max(0.0, deadline - self._clock()),
            # Readers stop in front of one that is being aborted, too.
            states=(TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT),
        )
        return not (found.transactions or found.missing)

    def _finish(
        self,
        identities: Sequence[TransactionIdentity],
        *,
        commit: bool,
        verdict_first: bool,
        deadline: float,
    ) -> list[CommitReport]:
        reports: dict[TransactionIdentity, CommitReport] = {}
        if not verdict_first:
            self._end(identities, commit=commit, reports=reports, deadline=deadline)
        wait_s, is_told = _FIRST_WAIT_S, True
        while open_ones := [i for i in identities if not _is_final(reports.get(i))]:
            judged = self._judge(open_ones, reports, self._look_s(deadline, is_told=is_told))
            is_told = bool(judged)
            if not commit:
                reports.update({i: _not_ours(j) for i, j in judged.items() if j.is_succeeded})
            ready = [identity for identity, judgement in judged.items() if judgement.open]
            self._end(ready, commit=commit, reports=reports, deadline=deadline)
            if all(_is_final(reports.get(i)) for i in open_ones):
                break
            if not self._wait(wait_s, deadline):
                break
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
        return [reports.get(identity, _SILENT) for identity in identities]

    def _judge(
        self,
        identities: Sequence[TransactionIdentity],
        reports: dict[TransactionIdentity, CommitReport],
        timeout_s: float,
    ) -> dict[TransactionIdentity, Judgement]:
        ids = [identity.transactional_id for identity in identities]
        try:
            found = self._wire.describe(ids, timeout_s=timeout_s)
        except StreamError as err:
            # A committer does not raise for what a remote answered: these stay pending.
            silent = CommitReport(outcome=CommitOutcome.PENDING, detail=str(err))
            if any(reports.get(identity) != silent for identity in identities):  # said once
                log.warning("transactions cannot be described: number=%d error=%s", len(ids), err)
            reports.update(dict.fromkeys(identities, silent))
            return {}
        judged = {
            identity: judge(identity, found[identity.transactional_id])
            for identity in identities
            if identity.transactional_id in found
        }
        for identity, judgement in judged.items():
            reports[identity] = CommitReport(outcome=judgement.outcome, detail=judgement.detail)
        return judged

    def _end(
        self,
        identities: Sequence[TransactionIdentity],
        *,
        commit: bool,
        reports: dict[TransactionIdentity, CommitReport],
        deadline: float,
    ) -> None:
        """EndTxn for each; only a clean success becomes an outcome, all else stays open."""
        if not identities:
            return
        done = CommitOutcome.COMMITTED if commit else CommitOutcome.ABORTED
        answers = self._wire.end(identities, commit=commit, timeout_s=self._attempt_s(deadline))
        for identity, answer in zip(identities, answers, strict=True):
            if answer.outcome is EndOutcome.DONE:
                reports[identity] = CommitReport(outcome=done, detail="EndTxn was accepted")
            else:
                reports[identity] = CommitReport(
                    outcome=CommitOutcome.PENDING, detail=f"EndTxn: {answer.error}"
                )

    def _look_s(self, deadline: float, *, is_told: bool) -> float:
        """An id whose coordinator is away takes all of it; the other half is for ending others,
        unless the last look has told of none."""
        attempt_s = self._attempt_s(deadline)
        share = 0.5 if is_told else 1.0
        return min(attempt_s, max(attempt_s * share, _SHORTEST_LOOK_S))

    def _attempt_s(self, deadline: float) -> float:
        return max(0.0, min(_ATTEMPT_S, deadline - self._clock()))

    def _wait(self, wait_s: float, deadline: float) -> bool:
        """Wait before the next round; False when time is up."""
        left_s = deadline - self._clock()
        if left_s <= 0:
            return False
        self._sleep(min(wait_s, left_s))
        return True


_SILENT = CommitReport(outcome=CommitOutcome.PENDING, detail="no broker has answered")


def _not_ours(judgement: Judgement) -> CommitReport:
    """An abort has nothing to wait for: the writer may be alive, and its transaction stays."""
    return CommitReport(outcome=CommitOutcome.UNKNOWN, detail=judgement.detail)


def _is_final(report: CommitReport | None) -> bool:
    return report is not None and report.outcome is not CommitOutcome.PENDING


def _log_lost(handle: TransactionHandle, report: CommitReport) -> None:
    log.error(
        "decided transaction is not visible: transactional_id=%s checkpoint_id=%d outcome=%s "
        "records=%d state=%s",
        handle.transactional_id,
        handle.checkpoint_id,
        report.outcome.value,
        handle.record_count,
        report.detail,
    )
