"""Commits by tasks, the sink of continuous tasks, and how long a task outlives its coordinator."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import cast

import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.kafka_sink_coordinator import KafkaSinkCoordinator
from sluice.runtime.continuous.native_commits import LostTimeout, NativeCommits, TasksFirst
from sluice.runtime.continuous.task_messages import CommittedEpoch
from sluice.runtime.contracts import (
    CommitOutcome,
    CommitReport,
    Committer,
    RegionProgress,
    SinkContext,
    SinkCoordinator,
    SweepReport,
    SweepView,
)
from sluice.runtime.coordinator.committing.sink_committer import SerialSink, SharedCommitter
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import BatchKey
from tests.kit.coordinator.core_driver import committable
from tests.kit.kafka.transaction_harness import FakeHarness
from tests.kit.waiting import PATIENCE_S

_REGIONS = ("main", "side")


@dataclass
class ByHand:
    """The driver's own committer; remembers what it was asked, and how."""

    calls: list[tuple[tuple[StateEntry, ...], bool]] = field(default_factory=list)
    aborted: list[StateEntry] = field(default_factory=list)

    def commit(
        self, committables: Sequence[StateEntry], *, timeout_s: float, after_crash: bool
    ) -> list[CommitReport]:
        assert timeout_s >= 0
        self.calls.append((tuple(committables), after_crash))
        return [CommitReport(outcome=CommitOutcome.COMMITTED, detail="by hand")] * len(committables)

    def abort(self, committables: Sequence[StateEntry], *, timeout_s: float) -> list[CommitReport]:
        self.aborted += committables
        return [CommitReport(outcome=CommitOutcome.ABORTED)] * len(committables)

    def await_visible(self, *, timeout_s: float) -> bool:
        return timeout_s > 0


class Rig:
    """Two attempts that have each reported one epoch of one transaction, attempt 7."""

    def __init__(self, *, report_s: float = PATIENCE_S) -> None:
        self.commits = NativeCommits()
        self.by_hand = ByHand()
        self.committer = TasksFirst(self.commits, LostTimeout(None), report_s=report_s)
        self.entries = {name: committable(name) for name in _REGIONS}
        for name, entry in self.entries.items():
            self.commits.begin(name, 7)
            self.commits.add_epoch(BatchKey(region=name, attempt_id=7, batch_id=4), (entry,))

    def shared(self, by_hand: ByHand) -> SharedCommitter:
        sink = cast(SinkCoordinator, SimpleNamespace(committer=by_hand))
        return SharedCommitter(SerialSink(sink, self.committer), name="sink")

    def answer(
        self, region: str, *, attempt_id: int = 7, operators: tuple[str, ...] = ("sink",)
    ) -> None:
        epochs = [CommittedEpoch(batch_id=4, operators=operators)]
        self.commits.report(region, attempt_id, epochs)

    def commit(self, *asked: Callable[[], None], after_crash: bool = False) -> dict[str, str]:
        def wake() -> None:
            for act in asked:
                act()

        self.commits.wake_polls_with(wake)
        reports = self.committer.commit(
            self.by_hand, list(self.entries.values()), timeout_s=PATIENCE_S, after_crash=after_crash
        )
        assert {report.outcome for report in reports} == {CommitOutcome.COMMITTED}
        return dict(zip(self.entries, (report.detail for report in reports), strict=True))

    @property
    def handed(self) -> list[tuple[list[str], bool]]:
        return [
            ([each.payload.decode() for each in entries], after_crash)
            for entries, after_crash in self.by_hand.calls
        ]


def test_what_tasks_have_committed_is_not_ended_manually() -> None:
    rig = Rig()
    found = rig.commit(lambda: rig.answer("main"), lambda: rig.answer("side"))
    assert set(found.values()) == {"the task's commit was accepted"}
    assert rig.handed == []


def test_outcome_from_broker_a_commit_that_was_not_acknowledged_is_settled_by_the_verdict() -> None:
    """It may have happened: EndTxn goes out only after a look."""
    rig = Rig()
    rig.commit(lambda: rig.answer("main"), lambda: rig.answer("side", operators=()))
    assert rig.handed == [(["side"], True)]


def test_continuous_order_a_task_that_does_not_answer_is_waited_for_with_a_bound() -> None:
    rig = Rig(report_s=0.05)
    rig.commit(lambda: rig.answer("main"))
    assert rig.handed == [(["side"], True)]
    assert rig.commits.requested("side", 7) == ()
    rig.answer("side")
    assert rig.commits.await_reports({"side": 7}, timeout_s=0) == frozenset()


@pytest.mark.parametrize("successor", [False, True])
def test_an_attempt_that_is_over_is_not_waited_for(successor: bool) -> None:
    rig = Rig()

    def over() -> None:
        if successor:
            rig.commits.begin("side", 9)
        else:
            rig.commits.end("side", 7)

    rig.commit(lambda: rig.answer("main"), over)
    assert rig.handed == [(["side"], True)]


