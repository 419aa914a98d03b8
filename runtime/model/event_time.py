"""Event time: where a row's time is, how watermarks follow from it, and which splits count. Pure.

A watermark of W says: later rows of the split have times of W or more. So a row is late if its time
is before the watermark of a barrier that has passed.
"""

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.model.timestamps import Duration, duration_ms

__all__ = [
    "EVENT_TIME_COLUMN",
    "KAFKA_TIME",
    "BoundedOutOfOrderness",
    "EventTime",
    "Header",
    "Monotonic",
    "Punctuated",
    "WatermarkStrategy",
    "advanced",
    "least_of",
    "least_watermark_ms",
    "times_ms",
    "within_reach",
]

KAFKA_TIME = "kafka"
EVENT_TIME_COLUMN = "event_time"
"""The column of a row's time, unless the rows have a column for it."""


@dataclass(frozen=True, slots=True)
class BoundedOutOfOrderness:
    """A row may be older than the newest row of its split by at most ``delay``.

    The watermark of a split is its largest time so far, less the delay.

    Attributes:
        delay: as text (``5 s``) or in seconds; zero or more.
    """

    delay: Duration = "5 s"

    def __post_init__(self) -> None:
        _ = self.delay_ms  # refuses other texts

    @property
    def delay_ms(self) -> int:
        """`delay` in milliseconds."""
        return duration_ms(self.delay, setting="delay")


@dataclass(frozen=True, slots=True)
class Monotonic:
    """Times never decrease inside a split: the watermark is the largest time so far."""

    @property
    def delay_ms(self) -> int:
        """No row is older than the newest one."""
        return 0


@dataclass(frozen=True, slots=True)
class Punctuated:
    """Rows carry watermarks: marker rows say how far event time has come.

    Attributes:
        function: takes a batch; returns an array with the watermark of each row, or null: the row
            has none. Types as those of a time. Only these values move the watermark.
    """

    function: Callable[[pa.RecordBatch], pa.Array]


WatermarkStrategy = BoundedOutOfOrderness | Monotonic | Punctuated


@dataclass(frozen=True, slots=True)
class Header:
    """The time is in a header of the Kafka record: milliseconds since 1970.

    Attributes:
        name: of the header; the last one of that name counts.
        encoding: ``text``: decimal digits; ``int64``: 8 bytes, big-endian.
    """

    name: str
    encoding: str = "text"

    def __post_init__(self) -> None:
        if not self.name or self.encoding not in ("text", "int64"):
            raise ConfigError(
                "a header of event time cannot be used",
                {"name": self.name, "encoding": self.encoding},
                "Name the header, and give encoding='text' or encoding='int64'.",
            )


@dataclass(frozen=True, slots=True)
class EventTime:
    """The event time of a source, and its watermarks.

    Attributes:
        of: ``kafka``: the record's timestamp. A text: a column of the source's rows, after its
            deserializers; ``value.at`` is a field of the struct ``value``. Or a `Header`, or a
            function that takes a batch and returns an array of times. A time is a timestamp, a
            date, or milliseconds since 1970 as int64.
        strategy: how the watermark of a split follows from its rows.
        idle_after: a split without an unread record for this time is idle. It does not hold back
            the watermark. None: every split does, also one without records.
        max_drift: in continuous regions, a split pauses while its watermark is so far ahead of the
            slowest one. It needs ``idle_after``. None: no split pauses.
        max_future: a time that is so far ahead of the clock does not move the watermark. It is
            counted. None: every time does.
        at_end: ``close``: the end of a bounded input closes all windows and fires all timers of
            event time. ``keep``: they stay in the state, and the next run continues with them.
    Raises:
        ConfigError: a setting is out of range, or is no duration.
    """

    of: str | Header | Callable[[pa.RecordBatch], pa.Array]
    _: KW_ONLY
    strategy: WatermarkStrategy = BoundedOutOfOrderness()
    idle_after: Duration | None = None
    max_drift: Duration | None = None
    max_future: Duration | None = None
    at_end: str = "close"

    def __post_init__(self) -> None:
        _ = self.idle_after_ms, self.max_drift_ms, self.max_future_ms
        is_text = isinstance(self.of, str) and bool(self.of.strip())
        if not (is_text or isinstance(self.of, Header) or callable(self.of)):
            raise ConfigError(
                "event time needs a column, a header or a function",
                {"of": repr(self.of)},
                'Write EventTime("kafka", strategy=…), or name a column instead of "kafka".',
            )
        if not isinstance(self.strategy, BoundedOutOfOrderness | Monotonic | Punctuated):
            raise ConfigError(
                "this is no watermark strategy",
                {"strategy": repr(self.strategy)},
                'Use BoundedOutOfOrderness("5 s"), Monotonic() or Punctuated(function).',
            )
        if self.at_end not in ("close", "keep"):
            raise ConfigError(
                "at_end has no such value",
                {"at_end": self.at_end},
                "Use close or keep.",
            )
        if self.max_drift is not None and self.idle_after is None:
            raise ConfigError(
                "max_drift without idle_after may stop all reading",
                {"max_drift": self.max_drift},
                'Add idle_after="30 s" or more: else all splits wait for one without records.',
            )

    @property
    def column(self) -> str:
        """The column in which functions and windows find a row's time."""
        is_column = isinstance(self.of, str) and self.of != KAFKA_TIME and "." not in self.of
        return str(self.of) if is_column else EVENT_TIME_COLUMN

    @property
    def idle_after_ms(self) -> int | None:
        """`idle_after` in milliseconds."""
        return _optional_ms(self.idle_after, "idle_after")

    @property
    def max_drift_ms(self) -> int | None:
        """`max_drift` in milliseconds."""
        return _optional_ms(self.max_drift, "max_drift")

    @property
    def max_future_ms(self) -> int | None:
        """`max_future` in milliseconds."""
        return _optional_ms(self.max_future, "max_future", may_be_zero=True)

    @property
    def delay_ms(self) -> int:
        """By how much a watermark trails the largest time."""
        return 0 if isinstance(self.strategy, Punctuated) else self.strategy.delay_ms

    def is_live(self, split: SplitRange, *, now_ms: int) -> bool:
        """Whether the split had a record recently enough to hold back others."""
        idle_after_ms = self.idle_after_ms
        if idle_after_ms is None or split.idle_since_ms is None:
            return True
        return now_ms - split.idle_since_ms < idle_after_ms


