"""What tasks write: columns by name, partitions, order, statistics, new columns."""

import datetime as dt
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    TruncateTransform,
)
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from sluice.connectors.iceberg.written_files import decode_written_files
from sluice.runtime.errors import ConfigError
from tests.kit.iceberg.iceberg_bed import SCHEMA, IcebergBed, rows_of

_NESTED = pa.schema(
    {
        "id": pa.int64(),
        "tags": pa.list_(pa.string()),
        "place": pa.struct({"x": pa.int32(), "y": pa.string()}),
        "counts": pa.map_(pa.string(), pa.int64()),
        "amount": pa.decimal128(10, 2),
        "day": pa.date32(),
        "at": pa.timestamp("us", tz="UTC"),
        "raw": pa.binary(),
        "ratio": pa.float64(),
    }
)
_NESTED_ROWS = [
    {
        "id": number,
        "tags": [["a", None], [], None][number],
        "place": [{"x": 1, "y": "p"}, {"x": None, "y": None}, None][number],
        "counts": [[("k", 1)], [], [("l", None)]][number],
        "amount": Decimal("1.25"),
        "day": dt.date(2026, 1, 1 + number),
        "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        "raw": b"\xff",
        "ratio": float(number),
    }
    for number in range(3)
]


def _write(bed: IcebergBed, *batches: pa.RecordBatch, **options: Any) -> None:
    bed.commit(bed.pre_commit(*batches, **options))


def test_rows_of_all_kinds_come_back_as_they_were(tmp_path: Path) -> None:
    bed = IcebergBed(directory=tmp_path)
    bed.create(_NESTED)
    rows = pa.RecordBatch.from_pylist(_NESTED_ROWS, schema=_NESTED)
    _write(bed, rows.slice(0, 1), rows.slice(1))
    found = bed.table().scan().to_arrow().sort_by("id").to_pylist()
    assert found == _NESTED_ROWS


def test_columns_go_by_name_and_narrower_types_fit(tmp_path: Path) -> None:
    bed = IcebergBed(directory=tmp_path)
    bed.create()
    swapped = pa.record_batch(
        {"name": pa.array(["b"]).dictionary_encode(), "id": pa.array([2], pa.int16())}
    )
    _write(bed, rows_of(1), swapped, pa.record_batch({"id": pa.array([3], pa.int64())}))
    found = bed.table().scan().to_arrow().sort_by("id").to_pylist()
    assert found == [{"id": 1, "name": "n1"}, {"id": 2, "name": "b"}, {"id": 3, "name": None}]


def test_files_have_field_ids_and_their_statistics(tmp_path: Path) -> None:
    bed = IcebergBed(directory=tmp_path)
    bed.create()
    (entry,) = bed.pre_commit(rows_of(5, 3))
    (file,) = decode_written_files(entry).files
    assert (file.rows, file.value_counts, file.null_value_counts) == (2, {1: 2, 2: 2}, {1: 0, 2: 0})
    assert file.lower_bounds[1] == (3).to_bytes(8, "little")
    path = file.path.removeprefix("file://")
    assert file.length_bytes == Path(path).stat().st_size
    schema = pq.read_schema(path)
    assert [field.metadata[b"PARQUET:field_id"] for field in schema] == [b"1", b"2"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (pa.record_batch({"id": [1], "odd": [1]}), r"lacks \[.*column=odd.*evolve=True"),
        (pa.record_batch({"id": ["x"]}), r"another type .*column=id type=string needed=int64"),
        (pa.record_batch({"id": pa.array([2**40], pa.uint64())}), r"another type"),
    ],
)
def test_rows_that_the_table_cannot_hold_are_refused(
    tmp_path: Path, rows: pa.RecordBatch, said: str
) -> None:
    bed = IcebergBed(directory=tmp_path)
    bed.create()
    with pytest.raises(ConfigError, match=said):
        bed.pre_commit(rows)
    assert bed.data_files() == set()


_TWICE = pa.struct([pa.field("x", pa.int32()), pa.field("x", pa.int32())])


def _twice(*names: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([1])] * len(names), names=list(names))


