"""The promises of the committer, on the fake broker and on real ones of every feature level.

Each test names the rule of docs/internals/protocol.md that it would catch being broken.
"""

from collections.abc import Iterator

import pytest

from sluice.connectors.kafka.sink.committer.kafka_committer import KafkaCommitter
from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionState
from sluice.runtime.contracts import CommitOutcome
from sluice.runtime.model.checkpoint_record import StateEntry
from tests.kit.harness_kinds import harness_of, kinds
from tests.kit.kafka.transaction_harness import Attempt, Harness, begun, committable, done_state


@pytest.fixture(params=kinds(extended={1}, older=True))
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    with harness_of(request) as made:
        yield made


@pytest.fixture
def committer(harness: Harness) -> KafkaCommitter:
    """A committer of another process than the writers'."""
    return KafkaCommitter(harness.wire, ids=harness.prefix)


AFTER_CRASH = pytest.mark.parametrize("after_crash", [False, True])


def _left(
    harness: Harness, records: int, *, timeout_s: float = 600.0
) -> tuple[Attempt, StateEntry]:
    attempt = begun(harness, records, timeout_s=timeout_s)
    return attempt, committable(attempt.identity)


def _outcome(committer: KafkaCommitter, entry: StateEntry, *, after_crash: bool) -> CommitOutcome:
    (report,) = committer.commit([entry], timeout_s=300, after_crash=after_crash)
    return report.outcome


@AFTER_CRASH
def test_endtxn_version_another_process_commits_what_a_writer_left_open(
    harness: Harness, committer: KafkaCommitter, after_crash: bool
) -> None:
    """Rule `endtxn-version`: at every level the EndTxn version fits, so the records become
    visible."""
    _, entry = _left(harness, 3)
    reports = committer.commit([entry], timeout_s=300, after_crash=after_crash)

    assert [report.outcome for report in reports] == [CommitOutcome.COMMITTED]
    assert committer.await_visible(timeout_s=300)
    assert harness.visible() == 3


@AFTER_CRASH
def test_commit_is_idempotent_for_every_committable(
    harness: Harness, committer: KafkaCommitter, after_crash: bool
) -> None:
    entries = [entry for _, entry in (_left(harness, 2) for _ in range(3))]

    for _ in range(3):
        reports = committer.commit(entries, timeout_s=300, after_crash=after_crash)
        assert {report.outcome for report in reports} == {CommitOutcome.COMMITTED}

    assert harness.visible() == 6


@AFTER_CRASH
def test_outcome_from_broker_a_native_commit_is_not_mistaken_for_a_loss(
    harness: Harness, committer: KafkaCommitter, after_crash: bool
) -> None:
    """Rule `outcome-from-broker`: version 5 answers INVALID_TXN_STATE after a native commit;
    repair would double."""
    attempt, entry = _left(harness, 3)
    attempt.end_natively(commit=True)

    assert _outcome(committer, entry, after_crash=after_crash) is CommitOutcome.COMMITTED
    assert harness.visible() == 3


@AFTER_CRASH
def test_outcome_from_broker_a_native_abort_is_aborted(
    harness: Harness, committer: KafkaCommitter, after_crash: bool
) -> None:
    """Rule `outcome-from-broker`: the same answer as after a native commit, but this one was
    lost."""
    attempt, entry = _left(harness, 3)
    attempt.end_natively(commit=False)

    assert _outcome(committer, entry, after_crash=after_crash) is CommitOutcome.ABORTED
    assert harness.visible() == 0


@AFTER_CRASH
def test_outcome_from_broker_a_timed_out_transaction_is_aborted(
    harness: Harness, committer: KafkaCommitter, after_crash: bool
) -> None:
    """Rule `outcome-from-broker`: the timeout raises the epoch; the answer is "aborted", never
    "unknown"."""
    attempt, entry = _left(harness, 3, timeout_s=1.0)
    harness.await_state(attempt.identity, TransactionState.COMPLETE_ABORT)

    assert _outcome(committer, entry, after_crash=after_crash) is CommitOutcome.ABORTED
    assert harness.visible() == 0


@AFTER_CRASH
def test_outcome_from_broker_an_id_initialised_again_after_a_raw_commit_is_unknown_not_lost(
    harness: Harness, committer: KafkaCommitter, after_crash: bool
) -> None:
    """Rule `outcome-from-broker`: committed or aborted cannot be reported any more, so nothing may be
    repaired."""
    attempt, entry = _left(harness, 3)
    committer.commit([entry], timeout_s=300, after_crash=False)
    assert committer.await_visible(timeout_s=300)
    harness.open(attempt.identity.transactional_id)

    assert _outcome(committer, entry, after_crash=after_crash) is CommitOutcome.UNKNOWN
    assert harness.visible() == 3


@AFTER_CRASH
def test_outcome_from_broker_an_id_initialised_again_while_open_is_unknown(
    harness: Harness, committer: KafkaCommitter, after_crash: bool
) -> None:
    """Rule `outcome-from-broker`: the other initialisation aborted it, but the coordinator's state
    does not say so."""
    attempt, entry = _left(harness, 3)
    harness.open(attempt.identity.transactional_id)

    assert _outcome(committer, entry, after_crash=after_crash) is CommitOutcome.UNKNOWN
    assert harness.visible() == 0


@AFTER_CRASH
def test_outcome_from_broker_an_id_nobody_knows_is_unknown(
    harness: Harness, committer: KafkaCommitter, after_crash: bool
) -> None:
    """Rule `outcome-from-broker`: an expired id was perhaps committed long ago."""
    identity = begun(harness, 1).identity
    entry = committable(
        type(identity)(
            transactional_id=harness.name(),
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
        )
    )

    assert _outcome(committer, entry, after_crash=after_crash) is CommitOutcome.UNKNOWN


