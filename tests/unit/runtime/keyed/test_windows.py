"""Windows: when they close, which rows are late, how sessions merge; against a row by row reference."""

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.runtime.contracts.keyed import BarrierTime
from sluice.runtime.errors import ConfigError
from sluice.runtime.keyed.declarations import (
    Avg,
    Count,
    First,
    Session,
    Sliding,
    Sum,
    Tumbling,
    Window,
)
from sluice.runtime.keyed.operators.aggregate import RowBuffer
from sluice.runtime.keyed.operators.windows import WindowAggregation
from tests.kit.keyed.operator_bed import OperatorBed
from tests.kit.keyed.reference_windows import ReferenceWindows, Timed

SCHEMA = pa.schema([("key", pa.string()), ("t", pa.int64()), ("x", pa.int64())])
Found = tuple[str | None, int, int, int]


def bed_of(window: Window, **more: Any) -> OperatorBed:
    function = WindowAggregation(window=window, on="t", aggregates={"n": Count()}, **more)
    return OperatorBed(function, SCHEMA)


def at(*times: int | None, key: str | None = "k", split: int = 0) -> list[dict[str, Any]]:
    return [{"key": key, "t": time, "x": 1, "split": split} for time in times]


def found(rows: list[Any]) -> list[Found]:
    """Key, start, end in seconds, and count of each window."""
    return [
        (
            row["key"],
            round(row["window_start"].timestamp() * 1000),
            round(row["window_end"].timestamp() * 1000),
            row["n"],
        )
        for row in rows
    ]


class TestClosing:
    def test_a_window_closes_exactly_when_the_watermark_is_at_its_end(self) -> None:
        bed = bed_of(Tumbling(0.010))
        bed.apply(at(0, 9, 10))
        assert bed.barrier(9) == []
        assert found(bed.barrier(10)) == [("k", 0, 10, 2)]
        assert bed.barrier(19) == []
        assert found(bed.barrier(20)) == [("k", 10, 20, 1)]

    def test_rows_of_the_epoch_that_closes_a_window_are_in_it(self) -> None:
        bed = bed_of(Tumbling(0.010))
        bed.apply(at(25), at(3))
        assert found(bed.barrier(20)) == [("k", 0, 10, 1)]

    def test_a_window_comes_out_once(self) -> None:
        bed = bed_of(Tumbling(0.010))
        bed.apply(at(1))
        assert len(bed.barrier(10)) == 1
        assert bed.barrier(10) == []
        bed.restart()
        assert bed.barrier(50) == []

    def test_windows_close_in_a_new_attempt_without_rows(self) -> None:
        bed = bed_of(Tumbling(0.010))
        bed.apply(at(1))
        bed.barrier(5)
        bed.restart()
        assert found(bed.barrier(10)) == [("k", 0, 10, 1)]

    def test_the_end_of_the_input_closes_all(self) -> None:
        bed = bed_of(Tumbling(0.010))
        bed.apply(at(1, 500))
        assert found(bed.barrier(2, is_end=True)) == [("k", 0, 10, 1), ("k", 500, 510, 1)]

    def test_times_before_1970_are_in_windows_too(self) -> None:
        bed = bed_of(Tumbling(0.010))
        bed.apply(at(-1, -10, -11))
        assert found(bed.barrier(0)) == [("k", -20, -10, 1), ("k", -10, 0, 2)]

    def test_an_offset_shifts_windows(self) -> None:
        bed = bed_of(Tumbling(0.010, offset=0.003))
        bed.apply(at(2, 3, 12, 13))
        assert found(bed.barrier(100)) == [("k", -7, 3, 1), ("k", 3, 13, 2), ("k", 13, 23, 1)]

    def test_the_next_barrier_is_due_at_the_first_end(self) -> None:
        bed = bed_of(Tumbling(0.010))
        bed.apply(at(25, 14))
        bed.barrier(5)
        assert bed.operator.due().event_ms == 20

    def test_without_a_watermark_no_window_closes(self) -> None:
        bed = bed_of(Tumbling(0.010))
        bed.apply(at(1))
        assert bed.barrier(None) == []


