"""New columns: what is added to a table, and what is refused without a change of it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from sluice.connectors.iceberg.table.writing_plan import WritingPlan
from sluice.runtime.errors import ConfigError
from tests.kit.iceberg.iceberg_bed import IcebergBed, rows_of


def _write(bed: IcebergBed, *batches: pa.RecordBatch, **options: Any) -> None:
    bed.commit(bed.pre_commit(*batches, **options))


def test_a_new_column_is_added_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    bed = IcebergBed(directory=tmp_path)
    bed.create()
    wider = pa.record_batch({"id": pa.array([2], pa.int64()), "extra": ["x"]})
    _write(bed, rows_of(1), wider, rows_of(3), evolve=True)
    found = bed.table().scan().to_arrow().sort_by("id").to_pylist()
    assert [(row["id"], row["name"], row["extra"]) for row in found] == [
        (1, "n1", None),
        (2, None, "x"),
        (3, "n3", None),
    ]


def test_types_widen_and_fields_of_structs_are_added(tmp_path: Path) -> None:
    bed = IcebergBed(directory=tmp_path)
    bed.create(pa.schema({"n": pa.int32(), "s": pa.struct({"a": pa.int32()})}))
    rows = pa.RecordBatch.from_pylist(
        [{"n": 2**40, "s": {"a": 1, "b": "x"}}],
        schema=pa.schema({"n": pa.int64(), "s": pa.struct({"a": pa.int32(), "b": pa.string()})}),
    )
    _write(bed, rows, evolve=True)
    assert bed.table().scan().to_arrow().to_pylist() == rows.to_pylist()


def test_a_type_that_iceberg_cannot_widen_is_refused(tmp_path: Path) -> None:
    bed = IcebergBed(directory=tmp_path)
    bed.create()
    with pytest.raises(ConfigError, match="cannot evolve"):
        bed.pre_commit(pa.record_batch({"id": ["x"]}), evolve=True)


@pytest.mark.parametrize(
    "kind",
    [
        pa.uint64(),
        pa.time32("s"),
        pa.duration("us"),
        pa.null(),
        pa.list_(pa.uint64()),
        pa.struct({"x": pa.map_(pa.string(), pa.uint64())}),
    ],
)
def test_a_type_that_no_column_can_hold_is_refused_without_a_new_column(
    tmp_path: Path, kind: pa.DataType
) -> None:
    bed = IcebergBed(directory=tmp_path)
    bed.create()
    with pytest.raises(ConfigError, match=r"cannot evolve .*columns=v:"):
        bed.pre_commit(pa.record_batch([pa.nulls(1, kind)], ["v"]), evolve=True)
    assert len(bed.table().schema().fields) == 2


def test_unsigned_numbers_go_to_columns_that_hold_them(tmp_path: Path) -> None:
    bed = IcebergBed(directory=tmp_path)
    bed.create(pa.schema({"n": pa.int32()}))
    kinds = {
        "n": pa.uint32(),
        "small": pa.uint16(),
        "coded": pa.dictionary(pa.int8(), pa.uint32()),
        "nested": pa.struct(
            {"l": pa.list_(pa.uint32()), "m": pa.map_(pa.string(), pa.uint32()), "u": pa.uint8()}
        ),
    }
    most = 2**32 - 1
    row = {"n": most, "small": 2**16 - 1, "coded": most}
    row |= {"nested": {"l": [most], "m": [("k", most)], "u": 255}}
    columns = [pa.array([row[name]], kind) for name, kind in kinds.items()]
    _write(bed, pa.record_batch(columns, list(kinds)), evolve=True)
    assert bed.table().scan().to_arrow().to_pylist() == [row]


_PLACE = pa.struct({"X": pa.int64()})


@pytest.mark.parametrize(
    ("rows", "column", "other"),
    [
        (pa.record_batch({"ID": [1]}), "ID", "id"),
        (pa.record_batch({"new": [1], "New": [1]}), "New", "new"),
        (pa.record_batch({"place": pa.array([{"X": 1}], _PLACE)}), "place.X", "place.x"),
        (pa.record_batch({"l": pa.array([[{"X": 1}]], pa.list_(_PLACE))}), "l.X", "l.x"),
        (
            pa.record_batch({"m": pa.array([[("k", {"X": 1})]], pa.map_(pa.string(), _PLACE))}),
            "m.X",
            "m.x",
        ),
        (
            pa.record_batch({"new": pa.array([{"a": 1, "A": 2}])}),
            "new.A",
            "new.a",
        ),
    ],
)
def test_a_column_that_differs_by_case_alone_is_refused(
    tmp_path: Path, rows: pa.RecordBatch, column: str, other: str
) -> None:
    """Spark takes no notice of case: it can read neither of two such columns."""
    place = pa.struct({"x": pa.int64()})
    schema = {"id": pa.int64(), "place": place, "l": pa.list_(place)}
    bed = IcebergBed(directory=tmp_path)
    bed.create(pa.schema({**schema, "m": pa.map_(pa.string(), place)}))
    with pytest.raises(ConfigError, match=rf"by case alone .*column={column} other={other}\]"):
        bed.pre_commit(rows, evolve=True)
    assert len(bed.table().metadata.schemas) == 1


def test_columns_of_the_table_may_differ_by_case(tmp_path: Path) -> None:
    bed = IcebergBed(directory=tmp_path)
    bed.create(pa.schema({"id": pa.int64(), "ID": pa.int64()}))
    rows = pa.record_batch({"ID": [1], "id": [2], "new": [3]})
    _write(bed, rows, evolve=True)
    assert bed.table().scan().to_arrow().to_pylist() == [{"id": 2, "ID": 1, "new": 3}]


def test_two_tasks_that_add_one_column_agree_on_it(tmp_path: Path) -> None:
    """The second one began with the older schema."""
    bed = IcebergBed(directory=tmp_path)
    bed.create()
    factory = bed.sink(evolve=True).writer_factory()
    writers = [
        factory.open(bed.scope("r", 0, attempt_id=1, task=f"{task}.0"), bed.registry)
        for task in range(2)
    ]
    for number, writer in enumerate(writers):
        writer.write(pa.record_batch({"id": [number], "extra": [f"x{number}"]}))
    bed.commit([entry for writer in writers for entry in writer.pre_commit()])
    found = bed.table().scan().to_arrow().sort_by("id")
    assert found["extra"].to_pylist() == ["x0", "x1"]
    assert len(bed.table().schema().fields) == 3


def test_a_required_column_stays_required(tmp_path: Path) -> None:
    bed = IcebergBed(directory=tmp_path)
    bed.create(Schema(NestedField(1, "id", LongType(), required=True)))
    _write(bed, pa.record_batch({"id": [1], "extra": ["x"]}), evolve=True)
    assert bed.table().schema().find_field("id").required


def test_the_next_epoch_of_an_attempt_does_not_add_its_columns_again(tmp_path: Path) -> None:
    bed = IcebergBed(directory=tmp_path)
    bed.create()
    factory = bed.sink(evolve=True).writer_factory()
    assert factory.evolved is not None
    asked: list[Sequence[pa.Field]] = []

    def evolved(columns: Sequence[pa.Field]) -> WritingPlan:
        asked.append(columns)
        assert factory.evolved is not None
        return factory.evolved(columns)

    counting = replace(factory, evolved=evolved)
    for batch_id in range(2):
        scope = bed.scope("orders", batch_id, attempt_id=7, task="0.0")
        writer = counting.open(scope, bed.registry)
        writer.write(_with_x(batch_id, batch_id))
        bed.commit(writer.pre_commit(), checkpoint_id=batch_id + 1)
    assert len(asked) == 1
    assert _xs(bed) == [0, 1]


def test_a_column_that_was_dropped_is_added_again_by_the_next_attempt(tmp_path: Path) -> None:
    """Also in a worker process that knows it: schema ids are used again."""
    bed = IcebergBed(directory=tmp_path)
    bed.create()
    _write(bed, _with_x(1, 11), evolve=True)
    with bed.table().update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("x")
    _write(bed, _with_x(2, 22), attempt_id=2, evolve=True)
    assert _xs(bed) == [None, 22]


def _with_x(number: int, x: int | None) -> pa.RecordBatch:
    return pa.record_batch({"id": [number], "x": pa.array([x], pa.int64())})


def _xs(bed: IcebergBed) -> list[int | None]:
    found: list[int | None] = bed.table().scan().to_arrow().sort_by("id")["x"].to_pylist()
    return found
