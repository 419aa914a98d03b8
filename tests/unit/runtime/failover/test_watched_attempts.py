"""The thread that runs the job and its regions' lives: who is brought back, and who waits."""

import random
from dataclasses import replace
from unittest.mock import patch

import pytest
from py4j.protocol import Py4JNetworkError

from sluice.runtime.contracts import (
    AttemptState,
    AttemptStatus,
    RegionAttempt,
    RegionHandle,
    RegionRegistration,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import OnRegionFailure
from sluice.runtime.errors import (
    DeliveryError,
    RegionGivenUpError,
    RegionUnansweredError,
    StorageUnreachableError,
    StreamError,
    UnreachableError,
)
from sluice.runtime.failover.restart_strategies import FixedDelayRestart
from sluice.runtime.model.splits import Barrier
from sluice.runtime.service.hosted_region import HostedRegion
from sluice.runtime.spark.run.attempt_supervisor import RegionAttempts
from tests.kit.coordinator.coordinated_job import QUICK
from tests.kit.threads.watched_attempts import SETTINGS, Watched
from tests.kit.waiting import PATIENCE_S, wait_for


def test_a_region_that_waits_for_anothers_epoch_holds_up_nobody(watched: Watched) -> None:
    """Its new attempt begins after a record, whose place comes after the other one's epoch. The
    thread that watches continues meanwhile: it hears of Ctrl-C, and of a third region's failure; and
    a short limit for remotes that do not answer has nothing to do with it."""
    watched.begin("left", "right", "third", settings=replace(SETTINGS, settle_timeout_s=0.05))
    held = watched.keep_open("right")
    watched.fail_once("left")
    watched.job.source.ends |= {0: 5, 1: 5, 2: 5}
    watched.run()
    left = watched.regions.queries["left"][0]
    assert held.wait(PATIENCE_S)
    wait_for(lambda: watched.lives_of("left") and left.is_stopped, poll_s=0.005)
    third = watched.regions.queries["third"][0]
    watched.coordinator.fail(
        "third", watched.regions.attempt_ids["third"][0], UnreachableError("gone", {}, "Wait.")
    )
    wait_for(lambda: watched.lives_of("third") and third.is_stopped, poll_s=0.005)
    assert watched.lives_of("left") == watched.lives_of("third") == 1, "right's epoch is open"
    watched.hold.set()
    wait_for(lambda: watched.lives_of("left") == watched.lives_of("third") == 2, poll_s=0.005)
    assert watched.lives_of("right") == 1, "it is never touched"
    wait_for(lambda: watched.job.visible() == watched.job.expected(), poll_s=0.01)


def test_callback_after_commit_a_query_that_does_not_stop_yet_has_no_successor(
    watched: Watched,
) -> None:
    """Its callback may still write. Others are brought back meanwhile."""
    watched.begin("left", "right")
    watched.fail_once("left")
    watched.job.source.ends |= {0: 5, 1: 5}
    watched.run()
    slow = watched.regions.queries["left"][0]
    slow.may_stop.clear()
    wait_for(lambda: not slow.is_active, poll_s=0.005)
    watched.fail_once("right")
    watched.job.source.ends[1] = 9
    wait_for(lambda: watched.lives_of("right") == 2, poll_s=0.005)
    assert watched.lives_of("left") == 1
    slow.may_stop.set()
    wait_for(lambda: watched.lives_of("left") == 2, poll_s=0.005)
    wait_for(lambda: watched.job.visible() == watched.job.expected(), poll_s=0.01)


def test_a_region_whose_file_system_is_away_is_begun_again_when_it_is_back(
    watched: Watched,
) -> None:
    """The life that could not begin costs an attempt, and nothing else."""
    watched.begin("left", settings=replace(QUICK, tolerable_failures=1))
    watched.fail_once("left")
    watched.job.source.ends |= {0: 5, 1: 5}
    watched.run()
    watched.regions.error = StorageUnreachableError("away", {"uri": "hdfs://n/"}, "Start it.")
    wait_for(lambda: watched.lives_of("left") == 2, poll_s=0.005)
    assert watched.regions.error is None, "one launch has failed"
    wait_for(lambda: watched.job.visible() == watched.job.expected(), poll_s=0.01)


def test_a_start_that_fails_after_an_outage_is_no_outage(watched: Watched) -> None:
    """Its host still reports of the attempt before, which a file system has ended: how long the job
    waits for one of those is not asked of what fails in another way."""

    def fail(barrier: Barrier) -> None:
        del watched.regions.before_ack["left"]
        raise StorageUnreachableError("away", {"uri": "hdfs://n/"}, "Start it.")

    watched.begin("left", settings=replace(QUICK, tolerable_failures=2))
    watched.regions.before_ack["left"] = fail
    watched.job.source.ends |= {0: 5, 1: 5}
    watched.run()
    watched.regions.error = RuntimeError("planning failed")
    wait_for(lambda: watched.lives_of("left") and watched.regions.error is None, poll_s=0.005)
    watched.clock.advance(21.0)
    wait_for(lambda: watched.lives_of("left") == 2, poll_s=0.005)
    wait_for(lambda: watched.job.visible() == watched.job.expected(), poll_s=0.01)


@pytest.mark.parametrize(
    ("error", "has_traceback"),
    [
        (ConnectionRefusedError("no JVM"), False),
        (Py4JNetworkError("no"), False),
        (KeyError(), True),
    ],
)
def test_an_end_after_that_of_spark_is_one_line(
    watched: Watched,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    error: Exception,
    has_traceback: bool,
) -> None:
    """A signal to the whole group of processes, as `timeout` and schedulers send it, ends Spark's
    JVM first: a page of a traceback would hide the line that says where the job ended."""
    watched.begin("left")
    watched.run()
    handle = watched.attempts._regions["left"].handle  # noqa: SLF001 - the one that it asks

    def stop(*_: object, **__: object) -> bool:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(handle, "stop", stop)
        watched.attempts.stop()
    (line,) = [each for each in caplog.records if "not stopped in order" in each.msg]
    assert bool(line.exc_info) is has_traceback
    assert "left" in line.getMessage()


def test_an_end_while_a_region_comes_back_is_no_error_of_its_own(watched: Watched) -> None:
    watched.begin("left", "right")
    held = watched.keep_open("right")
    watched.fail_once("left")
    watched.job.source.ends |= {0: 5, 1: 5}
    watched.run()
    left = watched.regions.queries["left"][0]
    assert held.wait(PATIENCE_S)
    wait_for(lambda: watched.lives_of("left") and left.is_stopped, poll_s=0.005)
    watched.attempts.watch()  # it is asked for now
    watched.coordinator.cancel()
    assert watched.lives_of("left") == 1
    assert watched.coordinator.wait(PATIENCE_S)


def test_a_suspended_region_stays_stopped_until_a_command_brings_it_back(watched: Watched) -> None:
    """Its query is stopped once and not begun again; the other one continues; then nothing of either
    is missing, and nothing is there twice."""
    settings = replace(SETTINGS, on_region_failure=OnRegionFailure.SUSPEND)
    watched.begin("left", "right", settings=settings)

    def break_for_good(barrier: Barrier) -> None:
        raise DeliveryError("too large", {"topic": "t"}, "Make room.")

    watched.regions.before_ack["left"] = break_for_good
    watched.job.source.ends |= {0: 5, 1: 5}
    watched.run()
    left = watched.regions.queries["left"][0]
    wait_for(lambda: watched.lives_of("left") and left.is_stopped, poll_s=0.005)
    assert watched.coordinator.is_suspended("left")
    watched.job.source.ends[1] = 9
    wait_for(lambda: watched.lives_of("left") and len(watched.job.visible()[1]) == 9, poll_s=0.005)
    assert watched.lives_of("left") == watched.lives_of("right") == 1
    assert watched.job.visible()[0] == []
    assert not watched.job.broker.ongoing(), "rule `abort-before-skip`: it holds back no reader"
    del watched.regions.before_ack["left"]
    watched.coordinator.restart_regions()
    wait_for(lambda: watched.lives_of("left") == 2, poll_s=0.005)
    wait_for(lambda: watched.job.visible() == watched.job.expected(), poll_s=0.01)
    assert watched.lives_of("right") == 1, "it is never touched"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[TABLE_OR_VIEW_NOT_FOUND] planning failed"),
        UnreachableError("a source did not answer", {}, "Wait."),
    ],
)
def test_an_attempt_that_cannot_be_started_is_a_counted_failure_of_its_region(
    watched: Watched, error: Exception
) -> None:
    """Not the end of the job, whose other regions have nothing to do with it."""
    strategy = FixedDelayRestart(attempts=2, delay_s=0.0)
    watched.begin("left", "right", settings=replace(SETTINGS, restart_strategy=strategy))
    watched.fail_once("left")
    watched.job.source.ends |= {0: 5, 1: 5}
    watched.run()
    watched.regions.error = error
    wait_for(lambda: watched.lives_of("left") == 2, poll_s=0.005)
    wait_for(lambda: watched.job.visible() == watched.job.expected(), poll_s=0.01)
    attempts = watched.coordinator.status().regions[0].attempts
    assert len(attempts) == 2
    assert str(error) in str(attempts[-1].why)
    assert watched.lives_of("right") == 1, "it is never touched"


