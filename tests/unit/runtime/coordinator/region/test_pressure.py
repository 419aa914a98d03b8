"""How far regions are behind their barriers: the ratio, its words, and where they are shown."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from sluice.runtime.coordinator.core.events import Report
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.coordinator.region.region_pace import PendingTime, Pressure, left_unread
from sluice.runtime.service.metrics import CheckpointMetrics
from tests.kit.coordinator.core_driver import FAST, TWO, CoreDriver, split


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(0, 100), st.floats(0, 5), st.booleans()),
        max_size=20,
    ),
    st.floats(0, 100),
)
def test_a_ratio_is_a_share_of_time_whatever_happened(
    epochs: list[tuple[float, float, float, bool]], later_s: float
) -> None:
    """Also with epochs that never ended, and barriers one after the other."""
    pending = PendingTime()
    now_s = 0.0
    for pause_s, took_s, due_in_s, ends in epochs:
        now_s += pause_s
        pending.begin(now_s, due_in_s=due_in_s)
        now_s += took_s
        if ends:
            pending.end(now_s)
        ratio = pending.ratio(now_s)
        assert ratio is not None
        assert 0 <= ratio <= 1 + 1e-9
    assert (pending.ratio(now_s + later_s) is None) == (not epochs)


def _run(epochs: int, *, took_s: float, interval_s: float) -> tuple[PendingTime, float]:
    pending, now_s = PendingTime(), 0.0
    for _ in range(epochs):
        pending.begin(now_s, due_in_s=interval_s)
        pending.end(now_s + took_s)
        now_s += max(took_s, interval_s)
    return pending, now_s


def _follow(*, makes: int, reads: int, behind: int = 0) -> Pressure:
    """A task that answers every barrier at once; records made and read in each interval."""
    pending, now_s, made, position = PendingTime(), 0.0, behind, 0
    for _ in range(60):
        now_s += 0.1
        before, made = position, made + makes
        position = min(made, position + reads)
        pending.begin(now_s, due_in_s=0.1)
        asked, read = (split(0, before, made),), (split(0, before, position),)
        pending.end(now_s + 0.005, read=position - before, left=left_unread(asked, read))
    ratio = pending.ratio(now_s)
    assert ratio is not None
    assert 0 <= ratio <= 1
    return Pressure.of(ratio)


@pytest.mark.parametrize(
    ("makes", "reads", "behind", "expected"),
    [
        (100, 1_000, 0, Pressure.OK),
        (100, 101, 0, Pressure.OK),
        (100, 101, 90, Pressure.OK),  # less than an interval behind
        (100, 100, 130, Pressure.LOW),
        (100, 100, 1_000, Pressure.HIGH),
        (100, 60, 0, Pressure.HIGH),
        (0, 100, 10_000, Pressure.HIGH),
        (100, 0, 0, Pressure.HIGH),
    ],
)
def test_a_task_that_answers_at_once_is_judged_by_what_it_leaves_behind(
    makes: int, reads: int, behind: int, expected: Pressure
) -> None:
    """That it keeps up is no pressure, however busy it is: as of a batch that ends in time."""
    assert _follow(makes=makes, reads=reads, behind=behind) is expected


def test_a_region_that_follows_and_falls_behind_is_under_high_pressure() -> None:
    """Every barrier is answered at once, with half of what lay there; one that is in time is ok."""
    ratios = {}
    for reads in (100, 50):
        driver = CoreDriver(FAST, regions=(replace(TWO[0], follows=True),))
        end = position = 0
        for _ in range(20):
            driver.tick(1.0)
            end += 100
            barrier = driver.poll(end)
            assert barrier is not None
            position = min(end, position + reads)
            read = tuple(replace(each, end_offset=position) for each in barrier.splits)
            driver.ack(replace(barrier, splits=read))
        (region,) = driver.status().regions
        ratios[reads] = region.pressure
    assert ratios == {100: "ok", 50: "high"}


def test_a_region_that_is_done_before_its_next_barrier_has_no_pending_time() -> None:
    """However busy it is."""
    pending, now_s = _run(100, took_s=0.99, interval_s=1.0)
    assert pending.ratio(now_s) == 0


@pytest.mark.parametrize("took_s", [1.25, 2.0, 10.0])
def test_a_region_that_is_too_slow_for_its_interval_is_pending_for_the_rest(took_s: float) -> None:
    """Of each epoch the part behind the moment at which the next barrier was due."""
    pending, now_s = _run(100, took_s=took_s, interval_s=1.0)
    assert pending.ratio(now_s) == pytest.approx(1 - 1 / took_s, abs=0.05)


def test_a_batch_under_way_counts_and_an_hour_ago_does_not() -> None:
    """A region that hangs is shown before it answers; one that has recovered is forgiven."""
    pending = PendingTime()
    pending.begin(0.0, due_in_s=1.0)
    assert pending.ratio(11.0) == pytest.approx(10 / 11)
    pending.end(11.0)
    assert pending.ratio(3600.0) == 0


def test_three_words_for_a_ratio() -> None:
    """The bounds belong to the lower word."""
    words = [Pressure.of(ratio).value for ratio in (0.0, 0.10, 0.11, 0.5, 0.51, 1.0)]
    assert words == ["ok", "ok", "low", "low", "high", "high"]


def test_status_and_metrics_show_the_region_that_is_behind() -> None:
    """By name; a region without a barrier so far has neither ratio nor word."""
    driver = CoreDriver(FAST, regions=TWO)
    driver.tick()
    barrier = driver.poll(5)
    driver.clock.advance(5.0)
    seen = {view.region: view for view in driver.status().regions}
    assert (seen["main"].pressure, seen["main"].pending_ratio) == ("high", pytest.approx(0.8))
    assert (seen["side"].pressure, seen["side"].pending_ratio) == (None, None)
    driver.ack(barrier)
    driver.poll(0, region="side")
    registry = CollectorRegistry()
    metrics = CheckpointMetrics(registry)
    for report in driver.seen(Report):
        metrics.on_progress(report.progress)
    assert driver.seen(Report)[-1].progress.state is not State.ABORTED
    found = registry.get_sample_value("sluice_region_pending_ratio", {"region": "main"})
    assert found == pytest.approx(0.8)
    assert registry.get_sample_value("sluice_region_pending_ratio", {"region": "side"}) is None
