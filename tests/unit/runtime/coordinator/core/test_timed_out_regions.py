"""A region whose query stops requesting barriers is restarted; an idle job polls its sources less often."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from sluice.runtime.contracts import RegionRegistration
from sluice.runtime.coordinator.core.events import (
    BarrierPolled,
    EndJob,
    FetchBarrierOffsets,
    RegionFailed,
    RegionRegistered,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import RegionPlan
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.model.splits import Barrier
from tests.kit.coordinator.core_driver import FAST, TWO, CoreDriver

_ONE = TWO[:1]
_SILENCE_S = 60  # a core whose time-out is shorter waits as long, too
_FIRST_QUESTION_S = 120  # and so long for what comes before the first question


def _wait(driver: CoreDriver, seconds: int, *asking: str) -> None:
    """Time passes as the core's own thread sees it; only these regions ask, and find nothing."""
    for _ in range(seconds):
        driver.tick(1.0)
        for region in asking:
            driver.poll(region=region)


def _started(driver: CoreDriver, region: str = "main", attempt_id: int = 0) -> None:
    told = RegionRegistration(region=region, attempt_id=attempt_id, address="http://driver:4711")
    driver.tell(RegionRegistered(registration=told))


def _next_barrier(driver: CoreDriver, region: str = "main", attempt_id: int = 0) -> Barrier:
    driver.tick(1.0)
    barrier = driver.poll(6, region=region, attempt_id=attempt_id)
    assert barrier is not None
    return barrier


def _at_work(driver: CoreDriver) -> None:
    """Each region has had a batch committed, and asks for its next one."""
    driver.tick(1.0)
    names = list(driver.core.positions())
    given = {name: driver.poll(3, region=name) for name in names}
    for name, barrier in given.items():
        driver.ack(barrier, region=name)
    assert driver.core.last_committed > 0
    _wait(driver, 2, *names)


def test_a_single_region_that_stops_asking_begins_a_new_attempt() -> None:
    """No barrier is cut, so no checkpoint could expire: it would hang for ever."""
    driver = CoreDriver(FAST)
    _at_work(driver)
    _wait(driver, _SILENCE_S - 1)
    assert driver.core.is_live("main", 0)
    _wait(driver, 2)
    assert not driver.core.is_live("main", 0)
    assert "no longer requests" in str(driver.core.why_ended("main"))
    attempt_id = driver.restart()
    decided = driver.core.last_committed
    driver.ack(_next_barrier(driver, attempt_id=attempt_id), attempt_id=attempt_id)
    assert driver.core.last_committed > decided


def test_a_region_that_hangs_ends_with_the_checkpoint_that_missed_it() -> None:
    """Else its neighbour's epoch is read again and again, and the one that hangs stays."""
    driver = CoreDriver(FAST, regions=TWO)
    _at_work(driver)
    driver.ack(_next_barrier(driver))
    _wait(driver, round(FAST.timeout_s))
    assert not driver.core.is_live("side", 0)
    mine, others = driver.restart("main"), driver.restart("side")
    decided = driver.core.last_committed
    driver.ack(_next_barrier(driver, attempt_id=mine), attempt_id=mine)
    barrier = _next_barrier(driver, "side", others)
    driver.ack(barrier, region="side", attempt_id=others)
    assert driver.core.last_committed > decided


def test_a_region_that_hangs_costs_its_neighbours_nothing_in_regional_checkpoints() -> None:
    settings = replace(FAST, handler=RegionalCheckpointHandler())
    driver = CoreDriver(settings, regions=TWO)
    _at_work(driver)
    _wait(driver, _SILENCE_S + 1, "main")
    assert not driver.core.is_live("side", 0)
    assert driver.core.is_live("main", 0)


# --- an attempt that never asks -------------------------------------------------------------------


def test_an_attempt_that_never_asks_ends_and_says_where_it_was_to_ask() -> None:
    """Its source runner cannot reach the coordinator: nothing is cut, and Spark says it runs."""
    driver = CoreDriver(FAST)
    _started(driver)
    _wait(driver, _FIRST_QUESTION_S - 1)
    assert driver.core.is_live("main", 0)
    _wait(driver, 2)
    assert not driver.core.is_live("main", 0)
    said = str(driver.core.why_ended("main"))
    assert "never requested" in said
    assert "address=http://driver:4711" in said
    assert "Job(host=...)" in said


