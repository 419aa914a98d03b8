"""The model broker of the tests, held against real ones of every feature level.

What it promises here, the simulated worlds of `tests/simulation` build on: the table of rule
`outcome-from-broker` for EndTxn that comes once, twice or too late, AddPartitionsToTxn and
InitProducerId that do, who is shut out by what, and what holds readers back.
"""

import contextlib
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException

from sluice.connectors.kafka.sink.committer.transaction_requests import EndOutcome, TransactionState
from sluice.connectors.kafka.sink.handles import TransactionIdentity
from tests.kit.harness_kinds import harness_of, kinds
from tests.kit.kafka.fake_kafka import Fenced
from tests.kit.kafka.transaction_harness import (
    Harness,
    begun,
    done_state,
    end_by_hand,
    ended_by_hand,
    ended_natively,
)

_S = TransactionState
_DONE, _REFUSED = (EndOutcome.DONE, ""), EndOutcome.REFUSED


@pytest.fixture(params=kinds(extended={1}))
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    with harness_of(request) as made:
        yield made


def _state(harness: Harness, transaction: TransactionIdentity) -> tuple[TransactionState, int]:
    """State, and by how much the epoch is above the transaction's."""
    name = transaction.transactional_id
    described = harness.wire.describe([name], timeout_s=300)[name]
    return described.state, described.producer_epoch - transaction.producer_epoch


@pytest.mark.parametrize("commit", [True, False])
def test_outcome_from_broker_an_equal_request_that_comes_again_changes_nothing(
    harness: Harness, commit: bool
) -> None:
    """Rule `outcome-from-broker`: the repetition is answered as the first one was; the opposite is
    refused."""
    ours = ended_by_hand(harness, commit=commit)

    assert end_by_hand(harness, ours, commit=commit) == _DONE
    assert end_by_hand(harness, ours, commit=not commit) == (_REFUSED, "InvalidTxnStateError")

    raised = 1 if harness.level >= 1 else 0
    assert _state(harness, ours) == (done_state(commit=commit), raised)
    assert harness.visible() == (2 if commit else 0)


@pytest.mark.parametrize("commit", [True, False])
def test_outcome_from_broker_a_raw_commit_after_a_native_end(
    harness: Harness, commit: bool
) -> None:
    ours = ended_natively(harness, commit=commit)

    tells = commit and harness.level == 0
    wanted = _DONE if tells else (_REFUSED, "InvalidTxnStateError")
    assert end_by_hand(harness, ours, commit=True) == wanted
    assert harness.visible() == (2 if commit else 0)


@pytest.mark.parametrize("commit", [True, False])
def test_outcome_from_broker_a_raw_abort_after_a_native_end(harness: Harness, commit: bool) -> None:
    ours = ended_natively(harness, commit=commit)

    answer = end_by_hand(harness, ours, commit=False)

    if harness.level >= 1:
        assert answer == _DONE
        harness.await_state(ours, _S.COMPLETE_ABORT)
        assert _state(harness, ours) == (_S.COMPLETE_ABORT, 1)
    else:
        assert answer == ((_REFUSED, "InvalidTxnStateError") if commit else _DONE)
        assert _state(harness, ours) == (done_state(commit=commit), 0)
    assert harness.visible() == (2 if commit else 0)


def test_outcome_from_broker_a_raw_abort_of_a_transaction_without_records(harness: Harness) -> None:
    """Rule `outcome-from-broker`: version 5 begins an abort of nothing here, too."""
    ours = harness.open().identity

    answer = end_by_hand(harness, ours, commit=False)

    if harness.level >= 1:
        assert answer == _DONE
        harness.await_state(ours, _S.COMPLETE_ABORT)
        assert _state(harness, ours) == (_S.COMPLETE_ABORT, 1)
    else:
        assert answer == (_REFUSED, "InvalidTxnStateError")
        assert _state(harness, ours) == (_S.EMPTY, 0)


def test_outcome_from_broker_a_commit_after_the_brokers_own_timeout(harness: Harness) -> None:
    """Rule `outcome-from-broker`: the timeout raises the epoch, and the two versions refuse in
    different words."""
    ours = begun(harness, timeout_s=1.0).identity
    harness.await_state(ours, _S.COMPLETE_ABORT)

    error = "InvalidTxnStateError" if harness.level >= 1 else "ProducerFencedError"
    assert end_by_hand(harness, ours, commit=True) == (_REFUSED, error)
    assert _state(harness, ours) == (_S.COMPLETE_ABORT, 1)
    assert harness.visible() == 0


def test_outcome_from_broker_a_transaction_without_records_cannot_be_committed(
    harness: Harness,
) -> None:
    """Rule `outcome-from-broker`: so a task that produced nothing returns no handle."""
    ours = harness.open().identity

    assert end_by_hand(harness, ours, commit=True) == (_REFUSED, "InvalidTxnStateError")
    assert _state(harness, ours) == (_S.EMPTY, 0)


