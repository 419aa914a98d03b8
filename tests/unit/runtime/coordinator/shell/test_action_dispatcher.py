"""What the end of a job waits for, slow remotes, and the sweeping thread."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from unittest.mock import patch

import pytest

from sluice.runtime.contracts import CommitOutcome, Committer, SweepReport, SweepView
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.coordinator.core.events import Action, Commit, EndJob, Progress
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.coordinator.shell.action_dispatcher import (
    ActionDispatcher,
    BatchWaiters,
    ListenerThread,
    WakeUp,
)
from sluice.runtime.coordinator.shell.core_loop import StepThread
from sluice.runtime.coordinator.shell.run_threads import Housekeeper
from sluice.runtime.coordinator.shell.source_service import SerialSource
from sluice.runtime.errors import AuthenticationError, UnreachableError
from sluice.runtime.model.acknowledgement import RecordCounts
from sluice.runtime.model.checkpoint_record import CheckpointKind
from tests.kit.coordinator.core_driver import split
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.fakes import FakeBroker, FakeSink, FakeSource, ManualClock, entry_of
from tests.kit.waiting import PATIENCE_S, join, wait_for
from tests.unit.runtime.coordinator.core.test_remote_steps import io_executor
from tests.unit.runtime.coordinator.shell.test_coordinator import Job


class Looking:
    """A committer whose readers see the work after some looks; an error is raised."""

    def __init__(self, inner: Committer, answers: Sequence[bool | Exception]) -> None:
        self.commit, self.abort = inner.commit, inner.abort
        self._answers = list(answers)
        self.asked = len(self._answers)

    @property
    def left(self) -> int:
        return len(self._answers)

    def await_visible(self, *, timeout_s: float) -> bool:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Bench:
    """Routes around one sink."""

    def __init__(
        self, *answers: bool | Exception, swept: Sequence[bool | Exception] = (True,)
    ) -> None:
        self.sweeps = list(swept)
        self.clock = ManualClock()
        self.sink = FakeSink(FakeBroker())
        self.looking = self.sink.committer = Looking(self.sink.committer, answers)
        self.steps = StepThread(io_executor(FakeStore(), self.sink))
        self.dispatcher = ActionDispatcher(
            steps=self.steps,
            waiters=BatchWaiters(),
            wake=WakeUp(),
            listeners=ListenerThread([]),
            sinks={"sink": SerialSink(self.sink)},
            sweep=lambda _: None,
            sweep_whole=self._sweep,
            visible_timeout_s=10.0,
            clock=self.clock,
        )
        self.steps.start(lambda _: None)

    def _sweep(self) -> bool:
        assert self.looking.left == self.looking.asked, "readers stop in front of an orphan"
        answer = self.sweeps.pop(0)
        self.clock.advance(7.0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def finish(self, retry_for_s: float = PATIENCE_S) -> bool:
        """A bounded job has committed its last checkpoint."""
        entry = entry_of(self.sink.broker.init("fake/job/main.0/owner"))
        last = Commit(checkpoint_id=1, committables=(entry,), after_crash=False, regions=())
        actions: list[Action] = [last, EndJob(error=None, finished=True)]
        self.dispatcher.carry_out(actions)
        try:
            return self.dispatcher.wait(retry_for_s)
        finally:
            self.steps.stop(timeout_s=PATIENCE_S)


def test_commit_acknowledged_a_bounded_job_is_looked_after_until_readers_see_its_end() -> None:
    """Committed is not visible yet: a marker may be on its way."""
    bench = Bench(False, False, True)
    assert bench.finish()
    assert bench.looking.left == 0


@pytest.mark.parametrize("first", [False, UnreachableError("no broker answers", {}, "Start one.")])
def test_commit_acknowledged_what_failed_attempts_left_open_is_swept_before_a_good_end(
    first: bool | Exception,
) -> None:
    """Readers stop in front of it, whatever is committed after: no later sweep would come."""
    with patch("sluice.runtime.coordinator.shell.action_dispatcher._SWEEP_AGAIN_S", 0.001):
        bench = Bench(True, swept=[first, True])
        assert bench.finish()
        assert not bench.sweeps
        with pytest.raises(UnreachableError, match="missing=orphans"):
            Bench(True, swept=[first, False]).finish(20.0)


def test_commit_acknowledged_an_end_without_commits_of_its_own_is_looked_after_too() -> None:
    bench = Bench(False, True)
    bench.dispatcher.carry_out([EndJob(error=None, finished=True)])
    assert bench.dispatcher.wait(PATIENCE_S)
    bench.steps.stop(timeout_s=PATIENCE_S)
    assert bench.looking.left == 0


@pytest.mark.parametrize(
    "error",
    [
        UnreachableError("no broker answers", {}, "Start one."),
        AuthenticationError("who reads may not look", {}, "Grant it."),
        ValueError("a client's own bug"),
    ],
)
def test_commit_acknowledged_an_end_that_could_not_be_looked_at_is_no_good_end(
    error: Exception,
) -> None:
    with pytest.raises(type(error), match=str(error.args[0])):
        Bench(error).finish(20.0)


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        (RecordCounts(read=9, skipped=2, dead_lettered=1), ["skipped=2 dead_lettered=1"]),
        (RecordCounts(read=9), []),
    ],
)
def test_records_that_functions_failed_for_are_reported_with_their_checkpoint(
    counts: RecordCounts, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A human may want to look at them; of others nothing is said."""
    progress = Progress(
        checkpoint_id=3,
        kind=CheckpointKind.CHECKPOINT,
        requested_by="interval",
        state=State.MARKED,
        counts={"parse": counts},
    )
    bench = Bench()
    with caplog.at_level(logging.WARNING):
        bench.dispatcher.carry_out([progress])
    bench.steps.stop(timeout_s=PATIENCE_S)
    warned = [entry.getMessage() for entry in caplog.records]
    assert len(warned) == len(told)
    for line, words in zip(warned, told, strict=True):
        assert "checkpoint_id=3 operator=parse read=9" in line
        assert words in line


