"""A region of micro-batches that stops asking for barriers: it ends, and its neighbours do not."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from runtime.checkpoint.handlers import RegionalCheckpointHandler
from runtime.checkpoint.messages import RegionFailed
from runtime.model import Barrier
from tests.core_driver import FAST, TWO, CoreDriver

_ONE = TWO[:1]
_SILENCE_S = 60  # a core whose time-out is shorter waits as long, too


def _wait(driver: CoreDriver, seconds: int, *asking: str) -> None:
    """Time passes as the core's own thread sees it; only these regions ask."""
    for _ in range(seconds):
        driver.tick(1.0)
        for region in asking:
            driver.poll(3, region=region)


def _next_barrier(driver: CoreDriver, region: str = "main", generation: int = 0) -> Barrier:
    """Behind the pause that follows a look that found nothing."""
    driver.tick(1.0)
    barrier = driver.poll(6, region=region, generation=generation)
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


def test_a_single_region_that_stops_asking_begins_a_new_life() -> None:
    """No barrier is cut, so no checkpoint could expire: it would stand still for ever."""
    driver = CoreDriver(FAST)
    _at_work(driver)
    _wait(driver, _SILENCE_S - 1)
    assert driver.core.is_live("main", 0)
    _wait(driver, 2)
    assert not driver.core.is_live("main", 0)
    assert "stopped asking" in str(driver.core.why_ended("main"))
    generation = driver.restart()
    decided = driver.core.last_committed
    driver.ack(_next_barrier(driver, generation=generation), generation=generation)
    assert driver.core.last_committed > decided


def test_a_region_that_stands_still_ends_with_the_checkpoint_that_missed_it() -> None:
    """Else its neighbour's epoch is read again and again, and the one that hangs stays."""
    driver = CoreDriver(FAST, regions=TWO)
    _at_work(driver)
    driver.ack(_next_barrier(driver))
    _wait(driver, round(FAST.timeout_s))
    assert not driver.core.is_live("side", 0)
    mine, others = driver.restart("main"), driver.restart("side")
    decided = driver.core.last_committed
    driver.ack(_next_barrier(driver, generation=mine), generation=mine)
    barrier = _next_barrier(driver, "side", others)
    driver.ack(barrier, region="side", generation=others)
    assert driver.core.last_committed > decided


def test_a_region_that_stands_still_costs_its_neighbours_nothing_in_regional_checkpoints() -> None:
    """They are quiet; what comes to the silent region's source nobody else would read."""
    settings = replace(FAST, handler=RegionalCheckpointHandler())
    driver = CoreDriver(settings, regions=TWO)
    _at_work(driver)
    _wait(driver, _SILENCE_S + 1, "main")
    assert not driver.core.is_live("side", 0)
    assert driver.core.is_live("main", 0)


# --- who only looks as if it were silent ----------------------------------------------------------


def _never_asked(driver: CoreDriver) -> None:
    """Spark may take a minute to begin, the first of many queries an hour to be followed."""
    driver.tick()


def _waits_for_its_commit(driver: CoreDriver) -> None:
    driver.tick()
    barrier = driver.poll(3)
    driver.auto = False
    driver.ack(barrier)


def _continuous(driver: CoreDriver) -> None:
    """Its task is watched by `runtime.continuous.pulse`, which knows when it is being answered."""
    _at_work(driver)


@pytest.mark.parametrize("stands", [_never_asked, _waits_for_its_commit, _continuous])
def test_a_region_that_waits_on_purpose_is_not_silent(stands: Callable[[CoreDriver], None]) -> None:
    """Its start, its commit or its own watch has time limits of its own."""
    plans = [replace(plan, follows=stands is _continuous) for plan in _ONE]
    driver = CoreDriver(FAST, regions=plans)
    stands(driver)
    _wait(driver, 3 * _SILENCE_S)
    assert driver.core.is_live("main", 0)


def test_the_time_of_a_batch_is_no_silence() -> None:
    """What counts begins when its callback returns."""
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
    handler = RegionalCheckpointHandler(region_timeout_s=2.0, max_carried_in_a_row=1_000)
    driver = CoreDriver(replace(FAST, handler=handler), regions=TWO)
    _at_work(driver)
    barrier = _next_barrier(driver)
    assert driver.poll(6, region="side") is not None
    driver.ack(barrier)
    _wait(driver, 3 * _SILENCE_S, "main")
    assert driver.core.is_live("side", 0)


def test_a_new_life_that_takes_long_to_begin_is_not_silent() -> None:
    """Also where a batch of its old life is committed behind its end."""
    driver = CoreDriver(FAST)
    _at_work(driver)
    failed = RuntimeError("a task failed four times")
    driver.tell(RegionFailed(region="main", generation=0, error=failed))
    _wait(driver, _SILENCE_S)
    generation = driver.restart()
    _wait(driver, 3 * _SILENCE_S)
    assert driver.core.is_live("main", generation)


def test_regions_had_no_chance_to_ask_while_the_whole_driver_was_stopped() -> None:
    """The first look behind a pause finds all of them silent for as long as it was."""
    driver = CoreDriver(FAST, regions=TWO)
    _at_work(driver)
    driver.tick(100 * _SILENCE_S)
    _wait(driver, _SILENCE_S - 10)
    _wait(driver, 1, "main", "side")
    assert driver.core.is_live("main", 0)
    assert driver.core.is_live("side", 0)


def test_a_checkpoint_that_expired_in_a_pause_of_the_driver_blames_no_silent_region() -> None:
    """Whoever had its barrier reads again, as ever; the other one could not have asked."""
    driver = CoreDriver(FAST, regions=TWO)
    _at_work(driver)
    driver.ack(_next_barrier(driver))
    driver.tick(100 * _SILENCE_S)
    assert not driver.core.is_live("main", 0)
    assert driver.core.is_live("side", 0)