class TestLateRows:
    def test_a_row_is_late_only_after_the_barrier_that_closed_its_window(self) -> None:
        bed = bed_of(Tumbling(0.010))
        bed.apply(at(30), at(1))
        assert found(bed.barrier(9)) == []
        bed.apply(at(2))
        assert found(bed.barrier(10)) == [("k", 0, 10, 2)]
        bed.apply(at(3))
        assert bed.late == 1
        assert bed.barrier(11) == []

    def test_late_rows_are_written_whole(self) -> None:
        bed = bed_of(Tumbling(0.010), late_topic="late")
        bed.barrier(10)
        bed.apply(at(3, 11))
        assert bed.late_rows == [{"key": "k", "t": 3, "x": 1}]

    def test_late_rows_leave_the_partition_of_their_source(self) -> None:
        """The late topic may have fewer."""
        schema = pa.schema([("key", pa.string()), ("t", pa.int64()), ("partition", pa.int32())])
        function = bed_of(Tumbling(0.010), late_topic="late").function
        bed = OperatorBed(function, schema)
        bed.barrier(10)
        bed.apply([{"key": "k", "t": 3, "partition": 7}])
        assert bed.late_rows == [{"key": "k", "t": 3}]

    def test_rows_that_a_topic_cannot_have_are_refused_before_one_is_late(self) -> None:
        bed = bed_of(Tumbling(0.010), late_topic="late")
        bed.refusal = ConfigError("value is a struct", {"column": "value"}, "Cast it.")
        with pytest.raises(ConfigError, match="late rows cannot be written") as caught:
            bed.apply(at(30))
        assert "late_topic=late error=value is a struct column=value" in str(caught.value)

    def test_rows_without_a_time_are_late(self) -> None:
        bed = bed_of(Tumbling(0.010), late_topic="late")
        bed.apply(at(None, 3, 2**62, -(2**63)))
        assert bed.late == 3
        assert [row["t"] for row in bed.late_rows] == [None, 2**62, -(2**63)]
        assert found(bed.barrier(10)) == [("k", 0, 10, 1)]

    def test_a_split_that_is_new_has_no_late_rows(self) -> None:
        """Its rows were never read: the barriers of other splits closed no window of it."""
        bed = bed_of(Tumbling(0.010))
        bed.barrier(50)
        bed.state.add_split(("source", "topic", 9), None)
        bed.apply(at(3, split=2))
        assert bed.late == 0
        assert found(bed.barrier(50)) == [("k", 0, 10, 1)]

    def test_lateness_is_known_in_a_new_attempt(self) -> None:
        bed = bed_of(Tumbling(0.010))
        bed.barrier(10)
        bed.restart()
        bed.apply(at(3))
        assert bed.late == 1

    def test_rows_within_the_allowed_lateness_change_the_window_again(self) -> None:
        bed = bed_of(Tumbling(0.010), lateness_ms=5)
        bed.apply(at(1))
        assert found(bed.barrier(10)) == [("k", 0, 10, 1)]
        assert bed.barrier(13) == []
        bed.apply(at(2))
        assert found(bed.barrier(14)) == [("k", 0, 10, 2)]
        bed.apply(at(3))
        assert found(bed.barrier(15)) == [("k", 0, 10, 3)]
        bed.apply(at(4))
        assert (bed.late, bed.barrier(16)) == (1, [])

    @pytest.mark.parametrize("window", [Tumbling(0.010), Session(0.010)])
    def test_a_window_comes_out_once_if_a_start_changes_the_lateness(self, window: Window) -> None:
        bed = bed_of(window)

        def with_lateness(**more: Any) -> None:
            bed.function = bed_of(window, **more).function
            bed.restart()

        bed.apply(at(0))
        bed.apply(at(40))
        bed.barrier(5)
        with_lateness(lateness_ms=5)
        assert found(bed.barrier(12)) == [("k", 0, 10, 1)]
        with_lateness()
        assert bed.barrier(12) == []
        with_lateness(updates=True, lateness_ms=5)
        assert bed.barrier(13) == []
        with_lateness(lateness_ms=500)
        assert found(bed.barrier(90)) == [("k", 40, 50, 1)]
        assert bed.barrier(1_000) == []


class TestUpdates:
    def test_changed_windows_come_out_at_each_barrier(self) -> None:
        bed = bed_of(Tumbling(0.010), updates=True)
        bed.apply(at(1, 11))
        assert found(bed.barrier(0)) == [("k", 0, 10, 1), ("k", 10, 20, 1)]
        bed.apply(at(2))
        assert found(bed.barrier(0)) == [("k", 0, 10, 2)]
        assert bed.barrier(10) == []

    def test_late_rows_within_the_lateness_come_out_again(self) -> None:
        bed = bed_of(Tumbling(0.010), updates=True, lateness_ms=5)
        bed.apply(at(1))
        bed.barrier(14)
        bed.apply(at(2))
        assert found(bed.barrier(15)) == [("k", 0, 10, 2)]
        bed.apply(at(2))
        assert (bed.late, bed.barrier(15)) == (1, [])