def test_an_attempt_that_ends_while_it_is_waited_for_ends_the_wait() -> None:
    rig = Rig()
    ends = threading.Timer(0.05, lambda: rig.commits.end("side", 7))
    rig.commit(lambda: rig.answer("main"), ends.start)
    ends.join()
    assert rig.handed == [(["side"], True)]


def test_callback_after_commit_an_older_attempt_is_not_heard() -> None:
    rig = Rig(report_s=0.05)
    rig.commits.begin("side", 9)
    rig.commits.add_epoch(BatchKey(region="side", attempt_id=9, batch_id=4), (rig.entries["side"],))
    rig.commit(lambda: rig.answer("main"), lambda: rig.answer("side", attempt_id=7))
    assert rig.handed == [(["side"], True)]


def test_what_no_living_task_has_written_goes_straight_to_the_driver() -> None:
    rig = Rig()
    rig.commits.end("side", 7)
    rig.commit(lambda: rig.answer("main"))
    assert rig.handed == [(["side"], False)]


def test_a_second_try_is_the_drivers_alone() -> None:
    rig = Rig()
    rig.commit(after_crash=True)
    assert rig.handed == [(["main", "side"], True)]
    assert rig.commits.requested("main", 7) == ()


def test_an_epoch_of_two_sinks_is_committed_with_one_question() -> None:
    """Each sink has a committer of its own; the second finds the answer there."""
    rig = Rig()
    other = replace(committable("other"), operator_id="other")
    batch = BatchKey(region="main", attempt_id=7, batch_id=4)
    rig.commits.add_epoch(batch, (rig.entries["main"], other))
    rig.commit(lambda: rig.answer("main", operators=("sink", "other")), lambda: rig.answer("side"))
    rig.commits.wake_polls_with(lambda: None)
    (report,) = rig.committer.commit(rig.by_hand, [other], timeout_s=PATIENCE_S, after_crash=False)
    assert report.detail == "the task's commit was accepted"
    assert rig.handed == []


def test_outcome_from_broker_what_a_task_may_have_committed_before_it_died_is_settled_by_the_verdict() -> (
    None
):
    """It was asked for both sinks at once, and is over before the second one's turn."""
    rig = Rig()
    other = replace(committable("other"), operator_id="other")
    batch = BatchKey(region="main", attempt_id=7, batch_id=4)
    rig.commits.add_epoch(batch, (rig.entries["main"], other))
    rig.commit(lambda: rig.answer("main", operators=("sink", "other")), lambda: rig.answer("side"))
    rig.commits.begin("main", 9)
    rig.committer.commit(rig.by_hand, [other], timeout_s=PATIENCE_S, after_crash=False)
    assert rig.handed == [(["other"], True)]


def test_an_answer_is_forgotten_once_its_epoch_is_committed_on_record() -> None:
    """Nothing is kept for the attempt of a task."""
    rig = Rig()
    rig.commit(lambda: rig.answer("main"), lambda: rig.answer("side"))
    rig.commits.remove_epochs("main", 7, through=4)
    assert rig.commits.request(rig.entries.values()).attempts == {"side": 7}


def test_what_nobody_has_asked_for_is_not_heard() -> None:
    rig = Rig(report_s=0.05)
    rig.answer("main")
    rig.commit(lambda: rig.answer("side"))
    assert rig.handed == [(["main"], True)]


def test_continuous_order_a_silent_task_is_waited_for_once_and_not_for_each_sink() -> None:
    """Until it is known again; meanwhile the driver does what it would have done."""
    rig = Rig(report_s=0.01)
    assert set(rig.commit().values()) == {"by hand"}
    wanted: list[tuple[int, ...]] = []

    def look() -> None:
        wanted.append(rig.commits.requested("main", 7))

    assert set(rig.commit(look).values()) == {"by hand"}
    rig.commits.report("main", 7, ())
    rig.commit(look)
    assert wanted == [(), (4,)]


def test_outcome_from_broker_what_is_given_up_is_aborted_by_the_driver_alone() -> None:
    """No task is asked: it might have died with it, and its next one fences it."""
    rig = Rig()
    entry = rig.entries["main"]
    (report,) = rig.shared(rig.by_hand).abort([entry], timeout_s=PATIENCE_S).values()
    assert report.outcome is CommitOutcome.ABORTED
    assert rig.by_hand.aborted == [entry]
    assert rig.commits.requested("main", 7) == ()


@dataclass
class Following(ByHand):
    """One that follows its regions, and is after."""

    told: list[int] = field(default_factory=list)

    def regions_published(
        self, checkpoint_id: int, regions: Sequence[RegionProgress], *, timeout_s: float
    ) -> CommitReport:
        self.told.append(checkpoint_id)
        return CommitReport(outcome=CommitOutcome.PENDING, detail="a partition is not marked yet")


