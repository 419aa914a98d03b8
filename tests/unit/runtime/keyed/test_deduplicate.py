"""Deduplication: the first row of a key passes; a key is forgotten at its horizon, not before."""

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

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


def test_by_event_time_a_key_is_forgotten_so_long_after_its_first_row() -> None:
    bed = bed_of(within_ms=10, on="t")
    bed.apply([row("a", 100), row("a", 105)])
    bed.barrier(109)
    bed.restart()
    assert bed.apply([row("a", 109)]) == []
    bed.barrier(110)
    assert keys(bed.apply([row("a", 109)])) == ["a"]


def test_a_row_whose_key_may_be_forgotten_is_late() -> None:
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
    rows=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30)), max_size=30),
    cuts=st.sets(st.integers(1, 29)),
)
def test_output_does_not_depend_on_batches(rows: list[tuple[str, int]], cuts: set[int]) -> None:
    def outputs(ends: list[int]) -> list[Any]:
        bed, made, start = bed_of(on="t"), [], 0
        for end in sorted({*ends, 10, 20, len(rows)}):
            made += bed.apply([row(*each) for each in rows[start:end]])
            start = end
            if end in (10, 20):
                bed.barrier(end)
                bed.restart()
        return [*made, bed.late]

    assert outputs(list(cuts)) == outputs([])
