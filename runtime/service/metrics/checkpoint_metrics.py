"""The job's checkpoints as Prometheus metrics. They only listen; the coordinator decides nothing by
them."""

from functools import cache, partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sluice.runtime.coordinator.core.events import Progress
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.functions.at_most_once import offsets_in

__all__ = ["CheckpointMetrics"]

_OUTCOMES = ("read", "skipped", "dead_lettered", "late")
_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
# Fewer for each region and stage: a job may have hundreds of regions.
_STAGE_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0)
_STAGES = ("read", "function", "write", "flush", "acknowledged")


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
        self._stages = Histogram(
            "sluice_region_stage_seconds",
            "Seconds of the region's slowest task in a stage: read, function, write, flush; "
            "acknowledged: from the barrier to its acknowledgement",
            ["region", "stage"],
            buckets=_STAGE_BUCKETS_S,
            registry=registry,
        )
        # 80 for each checkpoint of 16 regions; a look-up by label costs as much as the rest.
        self._stage_of = cache(self._stages.labels)
        self._counters = counter(
            "sluice_function_counter",
            "Counters of user functions (ctx.counter), of committed epochs",
            ["operator", "name"],
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
        self._last.set(progress.checkpoint_id)
        for region, ratio in progress.pending_ratios.items():
            self._pending.labels(region).set(ratio)
        for region, rate in progress.rate_limits.items():
            self._rate_limit.labels(region).set(rate)
        self._count_in_functions(progress)
        self._observe_times(progress)

    def _count_in_functions(self, progress: Progress) -> None:
        for operator, counts in progress.counts.items():
            for outcome in _OUTCOMES:
                self._by_function.labels(operator, outcome).inc(getattr(counts, outcome))
            for name, count in counts.counters.items():
                self._counters.labels(operator, name).inc(count)

    def _observe_times(self, progress: Progress) -> None:
        for stage, seconds in (
            ("acknowledged", progress.acked_s),
            ("decided", progress.decided_s),
            ("committed", progress.committed_s),
            ("marked", progress.marked_s),
        ):
            if seconds is not None:
                self._seconds.labels(stage).observe(seconds)
        for region, times in progress.stages.items():
            for stage in _STAGES:
                seconds = getattr(times, f"{stage}_s")
                if seconds is not None:
                    self._stage_of(region, stage).observe(seconds)