@pytest.mark.parametrize("evolve", [False, True])
@pytest.mark.parametrize(
    ("rows", "column"),
    [
        (_twice("id", "id"), "id"),
        (_twice("id", "other", "other"), "other"),
        (pa.record_batch({"place": pa.array([(1, 2)], _TWICE)}), "x"),
        (pa.record_batch({"places": pa.array([[(1, 2)]], pa.list_(_TWICE))}), "x"),
    ],
)
def test_two_columns_of_one_name_are_refused(
    tmp_path: Path, rows: pa.RecordBatch, column: str, *, evolve: bool
) -> None:
    """Arrow's look-up says the same of them as of none: the table got null."""
    bed = IcebergBed(directory=tmp_path)
    place = pa.struct({"x": pa.int32()})
    bed.create(pa.schema({"id": pa.int64(), "place": place, "places": pa.list_(place)}))
    with pytest.raises(ConfigError, match=f"several columns have one name .*column={column} "):
        bed.pre_commit(rows, evolve=evolve)
    assert bed.data_files() == set()
    assert len(bed.table().schema().fields) == 3


def test_a_required_column_without_a_value_is_refused(tmp_path: Path) -> None:
    bed = IcebergBed(directory=tmp_path)
    bed.create(Schema(NestedField(1, "id", LongType(), required=True)))
    with pytest.raises(ConfigError, match="required column"):
        bed.pre_commit(pa.record_batch({"id": pa.array([None], pa.int64())}))


_PLAIN = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
_PARTITIONED = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "name", StringType()),
    NestedField(3, "at", TimestamptzType()),
    NestedField(4, "day", DateType()),
    NestedField(5, "price", DecimalType(9, 2)),
)
_SPEC = PartitionSpec(
    PartitionField(3, 1000, DayTransform(), "at_day"),
    PartitionField(1, 1001, BucketTransform(4), "id_bucket"),
    PartitionField(2, 1002, TruncateTransform(1), "name_start"),
    PartitionField(4, 1003, IdentityTransform(), "day"),
    PartitionField(5, 1004, IdentityTransform(), "price"),
    PartitionField(2, 1005, IdentityTransform(), "name"),
)


def _partitioned_rows(count: int) -> pa.Table:
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "name": [None if n % 5 == 0 else f"{'ab'[n % 2]}{n % 3}" for n in range(count)],
            "at": pa.array(
                [start + dt.timedelta(hours=n) for n in range(count)], pa.timestamp("us", "UTC")
            ),
            "day": pa.array([dt.date(2026, 1, 1 + n % 2) for n in range(count)]),
            "price": pa.array([Decimal(n % 2) / 4 for n in range(count)], pa.decimal128(9, 2)),
        }
    )


def test_rows_go_to_the_partitions_of_every_transform(tmp_path: Path) -> None:
    """Two fields of one column, too, which pyiceberg's own writer refuses."""
    bed = IcebergBed(directory=tmp_path)
    bed.create(_PARTITIONED, partition_spec=_SPEC)
    rows = _partitioned_rows(40)
    _write(bed, *rows.to_batches(max_chunksize=7))
    found = bed.table().scan().to_arrow().sort_by("id")
    assert found.to_pylist() == rows.to_pylist()
    for name, row in (("a2", 2), ("b1", 1)):
        scan = bed.table().scan(row_filter=f"name = '{name}' and id = {row}")
        assert scan.to_arrow()["id"].to_pylist() == [row]
        assert len(list(scan.plan_files())) == 1


def test_partition_values_are_those_of_pyiceberg_s_own_writer(tmp_path: Path) -> None:
    bed = IcebergBed(directory=tmp_path)
    spec = PartitionSpec(*_SPEC.fields[:-1])
    ours = bed.create(_PARTITIONED, partition_spec=spec)
    theirs = ours.catalog.create_table("lake.other", _PARTITIONED, partition_spec=spec)
    rows = _partitioned_rows(40)
    _write(bed, *rows.to_batches(max_chunksize=7))
    theirs.append(rows)
    assert _rows_by_partition(bed.table()) == _rows_by_partition(theirs)


