"""What a job without records asks its sources: ever less, and at once where somebody waits."""

from dataclasses import replace

import pytest

from sluice.runtime.coordinator.core.events import BarrierPolled, FetchBarrierOffsets, NothingDue
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, RegionPlan
from sluice.runtime.coordinator.region.region_pace import IdleTime
from tests.kit.coordinator.core_driver import FAST, TWO, CoreDriver

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


def test_a_record_waits_a_quarter_of_an_interval_at_most() -> None:
    driver = CoreDriver(FAST)
    looks_in(driver, 60.0)
    waited_s = 0.0
    while driver.poll(10) is None:
        driver.tick(LEAST_S)
        waited_s += LEAST_S
    assert waited_s <= FAST.idle_refresh_s + LEAST_S


def test_behind_an_epoch_with_records_it_is_looked_at_as_often_as_at_first() -> None:
    driver = CoreDriver(FAST)
    looks_in(driver, 60.0)
    driver.tick(FAST.idle_refresh_s)
    driver.ack(driver.poll(10))
    driver.tick(1.0)
    assert looks_in(driver, 0.5) == 10


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


def test_a_look_is_told_when_the_next_one_is_worth_it() -> None:
    driver = CoreDriver(FAST)
    looks_in(driver, 30.0)
    told: list[NothingDue] = []
    while not told:
        driver.poll()
        told = [action for action in driver.tell_poll() if isinstance(action, NothingDue)]
        driver.tick(LEAST_S)
    assert told[0].poll_in_s is not None
    assert 0 < told[0].poll_in_s <= FAST.idle_refresh_s


@pytest.mark.parametrize(
    ("interval_s", "longest_s"), [(None, 0.05), (0.1, 0.05), (1.0, 0.25), (60.0, 1.0)]
)
def test_the_longest_pause_is_a_share_of_the_interval(
    interval_s: float | None, longest_s: float
) -> None:
    settings = CheckpointSettings(interval_s=interval_s)
    assert settings.idle_refresh_s == longest_s
    assert replace(settings, idle_poll_s=2.0).idle_refresh_s == 2.0


def test_the_pause_is_a_tenth_of_the_quiet_time() -> None:
    quiet = IdleTime()
    bounds = {"least_s": 0.05, "longest_s": 0.25}
    assert quiet.left_s(7, 100.0) == 0.0
    assert quiet.found_nothing(7, 100.0, **bounds) == 0.05
    assert quiet.left_s(7, 100.0) == 0.0, "the poller keeps short pauses by itself"
    assert quiet.found_nothing(7, 101.0, **bounds) == pytest.approx(0.1)
    assert quiet.left_s(7, 101.04) == pytest.approx(0.06)
    assert quiet.found_nothing(7, 110.0, **bounds) == 0.25
    assert quiet.left_s(8, 110.0) == 0.0, "another barrier is another matter"
    assert quiet.found_nothing(8, 110.0, **bounds) == 0.05