def test_ranges_that_were_left_out_are_reported_by_name(caplog: pytest.LogCaptureFixture) -> None:
    """Approximate recovery loses them on purpose, and never silently."""
    progress = Progress(
        checkpoint_id=3,
        kind=CheckpointKind.CHECKPOINT,
        requested_by="interval",
        state=State.MARKED,
        dropped=(split(0, 10, 15),),
    )
    bench = Bench()
    bench.dispatcher.carry_out([progress])
    bench.steps.stop(timeout_s=PATIENCE_S)
    assert "dropped by approximate recovery: checkpoint_id=3 offsets=5" in caplog.text


def test_a_wait_for_readers_is_reported_while_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    """A quarter of an hour of silence looks like a job that hangs."""
    with (
        patch("sluice.runtime.coordinator.shell.action_dispatcher._SWEEP_AGAIN_S", 0.001),
        patch("sluice.runtime.coordinator.shell.action_dispatcher._LOG_EVERY_S", 6.0),
    ):
        assert Bench(True, swept=[False, True]).finish()
    assert "waits until readers see all of it: missing=orphans waited_s=7" in caplog.text


VIEW = SweepView(job_uid="j", attempt_ids={}, protected=(), orphans=())
WAIT_S = 300.0


@pytest.fixture
def job() -> Iterator[Job]:
    stack: list[Callable[[], None]] = []
    yield Job(stack)
    for stop in reversed(stack):
        stop()


class SlowSweep(FakeSink):
    """A sink whose sweep waits for a broker that does not answer."""

    def __init__(self, broker: FakeBroker) -> None:
        super().__init__(broker)
        self.began, self.answered = threading.Event(), threading.Event()

    def sweep(self, view: SweepView, *, timeout_s: float) -> SweepReport:
        self.began.set()
        assert self.answered.wait(WAIT_S)
        return SweepReport(aborted=0)


def test_a_commit_does_not_wait_for_a_sweep() -> None:
    broker = FakeBroker()
    slow = SlowSweep(broker)
    sink = SerialSink(slow)
    thread = threading.Thread(target=lambda: sink.sweep(VIEW, timeout_s=WAIT_S))
    thread.start()
    try:
        assert slow.began.wait(WAIT_S)
        entry = entry_of(broker.init("p/j/main.0/owner-0"))
        with sink.committing() as committer:
            (report,) = committer.commit([entry], timeout_s=1.0, after_crash=False)
        assert report.outcome is not CommitOutcome.PENDING
    finally:
        slow.answered.set()
        join(thread)


@pytest.mark.parametrize("bounded", [True, False])
def test_the_ends_of_a_source_are_the_same_after_its_lock(*, bounded: bool) -> None:
    source = FakeSource("source", {0: 5, 1: 7}, bounded=bounded)
    ends = SerialSource(source).fixed_ends()
    assert ends == source.fixed_ends()
    assert (ends is None) is not bounded


AWAY = UnreachableError("no broker answers", {}, "Start one.")
BUG = ValueError("a client's own bug")


class Rounds:
    """What each round of one kind meets; after the last one nothing any more."""

    def __init__(self, *errors: Exception) -> None:
        self.met = 0
        self._errors = list(errors)

    def __call__(self) -> None:
        self.met += 1
        if self._errors:
            raise self._errors.pop(0)


@pytest.fixture
def started() -> Iterator[Callable[..., Housekeeper]]:
    stops: list[Housekeeper] = []

    def start(*, sweep: Rounds, interval_s: float = 60.0) -> Housekeeper:
        made = Housekeeper(sweep=sweep, interval_s=interval_s, clock=time.monotonic)
        stops.append(made)
        made.start()
        return made

    yield start
    for each in stops:
        each.stop(timeout_s=PATIENCE_S)


def test_ids_never_reused_a_sweep_that_fails_is_repeated_at_its_interval(
    started: Callable[..., Housekeeper], caplog: pytest.LogCaptureFixture
) -> None:
    """Also after an error of a client: readers would wait for orphans as long as the job runs."""
    sweep = Rounds(AWAY, BUG)
    started(sweep=sweep, interval_s=0.01)
    wait_for(lambda: sweep.met >= 3, poll_s=0.002)
    levels = [entry.levelno for entry in caplog.records if "sweep failed" in entry.message]
    assert levels == [logging.WARNING, logging.ERROR]


def test_abort_before_skip_who_waits_for_a_sweep_continues_though_it_failed(
    started: Callable[..., Housekeeper],
) -> None:
    """A new attempt waits for one try: the next sweep comes in any case."""
    keeper = started(sweep=Rounds(BUG))
    tried = threading.Event()
    keeper.sweep_soon(tried.set)
    assert tried.wait(PATIENCE_S)


def test_a_housekeeper_that_was_not_begun_can_be_stopped() -> None:
    sweep = Rounds()
    Housekeeper(sweep=sweep, interval_s=0.0, clock=time.monotonic).stop(timeout_s=PATIENCE_S)
    assert sweep.met == 0
