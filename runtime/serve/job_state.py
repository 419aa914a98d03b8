"""The state of a job that may run, hang, or have died. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sluice.runtime.errors import AuthenticationError, StreamError
from sluice.runtime.job_registry.registration import RENEWED_EVERY_S, Registration

__all__ = ["LOST", "UNREACHABLE", "is_stale", "summary_for"]

LOST = "lost"
UNREACHABLE = "unreachable"
_STALE_S = 3 * RENEWED_EVERY_S


def is_stale(registration: Registration, *, now_ms: int, unchanged_s: float | None) -> bool:
    """Whether the run has not renewed its registration for long.

    Args:
        unchanged_s: since this service saw it change; None: it has not seen it change. Clocks of
            two hosts may differ, and a change that the service saw counts by its own clock.
    """
    if unchanged_s is not None:
        return unchanged_s > _STALE_S
    return now_ms - registration.renewed_ms > 1000 * _STALE_S


def summary_for(
    registration: Registration,
    *,
    answer: Mapping[str, Any] | None,
    error: StreamError | None,
    is_stale: bool,
) -> dict[str, Any]:
    """A job in the list of jobs.

    Args:
        answer: the job's own last summary.
        error: why its last answer is missing; None: it answered, or was not asked.
        is_stale: see `is_stale`.
    """
    known = answer or {}
    found = {
        "job_uid": registration.job_uid,
        "name": registration.name,
        "state": registration.state,
        "started_ms": registration.started_ms,
        "ended_ms": registration.ended_ms,
        "checkpoint_uri": registration.checkpoint_uri,
        "last_committed": known.get("last_committed"),
        "lag_records": known.get("lag_records"),
        "records_per_s": known.get("records_per_s"),
        "regions": known.get("regions", 0),
        "suspended": known.get("suspended", 0),
        "pressure": known.get("pressure"),
        "host": registration.host,
        "error": registration.error or known.get("error", ""),
        "submission_id": registration.submission_id,
    }
    if registration.ended_ms is not None:
        return found
    if error is None:
        return found | {"state": known.get("state", registration.state)}
    if is_stale:
        since = datetime.fromtimestamp(registration.renewed_ms / 1000, tz=UTC)
        return found | {
            "state": LOST,
            "ended_ms": registration.renewed_ms,
            "error": f"no sign of life since {since:%Y-%m-%d %H:%M:%SZ}",
        }
    if isinstance(error, AuthenticationError):  # it runs, and this service may not ask it
        return found | {"error": str(error)}
    return found | {"state": UNREACHABLE, "error": str(error)}
