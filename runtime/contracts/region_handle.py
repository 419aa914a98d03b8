"""How a coordinator reaches a region: wherever its tasks are run from, this process or another."""

import enum
from dataclasses import dataclass
from typing import Protocol

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.model import BatchKey, RegionRecord, StateEntry

__all__ = [
    "AttemptState",
    "AttemptStatus",
    "OpenWork",
    "RegionAttempt",
    "RegionHandle",
    "RegionRegistration",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionAttempt:
    """One life of a region, as its coordinator wants it begun.

    Attributes:
        attempt_id: of this life; larger than every earlier one of the region, in any run.
        restored: it goes on at the ends of its splits.
        after: newest committed checkpoint; >= 0.
    """

    attempt_id: int
    restored: RegionRecord
    after: int

    def __post_init__(self) -> None:
        if self.attempt_id < 0 or self.after < 0:
            raise ConfigError(
                "a life of a region is out of range",
                {"region": self.region, "attempt_id": self.attempt_id, "after": self.after},
                "Attempt and checkpoint id are 0 or more.",
            )

    @property
    def region(self) -> str:
        """Name of the region."""
        return self.restored.region


class AttemptState(enum.Enum):
    """What a region's newest life does."""

    NONE = "none"  # there was none here, or whoever ran it has forgotten it
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"  # by itself, mostly with an error; it still has to be stopped
    STOPPING = "stopping"
    STOPPED = "stopped"  # nothing of it runs any more, and nothing ever will


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStatus:
    """A region's newest life, at the moment of the answer.

    Attributes:
        region: name of the region.
        attempt_id: of the life; None when there is none.
        state: see `AttemptState`.
        error: why it ended, if it failed.
        hindrance: why a next life could not write now; only where that was looked for.
    """

    region: str
    attempt_id: int | None
    state: AttemptState
    error: BaseException | None = None
    hindrance: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWork:
    """What a batch has pre-committed, as long as the region was not told that it is committed."""

    batch: BatchKey
    committables: tuple[StateEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRegistration:
    """What a life of a region says of itself.

    Attributes:
        region: name of the region.
        attempt_id: which attempt it is.
        acknowledged: checkpoint id of the barrier that it acknowledged last; None: no barrier yet.
        open: its transactions and staged files, by batch, oldest first.
        address: of the coordinator, as its source runner knows it; empty: it has none.
        replayed: of the last batch of an earlier life, which Spark runs once more before it asks
            for another: what has been done, in whatever it is counted; None: it runs none.
    """

    region: str
    attempt_id: int
    acknowledged: int | None = None
    open: tuple[OpenWork, ...] = ()
    address: str = ""
    replayed: int | None = None


class RegionHandle(Protocol):
    """The coordinator's end of one region. Driver; every method is thread-safe.

    Each call may be repeated: a life is begun once and ended once, however often that is asked for.
    None blocks for much longer than ``timeout_s``. `RegionUnansweredError` says that nobody knows
    whether a call was carried out: ask `status`, or repeat it.
    """

    @property
    def region(self) -> str:
        """Name of the region."""
        ...

    def start(self, attempt: RegionAttempt, *, timeout_s: float) -> None:
        """Begin a life; nothing, if this very life was begun already. When it raises anything else
        than `RegionUnansweredError`, nothing runs.

        Raises:
            FencedError: a newer life was begun, or this one was stopped before it began.
            IllegalTransitionError: an older life is not stopped (`callback-after-commit`).
            StorageUnreachableError: it could not write its logs now.
            StreamError: it cannot begin.
        """
        ...

    def stop(self, attempt_id: int, *, timeout_s: float) -> bool:
        """End this life and every older one; whether nothing of them runs any more.

        The stop goes on when time runs out; ``timeout_s=0`` begins it. A life that was not begun
        yet never will be. The caller wakes the life's callback, or a stop may take long
        (`callback-after-commit`).

        Raises:
            StreamError: what the stop itself raised; it is over all the same.
        """
        ...

    def register(self, attempt_id: int, *, timeout_s: float) -> RegionRegistration:
        """What this life, running or over, has acknowledged and left open.

        Raises:
            FencedError: it is not the region's newest life.
        """
        ...

    def status(self, *, looks: bool = False, timeout_s: float) -> AttemptStatus:
        """The newest life; ``looks``: if it is stopped, try whether a next one could write now."""
        ...
