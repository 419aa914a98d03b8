"""A job's state as Prometheus metrics, read at the moment of a scrape."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from sluice.runtime.coordinator.region.job_time import TimeView
from sluice.runtime.coordinator.region.region_pace import Pressure
from sluice.runtime.coordinator.region.status_views import JobStatus, RegionStatusView
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.coordinator.shell.open_transactions import alarm_of
from sluice.runtime.coordinator.shell.request_thread import RequestThread
from sluice.runtime.service.metrics.checkpoint_metrics import CheckpointMetrics

__all__ = ["StatusMetrics", "job_registry"]

Row = tuple[Sequence[str], float]


@dataclass(frozen=True, slots=True)
class _Shown:
    """A metric that is made from a status; ``rows`` has its label values and its value."""

    name: str
    text: str
    labels: Sequence[str]
    rows: Callable[[JobStatus], Iterable[Row]]
    is_counter: bool = False

    def family(self, status: JobStatus | None) -> GaugeMetricFamily | CounterMetricFamily:
        kind = CounterMetricFamily if self.is_counter else GaugeMetricFamily
        family = kind(self.name, self.text, labels=self.labels)
        for labels, value in () if status is None else self.rows(status):
            family.add_metric(labels, value)
        return family


def _region(
    name: str,
    text: str,
    value: Callable[[RegionStatusView], float | None],
    *,
    is_counter: bool = False,
) -> _Shown:
    def rows(status: JobStatus) -> Iterator[Row]:
        for each in status.regions:
            found = value(each)
            if found is not None:
                yield (each.region,), found

    return _Shown(name, text, ("region",), rows, is_counter)


def _time(
    name: str,
    text: str,
    rows: Callable[[TimeView], Iterable[Row]],
    labels: Sequence[str] = (),
) -> _Shown:
    return _Shown(
        name, text, labels, lambda status: () if status.time is None else rows(status.time)
    )


def _seconds(labels: Sequence[str], ms: int | None) -> list[Row]:
    return [] if ms is None else [(labels, ms / 1000)]


_PRESSURES = {each.value: float(number) for number, each in enumerate(Pressure)}
_KINDS = ("savepoint", "full", "stop")
_TRANSACTION = ("region", "sink")
_SHOWN = (
    _region(
        "sluice_region_suspended",
        "1: the region is suspended",
        lambda region: float(region.suspended is not None),
    ),
    _region(
        "sluice_region_snapshot_age_seconds",
        "Seconds since the decision of the last checkpoint that the region completed",
        lambda region: region.snapshot_age_s,
    ),
    _region(
        "sluice_region_attempts_ended",
        "Attempts of the region that have ended in this run",
        lambda region: region.ended,
        is_counter=True,
    ),
    _region(
        "sluice_region_pressure",
        "Pressure: 0 OK, 1 LOW, 2 HIGH",
        lambda region: None if region.pressure is None else _PRESSURES[region.pressure],
    ),
    _region(
        "sluice_region_pressure_alarm",
        "1: under high pressure for longer than pressure_alarm_s",
        lambda region: float(region.has_alarm),
    ),
    _Shown(
        "sluice_region_lag_records",
        "Records not read yet, as of the last barrier; of suspended regions as of now",
        ("region", "split"),
        lambda status: (
            ((region.region, split), records)
            for region in status.regions
            for split, records in region.lags.items()
        ),
    ),
    _region(
        "sluice_region_lost_records",
        "Unread records of suspended regions that retention deleted",
        lambda region: region.lost_records,
    ),
    _region(
        "sluice_region_late_rows",
        "Rows of this run that were later than the watermark",
        lambda region: region.late_rows,
        is_counter=True,
    ),
    _time(
        "sluice_watermark_seconds",
        "Watermark of the last barrier, in seconds since 1970",
        lambda time: _seconds((), time.watermark_ms),
    ),
    _time(
        "sluice_slowest_split_watermark_seconds",
        "Watermark of the split that holds back the job's, in seconds since 1970",
        lambda time: _seconds((time.slowest_region or "", time.slowest or ""), time.slowest_ms),
        ("region", "split"),
    ),
    _time(
        "sluice_splits_idle",
        "Splits that do not hold back the watermark (idle_after)",
        lambda time: [((), float(len(time.idle)))],
    ),
    _time(
        "sluice_splits_paused",
        "Splits that wait for slower ones (max_drift)",
        lambda time: [((), float(len(time.paused)))],
    ),
    _Shown(
        "sluice_checkpoint_pending_seconds",
        "Seconds since the barrier of the oldest uncommitted checkpoint; 0: none",
        (),
        lambda status: [((), max((each.age_s or 0.0 for each in status.pending), default=0.0))],
    ),
    _Shown(
        "sluice_waiting_for_resources",
        "1: the job waits for cores or executors",
        (),
        lambda status: [((), float(status.waiting_for_resources is not None))],
    ),
    _Shown(
        "sluice_waiting_for_resources_tasks",
        "While it waits: tasks that must run at once (needed), and that can (present)",
        ("tasks",),
        lambda status: (
            []
            if (found := status.waiting_for_resources) is None
            else [(("needed",), found.needed), (("present",), found.present)]
        ),
    ),
    _Shown(
        "sluice_leader_term",
        "Number of the leadership of a job with `ha`; each change of the leader raises it",
        (),
        lambda status: (
            []
            if status.election is None or (leader := status.election.leader) is None
            else [((), float(leader.term))]
        ),
    ),
    _Shown(
        "sluice_standbys",
        "Processes that wait to lead a job with `ha`",
        (),
        lambda status: (
            [] if status.election is None else [((), float(len(status.election.standbys)))]
        ),
    ),
    _Shown(
        "sluice_open_transaction_age_seconds",
        "Age of the oldest open transaction",
        _TRANSACTION,
        lambda status: (((t.region, t.sink), t.age_s) for t in status.transactions),
    ),
    _Shown(
        "sluice_open_transaction_timeout_seconds",
        "Age at which brokers abort that transaction",
        _TRANSACTION,
        lambda status: (((t.region, t.sink), t.timeout_s) for t in status.transactions),
    ),
    _Shown(
        "sluice_open_transaction_alarm",
        "Alarm that its age has reached: 0.5 or 0.8 of the timeout; 0: none",
        _TRANSACTION,
        lambda status: (((t.region, t.sink), alarm_of(t)) for t in status.transactions),
    ),
)

_RUNNING = ("running", "WAITING_FOR_RESOURCES")


class StatusMetrics(Collector):
    """A job at the moment of a scrape, also while no checkpoint is committed. Any thread.

    Args:
        history_failures: failed writes of the job's history so far.
    """

    def __init__(
        self, coordinator: BarrierCoordinator, *, history_failures: Callable[[], int] = lambda: 0
    ) -> None:
        self._coordinator = coordinator
        self._history_failures = history_failures

    def describe(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """The collector makes no request while it is registered."""
        yield from self._families(None)

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """The values of now; until the job has started, only that it has not."""
        started = self._coordinator.started
        yield from self._families(None if started is None else self._coordinator.status())

    def _families(
        self, status: JobStatus | None
    ) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        running = GaugeMetricFamily(
            "sluice_job_running", "1: the job runs; 0: it starts, or has ended", labels=()
        )
        running.add_metric((), float(status is not None and status.state in _RUNNING))
        yield running
        info = GaugeMetricFamily(
            "sluice_job_info", "Always 1", labels=("name", "job_uid", "version")
        )
        if status is not None and (started := self._coordinator.started) is not None:
            named = self._coordinator.plan.name, started.job_uid, version("sluice-spark")
            info.add_metric(named, 1.0)
        yield info
        for each in _SHOWN:
            yield each.family(status)
        failures = CounterMetricFamily(
            "sluice_history_write_failures", "Failed writes of the file _history", labels=()
        )
        failures.add_metric((), self._history_failures())
        yield failures
        yield from _of_requests(None if status is None else self._coordinator.requests)


def _of_requests(
    requests: RequestThread | None,
) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
    ended = CounterMetricFamily(
        "sluice_savepoints",
        "Savepoints, full checkpoints and stops that have ended: completed or failed",
        labels=("kind", "outcome"),
    )
    last = GaugeMetricFamily(
        "sluice_savepoint_last_seconds", "Seconds of the last one that has ended", labels=("kind",)
    )
    if requests is not None:
        for key in itertools.product(_KINDS, ("completed", "failed")):
            ended.add_metric(key, requests.ended.get(key, 0))
        for kind, seconds in list(requests.last_s.items()):
            last.add_metric((kind,), seconds)
    yield from (ended, last)


def job_registry(
    coordinator: BarrierCoordinator, *, history_failures: Callable[[], int] = lambda: 0
) -> CollectorRegistry:
    """The metrics of one job, from now on; all of its servers show this registry. See
    `StatusMetrics` for ``history_failures``."""
    registry = CollectorRegistry()
    coordinator.add_listener(CheckpointMetrics(registry))
    registry.register(StatusMetrics(coordinator, history_failures=history_failures))
    ProcessCollector(registry=registry)
    return registry
