"""The messages of tasks and people to the coordinator, version 1. The client writes them, and the
service reads them; it refuses unknown fields."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice.runtime.continuous.task_messages import CommittedEpoch, EpochResult
from sluice.runtime.contracts import RegisteredAttempt
from sluice.runtime.model.splits import BatchKey

__all__ = [
    "AttemptMessage",
    "BarrierMessage",
    "BatchMessage",
    "EpochMessage",
    "Message",
    "NextBarrierMessage",
    "QueryMessage",
    "RegionMessage",
    "RestartMessage",
    "SavepointMessage",
    "StopMessage",
    "TokenMessage",
    "WaitMessage",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Fields of every message: the job of its sender, and the leader that it is meant for."""

    job_uid: str
    leader_session_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionMessage(Message):
    """``POST /v1/task-inputs``."""

    region: str
    attempt_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierMessage(RegionMessage):
    """``POST /v1/barrier``."""

    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NextBarrierMessage(BarrierMessage):
    """``POST /v1/epochs/next``."""

    has_read: bool
    committed: tuple[CommittedEpoch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochMessage(Message):
    """``POST /v1/epochs``."""

    epoch: EpochResult


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptMessage(Message):
    """``POST /v1/attempts``."""

    attempt: RegisteredAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMessage(Message):
    """``POST /v1/batches/decided``."""

    batch: BatchKey


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitMessage(BatchMessage):
    """``POST /v1/waits``: a task waits for something; without ``why``: the wait is over."""

    what: str
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessage(Message):
    """``POST /v1/queries/{key}/{call}``."""

    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartMessage(Message):
    """``POST /v1/regions/restart``; without regions: all suspended ones."""

    regions: tuple[str, ...] = ()
    exclude_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointMessage(Message):
    """``POST /v1/savepoints``; without ``to``: below the checkpoint directory."""

    kind: str = "savepoint"
    to: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopMessage(Message):
    """``POST /v1/stop``; without ``timeout_s``: the job's own limit for a checkpoint."""

    drain: bool = False
    savepoint: bool = False
    to: str | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMessage(Message):
    """``POST /v1/tokens``: the newest delegation token of that name."""

    name: str
