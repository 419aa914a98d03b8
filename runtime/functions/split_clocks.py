"""The event time of the splits that one task reads: each row's time, and each split's watermark."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.runtime.contracts import RowTimes
from sluice.runtime.errors import ConfigError
from sluice.runtime.functions.function_context import FunctionContext
from sluice.runtime.model.event_time import EVENT_TIME_COLUMN, EventTime, Punctuated, times_ms
from sluice.runtime.model.splits import SplitKey, SplitRange
from sluice.runtime.model.timestamps import later
from sluice.runtime.process.host_clock import wall_ms

__all__ = ["BEYOND_MAX_FUTURE", "WITHOUT_TIME", "SplitClocks", "clocks_of"]

BEYOND_MAX_FUTURE = "beyond_max_future"
"""Counter: rows whose time was further ahead of the clock than ``max_future``."""
WITHOUT_TIME = "without_time"
"""Counter: rows without a time."""

_TIME = pa.timestamp("ms", tz="UTC")

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(slots=True)
class _SplitClock:
    """Times that a task has observed in a split; None: it has observed none yet."""

    largest_ms: int | None = None
    watermark_ms: int | None = None


class SplitClocks:
    """The first function of a pipeline whose source has a time: it observes each source batch.

    It gives each row its time (`EventTime.column`), and advances the watermark of its split. A
    batch that is read again changes nothing: watermarks only grow. Picklable; executor, the task's
    thread.

    Args:
        time: the user's settings.
        row_times: the times of a batch's rows.
        clock_ms: wall clock of this host; `note_time` sets it by the driver's.
    """

    is_row_wise: ClassVar[bool] = True

    def __init__(
        self, time: EventTime, row_times: RowTimes, clock_ms: Callable[[], int] = wall_ms
    ) -> None:
        self.time = time
        self._row_times = row_times
        self._clock_ms = clock_ms
        self._offset_ms = 0
        self._clocks: dict[tuple[str, int], _SplitClock] = {}
        self._only_topic: str | None = None

    def note_time(self, driver_ms: int) -> None:
        """The driver's clock shows this now: ``max_future`` counts from it."""
        if driver_ms:
            self._offset_ms = driver_ms - self._clock_ms()

    def keep(self, splits: Iterable[SplitKey]) -> None:
        """From now on the task reads these splits, and no others."""
        places = {(topic, partition) for _, topic, partition in splits}
        self._clocks = {place: c for place, c in self._clocks.items() if place in places}
        topics = {topic for topic, _ in places}
        self._only_topic = topics.pop() if len(topics) == 1 else None

    def forget(self) -> None:
        """Forget all rows: they will be read again, or by another task."""
        self._clocks.clear()

    def ended(self, split: SplitRange) -> SplitRange:
        """The split at the end of a range, with the times that were observed up to there: never
        earlier than those that it has."""
        clock = self._clocks.get((split.topic, split.partition))
        if clock is None:
            return split
        return replace(
            split,
            largest_timestamp_ms=later(split.largest_timestamp_ms, clock.largest_ms),
            watermark_ms=later(split.watermark_ms, clock.watermark_ms),
        )

    def watermark_ms(self, split: SplitKey) -> int | None:
        """The watermark of a split, as far as this task has observed it."""
        clock = self._clocks.get(split[1:])
        return None if clock is None else clock.watermark_ms

    def __call__(self, batch: pa.RecordBatch, context: FunctionContext) -> pa.RecordBatch:
        """``batch`` with the time of each row.

        Raises:
            ConfigError: it has no times, lacks the positions of its rows, or has a column of the
                name that the times get.
        """
        times = self._row_times(batch)
        self._observe(batch, times, context)
        if self.time.column != EVENT_TIME_COLUMN:
            return batch
        if EVENT_TIME_COLUMN in batch.schema.names:
            raise ConfigError(
                "the rows have a column with the name of their event time",
                {"column": EVENT_TIME_COLUMN, "of": self.time.of},
                f'Name this column in EventTime("{EVENT_TIME_COLUMN}"), or rename it.',
            )
        return batch.append_column(EVENT_TIME_COLUMN, times.cast(_TIME))

    def _observe(
        self, batch: pa.RecordBatch, times: pa.Int64Array, context: FunctionContext
    ) -> None:
        if not batch.num_rows:
            return
        strategy = self.time.strategy
        without, ahead = context.counter(WITHOUT_TIME), context.counter(BEYOND_MAX_FUTURE)
        values, is_known, in_future = self._within_reach(times)
        without.inc(times.null_count)
        if in_future:
            ahead.inc(in_future)
        marks = None
        if isinstance(strategy, Punctuated):
            found = times_ms(strategy.function(batch), rows=batch.num_rows, name="Punctuated")
            marks = self._within_reach(found)
        for clock, rows in self._by_split(batch):
            largest = _largest(values, is_known, rows)
            clock.largest_ms = later(clock.largest_ms, largest)
            mark = largest if marks is None else _largest(marks[0], marks[1], rows)
            if mark is not None:
                clock.watermark_ms = later(clock.watermark_ms, mark - self.time.delay_ms)

    def _within_reach(self, times: pa.Int64Array) -> tuple[IntArray, BoolArray | None, int]:
        """The times, which of them count (None: all), and how many are too far in the future."""
        values: IntArray = times.fill_null(0).to_numpy(zero_copy_only=False)
        is_known: BoolArray | None = None
        if times.null_count:
            is_known = times.is_valid().to_numpy(zero_copy_only=False)
        limit_ms = self.time.max_future_ms
        if limit_ms is None:
            return values, is_known, 0
        is_near: BoolArray = values <= self._clock_ms() + self._offset_ms + limit_ms
        too_far = int(len(values) - np.count_nonzero(is_near))
        if not too_far:
            return values, is_known, 0
        return values, _both(is_near, is_known), too_far

    def _by_split(self, batch: pa.RecordBatch) -> Iterable[tuple[_SplitClock, BoolArray | None]]:
        """Each split in the batch, with its rows; None: all of them."""
        missing = {"topic", "partition"} - set(batch.schema.names)
        if missing:
            raise ConfigError(
                "event time needs the positions of rows",
                {"missing": ",".join(sorted(missing)), "columns": ",".join(batch.schema.names)},
                "Let the source read topic and partition.",
            )
        partitions: IntArray = batch.column("partition").to_numpy(zero_copy_only=False)
        for topic, of_topic in self._topics(batch):
            mine = partitions if of_topic is None else partitions[of_topic]
            first = int(mine[0])
            if (mine == first).all():
                yield self._clock_of(topic, first), of_topic
                continue
            for partition in np.unique(mine).tolist():
                rows = partitions == partition
                yield (
                    self._clock_of(topic, partition),
                    rows if of_topic is None else rows & of_topic,
                )

    def _topics(self, batch: pa.RecordBatch) -> Iterable[tuple[str, BoolArray | None]]:
        if self._only_topic is not None:
            return [(self._only_topic, None)]
        column = batch.column("topic").dictionary_encode()
        codes = column.indices.to_numpy(zero_copy_only=False)
        names = column.dictionary.to_pylist()
        if len(names) == 1:
            return [(names[0], None)]
        return [(name, codes == code) for code, name in enumerate(names)]

    def _clock_of(self, topic: str, partition: int) -> _SplitClock:
        return self._clocks.setdefault((topic, partition), _SplitClock())


def clocks_of(functions: Iterable[Any]) -> SplitClocks | None:
    """The clocks among a pipeline's functions (`ChainedFunction`); None: its source has no time."""
    return next((f.function for f in functions if isinstance(f.function, SplitClocks)), None)


def _largest(values: IntArray, is_known: BoolArray | None, rows: BoolArray | None) -> int | None:
    """The largest known value of these rows; None: there is none."""
    kept = _both(is_known, rows)
    found = values if kept is None else values[kept]
    return int(found.max()) if len(found) else None


def _both(first: BoolArray | None, second: BoolArray | None) -> BoolArray | None:
    """The rows that both select; None selects all."""
    if first is None or second is None:
        return second if first is None else first
    return first & second
