"""The job's checkpoints as Prometheus metrics. They only listen; the coordinator decides nothing by
them."""

from collections.abc import Iterator
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from sluice.runtime.coordinator.core.events import Progress
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.functions.at_most_once import offsets_in

__all__ = ["CheckpointMetrics", "RegionMetrics", "job_registry"]

_REGION_METRICS = (
    ("sluice_region_suspended", "1: the region is suspended", "region"),
    (
        "sluice_region_snapshot_age_seconds",
        "Seconds since the decision of the last checkpoint that the region completed",
        "region",
    ),
    (
        "sluice_region_pressure_alarm",
        "1: under high pressure for longer than pressure_alarm_s",
        "region",
    ),
    (
        "sluice_region_lag_records",
        "Records not read yet, as of the last barrier; of suspended regions as of now",
        *("region", "split"),
    ),
    (
        "sluice_region_lost_records",
        "Unread records of suspended regions that retention deleted",
        "region",
    ),
    (
        "sluice_checkpoint_pending_seconds",
        "Seconds since the barrier of the oldest uncommitted checkpoint; 0: none",
    ),
)
_OUTCOMES = ("read", "skipped", "dead_lettered", "late")
_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)


class CheckpointMetrics:
    """A `ProgressListener` over one registry, one per service."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        self._committed = counter(
            "sluice_checkpoints_committed", "Checkpoints with a completion marker"
        )
        self._aborted = counter(
            "sluice_checkpoints_aborted", "Checkpoints aborted; their records are read again"
        )
        self._records = counter(
            "sluice_offsets_committed",
            "Source offsets in committed epochs: an upper bound of the records",
        )
        self._dropped = counter(
            "sluice_offsets_dropped",
            "Source offsets of committed epochs that approximate recovery left out",
        )
        self._by_function = counter(
            "sluice_function_records",
            "Records of committed epochs in functions with an on_error policy, and late rows",
            ["operator", "outcome"],
        )
        self._last = gauge(
            "sluice_last_committed_checkpoint_id", "Newest checkpoint with a completion marker"
        )
        self._pending = gauge(
            "sluice_region_pending_ratio",
            "Share of the last minute in which a barrier was due and the region was still at work",
            ["region"],
        )
        self._rate_limit = gauge(
            "sluice_region_rate_limit",
            "Records per second that the region may read now",
            ["region"],
        )
        self._seconds = Histogram(
            "sluice_checkpoint_seconds",
            "Seconds to a stage: acknowledged, decided, committed (visible), marked",
            ["stage"],
            buckets=_BUCKETS_S,
            registry=registry,
        )

    def on_progress(self, progress: Progress) -> None:
        """One change of one checkpoint."""
        if progress.state is State.ABORTED:
            self._aborted.inc()
        if progress.state is not State.MARKED:
            return
        self._committed.inc()
        self._records.inc(progress.records)
        self._dropped.inc(offsets_in(progress.dropped))
        for operator, counts in progress.counts.items():
            for outcome in _OUTCOMES:
                self._by_function.labels(operator, outcome).inc(getattr(counts, outcome))
        self._last.set(progress.checkpoint_id)
        for region, ratio in progress.pending_ratios.items():
            self._pending.labels(region).set(ratio)
        for region, rate in progress.rate_limits.items():
            self._rate_limit.labels(region).set(rate)
        for stage, seconds in (
            ("acknowledged", progress.acked_s),
            ("decided", progress.decided_s),
            ("committed", progress.committed_s),
            ("marked", progress.marked_s),
        ):
            if seconds is not None:
                self._seconds.labels(stage).observe(seconds)


class RegionMetrics(Collector):
    """A job's regions at the moment of a scrape; also while no checkpoint is committed."""

    def __init__(self, coordinator: BarrierCoordinator) -> None:
        self._coordinator = coordinator

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """The collector makes no request while it is registered."""
        yield from _families()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One value for each region, or split."""
        suspended, age, alarm, lag, lost, pending = _families()
        status = self._coordinator.status() if self._coordinator.started else None
        ages_s = [each.age_s or 0.0 for each in status.pending] if status else []
        pending.add_metric([], max(ages_s, default=0.0))
        for region in status.regions if status else ():
            suspended.add_metric([region.region], float(region.suspended is not None))
            alarm.add_metric([region.region], float(region.has_alarm))
            lost.add_metric([region.region], region.lost_records)
            if region.snapshot_age_s is not None:
                age.add_metric([region.region], region.snapshot_age_s)
            for split, records in region.lags.items():
                lag.add_metric([region.region, split], records)
        yield from (suspended, age, alarm, lag, lost, pending)


def job_registry(coordinator: BarrierCoordinator) -> CollectorRegistry:
    """The metrics of one job, from now on; all of its servers show this registry."""
    registry = CollectorRegistry()
    coordinator.add_listener(CheckpointMetrics(registry))
    registry.register(RegionMetrics(coordinator))
    ProcessCollector(registry=registry)
    return registry


def _families() -> list[GaugeMetricFamily]:
    return [GaugeMetricFamily(name, text, labels=labels) for name, text, *labels in _REGION_METRICS]
