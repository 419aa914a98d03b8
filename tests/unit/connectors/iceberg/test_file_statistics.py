"""Statistics of data files: no reader skips a row by them, and no delete takes another one."""

import datetime as dt
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import GreaterThanOrEqual, LessThan
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from sluice.connectors.iceberg.written_files import WrittenFile, decode_written_files
from tests.kit.iceberg.iceberg_bed import IcebergBed

_NAN = float("nan")
_ABOVE_4_KB = 5000


@pytest.fixture
def bed(tmp_path: Path) -> IcebergBed:
    return IcebergBed(directory=tmp_path)


@pytest.fixture
def one_batch_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch becomes a row group."""
    monkeypatch.setattr("sluice.connectors.iceberg.writing.data_file_writer._ROW_GROUP_BYTES", 1)


def _written(
    bed: IcebergBed, kind: PrimitiveType, groups: list[list[object]], **of_table: object
) -> WrittenFile:
    """The file of a column ``v``."""
    schema = Schema(NestedField(1, "v", kind))
    bed.create(schema, **of_table)
    target = schema_to_pyarrow(schema).field("v").type
    (entry,) = bed.pre_commit(
        *(pa.record_batch([pa.array(group, target)], ["v"]) for group in groups)
    )
    bed.commit([entry])
    (file,) = decode_written_files(entry).files
    return file


_UTC = dt.UTC
_KINDS: list[tuple[PrimitiveType, list[list[object]], object, object]] = [
    (BooleanType(), [[True], [False, None]], False, True),
    (LongType(), [[5], [None], [-3]], -3, 5),
    (FloatType(), [[1.5, _NAN], [-0.0]], 0.0, 1.5),
    (DoubleType(), [[1.0, _NAN], [-1.0, float("inf")]], -1.0, float("inf")),
    (
        DecimalType(9, 2),
        [[Decimal("-1.25")], [Decimal("3.50"), Decimal("-100.00")]],
        Decimal("-100.00"),
        Decimal("3.50"),
    ),
    (
        DecimalType(38, 3),
        [[Decimal("3.500")], [Decimal("-99999999999999999999999999999.001")]],
        Decimal("-99999999999999999999999999999.001"),
        Decimal("3.500"),
    ),
    (DateType(), [[dt.date(1, 1, 1)], [dt.date(9999, 1, 1)]], -719162, 2932532),
    (TimeType(), [[dt.time(1)], [dt.time(2)]], 3_600_000_000, 7_200_000_000),
    (
        TimestampType(),
        [[dt.datetime(1969, 12, 31, 23)], [dt.datetime(1970, 1, 1, 1)]],  # noqa: DTZ001
        -3_600_000_000,
        3_600_000_000,
    ),
    (
        TimestamptzType(),
        [[dt.datetime(1969, 12, 31, 23, tzinfo=_UTC)], [dt.datetime(1970, 1, 1, 1, tzinfo=_UTC)]],
        -3_600_000_000,
        3_600_000_000,
    ),
    (FixedType(3), [[b"abc"], [b"\xff\xff\xff"]], b"abc", b"\xff\xff\xff"),
    (BinaryType(), [[b"b"], [b"\xff" * 20]], b"b", None),
    (StringType(), [["b" * 20], ["\U0001f600"]], "b" * 16, "\U0001f600"),
    (StringType(), [["b"], ["c" * 20]], "b", "c" * 15 + "d"),
    (StringType(), [["b"], ["\U0010ffff" * 20]], "b", None),
    # The next code point is a surrogate, which no text has.
    (StringType(), [["\ud7ff" * 20]], "\ud7ff" * 16, "\ud7ff" * 15 + "\ue000"),
    (
        StringType(),
        [["x\ud7ff" + "\U0010ffff" * 20]],
        "x\ud7ff" + "\U0010ffff" * 14,
        "x\ue000" + "\U0010ffff" * 14,
    ),
]


@pytest.mark.usefixtures("one_batch_groups")
@pytest.mark.parametrize(("kind", "groups", "lower", "upper"), _KINDS)
def test_bounds_are_those_of_all_row_groups(
    bed: IcebergBed,
    kind: PrimitiveType,
    groups: list[list[object]],
    lower: object,
    upper: object,
) -> None:
    file = _written(bed, kind, groups)
    assert len(file.split_offsets) == len(groups)
    found = (file.lower_bounds.get(1), file.upper_bounds.get(1))
    assert tuple(bound and from_bytes(kind, bound) for bound in found) == (lower, upper)


@pytest.mark.usefixtures("one_batch_groups")
@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        (StringType(), [["a", "b"], ["z" * _ABOVE_4_KB], ["c"]]),
        (StringType(), [["m"], ["a" * _ABOVE_4_KB, "n"]]),
        (BinaryType(), [[b"z" * _ABOVE_4_KB], [b"a"]]),
    ],
)
def test_a_value_without_bounds_in_the_file_leaves_its_column_without_bounds(
    bed: IcebergBed, kind: PrimitiveType, groups: list[list[object]]
) -> None:
    """Parquet keeps none of a row group with such a value as its least or greatest."""
    file = _written(bed, kind, groups)
    assert (file.lower_bounds, file.upper_bounds) == ({}, {})
    assert file.value_counts == {1: sum(map(len, groups))}


@pytest.mark.usefixtures("one_batch_groups")
def test_a_long_text_is_found_by_a_filter_and_kept_by_a_delete_of_smaller_ones(
    bed: IcebergBed,
) -> None:
    bed.create(Schema(NestedField(1, "id", LongType()), NestedField(2, "text", StringType())))
    text = "the long one " + "z" * _ABOVE_4_KB
    rows = [pa.record_batch({"id": [n], "text": [t]}) for n, t in [(1, "short"), (2, text)]]
    bed.commit(bed.pre_commit(*rows))
    scan = bed.table().scan(GreaterThanOrEqual("text", "the"), selected_fields=("id",))
    assert scan.to_arrow()["id"].to_pylist() == [2]
    bed.table().delete(LessThan("text", "t"))
    assert bed.ids() == Counter([2])


@pytest.mark.usefixtures("one_batch_groups")
@pytest.mark.parametrize("kind", [FloatType(), DoubleType()])
@pytest.mark.parametrize(
    ("groups", "count"), [([[1.0, _NAN], [None], [_NAN, 2.0]], 2), ([[1.0]], 0), ([[None]], 0)]
)
def test_files_have_the_number_of_nan(
    bed: IcebergBed, kind: PrimitiveType, groups: list[list[object]], count: int
) -> None:
    assert _written(bed, kind, groups).nan_value_counts == {1: count}


def test_a_column_without_metrics_has_no_number_of_nan(bed: IcebergBed) -> None:
    of_none = {"write.metadata.metrics.column.v": "none"}
    file = _written(bed, DoubleType(), [[_NAN, 1.0]], properties=of_none)
    assert (file.nan_value_counts, file.lower_bounds) == ({}, {})


def test_nested_columns_have_no_bounds_that_leave_nan_out(bed: IcebergBed) -> None:
    """Their NaN are not counted."""
    bed.create(pa.schema({"s": pa.struct({"x": pa.float64()}), "l": pa.list_(pa.float64())}))
    (entry,) = bed.pre_commit(pa.record_batch({"s": [{"x": _NAN}], "l": [[1.0, _NAN]]}))
    (file,) = decode_written_files(entry).files
    assert (file.lower_bounds, file.upper_bounds, file.nan_value_counts) == ({}, {}, {})


def test_a_delete_of_smaller_values_keeps_nan(bed: IcebergBed) -> None:
    bed.create(Schema(NestedField(1, "id", LongType()), NestedField(2, "x", DoubleType())))
    bed.commit(bed.pre_commit(pa.record_batch({"id": [1, 2, 3], "x": [1.0, _NAN, 2.0]})))
    bed.table().delete(LessThan("x", 3.0))
    assert bed.ids() == Counter([2])
