"""The job's checkpoints as Prometheus metrics. They only listen; the coordinator decides nothing by
them."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from sluice.runtime.coordinator.core.events import Progress
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.coordinator.region.status_views import JobStatus
from sluice.runtime.functions.at_most_once import offsets_in

__all__ = ["CheckpointMetrics", "RegionMetrics"]

_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)


class CheckpointMetrics:
    """A `ProgressListener` over one registry, one per service."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._committed = Counter(
            "sluice_checkpoints_committed",
            "Checkpoints with a completion marker",
            registry=registry,
        )
        self._aborted = Counter(
            "sluice_checkpoints_aborted",
            "Checkpoints aborted; their records are read again",
            registry=registry,
        )
        self._records = Counter(
            "sluice_offsets_committed",
            "Source offsets in committed epochs: an upper bound of the records",
            registry=registry,
        )
        self._dropped = Counter(
            "sluice_offsets_dropped",
            "Source offsets of committed epochs that approximate recovery left out",
            registry=registry,
        )
        self._by_function = Counter(
            "sluice_function_records",
            "Records of committed epochs in functions with an on_error policy",
            ["operator", "outcome"],
            registry=registry,
        )
        self._last = Gauge(
            "sluice_last_committed_checkpoint_id",
            "Newest checkpoint with a completion marker",
            registry=registry,
        )
        self._pending = Gauge(
            "sluice_region_pending_ratio",
            "Share of the last minute in which a barrier was due and the region was still at work",
            ["region"],
            registry=registry,
        )
        self._rate_limit = Gauge(
            "sluice_region_rate_limit",
            "Records per second that the region may read now",
            ["region"],
            registry=registry,
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
            for outcome, records in asdict(counts).items():
                self._by_function.labels(operator, outcome).inc(records)
        self._last.set(progress.checkpoint_id)
        for region, ratio in progress.pending_ratios.items():
            self._pending.labels(region).set(ratio)
        for region, rate in progress.rate_limits.items():
            self._rate_limit.labels(region).set(rate)
        stages = {
            "acknowledged": progress.acked_s,
            "decided": progress.decided_s,
            "committed": progress.committed_s,
            "marked": progress.marked_s,
        }
        for stage, seconds in stages.items():
            if seconds is not None:
                self._seconds.labels(stage).observe(seconds)


class _StatusSource(Protocol):
    @property
    def started(self) -> object | None: ...

    def status(self) -> JobStatus: ...


class RegionMetrics(Collector):
    """A job's regions at the moment of a scrape; also while no checkpoint is committed."""

    def __init__(self, coordinator: _StatusSource) -> None:
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


def _families() -> tuple[GaugeMetricFamily, ...]:
    by_region = ["region"]
    return (
        GaugeMetricFamily(
            "sluice_region_suspended", "1: the region is suspended", labels=by_region
        ),
        GaugeMetricFamily(
            "sluice_region_snapshot_age_seconds",
            "Seconds since the decision of the last checkpoint that the region completed",
            labels=by_region,
        ),
        GaugeMetricFamily(
            "sluice_region_pressure_alarm",
            "1: under high pressure for longer than pressure_alarm_s",
            labels=by_region,
        ),
        GaugeMetricFamily(
            "sluice_region_lag_records",
            "Records not read yet, as of the last barrier; of suspended regions as of now",
            labels=["region", "split"],
        ),
        GaugeMetricFamily(
            "sluice_region_lost_records",
            "Unread records of suspended regions that retention deleted",
            labels=by_region,
        ),
        GaugeMetricFamily(
            "sluice_checkpoint_pending_seconds",
            "Seconds since the barrier of the oldest uncommitted checkpoint; 0: none",
        ),
    )
