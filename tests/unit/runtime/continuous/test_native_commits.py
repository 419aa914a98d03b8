"""Commits that tasks are asked for: whose answer counts, and what is left to the driver."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import cast

import pytest

from sluice.runtime.continuous.native_commits import LostTimeout, NativeCommits, TasksFirst
from sluice.runtime.continuous.task_messages import CommittedEpoch
from sluice.runtime.contracts import CommitOutcome, CommitReport, RegionProgress, SinkCoordinator
from sluice.runtime.coordinator.committing.sink_committer import SerialSink, SharedCommitter
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import BatchKey
from tests.kit.coordinator.core_driver import committable
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
    """Two lives that have each told one epoch of one transaction, attempt 7."""

    def __init__(self, *, report_s: float = PATIENCE_S) -> None:
        self.commits = NativeCommits()
        self.by_hand = ByHand()
        self.committer = TasksFirst(self.commits, LostTimeout(None), report_s=report_s)
        self.entries = {name: committable(name) for name in _REGIONS}
        for name, entry in self.entries.items():
            self.commits.begin(name, 7)
            self.commits.add_epoch(BatchKey(region=name, attempt_id=7, batch_id=4), (entry,))

    def shared(self, by_hand: ByHand) -> SharedCommitter:
        """The committer of a sink whose tasks commit first."""
        sink = cast(SinkCoordinator, SimpleNamespace(committer=by_hand))
        return SharedCommitter(SerialSink(sink, self.committer))

    def answer(
        self, region: str, *, attempt_id: int = 7, operators: tuple[str, ...] = ("sink",)
    ) -> None:
        epochs = [CommittedEpoch(batch_id=4, operators=operators)]
        self.commits.report(region, attempt_id, epochs)

    def commit(self, *asked: Callable[[], None], after_crash: bool = False) -> dict[str, str]:
        """Both epochs are decided; what tasks do when they are asked. Who committed what."""

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
        """What came to the driver's committer: payloads, and whether the verdict goes first."""
        return [
            ([each.payload.decode() for each in entries], after_crash)
            for entries, after_crash in self.by_hand.calls
        ]


def test_what_tasks_have_committed_is_not_ended_by_hand() -> None:
    """Both acknowledged it."""
    rig = Rig()
    found = rig.commit(lambda: rig.answer("main"), lambda: rig.answer("side"))
    assert set(found.values()) == {"the task's commit was accepted"}
    assert rig.handed == []


def test_outcome_from_broker_a_commit_that_was_not_acknowledged_is_settled_by_the_verdict() -> None:
    """It may have happened: EndTxn goes out only behind a look."""
    rig = Rig()
    rig.commit(lambda: rig.answer("main"), lambda: rig.answer("side", operators=()))
    assert rig.handed == [(["side"], True)]


def test_continuous_order_a_task_that_does_not_answer_is_waited_for_with_a_bound() -> None:
    """Paused, or cut off; what it says later is not heard any more."""
    rig = Rig(report_s=0.05)
    rig.commit(lambda: rig.answer("main"))
    assert rig.handed == [(["side"], True)]
    assert rig.commits.requested("side", 7) == ()
    rig.answer("side")
    assert rig.commits.await_reports({"side": 7}, timeout_s=0) == frozenset()


@pytest.mark.parametrize("successor", [False, True])
def test_a_life_that_is_over_is_not_waited_for(successor: bool) -> None:
    """Its task died, or is being stopped, or another one has taken its place."""
    rig = Rig()

    def over() -> None:
        if successor:
            rig.commits.begin("side", 9)
        else:
            rig.commits.end("side", 7)

    rig.commit(lambda: rig.answer("main"), over)
    assert rig.handed == [(["side"], True)]


def test_a_life_that_ends_while_it_is_waited_for_ends_the_wait() -> None:
    """From another thread, as it happens."""
    rig = Rig()
    ends = threading.Timer(0.05, lambda: rig.commits.end("side", 7))
    rig.commit(lambda: rig.answer("main"), ends.start)
    ends.join()
    assert rig.handed == [(["side"], True)]


def test_callback_after_commit_an_older_life_is_not_heard() -> None:
    """Its transactions were settled, or belong to nobody."""
    rig = Rig(report_s=0.05)
    rig.commits.begin("side", 9)
    rig.commits.add_epoch(BatchKey(region="side", attempt_id=9, batch_id=4), (rig.entries["side"],))
    rig.commit(lambda: rig.answer("main"), lambda: rig.answer("side", attempt_id=7))
    assert rig.handed == [(["side"], True)]


def test_what_no_living_task_has_written_goes_straight_to_the_driver() -> None:
    """Another engine's regions, and lives of an earlier run: nobody can have tried."""
    rig = Rig()
    rig.commits.end("side", 7)
    rig.commit(lambda: rig.answer("main"))
    assert rig.handed == [(["side"], False)]


def test_a_second_try_is_the_drivers_alone() -> None:
    """As every recovery: the tasks are not asked."""
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
    """Nothing is kept for the life of a task."""
    rig = Rig()
    rig.commit(lambda: rig.answer("main"), lambda: rig.answer("side"))
    rig.commits.remove_epochs("main", 7, through=4)
    assert rig.commits.request(rig.entries.values()).attempts == {"side": 7}


def test_what_nobody_has_asked_for_is_not_heard() -> None:
    """An answer to an earlier question, say."""
    rig = Rig(report_s=0.05)
    rig.answer("main")
    rig.commit(lambda: rig.answer("side"))
    assert rig.handed == [(["main"], True)]


def test_continuous_order_a_silent_task_is_waited_for_once_and_not_for_each_sink() -> None:
    """Until it is heard of again; meanwhile the driver does what it would have done."""
    rig = Rig(report_s=0.01)
    assert set(rig.commit().values()) == {"by hand"}
    wanted: list[tuple[int, ...]] = []

    def look() -> None:
        wanted.append(rig.commits.requested("main", 7))

    assert set(rig.commit(look).values()) == {"by hand"}
    rig.commits.report("main", 7, ())
    rig.commit(look)
    assert wanted == [(), (4,)]


def test_where_no_task_lives_nothing_is_waited_for() -> None:
    """All of a decision is another engine's, or of lives that are over."""
    rig = Rig()
    for region in _REGIONS:
        rig.commits.end(region, 7)
    assert set(rig.commit().values()) == {"by hand"}
    assert rig.handed == [(["main", "side"], False)]


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
    """One that follows its regions, and is behind."""

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
