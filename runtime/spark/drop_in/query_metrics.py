"""Metrics of the streaming queries of an application, on a read-only port."""

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector
from pyspark.sql import SparkSession

from sluice.runtime.coordinator.region.status_views import JobStatus, TransactionView
from sluice.runtime.coordinator.shell.open_transactions import alarm_of
from sluice.runtime.service.page.page_routes import JobPages, api_routes, page_routes
from sluice.runtime.service.read_only_server import ReadOnlyServer
from sluice.runtime.spark.drop_in.query_listener import QueryListener

__all__ = ["QueryMetrics", "QueryMetricsPort"]

log = logging.getLogger(__name__)

_MOST_ENDED = 100

LagsOf = Callable[[Mapping[str, Any]], Sequence[int | None]]
"""Unread records of each Kafka source in a query's progress; None: not known."""

RunStatuses = Callable[[], Iterable[tuple[str, JobStatus]]]
"""Each run of a drop-in sink: the id of its query, and its status."""


@dataclass(slots=True)
class _Query:
    """The last values of one query; counters are of this installation."""

    name: str
    is_active: bool = True
    has_failed: bool = False
    input_rows: int = 0
    rows_per_s: float = 0.0
    batches: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)
    lags: Sequence[int | None] = ()
    state_rows: Sequence[int] = ()

    def progressed(self, progress: Mapping[str, Any], lags: Sequence[int | None]) -> None:
        self.input_rows += max(0, progress.get("numInputRows") or 0)
        self.rows_per_s = progress.get("processedRowsPerSecond") or 0.0
        self.batches += 1
        for phase, ms in (progress.get("durationMs") or {}).items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + ms / 1000
            self.times[phase] = self.times.get(phase, 0) + 1
        self.lags = lags
        self.state_rows = [each["numRowsTotal"] for each in progress.get("stateOperators") or ()]


class QueryMetrics(Collector):
    """The queries of an application. A listener's thread reports events, any thread collects.

    Ended queries stay, so that an alert sees an error; of these only the newest 100.

    Args:
        lags: of a query's progress.
        statuses: of the runs of drop-in sinks.
    """

    def __init__(self, *, lags: LagsOf, statuses: RunStatuses) -> None:
        self._lags = lags
        self._statuses = statuses
        self._queries: dict[str, _Query] = {}
        self._lock = threading.Lock()

    def started(self, query_id: str, name: str | None) -> None:
        """A query has started, perhaps again."""
        with self._lock:
            query = self._known(query_id, name)
            query.is_active, query.has_failed = True, False

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """A batch has ended; ``progress`` as Spark's JSON."""
        lags = self._lags(progress)
        with self._lock:
            self._known(progress["id"], progress.get("name")).progressed(progress, lags)

    def terminated(self, query_id: str, *, has_failed: bool) -> None:
        """A query has ended."""
        with self._lock:
            query = self._known(query_id, None)
            query.is_active, query.has_failed = False, has_failed
            self._queries[query_id] = self._queries.pop(query_id)  # the newest of the ended ones
            ended = [key for key, each in self._queries.items() if not each.is_active]
            for key in ended[:-_MOST_ENDED]:
                del self._queries[key]

    def _known(self, query_id: str, name: str | None) -> _Query:
        return self._queries.setdefault(query_id, _Query(name=name or query_id))

    def describe(self) -> Iterator[Metric]:
        """The collector makes no request while it is registered."""
        yield from _of_queries({})
        yield from _of_runs([])

    def collect(self) -> Iterator[Metric]:
        """The last values of the queries, and the state of their sinks now."""
        with self._lock:
            # One series for each name: of queries with one name, the one that started last.
            named = {query.name: query for query in self._queries.values()}
            names = {query_id: query.name for query_id, query in self._queries.items()}
            found = list(_of_queries(named))
        yield from found
        runs = [(names.get(query_id, query_id), status) for query_id, status in self._statuses()]
        yield from _of_runs(runs)


