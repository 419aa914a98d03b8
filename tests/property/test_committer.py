"""The committer against random histories: crashes, lost answers, native ends, timeouts."""

import enum

from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.connectors.kafka.sink.committer.kafka_committer import KafkaCommitter
from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionState
from sluice.connectors.kafka.sink.handles import decode_handle
from sluice.runtime.contracts import CommitOutcome
from sluice.runtime.model.checkpoint_record import StateEntry
from tests.kit.effort import examples
from tests.kit.kafka.fake_kafka import Fault
from tests.kit.kafka.transaction_harness import FakeHarness, committable


class Before(enum.Enum):
    """What may have happened to a decided transaction before a recovery looks at it."""

    NOTHING = "its writer was killed"
    NATIVE_COMMIT = "its writer committed, the acknowledgement was lost"
    RAW_COMMIT = "an earlier coordinator committed, and died"
    TIMED_OUT = "the cluster was away for too long"


class _Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


faults = st.lists(st.sampled_from(Fault), max_size=6)
steps = st.lists(
    st.tuples(st.booleans(), faults, st.floats(0.0, 2.0), st.booleans()), min_size=1, max_size=5
)


@settings(max_examples=examples(300), deadline=None)
@given(
    level=st.sampled_from([0, 1, 2]),
    before=st.lists(st.sampled_from(Before), min_size=1, max_size=4),
    calls=steps,
    hold=st.booleans(),
)
def test_outcome_from_broker_a_decided_transaction_is_committed_once_or_reported_lost(
    level: int, before: list[Before], calls: list[tuple[bool, list[Fault], float, bool]], hold: bool
) -> None:
    """Rule `outcome-from-broker`: however often recoveries start, die and lose answers, no verdict
    is ever wrong.

    COMMITTED: the records are, or will be, visible once. ABORTED: they never will be. And once
    nothing fails any more, every verdict is final.
    """
    harness = FakeHarness(level)
    attempts = [harness.open(timeout_s=60) for _ in before]
    for attempt in attempts:
        attempt.produce(1)
    entries = [committable(attempt.identity, records=1) for attempt in attempts]
    for attempt, what in zip(attempts, before, strict=True):
        if what is Before.NATIVE_COMMIT:
            attempt.end_natively(commit=True)
        elif what is Before.RAW_COMMIT:
            version = 5 if level else 4
            harness.broker.end(attempt.identity, commit=True, version=version)
        elif what is Before.TIMED_OUT:
            harness.broker.ids[attempt.identity.transactional_id].timeout_s = 1
    harness.broker.advance(30)
    harness.broker.hold_markers = hold

    for after_crash, planned, timeout_s, unreachable in calls:
        harness.wire.faults = list(planned)
        harness.wire.unreachable = unreachable
        _check(harness, entries, after_crash=after_crash, timeout_s=timeout_s)

    harness.wire.faults, harness.wire.unreachable = [], False
    harness.broker.write_markers()
    harness.broker.hold_markers = False
    outcomes = _check(harness, entries, after_crash=True, timeout_s=5)
    assert outcomes == [
        CommitOutcome.ABORTED if what is Before.TIMED_OUT else CommitOutcome.COMMITTED
        for what in before
    ]
    assert set(harness.broker.visible.values()) <= {1}


def _check(
    harness: FakeHarness, entries: list[StateEntry], *, after_crash: bool, timeout_s: float
) -> list[CommitOutcome]:
    clock = _Clock()
    committer = KafkaCommitter(harness.wire, clock=clock, sleep=clock.sleep)
    reports = committer.commit(entries, timeout_s=timeout_s, after_crash=after_crash)
    for entry, report in zip(entries, reports, strict=True):
        state = harness.broker.ids[decode_handle(entry).transactional_id].state
        assert state in _TRUE_STATES[report.outcome], (state, report)
    return [report.outcome for report in reports]


_S = TransactionState
_COMMIT = {_S.PREPARE_COMMIT, _S.COMPLETE_COMMIT}
_ABORT = {_S.PREPARE_ABORT, _S.COMPLETE_ABORT}
_TRUE_STATES = {
    CommitOutcome.COMMITTED: _COMMIT,
    CommitOutcome.ABORTED: _ABORT,
    CommitOutcome.PENDING: {_S.ONGOING} | _COMMIT | _ABORT,
}
