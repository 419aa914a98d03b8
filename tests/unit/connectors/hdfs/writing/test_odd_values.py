"""Odd but legal values of every type, through every format, read by other programs."""

import base64
import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.connectors.hdfs.formats.python_values import numbers_for_times
from sluice.connectors.hdfs.formats.spark_types import spark_schema, with_leaves
from tests.kit.files.format_rows import task_format
from tests.kit.files.odd_values import FAR, INSTANT, LOCAL, NESTED, cells, odd


def written(form: str, directory: Path, batch: pa.RecordBatch) -> str:
    path = directory / f"part-0{task_format(form).extension}"
    with path.open("xb") as stream:
        writer = task_format(form).open(stream, batch.schema)
        writer.write(batch)
        writer.close()
    return str(path)


def last_of_each_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    """As readers of Avro and of most JSON see a key that stands twice."""
    if "twice" not in batch.schema.names:
        return batch
    maps = [None if m is None else list(dict(m).items()) for m in batch["twice"].to_pylist()]
    at, field = batch.schema.get_field_index("twice"), batch.schema.field("twice")
    return batch.set_column(at, field, pa.array(maps, field.type))


@pytest.mark.parametrize("reader", ["pyarrow", "duckdb"])
def test_parquet_is_read_as_it_was(tmp_path: Path, reader: str) -> None:
    batch = odd(*([] if reader == "pyarrow" else ["twice"]))
    path = written("parquet", tmp_path, batch)
    if reader == "pyarrow":
        found = pq.read_table(path)
    else:
        found = duckdb.sql(f"SET TimeZone='UTC'; FROM read_parquet('{path}')").to_arrow_table()
    assert cells(found, batch) == cells(batch, batch)


def test_avro_is_read_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By fastavro, dates and timestamps as numbers: it has no others beyond Python's calendar."""
    for name in ("int-date", "long-timestamp-micros", "long-local-timestamp-micros"):
        monkeypatch.delitem(fastavro.read.LOGICAL_READERS, name)
    batch = odd()
    with Path(written("avro", tmp_path, batch)).open("rb") as stream:
        rows = [cast(dict[str, Any], row) for row in fastavro.reader(stream)]
    stored = with_leaves(spark_schema(batch.schema), numbers_for_times)
    found = pa.Table.from_pylist(rows, stored)
    assert cells(found, batch) == cells(last_of_each_key(batch), batch)


def test_json_is_read_as_it_was(tmp_path: Path) -> None:
    """By Python: bytes in base64, dates and timestamps as ISO 8601, both entries of a key."""
    batch = odd(*FAR)
    text = Path(written("json", tmp_path, batch)).read_text("utf-8")
    # Pairs, because an object may have a key twice; digits, because a float has too few.
    decode: Any = {"object_pairs_hook": list, "parse_float": str, "parse_int": str}
    rows = [dict(json.loads(line, **decode)) for line in text.split("\n")[:-1]]
    stored = with_leaves(spark_schema(batch.schema), numbers_for_times)
    columns = {
        field.name: pa.array([_value(row.get(field.name), field.type) for row in rows], store.type)
        for field, store in zip(spark_schema(batch.schema), stored, strict=True)
    }
    assert cells(pa.table(columns), batch) == cells(batch, batch)


def _value(found: Any, kind: pa.DataType) -> Any:
    """A value of this type from JSON, as Arrow takes it."""
    is_ = pa.types
    if found is None or is_.is_string(kind) or is_.is_boolean(kind):
        return found
    if is_.is_list(kind):
        return [_value(each, kind.value_type) for each in found]
    if is_.is_map(kind):
        return [(key, _value(each, kind.item_type)) for key, each in found]
    if is_.is_struct(kind):
        return {field.name: _value(dict(found).get(field.name), field.type) for field in kind}
    if is_.is_binary(kind):
        return base64.b64decode(found)
    if is_.is_date(kind):
        return (datetime.date.fromisoformat(found) - datetime.date(1970, 1, 1)).days
    if is_.is_timestamp(kind):
        at = datetime.datetime.fromisoformat(found)
        epoch = datetime.datetime(1970, 1, 1, tzinfo=at.tzinfo)
        return (at - epoch) // datetime.timedelta(microseconds=1)
    return (
        Decimal(found) if is_.is_decimal(kind) else (float if is_.is_floating(kind) else int)(found)
    )


_DUCKS = {
    pa.string(): "VARCHAR",
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.date32(): "DATE",
    INSTANT: "TIMESTAMPTZ",
    LOCAL: "TIMESTAMP",
}


@pytest.mark.parametrize("form", ["json", "csv"])
def test_duckdb_reads_text_as_it_was(tmp_path: Path, form: str) -> None:
    batch = odd("blob", "nul", *FAR, *NESTED)
    path = written(form, tmp_path, batch)
    kinds = {f.name: _DUCKS.get(f.type, str(f.type)) for f in spark_schema(batch.schema)}
    columns = str({name: kind.replace("decimal128", "DECIMAL") for name, kind in kinds.items()})
    rest = (
        ", escape='\"', quote='\"', header=false, allow_quoted_nulls=false" if form == "csv" else ""
    )
    found = duckdb.sql(f"SET TimeZone='UTC'; FROM read_{form}('{path}', columns={columns}{rest})")
    assert cells(found.to_arrow_table(), batch) == cells(batch, batch)
