"""One committer for many regions: what it is told of a checkpoint that not every region completed.

A committer stands between the regions that write to its sink, *up stream* of it, and what follows
its publications, *down stream*. It belongs to no region and joins none: it is told of each
decision, and of who completed it.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from sluice.runtime.contracts.committing import CommitReport
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.model import RegionStatus, StateEntry

__all__ = [
    "CommitListener",
    "FailedScope",
    "FailedTask",
    "FailureReason",
    "RegionCheckpointFailedDetail",
    "RegionProgress",
    "RegionWork",
    "SharedCommitter",
]

RegionWork = Mapping[str, Sequence[StateEntry]]
"""What regions pre-committed: committables by region, in the order in which they shall be seen."""


class FailureReason(enum.Enum):
    """Why a task did not complete a checkpoint."""

    ERROR = "error"  # it failed: what it pre-committed is aborted, its range is read again
    EXPIRED = "expired"  # it was late: it lives, and its batch may join the next checkpoint
    SUSPENDED = "suspended"  # it failed for good, and is carried until somebody restarts it


class FailedScope(enum.Enum):
    """On which side of the committer tasks failed.

    It tells people, and followers, where to look. What is published and what is held follows from
    the regions of the failed tasks alone, and is the same in every scope.
    """

    UP_STREAM = "up-stream"  # regions that write to the sink: they left work undone
    DOWN_STREAM = "down-stream"  # what reads or follows the sink's publications; no writer of it
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTask:
    """A task that did not complete a checkpoint.

    Attributes:
        subtask_id: of the task inside its region (Spark's partition); 0 where the region failed or
            expired as a whole.
        task_name: name of the task's region: what restarts together fails together.
        reason: see `FailureReason`.
        message: for people.
    """

    subtask_id: int
    task_name: str
    reason: FailureReason
    message: str = ""

    def __post_init__(self) -> None:
        if self.subtask_id < 0 or not self.task_name:
            raise ConfigError(
                "a failed task is out of range",
                {"subtask_id": self.subtask_id, "task_name": self.task_name},
                "Give a subtask id >= 0 and the name of the task's region.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionCheckpointFailedDetail:
    """Who did not complete a checkpoint that was decided for the others.

    Attributes:
        checkpoint_id: of the decision; >= 1, for checkpoint 0 holds no work.
        scope: see `FailedScope`.
        failed_tasks: at least one, each once.
    """

    checkpoint_id: int
    scope: FailedScope
    failed_tasks: tuple[FailedTask, ...]

    def __post_init__(self) -> None:
        tasks = [(task.task_name, task.subtask_id) for task in self.failed_tasks]
        if self.checkpoint_id < 1 or not tasks or len(set(tasks)) != len(tasks):
            raise ConfigError(
                "the detail of a regional checkpoint is not valid",
                {"checkpoint_id": self.checkpoint_id, "failed_tasks": tasks},
                "Name a checkpoint id >= 1 and each failed task once; with none it is complete.",
            )

    @property
    def failed_regions(self) -> frozenset[str]:
        """Regions whose work is held."""
        return frozenset(task.task_name for task in self.failed_tasks)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionProgress:
    """How far a region that writes to a sink has come, as a decided record says.

    Attributes:
        region: its name.
        status: completed in this checkpoint, or carried: then all the rest is that of the older
            checkpoint it is carried from, and newer work of it is still to come.
        has_splits: False: it reads nothing now, so nobody waits for it.
        least_watermark_ms: minimum over its live splits, if watermarks are defined.
        operator_states: of this sink's operator in the region's record.
        committables: of this sink that the checkpoint published; none when carried.
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
    """What a sink's `Committer` may implement besides: it learns how far the regions are.

    A partition, for one, is marked only when every region that writes to it has passed it.
    """

    def regions_published(
        self, checkpoint_id: int, regions: Sequence[RegionProgress], *, timeout_s: float
    ) -> CommitReport:
        """Everything of the checkpoint, and of every older one, is published; before its mark.

        Told once for each decided checkpoint, oldest first, also for one without work of this sink;
        again until the answer is COMMITTED, and again after a crash that came before the mark: so
        it must be idempotent. ``regions`` are all that write to the sink. The same thread as
        `Committer.commit`; an unreachable remote is PENDING. Until it is done the checkpoint is
        not committed on record.
        """
        ...


class SharedCommitter(Protocol):
    """Publishes the work of many regions. Driver; one instance, called by one thread at a time.

    It is told what each region pre-committed, then of each decision, oldest first:

    - of *completed* regions everything pre-committed for this checkpoint and older ones is
      published, oldest first and each region in its order (`continuous-order`): while anything
      older of a region is not certainly published, nothing newer of it is. Other regions do not
      wait for it;
    - of *failed* regions everything that no earlier decision published is **held**: neither
      published nor aborted, until the region's next completed checkpoint publishes it, or `abort`
      ends it. The scope makes no difference. A failed region without work holds nothing back.

    A repeated notification does nothing twice. Nothing that a recovery needs is kept here: decided
    work is named by ``_metadata`` and told again; held work is not decided, so a crash ends it with
    its region, and the sweep finds it.
    """

    def pre_committed(self, checkpoint_id: int, work: RegionWork) -> None:
        """What regions pre-committed for a checkpoint; at the latest with its decision.

        Told again for a region and checkpoint it replaces what was told for them (a repair); what
        was held from an older checkpoint and is named here has joined this one.
        """
        ...

    def notify_checkpoint_complete(
        self, checkpoint_id: int, *, timeout_s: float, after_crash: bool
    ) -> Mapping[StateEntry, CommitReport]:
        """Every region completed: publish all of this and older checkpoints.

        Returns a report for each decided committable of them that is not forgotten (see
        `Committer.commit` for outcomes and ``after_crash``). What is not COMMITTED is tried again
        by the next notification. The repetition of an older one only does that.

        Raises:
            IllegalTransitionError: the checkpoint was notified before with other failed regions.
        """
        ...

    def notify_regional_checkpoint_complete(
        self, detail: RegionCheckpointFailedDetail, *, timeout_s: float, after_crash: bool
    ) -> Mapping[StateEntry, CommitReport]:
        """Some regions completed: publish theirs, hold what the failed ones left.

        Reports as `notify_checkpoint_complete`, for what is decided; held work has none.
        """
        ...

    def abort(
        self, committables: Sequence[StateEntry], *, timeout_s: float
    ) -> Mapping[StateEntry, CommitReport]:
        """A region's checkpoint was thrown away: discard its work, and what the region did later.

        It is forgotten whatever the remote answers; the sweep finds what was not reached.

        Raises:
            IllegalTransitionError: a decision names some of it; nothing was aborted.
        """
        ...

    def pending(self, region: str, *, through: int) -> tuple[StateEntry, ...]:
        """What a region pre-committed for checkpoints up to ``through`` and no decision names yet,
        in order."""
        ...

    def regions_published(
        self, checkpoint_id: int, regions: Sequence[RegionProgress], *, timeout_s: float
    ) -> CommitReport:
        """See `CommitListener.regions_published`; COMMITTED at once where the sink has none.

        With that the checkpoint is finished, and what is published of it may be forgotten.
        """
        ...
