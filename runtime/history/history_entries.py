"""The entries of a history: made of progress and status, and expanded for readers. Pure.

In the file, the times of a region are a list of integers, in units of 0.1 ms, because a checkpoint
may have many regions.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sluice.runtime.coordinator.core.events import Progress
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.coordinator.region.status_views import AttemptView, JobStatus
from sluice.runtime.model.acknowledgement import RegionTimes

__all__ = ["attempts_of", "checkpoint_entry", "expanded", "merged", "sample_of"]

_STAGES = ("read_s", "function_s", "write_s", "flush_s", "acknowledged_s")
_TASK = ("region", "subtask_id", "task_name", "reason", "message")
_DIGITS = 4
_UNITS = 10**_DIGITS


def checkpoint_entry(progress: Progress, *, began_ms: int) -> dict[str, Any]:
    """A checkpoint that is marked or aborted.

    Args:
        began_ms: wall clock of its barrier.
    """
    entry: dict[str, Any] = {
        "checkpoint_id": progress.checkpoint_id,
        "ms": began_ms,
        "kind": progress.kind.value,
        "requested_by": progress.requested_by,
        "state": progress.state.value,
        "records": progress.records,
        "acked_s": _rounded(progress.acked_s),
        "decided_s": _rounded(progress.decided_s),
        "committed_s": _rounded(progress.committed_s),
        "marked_s": _rounded(progress.marked_s),
        "regions": {name: _times(found) for name, found in progress.stages.items()},
    }
    if progress.reason:
        entry["reason"] = progress.reason.partition("\n")[0]
    if progress.failed_tasks:
        entry["failures"] = [
            [task.region, task.subtask_id, task.task_name, task.reason.value, task.message]
            for task in progress.failed_tasks
        ]
    return entry


def _times(found: RegionTimes) -> list[int | None]:
    seconds = (getattr(found, name) for name in _STAGES)
    return [None if each is None else round(each * _UNITS) for each in seconds]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, _DIGITS)


def expanded(
    entries: Iterable[Any], sizes: Mapping[Any, int | None] | None = None
) -> list[dict[str, Any]]:
    """Checkpoints as readers get them; entries of another form are left out.

    Args:
        sizes: bytes of savepoints and full checkpoints, by checkpoint id.
    """
    found = []
    for entry in entries:
        try:
            found.append(_expanded(entry, sizes or {}))
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
    return found


def _expanded(entry: Any, sizes: Mapping[Any, int | None]) -> dict[str, Any]:  # noqa: ANN401 - JSON
    failures = [dict(zip(_TASK, task, strict=True)) for task in entry.get("failures", ())]
    is_aborted = entry["state"] == State.ABORTED.value
    return {
        "reason": "",
        **entry,
        "verdict": "aborted" if is_aborted else "decided",
        "bytes": sizes.get(entry["checkpoint_id"]),
        "regions": {
            name: {
                stage: None if units is None else units / _UNITS
                for stage, units in zip(_STAGES, times, strict=True)
            }
            for name, times in entry["regions"].items()
        },
        "skipped": {task["region"]: f"{task['reason']}: {task['message']}" for task in failures},
        "failures": failures,
    }


def attempts_of(
    status: JobStatus, known: Mapping[str, int], *, began_ms: int
) -> list[dict[str, Any]]:
    """The attempts that have ended and are not known yet, oldest first.

    Args:
        known: newest known attempt of each region.
        began_ms: of the run, with which first attempts begin.
    """
    found = [
        _attempt(region.region, attempt, began_ms)
        for region in status.regions
        for attempt in region.attempts
        if attempt.attempt_id > known.get(region.region, -1)
    ]
    return sorted(found, key=lambda each: int(each["ended_ms"]))


def _attempt(region: str, attempt: AttemptView, began_ms: int) -> dict[str, Any]:
    return {
        "region": region,
        "attempt_id": attempt.attempt_id,
        "began_ms": began_ms if attempt.began_ms is None else attempt.began_ms,
        "ended_ms": attempt.ended_ms,
        "why": attempt.why,
        "host": attempt.host,
    }


def sample_of(status: JobStatus, *, ms: int, records_per_s: float) -> list[Any]:
    """Throughput and lag at a moment; the lag is None if no region's is known."""
    lags = [each.lag_records for each in status.regions if each.lag_records is not None]
    return [ms, round(records_per_s, 1), sum(lags) if lags else None]


def merged(entries: Sequence[Any], *, key: str) -> list[dict[str, Any]]:
    """Entries that were noted several times, once each, as they were noted last."""
    found: dict[Any, dict[str, Any]] = {}
    for entry in entries:
        if isinstance(entry, dict):
            found[entry.get(key)] = {**found.get(entry.get(key), {}), **entry}
    return list(found.values())
