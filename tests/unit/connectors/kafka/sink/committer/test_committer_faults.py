"""The committer when answers are lost, brokers are away, or rule `endtxn-version` is broken."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from sluice.connectors.kafka.sink.committer.kafka_committer import KafkaCommitter
from sluice.connectors.kafka.sink.committer.transaction_requests import (
    EndOutcome,
    EndReport,
    Listing,
    TransactionDescription,
    TransactionState,
)
from sluice.connectors.kafka.sink.handles import TransactionIdentity
from sluice.runtime.contracts import CommitOutcome, CommitReport
from sluice.runtime.errors import AuthenticationError, UnsupportedFormatError
from sluice.runtime.model.checkpoint_record import Redistribution, StateEntry
from tests.kit.kafka.fake_kafka import FakeBroker, FakeWire, Fault
from tests.kit.kafka.transaction_harness import FakeAttempt, FakeHarness, committable


@dataclass
class Time:
    """A clock that only sleeping moves, and something to happen meanwhile."""

    now_s: float = 0.0
    slept: list[float] = field(default_factory=list)
    after_sleeps: int = 0
    happening: object = None

    def clock(self) -> float:
        """See `sluice.runtime.contracts.Clock`."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Time passes; after ``after_sleeps`` sleeps the thing happens."""
        self.slept.append(seconds)
        self.now_s += seconds
        if callable(self.happening) and len(self.slept) == self.after_sleeps:
            self.happening()


def _committer(wire: FakeWire, time: Time | None = None) -> KafkaCommitter:
    time = time or Time()
    return KafkaCommitter(wire, clock=time.clock, sleep=time.sleep)


def _open(harness: FakeHarness, records: int = 3) -> tuple[FakeAttempt, StateEntry]:
    attempt = harness.open()
    attempt.produce(records)
    return attempt, committable(attempt.identity)


def _commit(
    committer: KafkaCommitter,
    entry: StateEntry,
    *,
    after_crash: bool = True,
    timeout_s: float = 10,
) -> CommitReport:
    (report,) = committer.commit([entry], timeout_s=timeout_s, after_crash=after_crash)
    return report


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("after_crash", [False, True])
@pytest.mark.parametrize("fault", Fault)
def test_a_lost_request_or_answer_ends_in_one_visible_commit(
    level: int, after_crash: bool, fault: Fault
) -> None:
    """Happened, did not happen, unknown: each is settled by looking, and committed once."""
    harness = FakeHarness(level)
    _, entry = _open(harness)
    harness.wire.faults = [fault, fault]

    report = _commit(_committer(harness.wire), entry, after_crash=after_crash)

    assert report.outcome is CommitOutcome.COMMITTED
    assert harness.visible() == 3


def test_an_unreachable_cluster_is_pending_and_nothing_is_lost() -> None:
    """The committer neither raises nor guesses; the next call finishes."""
    harness = FakeHarness(2)
    _, entry = _open(harness)
    harness.wire.unreachable = True
    time = Time()

    report = _commit(_committer(harness.wire, time), entry, timeout_s=3)
    assert report.outcome is CommitOutcome.PENDING
    assert time.now_s == pytest.approx(3)

    harness.wire.unreachable = False
    assert _commit(_committer(harness.wire), entry).outcome is CommitOutcome.COMMITTED


def test_a_broker_that_comes_back_in_time_is_waited_for() -> None:
    """PENDING is retried until the time is up, with growing pauses that stay short."""
    harness = FakeHarness(2)
    _, entry = _open(harness)
    harness.wire.unreachable = True

    def come_back() -> None:
        harness.wire.unreachable = False

    time = Time(after_sleeps=20, happening=come_back)
    report = _commit(_committer(harness.wire, time), entry, timeout_s=60)

    assert report.outcome is CommitOutcome.COMMITTED
    assert len(time.slept) == 20
    assert max(time.slept) <= 0.25


