"""Interval joins against a nested loop, and when rows are late or come out without a partner."""

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.runtime.errors import ConfigError
from sluice.runtime.keyed.operators.aggregate import RowBuffer
from sluice.runtime.keyed.operators.interval_join import IntervalJoin
from sluice.runtime.keyed.sides import LEFT, RIGHT, SIDE
from tests.kit.keyed.operator_bed import OperatorBed

LEFT_SCHEMA = pa.schema([("key", pa.string()), ("t", pa.int64()), ("l", pa.int64())])
RIGHT_SCHEMA = pa.schema([("key", pa.string()), ("at", pa.int64()), ("r", pa.string())])


def bed_of(before: int = 5, after: int = 3, *, is_left: bool = False, **more: Any) -> OperatorBed:
    function = IntervalJoin(
        before_ms=before, after_ms=after, on=("t", more.pop("other", "at")), is_left=is_left, **more
    )
    return OperatorBed(function, LEFT_SCHEMA)


def with_side(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field(SIDE, pa.int8()))


def put(
    bed: OperatorBed, side: int, *rows: dict[str, Any], schema: pa.Schema | None = None
) -> list[Any]:
    given = schema or (LEFT_SCHEMA, RIGHT_SCHEMA)[side]
    return bed.apply([{**row, SIDE: side} for row in rows], schema=with_side(given))


def left(t: int | None, l: int = 0, key: str | None = "k", split: int = 0) -> dict[str, Any]:  # noqa: E741
    return {"key": key, "t": t, "l": l, "split": split}


def right(at: int | None, r: str = "x", key: str | None = "k", split: int = 0) -> dict[str, Any]:
    return {"key": key, "at": at, "r": r, "split": split}


def pairs(rows: list[Any]) -> list[tuple[Any, Any]]:
    return sorted(((row["t"], row.get("at")) for row in rows), key=str)


def test_rows_join_inside_the_interval_with_both_bounds() -> None:
    bed = bed_of(before=5, after=3)
    put(bed, LEFT, left(100))
    put(bed, RIGHT, *(right(at) for at in (94, 95, 100, 103, 104)))
    assert pairs(bed.barrier(0)) == [(100, 100), (100, 103), (100, 95)]


def test_a_joined_row_has_the_columns_of_both_sides_and_the_key_once() -> None:
    bed = bed_of()
    put(bed, RIGHT, right(1, "x"))
    put(bed, LEFT, left(1, 7))
    assert bed.barrier(0) == [{"key": "k", "t": 1, "l": 7, "at": 1, "r": "x"}]


def test_rows_of_other_keys_and_splits_do_not_join() -> None:
    bed = bed_of()
    put(bed, LEFT, left(1), left(1, split=1, key="other"))
    put(bed, RIGHT, right(1, key="other"), right(1, split=1))
    assert bed.barrier(0) == []


@pytest.mark.parametrize("kind", [pa.int64(), pa.binary()])
def test_keys_of_different_types_are_refused(kind: pa.DataType) -> None:
    """Their bytes differ: the number 7 would find no partner with the text 7."""
    bed = bed_of()
    put(bed, LEFT, left(1, key="7"))
    bed.barrier(0)
    bed.restart()
    other = RIGHT_SCHEMA.set(0, pa.field("key", kind))
    key: Any = 7 if kind == pa.int64() else b"7"
    put(bed, RIGHT, right(1, key=key), schema=other)
    with pytest.raises(ConfigError, match=r"keys of different types .*left=string"):
        bed.barrier(0)


def test_null_keys_do_not_join() -> None:
    """As in SQL."""
    bed = bed_of(is_left=True)
    put(bed, LEFT, left(1, key=None))
    put(bed, RIGHT, right(1, key=None))
    assert pairs(bed.barrier(100)) == [(1, None)]


def test_rows_join_those_of_earlier_epochs_once() -> None:
    bed = bed_of()
    put(bed, LEFT, left(1), left(2))
    assert bed.barrier(0) == []
    bed.restart()
    put(bed, RIGHT, right(1))
    assert pairs(bed.barrier(0)) == [(1, 1), (2, 1)]
    put(bed, LEFT, left(3))
    assert pairs(bed.barrier(0)) == [(3, 1)]
    assert bed.barrier(0) == []


