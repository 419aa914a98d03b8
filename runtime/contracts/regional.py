"""One committer for many regions, and its calls for a checkpoint that some regions did not
complete.

A committer stands between the regions that write to its sink, *up stream* of it, and what follows
its publications, *down stream*. It belongs to no region and joins none: it receives each decision,
and which regions completed it.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from sluice.runtime.contracts.committing import CommitReport
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.checkpoint_record import RegionStatus, StateEntry

__all__ = [
    "CommitListener",
    "FailedScope",
    "FailedTask",
    "FailureReason",
    "RegionCheckpointFailedDetail",
    "RegionProgress",
    "RegionWork",
]

RegionWork = Mapping[str, Sequence[StateEntry]]
"""Pre-committed work of regions: committables by region, in the order of their visibility."""


class FailureReason(enum.Enum):
    """Why a task did not complete a checkpoint."""

    ERROR = "error"  # It failed: its pre-committed work is aborted, its range is read again.
    EXPIRED = "expired"  # It timed out: its batch may join the next checkpoint.
    SUSPENDED = (
        "suspended"  # It failed for good; checkpoints skip it until an operator restarts it.
    )


class FailedScope(enum.Enum):
    """On which side of the committer tasks failed.

    It shows people and listeners where to look. Published and pending work follow from the regions
    of the failed tasks alone, the same in every scope.
    """

    UP_STREAM = "up-stream"  # Regions that write to the sink: their work is incomplete.
    DOWN_STREAM = "down-stream"  # Readers of the sink's publications; they write nothing to it.
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTask:
    """A task that did not complete a checkpoint.

    Attributes:
        subtask_id: of the task inside its region (Spark's partition); 0 if the region failed or
            expired as a whole.
        task_name: Spark's name of the task; if the region failed or expired as a whole, the
            region's; of a reader, the name of the sink that it follows.
        region: the task's region, which restarts as a whole; None: a reader of the sink's
            publications.
        reason: see `FailureReason`.
        message: for people.
    """

    subtask_id: int
    task_name: str
    region: str | None
    reason: FailureReason
    message: str = ""

    def __post_init__(self) -> None:
        if self.subtask_id < 0 or not self.task_name:
            raise ConfigError(
                "a failed task is out of range",
                {"subtask_id": self.subtask_id, "task_name": self.task_name},
                "Use a subtask id >= 0 and the name of the task.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionCheckpointFailedDetail:
    """The tasks that did not complete a checkpoint that was decided for the other regions.

    Attributes:
        checkpoint_id: of the decision; >= 1, for checkpoint 0 holds no work.
        scope: see `FailedScope`.
        failed_tasks: at least one, each once.
    """

    checkpoint_id: int
    scope: FailedScope
    failed_tasks: tuple[FailedTask, ...]

    def __post_init__(self) -> None:
        tasks = [(task.region, task.task_name, task.subtask_id) for task in self.failed_tasks]
        if self.checkpoint_id < 1 or not tasks or len(set(tasks)) != len(tasks):
            raise ConfigError(
                "the detail of a regional checkpoint is not valid",
                {"checkpoint_id": self.checkpoint_id, "failed_tasks": tasks},
                "Name a checkpoint id >= 1 and each failed task once; a complete checkpoint has "
                "no failed task.",
            )

    @property
    def failed_regions(self) -> frozenset[str]:
        """Regions whose work is pending."""
        return frozenset(task.region for task in self.failed_tasks if task.region is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionProgress:
    """Progress of a region that writes to a sink, from a decided record.

    Attributes:
        region: its name.
        status: completed or skipped in this checkpoint. If skipped, the other fields come from the
            older checkpoint of its snapshot, and newer work is still to come.
        has_splits: False: it reads no split now, so no partition waits for it.
        least_watermark_ms: minimum over its live splits, if watermarks are defined.
        operator_states: of this sink's operator in the region's record.
        committables: of this sink that the checkpoint published; none if skipped.
    """

    region: str
    status: RegionStatus
    has_splits: bool = True
    least_watermark_ms: int | None = None
    operator_states: tuple[StateEntry, ...] = ()
    committables: tuple[StateEntry, ...] = ()

    @property
    def is_completed(self) -> bool:
        """Whether everything the region wrote before the barrier is published."""
        return self.status is RegionStatus.COMPLETED


@runtime_checkable
class CommitListener(Protocol):
    """A second interface of a sink's `Committer`: it learns the progress of the regions.

    For example, it marks a partition only after every region that writes to it has passed it.
    """

    def regions_published(
        self, checkpoint_id: int, regions: Sequence[RegionProgress], *, timeout_s: float
    ) -> CommitReport:
        """Called when everything of this and every older checkpoint is published, before the mark.

        Called for each decided checkpoint, oldest first, even without work of this sink. Repeated
        until the answer is COMMITTED, and after a crash before the mark, so it must be idempotent.
        ``regions`` are all that write to the sink. The same thread as `Committer.commit`; an
        unreachable remote is PENDING. Until it is COMMITTED the checkpoint is not committed on
        record.
        """
        ...
