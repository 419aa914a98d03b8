"""Measures the stages of a task: which one its time went to."""

import time
from collections.abc import Collection, Iterable, Iterator
from typing import Literal, TypeVar

from sluice.runtime.contracts import Clock
from sluice.runtime.model.acknowledgement import StageTimes

__all__ = ["ALL_STAGES", "WRITING_STAGES", "Stage", "StageTimer"]

T = TypeVar("T")

Stage = Literal["read_s", "function_s", "write_s", "flush_s"]
ALL_STAGES: tuple[Stage, ...] = ("read_s", "function_s", "write_s", "flush_s")
WRITING_STAGES: tuple[Stage, ...] = ("write_s", "flush_s")
"""The stages of a task at the end of Spark's plan: when Spark reads and applies is not known."""


class StageTimer:
    """The stages of one batch or epoch of a task. Used by one thread at a time.

    Each change of stage reads the clock once: a few times for each Arrow batch.

    Args:
        known: the stages to report.
        clock: monotonic seconds.
    """

    def __init__(
        self, known: Collection[Stage] = ALL_STAGES, *, clock: Clock = time.monotonic
    ) -> None:
        self._clock = clock
        self._spent_s: dict[Stage, float] = dict.fromkeys(known, 0.0)
        self._stage: Stage | None = None
        self._since_s = 0.0

    def enter(self, stage: Stage | None) -> None:
        """From now on the time goes to this stage; None: to none."""
        now_s = self._clock()
        if self._stage in self._spent_s:
            self._spent_s[self._stage] += now_s - self._since_s
        self._stage, self._since_s = stage, now_s

    def reading(self, batches: Iterable[T]) -> Iterator[T]:
        """The same batches; fetching one is reading, and everything after it the function's."""
        found = iter(batches)
        while True:
            self.enter("read_s")
            batch = next(found, None)
            self.enter("function_s")
            if batch is None:
                return
            yield batch

    def times(self) -> StageTimes:
        """The times so far, after the last stage has ended."""
        self.enter(None)
        return StageTimes(**self._spent_s)