class TestLeftJoin:
    def test_a_row_without_a_partner_comes_out_when_the_watermark_has_passed_its_interval(
        self,
    ) -> None:
        bed = bed_of(before=5, after=3, is_left=True)
        put(bed, RIGHT, right(0))
        put(bed, LEFT, left(100))
        assert bed.barrier(103) == []
        assert bed.operator.due().event_ms == 104
        bed.restart()
        expected = [{"key": "k", "t": 100, "l": 0, "at": None, "r": None}]
        assert bed.barrier(104) == expected
        assert bed.barrier(200) == []

    def test_a_row_with_a_partner_does_not_come_out_again(self) -> None:
        bed = bed_of(before=5, after=3, is_left=True)
        put(bed, LEFT, left(100))
        bed.barrier(0)
        put(bed, RIGHT, right(101))
        assert pairs(bed.barrier(90)) == [(100, 101)]
        assert bed.barrier(500) == []

    def test_the_end_of_the_input_has_passed_all_intervals(self) -> None:
        bed = bed_of(is_left=True)
        put(bed, LEFT, left(100))
        assert pairs(bed.barrier(0, is_end=True)) == [(100, None)]

    def test_equal_rows_come_out_each(self) -> None:
        bed = bed_of(is_left=True)
        put(bed, LEFT, left(100, 1), left(100, 1))
        assert len(bed.barrier(500)) == 2


class TestLateRows:
    def test_a_row_before_the_watermark_of_the_last_barrier_is_late(self) -> None:
        bed = bed_of(before=5, after=3)
        put(bed, LEFT, left(97))
        put(bed, RIGHT, right(95))
        bed.barrier(100)
        put(bed, LEFT, left(100), left(99))
        assert bed.late == 1
        put(bed, RIGHT, right(100), right(99))
        assert bed.late == 2
        assert pairs(bed.barrier(100)) == [(100, 100), (100, 95), (97, 100)]

    @pytest.mark.parametrize("is_left", [False, True])
    @pytest.mark.parametrize("side", [LEFT, RIGHT])
    @pytest.mark.parametrize(("before", "after"), [(5, 5), (5, 3), (5, 0), (0, 5), (0, 0)])
    def test_an_accepted_row_has_all_its_partners(
        self, before: int, after: int, side: int, is_left: bool
    ) -> None:
        """Whatever came, and was forgotten, before the watermark."""
        waiting, given = (right, left) if side == LEFT else (left, right)
        for time_ms in range(85, 110):
            bed = bed_of(before=before, after=after, is_left=is_left)
            put(bed, 1 - side, *(waiting(at) for at in range(70, 125)))
            put(bed, side, given(70))  # the columns of both sides are known
            bed.barrier(0)
            made = bed.barrier(100)
            put(bed, side, given(time_ms))
            made += bed.barrier(100) + bed.barrier(1_000)
            early, late = (before, after) if side == LEFT else (after, before)
            partners = range(time_ms - early, time_ms + late + 1)
            column, other = ("t", "at") if side == LEFT else ("at", "t")
            found = sorted(row[other] for row in made if row[column] == time_ms)
            assert bed.late == int(time_ms < 100)
            assert found == ([] if bed.late else list(partners))
            alone, paired = (
                {row["t"] for row in made if (row["at"] is None) == is_alone}
                for is_alone in (True, False)
            )
            assert not alone & paired

    def test_rows_without_a_time_are_late(self) -> None:
        bed = bed_of()
        put(bed, LEFT, left(None))
        put(bed, RIGHT, right(None))
        assert bed.late == 2


def test_state_leaves_once_no_partner_can_come() -> None:
    bed = bed_of(before=5, after=3, is_left=True)
    put(bed, LEFT, left(100))
    put(bed, RIGHT, right(100))
    bed.barrier(0)
    bed.barrier(1000)
    for number in range(3):
        assert bed.state.timed_table(number).earliest_ms(0) is None


class TestColumns:
    BOTH = pa.schema([("key", pa.string()), ("t", pa.int64()), ("l", pa.int64())])

    def test_a_column_of_both_sides_is_refused(self) -> None:
        bed = bed_of(other="t")
        put(bed, LEFT, left(1))
        put(bed, RIGHT, left(1), schema=self.BOTH)
        with pytest.raises(ConfigError, match="column of the same name") as caught:
            bed.barrier(0)
        assert "columns=l, t" in str(caught.value)

    def test_suffixes_tell_them_apart(self) -> None:
        bed = bed_of(other="t", suffixes=("", "_right"))
        put(bed, LEFT, left(1, 5))
        put(bed, RIGHT, left(2, 6), schema=self.BOTH)
        assert bed.barrier(0) == [{"key": "k", "t": 1, "l": 5, "t_right": 2, "l_right": 6}]


