"""Files written by tasks hold exactly the rows that were given, whatever their types and slices."""

import base64
import datetime
import io
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import fastavro
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pyarrow.types as kinds
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.connectors.hdfs.formats.avro import CODECS
from sluice.connectors.hdfs.formats.file_format import FileFormat
from sluice.connectors.hdfs.writing.partition_paths import DEFAULT_PARTITION, PartitionPaths
from tests.kit.files.format_rows import task_format

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROS = datetime.timedelta(microseconds=1)
_TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
_INSTANTS = st.datetimes(datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30))  # noqa: DTZ001


def _whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _decimals(digits: int, scale: int) -> st.SearchStrategy[Decimal]:
    largest = 10**digits - 1
    return st.integers(-largest, largest).map(lambda unscaled: Decimal(unscaled).scaleb(-scale))


def _leaves() -> list[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    return [
        (pa.bool_(), st.booleans()),
        (pa.int8(), _whole(8)),
        (pa.int64(), _whole(64)),
        (pa.float64(), st.floats(allow_nan=False)),
        (pa.string(), _TEXT),
        (pa.binary(), st.binary(max_size=8)),
        (pa.date32(), st.dates()),
        (pa.timestamp("us"), _INSTANTS),
        (pa.timestamp("us", tz="UTC"), _INSTANTS.map(lambda at: at.replace(tzinfo=datetime.UTC))),
        (pa.decimal128(9, 2), _decimals(9, 2)),
        (pa.decimal128(28, 10), _decimals(28, 10)),
    ]


_Typed = tuple[pa.DataType, st.SearchStrategy[Any]]


def _types() -> st.SearchStrategy[_Typed]:
    """A type, and a strategy for its values, null among them."""
    leaves = st.sampled_from([(kind, st.none() | values) for kind, values in _leaves()])
    return leaves | st.recursive(
        leaves, lambda inner: _lists(inner) | _structs(inner) | _maps(inner), max_leaves=5
    )


def _lists(inner: st.SearchStrategy[_Typed]) -> st.SearchStrategy[_Typed]:
    return inner.map(
        lambda one: (
            pa.list_(pa.field("element", one[0])),
            st.none() | st.lists(one[1], max_size=3),
        )
    )


def _maps(inner: st.SearchStrategy[_Typed]) -> st.SearchStrategy[_Typed]:
    return inner.map(
        lambda one: (
            pa.map_(pa.string(), one[0]),
            st.none() | st.dictionaries(_TEXT, one[1], max_size=3).map(lambda d: list(d.items())),
        )
    )


def _structs(inner: st.SearchStrategy[_Typed]) -> st.SearchStrategy[_Typed]:
    def made(parts: list[_Typed]) -> _Typed:
        names = [f"part{number}" for number in range(len(parts))]
        kind = pa.struct([pa.field(name, part[0]) for name, part in zip(names, parts, strict=True)])
        values = st.fixed_dictionaries(
            {name: part[1] for name, part in zip(names, parts, strict=True)}
        )
        return kind, st.none() | values

    return st.lists(inner, min_size=1, max_size=3).map(made)


@st.composite
def _batches(draw: st.DrawFn, types: st.SearchStrategy[_Typed]) -> pa.RecordBatch:
    columns = draw(st.lists(types, min_size=1, max_size=4))
    count = draw(st.integers(0, 6))
    rows = [draw(st.lists(values, min_size=count, max_size=count)) for _, values in columns]
    arrays = [pa.array(row, kind) for row, (kind, _) in zip(rows, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[f"c{i}" for i in range(len(columns))])


def _written(chosen: FileFormat, batch: pa.RecordBatch, cut: int) -> io.BytesIO:
    """The file of the batch, given in two slices."""
    stream = io.BytesIO()
    writer = chosen.open(stream, batch.schema)
    writer.write(batch.slice(0, cut))
    writer.write(batch.slice(cut))
    assert writer.close() == batch.num_rows
    stream.seek(0)
    return stream


@settings(deadline=None, max_examples=60)
@given(_batches(_types()), st.integers(0, 6))
def test_parquet_holds_the_rows(batch: pa.RecordBatch, cut: int) -> None:
    """Read by Arrow."""
    found = pq.read_table(_written(task_format("parquet"), batch, cut))
    assert found.to_pylist() == batch.to_pylist()


@settings(deadline=None, max_examples=60)
@given(
    _batches(_types()),
    st.integers(0, 6),
    st.sampled_from(sorted(CODECS)),
)
def test_avro_holds_the_rows(batch: pa.RecordBatch, cut: int, codec: str) -> None:
    """Read by fastavro."""
    found = list(fastavro.reader(_written(task_format("avro", compression=codec), batch, cut)))
    assert found == batch.to_pylist(maps_as_pydicts="strict")


@settings(deadline=None, max_examples=60)
@given(_batches(_types()), st.integers(0, 6), st.booleans())
def test_json_holds_the_rows(batch: pa.RecordBatch, cut: int, ignores: bool) -> None:
    """Against rows spelt one by one; a null field is left out, a null element is not."""
    chosen = task_format("json", ignoreNullFields=str(ignores))
    lines = _written(chosen, batch, cut).getvalue().decode().split("\n")
    assert lines.pop() == ""
    schema = pa.struct(list(batch.schema))
    expected = [_as_json(row, schema, ignores) for row in batch.to_pylist()]
    assert [json.loads(line, parse_float=Decimal) for line in lines] == expected


def _as_json(value: Any, kind: pa.DataType, ignores: bool) -> Any:
    if value is None:
        return None
    if kinds.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        members = {each.name: _as_json(value[each.name], each.type, ignores) for each in fields}
        return {k: v for k, v in members.items() if v is not None or not ignores}
    if kinds.is_list(kind):
        return [_as_json(each, kind.value_type, ignores) for each in value]
    if kinds.is_map(kind):
        return {key: _as_json(item, kind.item_type, ignores) for key, item in value}
    return _SPELT.get(kind, _itself)(value)


def _itself(value: Any) -> Any:
    return value


def _number(value: float) -> Any:
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return Decimal(repr(value))


_SPELT: dict[pa.DataType, Callable[[Any], Any]] = {
    pa.binary(): lambda value: base64.b64encode(value).decode(),
    pa.float64(): _number,
    pa.date32(): datetime.date.isoformat,
    pa.timestamp("us"): lambda at: at.isoformat(timespec="microseconds"),
    pa.timestamp("us", tz="UTC"): lambda at: at.isoformat(timespec="microseconds"),
}


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.none() | _TEXT, st.none() | _whole(64)), max_size=6), st.integers(0, 6)
)
def test_csv_holds_the_rows(given_rows: list[tuple[str | None, int | None]], cut: int) -> None:
    """Read by Arrow: null and the empty string are told apart by the quotes."""
    batch = pa.record_batch(
        {
            "text": pa.array([row[0] for row in given_rows], pa.string()),
            "number": pa.array([row[1] for row in given_rows], pa.int64()),
        }
    )
    found = pa.csv.read_csv(
        _written(task_format("csv", header="true"), batch, cut),
        parse_options=pa.csv.ParseOptions(newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(
            column_types=batch.schema,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
        ),
    )
    assert found.to_pylist() == batch.to_pylist()


_KEYS = st.lists(
    st.tuples(st.none() | st.sampled_from(["", "a", "b/c", "è=%"]) | _TEXT, st.none() | _whole(3)),
    max_size=30,
)


@given(_KEYS)
def test_split_by_partition_keeps_every_row_once_and_in_order(
    keys: list[tuple[str | None, int | None]],
) -> None:
    """Each path once; its rows are those with its values, as they came."""
    keys = [(None if text and "\0" in text else text, number) for text, number in keys]
    texts, numbers = [key[0] for key in keys], [key[1] for key in keys]
    batch = pa.record_batch(
        {
            "text": pa.array(texts, pa.string()),
            "row": pa.array(range(len(keys)), pa.int64()),
            "number": pa.array(numbers, pa.int32()),
        }
    )
    partitions = PartitionPaths(columns=("number", "text"))
    parts = partitions.split(batch)
    expected: dict[tuple[str, str], list[int]] = {}
    for row, (text, number) in enumerate(keys):
        expected.setdefault((_named(number), _named(text)), []).append(row)
    found = {tuple(_values(path)): part.column("row").to_pylist() for path, part in parts}
    assert len(found) == len(parts)
    assert found == expected
    assert all(part.schema == partitions.check(batch.schema) for _, part in parts)


def _named(value: object) -> str:
    return DEFAULT_PARTITION if value in (None, "") else str(value)


def _values(path: str) -> Iterator[str]:
    for directory in path.split("/"):
        yield unquote(directory.partition("=")[2])