def test_attempts_that_never_ask_end_the_job_as_any_that_fail() -> None:
    """A job that can never read anything says so, instead of standing still."""
    driver = CoreDriver(replace(FAST, tolerable_failures=1))
    _started(driver)
    _wait(driver, _FIRST_QUESTION_S + 1)
    assert not driver.seen(EndJob)
    _started(driver, attempt_id=driver.restart())
    _wait(driver, _FIRST_QUESTION_S - 1)
    assert not driver.seen(EndJob), "the new attempt has its own time"
    _wait(driver, 2)
    (end,) = driver.seen(EndJob)
    assert "never requested" in str(end.error)


def test_the_first_question_of_a_slow_start_is_soon_enough() -> None:
    """Its start is over then, and no time of it counts as liveness."""
    driver = CoreDriver(FAST)
    _started(driver)
    _wait(driver, _FIRST_QUESTION_S - 2)
    _wait(driver, 1, "main")
    _started(driver)  # its registration is repeated where an answer was lost
    _wait(driver, _SILENCE_S - 1)
    assert driver.core.is_live("main", 0)
    _wait(driver, 2)
    assert "no longer requests" in str(driver.core.why_ended("main"))


def test_a_job_that_gives_its_checkpoints_long_gives_its_attempts_as_long_to_begin() -> None:
    driver = CoreDriver(replace(FAST, timeout_s=600.0))
    _started(driver)
    _wait(driver, 599)
    assert driver.core.is_live("main", 0)
    _wait(driver, 2)
    assert not driver.core.is_live("main", 0)


def test_an_attempt_with_state_has_twice_as_long() -> None:
    """Before its first question Spark may run its last batch once more, and that alone may have
    taken as long as a checkpoint may."""
    driver = CoreDriver(FAST, regions=[replace(_ONE[0], stateful=True)])
    _started(driver)
    _wait(driver, 2 * _FIRST_QUESTION_S - 1)
    assert driver.core.is_live("main", 0)
    _wait(driver, 2)
    assert not driver.core.is_live("main", 0)


def _replays(driver: CoreDriver, tasks: int, region: str = "main", attempt_id: int = 0) -> None:
    """The attempt's query runs its last batch once more, and so many tasks of it have ended."""
    told = RegionRegistration(region=region, attempt_id=attempt_id, replayed=tasks)
    driver.tell(RegionRegistered(registration=told))


def test_a_replay_that_gets_on_is_no_silence() -> None:
    """However long it takes: an attempt that ended for it would begin it again."""
    driver = CoreDriver(FAST, regions=[replace(_ONE[0], stateful=True)])
    _started(driver)
    for tasks in range(5):
        _wait(driver, 2 * _FIRST_QUESTION_S - 1)
        _replays(driver, tasks)
    assert driver.core.is_live("main", 0)
    for _ in range(2):  # it hangs, though it is reported
        _wait(driver, _FIRST_QUESTION_S - 1)
        _replays(driver, 4)
    _wait(driver, 3)
    assert not driver.core.is_live("main", 0)


def test_a_batch_that_loads_keyed_state_may_take_long_as_long_as_it_makes_progress() -> None:
    """Else its checkpoint expires, the next attempt loads the same state, and so on for ever."""
    driver = CoreDriver(FAST, regions=_ONE)
    _started(driver)
    barrier = _next_barrier(driver)
    timeout_s = round(FAST.timeout_s)
    for progress in range(5):
        _wait(driver, timeout_s - 1)
        _replays(driver, progress)
    driver.ack(barrier)
    assert driver.core.is_live("main", 0)
    assert driver.core.last_committed > 0
    driver.tick(1.0)
    assert driver.poll(9) is not None
    _wait(driver, timeout_s + 1)
    assert not driver.core.is_live("main", 0), "the next batch loads nothing"


