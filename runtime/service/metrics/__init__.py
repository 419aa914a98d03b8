"""Prometheus metrics of a job: its checkpoints, and its state at the moment of a scrape."""

from sluice.runtime.service.metrics.checkpoint_metrics import CheckpointMetrics
from sluice.runtime.service.metrics.status_metrics import StatusMetrics, job_registry

__all__ = ["CheckpointMetrics", "StatusMetrics", "job_registry"]