def test_refused_permissions_are_pending_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Credentials that are refused change nothing, so the decision stays to be carried out. It is
    said once in a call, and not with each of its looks."""

    class Refusing(FakeWire):
        def describe(self, *_: object, **__: object) -> dict[str, None]:
            raise AuthenticationError("refused", {}, "Fix it.")

    report = _commit(_committer(Refusing(FakeBroker())), _open(FakeHarness(2))[1], timeout_s=1)

    assert report.outcome is CommitOutcome.PENDING
    assert report.detail == "refused []. Fix it."
    assert len(caplog.records) == 1


@pytest.mark.parametrize("refusals", [1, 1_000])
def test_commit_acknowledged_a_look_that_is_refused_once_is_made_again(refusals: int) -> None:
    """A job has come to its good end; one that may not look at all is told why."""
    left = refusals

    class Refusing(FakeWire):
        def list_transactions(self, *arguments: Any, **options: Any) -> Listing:
            nonlocal left
            left -= 1
            if left >= 0:
                raise AuthenticationError("refused", {}, "Fix it.")
            return super().list_transactions(*arguments, **options)

    committer = _committer(Refusing(FakeBroker()))
    if refusals == 1:
        assert committer.await_visible(timeout_s=5)
    else:
        with pytest.raises(AuthenticationError):
            committer.await_visible(timeout_s=5)


def test_one_lost_transaction_does_not_hold_up_the_others() -> None:
    """Outcome i belongs to committable i."""
    harness = FakeHarness(2)
    _, first_entry = _open(harness)
    lost, lost_entry = _open(harness)
    gone, gone_entry = _open(harness)
    lost.end_natively(commit=False)
    harness.broker.forget(gone.identity.transactional_id)
    _, last_entry = _open(harness)

    reports = _committer(harness.wire).commit(
        [first_entry, lost_entry, gone_entry, last_entry], timeout_s=5, after_crash=True
    )

    assert [report.outcome for report in reports] == [
        CommitOutcome.COMMITTED,
        CommitOutcome.ABORTED,
        CommitOutcome.UNKNOWN,
        CommitOutcome.COMMITTED,
    ]
    assert harness.visible() == 6


@dataclass
class _WithoutOne(FakeWire):
    """The coordinator of some ids is away: who asks about them waits as long as it may."""

    away: frozenset[str] = frozenset()
    time: Time = field(default_factory=Time)

    def describe(
        self, transactional_ids: Sequence[str], *, timeout_s: float
    ) -> Mapping[str, TransactionDescription | None]:
        there = self._waited_for(transactional_ids, timeout_s)
        return super().describe(there, timeout_s=timeout_s)

    def end(
        self, transactions: Sequence[TransactionIdentity], *, commit: bool, timeout_s: float
    ) -> list[EndReport]:
        there = self._waited_for([each.transactional_id for each in transactions], timeout_s)
        unasked = EndReport(outcome=EndOutcome.REFUSED, error="no coordinator was reachable")
        return [
            self._end(each, commit=commit) if each.transactional_id in there else unasked
            for each in transactions
        ]

    def _waited_for(self, ids: Sequence[str], timeout_s: float) -> Sequence[str]:
        there = [each for each in ids if each not in self.away]
        if len(there) < len(ids):
            self.time.now_s += timeout_s
        return there if timeout_s > 0 else []


@pytest.mark.parametrize("commit", [True, False])
def test_ids_whose_coordinator_is_away_leave_others_the_time_to_be_ended(commit: bool) -> None:
    """As long as it is away, those would be open; and what is not aborted holds readers back."""
    harness = FakeHarness(2)
    lost, lost_entry = _open(harness)
    _, entry = _open(harness)
    time = Time()
    away = frozenset({lost.identity.transactional_id})
    committer = _committer(_WithoutOne(harness.broker, away=away, time=time), time)

    end = partial(committer.commit, after_crash=True) if commit else committer.abort
    reports = end([lost_entry, entry], timeout_s=10)

    ended = CommitOutcome.COMMITTED if commit else CommitOutcome.ABORTED
    assert [report.outcome for report in reports] == [CommitOutcome.PENDING, ended]
    assert time.now_s == pytest.approx(10)


def test_brokers_that_are_slow_for_all_are_given_the_whole_time() -> None:
    """Nobody is held up then: a look that is cut off each time would never tell."""

    class Slow(FakeWire):
        def describe(
            self, transactional_ids: Sequence[str], *, timeout_s: float
        ) -> Mapping[str, TransactionDescription | None]:
            time.now_s += min(timeout_s, 6.0)
            is_told = timeout_s >= 6.0
            return super().describe(transactional_ids if is_told else (), timeout_s=timeout_s)

    harness, time = FakeHarness(2), Time()
    _, entry = _open(harness)
    report = _commit(_committer(Slow(harness.broker), time), entry, timeout_s=30)
    assert report.outcome is CommitOutcome.COMMITTED


@pytest.mark.parametrize("level", [0, 1, 2])
def test_endtxn_version_no_version_5_request_is_sent_at_level_0(level: int) -> None:
    """Rule `endtxn-version`: version 5 only where transaction.version is finalised at 1 or more."""
    harness = FakeHarness(level)
    _, entry = _open(harness)
    _commit(_committer(harness.wire), entry)

    versions = {version for _, _, version in harness.broker.requests}

    assert versions == ({5} if level >= 1 else {4})


def test_endtxn_version_version_5_at_level_0_would_wedge_the_transaction() -> None:
    """Rule `endtxn-version`: what the fake does when the rule is broken, as measured on a real
    broker."""
    harness = FakeHarness(0)
    _, entry = _open(harness)
    harness.wire.end_version = 5

    assert _commit(_committer(harness.wire), entry, timeout_s=5).outcome is CommitOutcome.PENDING

    harness.wire.end_version = 4
    harness.broker.advance(1000)
    assert _commit(_committer(harness.wire), entry, timeout_s=5).outcome is CommitOutcome.PENDING
    assert harness.visible() == 0


@pytest.mark.parametrize("level", [0, 1, 2])
def test_outcome_from_broker_after_a_crash_nothing_is_sent_before_the_verdict_allows_it(
    level: int,
) -> None:
    """Rule `outcome-from-broker`: Describe first; no EndTxn unless Ongoing with exactly our
    producer id and epoch."""
    harness = FakeHarness(level)
    committed, committed_entry = _open(harness)
    aborted, aborted_entry = _open(harness)
    fenced, fenced_entry = _open(harness)
    committed.end_natively(commit=True)
    aborted.end_natively(commit=False)
    harness.open(fenced.identity.transactional_id).produce(1)

    _committer(harness.wire).commit(
        [committed_entry, aborted_entry, fenced_entry], timeout_s=5, after_crash=True
    )

    assert harness.broker.requests == []


def test_outcome_from_broker_a_commit_that_is_prepared_is_waited_for() -> None:
    """Rule `outcome-from-broker`: PrepareCommit means wait; the markers come without another
    request."""
    harness = FakeHarness(2)
    harness.broker.hold_markers = True
    attempt, entry = _open(harness)
    attempt.end_natively(commit=True)
    time = Time(after_sleeps=5, happening=harness.broker.write_markers)

    report = _commit(_committer(harness.wire, time), entry)

    assert report.outcome is CommitOutcome.COMMITTED
    assert harness.broker.requests == []


def test_commit_acknowledged_an_acknowledged_commit_counts_before_its_markers_are_written() -> None:
    """Rule `commit-acknowledged`: EndTxn answers at PrepareCommit, which cannot be undone; visible
    comes later."""
    harness = FakeHarness(2)
    harness.broker.hold_markers = True
    attempt, entry = _open(harness)
    committer = _committer(harness.wire)

    assert _commit(committer, entry, after_crash=False).outcome is CommitOutcome.COMMITTED
    assert not committer.await_visible(timeout_s=2)

    harness.await_state(attempt.identity, TransactionState.COMPLETE_COMMIT)
    assert committer.await_visible(timeout_s=2)


def test_commit_acknowledged_waiting_ends_when_the_markers_come() -> None:
    """Rule `commit-acknowledged`: visible is asked for again and again, also over a broker's
    absence."""
    harness = FakeHarness(2)
    harness.broker.hold_markers = True
    _, entry = _open(harness)
    time = Time(after_sleeps=7, happening=harness.broker.write_markers)
    committer = _committer(harness.wire, time)
    _commit(committer, entry, after_crash=False)

    assert committer.await_visible(timeout_s=60)
    assert len(time.slept) == 7


def test_commit_acknowledged_every_transaction_of_the_sink_is_waited_for_and_no_other() -> None:
    """Also one whose epoch lies far behind, or that an earlier run has put on record."""
    harness = FakeHarness(2)
    _, ours = _open(harness)
    committer = KafkaCommitter(harness.wire, ids=f"{harness.prefix}/")
    others = KafkaCommitter(harness.wire, ids=f"{harness.prefix}-of-another-job/")
    harness.broker.hold_markers = True
    _commit(committer, ours, after_crash=False)
    harness.broker.hold_markers = False
    for _ in range(5):
        _, entry = _open(harness)
        _commit(committer, entry, after_crash=False)
    assert others.await_visible(timeout_s=0)
    assert not committer.await_visible(timeout_s=0)
    harness.broker.write_markers()
    assert committer.await_visible(timeout_s=0)


def test_commit_acknowledged_readers_stop_in_front_of_what_is_being_aborted_too() -> None:
    harness = FakeHarness(2)
    _, entry = _open(harness)
    harness.broker.hold_markers = True
    committer = KafkaCommitter(harness.wire, ids=f"{harness.prefix}/")
    committer.abort([entry], timeout_s=0)
    assert not committer.await_visible(timeout_s=0)
    harness.broker.write_markers()
    assert committer.await_visible(timeout_s=0)


def test_commit_acknowledged_no_look_is_begun_that_would_be_cut_off() -> None:
    """Each would cost its connection."""
    harness = FakeHarness(2)
    _, entry = _open(harness)
    harness.broker.hold_markers = True
    time = Time(after_sleeps=10**6, happening=harness.broker.write_markers)
    committer = _committer(harness.wire, time)
    _commit(committer, entry, after_crash=False)
    given: list[float] = []
    listing = FakeWire.list_transactions

    def noted(self: FakeWire, prefix: str, *, timeout_s: float, **named: Any) -> Any:
        given.append(timeout_s)
        return listing(self, prefix, timeout_s=timeout_s, **named)

    with patch.object(FakeWire, "list_transactions", noted):
        assert not committer.await_visible(timeout_s=5)
    assert len(given) > 5
    assert min(given) >= 0.5
    assert sum(time.slept) < 5


def test_commit_acknowledged_a_broker_that_cannot_be_asked_is_waited_for() -> None:
    """It may be the one that has markers to write."""
    harness = FakeHarness(2)
    harness.wire.absent = ("broker 2",)
    assert not _committer(harness.wire).await_visible(timeout_s=0)


def test_an_abort_whose_answer_is_lost_is_settled_by_looking() -> None:
    """The same three answers for abort."""
    harness = FakeHarness(2)
    _, entry = _open(harness)
    harness.wire.faults = [Fault.LOSE_ANSWER]

    (report,) = _committer(harness.wire).abort([entry], timeout_s=5)

    assert report.outcome is CommitOutcome.ABORTED
    assert harness.visible() == 0


def test_another_sinks_committable_is_refused_before_anything_is_sent() -> None:
    """A wrong entry is a bug or a damaged record: nothing at all is committed."""
    harness = FakeHarness(2)
    _, entry = _open(harness)
    foreign = StateEntry(
        operator_id="op",
        state_name="committables",
        kind="hdfs-file",
        version=1,
        redistribution=Redistribution.SPLIT,
        payload=b"",
    )

    with pytest.raises(UnsupportedFormatError):
        _committer(harness.wire).commit([entry, foreign], timeout_s=5, after_crash=False)

    assert harness.broker.requests == []
