"""The driver's side of a continuous task that Spark does not run, or that falls silent."""

import pickle
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from sluice.runtime.continuous.barrier_service import LONGEST_STEP_S, AttemptEpochs, TaskHeartbeat
from sluice.runtime.contracts import AttemptState, RegionAttempt
from sluice.runtime.errors import ConfigError, MissingRequirementError
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.service.hosted_region import HostedRegion
from sluice.runtime.service.service_client import CoordinatorAddress
from sluice.runtime.spark.tasks import region_tasks
from sluice.runtime.spark.tasks.continuous_attempt import ContinuousAttempt, ContinuousChain
from sluice.runtime.spark.tasks.region_tasks import RegionTasks, pickled_for_tasks
from tests.kit.fakes import ManualClock
from tests.kit.waiting import PATIENCE_S, wait_for

_SILENCE_S = 600.0


@dataclass
class BusySpark:
    """A session whose cores are all taken: a job waits until it is cancelled.

    Attributes:
        cancelled: groups of jobs.
        too_early: so many times there was no job of the group yet: Spark cancels none that comes.
    """

    cancelled: list[str] = field(default_factory=list)
    too_early: int = 0
    _freed: threading.Event = field(default_factory=threading.Event)

    @property
    def sparkContext(self) -> "BusySpark":
        return self

    def setJobGroup(self, group: str, *_: object, **__: object) -> None:
        assert self._freed.wait(PATIENCE_S), "the job was neither run nor cancelled"
        raise RuntimeError(f"Job group {group} was cancelled")

    def cancelJobGroup(self, group: str) -> None:
        self.cancelled.append(group)
        if len(self.cancelled) > self.too_early:
            self._freed.set()


@dataclass
class Waiting:
    """A region whose life has begun, and whose task waits for a core."""

    spark: BusySpark
    clock: ManualClock
    book: AttemptEpochs
    region: HostedRegion

    def state(self) -> AttemptState:
        return self.region.status(timeout_s=1.0).state

    def watched(self, seconds: float) -> None:
        """Time passes, and the driver looks in each second."""
        for step_s in (*[1.0] * int(seconds), seconds % 1.0):
            self.clock.advance(step_s)
            self.state()


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waiting]:
    monkeypatch.setattr("sluice.runtime.spark.tasks.continuous_attempt._ORDERLY_END_S", 0.01)
    clock, spark = ManualClock(), BusySpark()
    book = AttemptEpochs(region="main", attempt_id=7, heartbeat=TaskHeartbeat(clock))

    def begin(_: RegionAttempt) -> ContinuousAttempt:
        session: Any = spark
        attempt = ContinuousAttempt(
            session, _chain(), book, heartbeat_timeout_s=_SILENCE_S, clock=clock
        )
        attempt.start()
        return attempt

    made = Waiting(spark, clock, book, HostedRegion("main", begin))
    restored = RegionRecord(region="main", attempt_id=0)
    made.region.start(RegionAttempt(attempt_id=7, restored=restored, after=0), timeout_s=1.0)
    yield made
    made.region.stop(7, timeout_s=PATIENCE_S)


def _chain() -> ContinuousChain:
    address = CoordinatorAddress(
        address="http://x", token="t", leader_session_id="s", job_uid="job"
    )
    reader: Any = None  # nothing of it is used before there is a core
    return ContinuousChain(
        tasks=RegionTasks(
            address=address, job_uid="job", region="main", attempt_id=7, factories={}
        ),
        reader=reader,
        functions=(),
        job_name="copy",
        splits=(),
        ends=None,
        begins_after=0,
        lost_timeout_s=60.0,
    )


