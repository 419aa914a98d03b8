"""What DescribeTransactions proves about a handle: the table of rule `outcome-from-broker`. Pure.

EndTxn's own answer to a repeated request does not tell committed from aborted, and a native
commit, a raw one at version 4 and a raw one at version 5 leave different epochs behind. Only the
pair (state, epoch) of the transaction's own producer id decides.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.connectors.kafka.sink.committer.transaction_requests import (
    TransactionDescription,
    TransactionState,
)
from sluice.connectors.kafka.sink.handles import TransactionIdentity
from sluice.runtime.contracts import CommitOutcome

__all__ = ["TABLE", "EpochStep", "Judgement", "judge"]


class EpochStep(enum.Enum):
    """How far the described epoch is from the handle's."""

    SAME = "e"
    NEXT = "e+1"  # raised once: by EndTxn version 5, or by a timeout's fencing
    OTHER = "another"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What is certain, and whether EndTxn may be sent.

    Attributes:
        outcome: COMMITTED and ABORTED are final; PENDING means ask again; UNKNOWN means stop.
        open: Ongoing with exactly our (producer id, epoch): the one case for EndTxn.
        is_succeeded: Ongoing under the next epoch. A time-out is about to abort it, or it is the
            id's next transaction, whose writer has ended ours: nothing that an abort has to end.
        detail: words for people.
    """

    outcome: CommitOutcome
    open: bool = False
    is_succeeded: bool = False
    detail: str = ""


_LAST_EPOCH = 32_766  # one below the largest int16, which only fencing uses

_State, _Step = TransactionState, EpochStep

TABLE: Mapping[tuple[TransactionState, EpochStep], CommitOutcome] = {
    (_State.ONGOING, _Step.SAME): CommitOutcome.PENDING,
    # A time-out's abort that is not in the log yet, or could not be written: Kafka 3.9 raises the
    # epoch before. It tries again; one that takes its place would find the transaction as it was.
    (_State.ONGOING, _Step.NEXT): CommitOutcome.PENDING,
    (_State.PREPARE_COMMIT, _Step.SAME): CommitOutcome.PENDING,
    (_State.PREPARE_COMMIT, _Step.NEXT): CommitOutcome.PENDING,
    (_State.COMPLETE_COMMIT, _Step.SAME): CommitOutcome.COMMITTED,
    (_State.COMPLETE_COMMIT, _Step.NEXT): CommitOutcome.COMMITTED,
    # The broker is about to abort, and says so only in the next state.
    (_State.PREPARE_EPOCH_FENCE, _Step.SAME): CommitOutcome.PENDING,
    (_State.PREPARE_EPOCH_FENCE, _Step.NEXT): CommitOutcome.PENDING,
    (_State.PREPARE_ABORT, _Step.SAME): CommitOutcome.ABORTED,
    (_State.PREPARE_ABORT, _Step.NEXT): CommitOutcome.ABORTED,
    (_State.COMPLETE_ABORT, _Step.SAME): CommitOutcome.ABORTED,
    (_State.COMPLETE_ABORT, _Step.NEXT): CommitOutcome.ABORTED,
}
"""Every other pair is UNKNOWN: the id was initialised again, by whom and why cannot be told."""


def judge(handle: TransactionIdentity, described: TransactionDescription | None) -> Judgement:
    """The verdict about ``handle``; ``described`` is None when the coordinator has no such id."""
    if described is None:
        return Judgement(
            outcome=CommitOutcome.UNKNOWN, detail="the coordinator does not know this id any more"
        )
    step = _step(handle, described)
    outcome = TABLE.get((described.state, step), CommitOutcome.UNKNOWN)
    is_ongoing = described.state is TransactionState.ONGOING
    return Judgement(
        outcome=outcome,
        open=is_ongoing and step is EpochStep.SAME,
        is_succeeded=is_ongoing and step is EpochStep.NEXT,
        detail=(
            f"{described.state.value} with producer {described.producer_id} "
            f"epoch {described.producer_epoch}"
        ),
    )


def _step(handle: TransactionIdentity, described: TransactionDescription) -> EpochStep:
    if described.producer_id != handle.producer_id:
        return EpochStep.NEXT if _rolled_over(handle, described) else EpochStep.OTHER
    difference = described.producer_epoch - handle.producer_epoch
    return {0: EpochStep.SAME, 1: EpochStep.NEXT}.get(difference, EpochStep.OTHER)


def _rolled_over(handle: TransactionIdentity, described: TransactionDescription) -> bool:
    # There is no epoch after the last one, so EndTxn version 5 goes on with a new producer id at
    # epoch 0 (measured: (103, 32766), committed, is described as CompleteCommit of (104, 0)).
    # An id that is used every few seconds gets there within a day.
    ended = described.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
    return ended and handle.producer_epoch == _LAST_EPOCH and described.producer_epoch == 0
