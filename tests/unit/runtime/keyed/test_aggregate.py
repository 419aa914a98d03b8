"""Running aggregates: results as Spark's, whatever the batches, across barriers and rollbacks."""

import decimal
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.errors import ConfigError
from sluice.runtime.keyed.declarations import (
    Aggregate,
    ApproxDistinct,
    Avg,
    Collect,
    Count,
    First,
    Last,
    Max,
    Min,
    Sum,
)
from sluice.runtime.keyed.operators.aggregate import Aggregation, RowBuffer
from tests.kit.keyed.operator_bed import OperatorBed

D = decimal.Decimal


def run(kind: pa.DataType, aggregate: Aggregate, *epochs: list[Any]) -> Any:
    """The result of the aggregate over column x of one key, after the last epoch."""
    schema = pa.schema([("key", pa.string()), ("x", kind)])
    bed = OperatorBed(Aggregation(aggregates={"r": aggregate}), schema)
    made: list[Any] = []
    for values in epochs:
        bed.apply([{"key": "k", "x": value} for value in values])
        made = bed.barrier()
        bed.restart()
    assert len(made) == 1
    return made[0]["r"]


NAN = float("nan")
RESULTS = [
    (pa.int64(), Count(), ([1, None], [None]), 3),
    (pa.int64(), Count("x"), ([1, None], [None]), 1),
    (pa.int64(), Sum("x"), ([1, None], [5]), 6),
    (pa.int64(), Sum("x"), ([None], [None]), None),
    (pa.int8(), Sum("x"), ([100, 100], [100]), 300),
    (pa.float32(), Sum("x"), ([0.5, None], [2.0]), 2.5),
    (pa.decimal128(5, 2), Sum("x"), ([D("999.99"), None], [D("0.02")]), D("1000.01")),
    (pa.int32(), Avg("x"), ([1, None], [2]), 1.5),
    (pa.int32(), Avg("x"), ([None],), None),
    (pa.int64(), Avg("x"), ([2**53 + 1], [2**53 + 1]), 2.0**53),
    (pa.uint64(), Avg("x"), ([2**64 - 1],), 2.0**64),
    (pa.decimal128(5, 2), Avg("x"), ([D("1.00"), D("1.00")], [D("0.00")]), D("0.666667")),
    (pa.int64(), Min("x"), ([5, None], [-3]), -3),
    (pa.int64(), Max("x"), ([5, None], [-3]), 5),
    (pa.int64(), Max("x"), ([None],), None),
    (pa.float64(), Max("x"), ([1.0, NAN], [7.0]), NAN),
    (pa.float64(), Min("x"), ([NAN, 1.0], [-7.0]), -7.0),
    (pa.float64(), Min("x"), ([NAN],), NAN),
    (pa.string(), Min("x"), (["b", None], ["a", "c"]), "a"),
    (pa.string(), Max("x"), (["b", None], ["a"]), "b"),
    (pa.decimal128(5, 2), Max("x"), ([D("1.00")], [D("-2.00"), None]), D("1.00")),
    (pa.bool_(), Max("x"), ([False, None], [True]), True),
    (pa.int64(), First("x"), ([None, 1], [2]), None),
    (pa.int64(), First("x", ignore_nulls=True), ([None], [None, 1], [2]), 1),
    (pa.string(), Last("x"), (["a", "b"], ["c", None]), None),
    (pa.string(), Last("x", ignore_nulls=True), (["a", "b"], ["c", None], [None]), "c"),
    (pa.list_(pa.int64()), Last("x"), ([[1]], [[2, None]]), [2, None]),
    (pa.string(), Collect("x"), (["a", None], ["b", "a"]), ["a", "b", "a"]),
    (pa.string(), Collect("x", most=2), (["a", None], ["b", "c"], ["d"]), ["a", "b"]),
    (pa.string(), ApproxDistinct("x"), (["a", None, "a"], ["b"], ["a"]), 2),
    (pa.string(), ApproxDistinct("x"), ([None],), 0),
]


