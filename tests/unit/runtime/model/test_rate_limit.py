"""The PID rate limit: its formula, what it does not take for slowness, and where it is shown."""

import pytest
from prometheus_client import CollectorRegistry

from sluice import KafkaSink, KafkaSource
from sluice.runtime.coordinator.core.events import FetchBarrierOffsets, RegionFailed, Report
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, RegionPlan
from sluice.runtime.errors import ConfigError, StreamError
from sluice.runtime.graph.job_graph import job_plan, regions_of
from sluice.runtime.job.job import Job
from sluice.runtime.model.rate_limit import PidRateLimit, RateEstimator
from sluice.runtime.service.metrics import CheckpointMetrics
from tests.kit.coordinator.core_driver import FAST, CoreDriver

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


def test_a_small_epoch_that_is_late_does() -> None:
    """Whatever was slow, more of it would take longer."""
    rate = _limited()
    _epoch(rate, records=900, took_s=3.0)
    assert rate.rate is not None
    assert rate.rate < 300


def test_an_outage_lowers_the_rate_tenfold_and_not_more() -> None:
    """And never below the least rate; what it cost is not made up for later."""
    rate = _limited()
    _epoch(rate, records=1_000, took_s=600.0)
    assert rate.rate == 100
    rate = _limited(initial=100_000.0)
    _epoch(rate, records=100_000, took_s=600.0)
    assert rate.rate == 10_000


def test_an_epoch_that_is_given_up_is_measured_when_it_is_read_again() -> None:
    """Not from the first try's barrier."""
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
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        PidRateLimit(**settings)


# --- in the coordinator ---------------------------------------------------------------------------


def test_the_next_cut_has_the_rate_of_the_last_epoch() -> None:
    """And the smaller of all limits wins."""
    driver = CoreDriver(FAST, regions=(LIMITED,))
    driver.tick()
    assert driver.asked_cut().max_records == 1_000
    barrier = driver.poll(1_000)
    driver.tick(2.0)
    driver.ack(barrier)
    driver.tick(1.0)
    assert driver.asked_cut().max_records == 400
    least = RegionPlan(
        name="main", source_ids=("source",), max_records=50, rate_limit=LIMITED.rate_limit
    )
    driver = CoreDriver(FAST, regions=(least,))
    driver.tick()
    assert driver.asked_cut().max_records == 50


def test_a_limited_region_that_is_after_keeps_to_the_interval() -> None:
    """Barrier after barrier without a pause would read more than the rate."""
    driver = CoreDriver(FAST, regions=(LIMITED,))
    driver.tick()
    barrier = driver.poll(1_000)
    driver.tick(0.5)
    driver.ack(barrier)
    assert not any(isinstance(action, FetchBarrierOffsets) for action in driver.tell_poll())
    driver.tick(0.5)
    assert driver.asked_cut().max_records == 2_000


def test_a_barrier_is_given_again_as_it_was_cut() -> None:
    driver = CoreDriver(FAST, regions=(LIMITED,))
    driver.tick()
    barrier = driver.poll(700)
    driver.tick(5.0)
    assert driver.poll(2_000) == barrier


def test_a_region_that_comes_back_continues_at_its_rate() -> None:
    """The time it was away is no epoch's."""
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
    for report in driver.seen(Report):
        metrics.on_progress(report.progress)
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
    """And the limit stands in the settings of the checkpoints."""
    source = KafkaSource(bootstrap_servers="b:1", topics=["in"], rate_limit=PidRateLimit())
    assert _plan(source, interval_s=1.0).rate_limit == PidRateLimit()
    with pytest.raises(ConfigError, match="interval_s"):
        _plan(source, interval_s=0.0)
