"""Deduplication: the first row of a key passes, and those that are far enough from it in time."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.contracts.keyed import Due
from sluice.runtime.keyed.operators.deduplicate import Deduplication
from tests.kit.keyed.operator_bed import OperatorBed

SCHEMA = pa.schema([("key", pa.string()), ("t", pa.int64())])


def bed_of(within_ms: int = 10, on: str | None = None) -> OperatorBed:
    return OperatorBed(Deduplication(within_ms=within_ms, on=on), SCHEMA)


def row(key: str | None, t: int | None = 0, split: int = 0) -> dict[str, Any]:
    return {"key": key, "t": t, "split": split}


def keys(rows: list[Any]) -> list[Any]:
    return [each["key"] for each in rows]


def test_the_first_row_of_each_key_passes_in_order() -> None:
    bed = bed_of()
    made = bed.apply([row("b", 1), row("a", 2), row("b", 3), row(None, 4), row(None, 5)])
    assert made == [{"key": "b", "t": 1}, {"key": "a", "t": 2}, {"key": None, "t": 4}]
    assert keys(bed.apply([row("a"), row("c")])) == ["c"]
    assert keys(bed.apply([row("a", split=1)])) == ["a"]


def test_by_processing_time_a_key_is_forgotten_so_long_after_its_barrier() -> None:
    bed = bed_of(within_ms=10)
    bed.apply([row("a")])
    bed.barrier(now_ms=100)
    bed.restart()
    assert bed.apply([row("a")]) == []
    bed.barrier(now_ms=109)
    assert bed.apply([row("a")]) == []
    bed.barrier(now_ms=110)
    assert keys(bed.apply([row("a")])) == ["a"]


def test_by_processing_time_a_key_is_forgotten_in_time_although_no_barrier_comes() -> None:
    """Also if the clock of the host is ahead: a later barrier does not bring the key back."""
    bed = bed_of(within_ms=10)
    bed.apply([row("a")])
    bed.barrier(now_ms=100)
    bed.now_ms = 109
    assert bed.apply([row("a")]) == []
    bed.now_ms = 110
    assert keys(bed.apply([row("a"), row("b")], [row("a")])) == ["a", "b"]
    bed.rollback()
    assert keys(bed.apply([row("a")], [row("a")])) == ["a"]
    bed.barrier(now_ms=108)
    assert bed.apply([row("a")]) == []
    bed.barrier(now_ms=117)
    assert bed.apply([row("a")]) == []
    bed.barrier(now_ms=118)
    assert keys(bed.apply([row("a")])) == ["a"]


def test_a_region_without_records_wants_a_barrier_to_forget_keys() -> None:
    """By processing time, a sixteenth of the time later: it wants few of them. By event time, a
    later barrier does no harm."""
    bed = bed_of(within_ms=160)
    assert bed.operator.due() == Due()
    bed.apply([row("a")])
    bed.barrier(now_ms=100)
    bed.apply([row("b")])
    bed.barrier(now_ms=105)
    assert bed.operator.due() == Due(time_ms=270)
    bed.restart()
    assert bed.operator.due() == Due(time_ms=270)
    bed.barrier(now_ms=270)
    assert bed.operator.due() == Due()
    assert list(bed.state.table(0).scan(0)) == []
    bed = bed_of(within_ms=160, on="t")
    bed.apply([row("a", 100)])
    bed.barrier(100)
    assert bed.operator.due() == Due()


@pytest.mark.parametrize("cuts", [(), (1,), (1, 2), (1, 2, 3, 4, 5, 6)])
@pytest.mark.parametrize("watermark_ms", [None, -20])
def test_by_event_time_rows_that_are_far_apart_pass_wherever_an_epoch_ends(
    cuts: tuple[int, ...], watermark_ms: int | None
) -> None:
    """As in a backlog of hours, of which the watermark is an epoch late; in any order."""
    bed, made = bed_of(within_ms=10, on="t"), []
    for at, time_ms in enumerate([0, 100, 91, 109, 110, 90, 5, -10]):
        if at in cuts:
            bed.barrier(watermark_ms)
            bed.restart()
        made += bed.apply([row("a", time_ms)])
    assert [each["t"] for each in made] == [0, 100, 110, 90, -10]
    bed = bed_of(within_ms=10, on="t")
    rows = [row("a", time_ms) for time_ms in (0, 100, 91, 109, 110, 90, 5, -10)]
    assert [each["t"] for each in bed.apply(rows)] == [0, 100, 110, 90, -10]
    assert bed.late == 0


def test_by_event_time_a_row_passes_so_long_after_one_that_has_passed() -> None:
    bed = bed_of(within_ms=10, on="t")
    bed.apply([row("a", 100), row("a", 105)])
    bed.barrier(109)
    bed.restart()
    assert bed.apply([row("a", 109)]) == []
    bed.barrier(118)
    assert bed.apply([row("a", 109)]) == [], "it is near the first row"
    assert bed.late == 0
    assert keys(bed.apply([row("a", 110)])) == ["a"]
    assert bed.apply([row("a", 119)]) == []
    assert keys(bed.apply([row("a", 120)])) == ["a"]


def test_by_event_time_a_key_is_forgotten_once_all_rows_near_it_are_late() -> None:
    bed = bed_of(within_ms=10, on="t")
    bed.apply([row("a", 100)])
    bed.barrier(119)
    assert len(list(bed.state.table(0).scan(0))) == 1
    bed.barrier(120)
    assert list(bed.state.table(0).scan(0)) == []
    assert bed.apply([row("a", 109), row("a", 110)]) == []
    assert bed.late == 2


def test_another_time_applies_to_keys_of_an_earlier_program() -> None:
    bed = bed_of(within_ms=10, on="t")
    bed.apply([row("a", 100)])
    bed.barrier(100)
    bed.function = Deduplication(within_ms=50, on="t")
    bed.restart()
    bed.barrier(130)
    assert bed.apply([row("a", 149)]) == []
    bed.barrier(199)
    assert len(list(bed.state.table(0).scan(0))) == 1
    bed.barrier(200)
    assert list(bed.state.table(0).scan(0)) == []
    assert bed.state.timed_table(1).earliest_ms(0) is None


def test_state_by_another_clock_is_another_state() -> None:
    """A start refuses it."""
    kinds = {bed_of(on=on).function.tables[0].kind for on in (None, "t")}
    assert kinds == {"deduplicate", "deduplicate by event time"}


def test_a_row_near_which_keys_may_be_forgotten_is_late() -> None:
    """It would pass a second time."""
    bed = bed_of(within_ms=10, on="t")
    bed.apply([row("a", 100)])
    bed.barrier(110)
    assert bed.apply([row("a", 100), row("b", 101)]) == [{"key": "b", "t": 101}]
    assert bed.late == 1


def test_rows_without_a_time_are_late() -> None:
    bed = bed_of(on="t")
    assert keys(bed.apply([row("a", None), row("b", 1)])) == ["b"]
    assert bed.late == 1


def test_a_rollback_forgets_keys_of_the_epoch() -> None:
    for on in (None, "t"):
        bed = bed_of(on=on)
        bed.apply([row("a")])
        bed.rollback()
        assert keys(bed.apply([row("a")])) == ["a"]
        bed.barrier(5, now_ms=5)
        assert bed.apply([row("a")]) == []


def test_state_leaves_with_its_keys() -> None:
    for on in (None, "t"):
        bed = bed_of(on=on)
        bed.apply([row("a", 1), row("b", 2)])
        bed.barrier(2, now_ms=2)
        bed.barrier(100, now_ms=100)
        assert list(bed.state.table(0).scan(0)) == []
        assert bed.state.timed_table(1).earliest_ms(0) is None


@given(
    rows=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), max_size=30),
    cuts=st.sets(st.integers(1, 29)),
    ends=st.sets(st.integers(1, 29)),
)
def test_output_does_not_depend_on_batches_and_epochs(
    rows: list[tuple[str, int]], cuts: set[int], ends: set[int]
) -> None:
    """As far as no row is late: the watermark is nine less than the least time that follows."""

    def outputs(cuts: set[int], ends: set[int]) -> list[Any]:
        bed, made, start = bed_of(within_ms=10, on="t"), [], 0
        for end in sorted({*(at for at in cuts | ends if at < len(rows)), len(rows)}):
            made += bed.apply([row(*each) for each in rows[start:end]])
            start = end
            if end in ends and end < len(rows):
                bed.barrier(min(time_ms for _, time_ms in rows[end:]) + 9)
                bed.restart()
        assert bed.late == 0
        return made

    assert outputs(cuts, ends) == outputs(set(), set())
