"""How far a region's records are in event time: told by its tasks, kept in its splits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam

from sluice.runtime.contracts import EventTimeSink, Sink, SplitReader, TimedSplitReader
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.event_time import EventTime, advanced, least_watermark_ms
from sluice.runtime.model.model import SplitRange

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator

__all__ = ["EventTimes", "LargestTimestamps", "TimedReading", "event_time_of"]

_Range = tuple[str, str, int, int, int]
_Told = dict[_Range, int]


class LargestTimestamps(AccumulatorParam[_Told]):
    """The largest timestamp of each range.

    A range that is read twice says the same twice, so it does not matter which tasks count.
    """

    def zero(self, value: _Told) -> _Told:
        """See `AccumulatorParam`."""
        return {}

    def addInPlace(self, value1: _Told, value2: _Told) -> _Told:
        """See `AccumulatorParam`."""
        return {key: _larger(value1.get(key), value2.get(key)) for key in value1 | value2}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedReading:
    """`sluice.runtime.contracts.SplitReader` that leaves each range's largest timestamp behind.

    Picklable; executor. A reader that is not asked to its end tells less, and the watermark is
    then too low, never too high.
    """

    reader: TimedSplitReader
    told: "Accumulator[_Told]"

    def read(self, splits: Sequence[SplitRange]) -> Iterator[pa.RecordBatch]:
        """See `SplitReader.read`."""
        return self.reader.read_timed(splits, self._tell)

    def _tell(self, split: SplitRange, largest_ms: int) -> None:
        self.told.add({_key(split): largest_ms})


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimes:
    """The event time of one life of a region. Driver; the batch callback's thread.

    Attributes:
        settings: how watermarks are made.
        told: an accumulator of `LargestTimestamps`.
    """

    settings: EventTime
    told: "Accumulator[_Told]"

    @classmethod
    def begin(cls, settings: EventTime, context: "SparkContext") -> Self:
        """For a new life: a late task of the last one tells it nothing."""
        return cls(settings=settings, told=context.accumulator({}, LargestTimestamps()))

    def reader(self, reader: SplitReader) -> TimedReading:
        """``reader``, timed.

        Raises:
            ConfigError: the source has no timestamps.
        """
        if not isinstance(reader, TimedSplitReader):
            raise ConfigError(
                "a sink asks for event time, and the source tells no timestamps",
                {"reader": type(reader).__name__},
                "Trigger by process-time instead.",
            )
        return TimedReading(reader=reader, told=self.told)

    def after_batch(
        self, splits: Sequence[SplitRange], *, fetched_ms: int
    ) -> tuple[tuple[SplitRange, ...], int | None]:
        """The batch's splits with what its tasks told, and the region's least watermark.

        Args:
            fetched_ms: wall clock when the batch began, just after its offsets were fetched.
        """
        told, self.told.value = self.told.value, {}
        moved = tuple(advanced(split, told.get(_key(split)), self.settings) for split in splits)
        return moved, least_watermark_ms(moved, self.settings, now_ms=fetched_ms)


def event_time_of(sinks: Sequence[Sink]) -> EventTime | None:
    """The event time that a region's sinks ask for; the most patient one where several do."""
    asked = [
        found
        for sink in sinks
        if isinstance(sink, EventTimeSink) and (found := sink.event_time()) is not None
    ]
    if not asked:
        return None
    timeouts = [found.idle_timeout_ms for found in asked]
    known = [timeout for timeout in timeouts if timeout is not None]
    return EventTime(
        delay_ms=max(found.delay_ms for found in asked),
        idle_timeout_ms=max(known) if len(known) == len(timeouts) else None,
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
