"""Keyed state of the tasks of micro-batches: kept in a Python worker from one batch to the next.

A task of a batch begins with the state that the batch's barrier names. If this process ended the
last batch of the same splits with exactly these parts, it still has the state. Else it is loaded
from the files. So a second attempt of a Spark task, or a batch after an abort, never uses a state
that the first one has changed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sluice.runtime.contracts.keyed import BarrierTime
from sluice.runtime.functions.function_run import ChainedFunction
from sluice.runtime.keyed.keyed_run import KeyedRun
from sluice.runtime.keyed.keyed_task import EndedState, KeyedTask
from sluice.runtime.model.splits import Barrier, BatchKey, SplitRange
from sluice.runtime.model.state.key_sample import KeySample
from sluice.runtime.model.state.keyed_state import Due, KeyedState

__all__ = ["KeptTasks", "KeyedBatch", "KeyedBatchResult", "OpenKeyedBatch"]

OpenTask = Callable[[KeyedState, tuple[SplitRange, ...]], KeyedTask]
"""Loads the state of splits into a new task."""

_Owner = tuple[str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedBatch:
    """State and time for the keyed functions of a batch's task. Picklable.

    Attributes:
        time: of the batch's barrier.
        state: of the task's splits, before the batch.
    """

    time: BarrierTime
    state: KeyedState

    @classmethod
    def of(cls, barrier: Barrier, splits: tuple[SplitRange, ...]) -> "KeyedBatch | None":
        """For a task with these splits of a barrier; None: the region is not keyed."""
        if barrier.new_state is None:
            return None
        time = BarrierTime(
            watermark_ms=barrier.watermark_ms, now_ms=barrier.time_ms, is_end=barrier.is_end
        )
        return cls(time=time, state=barrier.new_state.of({split.key for split in splits}))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedBatchResult:
    """The keyed state of a task at the end of a batch; ``due``, ``key_samples``: see
    `Acknowledgement`."""

    state: KeyedState
    due: Due
    key_samples: tuple[KeySample, ...]


class KeptTasks:
    """The keyed state that one Python worker keeps: that of the last task of one batch at most, so
    that a worker never needs the memory of two. The task's thread."""

    def __init__(self) -> None:
        self._owner: _Owner | None = None
        self._kept_state = KeyedState()
        self._task: KeyedTask | None = None

    def open(
        self,
        owner: _Owner,
        batch: KeyedBatch,
        splits: tuple[SplitRange, ...],
        load: OpenTask,
    ) -> "OpenKeyedBatch":
        """Begin a batch; from here on, nothing is kept until `OpenKeyedBatch.keep`.

        Args:
            owner: job uid, region and attempt id.
            load: if this process does not have exactly the state that the batch begins with.
        """
        task, self._task = self._task, None
        is_same = self._owner == owner and self._kept_state.sections() == batch.state.sections()
        if task is not None and not is_same:
            task.close()
            task = None
        if task is None:
            task = load(batch.state, splits)
        else:
            task.restart_at(splits)
        return OpenKeyedBatch(self, owner, task, batch)

    def keep(self, owner: _Owner, state: KeyedState, task: KeyedTask) -> None:
        """The task has ended a batch with this state."""
        self._owner, self._kept_state, self._task = owner, state, task


class OpenKeyedBatch:
    """A batch of one task that is under way. The task's thread."""

    def __init__(self, kept: KeptTasks, owner: _Owner, task: KeyedTask, batch: KeyedBatch) -> None:
        self._kept = kept
        self._owner = owner
        self._task = task
        self.time = batch.time

    def begin(self, functions: Sequence[ChainedFunction]) -> KeyedRun:
        """The run of the batch; ``functions``: of the pipeline, with their own states."""
        return self._task.begin_epoch(functions, now_ms=self.time.now_ms)

    def end(self, batch: BatchKey) -> KeyedBatchResult:
        """Write the state's changes, after all output.

        Raises:
            StreamError: they cannot be written.
        """
        ended: EndedState = self._task.end_epoch(self.time)
        return KeyedBatchResult(
            state=ended.write(batch), due=ended.due, key_samples=ended.key_samples
        )

    def keep(self, result: KeyedBatchResult) -> None:
        """The task has succeeded: keep its state for the next batch."""
        self._kept.keep(self._owner, result.state, self._task)

    def close(self) -> None:
        """The task has failed: forget its state."""
        self._task.close()
