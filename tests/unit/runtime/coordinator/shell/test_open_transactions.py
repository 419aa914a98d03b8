"""The age of open transactions: it grows while a region hangs or is skipped, and it is logged."""

import logging
from dataclasses import replace

import pytest

from sluice.runtime.contracts import RegisteredAttempt
from sluice.runtime.coordinator.core.events import RegionFailed
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.coordinator.shell.open_transactions import OpenTransactions, alarm_of
from sluice.runtime.errors import UnreachableError
from sluice.runtime.model.splits import BatchKey
from tests.kit.coordinator.coordinated_job import QUICK, Job
from tests.kit.coordinator.core_driver import FAST, TWO, CoreDriver
from tests.kit.fakes import ManualClock

_NAMES = {"sink-1": "orders", "sink-2": "orders", "files": "lake"}
_FACTS = {
    "sink-1": {"transaction_timeout_s": "100"},
    "sink-2": {"transaction_timeout_s": "60"},
    "files": {},
}


def begin(driver: CoreDriver, region: str, batch_id: int = 1, attempt_id: int = 0) -> None:
    """A task of the region's batch registers its transaction now."""
    batch = BatchKey(region=region, attempt_id=attempt_id, batch_id=batch_id)
    name = f"{region}-{attempt_id}-{batch_id}|7|0"
    attempt = RegisteredAttempt(batch=batch, operator_id="sink", resource=name)
    driver.core.register(attempt, driver.clock())


def ages(driver: CoreDriver) -> dict[str, float]:
    """By region, at a sink that has one operator."""
    now_s = driver.clock()
    return {region: now_s - at_s for (region, _), at_s in driver.core.open_since().items()}


def test_a_transaction_is_open_from_its_registration_to_its_commit() -> None:
    driver = CoreDriver(FAST)
    driver.tick(1.0)
    barrier = driver.poll(3)
    begin(driver, "main")
    driver.tick(2.0)
    assert ages(driver) == {"main": 2.0}
    driver.auto = False  # decided, and its commit is not answered
    driver.ack(barrier)
    driver.clock.advance(3.0)
    assert ages(driver) == {"main": 5.0}
    driver.auto = True
    while driver.held:
        driver.answer(driver.held.pop(0))
    assert ages(driver) == {}


def test_a_transaction_of_a_skipped_region_ages_while_its_neighbour_commits() -> None:
    handler = RegionalCheckpointHandler(region_timeout_s=2.0)
    driver = CoreDriver(replace(FAST, handler=handler), regions=TWO)
    driver.tick(1.0)
    for name, barrier in {name: driver.poll(3, region=name) for name in ("main", "side")}.items():
        driver.ack(barrier, region=name)
    decided = driver.core.last_committed
    driver.tick(1.0)
    first, _ = driver.poll(6), driver.poll(6, region="side")
    begin(driver, "main", 2)
    begin(driver, "side", 2)
    driver.ack(first)
    driver.tick(2.0)
    assert driver.core.last_committed > decided
    driver.tick(2.0)
    assert ages(driver) == {"side": 4.0}


def test_work_of_a_failed_attempt_is_open_until_a_sweep_is_complete() -> None:
    """A broker that does not answer keeps its transaction open, and readers wait for it."""
    driver = CoreDriver(FAST)
    driver.tick(1.0)
    driver.poll(3)
    begin(driver, "main")
    error = UnreachableError("a broker went away", {}, "Wait.")
    driver.tell(RegionFailed(region="main", attempt_id=0, error=error))
    driver.restart()
    driver.core.sweep_view("job")
    driver.tick(5.0)
    assert ages(driver) == {"main": 5.0}
    driver.core.sweep_view("job")
    driver.core.swept()
    assert ages(driver) == {}


def test_operators_of_one_name_show_the_one_that_is_nearest_to_its_timeout() -> None:
    clock = ManualClock()
    known = OpenTransactions(_NAMES, ages=clock)
    known.begin(_FACTS)
    at_s = clock()
    clock.advance(30.0)
    (view,) = known.views({("a", "sink-1"): at_s, ("a", "sink-2"): at_s, ("a", "files"): at_s})
    assert (view.region, view.sink, view.age_s, view.timeout_s) == ("a", "orders", 30.0, 60.0)
    assert alarm_of(view) == 0.5


def test_each_alarm_of_a_transaction_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    known = OpenTransactions(_NAMES, ages=clock)
    known.begin(_FACTS)
    opened = {("a", "sink-1"): clock()}
    logged = []
    with caplog.at_level(logging.WARNING):
        for _ in range(11):
            known.warn(opened)
            logged.append(len(caplog.records))
            clock.advance(10.0)
        assert logged == [0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
        opened = {("a", "sink-1"): clock()}  # the next transaction of the region
        known.warn(opened)
        clock.advance(60.0)
        known.warn(opened)
    assert len(caplog.records) == 3
    assert "50 % of its timeout: region=a sink=orders" in caplog.records[0].getMessage()
    assert "80 % of its timeout" in caplog.records[1].getMessage()


def test_the_status_of_a_job_has_its_open_transactions(job: Job) -> None:
    coordinator, _ = job.started(QUICK)
    batch = BatchKey(region="main", attempt_id=0, batch_id=1)
    attempt = RegisteredAttempt(batch=batch, operator_id="sink", resource="id|7|0")
    coordinator.register(attempt)
    (view,) = coordinator.status().transactions
    assert (view.region, view.sink, view.timeout_s) == ("main", "sink", 60.0)
