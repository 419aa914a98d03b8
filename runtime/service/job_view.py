"""Jobs as JSON for the page and for programs: a summary, and all details. Pure.

`JobFacts` has what is known of a run. `LiveJob` collects it in the job's process;
`facts_of_record` makes it of a past run from its newest record.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sluice.runtime.coordinator.region.region_pace import Pressure
from sluice.runtime.coordinator.region.status_views import JobStatus
from sluice.runtime.errors import ConfigError
from sluice.runtime.functions.record_counts import counter_totals, record_totals
from sluice.runtime.graph.graph_view import GraphView, view_of_operators
from sluice.runtime.model.checkpoint_record import CheckpointRecord, OperatorNode

__all__ = [
    "HISTORY_PARTS",
    "JobFacts",
    "details_of",
    "facts_of_record",
    "history_of",
    "list_of",
    "summary_of",
]

HISTORY_PARTS = ("checkpoints", "attempts", "savepoints", "runs", "samples")
"""Lists of a history, each oldest first."""

_PRESSURES = [each.value for each in Pressure]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What is known of one run of a job.

    Attributes:
        job_uid, name, checkpoint_uri, host: of the job; ``host`` runs the driver, "" if not known.
        state: as `JobStatus`, or ``starting``, or ``lost``: it does not answer.
        started_ms, ended_ms: wall clock of this run; None: not known, or not yet.
        last_committed: checkpoint id; None: none yet.
        error: that ended it, or "".
        records_per_s: committed in the last seconds; None: not known.
        status: of a running job, with its open transactions and counters; None for a past one.
        graph: its operators.
        settings: with every secret redacted.
        savepoints: of this run, as JSON.
        counters, function_records: of a past job, as in `JobStatus`.
        waiting_for_resources: ``needed``, ``present``, ``since_ms``; None: it has them.
    """

    job_uid: str
    name: str
    state: str
    checkpoint_uri: str
    started_ms: int | None = None
    ended_ms: int | None = None
    last_committed: int | None = None
    host: str = ""
    error: str = ""
    records_per_s: float | None = None
    status: JobStatus | None = None
    graph: tuple[OperatorNode, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    savepoints: Sequence[Mapping[str, Any]] = ()
    counters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    function_records: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    waiting_for_resources: Mapping[str, Any] | None = None


def list_of(
    summaries: Iterable[Mapping[str, Any]],
    *,
    service: str,
    can_command: bool,
    now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
) -> dict[str, Any]:
    """The answer to ``GET /v1/jobs``."""
    return {
        "service": service,
        "can_command": can_command,
        "now_ms": now_ms(),
        "jobs": list(summaries),
    }


def summary_of(facts: JobFacts) -> dict[str, Any]:
    """A job in the list of jobs."""
    regions = () if facts.status is None else facts.status.regions
    lags = [each.lag_records for each in regions if each.lag_records is not None]
    pressures = [each.pressure for each in regions if each.pressure is not None]
    return {
        "job_uid": facts.job_uid,
        "name": facts.name,
        "state": facts.state,
        "started_ms": facts.started_ms,
        "ended_ms": facts.ended_ms,
        "checkpoint_uri": facts.checkpoint_uri,
        "last_committed": facts.last_committed,
        "lag_records": sum(lags) if lags else None,
        "records_per_s": facts.records_per_s,
        "regions": len(regions) or len(_view(facts.graph).regions),
        "suspended": sum(each.suspended is not None for each in regions),
        "pressure": max(pressures, key=_PRESSURES.index).upper() if pressures else None,
        "host": facts.host,
        "error": facts.error,
    }


def details_of(facts: JobFacts) -> dict[str, Any]:
    """The answer to ``GET /v1/jobs/{job_uid}``."""
    status = facts.status
    return {
        **summary_of(facts),
        "status": None if status is None else asdict(status),
        "graph": _graph_of(facts.graph),
        "settings": dict(facts.settings),
        "transactions": [] if status is None else [asdict(each) for each in status.transactions],
        "savepoints": [dict(each) for each in facts.savepoints],
        "counters": _copied(facts.counters if status is None else status.counters),
        "function_records": _copied(
            facts.function_records if status is None else status.function_records
        ),
        "waiting_for_resources": facts.waiting_for_resources,
    }


def history_of(
    history: Mapping[str, Sequence[Any]], *, checkpoints: int | None = None
) -> dict[str, Any]:
    """The answer to ``GET /v1/jobs/{job_uid}/history``; ``checkpoints``: the newest so many."""
    parts = {part: list(history.get(part, ())) for part in HISTORY_PARTS}
    if checkpoints is not None:
        parts["checkpoints"] = parts["checkpoints"][-checkpoints:]
    return parts


def facts_of_record(
    record: CheckpointRecord,
    *,
    checkpoint_uri: str,
    state: str,
    started_ms: int | None = None,
    ended_ms: int | None = None,
    last_committed: int | None = None,
    host: str = "",
    error: str = "",
) -> JobFacts:
    """Facts of a run that has ended or does not answer, from its newest decided record."""
    states = [entry for region in record.regions for entry in region.operator_states]
    names = {node.operator_id: node.name for node in record.graph}
    return JobFacts(
        job_uid=record.job_uid,
        name=record.job_name,
        state=state,
        checkpoint_uri=checkpoint_uri,
        started_ms=started_ms,
        ended_ms=ended_ms,
        last_committed=record.checkpoint_id if last_committed is None else last_committed,
        host=host,
        error=error,
        graph=record.graph,
        settings=record.settings,
        counters={names.get(i, i): found for i, found in counter_totals(states).items()},
        function_records={names.get(i, i): n for i, n in record_totals(states).items()},
    )


def _copied(totals: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    return {operator: dict(found) for operator, found in totals.items()}


def _graph_of(nodes: Sequence[OperatorNode]) -> dict[str, Any]:
    view = _view(nodes)
    return {
        "operators": [
            {
                "id": node.operator_id,
                "name": node.name,
                "kind": node.kind,
                "uid": node.uid,
                "upstream": list(node.upstream),
                "parallelism": node.parallelism or None,
            }
            for node in nodes
        ],
        "edges": [
            {
                "upstream": edge.upstream,
                "downstream": edge.downstream,
                "distribution": edge.distribution.value,
            }
            for edge in view.graph.edges
        ],
        "regions": [
            {
                "region": region.name,
                "operators": list(dict.fromkeys(each.vertex_id for each in region.subtasks)),
            }
            for region in view.regions
        ],
    }


def _view(nodes: Sequence[OperatorNode]) -> GraphView:
    """The graph's regions; none if records of an older version do not give them."""
    try:
        return view_of_operators(nodes)
    except (ConfigError, KeyError):
        return view_of_operators(())
