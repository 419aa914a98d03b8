"""The names of the metrics are frozen: dashboards and alerts of users contain them."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from sluice.runtime.contracts import RegisteredAttempt
from sluice.runtime.coordinator.core.events import Progress
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.coordinator.region.job_time import TimeView
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.model.acknowledgement import RecordCounts, RegionTimes
from sluice.runtime.model.checkpoint_record import CheckpointKind
from sluice.runtime.service.metrics import CheckpointMetrics, job_registry
from tests.kit.coordinator.coordinated_service import BATCH
from tools.reference import metric_families

FROZEN = {
    ("sluice_checkpoints_committed_total", "counter", ()),
    ("sluice_checkpoints_aborted_total", "counter", ()),
    ("sluice_offsets_committed_total", "counter", ()),
    ("sluice_offsets_dropped_total", "counter", ()),
    ("sluice_function_records_total", "counter", ("operator", "outcome")),
    ("sluice_function_counter_total", "counter", ("operator", "name")),
    ("sluice_last_committed_checkpoint_id", "gauge", ()),
    ("sluice_checkpoint_pending_seconds", "gauge", ()),
    ("sluice_checkpoint_seconds", "histogram", ("stage",)),
    ("sluice_region_stage_seconds", "histogram", ("region", "stage")),
    ("sluice_region_pending_ratio", "gauge", ("region",)),
    ("sluice_region_pressure", "gauge", ("region",)),
    ("sluice_region_pressure_alarm", "gauge", ("region",)),
    ("sluice_region_rate_limit", "gauge", ("region",)),
    ("sluice_region_suspended", "gauge", ("region",)),
    ("sluice_region_snapshot_age_seconds", "gauge", ("region",)),
    ("sluice_region_attempts_ended_total", "counter", ("region",)),
    ("sluice_region_lag_records", "gauge", ("region", "split")),
    ("sluice_region_lost_records", "gauge", ("region",)),
    ("sluice_region_late_rows_total", "counter", ("region",)),
    ("sluice_watermark_seconds", "gauge", ()),
    ("sluice_slowest_split_watermark_seconds", "gauge", ("region", "split")),
    ("sluice_splits_idle", "gauge", ()),
    ("sluice_splits_paused", "gauge", ()),
    ("sluice_open_transaction_age_seconds", "gauge", ("region", "sink")),
    ("sluice_open_transaction_timeout_seconds", "gauge", ("region", "sink")),
    ("sluice_open_transaction_alarm", "gauge", ("region", "sink")),
    ("sluice_savepoints_total", "counter", ("kind", "outcome")),
    ("sluice_savepoint_last_seconds", "gauge", ("kind",)),
    ("sluice_history_write_failures_total", "counter", ()),
    ("sluice_leader_term", "gauge", ()),
    ("sluice_standbys", "gauge", ()),
    ("sluice_waiting_for_resources", "gauge", ()),
    ("sluice_waiting_for_resources_tasks", "gauge", ("tasks",)),
    ("sluice_job_running", "gauge", ()),
    ("sluice_job_info", "gauge", ("name", "job_uid", "version")),
}
"""Name, kind and labels. A dashboard breaks if you change or remove one; add new ones here."""


def test_the_metrics_keep_their_names_kinds_and_labels() -> None:
    assert {(name, family.type, labels) for name, family, labels in metric_families()} == FROZEN


def shown(registry: CollectorRegistry, start: str) -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if line.startswith(start) and "_created" not in line]


def test_each_stage_of_each_region_has_a_histogram_with_few_buckets() -> None:
    registry = CollectorRegistry()
    metrics = CheckpointMetrics(registry)
    times = RegionTimes(read_s=0.02, function_s=0.3, write_s=0.01, flush_s=None, acknowledged_s=0.4)
    progress = Progress(
        checkpoint_id=1,
        kind=CheckpointKind.CHECKPOINT,
        requested_by="timer",
        state=State.MARKED,
        stages={f"r-{i}": times for i in range(64)},
        counts={"clean": RecordCounts(counters={"rejected": 3})},
    )
    metrics.on_progress(progress)
    metrics.on_progress(replace(progress, state=State.DECIDED))  # counts once
    metrics.on_progress(progress)
    name = 'sluice_region_stage_seconds_count{region="r-7",stage='
    assert shown(registry, name) == [f'{name}"{stage}"}} 2.0' for stage in _STAGES]
    assert len(shown(registry, "sluice_region_stage_seconds")) == 64 * len(_STAGES) * 12
    assert shown(registry, "sluice_function_counter_total") == [
        'sluice_function_counter_total{name="rejected",operator="clean"} 6.0'
    ]


_STAGES = ("read", "function", "write", "acknowledged")


def test_a_job_that_has_not_started_says_only_that(coordinator: BarrierCoordinator) -> None:
    unstarted = BarrierCoordinator(coordinator.plan, cast(Any, None), sinks={}, sources={})
    registry = job_registry(unstarted)
    assert shown(registry, "sluice_job_running") == ["sluice_job_running 0.0"]
    assert shown(registry, "sluice_region_") == []


def test_state_and_open_transactions_are_read_at_the_scrape(
    coordinator: BarrierCoordinator,
) -> None:
    registry = job_registry(coordinator)
    attempt = RegisteredAttempt(batch=BATCH, operator_id="sink", resource="id|7|0")
    coordinator.register(attempt)
    assert shown(registry, "sluice_job_running") == ["sluice_job_running 1.0"]
    assert shown(registry, "sluice_region_attempts_ended") == [
        'sluice_region_attempts_ended_total{region="main"} 0.0'
    ]
    assert shown(registry, "sluice_open_transaction_timeout") == [
        'sluice_open_transaction_timeout_seconds{region="main",sink="sink"} 60.0'
    ]
    assert len(shown(registry, "process_")) > 3
    assert 'sluice_savepoints_total{kind="savepoint",outcome="failed"} 0.0' in shown(
        registry, "sluice_savepoints_total"
    )


def test_event_time_is_shown_where_a_source_has_it(
    coordinator: BarrierCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = job_registry(coordinator)
    names = ("sluice_watermark", "sluice_slowest_split", "sluice_splits_")
    assert [line for name in names for line in shown(registry, name)] == []
    status = coordinator.status()
    time = TimeView(
        watermark_ms=1_500,
        slowest="input-1",
        slowest_region="main",
        slowest_ms=2_000,
        idle=("input-0",),
    )
    monkeypatch.setattr(BarrierCoordinator, "status", lambda self: replace(status, time=time))
    split = 'sluice_slowest_split_watermark_seconds{region="main",split="input-1"} 2.0'
    assert [line for name in names for line in shown(registry, name)] == [
        "sluice_watermark_seconds 1.5",
        split,
        "sluice_splits_idle 1.0",
        "sluice_splits_paused 0.0",
    ]
    assert shown(registry, "sluice_region_late_rows") == [
        'sluice_region_late_rows_total{region="main"} 0.0'
    ]


def test_no_label_has_an_unbounded_number_of_values() -> None:
    """Regions, splits, sinks, operators, stages and names of counters are bounded by the job."""
    assert labels_of(FROZEN) == {
        *("region", "split", "sink", "operator", "outcome", "stage", "name", "kind", "tasks"),
        *("job_uid", "version"),
    }


def labels_of(frozen: Iterable[tuple[str, str, tuple[str, ...]]]) -> set[str]:
    return {label for _, _, labels in frozen for label in labels}