def test_a_function_that_cannot_be_sent_ends_its_attempt_for_good() -> None:
    """Another life would fail likewise: the job ends with what to do."""
    session: Any = BusySpark()
    book = AttemptEpochs(region="main", attempt_id=7, heartbeat=TaskHeartbeat(ManualClock()))
    chain = replace(_chain(), splits=cast(Any, (threading.Lock(),)))
    attempt = ContinuousAttempt(session, chain, book, heartbeat_timeout_s=_SILENCE_S)
    attempt.start()
    wait_for(lambda: attempt.failure() is not None, what="the life's end")
    found = attempt.failure()
    assert isinstance(found, ConfigError)
    assert "region=main error=TypeError: cannot pickle '_thread.lock' object" in str(found)
    assert "inside the function" in str(found)


def test_a_task_that_gets_no_core_ends_its_attempt_after_two_minutes(waiting: Waiting) -> None:
    waiting.watched(120.0)
    assert waiting.state() is AttemptState.RUNNING
    waiting.clock.advance(0.5)
    found = waiting.region.status(timeout_s=1.0)
    assert found.state is AttemptState.ENDED
    assert isinstance(found.error, MissingRequirementError)
    assert "does not begin [region=main waited_s=120]" in str(found.error)
    assert "has a free core" in str(found.error)
    assert waiting.state() is AttemptState.ENDED, "and who did not hear it hears it again"


def test_a_task_that_got_no_core_does_not_take_one_later(waiting: Waiting) -> None:
    """Its job is cancelled; that this is an error, too, does not hide the first one."""
    waiting.watched(121.0)
    assert waiting.state() is AttemptState.ENDED
    assert waiting.region.stop(7, timeout_s=PATIENCE_S)
    assert waiting.spark.cancelled == ["main.7 job"]
    found = waiting.region.status(timeout_s=1.0)
    assert found.state is AttemptState.STOPPED
    assert isinstance(found.error, MissingRequirementError)


def test_a_job_that_comes_after_its_cancellation_is_cancelled_too(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The life was stopped while its job was still being made ready."""
    monkeypatch.setattr("sluice.runtime.spark.tasks.continuous_attempt._CANCEL_PAUSE_S", 0.01)
    waiting.spark.too_early = 2
    assert waiting.region.stop(7, timeout_s=PATIENCE_S)
    assert waiting.spark.cancelled == ["main.7 job"] * 3


def test_a_task_that_has_asked_once_has_its_core(waiting: Waiting) -> None:
    with waiting.book.heartbeat.request():
        waiting.watched(2 * _SILENCE_S)  # a long answer is no silence
        assert waiting.state() is AttemptState.RUNNING
    waiting.watched(_SILENCE_S)
    assert waiting.state() is AttemptState.RUNNING
    waiting.clock.advance(0.5)
    found = waiting.region.status(timeout_s=1.0)
    assert found.state is AttemptState.ENDED
    assert "sends no heartbeat [region=main attempt_id=7 overdue_s=600.5]" in str(found.error)


def test_a_task_is_not_silent_for_as_long_as_its_driver_was_paused(waiting: Waiting) -> None:
    with waiting.book.heartbeat.request():
        pass
    waiting.clock.advance(10 * _SILENCE_S)
    assert waiting.state() is AttemptState.RUNNING
    waiting.watched(_SILENCE_S - LONGEST_STEP_S)
    assert waiting.state() is AttemptState.RUNNING
    waiting.watched(1.0)
    assert waiting.state() is AttemptState.ENDED, "it has not, and somebody was there to hear it"


def test_a_task_that_waits_for_a_core_does_not_wait_while_its_driver_is_paused(
    waiting: Waiting,
) -> None:
    waiting.clock.advance(10 * _SILENCE_S)
    assert waiting.state() is AttemptState.RUNNING


def test_an_executor_with_another_version_refuses_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it unpickles anything, which could mean something else there."""
    sent = pickled_for_tasks({"a": 1}, region="main")
    assert pickle.loads(sent) == {"a": 1}
    monkeypatch.setattr(region_tasks, "_version", lambda: "9.9")
    with pytest.raises(ConfigError, match=r"executor=9\.9"):
        pickle.loads(sent)
