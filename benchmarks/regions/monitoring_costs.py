"""The cost of metrics and history: processor time of the driver as a share of one core, without
Spark and a broker.

It passes the listeners what the coordinator passes them for each checkpoint of 16 regions, and
scrapes a coordinator of 16 regions with open transactions.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import generate_latest

from benchmarks.measuring.figures import Figure
from sluice.runtime.coordinator.core.events import Progress
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.coordinator.region.status_views import (
    JobStatus,
    RegionStatusView,
    TransactionView,
)
from sluice.runtime.coordinator.shell.action_dispatcher import ProgressListener
from sluice.runtime.model.acknowledgement import RecordCounts, RegionTimes
from sluice.runtime.model.checkpoint_record import CheckpointKind
from sluice.runtime.service.metrics import job_registry

__all__ = ["measure"]

_REGIONS, _SPLITS_EACH = 16, 4
_EPOCHS_PER_S = 10.0
_SCRAPE_S = 15.0  # Prometheus' usual interval is a minute; the guide proposes 15 s
_CHECKPOINTS, _SCRAPES = 2_000, 50
_STATES = (State.ALIGNING, State.PRE_COMMITTED, State.DECIDED, State.COMMITTED, State.MARKED)
_NAMES = [f"orders-{number}" for number in range(_REGIONS)]
_TIMES = RegionTimes(read_s=0.03, function_s=0.02, write_s=0.01, flush_s=0.005, acknowledged_s=0.09)


def measure(*, repeat: int) -> list[Figure]:
    """Metrics at 100 ms epochs of 16 regions."""
    checkpoints, scrapes = [], []
    for _ in range(repeat):
        listeners: list[ProgressListener] = []
        registry = job_registry(_coordinator(listeners))
        checkpoints.append(_cpu_s(partial(_one, listeners), _CHECKPOINTS))
        scrapes.append(_cpu_s(partial(generate_latest, registry), _SCRAPES))
    shares = [
        100 * (_EPOCHS_PER_S * checkpoint_s + scrape_s / _SCRAPE_S)
        for checkpoint_s, scrape_s in zip(checkpoints, scrapes, strict=True)
    ]
    return [
        Figure(
            what=f"metrics of {_REGIONS} regions at 100 ms epochs, a scrape each 15 s",
            runs=shares,
            unit="% of a core",
            goal="<= 1",
            most=1.0,
            note="processor time of the driver",
        ),
        Figure(
            what="  of a checkpoint",
            runs=[1000 * each for each in checkpoints],
            unit="ms",
        ),
        Figure(what="  of a scrape", runs=[1000 * each for each in scrapes], unit="ms"),
    ]


def _one(listeners: list[ProgressListener]) -> None:
    """The changes of one checkpoint."""
    counts = {"clean": RecordCounts(read=1_000, counters={"rejected": 3})}
    progress = Progress(
        checkpoint_id=7,
        kind=CheckpointKind.CHECKPOINT,
        requested_by="timer",
        state=State.ALIGNING,
        regions=_REGIONS,
        records=16_000,
        acked_s=0.09,
        decided_s=0.1,
        committed_s=0.12,
        marked_s=0.13,
        counts=counts,
        pending_ratios=dict.fromkeys(_NAMES, 0.1),
        stages=dict.fromkeys(_NAMES, _TIMES),
    )
    for state in _STATES:
        change = replace(progress, state=state)
        for listener in listeners:
            listener.on_progress(change)


def _cpu_s(work: Callable[[], object], times: int) -> float:
    work()
    began_s = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began_s) / times


def _coordinator(listeners: list[ProgressListener]) -> Any:  # noqa: ANN401 - plays a coordinator
    """Has a status of 16 regions, and takes listeners."""
    regions = tuple(
        RegionStatusView(
            region=name,
            attempt_id=1,
            is_open=True,
            batch_id=7,
            splits={f"orders-{number}": 1_000 for number in range(_SPLITS_EACH)},
            begins_ms=None,
            ended=0,
            attempts=(),
            pending_ratio=0.1,
            pressure="ok",
            rate_limit=None,
            dropped=0,
            late_rows=0,
            snapshot_age_s=0.1,
            lags={f"{name}-{number}": 40 for number in range(_SPLITS_EACH)},
            lag_records=160,
        )
        for name in _NAMES
    )
    status = JobStatus(
        state="running",
        drop_limit=None,
        error="",
        last_decided=7,
        last_committed=7,
        pending=(),
        regions=regions,
        transactions=tuple(
            TransactionView(region=name, sink="out", age_s=0.1, timeout_s=900.0) for name in _NAMES
        ),
    )
    return cast(
        Any,
        SimpleNamespace(
            add_listener=listeners.append,
            started=SimpleNamespace(job_uid="a-job"),
            plan=SimpleNamespace(name="orders"),
            requests=SimpleNamespace(ended={}, last_s={}),
            status=lambda: status,
        ),
    )
