"""Files as the checker's records: what is read, what is passed over, what is refused by name."""

import json
import os
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.connectors.hdfs.formats.text_formats import JsonLines
from sluice.runtime.checker import Location, Record
from sluice.runtime.checker.files import read_files, row_value
from sluice.runtime.errors import ConfigError, StorageError


def test_columns_of_a_kafka_record_are_read_byte_for_byte(tmp_path: Path) -> None:
    """Null is not empty, and headers keep their order."""
    rows = [
        {"key": b"k", "value": b"v", "headers": [{"key": "h", "value": b"1"}], "offset": 7},
        {"key": None, "value": b"", "headers": None, "offset": 8},
        {"key": b"", "value": None, "headers": [], "offset": 9},
    ]
    file = tmp_path / "part.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file)
    assert list(read_files(file, topic="out")) == [
        (Record("out", 0, 0, b"k", b"v", (("h", b"1"),)), Location(str(file), 0, 0)),
        (Record("out", 0, 1, None, b""), Location(str(file), 0, 1)),
        (Record("out", 0, 2, b"", None), Location(str(file), 0, 2)),
    ]


def values_in(directory: Path) -> list[bytes | None]:
    return [record.value for record, _ in read_files(directory, topic="out")]


def both_ways(directory: Path, batch: pa.RecordBatch) -> list[list[bytes | None]]:
    """The values of the rows as our writer of JSON spells them, and as Parquet holds them."""
    for name in ("json", "parquet"):
        (directory / name).mkdir()
    with (directory / "json" / "part.json").open("wb") as stream:
        writer = JsonLines().open(stream, batch.schema)
        writer.write(batch)
        writer.close()
    pq.write_table(pa.Table.from_batches([batch]), directory / "parquet" / "part.parquet")
    return [values_in(directory / name) for name in ("json", "parquet")]


def test_a_partition_column_may_begin_with_an_underscore(tmp_path: Path) -> None:
    """Spark reads such directories, and names columns so that have no name (``_c0``)."""
    (tmp_path / "_c0=1").mkdir()
    (tmp_path / "_c0=1" / "part.json").write_text('{"id": 1}\n', "utf-8")
    assert values_in(tmp_path) == [row_value({"id": 1, "_c0": "1"})]


def test_a_directory_that_cannot_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "day=1").mkdir()
    (tmp_path / "part.json").write_text('{"value": "v"}\n', "utf-8")
    listed = os.scandir

    def refusing(path: str | os.PathLike[str] = ".") -> object:
        if Path(path).name == "day=1":
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(StorageError, match=r"day=1.*Permission denied"):
        values_in(tmp_path)


def test_a_path_that_cannot_be_looked_at_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="too long"):
        values_in(tmp_path / ("x" * 300))


@pytest.mark.parametrize("target", ["elsewhere", "nowhere"])
def test_a_link_that_is_no_file_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "part.json").write_text('{"value": "v"}\n', "utf-8")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part.json").symlink_to(tmp_path / "elsewhere" / "part.json")
    assert values_in(tmp_path / "out") == [b"v"]
    (tmp_path / "out" / ".hidden").symlink_to(tmp_path / target)
    assert values_in(tmp_path / "out") == [b"v"]
    (tmp_path / "out" / "day=2").symlink_to(tmp_path / target)
    with pytest.raises(ConfigError, match="day=2"):
        values_in(tmp_path / "out")


def test_a_partition_directory_is_a_column_of_its_rows_as_text(tmp_path: Path) -> None:
    """As the path spells it: unescaped, null where it stands for null, and before the file's own.

    Directories above the one that was given are not the table's.
    """
    table = tmp_path / "above=1" / "table"
    for directory in ("dt=2024-01-01/at=12%3A00%25", "dt=__HIVE_DEFAULT_PARTITION__/at=a=b", "."):
        (table / directory).mkdir(parents=True, exist_ok=True)
        (table / directory / "part.json").write_text('{"id": 1, "dt": 3}\n', "utf-8")
    pq.write_table(
        pa.Table.from_pylist([{"id": 1}]), table / "dt=__HIVE_DEFAULT_PARTITION__" / "p.parquet"
    )
    values = {record.value for record, _ in read_files(table, topic="out")}
    assert values == {
        row_value({"id": 1, "dt": "2024-01-01", "at": "12:00%"}),
        row_value({"id": 1, "dt": None, "at": "a=b"}),
        row_value({"id": 1, "dt": None}),
        row_value({"id": 1, "dt": 3}),
    }


def test_columns_that_are_no_part_of_a_record_are_named(tmp_path: Path) -> None:
    (tmp_path / "dt=1").mkdir()
    (tmp_path / "dt=1" / "a.json").write_text('{"value": "v", "key": "k", "id": 1}\n', "utf-8")
    (tmp_path / "b.json").write_text('{"value": "v"}\n{"other": "v"}\n', "utf-8")
    left_out: set[str] = set()
    assert len(list(read_files(tmp_path, topic="out", left_out=left_out))) == 3
    assert left_out == {"dt", "id"}


