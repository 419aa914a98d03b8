"""Each setting of the coordinator, with a test that fails when it is ignored."""

import dataclasses
from typing import Any

import pytest

from sluice.runtime.coordinator.core.events import (
    EndJob,
    Publish,
    Retire,
    TriggerBarrier,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
    JobPlan,
    RegionPlan,
)
from sluice.runtime.errors import CheckpointFailedError, ConfigError, RegionGivenUpError
from sluice.runtime.model.checkpoint_record import CheckpointKind, Verdict
from tests.kit.coordinator.core_driver import TWO, CoreDriver

FAST = CheckpointSettings(interval_s=1.0, timeout_s=10.0)


def test_interval_counts_from_barrier_to_barrier() -> None:
    """A slow checkpoint does not push the next barrier back."""
    driver = CoreDriver(FAST)
    driver.tick()
    barrier = driver.poll(3)
    driver.tick(0.9)
    driver.ack(barrier)
    driver.tick(0.2)
    assert driver.poll(6) is not None


@pytest.mark.parametrize(("late_s", "next_in_s"), [(0.0, 1.0), (0.2, 0.8), (0.3, 1.0)])
def test_a_barrier_that_comes_a_moment_late_does_not_push_the_next_one_back(
    late_s: float, next_in_s: float
) -> None:
    """Epochs of 100 ms would take 104. One that is late indeed begins a new row."""
    driver = CoreDriver(FAST)
    driver.epoch(3)
    driver.tick(1.0 + late_s)
    driver.epoch(6)
    driver.tick(next_in_s - 0.05)
    assert driver.poll(9) is None
    driver.tick(0.1)
    assert driver.poll(9) is not None


def test_first_barrier_is_due_at_once() -> None:
    """A start does not wait for an interval first."""
    driver = CoreDriver(dataclasses.replace(FAST, interval_s=3600.0))
    driver.tick()
    assert driver.poll(1) is not None


def test_without_an_interval_only_acknowledgements_trigger() -> None:
    """The drop-in: no barrier by time, and a checkpoint at once for each batch
    (`batch-identity`)."""
    driver = CoreDriver(dataclasses.replace(FAST, interval_s=None))
    driver.tick(3600.0)
    assert driver.poll(5) is None
    driver.ack()
    (published,) = driver.seen(Publish)
    assert published.requested_by == "spark"
    assert published.verdict is Verdict.DECIDED


def test_timeout_aborts_what_is_not_acknowledged() -> None:
    driver = CoreDriver(FAST)
    driver.tick()
    driver.poll(3)
    driver.tick(9.9)
    assert not driver.seen(Publish)
    driver.tick(0.2)
    (published,) = driver.seen(Publish)
    assert published.verdict is Verdict.ABORTED
    assert "expired" in published.reason


def test_an_idle_barrier_does_not_expire() -> None:
    """Without records nothing is published, however long (design: idle intervals)."""
    driver = CoreDriver(FAST)
    for _ in range(100):
        driver.tick(10.0)
        assert driver.poll(0) is None
    assert not driver.seen(Publish)
    driver.tick(FAST.idle_refresh_s)
    barrier = driver.poll(1)
    assert barrier.checkpoint_id == 1


def test_minimum_pause_holds_the_next_barrier_back() -> None:
    """Counted from the end of the checkpoint before, whatever the interval says."""
    driver = CoreDriver(dataclasses.replace(FAST, min_pause_s=4.0))
    driver.tick()
    barrier = driver.poll(3)
    driver.tick(2.0)
    driver.ack(barrier)
    driver.tick(3.9)
    assert driver.poll(6) is None
    driver.tick(0.2)
    assert driver.poll(6) is not None


@pytest.mark.parametrize("tolerable", [0, 1, 3])
def test_one_failure_more_than_tolerable_stops_the_job(tolerable: int) -> None:
    driver = CoreDriver(dataclasses.replace(FAST, tolerable_failures=tolerable))
    attempt_id = 0
    for _ in range(tolerable):
        attempt_id = _expire_and_restart(driver, attempt_id)
        assert not driver.seen(EndJob)
    driver.tick(1.0)
    driver.poll(3, attempt_id=attempt_id)
    driver.tick(10.1)
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, RegionGivenUpError)
    assert f"failures={tolerable + 1} tolerable_failures={tolerable}" in str(end.error)
    assert "missing=main" in str(end.error)
    assert isinstance(end.error.__cause__, CheckpointFailedError)


