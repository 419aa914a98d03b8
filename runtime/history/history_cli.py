"""Prints a history for people."""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sluice.runtime.cli_output import print_table
from sluice.runtime.history.history_file import History

__all__ = ["print_history"]

_STAGES = ("read", "function", "write", "flush")
_MOMENTS = ("acked", "decided", "committed", "marked")


def print_history(found: History) -> None:
    """One table for each part that has entries, oldest first."""
    for title, columns, rows in (
        ("Runs", ("run", "began", "ended", "state", "error"), map(_run, found["runs"])),
        (
            "Savepoints and full checkpoints",
            ("checkpoint", "noted", "kind", "state", "bytes", "uri"),
            map(_savepoint, found["savepoints"]),
        ),
        (
            "Ended attempts",
            ("region", "attempt", "began", "ended", "host", "cause"),
            map(_attempt, found["attempts"]),
        ),
        (
            "Checkpoints (seconds; stages of the slowest region, then since the barrier)",
            ("id", "barrier", "kind", "by", "records", *_STAGES, *_MOMENTS, "notes"),
            map(_checkpoint, found["checkpoints"]),
        ),
    ):
        _print(title, columns, list(rows))


def _print(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    if rows:
        print_table(columns, rows, title=title)


def _run(run: Mapping[str, Any]) -> list[object]:
    times = (_moment(run.get(name)) for name in ("started_ms", "ended_ms"))
    return [run.get("attempt_id"), *times, run.get("state"), run.get("error", "")]


def _savepoint(savepoint: Mapping[str, Any]) -> list[object]:
    state = savepoint.get("state")
    return [
        savepoint.get("checkpoint_id"),
        _moment(savepoint.get("ms")),
        savepoint.get("kind"),
        f"{state}: {savepoint['error']}" if savepoint.get("error") else state,
        savepoint.get("bytes"),
        savepoint.get("uri"),
    ]


def _attempt(attempt: Mapping[str, Any]) -> list[object]:
    return [
        attempt.get("region"),
        attempt.get("attempt_id"),
        *(_moment(attempt.get(name)) for name in ("began_ms", "ended_ms")),
        attempt.get("host") or None,
        attempt.get("why"),
    ]


def _checkpoint(checkpoint: Mapping[str, Any]) -> list[object]:
    slowest = _slowest(checkpoint["regions"].values())
    return [
        checkpoint["checkpoint_id"],
        _moment(checkpoint.get("ms")),
        checkpoint.get("kind"),
        checkpoint.get("requested_by"),
        checkpoint.get("records"),
        *(_seconds(slowest.get(f"{stage}_s")) for stage in _STAGES),
        *(_seconds(checkpoint.get(f"{moment}_s")) for moment in _MOMENTS),
        "; ".join(_notes(checkpoint)),
    ]


def _slowest(regions: Iterable[Mapping[str, float | None]]) -> Mapping[str, float | None]:
    return max(regions, key=lambda found: found.get("acknowledged_s") or 0.0, default={})


def _notes(checkpoint: Mapping[str, Any]) -> Iterable[str]:
    if checkpoint["verdict"] == "aborted":
        yield f"aborted: {checkpoint['reason']}"
    for region, why in checkpoint["skipped"].items():
        yield f"skipped {region}: {why}"


def _moment(ms: object) -> str | None:
    if not isinstance(ms, int):
        return None
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _seconds(value: object) -> str | None:
    return f"{value:.3f}" if isinstance(value, int | float) else None
