"""Sources and sinks as a Job takes them, and the driver's side of a source."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import pyarrow as pa

from sluice.runtime.contracts.committing import SinkCoordinator
from sluice.runtime.contracts.writing import Frame, FrameWriter, SplitReader, WriterFactory
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.event_time import EventTime
from sluice.runtime.model.on_error import Policy
from sluice.runtime.model.rate_limit import PidRateLimit
from sluice.runtime.model.splits import SplitKey, SplitRange
from sluice.runtime.model.task_memory import TaskMemory

__all__ = [
    "AgeingSource",
    "Backlog",
    "CheckedSink",
    "DeadLetterSink",
    "DeserializingSource",
    "DropInSink",
    "EndableSource",
    "EventTimeSink",
    "ForgettingSource",
    "FrameSink",
    "NarrowingSource",
    "RateLimitedSource",
    "RereadingSource",
    "RowTimes",
    "SelectiveSink",
    "Sink",
    "Source",
    "SourceFunction",
    "SplitEnumerator",
    "StoredSink",
    "TaskSink",
    "TimedSource",
    "TunedSink",
    "TunedSource",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Records of a split that are not yet read.

    Attributes:
        records: up to the end that readers may see, or to the end of a bounded run; >= 0.
        lost_records: the part of them that the source no longer has; >= 0.
    """

    records: int
    lost_records: int = 0


class SplitEnumerator(Protocol):
    """The driver's side of one source. Called by one thread at a time."""

    def resolve_start(self, *, timeout_s: float) -> tuple[SplitRange, ...]:
        """The starting position of every split as numbers (empty ranges), before any record."""
        ...

    def restore(self, positions: Sequence[SplitRange], *, timeout_s: float) -> None:
        """Resume at the ends of ``positions``; SourceChangedError, DataLostError by name."""
        ...

    def adopt(self, positions: Sequence[SplitRange], *, timeout_s: float) -> tuple[SplitRange, ...]:
        """Take over positions from another source with the same records at the same offsets.

        Called before `restore`.

        Returns:
            The positions with the identity of this source's splits.
        Raises:
            SourceChangedError: a split does not exist, or does not hold its position.
        """
        ...

    def readable(self, ranges: Sequence[SplitRange], *, timeout_s: float) -> tuple[SplitRange, ...]:
        """Filter planned ranges to those whose records still exist. The caller learns from the
        answer which region read them. May be called before `restore`.

        Raises:
            SourceChangedError: a name now stands for something else.
        """
        ...

    def replayable(
        self,
        ranges: Sequence[SplitRange],
        *,
        timeout_s: float,
        pause: Callable[[float], object] | None = None,
    ) -> tuple[SplitRange, ...]:
        """Check that ranges of an earlier process can be read again as they were.

        May be called before `restore`. Takes longer than ``timeout_s`` if records seem to be gone:
        that must last before it counts.

        Args:
            ranges: as an earlier process cut them.
            pause: waits so many seconds between two checks, while other threads may use the source;
                None: the source waits, and no other thread may use it.
        Returns:
            The ranges that hold records, without trailing markers that are gone, and without
            partitions that were deleted and may be skipped.
        Raises:
            SourceChangedError: a topic was deleted and made again under its name.
            DataLostError: records of a range are gone.
            UnreachableError: a leader does not answer.
        """
        ...

    def discover(self, *, timeout_s: float) -> tuple[SplitRange, ...]:
        """Splits that are new since the last call, as empty ranges at their first record. A split
        that may be older than the source's view starts at its first remaining record."""
        ...

    def cut(
        self, positions: Sequence[SplitRange], *, max_records: int | None, timeout_s: float
    ) -> tuple[SplitRange, ...]:
        """A barrier: the next range of each position, which starts at its ``end_offset``.

        A split without new records gives an empty range. Never passes the end of a bounded source.
        """
        ...

    def is_finished(self, positions: Sequence[SplitRange]) -> bool:
        """Bounded sources: whether every position has reached its end. Unbounded: False."""
        ...

    def fixed_ends(self) -> Mapping[SplitKey, int] | None:
        """Bounded source after its start: the end of each split that it will ever read. Unbounded:
        None. Makes no request."""
        ...

    def committed(self, positions: Sequence[SplitRange]) -> None:
        """Called after the committed mark: publish group offsets for lag tools. Never raises."""
        ...

    def lag_records(self, positions: Sequence[SplitRange]) -> int | None:
        """Records not yet read, if the last barrier makes them cheap to know."""
        ...

    def measure(
        self, positions: Sequence[SplitRange], *, timeout_s: float
    ) -> Mapping[SplitKey, Backlog]:
        """Records after each position now: makes requests, but plans and keeps nothing.

        Leaves out splits that the source cannot reach at the moment.

        Raises:
            UnreachableError: no server answers.
        """
        ...

    def close(self) -> None:
        """Release connections."""
        ...


