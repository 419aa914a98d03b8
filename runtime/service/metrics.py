"""The job's checkpoints as Prometheus metrics. They only listen; nothing is decided by them."""

from dataclasses import asdict

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from runtime.checkpoint.messages import Progress
from runtime.checkpoint.states import State
from runtime.drops import offsets_in

__all__ = ["CheckpointMetrics"]

_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)


class CheckpointMetrics:
    """A `runtime.checkpoint.progress.ProgressListener` over one registry, one per service."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._committed = Counter(
            "sluice_checkpoints_committed", "Checkpoints committed on record", registry=registry
        )
        self._aborted = Counter(
            "sluice_checkpoints_aborted", "Checkpoints aborted", registry=registry
        )
        self._records = Counter(
            "sluice_offsets_committed", "Source offsets in committed epochs", registry=registry
        )
        self._dropped = Counter(
            "sluice_offsets_dropped",
            "Source offsets of committed epochs that approximate recovery left out",
            registry=registry,
        )
        self._by_function = Counter(
            "sluice_function_records",
            "Records of committed epochs in functions that go on without failed ones",
            ["operator", "outcome"],
            registry=registry,
        )
        self._last = Gauge(
            "sluice_last_committed_checkpoint_id",
            "Newest checkpoint committed on record",
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
            "Seconds from the barrier to a stage",
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
