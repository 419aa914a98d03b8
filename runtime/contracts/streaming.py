"""Reading and writing without a pause between epochs: what the continuous engine asks for."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from sluice.runtime.contracts.operators import Source
from sluice.runtime.contracts.writing import AttemptRegistry, SinkWriter, TaskScope, WriterFactory
from sluice.runtime.model.model import SplitKey, SplitRange

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
"""What a remote gives up by itself must live for so many intervals at least: it is open from one
barrier to the next, and until its decision."""


class RecordsRead(NamedTuple):
    """How far the records of a split came.

    Attributes:
        end_offset: behind the last one.
        leader_epoch: of the leader that wrote it, if known.
        first_epoch: of the leader that wrote the first record of this life, as long as the reader
            itself has asked no leader whether its log has what lies before that; None: not known.
    """

    end_offset: int
    leader_epoch: int | None
    first_epoch: int | None = None


class RecordStream(Protocol):
    """Reads splits on and on, ahead of whoever asks. Executor, one thread."""

    def poll(self) -> pa.RecordBatch | None:
        """What has been fetched, a batch at most, each split's in offset order; None: nothing. It
        waits for nothing.

        Raises: as `sluice.runtime.contracts.SplitReader.read`.
        """
        ...

    def positions(self) -> Mapping[SplitKey, int]:
        """Of each split the next offset to read: behind what `poll` has returned so far."""
        ...

    def records_read(self) -> Mapping[SplitKey, RecordsRead]:
        """How far records of each split came, and who wrote the last one; of a split of which none
        came, nothing. Between there and its position lie markers only."""
        ...

    def restart_at(self, splits: Sequence[SplitRange]) -> None:
        """Follow these splits, from their ``start_offset`` on, and no others."""
        ...

    def close(self) -> None:
        """Release connections. Never raises."""
        ...


class StreamingReader(Protocol):
    """Picklable."""

    @property
    def no_progress_timeout_s(self) -> float:
        """A split that has records, and of which none comes for so long, is out of reach."""
        ...

    def follow(
        self, splits: Sequence[SplitRange], ends: Mapping[SplitKey, int] | None
    ) -> RecordStream:
        """Read on from each split's ``start_offset``.

        Args:
            ends: of a bounded source: no record at or behind them is returned; None: there are no
                ends, and a split that has none is read without one.
        """
        ...


@runtime_checkable
class ContinuousSource(Source, Protocol):
    """A source whose splits can be followed."""

    def hindrance(self) -> str | None:
        """The setting of this source that asks for epochs cut by the driver; None: there is
        none."""
        ...

    def streaming_reader(self) -> StreamingReader:
        """Executor side."""
        ...


class ContinuousWriter(SinkWriter, Protocol):
    """A writer whose epoch's ranges are known only at its end. Executor.

    `write` and `end_epoch` are called by the task's thread, `pre_commit` and what follows it behind
    them by another one, while the task's thread writes the next epoch with the next writer. What is
    pre-committed is kept by its writer until that commits or releases it.
    """

    def end_epoch(self, ranges: Sequence[SplitRange], *, checkpoint_id: int) -> None:
        """No record follows; the epoch has read these ranges. Returns once the sink has taken all
        its records: those of the next epoch must not come before them.

        Raises: as `write`.
        """
        ...

    def commit(self, *, timeout_s: float) -> bool:
        """The epoch is decided: make visible what was pre-committed. Never raises.

        True only if that was acknowledged; otherwise nobody knows here, and the sink's `Committer`
        finds out. In any case the writer has let go of all that it kept.
        """
        ...

    def release(self) -> None:
        """Let go of what was pre-committed, and leave its end to the `Committer`. Never raises."""
        ...


@runtime_checkable
class ContinuousWriterFactory(WriterFactory, Protocol):
    """Picklable; its writers may be written one while the last one is pre-committed."""

    @property
    def longest_interval_s(self) -> float | None:
        """Barriers must come at least so often: an epoch is open from one to the next, and until
        its decision. None: there is no limit, or only the remote knows it: then the sink's check
        tells ``transaction_timeout_s``."""
        ...

    def open_continuous(self, scope: TaskScope, registry: AttemptRegistry) -> ContinuousWriter:
        """As `open`, for an epoch whose ranges and checkpoint are not known yet."""
        ...
