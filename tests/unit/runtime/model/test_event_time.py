"""Watermarks of splits and regions: they follow the records, and never go back."""

from typing import Any

import pytest

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.event_time import EventTime, advanced, least_watermark_ms
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.spark.microbatch.event_times import (
    EventTimes,
    LargestTimestamps,
    TimedReading,
    event_time_of,
)


def split(**where: Any) -> SplitRange:
    return SplitRange(
        source_id="s",
        topic="orders",
        topic_id="id",
        start_offset=where.pop("start"),
        end_offset=where.pop("end"),
        **where,
    )


def at(partition: int, watermark_ms: int | None, idle_since_ms: int | None = None) -> SplitRange:
    return split(
        partition=partition, start=0, end=1, watermark_ms=watermark_ms, idle_since_ms=idle_since_ms
    )


def test_a_watermark_trails_the_newest_timestamp_and_never_goes_back() -> None:
    """An epoch of older records leaves it where it was, and so does a larger delay."""
    moved = advanced(at(0, None), 10_000, EventTime(delay_ms=500))
    assert (moved.largest_timestamp_ms, moved.watermark_ms) == (10_000, 9_500)
    assert advanced(moved, 9_000, EventTime(delay_ms=500)) == moved
    assert advanced(moved, None, EventTime(delay_ms=500)) == moved
    assert advanced(moved, 10_100, EventTime(delay_ms=5_000)).watermark_ms == 9_500


def test_a_range_without_timestamps_leaves_a_split_without_watermark() -> None:
    """There is nothing to count from."""
    assert advanced(at(0, None), None, EventTime()) == at(0, None)


def test_the_least_live_split_is_the_progress_of_the_region() -> None:
    """A split that has no timestamp yet holds everything back, until it is idle."""
    settings = EventTime(idle_timeout_ms=1_000)
    assert least_watermark_ms([at(0, 7), at(1, 5)], settings, now_ms=0) == 5
    assert least_watermark_ms([at(0, 7), at(1, None)], settings, now_ms=0) is None
    waiting = [at(0, 7), at(1, 5, idle_since_ms=100)]
    assert least_watermark_ms(waiting, settings, now_ms=1_099) == 5
    assert least_watermark_ms(waiting, settings, now_ms=1_100) == 7
    assert least_watermark_ms(waiting, EventTime(), now_ms=10**9) == 5
    assert least_watermark_ms([], settings, now_ms=0) is None


def test_where_all_splits_are_idle_all_of_them_count() -> None:
    """Silence is no progress."""
    idle = [at(0, 7, idle_since_ms=0), at(1, 5, idle_since_ms=0)]
    assert least_watermark_ms(idle, EventTime(idle_timeout_ms=1), now_ms=100) == 5


@pytest.mark.parametrize("wrong", [{"delay_ms": -1}, {"idle_timeout_ms": 0}])
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    """Before anything runs."""
    with pytest.raises(ConfigError):
        EventTime(**wrong)


class Told:
    """An accumulator of this process."""

    def __init__(self) -> None:
        self.value: dict[Any, int] = {}

    def add(self, term: dict[Any, int]) -> None:
        self.value = LargestTimestamps().addInPlace(self.value, term)


class Reader:
    """Reads nothing, and knows the timestamps."""

    def __init__(self, largest: dict[int, int]) -> None:
        self._largest = largest

    def read(self, splits: Any) -> Any:
        yield from ()

    def read_timed(self, splits: Any, tell: Any) -> Any:
        yield from ()
        for each in splits:
            if each.partition in self._largest:
                tell(each, self._largest[each.partition])


def times(told: Any) -> EventTimes:
    return EventTimes(settings=EventTime(), reported=told)


def test_what_the_tasks_reported_is_counted_for_the_range_they_read() -> None:
    """Twice the same says the same; what an older range reported is not this batch's."""
    told = Told()
    mine = [at(0, None), at(1, 3)]
    reading = times(told).reader(Reader({0: 50}))
    assert isinstance(reading, TimedReading)
    for _ in range(2):
        assert list(reading.read(mine)) == []
    old = split(partition=1, start=0, end=9)
    list(times(told).reader(Reader({1: 99})).read([old]))
    moved, least = times(told).after_batch(mine, fetched_ms=0)
    assert [each.watermark_ms for each in moved] == [50, 3]
    assert least == 3
    assert times(told).after_batch(mine, fetched_ms=0)[0] == tuple(mine)


def test_a_reader_without_timestamps_is_refused() -> None:
    """Partitions would never be passed."""
    with pytest.raises(ConfigError, match="no timestamps"):
        times(Told()).reader(object())  # type: ignore[arg-type]


def test_sinks_that_do_not_ask_cost_nothing() -> None:
    """And where several ask, the most patient one is heard."""

    class Asks:
        name = "files"
        uid = None
        is_exactly_once = True

        def __init__(self, asked: EventTime | None) -> None:
            self._asked = asked

        def event_time(self) -> EventTime | None:
            return self._asked

        def coordinator(self) -> Any:
            raise NotImplementedError

        def source_ranges(self, committable: object) -> Any:
            raise NotImplementedError

        def record_counts(self, committable: object) -> Any:
            raise NotImplementedError

        def settings(self) -> Any:
            raise NotImplementedError

    patient = EventTime(delay_ms=5, idle_timeout_ms=None)
    quick = EventTime(delay_ms=9, idle_timeout_ms=7)
    assert event_time_of([Asks(None)]) is None
    assert event_time_of([Asks(patient), Asks(quick)]) == EventTime(delay_ms=9)
    assert event_time_of([Asks(quick)]) == quick
