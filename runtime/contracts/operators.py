"""Sources and sinks as a Job takes them, and the driver's side of a source."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import pyarrow as pa

from sluice.runtime.contracts.committing import SinkCoordinator
from sluice.runtime.contracts.writing import Frame, FrameWriter, SplitReader, WriterFactory
from sluice.runtime.model.event_time import EventTime
from sluice.runtime.model.model import SplitKey, SplitRange, StateEntry
from sluice.runtime.model.on_error import Policy
from sluice.runtime.model.rate_limit import PidRateLimit

__all__ = [
    "Backlog",
    "DeadLetterSink",
    "DeserializingSource",
    "EventTimeSink",
    "FrameSink",
    "NarrowingSource",
    "RateLimitedSource",
    "RereadingSource",
    "SelectiveSink",
    "Sink",
    "Source",
    "SourceFunction",
    "SplitEnumerator",
    "TaskSink",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Records of a split that are not read yet.

    Attributes:
        records: up to the end that readers may see, or a bounded run's end; >= 0.
        lost_records: of them, those that the source does not have any more; >= 0.
    """

    records: int
    lost_records: int = 0


class SplitEnumerator(Protocol):
    """The driver's side of one source. Called by one thread at a time."""

    def resolve_start(self, *, timeout_s: float) -> tuple[SplitRange, ...]:
        """The starting position of every split as numbers (empty ranges), before any record."""
        ...

    def restore(self, positions: Sequence[SplitRange], *, timeout_s: float) -> None:
        """Go on at the ends of ``positions``; SourceChangedError, DataLostError by name."""
        ...

    def readable(self, ranges: Sequence[SplitRange], *, timeout_s: float) -> tuple[SplitRange, ...]:
        """Of ranges that were cut once, those whose records are still there to be read: asked for
        now, so that who has read them knows by it whose they were. May come before `restore`.

        Raises:
            SourceChangedError: a name stands for something else now.
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
        """Splits that are new since the last call, as empty ranges at their first record, or at the
        first that is left of those that may be older than the source's look at them."""
        ...

    def cut(
        self, positions: Sequence[SplitRange], *, max_records: int | None, timeout_s: float
    ) -> tuple[SplitRange, ...]:
        """A barrier: for each position (its ``end_offset`` is where to go on) the next range.

        An unchanged split gives an empty range. Never beyond the bounded end.
        """
        ...

    def is_finished(self, positions: Sequence[SplitRange]) -> bool:
        """Bounded sources: whether every position has reached its end. Unbounded: False."""
        ...

    def fixed_ends(self) -> Mapping[SplitKey, int] | None:
        """Of a bounded source, once it has started: where each split that it will ever read ends.
        Unbounded: None. Asks nobody."""
        ...

    def committed(self, positions: Sequence[SplitRange]) -> None:
        """Told after the committed mark: publish group offsets for lag tools. Never raises."""
        ...

    def lag_records(self, positions: Sequence[SplitRange]) -> int | None:
        """Records not read yet, if cheaply known from the last cut."""
        ...

    def measure(
        self, positions: Sequence[SplitRange], *, timeout_s: float
    ) -> Mapping[SplitKey, Backlog]:
        """What lies behind each position now: asked for, and nothing is cut or remembered.

        Splits that the source cannot see at the moment are left out.

        Raises:
            UnreachableError: nobody answers.
        """
        ...

    def close(self) -> None:
        """Release connections."""
        ...


class Source(Protocol):
    """What `Job.source` takes. Picklable (without connections)."""

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
        """Whether no record is yielded that its writer may yet abort, or has aborted."""
        ...

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        """As `SinkCoordinator.check`; with ``partitions``, the number of splits there are, where
        the source can tell."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFunction:
    """What a source wants done to its batches before all functions: deserializing, for example.

    Attributes:
        name: of the operator.
        uid: its stable id, if there is one.
        function: as one of ``map_batches``.
        policy: for records that it raises for; None: the task fails.
    """

    name: str
    uid: str | None
    function: Callable[[pa.RecordBatch], pa.RecordBatch]
    policy: Policy | None


@runtime_checkable
class DeserializingSource(Source, Protocol):
    """A source with functions of its own, which run in the tasks, behind its reader."""

    @property
    def functions(self) -> Sequence[SourceFunction]:
        """In order; none: the records are used as they are read."""
        ...


@runtime_checkable
class RateLimitedSource(Source, Protocol):
    """A source whose regions may be kept from reading more than they can write in time."""

    @property
    def rate_limit(self) -> PidRateLimit | None:
        """For each region of its own; None: there is no limit."""
        ...


@runtime_checkable
class RereadingSource(Source, Protocol):
    """A source that may read what a sink of its own pipeline writes."""

    def rereads(self, sink: "Sink") -> str | None:
        """What both of them name; None: nothing, as far as their settings tell."""
        ...


@runtime_checkable
class NarrowingSource(Source, Protocol):
    """A source that need not make columns that nobody reads."""

    def narrowed(self, columns: Collection[str]) -> Source:
        """The same source, whose `reader` and `schema_ddl` have these columns and perhaps others,
        at least one; itself where the user has chosen the columns."""
        ...


class Sink(Protocol):
    """What `.sink(…)` takes. Picklable (without connections)."""

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
        """Whether it promises that every record is visible once."""
        ...

    def coordinator(self) -> SinkCoordinator:
        """Driver side."""
        ...

    def source_ranges(self, committable: StateEntry) -> Sequence[tuple[str, int, int, int]]:
        """(topic, partition, start, end) whose records a committable holds, if known
        (`two-phase-repair`)."""
        ...

    def record_counts(self, committable: StateEntry) -> Mapping[str, int]:
        """How many records it holds for each topic; empty if it does not say
        (`two-phase-repair`)."""
        ...

    def settings(self) -> Mapping[str, str]:
        """Settings for ``_metadata``, secrets redacted."""
        ...


@runtime_checkable
class TaskSink(Sink, Protocol):
    """A sink whose records are written by the tasks themselves, in Python."""

    def writer_factory(self) -> WriterFactory:
        """Executor side."""
        ...


@runtime_checkable
class SelectiveSink(Sink, Protocol):
    """A sink that looks at columns of certain names only."""

    @property
    def columns_used(self) -> Collection[str]:
        """Their names; others need not be handed to it."""
        ...


@runtime_checkable
class DeadLetterSink(TaskSink, Protocol):
    """A sink whose writers are `DeadLetterWriter`s."""

    def with_dead_letters(self, topics: Sequence[str]) -> Self:
        """The same sink, whose start check asks for these topics, too.

        Raises:
            ConfigError: one cannot be a topic, or is the sink's own.
        """
        ...


@runtime_checkable
class FrameSink(Sink, Protocol):
    """A sink that is given each batch's frame, for Spark's own writers or tasks at its end."""

    def check_frame(self, frame: Frame) -> None:
        """Before anything is written anywhere; ConfigError when its rows do not suit the sink.

        The frame has the columns and types of those to come, and is never run.
        """
        ...

    def frame_writer(self) -> FrameWriter:
        """Driver side."""
        ...


@runtime_checkable
class EventTimeSink(Sink, Protocol):
    """A sink that may want to know how far the records are in event time."""

    def event_time(self) -> EventTime | None:
        """How watermarks are to be made; None: they are not needed, and cost nothing."""
        ...
