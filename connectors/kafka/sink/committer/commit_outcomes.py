"""The outcome that DescribeTransactions proves for a handle: the table of rule
`outcome-from-broker`. Pure.

EndTxn's answer to a repeated request does not separate committed from aborted. The epoch after a
commit differs, too: for a native one, a raw one at version 4 and a raw one at version 5. Only the
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
    """Distance of the described epoch from the handle's."""

    SAME = "e"
    NEXT = "e+1"  # raised once: by EndTxn version 5, or by the fencing of a timeout
    OTHER = "another"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The certain outcome, and whether EndTxn may be sent.

    Attributes:
        outcome: COMMITTED and ABORTED are final; PENDING means commit again; UNKNOWN means stop.
        open: Ongoing with exactly our (producer id, epoch): the one case for EndTxn.
        is_succeeded: Ongoing under the next epoch. Either a timeout is about to abort it, or it is
            the id's next transaction, whose writer has ended ours. An abort has nothing to end.
        detail: text for people.
    """

    outcome: CommitOutcome
    open: bool = False
    is_succeeded: bool = False
    detail: str = ""


_LAST_EPOCH = 32_766  # one below the largest int16, which only fencing uses

_State, _Step = TransactionState, EpochStep

TABLE: Mapping[tuple[TransactionState, EpochStep], CommitOutcome] = {
    (_State.ONGOING, _Step.SAME): CommitOutcome.PENDING,
    # An abort by timeout that is not in the log yet, or could not be written: Kafka 3.9 raises the
    # epoch before. The coordinator tries again; its successor would find the transaction unchanged.
    (_State.ONGOING, _Step.NEXT): CommitOutcome.PENDING,
    (_State.PREPARE_COMMIT, _Step.SAME): CommitOutcome.PENDING,
    (_State.PREPARE_COMMIT, _Step.NEXT): CommitOutcome.PENDING,
    (_State.COMPLETE_COMMIT, _Step.SAME): CommitOutcome.COMMITTED,
    (_State.COMPLETE_COMMIT, _Step.NEXT): CommitOutcome.COMMITTED,
    # The broker is about to abort, and shows it only in the next state.
    (_State.PREPARE_EPOCH_FENCE, _Step.SAME): CommitOutcome.PENDING,
    (_State.PREPARE_EPOCH_FENCE, _Step.NEXT): CommitOutcome.PENDING,
    (_State.PREPARE_ABORT, _Step.SAME): CommitOutcome.ABORTED,
    (_State.PREPARE_ABORT, _Step.NEXT): CommitOutcome.ABORTED,
    (_State.COMPLETE_ABORT, _Step.SAME): CommitOutcome.ABORTED,
    (_State.COMPLETE_ABORT, _Step.NEXT): CommitOutcome.ABORTED,
}
"""Every other pair is UNKNOWN: the id was initialised again, for an unknown reason."""


def judge(handle: TransactionIdentity, described: TransactionDescription | None) -> Judgement:
    """The outcome of ``handle``; ``described`` is None if the coordinator has no such id."""
    if described is None:
        return Judgement(
            outcome=CommitOutcome.UNKNOWN, detail="the coordinator no longer knows this id"
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
    # No epoch follows the last one, so EndTxn version 5 continues with a new producer id at epoch 0
    # (measured: (103, 32766), committed, is described as CompleteCommit of (104, 0)). An id that is
    # used every few seconds reaches the last epoch within a day.
    ended = described.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
    return ended and handle.producer_epoch == _LAST_EPOCH and described.producer_epoch == 0