@pytest.mark.parametrize("content", ["{", "[1]\n", "\u00a0\n", '{"value": "v"}\n{"val'])
@pytest.mark.parametrize("suffix", [".json", ".parquet"])
def test_a_damaged_file_is_named(tmp_path: Path, content: str, suffix: str) -> None:
    file = tmp_path / f"part{suffix}"
    file.write_text(content, "utf-8")
    with pytest.raises(StorageError, match=f"part{suffix}"):
        list(read_files(tmp_path, topic="out"))


def test_an_unknown_format_and_a_missing_place_are_refused(tmp_path: Path) -> None:
    (tmp_path / "part.orc").touch()
    with pytest.raises(ConfigError, match=r"part\.orc"):
        list(read_files(tmp_path, topic="out"))
    with pytest.raises(ConfigError, match="no such file"):
        list(read_files(tmp_path / "absent", topic="out"))


def test_bytes_and_times_have_a_text(tmp_path: Path) -> None:
    assert json.loads(row_value({"a": b"\x00"})) == {"a": "AA=="}


def test_decimals_and_doubles_read_the_same_from_json_and_parquet(tmp_path: Path) -> None:
    amounts = [Decimal("1.50"), Decimal("12345678901234567.89"), Decimal("-3.00"), Decimal("0.01")]
    counts = [Decimal(1), Decimal(10**25), Decimal(-3), Decimal(0)]
    doubles = [1.5, 1e22, -0.1, float("-inf")]
    batch = pa.record_batch(
        {
            "amount": pa.array(amounts, pa.decimal128(38, 2)),
            "count": pa.array(counts, pa.decimal128(38, 0)),
            "double": pa.array(doubles, pa.float64()),
        }
    )
    from_json, from_parquet = both_ways(tmp_path, batch)
    assert from_json == from_parquet
    cells = zip([1.5, *amounts[1:]], [1, *counts[1:]], [*doubles[:3], "-Infinity"], strict=True)
    rows = [{"amount": a, "count": c, "double": d} for a, c, d in cells]
    assert from_json == [row_value(row) for row in rows]


@pytest.mark.parametrize("text", ["1.9999999999999998E23", "2.0E23", "2e+23"])
def test_a_double_is_the_same_as_every_writer_spells_it(tmp_path: Path, text: str) -> None:
    """Java before 19 gives some more digits than they have."""
    (tmp_path / "part.json").write_text(f'{{"double":{text}}}\n', "utf-8")
    assert values_in(tmp_path) == [row_value({"double": 2e23})]


@pytest.mark.parametrize("number", ["1.0e400", "1e-99999999999999999999"])
def test_a_number_that_nobody_can_compute_with_is_damage(tmp_path: Path, number: str) -> None:
    (tmp_path / "part.json").write_text(f'{{"a":{number}}}\n', "utf-8")
    with pytest.raises(StorageError, match=r"part\.json"):
        values_in(tmp_path)


def test_a_row_nested_too_deeply_is_refused_by_the_name_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "part.json").write_text('{"a":' + "[" * 600 + "]" * 600 + "}\n", "utf-8")
    with pytest.raises(StorageError, match="nested too deeply"):
        values_in(tmp_path)


def test_a_null_member_is_the_same_as_none(tmp_path: Path) -> None:
    """Writers of JSON leave it out, unless they are reported not to; nulls in lists are kept."""
    point = pa.struct([("x", pa.int64()), ("y", pa.int64())])
    batch = pa.record_batch(
        {
            "id": pa.array([1, 2, None]),
            "note": pa.array(["x", None, None]),
            "at": pa.array([{"x": 1, "y": None}, {"x": None, "y": None}, None], point),
            "way": pa.array([[None, {"x": None, "y": 2}], [], None], pa.list_(point)),
        }
    )
    from_json, from_parquet = both_ways(tmp_path, batch)
    assert from_json == from_parquet == [row_value(row) for row in batch.to_pylist()]
    assert from_json == [
        b'{"at":{"x":1},"id":1,"note":"x","way":[null,{"y":2}]}',
        b'{"at":{},"id":2,"way":[]}',
        b"{}",
    ]
    written = '{"id":1,"note":"x","at":{"x":1,"y":null},"way":[null,{"x":null,"y":2}]}\n'
    (tmp_path / "json" / "part.json").write_text(written, "utf-8")
    assert values_in(tmp_path / "json") == from_json[:1]


def test_a_record_whose_value_was_left_out_has_none(tmp_path: Path) -> None:
    """A tombstone as writers of JSON spell it, in whichever file of an output of records."""
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
    batch = pa.record_batch(
        {
            "key": pa.array(["a", "b", "c"]),
            "value": pa.array(["v", None, None]),
            "headers": pa.array([None, None, [{"key": "h", "value": None}]], kind),
        }
    )
    both_ways(tmp_path, batch)
    (tmp_path / "json" / "day=1").mkdir()
    (tmp_path / "json" / "day=1" / "part.json").write_text('{"key":"z"}\n', "utf-8")
    first, *rest = (record for record, _ in read_files(tmp_path / "json", topic="out"))
    assert first == Record("out", 0, 0, b"z", None)
    for found in (rest, [record for record, _ in read_files(tmp_path / "parquet", topic="out")]):
        assert found == [
            Record("out", 0, 0, b"a", b"v"),
            Record("out", 0, 1, b"b", None),
            Record("out", 0, 2, b"c", None, (("h", None),)),
        ]


