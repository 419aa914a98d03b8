"""The coordinator as the engines use it, and a region as the coordinator reaches it."""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

from sluice.runtime.contracts.writing import AttemptRegistry
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.checkpoint_record import CheckpointKind, RegionRecord, StateEntry
from sluice.runtime.model.splits import Barrier, BatchKey, SplitKey, SplitRange
from sluice.runtime.model.state.keyed_state import KeyedState

__all__ = [
    "AttemptState",
    "AttemptStatus",
    "Coordinator",
    "OpenWork",
    "Placement",
    "RegionAttempt",
    "RegionHandle",
    "RegionRegistration",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionAttempt:
    """An attempt of a region that the coordinator starts.

    Attributes:
        attempt_id: of this attempt; larger than every earlier one of the region, in any run.
        restored: the attempt resumes at the ends of these splits.
        after: newest committed checkpoint; >= 0.
    """

    attempt_id: int
    restored: RegionRecord
    after: int

    def __post_init__(self) -> None:
        if self.attempt_id < 0 or self.after < 0:
            raise ConfigError(
                "an attempt of a region is out of range",
                {"region": self.region, "attempt_id": self.attempt_id, "after": self.after},
                "Use an attempt id and a checkpoint id of 0 or more.",
            )

    @property
    def region(self) -> str:
        """Name of the region."""
        return self.restored.region


class AttemptState(enum.Enum):
    """State of the newest attempt of a region."""

    NONE = "none"  # no attempt started here, or the host was restarted and does not know it
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"  # ended by itself, usually with an error; a stop is still necessary
    STOPPING = "stopping"
    STOPPED = "stopped"  # everything of it has ended for good


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStatus:
    """The newest attempt of a region, at the moment of the answer.

    Attributes:
        region: name of the region.
        attempt_id: of the attempt; None if there is none.
        state: see `AttemptState`.
        error: the error that ended it, if it failed.
        hindrance: why a next attempt could not write now; only if the caller asked to check.
    """

    region: str
    attempt_id: int | None
    state: AttemptState
    error: BaseException | None = None
    hindrance: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWork:
    """Work that a batch has pre-committed and whose commit the region does not know yet.

    Attributes:
        batch: the batch.
        committables: its work.
        splits: the ranges that it has read; empty: the host does not know them.
    """

    batch: BatchKey
    committables: tuple[StateEntry, ...]
    splits: tuple[SplitRange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRegistration:
    """Report of an attempt about itself.

    Attributes:
        region: name of the region.
        attempt_id: which attempt it is.
        acknowledged: checkpoint id of the last barrier that it acknowledged; None: no barrier yet.
        open: its transactions and staged files, by batch, oldest first.
        address: of the coordinator, as its source runner knows it; empty: the runner has none.
        replayed: progress in the last batch of an earlier attempt, which Spark runs again before it
            asks for another, or in the load of its keyed state; the unit does not matter. None: it
            does neither.
        may_resume: it still runs, and its host passes ``open`` on to a new coordinator again.
        splits: whose keyed state its task has; None: it is not known.
        keyed_state: of these splits at the end of its last epoch, or as it began with it.
    """

    region: str
    attempt_id: int
    acknowledged: int | None = None
    open: tuple[OpenWork, ...] = ()
    address: str = ""
    replayed: int | None = None
    may_resume: bool = False
    splits: tuple[SplitKey, ...] | None = None
    keyed_state: KeyedState | None = None


class RegionHandle(Protocol):
    """The coordinator's end of one region. Driver; every method is thread-safe.

    Each call may be repeated: an attempt starts once and ends once. No call blocks much longer than
    ``timeout_s``. After `RegionUnansweredError` the result of a call is unknown: call `status`, or
    repeat the call.
    """

    @property
    def region(self) -> str:
        """Name of the region."""
        ...

    def start(self, attempt: RegionAttempt, *, timeout_s: float) -> None:
        """Start an attempt; does nothing if this attempt was already started. After any error but
        `RegionUnansweredError` nothing runs, and a repeated call raises the same error.

        Raises:
            FencedError: a newer attempt was started, or this one was stopped before its start.
            IllegalTransitionError: an older attempt is not stopped (`callback-after-commit`).
            StorageUnreachableError: the attempt could not write its logs now.
            StreamError: the attempt cannot start.
        """
        ...

    def stop(self, attempt_id: int, *, timeout_s: float) -> bool:
        """End this attempt and every older one; returns whether all of them have ended.

        The stop continues after the timeout; ``timeout_s=0`` starts it. An attempt that was not yet
        started will never start. The caller must wake the attempt's callback, or a stop may take
        long (`callback-after-commit`).

        Raises:
            StreamError: the stop itself failed; the attempt is over nevertheless.
        """
        ...

    def register(self, attempt_id: int, *, timeout_s: float) -> RegionRegistration:
        """The acknowledged and open work of this attempt, running or over.

        Raises:
            FencedError: it is not the region's newest attempt.
        """
        ...

    def status(self, *, check_storage: bool = False, timeout_s: float) -> AttemptStatus:
        """The newest attempt.

        ``check_storage``: if it is stopped, check whether a next one could write now.
        """
        ...


class Coordinator(AttemptRegistry, Protocol):
    """One barrier checkpoint coordinator per job, in the driver. Every method is thread-safe."""

    def poll_barrier(
        self,
        region: str,
        attempt_id: int,
        *,
        wait_s: float,
        has_read: bool = False,
        until: Callable[[], bool] = lambda: False,
    ) -> Barrier | None:
        """The next barrier of a region, if one is due and there are records to end; else None.

        ``has_read``: the batch has read records, so an epoch is due even if nothing is left.

        A repeated call before the batch is acknowledged returns the same barrier.

        ``until``: returns early when this becomes true, see `wake_waiters`.
        """
        ...

    def wake_waiters(self) -> None:
        """Wakes every thread that waits for a barrier, so that it checks ``until`` again. Never
        blocks."""
        ...

    def is_decided(self, batch: BatchKey) -> bool:
        """Whether a decided checkpoint contains this batch (or a later one of the region)."""
        ...

    def require_newest(self) -> None:
        """Raises FencedError if another run of the job has taken over. Reads the store."""
        ...

    def is_committed(self, batch: BatchKey) -> bool:
        """Whether the checkpoint that contains this batch is committed on record."""
        ...

    def acknowledge(self, ack: Acknowledgement) -> None:
        """Step 3. FencedError for an older attempt."""
        ...

    def await_committed(self, batch: BatchKey, *, timeout_s: float | None = None) -> None:
        """Return only when the batch's checkpoint is committed on record; raise otherwise.

        If the region is being stopped, raises FencedError.
        """
        ...

    def register_region(self, registration: RegionRegistration) -> None:
        """Announce an attempt of a region: its identity, its open work, and its progress in a
        replay.

        Raises:
            FencedError: the region has a newer attempt, or the job another coordinator.
        """
        ...

    def fail(self, region: str, attempt_id: int, error: BaseException) -> None:
        """A batch of a region failed: abort its open epoch."""
        ...

    def trigger(self, kind: CheckpointKind, *, requested_by: str) -> int:
        """Request a checkpoint; returns its id."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a job runs. Hosts have Spark's names.

    Attributes:
        driver: host of the driver.
        executors: number of active executors by host; none with a local master.
        excluded: hosts on which Spark starts no executors for this job.
        regions: host by region; None: tasks of this region may run on each executor. Suspended
            regions are left out.
    """

    driver: str
    executors: Mapping[str, int]
    excluded: tuple[str, ...]
    regions: Mapping[str, str | None]
