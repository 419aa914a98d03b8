"""The messages between a region host and the leader of its job. The host sends them as payloads to
`HOSTS_KEY`. Frozen."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from sluice.runtime.continuous.barrier_service import open_work
from sluice.runtime.continuous.task_messages import EpochResult
from sluice.runtime.contracts import JobTopic, RegionRegistration, RegisteredAttempt
from sluice.runtime.model.splits import SplitKey
from sluice.runtime.model.state.batch_lineage import BatchLineage
from sluice.runtime.model.state.keyed_state import KeyedState

__all__ = ["HOSTS_KEY", "AttemptReport", "FixedEnd", "Hello", "HostAnswer", "Join", "RunTopic"]

HOSTS_KEY = "hosts"
"""Path under which the leader mounts its handler for region hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReport:
    """An attempt of a region, as its host knows it.

    Attributes:
        region, attempt_id: the attempt.
        is_running: its task runs, and waits for barriers.
        splits: that its task reads; None: not known, since a barrier may have changed them.
        keyed_state: see `RegionRegistration`.
        epochs: that it has pre-committed and that are not known to be committed on record, oldest
            first; their ``decide_by_s`` on the leader's clock.
        registered: transactions that it may have open.
    """

    region: str
    attempt_id: int
    is_running: bool
    splits: tuple[SplitKey, ...] | None = None
    keyed_state: KeyedState | None = None
    epochs: tuple[EpochResult, ...] = ()
    registered: tuple[RegisteredAttempt, ...] = ()

    @property
    def registration(self) -> RegionRegistration:
        """As a start of the coordinator takes it."""
        return RegionRegistration(
            region=self.region,
            attempt_id=self.attempt_id,
            acknowledged=self.epochs[-1].checkpoint_id if self.epochs else None,
            open=tuple(map(open_work, self.epochs)),
            may_resume=self.is_running,
            splits=self.splits,
            keyed_state=self.keyed_state,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A host is alive.

    Attributes:
        host_id: drawn at its start.
    """

    host_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Hello):
    """A host offers its process for the regions of the job, and reports the attempts in it.

    Attributes:
        address, token, ca: of its service; see `CoordinatorAddress`.
        digest: of the job that it describes.
        session: drawn for this join; messages of earlier leaders to the host's regions are refused.
        reports: of all its attempts.
    """

    address: str
    token: str = field(repr=False)
    ca: str = field(repr=False)
    digest: str
    session: str = ""
    reports: tuple[AttemptReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAnswer:
    """The leader's answer to both.

    Attributes:
        is_known: the host has joined this leader, and its heartbeat is in time.
        clock_s: the leader's clock for ages, `host_clock.age_clock`.
        job_uid: of the job; empty: the start is not over.
        lost_timeout_s: how long tasks run without an answer.
        last_committed: newest checkpoint that is committed on record.
        end: ``finished``, ``stopped`` or ``failed``; empty: the job runs.
        error: that ended it.
    """

    is_known: bool
    clock_s: float
    job_uid: str = ""
    lost_timeout_s: float = 0.0
    last_committed: int = 0
    end: str = ""
    error: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedEnd:
    """The end of a split of a bounded source, as the leader has fixed it."""

    split: SplitKey
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTopic:
    """A repartition topic, as the leader has prepared it for its run.

    Attributes:
        source_id: operator id of the source that reads it.
        partitions, max_parallelism: see `JobTopic`.
        lineage: JSON of `BatchLineage`.
    """

    source_id: str
    partitions: int
    max_parallelism: int
    lineage: str

    @classmethod
    def of(cls, source_id: str, topic: JobTopic) -> Self:
        """A topic of the leader's run."""
        return cls(
            source_id=source_id,
            partitions=topic.partitions,
            max_parallelism=topic.max_parallelism,
            lineage=json.dumps(topic.lineage.to_json()),
        )

    @property
    def topic(self) -> JobTopic:
        """As regions need it."""
        return JobTopic(
            partitions=self.partitions,
            max_parallelism=self.max_parallelism,
            lineage=BatchLineage.from_json(json.loads(self.lineage)),
        )
