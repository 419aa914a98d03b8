"""How many records the next epoch may have, from how long the last ones took."""

from sluice.runtime.coordinator.region.region_pace import Pace
from sluice.runtime.model.splits import SplitRange


def _split(records: int) -> SplitRange:
    return SplitRange(
        source_id="s", topic="t", topic_id="i", partition=0, start_offset=0, end_offset=records
    )


def _epoch(pace: Pace, *, records: int, took_s: float, target_s: float = 1.0) -> None:
    pace.begin((_split(records),), 0.0)
    pace.finished(took_s, target_s=target_s)


def test_an_epoch_that_reached_the_limit_moves_it_towards_the_target() -> None:
    """Twice too slow halves it, four times too fast makes it four times as large."""
    pace = Pace(limit=100_000)
    _epoch(pace, records=100_000, took_s=2.0)
    assert pace.limit == 50_000
    _epoch(pace, records=50_000, took_s=0.25)
    assert pace.limit == 200_000


def test_a_small_epoch_says_nothing() -> None:
    """Most of its time is Spark's own."""
    pace = Pace(limit=100_000)
    _epoch(pace, records=10, took_s=5.0)
    assert pace.limit == 100_000


def test_one_stall_does_not_cost_more_than_a_factor_of_ten() -> None:
    """A broker that was away for a minute says little about the next epoch."""
    pace = Pace(limit=100_000)
    _epoch(pace, records=100_000, took_s=60.0)
    assert pace.limit == 10_000


def test_slow_epochs_do_not_shrink_to_nothing() -> None:
    """The fixed part of an epoch may alone exceed the target; a backlog must still go down."""
    pace = Pace(limit=100_000)
    for _ in range(20):
        _epoch(pace, records=pace.limit, took_s=3.0)
    assert pace.limit == 1_000


def test_an_expired_epoch_is_cut_smaller_without_a_floor() -> None:
    """Rule `restore-by-attempt`: the same records would expire again; only time-outs go below the
    floor."""
    pace = Pace(limit=800)
    for records in (800, 400, 200):
        pace.begin((_split(records),), 0.0)
        pace.expired()
    assert pace.limit == 100
    _epoch(pace, records=100, took_s=3.0)
    assert pace.limit == 100


def test_late_epochs_do_not_shrink_to_nothing() -> None:
    """They are not read again, they join the next checkpoint: a backlog must still go down."""
    pace = Pace(limit=100_000)
    for _ in range(20):
        pace.begin((_split(pace.limit),), 0.0)
        pace.timed_out()
    assert pace.limit == 1_000


def test_a_small_late_epoch_says_nothing() -> None:
    """Most of its time is Spark's own; and a limit below the floor was learnt from time-outs."""
    for limit in (100_000, 10):
        pace = Pace(limit=limit)
        pace.begin((_split(10),), 0.0)
        pace.timed_out()
        assert pace.limit == limit


def test_an_epoch_without_records_that_expires_says_nothing_of_their_number() -> None:
    """One that a savepoint or a sink has asked for: what was slow was not the reading."""
    pace = Pace(limit=800)
    pace.begin((_split(0),), 0.0)
    pace.expired()
    assert pace.limit == 800
