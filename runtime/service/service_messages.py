"""Bodies of the coordinator's HTTP messages, version 1. Unknown fields are refused."""

from typing import Any

from pydantic import BaseModel, ConfigDict

__all__ = [
    "AttemptBody",
    "BarrierBody",
    "BatchQuery",
    "EpochBody",
    "NextBarrierBody",
    "QueryBody",
    "RestartBody",
    "WaitBody",
]


class _Envelope(BaseModel):
    """Fields of every message: the job of its sender, and the leader that it is meant for."""

    model_config = ConfigDict(extra="forbid")

    job_uid: str
    leader_session_id: str


class _RegionEnvelope(_Envelope):
    """A message of one attempt of one region; the checkpoint id is a hint."""

    region: str
    attempt_id: int
    checkpoint_id: int | None = None


class BarrierBody(_RegionEnvelope):
    """``POST /v1/barrier``."""

    wait_s: float


class AttemptBody(_RegionEnvelope):
    """``POST /v1/attempts``."""

    batch_id: int
    operator_id: str
    resource: str


class EpochBody(_Envelope):
    """``POST /v1/epochs``; ``epoch``: a `sluice.runtime.continuous.task_messages.EpochResult`."""

    epoch: dict[str, Any]


class NextBarrierBody(BarrierBody):
    """``POST /v1/epochs/next``; ``committed``: of `CommittedEpoch`."""

    has_read: bool
    committed: list[dict[str, Any]] = []


class BatchQuery(_RegionEnvelope):
    """``GET /v1/batches/decided``."""

    batch_id: int


class WaitBody(_RegionEnvelope):
    """``POST /v1/waits``: a task waits for something; without ``why``: the wait is over."""

    batch_id: int
    what: str
    why: str | None = None


class QueryBody(_Envelope):
    """``POST /v1/queries/{key}/{call}``."""

    payload: dict[str, Any]


class RestartBody(_Envelope):
    """``POST /v1/regions/restart``; without regions: all suspended ones."""

    regions: list[str] = []
    exclude_hosts: list[str] = []
