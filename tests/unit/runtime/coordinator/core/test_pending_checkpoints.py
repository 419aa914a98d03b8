"""How long the oldest checkpoint has been under way: what people are woken by where nothing becomes
visible any more."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from sluice.runtime.coordinator.core.events import Commit, MarkCommitted, Publish
from sluice.runtime.coordinator.region.status_views import JobStatus
from sluice.runtime.service.metrics import RegionMetrics
from tests.kit.coordinator.core_driver import FAST, TWO, CoreDriver


@dataclass(frozen=True)
class Served:
    """A coordinator with that core."""

    driver: CoreDriver
    started: object = "long ago"

    def status(self) -> JobStatus:
        """As it is now."""
        return self.driver.status()


def pending_s(driver: CoreDriver) -> float | None:
    registry = CollectorRegistry()
    registry.register(RegionMetrics(Served(driver)))
    return registry.get_sample_value("sluice_checkpoint_pending_seconds")


def test_a_decision_that_cannot_be_committed_is_seen_though_no_lag_grows() -> None:
    """Its regions cut nothing meanwhile, so their lag is that of the last cut: none at all."""
    driver = CoreDriver(FAST)
    driver.auto = False
    driver.epoch(3)
    (publish,) = driver.held
    assert isinstance(publish, Publish)
    driver.held.clear()
    driver.answer(publish)
    (commit,) = driver.held
    assert isinstance(commit, Commit)
    driver.clock.advance(700.0)
    assert pending_s(driver) == 700.0
    assert [each.age_s for each in driver.status().pending] == [700.0]
    driver.held.clear()
    driver.answer(commit)
    (mark,) = driver.held
    assert isinstance(mark, MarkCommitted)
    driver.held.clear()
    driver.answer(mark)
    assert pending_s(driver) == 0.0


def test_an_epoch_that_a_region_does_not_acknowledge_is_seen() -> None:
    """From the first region's barrier on."""
    driver = CoreDriver(FAST, regions=TWO)
    driver.tick()
    driver.poll(5)
    driver.clock.advance(4.0)
    assert pending_s(driver) == 4.0


def test_a_quiet_job_has_no_checkpoint_under_way() -> None:
    driver = CoreDriver(FAST)
    driver.tick()
    assert driver.poll(0) is None
    driver.clock.advance(700.0)
    assert pending_s(driver) == 0.0
    assert [each.age_s for each in driver.status().pending] == [None]
