"""The event time of a region's records: its tasks report it, its splits keep it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam

from sluice.runtime.contracts import EventTimeSink, Sink, SplitReader, TimedSplitReader
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.event_time import (
    KAFKA_TIME,
    BoundedOutOfOrderness,
    EventTime,
    advanced,
    least_watermark_ms,
)
from sluice.runtime.model.splits import SplitRange

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator

__all__ = ["EventTimes", "LargestTimestamps", "TimedReading", "event_time_of"]

_Range = tuple[str, str, int, int, int]
_Largest = dict[_Range, int]


class LargestTimestamps(AccumulatorParam[_Largest]):
    """The largest timestamp of each range.

    A range that is read twice has the same timestamp both times, so repeated tasks do no harm.
    """

    def zero(self, value: _Largest) -> _Largest:
        """See `AccumulatorParam`."""
        return {}

    def addInPlace(self, value1: _Largest, value2: _Largest) -> _Largest:
        """See `AccumulatorParam`."""
        return {key: _larger(value1.get(key), value2.get(key)) for key in value1 | value2}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedReading(SplitReader):
    """A `sluice.runtime.contracts.SplitReader` that reports each range's largest timestamp.

    Picklable; executor. If the task does not read to the end, the report may be missing. The
    watermark is then too low, never too high.
    """

    reader: TimedSplitReader
    reported: "Accumulator[_Largest]"

    def read(self, splits: Sequence[SplitRange]) -> Iterator[pa.RecordBatch]:
        return self.reader.read_timed(splits, self._report)

    def _report(self, split: SplitRange, largest_ms: int) -> None:
        self.reported.add({_key(split): largest_ms})


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimes:
    """The event time of one attempt of a region. Driver; the batch callback's thread.

    Attributes:
        settings: of the watermarks.
        reported: an accumulator of `LargestTimestamps`.
    """

    settings: EventTime
    reported: "Accumulator[_Largest]"

    @classmethod
    def begin(cls, settings: EventTime, context: "SparkContext") -> Self:
        """For a new attempt: it gets no report of a late task of the last one."""
        return cls(settings=settings, reported=context.accumulator({}, LargestTimestamps()))

    def reader(self, reader: SplitReader) -> TimedReading:
        """``reader``, timed.

        Raises:
            ConfigError: the source has no timestamps.
        """
        if not isinstance(reader, TimedSplitReader):
            raise ConfigError(
                "a sink needs event time, but the source has no timestamps",
                {"reader": type(reader).__name__},
                "Use the process-time trigger instead.",
            )
        return TimedReading(reader=reader, reported=self.reported)

    def after_batch(
        self, splits: Sequence[SplitRange], *, fetched_ms: int
    ) -> tuple[tuple[SplitRange, ...], int | None]:
        """The batch's splits with their new timestamps, and the region's lowest watermark.

        Args:
            fetched_ms: wall clock when the batch began, just after its offsets were fetched.
        """
        reported, self.reported.value = self.reported.value, {}
        moved = tuple(advanced(split, reported.get(_key(split)), self.settings) for split in splits)
        return moved, least_watermark_ms(moved, self.settings, now_ms=fetched_ms)


def event_time_of(sinks: Sequence[Sink]) -> EventTime | None:
    """The event time settings of a region's sinks; the longest delay and timeout of several."""
    requested = [
        found
        for sink in sinks
        if isinstance(sink, EventTimeSink) and (found := sink.event_time()) is not None
    ]
    if not requested:
        return None
    timeouts_ms = [found.idle_after_ms for found in requested]
    known_ms = [each for each in timeouts_ms if each is not None]
    return EventTime(
        KAFKA_TIME,
        strategy=BoundedOutOfOrderness(max(found.delay_ms for found in requested) / 1000),
        idle_after=max(known_ms) / 1000 if len(known_ms) == len(timeouts_ms) else None,
    )


def _key(split: SplitRange) -> _Range:
    return (
        split.source_id,
        split.topic,
        split.partition,
        split.start_offset,
        split.end_offset,
    )


def _larger(first: int | None, second: int | None) -> int:
    return max(ms for ms in (first, second) if ms is not None)
