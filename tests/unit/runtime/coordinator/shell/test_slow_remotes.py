"""The coordinator while a remote is slow: what may not wait for it, and what may be stopped."""

import threading
from collections.abc import Callable, Iterator

import pytest

from sluice.runtime.contracts import CommitOutcome, Committer, SweepReport, SweepView
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.coordinator.shell.source_service import SerialSource
from tests.kit.fakes import FakeBroker, FakeSink, FakeSource, entry_of
from tests.kit.waiting import join, wait_for
from tests.unit.runtime.coordinator.shell.test_coordinator import Job

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
    """Readers would wait for what is decided because a broker they do not need is dead."""
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


class _NeverVisible:
    """Commits, but a broker that serves readers is away."""

    def __init__(self, committer: Committer) -> None:
        self.commit, self.abort = committer.commit, committer.abort
        self.asked = threading.Event()

    def await_visible(self, *, timeout_s: float) -> bool:
        self.asked.set()
        threading.Event().wait(timeout_s)
        return False


def test_a_job_that_waits_until_readers_see_its_end_can_be_stopped(job: Job) -> None:
    """Everything is committed on record by then; the wait is a courtesy of up to 15 minutes."""
    sink = FakeSink(job.broker)
    blind = _NeverVisible(sink.committer)
    sink.committer = blind
    job.source.bounded = True
    job.source.ends = {0: 5, 1: 7}
    coordinator = job.coordinator(sink=sink)
    coordinator.start(300.0)
    region = job.region(coordinator)
    wait_for(blind.asked.is_set, timeout_s=WAIT_S)
    stopping = threading.Thread(target=coordinator.stop)
    stopping.start()
    join(stopping)
    region.stop()


@pytest.mark.parametrize("bounded", [True, False])
def test_the_ends_of_a_source_are_the_same_behind_its_lock(*, bounded: bool) -> None:
    """Whoever shares a bounded job's splits among regions goes by what each has to read in all."""
    source = FakeSource("source", {0: 5, 1: 7}, bounded=bounded)
    ends = SerialSource(source).fixed_ends()
    assert ends == source.fixed_ends()
    assert (ends is None) is not bounded
