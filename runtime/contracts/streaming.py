"""Reading and writing without a pause between epochs: the contracts of the continuous engine."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from sluice.runtime.contracts.operators import Source
from sluice.runtime.contracts.writing import AttemptRegistry, SinkWriter, TaskScope, WriterFactory
from sluice.runtime.model.splits import SplitKey, SplitRange

__all__ = [
    "INTERVALS_PER_TRANSACTION_TIMEOUT",
    "ContinuousSource",
    "ContinuousWriter",
    "ContinuousWriterFactory",
    "RecordStream",
    "RecordsRead",
    "StreamingReader",
]

INTERVALS_PER_TRANSACTION_TIMEOUT = 3
"""Least lifetime, in intervals, of work that the remote aborts by itself: the work is open from one
barrier to the next, and until its decision."""


class RecordsRead(NamedTuple):
    """Progress in the records of a split.

    Attributes:
        end_offset: the offset after the last record.
        leader_epoch: of the leader that wrote it, if known.
        first_epoch: leader epoch of the first record of this attempt. It is set until the reader
            has asked a leader whether its log has the records before that one; None: not known.
    """

    end_offset: int
    leader_epoch: int | None
    first_epoch: int | None = None


class RecordStream(Protocol):
    """Reads splits continuously, ahead of its caller. Executor, one thread."""

    def poll(self) -> pa.RecordBatch | None:
        """The fetched records, at most a batch, each split's in offset order; None: there are none.
        Never waits.

        Raises: as `sluice.runtime.contracts.SplitReader.read`.
        """
        ...

    def positions(self) -> Mapping[SplitKey, int]:
        """The next offset of each split, after the records that `poll` has returned."""
        ...

    def active(self) -> frozenset[SplitKey]:
        """Splits of which the client has fetched something since the last call, as far as it knows.

        It may have been records that `poll` does not return, such as aborted ones. A split for
        which a quota delays the client is active, too.
        """
        ...

    def pause(self, splits: Collection[SplitKey]) -> None:
        """Read these splits no further, and all others. Their positions stay; a later call without
        them reads on from there. `restart_at` resumes all."""
        ...

    def records_read(self) -> Mapping[SplitKey, RecordsRead]:
        """Progress in each split, and who wrote its last record; empty for a split without records.
        Only markers lie between that offset and its position."""
        ...

    def restart_at(self, splits: Sequence[SplitRange]) -> None:
        """Read these splits, from their ``start_offset``, and no others."""
        ...

    def close(self) -> None:
        """Release connections. Never raises."""
        ...


class StreamingReader(Protocol):
    """Picklable."""

    @property
    def no_progress_timeout_s(self) -> float:
        """timeout: a split that has records, and returns none for so long, is unreachable."""
        ...

    def follow(
        self, splits: Sequence[SplitRange], ends: Mapping[SplitKey, int] | None
    ) -> RecordStream:
        """Read each split from its ``start_offset``.

        Args:
            ends: of a bounded source: it returns no record at or after them; None: there are no
                ends, and a split without one is read without one.
        """
        ...


@runtime_checkable
class ContinuousSource(Source, Protocol):
    """A source whose splits can be read continuously."""

    def hindrance(self) -> str | None:
        """The setting of this source that requires epochs planned by the driver; None: there is
        none."""
        ...

    def streaming_reader(self) -> StreamingReader:
        """Executor side."""
        ...


class ContinuousWriter(SinkWriter, Protocol):
    """A writer whose epoch's ranges are known only at its end. Executor.

    The task's thread calls `write` and `end_epoch`. Another thread then calls `pre_commit` and the
    later methods, while the task's thread writes the next epoch with the next writer. A writer
    keeps its pre-committed work until it commits or releases it.
    """

    def end_epoch(self, ranges: Sequence[SplitRange], *, checkpoint_id: int) -> None:
        """No record follows; the epoch has read these ranges. Returns after the sink has taken all
        its records: no record of the next epoch may precede them.

        Raises: as `write`.
        """
        ...

    def commit(self, *, timeout_s: float) -> bool:
        """The epoch is decided: make its pre-committed work visible. Never raises.

        True only if the remote acknowledged it; otherwise the sink's `Committer` determines the
        outcome. In any case the writer has released all that it kept.
        """
        ...

    def release(self) -> None:
        """Release the pre-committed work, and leave its end to the `Committer`. Never raises."""
        ...


@runtime_checkable
class ContinuousWriterFactory(WriterFactory, Protocol):
    """Picklable; one of its writers may be written while the one before is pre-committed."""

    @property
    def longest_interval_s(self) -> float | None:
        """Longest time between barriers: an epoch is open from one to the next, and until its
        decision. None: there is no limit, or only the remote knows it; then the sink's check
        returns ``transaction_timeout_s``."""
        ...

    def open_continuous(self, scope: TaskScope, registry: AttemptRegistry) -> ContinuousWriter:
        """As `open`, for an epoch whose ranges and checkpoint are not yet known."""
        ...