class Source(Protocol):
    """A source, as `Job.source` takes it. Picklable (without connections)."""

    @property
    def name(self) -> str:
        """Operator name; unique in the job unless `uid` is set."""
        ...

    @property
    def uid(self) -> str | None:
        """The user's stable id, if given."""
        ...

    @property
    def bounded(self) -> bool:
        """Whether the run ends when everything present at its start has been read."""
        ...

    @property
    def yields_only_committed(self) -> bool:
        """Whether it yields only committed records."""
        ...

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        """As `SinkCoordinator.check`; with ``partitions``, the number of splits, if the source
        knows it."""
        ...

    def enumerator(self, source_id: str) -> SplitEnumerator:
        """Driver side."""
        ...

    def reader(self) -> SplitReader:
        """Executor side."""
        ...

    def schema_ddl(self) -> str:
        """Spark DDL of the columns that `reader` yields."""
        ...

    def settings(self) -> Mapping[str, str]:
        """Settings for ``_metadata``, secrets redacted."""
        ...


RowTimes = Callable[[pa.RecordBatch], pa.Int64Array]
"""The time of each row in milliseconds since 1970; null: the row has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFunction:
    """A function that a source runs on its batches before all others, such as deserializing.

    Attributes:
        name: of the operator.
        uid: its stable id, if there is one.
        function: as one of ``map_batches``.
        policy: for records for which it raises; None: the task fails.
    """

    name: str
    uid: str | None
    function: Callable[..., pa.RecordBatch]
    policy: Policy | None


@runtime_checkable
class DeserializingSource(Source, Protocol):
    """A source with functions of its own, which run in the tasks after its reader."""

    @property
    def functions(self) -> Sequence[SourceFunction]:
        """In order; none: the records are used unchanged."""
        ...


@runtime_checkable
class TimedSource(Source, Protocol):
    """A source whose rows have an event time. The last of its own functions observes it
    (`sluice.runtime.functions.split_clocks`)."""

    @property
    def event_time(self) -> EventTime | None:
        """The user's settings; None: the source has no event time."""
        ...


@runtime_checkable
class RateLimitedSource(Source, Protocol):
    """A source that can limit how fast its regions read."""

    @property
    def rate_limit(self) -> PidRateLimit | None:
        """For each region separately; None: there is no limit."""
        ...


@runtime_checkable
class AgeingSource(Source, Protocol):
    """A source whose records have a timestamp that sinks keep, and delete records by."""

    def outlived(
        self, sink: "Sink", positions: Sequence[SplitRange], *, timeout_s: float
    ) -> str | None:
        """The unread records that are older than the sink keeps records, and that it deletes as
        soon as they are copied; None: there are none, or that is unknown. Never raises.

        Args:
            positions: ranges that end where the source has read to.
            timeout_s: for each request.
        """
        ...


@runtime_checkable
class EndableSource(Source, Protocol):
    """A source that can also end: at the last records that are present at its start."""

    def until_end(self) -> Source:
        """The same source, bounded."""
        ...


@runtime_checkable
class ForgettingSource(Source, Protocol):
    """A source that gives up topics which an earlier run has read."""

    @property
    def forgotten(self) -> frozenset[str]:
        """Their names. The run starts without their positions."""
        ...


@runtime_checkable
class RereadingSource(Source, Protocol):
    """A source that may read what a sink of its own pipeline writes."""

    def rereads(self, sink: "Sink", topics: Sequence[str] | None = None) -> str | None:
        """A name that both use; None: none, as far as their settings show.

        Args:
            topics: that the sink writes; None: that of its output.
        """
        ...


@runtime_checkable
class NarrowingSource(Source, Protocol):
    """A source that can leave out columns that no function or sink reads."""

    def narrowed(self, columns: Collection[str]) -> Source:
        """The same source, whose `reader` and `schema_ddl` have these columns and perhaps others,
        at least one. Returns itself if the user chose the columns."""
        ...