def test_a_load_of_keyed_state_that_hangs_ends_its_attempt() -> None:
    driver = CoreDriver(FAST, regions=_ONE)
    _started(driver)
    _next_barrier(driver)
    _replays(driver, 0)
    _wait(driver, round(FAST.timeout_s) + 2)
    assert not driver.core.is_live("main", 0)


def test_a_checkpoint_that_a_replay_made_late_is_nobodys_failure() -> None:
    """Its neighbour reads again; neither has done anything wrong."""
    settings = replace(FAST, tolerable_failures=0)
    driver = CoreDriver(settings, regions=(TWO[0], replace(TWO[1], stateful=True)))
    _started(driver, "side")
    _replays(driver, 0, "side")
    driver.tick(1.0)
    driver.ack(driver.poll(3))
    _wait(driver, round(FAST.timeout_s) + 1)
    assert driver.core.is_live("side", 0)
    assert not driver.core.is_live("main", 0)
    assert not driver.seen(EndJob)


def test_replays_that_end_each_other_s_epochs_for_ever_are_failures() -> None:
    """Every life replays for longer than a checkpoint waits, and never with its neighbour."""
    plans = [replace(plan, stateful=True) for plan in TWO]
    driver = CoreDriver(FAST, regions=plans)
    attempts = dict.fromkeys(("main", "side"), 0)
    ends_s = {"main": 15, "side": 30}
    for now_s in range(1_000):
        driver.tick(1.0)
        if driver.core.is_over:
            break
        for name in attempts:
            if not driver.core.is_live(name, attempts[name]):
                attempts[name] = driver.restart(name)
                ends_s[name] = now_s + 30
            if now_s < ends_s[name]:
                _replays(driver, now_s, name, attempts[name])
            elif now_s == ends_s[name]:
                barrier = driver.poll(3, region=name, attempt_id=attempts[name])
                driver.ack(barrier, region=name, attempt_id=attempts[name])
    assert driver.core.last_committed == 0
    assert "failed more often in a row than it tolerates" in str(driver.seen(EndJob)[0].error)


def test_an_attempt_could_not_ask_while_the_whole_driver_was_stopped() -> None:
    driver = CoreDriver(FAST)
    _started(driver)
    driver.tick(100 * _FIRST_QUESTION_S)
    _wait(driver, _FIRST_QUESTION_S - 10)
    assert driver.core.is_live("main", 0)


def test_what_a_dead_attempt_says_begins_no_watch() -> None:
    """It reports what it has open; its successor may wait for long before it is started."""
    driver = CoreDriver(FAST)
    _started(driver)
    failed = RuntimeError("a task failed four times")
    driver.tell(RegionFailed(region="main", attempt_id=0, error=failed))
    _started(driver)
    attempt_id = driver.restart()
    _wait(driver, 3 * _FIRST_QUESTION_S)
    assert driver.core.is_live("main", attempt_id)


# --- who only looks as if it were silent ----------------------------------------------------------


def _not_started(driver: CoreDriver) -> None:
    """The queries of many regions are started one after the other."""
    driver.tick()


def _waits_for_its_commit(driver: CoreDriver) -> None:
    driver.tick()
    barrier = driver.poll(3)
    driver.auto = False
    driver.ack(barrier)


def _continuous(driver: CoreDriver) -> None:
    """Its task is watched by `heartbeat`, which knows when it is being answered."""
    _started(driver)
    _at_work(driver)


def _waits_for_a_core(driver: CoreDriver) -> None:
    """A continuous task's start has a time limit where it is run."""
    _started(driver)


@pytest.mark.parametrize(
    "stands", [_not_started, _waits_for_its_commit, _continuous, _waits_for_a_core]
)
def test_a_region_that_waits_on_purpose_is_not_silent(stands: Callable[[CoreDriver], None]) -> None:
    """Its start, its commit or its own watch has time limits of its own."""
    plans = [replace(_ONE[0], follows=stands in (_continuous, _waits_for_a_core))]
    driver = CoreDriver(FAST, regions=plans)
    stands(driver)
    _wait(driver, 3 * _SILENCE_S)
    assert driver.core.is_live("main", 0)