@pytest.mark.parametrize("commit", [True, False])
def test_outcome_from_broker_a_late_request_does_not_touch_the_ids_next_transaction(
    harness: Harness, commit: bool
) -> None:
    """Rule `outcome-from-broker`: neither its commit nor its abort, once the id was initialised
    again."""
    first = ended_by_hand(harness, commit=True)
    later = harness.open(first.transactional_id)
    later.produce(3)

    assert end_by_hand(harness, first, commit=commit) == (_REFUSED, "ProducerFencedError")

    assert _state(harness, later.identity) == (_S.ONGOING, 0)
    assert end_by_hand(harness, later.identity, commit=True) == _DONE
    harness.await_state(later.identity, _S.COMPLETE_COMMIT)
    assert harness.visible() == 5


def test_ids_never_reused_initialising_an_id_aborts_what_was_open_under_it(
    harness: Harness,
) -> None:
    first = begun(harness).identity
    harness.open(first.transactional_id)

    assert _state(harness, first) == (_S.EMPTY, 2)
    assert end_by_hand(harness, first, commit=True) == (_REFUSED, "ProducerFencedError")
    assert harness.visible() == 0


def test_abort_by_endtxn_who_was_ended_from_outside_writes_nothing_more_that_is_seen(
    harness: Harness,
) -> None:
    """Rule `abort-by-endtxn`: to a partition that it wrote before; by its epoch, or as no
    transaction is open."""
    zombie = begun(harness)
    ours = zombie.identity
    assert end_by_hand(harness, ours, commit=True) == _DONE
    harness.await_state(ours, _S.COMPLETE_COMMIT)

    # A real producer reports by an exception, or by an error for each record alone.
    with contextlib.suppress(Fenced, KafkaException, AssertionError):
        zombie.produce(1)

    assert _state(harness, ours)[0] is _S.COMPLETE_COMMIT
    assert harness.visible() == 2


@pytest.mark.parametrize("commit", [True, False])
def test_outcome_from_broker_a_late_addpartitions_after_an_end_manually(
    harness: Harness, commit: bool
) -> None:
    ours = ended_by_hand(harness, commit=commit)

    if harness.level >= 1:
        assert harness.add_partitions(ours) == "PRODUCER_FENCED"
        assert _state(harness, ours) == (done_state(commit=commit), 1)
    else:
        assert harness.add_partitions(ours) == ""
        assert _state(harness, ours) == (_S.ONGOING, 0)
        assert end_by_hand(harness, ours, commit=True) == _DONE
        harness.await_state(ours, _S.COMPLETE_COMMIT)
    assert harness.visible() == (2 if commit else 0)


@pytest.mark.parametrize("commit", [True, False])
def test_outcome_from_broker_a_late_addpartitions_after_a_native_end(
    harness: Harness, commit: bool
) -> None:
    """Rule `outcome-from-broker`: nothing raises the epoch, at no level: an empty transaction of
    the same one begins, and ends like any other, with nothing more to see."""
    ours = ended_natively(harness, commit=commit)

    assert harness.add_partitions(ours) == ""

    assert _state(harness, ours) == (_S.ONGOING, 0)
    assert end_by_hand(harness, ours, commit=True) == _DONE
    harness.await_state(ours, _S.COMPLETE_COMMIT)
    assert harness.visible() == (2 if commit else 0)


@pytest.mark.parametrize("harness", kinds(extended={0, 1}), indirect=True)
def test_outcome_from_broker_after_a_native_commit_a_late_addpartitions_may_look_like_an_abort(
    harness: Harness,
) -> None:
    """Rule `outcome-from-broker`: if what it opens times out, Describe reports of an abort of this
    very epoch, and the records are there: why the committed mark must not wait for as long as a
    transaction lives."""
    ours = ended_natively(harness, commit=True, timeout_s=15.0)

    assert harness.add_partitions(ours) == ""
    harness.await_state(ours, _S.COMPLETE_ABORT)

    assert _state(harness, ours) == (_S.COMPLETE_ABORT, 1)
    assert harness.visible() == 2


def test_outcome_from_broker_an_addpartitions_that_comes_again_while_it_is_open_changes_nothing(
    harness: Harness,
) -> None:
    """Rule `outcome-from-broker`: the partition is there already; its records are visible once."""
    ours = begun(harness).identity

    assert harness.add_partitions(ours) == ""

    assert _state(harness, ours) == (_S.ONGOING, 0)
    assert end_by_hand(harness, ours, commit=True) == _DONE
    harness.await_state(ours, _S.COMPLETE_COMMIT)
    assert harness.visible() == 2


def test_handle_from_producer_a_late_addpartitions_does_not_touch_the_ids_next_transaction(
    harness: Harness,
) -> None:
    """Rule `handle-from-producer`: neither while that is empty, nor while it is open."""
    first = ended_by_hand(harness, commit=True)
    later = harness.open(first.transactional_id)

    assert harness.add_partitions(first) == "PRODUCER_FENCED"
    assert _state(harness, later.identity) == (_S.EMPTY, 0)
    later.produce(3)
    assert harness.add_partitions(first) == "PRODUCER_FENCED"

    assert _state(harness, later.identity) == (_S.ONGOING, 0)
    assert end_by_hand(harness, later.identity, commit=True) == _DONE
    harness.await_state(later.identity, _S.COMPLETE_COMMIT)
    assert harness.visible() == 5


