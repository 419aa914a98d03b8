"""Ends pre-committed Kafka transactions of any process with EndTxn: in the order of rule
`outcome-from-broker`."""

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
from sluice.runtime.contracts import Clock, CommitOutcome, CommitReport, Committer
from sluice.runtime.errors import AuthenticationError, StreamError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.process.backoff import Backoff

__all__ = ["KafkaCommitter"]

log = logging.getLogger(__name__)

_FIRST_WAIT_S = 0.005
_LONGEST_WAIT_S = 0.25
_SHORTEST_REQUEST_S = 0.5
_ATTEMPT_S = 10.0  # of one request round inside a longer commit


class KafkaCommitter(Committer):
    """Makes transactions visible, or discards them; implements `Committer`.

    Driver or command line, one thread. It keeps nothing between calls, so a committer of another
    process continues where this one stopped.

    After a crash, and before an abort, it describes the transaction first: it sends EndTxn only
    while the coordinator describes the transaction as Ongoing with exactly the handle's producer id
    and epoch. Otherwise the writers are alive and their ids are not initialised before the
    committed mark, so it may send EndTxn directly. Then only a clean success counts; after any
    other answer it describes the transaction.

    Args:
        wire: requests to the cluster; from one thread.
        ids: common prefix of the sink's transactional ids; `await_visible` needs it.
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
        identities = [decode_handle(entry).identity for entry in committables]
        return self.abort_transactions(identities, timeout_s=timeout_s)

    def commit_transactions(
        self, transactions: Sequence[TransactionIdentity], *, timeout_s: float
    ) -> list[CommitReport]:
        """As `commit` after a crash, for transactions known only by name; ``sluice txn``."""
        return self._finish(
            transactions,
            commit=True,
            verdict_first=True,
            deadline=self._clock() + timeout_s,
        )

    def abort_transactions(
        self, transactions: Sequence[TransactionIdentity], *, timeout_s: float
    ) -> list[CommitReport]:
        """As `abort`, for transactions known only by name; the sweep uses it (`abort-by-endtxn`).

        Version 5 accepts an abort also after a native commit, and then describes that epoch as
        aborted. Its records exist, and a repair would write them again.
        """
        return self._finish(
            transactions,
            commit=False,
            verdict_first=True,
            deadline=self._clock() + timeout_s,
        )

    def await_visible(self, *, timeout_s: float) -> bool:
        """See `Committer.await_visible`: no id has markers that are still to be written.

        Raises:
            AuthenticationError: the last request was refused, too.
        """
        deadline = self._clock() + timeout_s
        backoff = Backoff(_FIRST_WAIT_S, _LONGEST_WAIT_S)
        while True:
            refused: AuthenticationError | None = None
            try:
                if self._is_all_visible(deadline):
                    return True
            except AuthenticationError as err:
                refused = err  # by one broker, for a short or long time
            # A request that is interrupted costs its connection.
            is_last = deadline - self._clock() < backoff.pause_s + _SHORTEST_REQUEST_S
            self._wait(backoff.next_s(), deadline)
            if is_last and refused is not None:
                raise refused
            if is_last:
                return False

    def _is_all_visible(self, deadline: float) -> bool:
        found = self._wire.list_transactions(
            self._ids,
            timeout_s=max(0.0, deadline - self._clock()),
            # Readers also stop at a transaction that is being aborted.
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
        backoff, is_described = Backoff(_FIRST_WAIT_S, _LONGEST_WAIT_S), True
        while open_ones := [i for i in identities if not _is_final(reports.get(i))]:
            judged = self._judge(
                open_ones, reports, self._request_s(deadline, is_described=is_described)
            )
            is_described = bool(judged)
            if not commit:
                reports.update({i: _not_ours(j) for i, j in judged.items() if j.is_succeeded})
            ready = [identity for identity, judgement in judged.items() if judgement.open]
            self._end(ready, commit=commit, reports=reports, deadline=deadline)
            if all(_is_final(reports.get(i)) for i in open_ones):
                break
            if not self._wait(backoff.next_s(), deadline):
                break
        return [reports.get(identity, _UNANSWERED) for identity in identities]

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
            # A committer does not raise for an answer of the remote: these stay pending.
            unanswered = CommitReport(outcome=CommitOutcome.PENDING, detail=str(err))
            if any(reports.get(identity) != unanswered for identity in identities):  # logged once
                log.warning("transactions cannot be described: count=%d error=%s", len(ids), err)
            reports.update(dict.fromkeys(identities, unanswered))
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

    def _request_s(self, deadline: float, *, is_described: bool) -> float:
        """A call for an id with an unreachable coordinator takes the whole time. Half of the time
        is for other transactions, unless the last description had none."""
        attempt_s = self._attempt_s(deadline)
        share = 0.5 if is_described else 1.0
        return min(attempt_s, max(attempt_s * share, _SHORTEST_REQUEST_S))

    def _attempt_s(self, deadline: float) -> float:
        return max(0.0, min(_ATTEMPT_S, deadline - self._clock()))

    def _wait(self, wait_s: float, deadline: float) -> bool:
        """Wait before the next round; False if the time is up."""
        left_s = deadline - self._clock()
        if left_s <= 0:
            return False
        self._sleep(min(wait_s, left_s))
        return True


_UNANSWERED = CommitReport(outcome=CommitOutcome.PENDING, detail="no broker has answered")


def _not_ours(judgement: Judgement) -> CommitReport:
    """An abort does not wait: the writer may be alive, and its transaction stays."""
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