@pytest.mark.parametrize(("kind", "aggregate", "epochs", "expected"), RESULTS, ids=repr)
def test_results_are_those_of_spark(
    kind: pa.DataType, aggregate: Aggregate, epochs: Any, expected: Any
) -> None:
    result = run(kind, aggregate, *epochs)
    assert repr(result) == repr(expected)


def test_times_keep_their_type() -> None:
    schema = pa.schema([("key", pa.string()), ("t", pa.timestamp("us", "UTC")), ("d", pa.date32())])
    bed = OperatorBed(Aggregation(aggregates={"a": Min("t"), "b": Max("d")}), schema)
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["k", "k"]), pa.array([5, 3], schema.types[1]), pa.array([1, 2], pa.date32())],
        schema=schema,
    )
    rows = bed.rows(batch.to_pylist())
    assert not list(bed.operator.apply(rows))
    made = bed.barrier()
    assert made == [{"key": "k", "a": batch.column("t")[1].as_py(), "b": batch["d"][1].as_py()}]


def test_splits_of_a_task_with_other_types_are_refused() -> None:
    """A function may return integers for one batch and floats for the next one. The state of both
    would be read as one type."""
    types = [pa.int64(), pa.float64()]
    schemas = [pa.schema([("key", pa.string()), ("x", kind)]) for kind in types]
    bed = OperatorBed(Aggregation(aggregates={"r": Sum("x")}), schemas[0])
    bed.apply([{"key": "k", "x": 5}])
    bed.barrier()
    bed.apply([{"key": "k", "x": 6}])
    bed.apply([{"key": "j", "x": 7.0, "split": 1}], schema=schemas[1])
    with pytest.raises(ConfigError, match="rows have other types"):
        bed.barrier()
    bed.restart()
    bed.apply([{"key": "k", "x": 6}])
    assert bed.barrier() == [{"key": "k", "r": 11}]


class TestSumsThatOverflow:
    def test_a_sum_outside_of_int64_is_an_error_and_does_not_wrap(self) -> None:
        with pytest.raises(ConfigError, match="a sum or a mean is too large"):
            run(pa.int64(), Sum("x"), [2**62], [2**62])

    def test_a_sum_at_the_edge_is_exact(self) -> None:
        assert run(pa.int64(), Sum("x"), [2**62, 2**62 - 1]) == 2**63 - 1
        assert run(pa.int64(), Sum("x"), [-(2**62), -(2**62)]) == -(2**63)

    def test_a_mean_outside_of_its_decimal_is_an_error_that_names_it(self) -> None:
        with pytest.raises(ConfigError, match=r"sum or a mean is too large.*aggregate=r column=x"):
            run(pa.decimal128(38, 0), Avg("x"), [D(10**37)])

    def test_a_decimal_sum_of_more_than_38_digits_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match="a sum or a mean is too large"):
            run(pa.decimal128(38, 0), Sum("x"), [D("9" * 38)], [D("9" * 38)])


SCHEMA = pa.schema([("key", pa.int64()), ("x", pa.float64()), ("s", pa.string())])
ALL: dict[str, Aggregate] = {
    "count": Count(),
    "total": Sum("x"),
    "mean": Avg("x"),
    "least": Min("s"),
    "greatest": Max("x"),
    "first": First("s"),
    "last": Last("x", ignore_nulls=True),
    "list": Collect("s", most=5),
    "distinct": ApproxDistinct("s"),
}


def rows_of(seed: int, count: int) -> list[dict[str, Any]]:
    made = random.Random(seed)
    return [
        {
            "split": made.randrange(2),
            "key": made.choice([None, 1, 2, 3]),
            "x": made.choice([None, made.random(), 1e16, -1e16]),
            "s": made.choice([None, "a", "b", "c" * made.randrange(20)]),
        }
        for _ in range(count)
    ]