def _of_queries(queries: Mapping[str, _Query]) -> Iterator[Metric]:
    one = ("query",)
    active = GaugeMetricFamily("sluice_query_active", "1: the query runs", labels=one)
    failed = GaugeMetricFamily(
        "sluice_query_failed",
        "1: the query ended with an error, and has not started again",
        labels=one,
    )
    rows = CounterMetricFamily("sluice_query_input_rows", "Rows that batches have read", labels=one)
    rate = GaugeMetricFamily(
        "sluice_query_processed_rows_per_second", "Rate of the last batch", labels=one
    )
    batches = CounterMetricFamily("sluice_query_batches", "Batches that have ended", labels=one)
    seconds = SummaryMetricFamily(
        "sluice_query_batch_seconds",
        "Seconds of batches in Spark's phases (durationMs)",
        labels=("query", "phase"),
    )
    lag = GaugeMetricFamily(
        "sluice_query_lag_records",
        "Records that the last batch left unread in a Kafka source",
        labels=("query", "source"),
    )
    state = GaugeMetricFamily(
        "sluice_query_state_rows",
        "Rows in the state of a stateful operator",
        labels=("query", "operator"),
    )
    for name, query in queries.items():
        active.add_metric((name,), float(query.is_active))
        failed.add_metric((name,), float(query.has_failed))
        rows.add_metric((name,), query.input_rows)
        rate.add_metric((name,), query.rows_per_s if query.is_active else 0.0)
        batches.add_metric((name,), query.batches)
        for phase, sum_s in query.seconds.items():
            seconds.add_metric((name, phase), query.times[phase], sum_s)
        for number, records in enumerate(query.lags):
            if records is not None:
                lag.add_metric((name, str(number)), records)
        for number, count in enumerate(query.state_rows):
            state.add_metric((name, str(number)), count)
    yield from (active, failed, rows, rate, batches, seconds, lag, state)


def _of_runs(runs: Iterable[tuple[str, JobStatus]]) -> Iterator[Metric]:
    two = ("query", "sink")
    committed: dict[str, int] = {}
    oldest: dict[tuple[str, str], TransactionView] = {}
    for name, status in runs:
        committed[name] = max(status.last_committed, committed.get(name, 0))
        for view in status.transactions:
            other = oldest.get((name, view.sink), view)
            oldest[name, view.sink] = max(view, other, key=lambda each: each.age_s)
    last = GaugeMetricFamily(
        "sluice_query_last_committed_checkpoint_id",
        "Newest checkpoint of a drop-in sink with a completion marker",
        labels=("query",),
    )
    for name, checkpoint_id in committed.items():
        last.add_metric((name,), checkpoint_id)
    yield last
    for metric, text, value in (
        ("age_seconds", "Age of the oldest open transaction", lambda view: view.age_s),
        ("timeout_seconds", "Age at which brokers abort it", lambda view: view.timeout_s),
        ("alarm", "Alarm that its age has reached: 0.5 or 0.8 of the timeout; 0: none", alarm_of),
    ):
        family = GaugeMetricFamily(f"sluice_query_open_transaction_{metric}", text, labels=two)
        for labels, view in oldest.items():
            family.add_metric(labels, value(view))
        yield family


class QueryMetricsPort:
    """Serves the metrics of an application's queries, once it is asked to. Driver; the user's
    thread calls it.

    Args:
        lags, statuses: see `QueryMetrics`.
        pages: the queries as jobs, for people.
    """

    def __init__(self, *, lags: LagsOf, statuses: RunStatuses, pages: JobPages) -> None:
        self._metrics = QueryMetrics(lags=lags, statuses=statuses)
        self._pages = pages
        self._listener = QueryListener(
            started=self._metrics.started,
            progressed=lambda text: self._metrics.progressed(json.loads(text)),
            terminated=lambda query_id, has_failed: self._metrics.terminated(
                query_id, has_failed=has_failed
            ),
        )
        self._server: ReadOnlyServer | None = None
        self._asked: tuple[str, int] | None = None
        self._sessions: list[SparkSession] = []

    @property
    def address(self) -> str | None:
        """``http://host:port``; None: it does not serve."""
        return None if self._server is None else self._server.address

    def serve(self, host: str, port: int) -> None:
        """Serve here from now on; a server at another address ends.

        Raises:
            MissingRequirementError: it cannot listen there; an earlier server continues.
        """
        if (host, port) == self._asked:
            return
        registry = CollectorRegistry()
        registry.register(self._metrics)
        ProcessCollector(registry=registry)
        routes = [*page_routes(), *api_routes(self._pages)]
        server = ReadOnlyServer(registry, host=host, port=port, routes=routes)
        server.start()
        if self._server is not None:
            self._server.stop()
        self._server, self._asked = server, (host, port)

    def watch(self, spark: SparkSession) -> None:
        """Report the queries that this session starts, if this serves."""
        if self._server is not None and not any(known is spark for known in self._sessions):
            spark.streams.addListener(self._listener)
            self._sessions.append(spark)

    def close(self) -> None:
        """Stop serving. Safe to repeat."""
        server, self._server, self._asked = self._server, None, None
        if server is not None:
            server.stop()
        sessions, self._sessions = self._sessions, []
        for spark in sessions:
            try:
                spark.streams.removeListener(self._listener)
            except Exception:  # the session has been stopped, and its listeners with it
                log.debug("listener was not removed", exc_info=True)