def test_binary_columns_are_truncated(tmp_path: Path) -> None:
    """Which pyiceberg's own writer cannot."""
    bed = IcebergBed(directory=tmp_path)
    start = TruncateTransform(2)
    bed.create(
        Schema(NestedField(1, "raw", BinaryType())),
        partition_spec=PartitionSpec(PartitionField(1, 1000, start, "start")),
        sort_order=SortOrder(SortField(1, start)),
    )
    _write(bed, pa.record_batch({"raw": [b"ab\xff", b"a", None, b"ab\x00"]}))
    parts = [
        (task.file.partition[0], task.file.record_count) for task in bed.table().scan().plan_files()
    ]
    assert sorted(parts, key=str) == [(None, 1), (b"a", 1), (b"ab", 2)]
    scan = bed.table().scan(EqualTo("raw", b"ab\x00"))
    assert len(list(scan.plan_files())) == 1
    assert scan.to_arrow()["raw"].to_pylist() == [b"ab\x00"]


def test_zero_and_minus_zero_are_two_partitions_and_nan_is_one(tmp_path: Path) -> None:
    """Readers take the column's value from the partition."""
    bed = IcebergBed(directory=tmp_path)
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "x"))
    bed.create(Schema(NestedField(1, "x", DoubleType())), partition_spec=spec)
    rows = pa.record_batch({"x": [0.0, -0.0, float("nan")]})
    (entry,) = bed.pre_commit(rows, rows)
    files = decode_written_files(entry).files
    assert sorted((str(*file.partition), file.rows) for file in files) == [
        ("-0.0", 2),
        ("0.0", 2),
        ("nan", 2),
    ]


def test_a_null_of_a_required_partition_column_in_a_null_struct_is_refused(tmp_path: Path) -> None:
    """A manifest cannot have it: once the commit of the decided files failed each time."""
    bed = IcebergBed(directory=tmp_path)
    place = StructType(NestedField(3, "x", LongType(), required=True))
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "place", place))
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "x"))
    bed.create(schema, partition_spec=spec)
    kind = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    rows = pa.record_batch({"id": [1, 2], "place": pa.array([{"x": 5}, None], kind)})
    with pytest.raises(ConfigError, match=r"required column is null .*column=place\.x .*rows=1"):
        bed.pre_commit(rows)
    _write(bed, rows.slice(0, 1), batch_id=1)
    assert bed.ids() == Counter([1])


def _rows_by_partition(table: Table) -> Counter[str]:
    found: Counter[str] = Counter()
    for task in table.scan().plan_files():
        found[repr(task.file.partition)] += task.file.record_count
    return found


def test_rows_of_a_file_have_the_table_s_order(tmp_path: Path) -> None:
    bed = IcebergBed(directory=tmp_path)
    order = SortOrder(
        SortField(
            2, IdentityTransform(), direction=SortDirection.ASC, null_order=NullOrder.NULLS_LAST
        ),
        SortField(
            1, IdentityTransform(), direction=SortDirection.DESC, null_order=NullOrder.NULLS_FIRST
        ),
    )
    bed.create(_PLAIN, sort_order=order)
    rows = pa.record_batch(
        {"id": [1, 2, None, 3, 4], "name": ["b", "a", "b", None, "b"]}, schema=SCHEMA
    )
    (entry,) = bed.pre_commit(rows.slice(0, 2), rows.slice(2))
    (file,) = decode_written_files(entry).files
    assert file.sort_order_id == bed.table().sort_order().order_id
    found = pq.read_table(file.path.removeprefix("file://"))
    assert list(zip(*found.to_pydict().values(), strict=True)) == [
        (2, "a"),
        (None, "b"),
        (4, "b"),
        (1, "b"),
        (3, None),
    ]


def test_many_partitions_stay_within_the_bound_of_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.connectors.iceberg.writing.data_file_writer._MOST_OPEN", 2)
    bed = IcebergBed(directory=tmp_path)
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"))
    bed.create(_PLAIN, partition_spec=spec)
    _write(bed, rows_of(*range(5)), rows_of(*range(5, 9)))
    assert bed.ids() == Counter(range(9))


def test_a_file_that_is_large_enough_is_followed_by_another(tmp_path: Path) -> None:
    bed = IcebergBed(directory=tmp_path)
    bed.create(properties={"write.target-file-size-bytes": "1"})
    _write(bed, rows_of(1), rows_of(2), rows_of(3))
    assert len(bed.data_files()) == 3
    assert bed.ids() == Counter([1, 2, 3])