@AFTER_CRASH
def test_handle_from_producer_a_later_attempt_under_the_same_id_is_never_committed_in_place_of_ours(
    harness: Harness, committer: KafkaCommitter, after_crash: bool
) -> None:
    """Rule `handle-from-producer`: the later attempt is half way; neither its records nor ours
    become visible."""
    first, entry = _left(harness, 3)
    second = harness.open(first.identity.transactional_id)
    second.produce(5)

    assert _outcome(committer, entry, after_crash=after_crash) is CommitOutcome.UNKNOWN

    second.end_natively(commit=False)
    assert harness.visible() == 0


def test_abort_by_endtxn_abort_discards_exactly_one_transaction(
    harness: Harness, committer: KafkaCommitter
) -> None:
    """Rule `abort-by-endtxn`: EndTxn(abort) with the transaction's own epoch; another id's stays
    open."""
    ours, other = harness.open(), harness.open()
    ours.produce(3)
    other.produce(2)

    (report,) = committer.abort([committable(ours.identity)], timeout_s=300)
    assert report.outcome is CommitOutcome.ABORTED

    assert (
        _outcome(committer, committable(other.identity), after_crash=True)
        is CommitOutcome.COMMITTED
    )
    assert harness.visible() == 2


def test_abort_by_endtxn_abort_with_a_stale_epoch_leaves_the_live_transaction_alone(
    harness: Harness, committer: KafkaCommitter
) -> None:
    """Rule `abort-by-endtxn`: InitProducerId would have aborted it; EndTxn with a stale epoch is
    refused."""
    stale, stale_entry = _left(harness, 1)
    stale.end_natively(commit=True)
    live = harness.open(stale.identity.transactional_id)
    live.produce(4)
    live_entry = committable(live.identity)

    (report,) = committer.abort([stale_entry], timeout_s=300)
    assert report.outcome is CommitOutcome.UNKNOWN

    assert _outcome(committer, live_entry, after_crash=True) is CommitOutcome.COMMITTED
    assert harness.visible() == 5


def test_abort_by_endtxn_abort_is_idempotent(harness: Harness, committer: KafkaCommitter) -> None:
    _, entry = _left(harness, 3)

    for _ in range(3):
        (report,) = committer.abort([entry], timeout_s=300)
        assert report.outcome is CommitOutcome.ABORTED

    assert harness.visible() == 0


def test_abort_says_so_when_the_transaction_was_committed(
    harness: Harness, committer: KafkaCommitter
) -> None:
    _, entry = _left(harness, 3)
    committer.commit([entry], timeout_s=300, after_crash=False)
    assert committer.await_visible(timeout_s=300)

    (report,) = committer.abort([entry], timeout_s=300)

    assert report.outcome is CommitOutcome.COMMITTED
    assert harness.visible() == 3


def test_outcome_from_broker_an_abort_does_not_hide_that_the_writer_has_committed(
    harness: Harness, committer: KafkaCommitter
) -> None:
    attempt, entry = _left(harness, 3)
    attempt.end_natively(commit=True)
    harness.await_state(attempt.identity, TransactionState.COMPLETE_COMMIT)

    (report,) = committer.abort([entry], timeout_s=300)

    assert report.outcome is CommitOutcome.COMMITTED
    assert _outcome(committer, entry, after_crash=True) is CommitOutcome.COMMITTED
    assert harness.visible() == 3


@pytest.mark.parametrize("commit", [True, False])
def test_abort_by_endtxn_from_version_1_ending_a_transaction_fences_its_writer(
    harness: Harness, committer: KafkaCommitter, commit: bool
) -> None:
    """Rules `endtxn-version` and `abort-by-endtxn`: version 5 raises the epoch, so the old writer
    cannot continue."""
    attempt, entry = _left(harness, 1)
    if commit:
        committer.commit([entry], timeout_s=300, after_crash=True)
    else:
        committer.abort([entry], timeout_s=300)
    harness.await_state(attempt.identity, done_state(commit=commit))

    described = harness.wire.describe([attempt.identity.transactional_id], timeout_s=300)[
        attempt.identity.transactional_id
    ]

    raised = described.producer_epoch - attempt.identity.producer_epoch
    assert raised == (1 if harness.level >= 1 else 0)


def test_commit_acknowledged_visible_is_waited_for(
    harness: Harness, committer: KafkaCommitter
) -> None:
    _, entry = _left(harness, 2)

    assert committer.await_visible(timeout_s=300)

    committer.commit([entry], timeout_s=300, after_crash=False)
    assert committer.await_visible(timeout_s=300)
    assert harness.visible() == 2


def test_commit_acknowledged_a_transaction_whose_id_went_on_is_visible(
    harness: Harness, committer: KafkaCommitter
) -> None:
    """Rule `commit-acknowledged`: an id is initialised again only after its markers are written."""
    attempt, entry = _left(harness, 2)
    committer.commit([entry], timeout_s=300, after_crash=False)
    assert committer.await_visible(timeout_s=300)
    harness.open(attempt.identity.transactional_id).produce(1)

    assert committer.await_visible(timeout_s=300)


def test_nothing_to_do_is_done_at_once(committer: KafkaCommitter) -> None:
    """An epoch without records has no committables and needs no broker."""
    assert committer.commit([], timeout_s=0, after_crash=True) == []
    assert committer.abort([], timeout_s=0) == []
    assert committer.await_visible(timeout_s=300)