def test_keys_that_can_never_be_equal_are_refused() -> None:
    bed = bed_of()
    put(bed, LEFT, left(1))
    numbers = pa.schema([("key", pa.int32()), *list(RIGHT_SCHEMA)[1:]])
    put(bed, RIGHT, {"key": 1, "at": 2, "r": "x", "split": 0}, schema=numbers)
    with pytest.raises(ConfigError, match="different types") as caught:
        bed.barrier(0)
    assert "left=string right=int32" in str(caught.value)


class NestedLoop:
    """The join row by row: each row is compared with all rows that are kept."""

    def __init__(self, before: int, after: int, *, is_left: bool) -> None:
        self.interval, self.is_left = (before, after), is_left
        self.reach = (after, before)
        self.kept: tuple[list[Any], list[Any]] = ([], [])  # row, time, whether it had a partner
        self.watermark, self.late = -(10**7), 0

    def epoch(self, rows: list[tuple[int, Any]], watermark: int, *, is_end: bool) -> list[Any]:
        made = [pair for side, row in rows for pair in self.add(side, row)]
        self.watermark = watermark
        now = 10**9 if is_end else watermark
        for side in (LEFT, RIGHT):
            gone = [each for each in self.kept[side] if each[1] + self.reach[side] < now]
            if side == LEFT and self.is_left:
                made += [(each[0]["l"], None) for each in gone if not each[2]]
            self.kept[side][:] = [each for each in self.kept[side] if each not in gone]
        return made

    def add(self, side: int, row: Any) -> list[Any]:
        time = row["t" if side == LEFT else "at"]
        if time is None or time < self.watermark:
            self.late += 1
            return []
        entry, made = [row, time, False], []
        for other in self.kept[1 - side]:
            ours, theirs = (entry, other) if side == LEFT else (other, entry)
            if self.is_pair(ours, theirs):
                ours[2] = True
                made.append((ours[0]["l"], theirs[0]["r"]))
        self.kept[side].append(entry)
        return made

    def is_pair(self, ours: Any, theirs: Any) -> bool:
        before, after = self.interval
        same = all(ours[0][name] == theirs[0][name] for name in ("key", "split"))
        is_near = ours[1] - before <= theirs[1] <= ours[1] + after
        return same and is_near and ours[0]["key"] is not None


def random_row(made: random.Random, epoch: int, number: int) -> tuple[int, Any]:
    time = made.choice([None, 70, *range(epoch * 6 - 15, epoch * 6 + 12)])
    split, key = made.randrange(2), made.choice([None, "a", "b"])
    if made.random() < 0.5:
        return LEFT, left(time, epoch * 100 + number, key, split)
    return RIGHT, right(time, f"{epoch}-{number}", key, split)


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), is_left=st.booleans(), cut=st.integers(1, 7))
def test_joins_equal_a_nested_loop(seed: int, is_left: bool, cut: int) -> None:
    """With late, equal, null and future times, cut anywhere, with rollbacks and restarts."""
    made = random.Random(seed)
    before, after = made.choice([(5, 3), (0, 0), (40, 0), (0, 9)])
    bed = bed_of(before, after, is_left=is_left)
    put(bed, RIGHT, right(-(10**6), key="first"))  # the columns of the right side are known
    bed.barrier(-(10**7))
    loop = NestedLoop(before, after, is_left=is_left)
    for epoch in range(6):
        rows = [random_row(made, epoch, number) for number in range(made.randrange(10))]
        if made.random() < 0.3:
            for side, row in rows:
                put(bed, side, row)
            bed.rollback()
            bed.late = loop.late
        if made.random() < 0.3:
            bed.restart()
        out: list[Any] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RowBuffer, "LARGEST", made.choice([1, 4, 100]))  # rows of a chunk
            for start in range(0, len(rows), cut):
                for side in (LEFT, RIGHT):
                    of_side = [row for which, row in rows[start : start + cut] if which == side]
                    out += put(bed, side, *of_side)
        watermark, is_end = max(loop.watermark, epoch * 6 - 9), epoch == 5
        out += bed.barrier(watermark, is_end=is_end)
        expected = loop.epoch(rows, watermark, is_end=is_end)
        assert sorted(((r["l"], r["r"]) for r in out), key=repr) == sorted(expected, key=repr)
        assert bed.late == loop.late


def test_many_rows_of_one_key_all_join() -> None:
    bed = bed_of(before=1000, after=1000)
    put(bed, LEFT, *(left(at, at) for at in range(50)))
    put(bed, RIGHT, *(right(at) for at in range(40)))
    assert len(bed.barrier(0)) == 2000
