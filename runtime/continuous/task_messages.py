"""What a continuous task and its driver tell each other. Frozen; JSON by `service`."""

from dataclasses import dataclass

from sluice.runtime.model.model import Barrier, BatchKey, RecordCounts, SplitRange, StateEntry

__all__ = ["CommittedEpoch", "EpochResult", "NextBarrier"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NextBarrier:
    """Answer to a task that asks for its barrier.

    Attributes:
        barrier: where each of the task's splits begins its epoch; the ends are only what readers
            could see when it was cut. None: none is due yet.
        committed_batch: last batch of this life that is committed on record; -1: none.
        to_commit: batch ids of its epochs that are decided: the task shall commit them, in order,
            and say what became of that.
        is_over: the life is being stopped, in good order: nothing more is asked of the task.
    """

    barrier: Barrier | None
    committed_batch: int = -1
    to_commit: tuple[int, ...] = ()
    is_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedEpoch:
    """What became of an epoch that a task was asked to commit.

    Attributes:
        batch_id: of the epoch.
        operators: sinks whose commit was acknowledged, by operator id; of others nobody knows.
    """

    batch_id: int
    operators: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochResult:
    """An epoch of a continuous task, pre-committed.

    Attributes:
        batch: its identity; batch ids count the epochs of this life from 0.
        checkpoint_id: of the barrier that ended it.
        ranges: what it has read, of every split of the barrier.
        committables: of all sinks; empty when nothing was produced.
        counts: of the functions that count their records, by operator id.
        examples: a failed record of each in words.
        failed_rows: of the rows that each was given; see `FunctionRun`.
        decide_by_s: see `sluice.runtime.contracts.SinkWriter`.
    """

    batch: BatchKey
    checkpoint_id: int
    ranges: tuple[SplitRange, ...]
    committables: tuple[StateEntry, ...] = ()
    counts: tuple[tuple[str, RecordCounts], ...] = ()
    examples: tuple[tuple[str, str], ...] = ()
    failed_rows: tuple[tuple[str, int], ...] = ()
    decide_by_s: float | None = None
