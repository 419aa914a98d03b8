"""Finds open transactions that no process will end, and aborts them: rules `ids-never-reused`,
`abort-by-endtxn` and `wait-for-all-brokers`."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from sluice.connectors.kafka.sink.committer.kafka_committer import KafkaCommitter
from sluice.connectors.kafka.sink.committer.transaction_requests import (
    TransactionDescription,
    TransactionState,
    Wire,
)
from sluice.connectors.kafka.sink.handles import (
    COMMITTABLE_KIND,
    InvalidHandleError,
    TransactionalId,
    TransactionIdentity,
    decode_handle,
)
from sluice.runtime.contracts import Clock, CommitOutcome, SweepView
from sluice.runtime.errors import StreamError
from sluice.runtime.model.checkpoint_record import StateEntry

__all__ = ["SweepResult", "Sweeper", "orphans"]

log = logging.getLogger(__name__)

_ROUND_WAIT_S = 0.5
_MOST_NAMED = 10


def orphans(
    described: Iterable[TransactionDescription],
    view: SweepView,
    *,
    prefix: str,
    operator_id: str | None = None,
) -> tuple[TransactionIdentity, ...]:
    """The transactions among ``described`` that may be aborted; pure.

    A transaction may be aborted only if all of this holds. It is open. Its id has this prefix and
    this job. No decided checkpoint without its committed mark names its id. Its region has a later
    attempt, or the coordinator has declared exactly this (id, producer id, epoch) to be an orphan
    of the current one. An attempt that ``view`` does not know yet is left alone: the view is then
    older than the listing.

    Args:
        described: the brokers' answers.
        view: the coordinator's facts.
        prefix: of this sink's transactional ids.
        operator_id: of this sink; None includes the orphans of every sink with this prefix.
    """
    protected = _protected_ids(view.protected)
    declared = _declared(view, operator_id)
    return tuple(
        one.identity
        for one in described
        if one.state is TransactionState.ONGOING
        and one.transactional_id not in protected
        and _is_orphan(one.identity, view, declared, prefix)
    )


def _is_orphan(
    identity: TransactionIdentity,
    view: SweepView,
    declared: frozenset[TransactionIdentity],
    prefix: str,
) -> bool:
    name = TransactionalId.parse(identity.transactional_id)
    if name is None or name.prefix != prefix or name.job_uid != view.job_uid:
        return False
    if view.is_attempt_over(name.region, name.attempt_id):
        return True
    return name.attempt_id == view.attempt_ids.get(name.region) and identity in declared


def _protected_ids(committables: Sequence[StateEntry]) -> frozenset[str]:
    # By id, not by (id, epoch): an id is not initialised again before its committed mark. An open
    # transaction under a protected id is the protected one, or an error to investigate.
    return frozenset(
        decode_handle(entry).transactional_id
        for entry in committables
        if entry.kind == COMMITTABLE_KIND
    )


def _declared(view: SweepView, operator_id: str | None) -> frozenset[TransactionIdentity]:
    found = set()
    for attempt in view.orphans:
        if operator_id is not None and attempt.operator_id != operator_id:
            continue
        try:
            found.add(TransactionIdentity.parse(attempt.resource))
        except InvalidHandleError:
            continue  # another kind of sink registered it
    return frozenset(found)


def _foreign(listed: Iterable[str], view: SweepView, prefix: str) -> tuple[str, ...]:
    """Those of another job with this prefix. A restored job commits decided ones of its former
    job, so these are not counted."""
    protected = _protected_ids(view.protected)
    names = {each: TransactionalId.parse(each) for each in listed if each not in protected}
    return tuple(
        each
        for each, name in sorted(names.items())
        if name is not None and name.prefix == prefix and name.job_uid != view.job_uid
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """Result of a sweep.

    Attributes:
        aborted: transactions that are certainly aborted now.
        remaining: orphans whose abort is not yet certain; the next sweep finds them again.
        missing: brokers, partitions and ids without an answer (`wait-for-all-brokers`).
        foreign: ids of open transactions that another job began under this prefix; left alone.
    """

    aborted: int
    remaining: int
    missing: tuple[str, ...]
    foreign: tuple[str, ...] = ()


class Sweeper:
    """Lists transactions, selects by `orphans`, aborts. Driver, one thread; keeps nothing between
    sweeps.

    At transaction.version 0 an abort does not fence the writer, which may open the id's next
    transaction: the next sweep lists it again and aborts it (`abort-by-endtxn`).
    """

    def __init__(
        self,
        wire: Wire,
        *,
        prefix: str,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._wire = wire
        self._prefix = prefix
        self._clock = clock
        self._sleep = sleep
        self._committer = KafkaCommitter(wire, clock=clock, sleep=sleep)

    def sweep(self, view: SweepView, *, operator_id: str | None, timeout_s: float) -> SweepResult:
        """One pass over every broker that answers. Never raises for a remote."""
        deadline = self._clock() + timeout_s
        try:
            listing = self._wire.list_transactions(
                f"{self._prefix}/",
                timeout_s=timeout_s,
                states=(TransactionState.ONGOING,),
            )
            listed = [row.transactional_id for row in listing.transactions]
            own = [name for name in listed if name.startswith(f"{self._prefix}/{view.job_uid}/")]
            described = self._wire.describe(own, timeout_s=max(0.0, deadline - self._clock()))
        except StreamError as err:
            log.warning("sweep did not reach the cluster: prefix=%s error=%s", self._prefix, err)
            return SweepResult(aborted=0, remaining=0, missing=("the cluster",))
        # A listed transaction without a description may be an orphan: its coordinator is
        # unreachable now.
        untold = [name for name in own if name not in described]
        missing = (*listing.missing, *untold)
        known = [one for one in described.values() if one is not None]
        found = orphans(known, view, prefix=self._prefix, operator_id=operator_id)
        aborted = self._abort(found, max(0.0, deadline - self._clock()))
        if missing:
            log.warning(
                "sweep is not complete, the next one tries again: prefix=%s missing=%s",
                self._prefix,
                ",".join(missing),
            )
        return SweepResult(
            aborted=aborted,
            remaining=len(found) - aborted,
            missing=missing,
            foreign=_foreign(listed, view, self._prefix),
        )

    def sweep_all(
        self, view: SweepView, *, operator_id: str | None, timeout_s: float
    ) -> SweepResult:
        """Sweep until every broker has answered and nothing remains, or the time is up
        (`wait-for-all-brokers`). Warns of open transactions of other jobs under this prefix."""
        deadline = self._clock() + timeout_s
        aborted = 0
        while True:
            left_s = max(0.0, deadline - self._clock())
            result = self.sweep(view, operator_id=operator_id, timeout_s=left_s)
            aborted += result.aborted
            if not (result.missing or result.remaining) or self._clock() >= deadline:
                self._report_foreign(result.foreign)
                return replace(result, aborted=aborted)
            # Markers are being written, or a broker is unreachable: no event reports the end of
            # either.
            self._sleep(min(_ROUND_WAIT_S, max(0.0, deadline - self._clock())))

    def _report_foreign(self, names: Sequence[str]) -> None:
        if names:
            log.warning(
                "open transactions of another job block readers: prefix=%s transactions=%d "
                "transactional_ids=%s%s. Another checkpoint directory has this prefix: run "
                "sluice txn abort with that directory, or wait for their timeout.",
                self._prefix,
                len(names),
                ",".join(names[:_MOST_NAMED]),
                ",…" if len(names) > _MOST_NAMED else "",
            )

    def _abort(self, found: Sequence[TransactionIdentity], timeout_s: float) -> int:
        reports = self._committer.abort_transactions(found, timeout_s=timeout_s)
        for identity, report in zip(found, reports, strict=True):
            log.info(
                "orphaned transaction: transactional_id=%s producer_id=%d producer_epoch=%d "
                "outcome=%s",
                identity.transactional_id,
                identity.producer_id,
                identity.producer_epoch,
                report.outcome.value,
            )
        return sum(report.outcome is CommitOutcome.ABORTED for report in reports)
