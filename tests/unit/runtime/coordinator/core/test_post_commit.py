"""What nobody waits for comes once a second, and its last word always comes."""

from dataclasses import replace

from sluice.runtime.coordinator.core.events import EndJob, PublishPositions, Retire
from tests.kit.coordinator.core_driver import FAST, CoreDriver


def _driver() -> CoreDriver:
    return CoreDriver(replace(FAST, interval_s=0.1))


def _told(driver: CoreDriver) -> list[int]:
    """End offsets that lag tools were reported."""
    return [action.positions[0].end_offset for action in driver.seen(PublishPositions)]


def test_short_epochs_share_their_group_offsets() -> None:
    """Brokers take longer for them than for a commit; the newest ones are reported in the end."""
    driver = _driver()
    for end in (3, 6, 9):
        driver.epoch(end)
        driver.tick(0.2)
    assert _told(driver) == [3]
    assert driver.core.deadline_s() is not None
    driver.tick(1.0)
    assert _told(driver) == [3, 9]
    assert len(driver.seen(Retire)) == 2
    driver.tick(5.0)
    assert _told(driver) == [3, 9], "nothing new to tell"


def test_the_newest_positions_are_reported_when_the_job_is_stopped() -> None:
    """Lag tools would show a lag for ever."""
    driver = _driver()
    driver.epoch(3)
    driver.tick(0.2)
    driver.epoch(6)
    driver.stop()
    assert _told(driver) == [3, 6]


def test_a_bounded_job_has_reported_its_last_positions_before_it_is_over() -> None:
    driver = _driver()
    for end in (3, 6):
        driver.epoch(end)
        driver.tick(0.2)
    while not driver.seen(EndJob):
        driver.tick(0.2)
        barrier = driver.poll(6, finished=True)
        if barrier is not None:
            driver.ack(barrier)
    assert _told(driver)[-1] == 6
    order = [type(a) for a in driver.log if isinstance(a, EndJob | PublishPositions | Retire)]
    assert order[-1] is EndJob