def test_a_table_with_a_key_and_without_values_has_no_records(tmp_path: Path) -> None:
    batch = pa.record_batch({"key": pa.array(["a", "value"]), "id": pa.array([1, None])})
    from_json, from_parquet = both_ways(tmp_path, batch)
    assert from_json == from_parquet == [row_value({"key": "a", "id": 1}), b'{"key":"value"}']


_BAD_HEADERS = [{"a": "1"}, "a=1", 5, ["a"], [{"name": "a"}], [{"key": "a", "val": "1"}], [None]]


@pytest.mark.parametrize("headers", _BAD_HEADERS)
def test_headers_of_another_form_are_refused_by_the_name_of_their_column(
    tmp_path: Path, headers: object
) -> None:
    """They were compared with nothing, and not named as left out; the file is whole."""
    row = {"value": "v", "headers": headers}
    (tmp_path / "part.json").write_text(f'{{"value":"v"}}\n{json.dumps(row)}\n', "utf-8")
    with pytest.raises(ConfigError, match=r"part\.json column=headers row=1") as caught:
        values_in(tmp_path)
    assert "--ignore-headers" in str(caught.value)
    found = [record for record, _ in read_files(tmp_path, topic="out", need_headers=False)]
    assert found == [Record("out", 0, 0, None, b"v"), Record("out", 0, 1, None, b"v")]


def test_a_map_of_headers_in_parquet_is_no_damage(tmp_path: Path) -> None:
    headers = pa.array([[("a", "1")], None], pa.map_(pa.string(), pa.string()))
    table = pa.table({"value": ["v", "w"], "headers": headers})
    pq.write_table(table, tmp_path / "part.parquet")
    with pytest.raises(ConfigError, match=r"part\.parquet column=headers row=0"):
        values_in(tmp_path)


def test_headers_that_nobody_compares_are_read_where_they_can_be(tmp_path: Path) -> None:
    """A mapping, or what names records, may look at them."""
    row = {"value": "v", "headers": [{"key": "a", "value": "1"}, {"key": "b"}]}
    (tmp_path / "part.json").write_text(f"{json.dumps(row)}\n", "utf-8")
    ((record, _),) = read_files(tmp_path, topic="out", need_headers=False)
    assert record.headers == (("a", b"1"), ("b", None))


@pytest.mark.parametrize("number", ["1e-999999999", "1e999999999", "-1e5000"])
def test_a_decimal_of_a_mapping_is_not_spelt_out_either(number: str) -> None:
    with pytest.raises(ValueError, match="exponent"):
        row_value({"a": Decimal(number)})


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2**60], pa.timestamp("us")),
        pa.array([2**60], pa.timestamp("us", "UTC")),
        pa.array([2**30], pa.date32()),
        pa.array([2**62], pa.duration("s")),
        pa.array([1], pa.time64("ns")),
        pa.array([[{"at": 1001}]], pa.list_(pa.struct([("at", pa.time64("ns"))]))),
    ],
    ids=["timestamp", "instant", "date", "duration", "time", "nested"],
)
def test_a_time_that_python_cannot_hold_whole_is_refused_by_name(
    tmp_path: Path, column: pa.Array
) -> None:
    """Two that differ by less than a microsecond would pass for the same."""
    pq.write_table(pa.table({"at": column}), tmp_path / "part.parquet")
    with pytest.raises(ConfigError, match=r"part\.parquet"):
        values_in(tmp_path)


def test_times_of_the_day_that_some_write_in_nanoseconds_are_read(tmp_path: Path) -> None:
    for kind, at in (("us", 1_000_001), ("ns", 1_000_001_000)):
        pq.write_table(
            pa.table({"at": pa.array([at], pa.time64(kind))}), tmp_path / f"{kind}.parquet"
        )
    (first, second) = values_in(tmp_path)
    assert first == second


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    columns = [pa.array([1]), pa.array([2])]
    pq.write_table(pa.Table.from_arrays(columns, ["id", "id"]), tmp_path / "part.parquet")
    with pytest.raises(StorageError, match="two columns"):
        values_in(tmp_path)


def test_times_as_spark_writes_them_have_any_year(tmp_path: Path) -> None:
    """INT96 in nanoseconds of 64 bits goes round after 584 years: 9999 would be 1816."""
    times = [f"{year}-12-31 01:02:03.456789" for year in (1500, 2024, 9999)]
    table = pa.table({"at": pa.array(times).cast(pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "part.parquet", use_deprecated_int96_timestamps=True)
    assert values_in(tmp_path) == [row_value({"at": at}) for at in times]