def test_outcome_from_broker_a_late_addpartitions_after_the_brokers_own_timeout(
    harness: Harness,
) -> None:
    """Rule `outcome-from-broker`: the timeout has raised the epoch, at every level."""
    ours = begun(harness, timeout_s=1.0).identity
    harness.await_state(ours, _S.COMPLETE_ABORT)

    assert harness.add_partitions(ours) == "PRODUCER_FENCED"
    assert _state(harness, ours) == (_S.COMPLETE_ABORT, 1)
    assert harness.visible() == 0


def _initialised_late(harness: Harness, ended: TransactionIdentity) -> int:
    """By how much the epoch that a late InitProducerId is given is above the transaction's."""
    made = harness.init_producer_id(ended.transactional_id)
    assert isinstance(made, TransactionIdentity), made
    assert made.producer_id == ended.producer_id
    return made.producer_epoch - ended.producer_epoch


@pytest.mark.parametrize("commit", [True, False])
def test_outcome_from_broker_a_late_initproducerid_after_an_end_manually(
    harness: Harness, commit: bool
) -> None:
    ours = begun(harness).identity
    assert end_by_hand(harness, ours, commit=commit) == _DONE
    harness.await_state(ours, _S.COMPLETE_COMMIT if commit else _S.COMPLETE_ABORT)

    above = 2 if harness.level >= 1 else 1  # EndTxn version 5 has raised the epoch before
    assert _initialised_late(harness, ours) == above

    assert _state(harness, ours) == (_S.EMPTY, above)
    for again in (True, False):
        assert end_by_hand(harness, ours, commit=again) == (_REFUSED, "ProducerFencedError")
    assert _state(harness, ours) == (_S.EMPTY, above)
    assert harness.visible() == (2 if commit else 0)


@pytest.mark.parametrize("commit", [True, False])
def test_ids_never_reused_and_outcome_from_broker_a_late_initproducerid_after_a_native_end(
    harness: Harness, commit: bool
) -> None:
    """Rules `ids-never-reused` and `outcome-from-broker`: the same, one epoch on at every level;
    and the living producer, whose next transaction would have had the old epoch, is shut out."""
    writer = begun(harness)
    ours = writer.identity
    writer.end_natively(commit=commit)
    harness.await_state(ours, _S.COMPLETE_COMMIT if commit else _S.COMPLETE_ABORT)

    assert _initialised_late(harness, ours) == 1

    with contextlib.suppress(Fenced, KafkaException, AssertionError):
        writer.produce(1)
    assert harness.add_partitions(ours) == "PRODUCER_FENCED"
    assert _state(harness, ours) == (_S.EMPTY, 1)
    assert end_by_hand(harness, ours, commit=True) == (_REFUSED, "ProducerFencedError")
    assert harness.visible() == (2 if commit else 0)


def test_ids_never_reused_a_late_initproducerid_after_the_brokers_own_timeout(
    harness: Harness,
) -> None:
    """Rule `ids-never-reused`: the timeout has raised the epoch, at every level, and it is raised
    once more."""
    ours = begun(harness, timeout_s=1.0).identity
    harness.await_state(ours, _S.COMPLETE_ABORT)

    assert _initialised_late(harness, ours) == 2
    assert _state(harness, ours) == (_S.EMPTY, 2)
    assert harness.visible() == 0


def test_ids_never_reused_a_late_initproducerid_aborts_the_ids_next_transaction(
    harness: Harness,
) -> None:
    first = ended_by_hand(harness, commit=True)
    later = harness.open(first.transactional_id)
    later.produce(3)

    assert harness.init_producer_id(first.transactional_id) == "CONCURRENT_TRANSACTIONS"
    harness.await_state(later.identity, _S.COMPLETE_ABORT)

    assert _state(harness, later.identity) == (_S.COMPLETE_ABORT, 1)
    error = "InvalidTxnStateError" if harness.level >= 1 else "ProducerFencedError"
    assert end_by_hand(harness, later.identity, commit=True) == (_REFUSED, error)
    assert harness.visible() == 2


def test_abort_before_skip_what_is_open_holds_back_what_is_committed_after_it(
    harness: Harness,
) -> None:
    """Rule `abort-before-skip`: readers stop at the first record whose end is not certain, by
    commit or abort."""
    first, second = begun(harness), begun(harness, 3)
    third = begun(harness, 1)
    for ours in (second.identity, third.identity):
        assert end_by_hand(harness, ours, commit=True) == _DONE
        harness.await_state(ours, _S.COMPLETE_COMMIT)
    assert harness.readable() == 0

    assert end_by_hand(harness, first.identity, commit=False) == _DONE
    harness.await_state(first.identity, _S.COMPLETE_ABORT)

    assert harness.visible() == 4
    assert harness.readable() == 4