class Sink(Protocol):
    """A sink, as `.sink(…)` takes it. Picklable (without connections)."""

    @property
    def name(self) -> str:
        """Operator name; unique in the job unless `uid` is set."""
        ...

    @property
    def uid(self) -> str | None:
        """The user's stable id, if given."""
        ...

    @property
    def is_exactly_once(self) -> bool:
        """Whether it promises that every record becomes visible exactly once."""
        ...

    def coordinator(self) -> SinkCoordinator:
        """Driver side."""
        ...

    def source_ranges(self, committable: StateEntry) -> Sequence[tuple[str, int, int, int]]:
        """(topic, partition, start, end) of the records in a committable, if known
        (`two-phase-repair`)."""
        ...

    def record_counts(self, committable: StateEntry) -> Mapping[str, int]:
        """Number of records of each topic in a committable; empty if unknown
        (`two-phase-repair`)."""
        ...

    def settings(self) -> Mapping[str, str]:
        """Settings for ``_metadata``, secrets redacted."""
        ...


@runtime_checkable
class TaskSink(Sink, Protocol):
    """A sink whose records the tasks write themselves, in Python."""

    def writer_factory(self) -> WriterFactory:
        """Executor side."""
        ...


@runtime_checkable
class DropInSink(TaskSink, Protocol):
    """A sink of a drop-in format: ``writeStream`` and ``df.write`` make one from their options."""

    def target(self) -> tuple[str, ...]:
        """Where it writes. Two sinks of a format with one target are one sink to ``df.write``,
        which knows a batch by its target and id. Without credentials, and without settings that
        may change while the target stays the same.
        """
        ...

    def may_have_written(self, committable: StateEntry) -> bool:
        """Whether a committable of this target is this sink's.

        False where settings that are no part of the target name another place than then: a repeated
        batch is refused.
        """
        ...

    def may_share_output(self, settings: Mapping[str, str]) -> bool:
        """Whether readers of this sink's output may find there what another sink has written.

        ``settings``: of the other sink, which may have another format; see `Sink.settings`.
        """
        ...


@runtime_checkable
class SelectiveSink(Sink, Protocol):
    """A sink that reads only columns of certain names."""

    @property
    def columns_used(self) -> Collection[str]:
        """The names; the sink needs no other columns."""
        ...


@runtime_checkable
class DeadLetterSink(TaskSink, Protocol):
    """A sink whose writers are `DeadLetterWriter`s."""

    @property
    def dead_letters_only(self) -> bool:
        """Whether its writers ignore all other records."""
        ...

    def with_dead_letters(self, topics: Sequence[str]) -> Self:
        """The same sink; its start check also checks these topics.

        Raises:
            ConfigError: a name is not a valid topic, or is the sink's own output.
        """
        ...


@runtime_checkable
class CheckedSink(Sink, Protocol):
    """A sink that does not take rows of every schema."""

    def check_frame(self, frame: Frame) -> None:
        """Runs before anything is written; ConfigError if the rows do not suit the sink.

        The frame has the columns and types of the later rows, and never runs.
        """
        ...


@runtime_checkable
class FrameSink(CheckedSink, Protocol):
    """A sink that receives each batch's frame, for Spark's own writers or for tasks at its end."""

    def frame_writer(self) -> FrameWriter:
        """Driver side."""
        ...


@runtime_checkable
class StoredSink(Sink, Protocol):
    """A sink that writes into a store with options."""

    def use_storage_options(self, options: Mapping[str, str]) -> None:
        """Take those of the job, unless the user gave the sink its own. May be repeated."""
        ...


@runtime_checkable
class EventTimeSink(Sink, Protocol):
    """A sink that can use the event time of the records."""

    def event_time(self) -> EventTime | None:
        """How to make watermarks; None: the sink needs none, and they cost nothing."""
        ...


# --- sources and sinks that Sluice tunes: within a task's memory, and as the source is compressed


@runtime_checkable
class TunedSource(Source, Protocol):
    """A source whose reader holds records in memory."""

    @property
    def claimed_bytes(self) -> int:
        """The memory that the user's own settings take of a task; 0: there are none."""
        ...

    def within(self, memory: TaskMemory) -> Self:
        """The same source, whose readers keep to this share.

        Raises:
            ConfigError: the share is too small.
        """
        ...

    def compression(self, *, timeout_s: float) -> str | None:
        """The compression of its records, by a name that sinks know: ``none``, ``gzip``, …; None:
        there are no records yet, or no broker answered in time. Driver; never raises.

        Logs whatever else the brokers report that does not fit into its memory.
        """
        ...


@runtime_checkable
class TunedSink(TaskSink, Protocol):
    """A sink whose writers hold records in memory, and may compress them."""

    @property
    def claimed_bytes(self) -> int:
        """As of `TunedSource`."""
        ...

    @property
    def keeps_compression(self) -> bool:
        """Whether it takes the compression of the source: its user has set none."""
        ...

    def within(self, memory: TaskMemory) -> Self:
        """As of `TunedSource`."""
        ...

    def compressed_as(self, codec: str) -> Self:
        """The same sink, with this compression of its records."""
        ...
