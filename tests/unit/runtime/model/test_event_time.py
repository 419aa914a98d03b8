"""Watermarks of splits and regions, and the PID rate limit."""

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sluice import KafkaSink, KafkaSource
from sluice.runtime.coordinator.core.events import Progress, RegionFailed
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, RegionPlan
from sluice.runtime.errors import ConfigError, StreamError
from sluice.runtime.graph.job_graph import job_plan, regions_of
from sluice.runtime.job.job import Job
from sluice.runtime.model.event_time import (
    KAFKA_TIME,
    BoundedOutOfOrderness,
    EventTime,
    Header,
    Monotonic,
    Punctuated,
    advanced,
    least_watermark_ms,
)
from sluice.runtime.model.rate_limit import PidRateLimit, RateEstimator
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.service.metrics import CheckpointMetrics
from sluice.runtime.spark.microbatch.event_times import (
    EventTimes,
    LargestTimestamps,
    TimedReading,
    event_time_of,
)
from tests.kit.coordinator.core_driver import FAST, CoreDriver


def split(**where: Any) -> SplitRange:
    return SplitRange(
        source_id="s",
        topic="orders",
        topic_id="id",
        start_offset=where.pop("start"),
        end_offset=where.pop("end"),
        **where,
    )


def timed(*, delay_ms: int = 0, idle_timeout_ms: int | None = None) -> EventTime:
    return EventTime(
        KAFKA_TIME,
        strategy=BoundedOutOfOrderness(delay_ms / 1000),
        idle_after=None if idle_timeout_ms is None else idle_timeout_ms / 1000,
    )


def at(partition: int, watermark_ms: int | None, idle_since_ms: int | None = None) -> SplitRange:
    return split(
        partition=partition, start=0, end=1, watermark_ms=watermark_ms, idle_since_ms=idle_since_ms
    )


def test_a_watermark_trails_the_newest_timestamp_and_never_goes_back() -> None:
    """An epoch of older records leaves it where it was, and so does a larger delay."""
    moved = advanced(at(0, None), 10_000, timed(delay_ms=500))
    assert (moved.largest_timestamp_ms, moved.watermark_ms) == (10_000, 9_500)
    assert advanced(moved, 9_000, timed(delay_ms=500)) == moved
    assert advanced(moved, None, timed(delay_ms=500)) == moved
    assert advanced(moved, 10_100, timed(delay_ms=5_000)).watermark_ms == 9_500


def test_a_range_without_timestamps_leaves_a_split_without_watermark() -> None:
    assert advanced(at(0, None), None, timed()) == at(0, None)


def test_the_least_live_split_is_the_progress_of_the_region() -> None:
    """A split that has no timestamp yet holds everything back, until it is idle."""
    settings = timed(idle_timeout_ms=1_000)
    assert least_watermark_ms([at(0, 7), at(1, 5)], settings, now_ms=0) == 5
    assert least_watermark_ms([at(0, 7), at(1, None)], settings, now_ms=0) is None
    waiting = [at(0, 7), at(1, 5, idle_since_ms=100)]
    assert least_watermark_ms(waiting, settings, now_ms=1_099) == 5
    assert least_watermark_ms(waiting, settings, now_ms=1_100) == 7
    assert least_watermark_ms(waiting, timed(), now_ms=10**9) == 5
    assert least_watermark_ms([], settings, now_ms=0) is None


def test_where_all_splits_are_idle_all_of_them_count() -> None:
    idle = [at(0, 7, idle_since_ms=0), at(1, 5, idle_since_ms=0)]
    assert least_watermark_ms(idle, timed(idle_timeout_ms=1), now_ms=100) == 5


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: EventTime(""),
        lambda: EventTime("kafka", strategy="5 s"),  # type: ignore[arg-type]
        lambda: EventTime("kafka", idle_after=0),
        lambda: EventTime("kafka", max_drift="-1 s", idle_after="1 s"),
        lambda: EventTime("kafka", max_drift="1 s"),
        lambda: EventTime("kafka", max_future="1 moon"),
        lambda: EventTime("kafka", at_end="never"),
        lambda: EventTime(BoundedOutOfOrderness("5 s")),  # type: ignore[arg-type]
        lambda: EventTime(None),  # type: ignore[arg-type]
        lambda: EventTime(" "),
        lambda: BoundedOutOfOrderness("soon"),
        lambda: BoundedOutOfOrderness(-1),
        lambda: Header(""),
        lambda: Header("time", "float"),
    ],
)
def test_settings_out_of_range_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        wrong()