class TestSessions:
    def test_a_session_ends_a_gap_after_its_last_row(self) -> None:
        bed = bed_of(Session(0.010))
        bed.apply(at(0, 8), at(30))
        assert bed.barrier(17) == []
        assert found(bed.barrier(18)) == [("k", 0, 18, 2)]
        assert found(bed.barrier(40)) == [("k", 30, 40, 1)]

    def test_a_row_between_two_sessions_merges_them(self) -> None:
        bed = bed_of(Session(0.010))
        bed.apply(at(0, 15))
        bed.barrier(1)
        bed.restart()
        bed.apply(at(8))
        assert found(bed.barrier(25)) == [("k", 0, 25, 3)]

    def test_sessions_that_touch_merge(self) -> None:
        """As Spark's and Flink's: the end of one is the start of the other."""
        bed = bed_of(Session(0.010))
        bed.apply(at(0, 10), at(21))
        assert found(bed.barrier(100)) == [("k", 0, 20, 2), ("k", 21, 31, 1)]

    def test_sessions_of_other_keys_stay_apart(self) -> None:
        bed = bed_of(Session(0.010))
        bed.apply([*at(100, key="a"), *at(0, 50, key="b")])
        made = found(bed.barrier(200))
        assert made == [("b", 0, 10, 1), ("b", 50, 60, 1), ("a", 100, 110, 1)]

    def test_a_late_row_that_touches_an_open_session_belongs_to_it(self) -> None:
        bed = bed_of(Session(0.010))
        bed.apply(at(20))
        bed.barrier(15)
        bed.apply(at(4), at(14), at(3))
        assert bed.late == 2
        assert found(bed.barrier(30)) == [("k", 14, 30, 2)]

    def test_a_merged_session_comes_out_as_one_update(self) -> None:
        bed = bed_of(Session(0.010), updates=True)
        bed.apply(at(0, 15))
        assert found(bed.barrier(0)) == [("k", 0, 10, 1), ("k", 15, 25, 1)]
        bed.apply(at(8))
        assert found(bed.barrier(0)) == [("k", 0, 25, 3)]


def test_sliding_windows_have_each_row_in_all_of_them() -> None:
    bed = bed_of(Sliding(0.010, 0.004))
    bed.apply(at(9))
    expected = [("k", 0, 10, 1), ("k", 4, 14, 1), ("k", 8, 18, 1)]
    assert found(bed.barrier(100)) == expected


def test_state_does_not_grow_with_closed_windows() -> None:
    for window in (Tumbling(0.010), Session(0.010)):
        bed = bed_of(window, lateness_ms=5)
        for epoch in range(5):
            bed.apply(at(epoch * 100, key=f"k{epoch}"))
            bed.barrier(epoch * 100 + 90)
        bed.barrier(10_000)
        base = bed.state.base_bytes
        bed.barrier(10_001)
        assert bed.state.base_bytes <= base
        for name, table in enumerate(bed.function.tables):
            if not table.is_timed and table.name != "memory":
                assert list(bed.state.table(name).scan(0)) == []


WINDOWS = [Tumbling(0.010), Tumbling(0.010, offset=0.003), Sliding(0.010, 0.004), Session(0.007)]


@settings(max_examples=60)
@given(
    window=st.sampled_from(WINDOWS),
    lateness=st.sampled_from([0, 6]),
    updates=st.booleans(),
    seed=st.integers(0, 10_000),
    cut=st.integers(1, 9),
)
def test_windows_equal_the_reference(
    window: Window, lateness: int, updates: bool, seed: int, cut: int
) -> None:
    """With late, equal, null and future times, cut anywhere, with rollbacks and restarts."""
    made = random.Random(seed)
    reference = ReferenceWindows(window=window, lateness_ms=lateness, updates=updates)
    bed = bed_of(window, lateness_ms=lateness, updates=updates, late_topic="late")
    watermark = None
    for epoch in range(8):
        rows = [
            Timed(
                key=(made.randrange(2), made.choice([None, b"a", b"b"])),
                time_ms=made.choice([None, *range(epoch * 5 - 15, epoch * 5 + 12), 90]),
                value=1,
            )
            for _ in range(made.randrange(9))
        ]
        given = [
            {"split": row.key[0], "key": row.key[1] and row.key[1].decode(), "t": row.time_ms}
            for row in rows
        ]
        if made.random() < 0.3:
            late, late_rows = bed.late, list(bed.late_rows)
            bed.apply(given)
            bed.rollback()
            bed.late, bed.late_rows = late, late_rows
        if made.random() < 0.3:
            bed.restart()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RowBuffer, "LARGEST", made.choice([1, 4, 100]))  # rows of a chunk
            bed.apply(*[given[a : a + cut] for a in range(0, len(given), cut)])
        if made.random() < 0.8:
            watermark = max(watermark or -(10**9), epoch * 5 - 8)
        is_end = epoch == 7
        out = bed.barrier(watermark, now_ms=epoch, is_end=is_end)
        time = BarrierTime(watermark_ms=watermark, now_ms=epoch, is_end=is_end)
        panes = reference.epoch(rows, time)
        expected = [
            (p.key[1] and p.key[1].decode(), p.span[0], p.span[1], len(p.rows)) for p in panes
        ]
        assert sorted(found(out), key=repr) == sorted(expected, key=repr)
        assert bed.late == len(reference.late) == len(bed.late_rows)


def test_all_aggregates_work_in_windows() -> None:
    function = WindowAggregation(
        window=Tumbling(0.010),
        on="t",
        aggregates={"total": Sum("x"), "mean": Avg("x"), "first": First("x")},
    )
    bed = OperatorBed(function, SCHEMA)
    bed.apply([{"key": "k", "t": 1, "x": 4}], [{"key": "k", "t": 2, "x": 6}])
    bed.barrier(0)
    bed.apply([{"key": "k", "t": 3, "x": 8}])
    (row,) = bed.barrier(10)
    assert (row["total"], row["mean"], row["first"]) == (18, 6.0, 4)
