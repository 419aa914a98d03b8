"""The event time of a continuous task: what its splits have seen, and how far they read ahead."""

from collections.abc import Sequence

from sluice.runtime.contracts import RecordStream
from sluice.runtime.functions.split_clocks import SplitClocks
from sluice.runtime.model.splits import Barrier, SplitKey, SplitRange

__all__ = ["TaskTime"]


class TaskTime:
    """Notes the watermarks of splits, and pauses those that are too far ahead (``max_drift``).

    The task resumes a paused split at half of the drift, since the client fetches records again
    after each pause. Idle splits, and those without a watermark, do not hold other splits back.
    Executor, the task's thread.

    Args:
        stream: of the task.
        clocks: of the pipeline's source; None: it has no time.

    Attributes:
        paused: splits that are not read now.
    """

    def __init__(self, stream: RecordStream, clocks: SplitClocks | None) -> None:
        self._stream = stream
        self._clocks = clocks
        self._drift_ms = None if clocks is None else clocks.time.max_drift_ms
        self._others_ms: int | None = None
        self._recorded_ms: dict[SplitKey, int | None] = {}
        self._active: frozenset[SplitKey] = frozenset()
        self.paused: frozenset[SplitKey] = frozenset()

    def note_barrier(self, barrier: Barrier) -> None:
        """The barrier has the driver's clock, and how far other regions are."""
        if self._clocks is None:
            return
        self._clocks.note_time(barrier.time_ms)
        self._clocks.keep(split.key for split in barrier.splits)
        time, now_ms = self._clocks.time, barrier.time_ms
        self._active = frozenset(s.key for s in barrier.splits if time.is_live(s, now_ms=now_ms))
        self._others_ms = barrier.aligned_ms
        self._recorded_ms = {split.key: split.watermark_ms for split in barrier.splits}
        self.align()

    def restart_at(self, splits: Sequence[SplitRange]) -> None:
        """Let the stream read these splits; it reads all of them until the next `align`."""
        self._stream.restart_at(splits)
        self.paused = frozenset()

    def forget(self) -> None:
        """The rows of the epoch are read again."""
        if self._clocks is not None:
            self._clocks.forget()

    def align(self) -> None:
        """Pause and resume splits, after each batch."""
        if self._drift_ms is None or self._clocks is None:
            return
        marks = {
            key: [self._clocks.watermark_ms(key), recorded_ms]
            for key, recorded_ms in self._recorded_ms.items()
        }
        known = {
            key: max(ms for ms in found if ms is not None)
            for key, found in marks.items()
            if found != [None, None]
        }
        slowest = [ms for key, ms in known.items() if key in self._active]
        slowest += [] if self._others_ms is None else [self._others_ms]
        limit_ms = min(slowest, default=None)
        paused = frozenset(
            key
            for key, ms in known.items()
            if limit_ms is not None and ms - limit_ms > self._drift_of(key)
        )
        if paused != self.paused:
            self._stream.pause(paused)
            self.paused = paused

    def _drift_of(self, split: SplitKey) -> int:
        assert self._drift_ms is not None  # `align` returns without one
        return self._drift_ms // 2 if split in self.paused else self._drift_ms

    def ended(self, split: SplitRange) -> SplitRange:
        """A range at its end, with the times of its rows. None of them ever goes back."""
        return split if self._clocks is None else self._clocks.ended(split)