def test_an_attempt_that_can_never_be_started_ends_the_job_as_any_that_fails(
    watched: Watched,
) -> None:
    strategy = FixedDelayRestart(attempts=1, delay_s=0.0)
    watched.begin("left", "right", settings=replace(SETTINGS, restart_strategy=strategy))
    watched.fail_once("left")
    watched.job.source.ends |= {0: 5, 1: 5}
    watched.run()
    watched.regions.error = RuntimeError("planning failed")
    wait_for(lambda: watched.lives_of("left") and watched.coordinator.is_over, poll_s=0.005)
    with pytest.raises(RegionGivenUpError, match="planning failed"):
        watched.coordinator.wait(PATIENCE_S)


class LosingHandle:
    """A handle whose calls are done, and whose answers are lost now and then.

    Attributes:
        share: of all answers, how many.
        lost: so many were.
    """

    def __init__(self, handle: RegionHandle, seed: int) -> None:
        self.share = 0.4
        self._handle = handle
        self._random = random.Random(seed)
        self.lost = 0

    @property
    def region(self) -> str:
        return self._handle.region

    def _lose(self) -> None:
        if self._random.random() < self.share:
            self.lost += 1
            raise RegionUnansweredError("the answer is lost", {}, "Ask again.")

    def start(self, attempt: RegionAttempt, *, timeout_s: float) -> None:
        self._handle.start(attempt, timeout_s=timeout_s)
        self._lose()

    def stop(self, attempt_id: int, *, timeout_s: float) -> bool:
        answer = self._handle.stop(attempt_id, timeout_s=timeout_s)
        self._lose()
        return answer

    def register(self, attempt_id: int, *, timeout_s: float) -> RegionRegistration:
        answer = self._handle.register(attempt_id, timeout_s=timeout_s)
        self._lose()
        return answer

    def status(self, *, check_storage: bool = False, timeout_s: float) -> AttemptStatus:
        answer = self._handle.status(check_storage=check_storage, timeout_s=timeout_s)
        self._lose()
        return answer


