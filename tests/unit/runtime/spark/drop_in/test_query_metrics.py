"""Metrics of queries: what is counted of Spark's events, and what stays of ended queries."""

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from sluice.runtime.coordinator.region.status_views import JobStatus, TransactionView
from sluice.runtime.spark.drop_in.query_metrics import QueryMetrics
from tools.reference import query_metric_families

FROZEN = {
    ("sluice_query_active", "gauge", ("query",)),
    ("sluice_query_failed", "gauge", ("query",)),
    ("sluice_query_input_rows_total", "counter", ("query",)),
    ("sluice_query_processed_rows_per_second", "gauge", ("query",)),
    ("sluice_query_batches_total", "counter", ("query",)),
    ("sluice_query_batch_seconds", "summary", ("query", "phase")),
    ("sluice_query_lag_records", "gauge", ("query", "source")),
    ("sluice_query_state_rows", "gauge", ("query", "operator")),
    ("sluice_query_last_committed_checkpoint_id", "gauge", ("query",)),
    ("sluice_query_open_transaction_age_seconds", "gauge", ("query", "sink")),
    ("sluice_query_open_transaction_timeout_seconds", "gauge", ("query", "sink")),
    ("sluice_query_open_transaction_alarm", "gauge", ("query", "sink")),
}
"""Name, kind and labels. A dashboard breaks if you change or remove one; add new ones here."""


def test_the_metrics_keep_their_names_kinds_and_labels() -> None:
    found = {(name, family.type, labels) for name, family, labels in query_metric_families()}
    assert found == FROZEN


def progress(query_id: str = "a", name: str | None = "orders", rows: int = 5) -> dict[str, Any]:
    return {
        "id": query_id,
        "name": name,
        "numInputRows": rows,
        "processedRowsPerSecond": 12.5,
        "durationMs": {"addBatch": 250, "walCommit": 10},
        "stateOperators": [{"operatorName": "stateStoreSave", "numRowsTotal": 7}],
        "sources": [],
    }


def made(*statuses: tuple[str, JobStatus]) -> QueryMetrics:
    return QueryMetrics(lags=lambda _: [3, None], statuses=lambda: statuses)


def shown(metrics: QueryMetrics) -> Mapping[str, float]:
    registry = CollectorRegistry()
    registry.register(metrics)
    lines: Iterable[str] = generate_latest(registry).decode().splitlines()
    rows = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name.removeprefix("sluice_query_"): float(value) for name, value in rows}


def test_batches_add_up_and_the_last_one_sets_the_rates() -> None:
    metrics = made()
    metrics.started("a", "orders")
    metrics.progressed(progress())
    metrics.progressed(progress(rows=2))
    found = shown(metrics)
    assert found['input_rows_total{query="orders"}'] == 7
    assert found['batches_total{query="orders"}'] == 2
    assert found['batch_seconds_sum{phase="addBatch",query="orders"}'] == 0.5
    assert found['processed_rows_per_second{query="orders"}'] == 12.5
    assert found['lag_records{query="orders",source="0"}'] == 3
    assert found['state_rows{operator="0",query="orders"}'] == 7
    assert 'lag_records{query="orders",source="1"}' not in found


def test_a_query_without_a_name_goes_by_its_id_and_may_have_begun_before() -> None:
    metrics = made()
    metrics.progressed(progress(name=None))
    assert shown(metrics)['active{query="a"}'] == 1


def test_an_error_is_shown_until_the_next_start() -> None:
    metrics = made()
    metrics.started("a", "orders")
    metrics.terminated("a", has_failed=True)
    assert shown(metrics)['failed{query="orders"}'] == 1
    assert shown(metrics)['active{query="orders"}'] == 0
    metrics.started("a", "orders")
    assert shown(metrics)['failed{query="orders"}'] == 0


def test_two_queries_of_one_name_make_one_series() -> None:
    """A series that is there twice makes Prometheus drop the whole scrape."""
    metrics = made()
    for query_id in ("a", "b"):
        metrics.started(query_id, "orders")
    metrics.progressed(progress("b", rows=1))
    assert shown(metrics)['input_rows_total{query="orders"}'] == 1


def test_ended_queries_are_forgotten_but_for_the_newest() -> None:
    metrics = made()
    metrics.started("kept", None)
    for number in range(150):
        metrics.started(str(number), None)
        metrics.terminated(str(number), has_failed=False)
    active = [name for name in shown(metrics) if name.startswith("active")]
    assert len(active) == 101
    assert 'active{query="kept"}' in active
    assert 'active{query="149"}' in active


def test_the_sinks_of_a_query_show_their_commits_and_open_transactions() -> None:
    def status(last: int, age_s: float) -> JobStatus:
        view = TransactionView(region="query", sink="out", age_s=age_s, timeout_s=60.0)
        return JobStatus(
            state="running",
            drop_limit=None,
            error="",
            last_decided=last,
            last_committed=last,
            pending=(),
            regions=(),
            transactions=(view,),
        )

    metrics = made(("a", status(4, 10.0)), ("a", status(6, 48.0)))
    metrics.started("a", "orders")
    found = shown(metrics)
    assert found['last_committed_checkpoint_id{query="orders"}'] == 6
    assert found['open_transaction_age_seconds{query="orders",sink="out"}'] == 48.0
    assert found['open_transaction_alarm{query="orders",sink="out"}'] == 0.8
