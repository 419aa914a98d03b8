"""Reading and writing the records of one epoch: in tasks, or by Spark's own writers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import pyarrow as pa

from sluice.runtime.contracts.committing import RegisteredAttempt
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import BatchKey, SplitRange

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
    "TypedWriterFactory",
    "WaitRegistry",
    "WriterFactory",
]

Frame = Any
"""A Spark ``DataFrame``; the contracts do not depend on Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScope:
    """The facts that a sink task has about its batch. Picklable.

    Attributes:
        job_uid, operator_id: of the job and the sink operator.
        batch: identity of the batch.
        committed_through: every checkpoint id <= this has its committed mark (or was aborted and
            swept); its resources may be used again.
        committed_batch: replaces it if epochs overlap: the last batch of this attempt that is
            committed on record, -1 before the first; None: each batch starts after the last one is
            committed.
        checkpoint_id: the checkpoint this batch is expected to join (a hint).
        task: ``partition.attempt`` of the Spark task, for messages.
        source_ranges: ranges that the task reads, if known (chained tasks); for a committable's
            repair and for messages.
        operator_states: of this operator in the region's last decided record.
        publishes_all: keep no rows of the batch, or of earlier ones, for later batches; see
            `Barrier`.
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
    publishes_all: bool = False


class AttemptRegistry(Protocol):
    """How an executor reports opened work to the coordinator. A repeated call is safe."""

    def register(self, attempt: RegisteredAttempt) -> float:
        """Returns after the coordinator has recorded it; FencedError if the batch is no longer
        wanted.

        Returns the coordinator's boot-time clock (`host_clock`): the attempt did nothing before
        that.
        """
        ...


@runtime_checkable
class WaitRegistry(AttemptRegistry, Protocol):
    """A registry that also receives long waits: a waiting task is alive, and can be ended."""

    def waits(self, batch: BatchKey, what: str, *, why: str) -> None:
        """A task of the batch waits for ``what``; repeat the call every few seconds.

        Blocks for four seconds at most. Without an answer it spends up to twelve more to find out
        which coordinator leads the job. An unreachable coordinator is no error.

        Raises:
            FencedError: the attempt of the batch is over or being stopped, or a later coordinator
                leads the job. It does not check whether the batch itself is still wanted.
        """
        ...

    def waited(self, batch: BatchKey, what: str) -> None:
        """The wait is over, with or without success. Never raises."""
        ...


class SinkWriter(Protocol):
    """Writes one task's records of one epoch. Executor, one thread.

    Attributes:
        decide_by_s: on the coordinator's boot-time clock: the pre-committed work may be lost if it
            is not decided before; None: before the pre-commit, or without a limit.
    """

    decide_by_s: float | None

    def write(self, batch: pa.RecordBatch) -> None:
        """Write records in order. Raises DeliveryError, ConfigError."""
        ...

    def pre_commit(self) -> list[StateEntry]:
        """Flush and check (`pre-commit-confirmed`). Empty if nothing was produced. Never
        commits."""
        ...

    def abort(self) -> None:
        """Discard the written records; called instead of `pre_commit` after an error."""
        ...


@runtime_checkable
class DeadLetterWriter(SinkWriter, Protocol):
    """A writer that takes records for further topics into the same pre-commit."""

    def write_dead_letters(self, topic: str, records: pa.RecordBatch) -> None:
        """Write records, in order, in the sink's columns; they become visible with the epoch's
        output or never.

        Args:
            topic: a topic that was passed to `DeadLetterSink.with_dead_letters`. Raises: as
                `write`.
        """
        ...


class WriterFactory(Protocol):
    """Picklable; opened inside the executor for each task and epoch."""

    def open(self, scope: TaskScope, registry: AttemptRegistry) -> SinkWriter:
        """A writer for the epoch; it reuses prepared resources of this worker process."""
        ...


@runtime_checkable
class TypedWriterFactory(WriterFactory, Protocol):
    """A factory whose output needs one schema in all epochs, as files of one directory do."""

    def for_rows(self, schema: pa.Schema) -> Self:
        """The factory for rows that functions return, which declared these columns and types.

        Its writers raise ConfigError for other rows.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFrame:
    """The pre-committed work of a frame writer.

    Attributes:
        rows: of the frame, as the writer counted them.
        committables: empty if there was nothing to write.
        operator_states: replaces the states of the operator: kept in the region's record, neither
            committed nor aborted.
        again_in_s: write again after so long, even without records; None: no hurry. After a start,
            every writer that keeps a state is called at once.
    """

    rows: int
    committables: tuple[StateEntry, ...] = ()
    operator_states: tuple[StateEntry, ...] = ()
    again_in_s: float | None = None


class FrameWriter(Protocol):
    """Writes the frame of one batch, in one Spark run. Driver, in the batch callback."""

    def write(self, frame: Frame, scope: TaskScope, registry: AttemptRegistry) -> StagedFrame:
        """Run the frame once, and pre-commit its rows.

        The writer registers its output before the first record; the output is invisible until its
        commit.
        """
        ...

    def require_writable(self, *, job_uid: str, operator_id: str) -> None:
        """Stage a small file and delete it, to test the storage after an outage.

        Raises: StorageUnreachableError: it is too early to write again; StorageError.
        """
        ...

    def close(self) -> None:
        """Release connections after the attempt of the region is over. Never raises."""
        ...


class SplitReader(Protocol):
    """Picklable; reads exact ranges inside an executor; a read can be repeated."""

    def read(self, splits: Sequence[SplitRange]) -> Iterator[pa.RecordBatch]:
        """Records of each range in offset order, in the source's columns."""
        ...


@runtime_checkable
class TimedSplitReader(SplitReader, Protocol):
    """A reader that knows the timestamps of records."""

    def read_timed(
        self, splits: Sequence[SplitRange], tell: Callable[[SplitRange, int], None]
    ) -> Iterator[pa.RecordBatch]:
        """As `read`; also reports the largest timestamp of each range, in ms, after the range."""
        ...
