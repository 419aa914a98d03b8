"""The messages between a continuous task and its driver. Frozen; `service` encodes them as JSON."""

from dataclasses import dataclass

from sluice.runtime.model.acknowledgement import RecordCounts, StageTimes
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import Barrier, BatchKey, SplitKey, SplitRange
from sluice.runtime.model.state.key_sample import KeySample
from sluice.runtime.model.state.keyed_state import Due, KeyedState

__all__ = ["CommittedEpoch", "EpochResult", "NextBarrier"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NextBarrier:
    """The answer to a task's poll for its barrier.

    Attributes:
        barrier: its start offsets are those of the epoch; its end offsets are only the readable end
            of each split when they were fetched. None: none is due yet.
        committed_batch: last batch of this attempt that is committed on record; -1: none.
        to_commit: batch ids of decided epochs that the task shall commit, in order; it reports the
            outcome with its next poll.
        is_over: the driver stops the attempt in good order; the task shall end.
    """

    barrier: Barrier | None
    committed_batch: int = -1
    to_commit: tuple[int, ...] = ()
    is_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedEpoch:
    """The outcome of an epoch that a task was requested to commit.

    Attributes:
        batch_id: of the epoch.
        operators: operator ids of the sinks whose commit was acknowledged; for other sinks the
            outcome is unknown.
    """

    batch_id: int
    operators: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochResult:
    """An epoch of a continuous task, pre-committed.

    Attributes:
        batch: its identity; batch ids count the epochs of this attempt from 0.
        checkpoint_id: of the barrier that ended it.
        ranges: that it has read, one for every split of the barrier.
        committables: of all sinks; empty when nothing was produced.
        counts: of the functions that count their records, by operator id.
        examples: a description of one failed record for each of them.
        failed_rows: failed rows for each of them; see `FunctionRun`.
        decide_by_s: see `sluice.runtime.contracts.SinkWriter`.
        stages: times of the task in this epoch.
        keyed_state: of all splits of the task at the end of ``ranges``; None: it is not keyed.
        due, paused, key_samples: see `Acknowledgement`.
        operator_states: that the epoch has changed, as they are at its end.
    """

    batch: BatchKey
    checkpoint_id: int
    ranges: tuple[SplitRange, ...]
    committables: tuple[StateEntry, ...] = ()
    counts: tuple[tuple[str, RecordCounts], ...] = ()
    examples: tuple[tuple[str, str], ...] = ()
    failed_rows: tuple[tuple[str, int], ...] = ()
    decide_by_s: float | None = None
    stages: StageTimes | None = None
    keyed_state: KeyedState | None = None
    due: Due | None = None
    paused: tuple[SplitKey, ...] = ()
    operator_states: tuple[StateEntry, ...] = ()
    key_samples: tuple[KeySample, ...] = ()
