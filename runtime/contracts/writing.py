"""Reading and writing the records of one epoch: in tasks, or by Spark's own writers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from sluice.runtime.contracts.committing import RegisteredAttempt
from sluice.runtime.model.model import BatchKey, SplitRange, StateEntry

__all__ = [
    "AttemptRegistry",
    "DeadLetterWriter",
    "Frame",
    "FrameWriter",
    "SinkWriter",
    "SplitReader",
    "StagedFrame",
    "TaskScope",
    "TimedSplitReader",
    "WaitRegistry",
    "WriterFactory",
]

Frame = Any
"""A Spark ``DataFrame``; the contracts know no Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScope:
    """What a sink task knows about the batch it writes for. Picklable.

    Attributes:
        job_uid, operator_id: of the job and the sink operator.
        batch: identity of the batch.
        committed_through: every checkpoint id <= this has its committed mark (or was aborted and
            swept); resources used by them may be used again.
        committed_batch: where epochs overlap, in place of that: the last batch of this life that is
            committed on record, -1 before the first; None: each batch begins behind the last one.
        checkpoint_id: the checkpoint this batch is expected to join (a hint).
        task: ``partition.attempt`` of the Spark task, for messages.
        source_ranges: what the task reads, where it is known (chained tasks); for a committable's
            repair and for messages.
        operator_states: what this operator has in the region's last decided record.
        is_last: the region's bounded sources end with this batch.
    """

    job_uid: str
    operator_id: str
    batch: BatchKey
    checkpoint_id: int
    committed_through: int
    committed_batch: int | None = None
    task: str = ""
    source_ranges: tuple[SplitRange, ...] = ()
    operator_states: tuple[StateEntry, ...] = ()
    is_last: bool = False


class AttemptRegistry(Protocol):
    """How an executor tells the coordinator what it opened. Safe to repeat, retried."""

    def register(self, attempt: RegisteredAttempt) -> float:
        """Returns when the coordinator has it; FencedError when the batch is no longer wanted.

        Returns the coordinator's age clock (`host_clock`): nothing of the attempt began
        before.
        """
        ...


@runtime_checkable
class WaitRegistry(AttemptRegistry, Protocol):
    """A registry that hears of long waits, too: whoever waits lives, and can be told to end."""

    def waits(self, batch: BatchKey, what: str, *, why: str) -> None:
        """A task of the batch waits for ``what``; to be told again every few seconds.

        Blocks for four seconds at most; where nobody answers, for twelve more, in which it looks
        who leads the job. That the coordinator does not answer is no error.

        Raises:
            FencedError: the life that the batch belongs to is over or being stopped, or a later
                coordinator leads the job. That the batch itself is not wanted any more nobody says.
        """
        ...

    def waited(self, batch: BatchKey, what: str) -> None:
        """The wait is over, well or not. Never raises."""
        ...


class SinkWriter(Protocol):
    """Writes one task's records of one epoch. Executor, one thread.

    Attributes:
        decide_by_s: on the coordinator's age clock: what was pre-committed may be lost if it is not
            decided by then; None: before the pre-commit, or where there is no limit.
    """

    decide_by_s: float | None

    def write(self, batch: pa.RecordBatch) -> None:
        """Hand over records in order. Raises DeliveryError, ConfigError."""
        ...

    def pre_commit(self) -> list[StateEntry]:
        """Flush and check (`pre-commit-confirmed`). Empty when nothing was produced. Never
        commits."""
        ...

    def abort(self) -> None:
        """Give up what was written; called instead of `pre_commit` after an error."""
        ...


@runtime_checkable
class DeadLetterWriter(SinkWriter, Protocol):
    """A writer that takes records for further topics, into the same pre-commit."""

    def write_dead_letters(self, topic: str, records: pa.RecordBatch) -> None:
        """Hand over records, in order, in the sink's columns; visible with the epoch's output, or
        not at all.

        Args:
            topic: one of those that `DeadLetterSink.with_dead_letters` was given.
        Raises: as `write`.
        """
        ...


class WriterFactory(Protocol):
    """Picklable; opened inside the executor for each task and epoch."""

    def open(self, scope: TaskScope, registry: AttemptRegistry) -> SinkWriter:
        """A writer for the epoch; readied resources of this worker process are reused."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFrame:
    """What a frame writer pre-committed.

    Attributes:
        rows: that the frame had, as the writer counted them.
        committables: empty when there was nothing to write.
        operator_states: what the operator keeps from here on, in place of what it had: carried in
            the region's record, neither committed nor aborted.
        again_in_s: write again after so long, also if there are no records then; None: no hurry.
            After a start whoever keeps a state is asked at once.
    """

    rows: int
    committables: tuple[StateEntry, ...] = ()
    operator_states: tuple[StateEntry, ...] = ()
    again_in_s: float | None = None


class FrameWriter(Protocol):
    """Writes the frame of one batch, by one run of it. Driver, in the batch callback."""

    def write(self, frame: Frame, scope: TaskScope, registry: AttemptRegistry) -> StagedFrame:
        """Run the frame once, and pre-commit what it yields.

        What is written is registered before its first record and invisible until its commit.
        """
        ...

    def require_writable(self, *, job_uid: str, operator_id: str) -> None:
        """Try to stage something small, and delete it: asked after an outage.

        Raises: StorageUnreachableError where it is too early to write again; StorageError.
        """
        ...

    def close(self) -> None:
        """Release connections, when the life of the region is over. Never raises."""
        ...


class SplitReader(Protocol):
    """Picklable; reads exact ranges inside an executor, replayable."""

    def read(self, splits: Sequence[SplitRange]) -> Iterator[pa.RecordBatch]:
        """Records of each range in offset order, in the source's columns."""
        ...


@runtime_checkable
class TimedSplitReader(SplitReader, Protocol):
    """A reader that knows when records were made."""

    def read_timed(
        self, splits: Sequence[SplitRange], tell: Callable[[SplitRange, int], None]
    ) -> Iterator[pa.RecordBatch]:
        """As `read`; tells the largest timestamp of each range, in ms, once it has been read."""
        ...
