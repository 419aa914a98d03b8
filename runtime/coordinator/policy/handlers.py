"""Whether a checkpoint that not every region has acknowledged waits, goes on, or is given up. Pure.

`GlobalCheckpointHandler` wants all regions. `RegionalCheckpointHandler` decides for those that
acknowledged, and *carries* the others: the record has their last good snapshot, and they join a
later checkpoint (late ones), or read their range again in a new life (failed ones).
"""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sluice.runtime.contracts import FailureReason
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.model import CheckpointKind

__all__ = [
    "Alignment",
    "CheckpointHandler",
    "GlobalCheckpointHandler",
    "HandlerDecision",
    "RegionalCheckpointHandler",
]


class HandlerDecision(enum.Enum):
    """What to do with a checkpoint that waits for acknowledgements."""

    WAIT = "wait"
    DECIDE = "decide"  # for those that acknowledged; the others, if any, are carried
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """What a handler may know of a checkpoint that waits. Suspended regions are in no part of it.

    Attributes:
        kind: why it was taken.
        acknowledged: regions that have acknowledged, with a batch or without.
        failed: regions whose life has ended without an acknowledgement.
        waiting: all others.
        starting: of them, those whose new life has not asked for a barrier yet: it may be long
            until they do.
        carried: by region, how many decided checkpoints in a row it was carried in.
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
        failed = self.failed | self.starting  # what came before the new life has failed
        return dict.fromkeys(failed, FailureReason.ERROR) | dict.fromkeys(
            self.waiting - failed, FailureReason.EXPIRED
        )


class CheckpointHandler(Protocol):
    """How a job takes a region that does not acknowledge."""

    @property
    def is_regional(self) -> bool:
        """Whether one region's failure leaves the others' batches alone."""
        ...

    def rule(self, alignment: Alignment, *, timeout_s: float) -> HandlerDecision:
        """What to do now; ``timeout_s``: from the barrier on, after which it is given up.

        Until the first of `deadlines_s`, one more acknowledgement may change WAIT only when no
        region is left in ``waiting``: it is not asked before. A failure it is asked about at once.
        """
        ...

    def deadlines_s(self, *, timeout_s: float) -> tuple[float, ...]:
        """Seconds after the barrier at which time alone may change the ruling."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalCheckpointHandler:
    """Every region, or nobody."""

    @property
    def is_regional(self) -> bool:
        """See `CheckpointHandler`."""
        return False

    def rule(self, alignment: Alignment, *, timeout_s: float) -> HandlerDecision:
        """See `CheckpointHandler`."""
        if not alignment.waiting and not alignment.failed:
            return HandlerDecision.DECIDE
        is_late = alignment.elapsed_s >= timeout_s
        return HandlerDecision.GIVE_UP if alignment.failed or is_late else HandlerDecision.WAIT

    def deadlines_s(self, *, timeout_s: float) -> tuple[float, ...]:
        """See `CheckpointHandler`."""
        return (timeout_s,)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionalCheckpointHandler:
    """Those that acknowledged; failed ones, until their new life is at work, and late ones are
    carried, within limits.

    Beyond a limit the checkpoint is a global one: it waits for all, and is given up with the first
    failure, which counts towards the job's ``tolerable_failures``. So are checkpoints that
    somebody asked for by kind, and the last one of a bounded job.

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
        """See `CheckpointHandler`."""
        return True

    def rule(self, alignment: Alignment, *, timeout_s: float) -> HandlerDecision:
        """See `CheckpointHandler`."""
        late = alignment.starting
        if self.region_timeout_s is not None and alignment.elapsed_s >= self.region_timeout_s:
            late = alignment.waiting
        skipped = alignment.failed | late
        if late == alignment.starting and not self._may_skip(alignment, skipped):
            skipped = alignment.failed  # the lives that are starting are waited for, as ever
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
        """See `CheckpointHandler`."""
        return (timeout_s,) if self.region_timeout_s is None else (self.region_timeout_s, timeout_s)