def outputs(rows: list[dict[str, Any]], cuts: list[int], barriers: list[int]) -> list[Any]:
    bed = OperatorBed(Aggregation(aggregates=ALL), SCHEMA)
    made, start = [], 0
    ends = sorted({cut for cut in [*cuts, *barriers] if cut < len(rows)} | {len(rows)})
    for end in ends:
        made.append(bed.apply(rows[start:end]))
        start = end
        if end in barriers:
            bed.apply(rows[:3])
            bed.rollback()
            again = max([b for b in [0, *barriers] if b < end])
            bed.apply(rows[again:end])
            made.append(sorted(bed.barrier(), key=repr))
            bed.restart()
    return [*made, sorted(bed.barrier(), key=repr)]


@given(seed=st.integers(0, 1000), cuts=st.lists(st.integers(0, 60), max_size=6))
def test_output_depends_on_barriers_and_not_on_batches(seed: int, cuts: list[int]) -> None:
    """Also the sums of floats, whose order counts, with rollbacks and restarts in between."""
    rows, barriers = rows_of(seed, 60), [20, 40]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowBuffer, "LARGEST", 7)  # rows of a chunk
        flat = [row for row in outputs(rows, cuts, barriers) if row]
    assert flat == [row for row in outputs(rows, [], barriers) if row]


def test_each_changed_key_comes_out_once_in_an_epoch() -> None:
    bed = OperatorBed(Aggregation(aggregates={"count": Count()}), SCHEMA)
    bed.apply([{"key": 1}, {"key": 2}], [{"key": 1}])
    assert sorted(bed.barrier(), key=repr) == [{"key": 1, "count": 2}, {"key": 2, "count": 1}]
    bed.apply([{"key": 2}])
    assert bed.barrier() == [{"key": 2, "count": 2}]
    assert bed.barrier() == []


def test_a_rollback_forgets_the_rows_of_the_epoch() -> None:
    bed = OperatorBed(Aggregation(aggregates={"count": Count()}), SCHEMA)
    bed.apply([{"key": 1}])
    bed.rollback()
    bed.apply([{"key": 1}, {"key": 1}])
    assert bed.barrier() == [{"key": 1, "count": 2}]


def test_a_key_in_two_splits_has_two_states() -> None:
    bed = OperatorBed(Aggregation(aggregates={"count": Count()}), SCHEMA)
    bed.apply([{"key": 1, "split": 0}, {"key": 1, "split": 1}, {"key": 1, "split": 1}])
    assert [row["count"] for row in bed.barrier()] == [1, 2]


def test_rows_of_another_type_than_the_state_are_refused() -> None:
    bed = OperatorBed(Aggregation(aggregates={"total": Sum("x")}), SCHEMA)
    bed.apply([{"key": 1, "x": 1.0}])
    bed.barrier()
    bed.restart()
    bed.apply([{"key": 1, "x": 1}], schema=pa.schema([("key", pa.int64()), ("x", pa.int64())]))
    with pytest.raises(ConfigError, match="other types") as caught:
        bed.barrier()
    assert "double" in str(caught.value)


@pytest.mark.parametrize("aggregate", [Sum("s"), Avg("s")])
def test_sums_of_text_are_refused(aggregate: Aggregate) -> None:
    bed = OperatorBed(Aggregation(aggregates={"r": aggregate}), SCHEMA)
    bed.apply([{"key": 1, "s": "1"}])
    with pytest.raises(ConfigError, match="needs a column of numbers") as caught:
        bed.barrier()
    assert f"aggregate=r={type(aggregate).__name__}('s')" in str(caught.value)


def test_a_missing_column_is_named() -> None:
    bed = OperatorBed(Aggregation(aggregates={"r": Sum("y")}), SCHEMA)
    with pytest.raises(ConfigError, match="do not have") as caught:
        bed.apply([{"key": 1}])
    assert "y" in str(caught.value)


def test_a_result_with_the_name_of_the_key_is_refused() -> None:
    bed = OperatorBed(Aggregation(aggregates={"key": Count()}), SCHEMA)
    bed.apply([{"key": 1}])
    with pytest.raises(ConfigError, match="name of another column"):
        bed.barrier()