def test_a_time_has_a_column_a_delay_and_limits() -> None:
    """Rows whose time is in no column get one."""
    assert EventTime("kafka").column == EventTime(Header("at")).column == "event_time"
    found = EventTime("at", idle_after="1 minute", max_drift="1 hour 30 minutes", max_future=0)
    assert (found.column, found.delay_ms) == ("at", 5_000)
    assert (found.idle_after_ms, found.max_drift_ms, found.max_future_ms) == (60_000, 5_400_000, 0)
    assert EventTime("at", strategy=Monotonic()).delay_ms == 0
    assert EventTime("at", strategy=Punctuated(lambda batch: batch["mark"])).delay_ms == 0


class Told:
    """An accumulator of this process."""

    def __init__(self) -> None:
        self.value: dict[Any, int] = {}

    def add(self, term: dict[Any, int]) -> None:
        self.value = LargestTimestamps().addInPlace(self.value, term)


class Reader:
    """Reads nothing, and knows the timestamps."""

    def __init__(self, largest: dict[int, int]) -> None:
        self._largest = largest

    def read(self, splits: Any) -> Any:
        yield from ()

    def read_timed(self, splits: Any, tell: Any) -> Any:
        yield from ()
        for each in splits:
            if each.partition in self._largest:
                tell(each, self._largest[each.partition])


def times(told: Any) -> EventTimes:
    return EventTimes(settings=timed(), reported=told)


def test_what_the_tasks_reported_is_counted_for_the_range_they_read() -> None:
    """Twice the same says the same; what an older range reported is not this batch's."""
    told = Told()
    mine = [at(0, None), at(1, 3)]
    reading = times(told).reader(Reader({0: 50}))
    assert isinstance(reading, TimedReading)
    for _ in range(2):
        assert list(reading.read(mine)) == []
    old = split(partition=1, start=0, end=9)
    list(times(told).reader(Reader({1: 99})).read([old]))
    moved, least = times(told).after_batch(mine, fetched_ms=0)
    assert [each.watermark_ms for each in moved] == [50, 3]
    assert least == 3
    assert times(told).after_batch(mine, fetched_ms=0)[0] == tuple(mine)


def test_a_reader_without_timestamps_is_refused() -> None:
    with pytest.raises(ConfigError, match="no timestamps"):
        times(Told()).reader(object())  # type: ignore[arg-type]


def test_sinks_that_do_not_ask_cost_nothing() -> None:
    class Asks:
        name = "files"
        uid = None
        is_exactly_once = True

        def __init__(self, asked: EventTime | None) -> None:
            self._asked = asked

        def event_time(self) -> EventTime | None:
            return self._asked

        def coordinator(self) -> Any:
            raise NotImplementedError

        def source_ranges(self, committable: object) -> Any:
            raise NotImplementedError

        def record_counts(self, committable: object) -> Any:
            raise NotImplementedError

        def settings(self) -> Any:
            raise NotImplementedError

    patient = timed(delay_ms=5, idle_timeout_ms=None)
    quick = timed(delay_ms=9, idle_timeout_ms=7)
    assert event_time_of([Asks(None)]) is None
    assert event_time_of([Asks(patient), Asks(quick)]) == timed(delay_ms=9)
    assert event_time_of([Asks(quick)]) == quick


LIMITED = RegionPlan(
    name="main", source_ids=("source",), rate_limit=PidRateLimit(initial_rate=1_000.0)
)


def _epoch(rate: RateEstimator, *, records: int, took_s: float, at_s: float = 0.0) -> None:
    rate.cut(records, splits=1, now_s=at_s)
    rate.finished(at_s + took_s)


def _limited(initial: float = 1_000.0, **settings: float) -> RateEstimator:
    return RateEstimator(PidRateLimit(initial_rate=initial, **settings), 1.0)