def test_the_time_of_a_batch_is_no_silence() -> None:
    driver = CoreDriver(FAST)
    _at_work(driver)
    driver.auto = False
    driver.ack(_next_barrier(driver))
    _wait(driver, 3 * _SILENCE_S)
    driver.auto = True
    while driver.held:
        driver.answer(driver.held.pop(0))
    _wait(driver, _SILENCE_S - 1)
    assert driver.core.is_live("main", 0)
    _wait(driver, 2)
    assert not driver.core.is_live("main", 0)


def test_a_late_region_is_not_silent() -> None:
    """Its batch is under way, however long; the limits of carries end it."""
    handler = RegionalCheckpointHandler(region_timeout_s=2.0, max_skipped_in_a_row=1_000)
    driver = CoreDriver(replace(FAST, handler=handler), regions=TWO)
    _at_work(driver)
    barrier = _next_barrier(driver)
    assert driver.poll(6, region="side") is not None
    driver.ack(barrier)
    _wait(driver, 3 * _SILENCE_S, "main")
    assert driver.core.is_live("side", 0)


def test_a_new_attempt_that_takes_long_to_begin_is_not_silent() -> None:
    driver = CoreDriver(FAST)
    _at_work(driver)
    failed = RuntimeError("a task failed four times")
    driver.tell(RegionFailed(region="main", attempt_id=0, error=failed))
    _wait(driver, _SILENCE_S)
    attempt_id = driver.restart()
    _wait(driver, 3 * _SILENCE_S)
    assert driver.core.is_live("main", attempt_id)


def test_a_checkpoint_that_expired_in_a_pause_of_the_driver_blames_no_silent_region() -> None:
    driver = CoreDriver(FAST, regions=TWO)
    _at_work(driver)
    driver.ack(_next_barrier(driver))
    driver.tick(100 * _SILENCE_S)
    assert not driver.core.is_live("main", 0)
    assert driver.core.is_live("side", 0)


LEAST_S = 0.05


def looks_in(driver: CoreDriver, seconds: float, *, region: str = "main") -> int:
    """How often a region cuts that polls every 50 ms and finds nothing."""
    before = len(driver.seen(FetchBarrierOffsets))
    for _ in range(round(seconds / LEAST_S)):
        driver.tick(LEAST_S)
        assert driver.poll(region=region) is None
    return len(driver.seen(FetchBarrierOffsets)) - before


def test_the_longer_nothing_comes_the_less_often_the_source_is_asked() -> None:
    driver = CoreDriver(FAST)
    driver.tick(1.0)
    first = looks_in(driver, 0.5)
    assert first == 10, "as soon as it is quiet nothing is saved yet"
    looks_in(driver, 10.0)
    later = looks_in(driver, 10.0)
    assert 30 <= later <= 50, "a quarter of the interval apart"


def test_one_batch_per_checkpoint_a_quiet_region_answers_at_once_when_another_one_has_records() -> (
    None
):
    """Its "same offsets" is awaited; the checkpoint would be late by its pause."""
    driver = CoreDriver(FAST, regions=TWO)
    for _ in range(400):
        driver.tick(LEAST_S)
        driver.poll()
        driver.poll(region="side")
    driver.tick(FAST.idle_refresh_s)
    barrier = driver.poll(10)
    assert barrier is not None
    driver.poll(region="side")
    driver.ack(barrier)
    assert driver.core.last_committed == 1


def test_a_region_that_has_read_on_is_asked_where_it_is_at_once() -> None:
    """A continuous one: its task has the records already, and ends the epoch where it is."""
    plan = RegionPlan(name="main", source_ids=("source",), follows=True)
    driver = CoreDriver(FAST, regions=[plan])
    looks_in(driver, 60.0)
    told = driver.tell(BarrierPolled(region="main", attempt_id=0, has_read=True))
    assert any(isinstance(action, FetchBarrierOffsets) for action in told)


def test_a_sink_that_wants_a_batch_gets_it_when_it_does() -> None:
    """Files that are rolled by their age, for example, also when nothing comes any more."""
    driver = CoreDriver(FAST)
    driver.tick(1.0)
    driver.ack(driver.poll(10), again_in_s=61.13)
    driver.tick(1.0)
    looks_in(driver, 60.1)
    driver.tick(0.04)
    assert driver.poll(10) is not None
