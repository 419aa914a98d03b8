"""The verdict table of rule `outcome-from-broker`, row by row."""

import itertools

import pytest

from sluice.connectors.kafka.sink.committer.commit_outcomes import TABLE, EpochStep, judge
from sluice.connectors.kafka.sink.committer.transaction_requests import (
    TransactionDescription,
    TransactionState,
)
from sluice.connectors.kafka.sink.handles import TransactionIdentity
from sluice.runtime.contracts import CommitOutcome

_S, _E = TransactionState, EpochStep
HANDLE = TransactionIdentity(transactional_id="p/u/r.1/o/0", producer_id=90, producer_epoch=4)

# Written out manually, not derived from the table under test.
COMMITTED = {(_S.COMPLETE_COMMIT, 4), (_S.COMPLETE_COMMIT, 5)}
ABORTED = {
    (_S.PREPARE_ABORT, 4),
    (_S.PREPARE_ABORT, 5),
    (_S.COMPLETE_ABORT, 4),
    (_S.COMPLETE_ABORT, 5),
}
PENDING = {
    (_S.ONGOING, 4),
    (_S.ONGOING, 5),
    (_S.PREPARE_COMMIT, 4),
    (_S.PREPARE_COMMIT, 5),
    (_S.PREPARE_EPOCH_FENCE, 4),
    (_S.PREPARE_EPOCH_FENCE, 5),
}


def _described(
    state: TransactionState, epoch: int, producer_id: int = 90
) -> TransactionDescription:
    return TransactionDescription(
        transactional_id=HANDLE.transactional_id,
        state=state,
        producer_id=producer_id,
        producer_epoch=epoch,
    )


def _expected(state: TransactionState, epoch: int) -> CommitOutcome:
    for outcome, rows in (
        (CommitOutcome.COMMITTED, COMMITTED),
        (CommitOutcome.ABORTED, ABORTED),
        (CommitOutcome.PENDING, PENDING),
    ):
        if (state, epoch) in rows:
            return outcome
    return CommitOutcome.UNKNOWN


@pytest.mark.parametrize(("state", "epoch"), list(itertools.product(_S, (3, 4, 5, 6, 7))))
def test_outcome_from_broker_every_state_and_epoch_has_one_verdict(
    state: TransactionState, epoch: int
) -> None:
    """Rule `outcome-from-broker`: all states, from one epoch below the handle's to three above."""
    judgement = judge(HANDLE, _described(state, epoch))

    assert judgement.outcome is _expected(state, epoch)
    assert judgement.open == ((state, epoch) == (_S.ONGOING, 4))
    assert state.value in judgement.detail


@pytest.mark.parametrize("state", _S)
@pytest.mark.parametrize("epoch", [0, 4, 5])
def test_outcome_from_broker_another_producer_id_proves_nothing(
    state: TransactionState, epoch: int
) -> None:
    """Rule `outcome-from-broker`: the same epoch of another producer id is another transaction."""
    judgement = judge(HANDLE, _described(state, epoch, producer_id=91))

    assert judgement.outcome is CommitOutcome.UNKNOWN
    assert not judgement.open


def test_outcome_from_broker_an_unknown_id_is_unknown() -> None:
    """Rule `outcome-from-broker`: an expired id may have been committed; only a human may call it
    lost."""
    judgement = judge(HANDLE, None)

    assert judgement.outcome is CommitOutcome.UNKNOWN
    assert not judgement.open


def test_outcome_from_broker_only_aborts_of_our_own_epochs_may_be_repaired() -> None:
    """Rule `outcome-from-broker`: ABORTED is the only outcome that may be repaired, so its rows
    are counted."""
    aborted = {pair for pair, outcome in TABLE.items() if outcome is CommitOutcome.ABORTED}

    assert aborted == set(
        itertools.product((_S.PREPARE_ABORT, _S.COMPLETE_ABORT), (_E.SAME, _E.NEXT))
    )


@pytest.mark.parametrize(
    ("state", "epoch", "outcome"),
    [
        (_S.COMPLETE_COMMIT, 0, CommitOutcome.COMMITTED),
        (_S.COMPLETE_ABORT, 0, CommitOutcome.ABORTED),
        (_S.COMPLETE_COMMIT, 1, CommitOutcome.UNKNOWN),
        (_S.EMPTY, 0, CommitOutcome.UNKNOWN),
        (_S.ONGOING, 0, CommitOutcome.UNKNOWN),
    ],
)
def test_outcome_from_broker_the_last_epoch_rolls_over_to_a_new_producer_id(
    state: TransactionState, epoch: int, outcome: CommitOutcome
) -> None:
    """Rule `outcome-from-broker`: measured: (103, 32766), ended by version 5, is described as
    (104, 0)."""
    last = TransactionIdentity(
        transactional_id=HANDLE.transactional_id, producer_id=103, producer_epoch=32_766
    )
    judgement = judge(last, _described(state, epoch, producer_id=104))

    assert judgement.outcome is outcome
    assert not judgement.open
    assert judge(HANDLE, _described(state, 0)).outcome is CommitOutcome.UNKNOWN