def test_attempts_are_begun_and_brought_back_once_whatever_answers_are_lost(
    watched: Watched,
) -> None:
    watched.begin("left", "right")
    handles = {name: LosingHandle(watched.regions.handle(name), seed=7) for name in watched.names}
    watched.attempts = RegionAttempts(watched.coordinator, handles, outage_limit_s=20.0)
    watched.job.source.ends |= {0: 5, 1: 5}
    watched.fail_once("left")
    watched.run()
    wait_for(lambda: watched.lives_of("left") == 2, poll_s=0.005)
    watched.fail_once("right")
    watched.job.source.ends[1] = 9
    wait_for(lambda: watched.lives_of("right") == 2, poll_s=0.005)
    wait_for(
        lambda: watched.lives_of("left") and watched.job.visible() == watched.job.expected(),
        poll_s=0.01,
    )
    assert all(len(set(found)) == len(found) for found in watched.regions.attempt_ids.values())
    assert all(handle.lost for handle in handles.values())


def watch_told(watched: Watched, **told: object) -> None:
    handle = watched.regions.handle("left")
    attempts = RegionAttempts(watched.coordinator, {"left": handle}, outage_limit_s=20.0)
    watched.attempts = attempts
    watched.run()
    said = replace(handle.status(timeout_s=1.0), **told)  # type: ignore[arg-type]
    with patch.object(HostedRegion, "status", lambda *_, **__: said):
        attempts.watch()


@pytest.mark.parametrize("error", [None, ValueError("of that one")])
@pytest.mark.parametrize("attempt_id", [None, 700])
def test_an_attempt_that_its_host_has_forgotten_is_brought_back(
    watched: Watched, attempt_id: int | None, error: Exception | None
) -> None:
    watched.begin("left")
    watch_told(watched, attempt_id=attempt_id, error=error)
    assert watched.attempts.is_restarting, "a successor is wanted"
    wait_for(lambda: watched.lives_of("left") == 2, poll_s=0.005)
    attempts = watched.coordinator.status().regions[0].attempts
    assert "does not know the attempt" in str(attempts[-1].why)


def test_an_attempt_that_somebody_has_ended_without_a_word_ends_the_job(watched: Watched) -> None:
    """It was stopped from outside: a job that began it again could not be stopped there."""
    watched.begin("left")
    with pytest.raises(StreamError, match="ended without an error"):
        watch_told(watched, state=AttemptState.ENDED)


def test_a_host_that_does_not_answer_for_too_long_ends_the_job(watched: Watched) -> None:
    watched.begin("left")
    handle = LosingHandle(watched.regions.handle("left"), seed=1)
    watched.attempts = RegionAttempts(watched.coordinator, {"left": handle}, outage_limit_s=0.05)
    watched.run()
    handle.share = 1.0

    def is_given_up() -> bool:
        try:
            watched.attempts.watch()
        except RegionUnansweredError:
            return True
        return False

    wait_for(is_given_up, poll_s=0.005)


def test_an_attempt_of_which_nobody_knows_whether_it_began_is_asked_for_without_pauses(
    watched: Watched,
) -> None:
    watched.begin("left")
    handle = LosingHandle(watched.regions.handle("left"), seed=1)
    handle.share = 1.0
    watched.attempts = RegionAttempts(
        watched.coordinator, {"left": handle}, outage_limit_s=20.0, clock=watched.clock
    )
    watched.run()
    assert watched.attempts.is_restarting
    handle.share = 0.0
    watched.attempts.watch()
    assert not watched.attempts.is_restarting
    assert len(watched.regions.queries["left"]) == 1