def _optional_ms(given: Duration | None, setting: str, *, may_be_zero: bool = False) -> int | None:
    return None if given is None else duration_ms(given, setting=setting, may_be_zero=may_be_zero)


def advanced(split: SplitRange, largest_ms: int | None, settings: EventTime) -> SplitRange:
    """The split after its range was read; neither of its times ever decreases.

    Args:
        largest_ms: largest timestamp of a record in the range; None: the source reported none.
    """
    known = [ms for ms in (split.largest_timestamp_ms, largest_ms) if ms is not None]
    if not known:
        return split
    marks = [max(known) - settings.delay_ms]
    marks += [] if split.watermark_ms is None else [split.watermark_ms]
    return replace(split, largest_timestamp_ms=max(known), watermark_ms=max(marks))


def least_watermark_ms(
    splits: Iterable[SplitRange], settings: EventTime, *, now_ms: int
) -> int | None:
    """The region's progress: the least watermark of its live splits.

    None: one of them has no timestamp yet. If no split is live, all of them count.
    """
    every = list(splits)
    live = [split for split in every if settings.is_live(split, now_ms=now_ms)] or every
    return least_of(split.watermark_ms for split in live)


def least_of(watermarks_ms: Iterable[int | None]) -> int | None:
    """The least of them; None: one has no watermark yet, or there is none at all."""
    marks = list(watermarks_ms)
    known = [mark for mark in marks if mark is not None]
    return min(known, default=None) if len(known) == len(marks) else None


_TICKS_OF_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}
_MOST_MS = 1 << 53


def times_ms(values: object, *, rows: int, name: str) -> pa.Int64Array:
    """Times as milliseconds since 1970, rounded down; null: there is none, or it is out of reach.

    Args:
        values: a timestamp, a date, or milliseconds as integers, for each row.
        name: of the column, for the message.
    Raises:
        ConfigError: other types, or another number of values.
    """
    column = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if not isinstance(column, pa.Array) or len(column) != rows:
        raise ConfigError(
            "event time needs one value for each row",
            {"of": name, "rows": rows, "returned": type(values).__name__},
            "Return a pyarrow.Array that is as long as the batch.",
        )
    kind = column.type
    if pa.types.is_null(kind):
        return pa.nulls(rows, pa.int64())
    if pa.types.is_date(kind):
        column, kind = column.cast(pa.timestamp("ms")), pa.timestamp("ms")
    if pa.types.is_timestamp(kind):
        ticks = column.cast(pa.int64())
        if kind.unit == "s":
            return pc.multiply(within_reach(ticks, most=_MOST_MS // 1_000), 1_000)
        return within_reach(_floor_divided(ticks, _TICKS_OF_MS[kind.unit]))
    if pa.types.is_integer(kind):
        return within_reach(column).cast(pa.int64())
    raise ConfigError(
        "values of event time are no times",
        {"column": name, "type": kind},
        "Use a timestamp, a date, or milliseconds since 1970 as int64.",
    )


def within_reach(times: pa.Array, *, most: int = _MOST_MS) -> pa.Array:
    """Integers; null in place of those that are larger than ``most``, or less than its negative.

    A time that is more than 285,000 years from 1970, such as the least int64, stands for none. With
    it, ends of windows and watermarks would leave int64.
    """
    least, largest = (bound.as_py() for bound in pc.min_max(times).values())
    if largest is not None and largest > most:
        times = pc.if_else(pc.greater(times, pa.scalar(most, times.type)), None, times)
    if least is not None and least < -most:
        times = pc.if_else(pc.less(times, pa.scalar(-most, times.type)), None, times)
    return times


def _floor_divided(ticks: pa.Int64Array, divisor: int) -> pa.Int64Array:
    """Rounded down, also before 1970."""
    whole = pc.divide(ticks, divisor)
    return pc.if_else(pc.greater(pc.multiply(whole, divisor), ticks), pc.subtract(whole, 1), whole)
