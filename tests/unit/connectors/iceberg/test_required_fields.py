"""Required fields inside columns: a null is refused by name, and never becomes another value."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BooleanType,
    DecimalType,
    FixedType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    UUIDType,
)

from sluice.runtime.errors import ConfigError
from tests.kit.iceberg.iceberg_bed import IcebergBed

_LONG = LongType()
_OPTIONAL = StructType(NestedField(9, "x", _LONG))
_ARROW = pa.struct({"x": pa.int64()})
_KEY_AND_VALUE = (
    MapType(2, StringType(), 3, _OPTIONAL, value_required=True),
    pa.map_(pa.string(), _ARROW),
)


@pytest.fixture
def bed(tmp_path: Path) -> IcebergBed:
    return IcebergBed(directory=tmp_path)


def _required(kind: IcebergType) -> StructType:
    return StructType(NestedField(5, "r", kind, required=True), NestedField(6, "y", _LONG))


def _rows(kind: pa.DataType, *values: object) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, kind)], ["c"])


@pytest.mark.parametrize(
    ("kind", "arrow", "value", "path"),
    [
        (_required(_LONG), pa.struct({"r": pa.int64()}), {"r": None}, r"c\.r"),
        (_required(_LONG), pa.struct({"y": pa.int64()}), {"y": 1}, r"c\.r"),
        (_required(_OPTIONAL), pa.struct({"r": _ARROW}), {"r": None}, r"c\.r"),
        (_required(_OPTIONAL), pa.struct({"y": pa.int64()}), {"y": 1}, r"c\.r"),
        (
            _required(ListType(9, _LONG)),
            pa.struct({"r": pa.list_(pa.int64())}),
            {"r": None},
            r"c\.r",
        ),
        (ListType(2, _LONG, element_required=True), pa.list_(pa.int64()), [1, None], r"c\.element"),
        (ListType(2, _OPTIONAL, element_required=True), pa.list_(_ARROW), [None], r"c\.element"),
        (
            ListType(2, ListType(9, _LONG), element_required=True),
            pa.list_(pa.list_(pa.int64())),
            [None],
            r"c\.element",
        ),
        (*_KEY_AND_VALUE, [("k", None)], r"c\.value"),
        (
            ListType(2, _required(_LONG)),
            pa.list_(pa.struct({"r": pa.int64()})),
            [{"r": 1}, {"r": None}],
            r"c\.element\.r",
        ),
    ],
)
def test_a_null_is_refused_with_the_name_of_its_field(
    bed: IcebergBed, kind: IcebergType, arrow: pa.DataType, value: object, path: str
) -> None:
    bed.create(Schema(NestedField(1, "c", kind)))
    with pytest.raises(ConfigError, match=rf"required column .*column={path} nulls=1\]"):
        bed.pre_commit(_rows(arrow, None, value))
    assert bed.data_files() == set()


_LEAVES: list[tuple[IcebergType, pa.DataType, object]] = [
    (_LONG, pa.int64(), 1),
    (BooleanType(), pa.bool_(), True),
    (StringType(), pa.string(), "x"),
    (DecimalType(9, 2), pa.decimal128(9, 2), 1),
    (FixedType(2), pa.binary(2), b"xy"),
    (_OPTIONAL, _ARROW, {"x": 1}),
    (ListType(9, _LONG, element_required=True), pa.list_(pa.int64()), [1, 2]),
    (
        MapType(8, StringType(), 9, _LONG, value_required=True),
        pa.map_(pa.string(), pa.int64()),
        [("k", 1)],
    ),
]


@pytest.mark.parametrize(("kind", "arrow", "value"), _LEAVES)
def test_a_null_struct_may_have_a_required_field(
    bed: IcebergBed, kind: IcebergType, arrow: pa.DataType, value: object
) -> None:
    """As rows of Spark have it: the fields of a null struct are null. Also in rows that are sorted,
    of which Arrow makes a copy."""
    schema = Schema(NestedField(1, "id", _LONG), NestedField(2, "c", _required(kind)))
    bed.create(schema, sort_order=SortOrder(SortField(1, IdentityTransform())))
    column = pa.StructArray.from_arrays(
        [pa.array([value, None, value], arrow), pa.array([1, 2, None])],
        fields=[pa.field("r", arrow, nullable=False), pa.field("y", pa.int64())],
        mask=pa.array([False, True, False]),
    )
    rows = pa.record_batch({"id": [1, 2, 3], "c": column})
    without = pa.record_batch({"id": [4]})
    bed.commit(bed.pre_commit(rows.slice(0, 1), rows.slice(1), without))
    found = bed.table().scan().to_arrow().sort_by("id")["c"].to_pylist()
    assert found == [{"r": value, "y": 1}, None, {"r": value, "y": None}, None]


def test_a_null_struct_may_have_a_required_uuid(bed: IcebergBed) -> None:
    bed.create(Schema(NestedField(1, "c", _required(UUIDType()))))
    kind = pa.struct([pa.field("r", pa.uuid(), nullable=False), pa.field("y", pa.int64())])
    bed.commit(bed.pre_commit(pa.record_batch([pa.nulls(2, kind)], ["c"])))
    assert bed.table().scan().to_arrow()["c"].to_pylist() == [None, None]


def test_what_null_values_hide_is_not_seen(bed: IcebergBed) -> None:
    """Arrow keeps values below nulls, and beside slices."""
    inner = _required(_LONG)
    bed.create(
        Schema(
            NestedField(1, "s", StructType(NestedField(2, "c", inner))),
            NestedField(3, "l", ListType(4, _LONG, element_required=True)),
            NestedField(7, "m", MapType(8, StringType(), 9, _LONG, value_required=True)),
        )
    )
    numbers = pa.array([None, 1, 2, None])
    hides = pa.array([True, False, False, True])
    offsets = pa.array(range(5), pa.int32())
    hidden = pa.StructArray.from_arrays([numbers], names=["r"])
    columns: dict[str, Any] = {
        "s": pa.StructArray.from_arrays([hidden], names=["c"], mask=hides),
        "l": pa.ListArray.from_arrays(offsets, numbers, mask=hides),
        "m": pa.MapArray.from_arrays(offsets, pa.array([*"abcd"]), numbers, mask=hides),
    }
    rows = pa.record_batch(columns)
    bed.commit(bed.pre_commit(rows, rows.slice(1, 2)))
    found = bed.table().scan().to_arrow().to_pylist()
    wanted = [
        {"s": {"c": {"r": 1, "y": None}}, "l": [1], "m": [("b", 1)]},
        {"s": {"c": {"r": 2, "y": None}}, "l": [2], "m": [("c", 2)]},
    ]
    nothing = {"s": None, "l": None, "m": None}
    assert found == [nothing, *wanted, nothing, *wanted]


def test_maps_of_slices_and_of_no_rows_are_written(bed: IcebergBed) -> None:
    kind = pa.map_(pa.string(), pa.int64())
    bed.create(pa.schema({"c": kind}))
    maps = [[("a", 1)], [("b", 2), ("c", None)], [], None]
    rows = _rows(kind, *maps)
    bed.commit(bed.pre_commit(rows.slice(1, 1), rows.slice(1, 0), rows.slice(2), rows.slice(3)))
    found = bed.table().scan().to_arrow()["c"].to_pylist()
    assert found == [maps[1], [], None, None]