def test_a_decision_resets_the_count_of_failures() -> None:
    driver = CoreDriver(dataclasses.replace(FAST, tolerable_failures=1))
    attempt_id = 0
    for end in (3, 6, 9):
        attempt_id = _expire_and_restart(driver, attempt_id)
        driver.tick(1.0)
        driver.ack(driver.poll(end, attempt_id=attempt_id), attempt_id=attempt_id)
    assert not driver.seen(EndJob)


def _expire_and_restart(driver: CoreDriver, attempt_id: int) -> int:
    driver.tick(1.0)
    assert driver.poll(100, attempt_id=attempt_id) is not None
    driver.tick(10.1)
    return driver.restart()


def test_retained_reaches_the_store() -> None:
    """How many checkpoints are kept is the store's to do, with the job's number."""
    driver = CoreDriver(dataclasses.replace(FAST, retained=7))
    driver.epoch(3)
    assert driver.seen(Retire) == [Retire(retained=7)]


@pytest.mark.parametrize("limit", [1, 3])
def test_at_most_so_many_checkpoints_are_under_way(limit: int) -> None:
    """The map of pending checkpoints holds ``max_concurrent``, by default one."""
    driver = CoreDriver(
        dataclasses.replace(FAST, max_concurrent=limit),
        regions=[
            RegionPlan(name="main", source_ids=("source",)),
            RegionPlan(name="slow", source_ids=("source",)),
        ],
    )
    for end in (3, 6, 9, 12):
        driver.tick(1.0)
        barrier = driver.poll(end)
        if barrier is not None:
            driver.ack(barrier)
    begun = driver.seen(TriggerBarrier)
    assert [found.checkpoint_id for found in begun] == list(range(1, limit + 1))
    assert CheckpointSettings().max_concurrent == 1


def test_max_records_limits_a_cut() -> None:
    """A region's limit is handed to its sources with every cut."""
    driver = CoreDriver(
        FAST, regions=[RegionPlan(name="main", source_ids=("source",), max_records=50)]
    )
    driver.tick()
    assert driver.asked_cut().max_records == 50
    driver.ack(driver.poll(50))
    assert driver.poll(100) is None  # the user's limit throttles: the interval holds


def test_a_backlog_becomes_epochs_of_a_bounded_time() -> None:
    """The limit follows what the region writes, and catching up does not wait for the interval."""
    driver = CoreDriver(
        CheckpointSettings(interval_s=60.0, timeout_s=40.0, first_epoch_records=1_000)
    )
    position, sizes = 0, []
    driver.tick()
    for _ in range(6):
        limit = driver.asked_cut().max_records
        assert limit is not None
        sizes.append(limit)
        position += limit
        barrier = driver.poll(position)
        driver.clock.advance(0.5 + limit / 10_000)  # Spark's own time, and 10,000 records a second
        driver.ack(barrier)
    assert sizes[:2] == [1_000, 10_000]
    assert 94_000 <= sizes[-1] <= 96_000  # 10 s, a quarter of the timeout


def test_a_checkpoint_is_looked_at_when_its_time_is_over() -> None:
    driver = CoreDriver(FAST, regions=TWO)
    driver.tick()
    driver.poll(3)
    assert driver.core.deadline_s() == driver.clock() + FAST.timeout_s


def test_pacing_can_be_switched_off() -> None:
    driver = CoreDriver(dataclasses.replace(FAST, pace_epochs=False))
    driver.tick()
    assert driver.asked_cut().max_records is None
    driver.ack(driver.poll(10 * FAST.first_epoch_records))
    assert driver.core.last_committed == 1
    assert driver.core.deadline_s() == driver.clock() + 1.0, "nothing is left"


def test_each_trigger_carries_its_kind_and_who_asked() -> None:
    driver = CoreDriver(FAST)
    driver.trigger(CheckpointKind.SAVEPOINT, "user")
    driver.poll(0)
    (published,) = driver.seen(Publish)
    assert (published.kind, published.requested_by) == (CheckpointKind.SAVEPOINT, "user")
    driver.clock.advance(1.0)
    driver.epoch(5)
    assert (driver.seen(Publish)[1].kind, driver.seen(Publish)[1].requested_by) == (
        CheckpointKind.CHECKPOINT,
        "interval",
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval_s": -1.0},
        {"timeout_s": 0.0},
        {"min_pause_s": -0.1},
        {"tolerable_failures": -1},
        {"retained": 0},
        {"max_concurrent": 0},
        {"discovery_interval_s": -1.0},
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        CheckpointSettings(**wrong)


def test_two_regions_of_one_name_are_refused() -> None:
    """A region's name is its identity in every record."""
    with pytest.raises(ConfigError, match="main"):
        JobPlan(name="job", regions=(RegionPlan(name="main"), RegionPlan(name="main")))
