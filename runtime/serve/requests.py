"""Bodies of the service's requests. The command line writes them, and the service reads them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "DrainRequest",
    "RestartRequest",
    "SavepointRequest",
    "StopRequest",
    "SubmitRequest",
]


def _told(description: str) -> Mapping[str, str]:
    return {"description": description}


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRequest:
    """``POST /v1/submissions``."""

    entry_point: str = field(metadata=_told("Python file, relative to the submit directory"))
    args: tuple[str, ...] = field(default=(), metadata=_told("arguments of the program"))
    options: Mapping[str, str] = field(
        default_factory=dict, metadata=_told("options of spark-submit, without hyphens")
    )
    conf: Mapping[str, str] = field(default_factory=dict, metadata=_told("Spark settings"))
    env: Mapping[str, str] = field(default_factory=dict, metadata=_told("environment variables"))
    submission_id: str | None = field(
        default=None,
        metadata=_told("chosen by the client: a repeated request with it starts nothing"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """``POST /v1/jobs/{job_uid}/stop``."""

    drain: bool = field(
        default=False, metadata=_told("first read to the end offsets of the moment")
    )
    savepoint: bool = field(default=False, metadata=_told("take a savepoint at the end"))
    to: str | None = field(default=None, metadata=_told("parent directory of the savepoint"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointRequest:
    """``POST /v1/jobs/{job_uid}/savepoints``."""

    kind: str = field(default="savepoint", metadata=_told("savepoint, or full: a full checkpoint"))
    to: str | None = field(default=None, metadata=_told("parent directory of the savepoint"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRequest:
    """``POST /v1/jobs/{job_uid}/restart``."""

    regions: tuple[str, ...] = field(
        default=(), metadata=_told("names; empty: all suspended regions")
    )
    exclude_hosts: tuple[str, ...] = field(
        default=(), metadata=_told("end Spark's executors there, and start none there")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequest:
    """``POST /v1/hosts/{host}/drain``."""

    timeout_s: float = field(
        default=600.0, metadata=_told("for each step of a job: full checkpoint, restart")
    )