def test_a_sink_that_follows_its_regions_follows_them_through_the_tasks_commits() -> None:
    """A checkpoint is finished when the driver's committer says so; others have nothing to do."""
    rig = Rig()
    follower = Following()
    report = rig.shared(follower).regions_published(5, (), timeout_s=1.0)
    assert (report.outcome, follower.told) == (CommitOutcome.PENDING, [5])
    plain = rig.shared(rig.by_hand).regions_published(5, (), timeout_s=1.0)
    assert plain.outcome is CommitOutcome.COMMITTED


CONTEXT = SinkContext(
    job_uid="j", job_name="job", operator_id="o", checkpoint_uri="file:/a", leader_session_id="s"
)
VIEW = SweepView(job_uid="j", attempt_ids={"main": 2}, protected=(), orphans=())
SWEPT = SweepReport(aborted=3, is_complete=False)


class _Sink:
    """A `SinkCoordinator` that writes down what it is asked for."""

    committer: Committer

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.facts = {"transaction_timeout_s": "100"}

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        self.asked.append(("check", timeout_s))
        return self.facts

    def claim(self, context: SinkContext, *, timeout_s: float) -> None:
        self.asked.append(("claim", context, timeout_s))

    def sweep(self, view: SweepView, *, timeout_s: float) -> SweepReport:
        self.asked.append(("sweep", view, timeout_s))
        return SWEPT

    def renew(self) -> None:
        self.asked.append(("renew",))

    def close(self) -> None:
        self.asked.append(("close",))


def test_lease_guards_outputs_a_continuous_sink_claims_renews_and_sweeps_as_its_connector_does() -> (
    None
):
    sink, lost_timeout = _Sink(), LostTimeout(None)
    continuous = SerialSink(sink, TasksFirst(NativeCommits(), lost_timeout))
    assert continuous.check(timeout_s=1.0) == {"transaction_timeout_s": "100"}
    continuous.claim(CONTEXT, timeout_s=2.0)
    assert continuous.sweep(VIEW, timeout_s=3.0) == SWEPT
    continuous.renew()
    continuous.close()
    assert sink.asked == [
        ("check", 1.0),
        ("claim", CONTEXT, 2.0),
        ("sweep", VIEW, 3.0),
        ("renew",),
        ("close",),
    ]
    assert lost_timeout.seconds < 50.0


def test_a_sink_without_transactions_bounds_nothing() -> None:
    """Its check reports of no time-out: nothing of it is open that could grow too old."""
    sink, lost_timeout = _Sink(), LostTimeout(None)
    sink.facts = {"cluster_id": "c"}
    tasks = TasksFirst(NativeCommits(), lost_timeout, between_barriers_s=1e6)
    continuous = SerialSink(sink, tasks)
    assert continuous.check(timeout_s=1.0) == {"cluster_id": "c"}
    assert lost_timeout.seconds == 60.0


def test_it_is_a_minute_where_the_sinks_allow_that() -> None:
    chosen = LostTimeout(None)
    assert chosen.seconds == 60.0
    chosen.allow(900.0)
    assert chosen.seconds == 60.0


@pytest.mark.parametrize("timeout_s", [59.0, 60.0])
def test_what_the_user_has_asked_for_is_refused_where_it_is_not_below_half(
    timeout_s: float,
) -> None:
    with pytest.raises(ConfigError, match="coordinator_lost_timeout_s=30"):
        LostTimeout(30.0).allow(timeout_s)


def test_the_start_check_of_a_sink_refuses_it_by_what_its_cluster_allows() -> None:
    """The sink has no timeout of its own, so its transactions get the brokers' maximum."""
    harness = FakeHarness(2)
    limit_s = harness.wire.cluster(timeout_s=1).max_transaction_timeout_s
    assert limit_s is not None

    def checked(asked_s: float | None, *, between_barriers_s: float = 1.0) -> float:
        chosen = LostTimeout(asked_s)
        sink = KafkaSinkCoordinator(
            KafkaConnection(bootstrap_servers="fake:1"),
            transactional_id_prefix=harness.prefix,
            transaction_timeout_s=None,
            topics=(),
            connect=lambda _: harness.wire,
        )
        tasks = TasksFirst(NativeCommits(), chosen, between_barriers_s=between_barriers_s)
        SerialSink(sink, tasks).check(timeout_s=1)
        return chosen.seconds

    assert checked(None) < limit_s / 2
    assert checked(limit_s / 2 - 1) == limit_s / 2 - 1
    with pytest.raises(ConfigError, match="outlive"):
        checked(limit_s / 2)
    assert checked(None, between_barriers_s=limit_s / 3) < limit_s / 2
    with pytest.raises(ConfigError, match="too old at its barrier"):
        checked(None, between_barriers_s=limit_s / 3 + 1)