def test_the_formula_is_sparks() -> None:
    rate = _limited(derived=0.1)
    _epoch(rate, records=1_000, took_s=2.0)
    assert rate.rate == pytest.approx(1_000 - 1.0 * 500 - 0.2 * 1.0 * 500)
    _epoch(rate, records=400, took_s=0.5, at_s=2.0)
    assert rate.rate == pytest.approx(400 + 1.0 * 400 - 0.1 * (-400 - 500) / 0.5)


def test_there_is_no_limit_before_an_epoch_was_too_slow() -> None:
    """Unless an initial rate is given; then what the slow one reached is the limit."""
    rate = RateEstimator(PidRateLimit(), 1.0)
    _epoch(rate, records=50_000, took_s=1.0)
    assert rate.most_records is None
    _epoch(rate, records=50_000, took_s=5.0)
    assert rate.rate == pytest.approx(10_000)
    assert _limited(initial=10.0).rate == 100.0


def test_a_quiet_hour_does_not_lower_the_rate() -> None:
    """A few records take Spark's own time, which says nothing about many of them."""
    rate = _limited()
    for _ in range(3_600):
        _epoch(rate, records=3, took_s=0.3)
    assert rate.rate == 1_000


def test_an_epoch_that_is_given_up_is_measured_when_it_is_read_again() -> None:
    rate = _limited()
    rate.cut(1_000, splits=1, now_s=0.0)
    rate.given_up()
    rate.finished(60.0)
    assert rate.rate == 1_000
    _epoch(rate, records=1_000, took_s=1.0, at_s=60.0)
    assert rate.rate == 1_000


@pytest.mark.parametrize(
    "settings",
    [{"proportional": -1.0}, {"min_rate": 0.0}, {"initial_rate": 0.0}, {"integral": -0.1}],
    ids=str,
)
def test_settings_out_of_range_are_refused_rate(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        PidRateLimit(**settings)


# --- in the coordinator ---------------------------------------------------------------------------


def test_a_barrier_is_given_again_as_it_was_cut() -> None:
    driver = CoreDriver(FAST, regions=(LIMITED,))
    driver.tick()
    barrier = driver.poll(700)
    driver.tick(5.0)
    assert driver.poll(2_000) == barrier


def test_a_region_that_comes_back_continues_at_its_rate() -> None:
    driver = CoreDriver(FAST, regions=(LIMITED,))
    driver.tick()
    driver.poll(1_000)
    driver.tick(3.0)
    driver.tell(RegionFailed(region="main", attempt_id=0, error=StreamError("x", {}, "")))
    attempt_id = driver.restart()
    driver.tick(5.0)
    assert driver.asked_cut(attempt_id).max_records == 1_000


def test_status_and_metrics_show_the_rate_of_now() -> None:
    driver = CoreDriver(FAST, regions=(LIMITED,))
    driver.epoch(500)
    assert driver.status().regions[0].rate_limit == 10_000
    assert CoreDriver(FAST).status().regions[0].rate_limit is None
    registry = CollectorRegistry()
    metrics = CheckpointMetrics(registry)
    for report in driver.seen(Progress):
        metrics.on_progress(report)
    assert registry.get_sample_value("sluice_region_rate_limit", {"region": "main"}) == 10_000


# --- as users say it ------------------------------------------------------------------------------


def _plan(source: KafkaSource, *, interval_s: float) -> RegionPlan:
    job = Job("j", None, checkpoint_dir="/c", interval_s=interval_s)  # type: ignore[arg-type]
    sink = KafkaSink(bootstrap_servers="b:1", topic="out", transactional_id_prefix="p")
    job.source(source).sink(sink)
    graph, regions = regions_of(job.spec.pipelines, [False])
    settings: CheckpointSettings = job.spec.settings
    made = job_plan("j", graph, regions, checkpoints=settings, spark_version="4", cluster_ids=["c"])
    assert "PidRateLimit" in " ".join(made.settings.values())
    return made.regions[0]


def test_a_source_is_limited_in_each_region() -> None:
    source = KafkaSource(bootstrap_servers="b:1", topics=["in"], rate_limit=PidRateLimit())
    assert _plan(source, interval_s=1.0).rate_limit == PidRateLimit()
    with pytest.raises(ConfigError, match="interval_s"):
        _plan(source, interval_s=0.0)
