"""Whether a checkpoint waits for missing regions, is decided without them, or is given up. Pure.

`GlobalCheckpointHandler` decides for all regions only. `RegionalCheckpointHandler` decides for the
regions that acknowledged, and *skips* the rest: the record keeps their last snapshot. A region that
timed out joins a later checkpoint. A region that failed reads its range again in its next attempt.
"""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sluice.runtime.contracts import FailureReason
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.checkpoint_record import CheckpointKind

__all__ = [
    "Alignment",
    "CheckpointHandler",
    "GlobalCheckpointHandler",
    "HandlerDecision",
    "RegionalCheckpointHandler",
]


class HandlerDecision(enum.Enum):
    """The decision about a checkpoint that waits for acknowledgements."""

    WAIT = "wait"
    DECIDE = "decide"  # for the regions that acknowledged; missing ones are skipped
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """The handler's view of a checkpoint that waits. It does not contain suspended regions.

    Attributes:
        kind: why it was taken.
        acknowledged: regions that have acknowledged, with a batch or without.
        failed: regions whose attempt has ended without an acknowledgement.
        waiting: all other regions.
        starting: waiting regions whose next attempt has not polled for a barrier yet: it may take
            long until they do.
        skipped: by region, how many checkpoints in a row before this one have skipped it.
        elapsed_s: since the barrier.
    """

    kind: CheckpointKind
    acknowledged: frozenset[str]
    failed: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()
    starting: frozenset[str] = frozenset()
    skipped: Mapping[str, int] = field(default_factory=dict)
    elapsed_s: float = 0.0

    def left_out(self) -> dict[str, FailureReason]:
        """Regions without an acknowledgement, and why."""
        failed = self.failed | self.starting  # the attempt before has failed
        return dict.fromkeys(failed, FailureReason.ERROR) | dict.fromkeys(
            self.waiting - failed, FailureReason.EXPIRED
        )


class CheckpointHandler(Protocol):
    """Decides about regions that do not acknowledge."""

    @property
    def is_regional(self) -> bool:
        """Whether the failure of a region ends no batches of other regions."""
        ...

    def rule(self, alignment: Alignment, *, timeout_s: float) -> HandlerDecision:
        """The decision now; ``timeout_s``: from the barrier on, after which it is given up.

        Until the first of `deadlines_s`, one more acknowledgement may change WAIT only when no
        region is left in ``waiting``: it is not called before. It is called at once for a failure.
        """
        ...

    def deadlines_s(self, *, timeout_s: float) -> tuple[float, ...]:
        """Seconds after the barrier at which time alone may change the decision."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalCheckpointHandler(CheckpointHandler):
    """Decides for all regions, or gives up."""

    @property
    def is_regional(self) -> bool:
        return False

    def rule(self, alignment: Alignment, *, timeout_s: float) -> HandlerDecision:
        if not alignment.waiting and not alignment.failed:
            return HandlerDecision.DECIDE
        is_late = alignment.elapsed_s >= timeout_s
        return HandlerDecision.GIVE_UP if alignment.failed or is_late else HandlerDecision.WAIT

    def deadlines_s(self, *, timeout_s: float) -> tuple[float, ...]:
        return (timeout_s,)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionalCheckpointHandler(CheckpointHandler):
    """Decides for the regions that acknowledged, and skips failed and late ones, within limits.

    A failed region is skipped until its next attempt has polled for a barrier.

    Beyond a limit the checkpoint is a global one: it waits for all regions, and is given up at the
    first failure, which counts towards the job's ``tolerable_failures``. Savepoints and the last
    checkpoint of a bounded job are always global.

    Attributes:
        max_failed_ratio: share of the regions that one checkpoint may skip; below 1.
        max_skipped_in_a_row: checkpoints in a row that may skip one region.
        region_timeout_s: a region that has not acknowledged this long after the barrier is skipped;
            None: only failed regions are skipped.
    """

    max_failed_ratio: float = 0.5
    max_skipped_in_a_row: int = 60
    region_timeout_s: float | None = None

    def __post_init__(self) -> None:
        timeout_s = self.region_timeout_s
        if (
            not 0 < self.max_failed_ratio < 1
            or self.max_skipped_in_a_row < 1
            or (timeout_s is not None and not 0 < timeout_s < math.inf)
        ):
            raise ConfigError(
                "a setting of regional checkpoints is out of range",
                {
                    "max_failed_ratio": self.max_failed_ratio,
                    "max_skipped_in_a_row": self.max_skipped_in_a_row,
                    "region_timeout_s": timeout_s,
                },
                "Use a ratio between 0 and 1, at least one checkpoint, and a time above zero.",
            )

    @property
    def is_regional(self) -> bool:
        return True

    def rule(self, alignment: Alignment, *, timeout_s: float) -> HandlerDecision:
        late = alignment.starting
        if self.region_timeout_s is not None and alignment.elapsed_s >= self.region_timeout_s:
            late = alignment.waiting
        skipped = alignment.failed | late
        if late == alignment.starting and not self._may_skip(alignment, skipped):
            skipped = alignment.failed  # wait for the attempts that are starting, as usual
        if not self._may_skip(alignment, skipped):
            return GlobalCheckpointHandler().rule(alignment, timeout_s=timeout_s)
        if alignment.waiting - skipped:
            return (
                HandlerDecision.GIVE_UP
                if alignment.elapsed_s >= timeout_s
                else HandlerDecision.WAIT
            )
        return HandlerDecision.DECIDE

    def _may_skip(self, alignment: Alignment, skipped: frozenset[str]) -> bool:
        if not skipped:
            return True
        regions = len(alignment.acknowledged | alignment.failed | alignment.waiting)
        return (
            alignment.kind is CheckpointKind.CHECKPOINT
            and len(skipped) <= self.max_failed_ratio * regions
            and all(alignment.skipped.get(name, 0) < self.max_skipped_in_a_row for name in skipped)
        )

    def deadlines_s(self, *, timeout_s: float) -> tuple[float, ...]:
        return (timeout_s,) if self.region_timeout_s is None else (self.region_timeout_s, timeout_s)
