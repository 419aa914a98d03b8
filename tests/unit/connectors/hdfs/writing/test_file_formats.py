"""File formats: options, names, refusals and bounds."""

import io
import pickle
import re
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sluice.connectors.hdfs.formats.choice import TASK_FORMAT_NAMES, file_format
from sluice.connectors.hdfs.formats.parquet import Parquet
from sluice.connectors.hdfs.writing.partition_paths import PartitionPaths
from sluice.runtime.errors import ConfigError
from tests.kit.files.format_rows import RFC_4180, TEXT_COLUMNS, rows, task_format


def _text(name: str, batch: pa.RecordBatch, **options: str) -> str:
    chosen = pickle.loads(pickle.dumps(task_format(name, **options)))
    stream = io.BytesIO()
    writer = chosen.open(stream, batch.schema)
    writer.write(batch)
    writer.close()
    return stream.getvalue().decode()


@pytest.mark.parametrize(
    ("name", "compression", "extension"),
    [
        ("parquet", None, ".snappy.parquet"),
        ("parquet", "none", ".parquet"),
        ("parquet", "GZIP", ".gz.parquet"),
        ("parquet", "zstd", ".zstd.parquet"),
        ("parquet", "lz4_raw", ".lz4raw.parquet"),
        ("avro", None, ".avro"),
        ("json", None, ".json"),
        ("json", "gzip", ".json.gz"),
        ("json", "deflate", ".json.deflate"),
        ("csv", "bzip2", ".csv.bz2"),
    ],
)
def test_extensions_are_those_of_sparks_writers(
    name: str, compression: str | None, extension: str
) -> None:
    """Readers choose the decompression of text by them."""
    options = {} if compression is None else {"compression": compression}
    assert task_format(name, **options).extension == extension


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("parket", {}, "Did you mean parquet"),
        ("xml", {}, "Use one of"),
        ("parquet", {"compresion": "snappy"}, "Did you mean compression"),
        ("parquet", {"header": "true"}, "unknown option of the parquet format"),
        ("parquet", {"compression": "lzo"}, "one of snappy"),
        ("csv", {"codec": "gzip", "compression": "none"}, "given twice"),
        ("csv", {}, "Set the option escape to a double quote"),
        ("csv", {"escape": "\\"}, "a double quote"),
        ("csv", {**RFC_4180, "compression": "snappy"}, "one of none"),
        ("csv", {**RFC_4180, "header": "yes"}, "true or false"),
        ("csv", {**RFC_4180, "sep": "\\0"}, "one ASCII character"),
        ("csv", {**RFC_4180, "sep": "||"}, "one ASCII character"),
        ("csv", {**RFC_4180, "nullValue": "-"}, "unknown option of the csv format"),
        ("json", {"timestampFormat": "yyyy"}, "unknown option of the json format"),
        ("avro", {"compression": "snappy"}, "one of deflate"),
        ("avro", {"recordName": ""}, "a value that is not empty"),
        ("orc", {}, "write it with a Job and HdfsSink"),
    ],
)
def test_wrong_option_is_refused_by_name(name: str, options: dict[str, str], message: str) -> None:
    """Spark ignores a misspelt one."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        file_format(name, options)


_PLACE = pa.struct([("at", pa.duration("us"))])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(
            (name, kind)
            for name in TASK_FORMAT_NAMES
            for kind in (pa.null(), pa.time64("us"), _PLACE, pa.decimal256(50, 2))
        ),
        ("csv", pa.binary()),
        ("csv", pa.list_(pa.string())),
        ("json", pa.map_(pa.int64(), pa.string())),
        ("avro", pa.map_(pa.int64(), pa.string())),
    ],
)
def test_type_that_a_format_cannot_hold_is_refused_before_any_row(
    name: str, kind: pa.DataType
) -> None:
    """With the column's name."""
    chosen = task_format(name)
    schema = pa.schema([("fine", pa.string()), ("odd", kind)])
    with pytest.raises(ConfigError, match="column=odd"):
        chosen.check(schema)
    with pytest.raises(ConfigError, match="column=odd"):
        chosen.open(io.BytesIO(), schema)


@pytest.mark.parametrize("names", [[], ["a", "A"]])
def test_columns_that_spark_could_not_read_are_refused(names: list[str]) -> None:
    """None at all, or two that differ in case alone."""
    schema = pa.schema([(name, pa.string()) for name in names])
    with pytest.raises(ConfigError, match="columns"):
        file_format("parquet", {}).check(schema)


@pytest.mark.parametrize("name", TASK_FORMAT_NAMES)
@pytest.mark.parametrize("names", [["b", "b"], ["b", "B"]])
def test_fields_that_spark_could_not_read_are_refused(name: str, names: list[str]) -> None:
    """In any depth: Spark refuses to read every file of such a schema, not the column alone."""
    inner = pa.struct([pa.field(each, pa.int64()) for each in names])
    schema = pa.schema([("fine", pa.string()), ("odd", pa.struct([("a", pa.list_(inner))]))])
    with pytest.raises(ConfigError, match="column=odd"):
        task_format(name).check(schema)


def test_name_that_avro_does_not_allow_is_refused() -> None:
    """In any depth."""
    schema = pa.schema([("a", pa.struct([("città", pa.string())]))])
    with pytest.raises(ConfigError, match="città"):
        file_format("avro", {}).check(schema)


def test_arrows_own_types_become_sparks() -> None:
    """Dictionaries, large and fixed sizes, unsigned numbers, other units."""
    batch = pa.record_batch(
        {
            "dictionary": pa.array(["a", None]).dictionary_encode(),
            "large": pa.array(["a", None], pa.large_string()),
            "fixed": pa.array([b"ab", None], pa.binary(2)),
            "unsigned": pa.array([2**64 - 1, None], pa.uint64()),
            "millis": pa.array([1, None], pa.timestamp("ms", tz="UTC")),
            "nanos": pa.array([1000, None], pa.timestamp("ns")),
            "lists": pa.array([[1], None], pa.large_list(pa.uint32())),
        }
    )
    stream = io.BytesIO()
    writer = Parquet().open(stream, batch.schema)
    writer.write(batch)
    writer.close()
    found = pq.read_table(stream)
    assert [str(field.type) for field in found.schema] == [
        *("string", "string", "binary", "decimal128(20, 0)"),
        *("timestamp[us, tz=UTC]", "timestamp[us]", "list<element: int64>"),
    ]
    expected = [str(row) for row in batch.to_pylist()]
    assert [str(row) for row in found.cast(batch.schema).to_pylist()] == expected


def test_nanoseconds_that_would_be_cut_off_are_refused() -> None:
    """Spark has microseconds."""
    batch = pa.record_batch({"at": pa.array([1], pa.timestamp("ns"))})
    writer = Parquet().open(io.BytesIO(), batch.schema)
    with pytest.raises(ConfigError, match="column=at"):
        writer.write(batch)


def test_null_in_a_column_without_nulls_is_refused() -> None:
    """Arrow's writers would fail later, or write a file that cannot be read."""
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    writer = Parquet().open(io.BytesIO(), schema)
    with pytest.raises(ConfigError, match="column=a"):
        writer.write(pa.RecordBatch.from_arrays([pa.array([None], pa.int64())], schema=schema))


def test_batch_of_other_columns_is_refused() -> None:
    """The file's schema is fixed when it is opened."""
    writer = Parquet().open(io.BytesIO(), pa.schema([("a", pa.int64())]))
    with pytest.raises(ConfigError, match="other columns"):
        writer.write(pa.record_batch({"b": [1]}))


def test_row_groups_are_bounded_and_gather_small_batches() -> None:
    """A group is closed when it is full, not for each batch, nor at the end alone."""
    stream = io.BytesIO()
    batch = pa.record_batch({"n": pa.array(range(1000), pa.int64())})
    writer = Parquet(row_group_bytes=3 * batch.nbytes).open(stream, batch.schema)
    sizes = []
    for _ in range(7):
        writer.write(batch)
        sizes.append(len(stream.getvalue()))
    assert writer.close() == 7000
    metadata = pq.ParquetFile(stream).metadata
    groups = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    assert groups == [3000, 3000, 1000]
    assert sizes[0] == sizes[1] < sizes[2] == sizes[3] < sizes[5]


@pytest.mark.parametrize("name", TASK_FORMAT_NAMES)
def test_file_without_rows_is_a_file(name: str) -> None:
    """No row, no error."""
    batch = rows().select(TEXT_COLUMNS)
    stream = io.BytesIO()
    assert task_format(name).open(stream, batch.schema).close() == 0
    assert not stream.closed


def test_json_is_spelt_as_spark_spells_it() -> None:
    """A row with everything, one with nothing."""
    batch = pa.record_batch(
        {
            "bytes": [b"\x00\xff", None],
            "numbers": [[1, None], None],
            "inner": pa.array(
                [{"a": None, "b": 'è"'}, None], pa.struct([("a", pa.int32()), ("b", pa.string())])
            ),
            "at": pa.array([1_593_604_800_123_456, None], pa.timestamp("us", tz="UTC")),
        }
    )
    assert _text("json", batch) == (
        '{"bytes":"AP8=","numbers":[1,null],"inner":{"b":"è\\""},'
        '"at":"2020-07-01T12:00:00.123456+00:00"}\n{}\n'
    )


def test_text_that_needs_escapes_is_escaped_alone() -> None:
    """Control characters as JSON wants them, everything else as it is."""
    batch = pa.record_batch({"s": ["plain è 🙂 \x7f \u2028", '\x00\n\t\\"', None]})
    assert _text("json", batch) == (
        '{"s":"plain è 🙂 \x7f \u2028"}\n{"s":"\\u0000\\n\\t\\\\\\""}\n{}\n'
    )


def test_csv_has_text_in_quotes_and_doubles_a_quote() -> None:
    """Null is nothing, an empty string is not, white space and backslashes stay."""
    batch = pa.record_batch({"a": ["x,y", 'q"', "", None, " b\\ "], "n": [1, 2, None, 4, 5]})
    assert _text("csv", batch, header="true") == ('"a","n"\n"x,y",1\n"q""",2\n"",\n,4\n" b\\ ",5\n')


def test_csv_row_of_one_null_is_an_empty_string() -> None:
    """Readers skip an empty line."""
    assert _text("csv", pa.record_batch({"a": ["x", None]}), sep="\\t") == '"x"\n""\n'
    assert _text("csv", pa.record_batch({"a": [1, None]})) == '"1"\n""\n'


def test_csv_row_of_nulls_alone_is_no_blank_line() -> None:
    """Spark skips a line of white space, but reads two quotes as null."""
    batch = pa.record_batch({"a": [1, None, None], "b": [None, None, True]})
    assert _text("csv", batch, sep="\\t") == '"1"\t\n""\t\n\ttrue\n'
    assert _text("csv", batch, sep=" ") == '"1" \n"" \n true\n'
    assert _text("csv", batch) == "1,\n,\n,true\n"


@pytest.mark.parametrize("separator", ["-", ".", "1", "t"])
def test_csv_number_with_the_separator_in_it_is_in_quotes(separator: str) -> None:
    """Else readers would take it for two values."""
    batch = pa.record_batch({"a": [-11], "b": [Decimal("1.5")], "c": [True]})
    assert _text("csv", batch, sep=separator) == f'"-11"{separator}"1.5"{separator}"true"\n'


@pytest.mark.parametrize("name", ["csv", "json"])
def test_timestamps_are_iso_8601_and_instants_are_in_utc(name: str) -> None:
    """Whatever the column's time zone, local mean times with seconds among them."""
    micros = pa.array([1_593_604_800_123_456, -2_524_521_600_000_000, None])
    batch = pa.record_batch(
        {
            "at": micros.cast(pa.timestamp("us", tz="Europe/Rome")),
            "local": micros.cast(pa.timestamp("us")),
        }
    )
    at = ["2020-07-01T12:00:00.123456", "1890-01-01T00:00:00.000000"]
    found = _text(name, batch).splitlines()
    if name == "csv":
        assert found == [*(f'"{text}+00:00","{text}"' for text in at), ","]
    else:
        assert found == [*(f'{{"at":"{text}+00:00","local":"{text}"}}' for text in at), "{}"]


_YEARS = {4_000_000: "+12921-08-18", -800_000: "-0221-09-04", -719_528: "0000-01-01"}
"""Days since 1970, and how Spark spells them."""


@pytest.mark.parametrize("name", ["csv", "json"])
@pytest.mark.parametrize("kind", [pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.date32()])
@pytest.mark.parametrize("days", _YEARS)
def test_year_that_python_does_not_have_is_spelt_as_spark_spells_it(
    name: str, kind: pa.DataType, days: int
) -> None:
    """Also inside of a list."""
    text = _YEARS[days]
    if kind != pa.date32():
        text += "T00:00:00.000000+00:00" if kind.tz else "T00:00:00.000000"
    column = _moments(days, kind)
    assert _text(name, pa.record_batch({"d": column})) == (
        f'"{text}"\n' if name == "csv" else f'{{"d":"{text}"}}\n'
    )
    lists = pa.ListArray.from_arrays([0, 1], column)
    assert _text("json", pa.record_batch({"d": lists})) == f'{{"d":["{text}"]}}\n'


def _moments(days: int, kind: pa.DataType) -> pa.Array:
    if kind == pa.date32():
        return pa.array([days], pa.int32()).cast(kind)
    return pa.array([days * 86_400_000_000], pa.int64()).cast(kind)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("json", '{"m":{"a":1,"a":2,"b":null}}\n{}\n{"m":{}}\n{"m":{"c":3}}\n'),
        ("avro", [[("a", 1), ("a", 2), ("b", None)], None, [], [("c", 3)]]),
    ],
)
def test_a_map_with_a_key_twice_is_written_whole(name: str, expected: Any) -> None:
    """As from_json makes it: readers of Avro and most of JSON keep the last of the two, as from
    files of Spark's own writers; Parquet keeps both."""
    maps = [[("a", 1), ("a", 2), ("b", None)], None, [], [("c", 3)]]
    batch = pa.record_batch({"m": pa.array(maps, pa.map_(pa.string(), pa.int64()))})
    if name == "json":
        assert _text(name, batch) == expected
        return
    stream = io.BytesIO()
    writer = task_format(name, compression="uncompressed").open(stream, batch.schema)
    writer.write(batch)
    assert writer.close() == 4
    stream.seek(0)
    assert [row["m"] for row in fastavro.reader(stream)] == [
        None if each is None else dict(each) for each in expected
    ]
    # Both values of the key: two letters, each with a length before and a union's branch behind.
    assert b"\x06\x02a\x00\x02\x02a\x00\x04\x02b\x02\x00" in stream.getvalue()


def test_floats_are_spelt_as_java_spells_them() -> None:
    """Readers that infer types find a float in each; JSON has no word for some."""
    values = pa.array([1.0, -0.0, 1e20, float("nan"), float("-inf"), 0.1])
    batch = pa.record_batch({"d": values, "f": pc.cast(values, pa.float32())})
    spelt = ["1.0", "-0.0", "1.0E20", "NaN", "-Infinity", "0.1"]
    assert _text("csv", batch).splitlines() == [f'"{each}","{each}"' for each in spelt]
    words = [f'"{each}"' if each in ("NaN", "-Infinity") else each for each in spelt]
    assert _text("json", batch).splitlines() == [f'{{"d":{each},"f":{each}}}' for each in words]


_PARTITIONED = pa.schema(
    [("_hidden", pa.int32()), ("dt", pa.date32()), ("hour", pa.int32()), ("value", pa.string())]
)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("day",), "each once"),
        (("hours",), "Did you mean hour"),
        (("dt", "dt"), "each once"),
        (("_hidden",), "would not see"),
    ],
)
def test_wrong_partition_columns_are_refused(columns: tuple[str, ...], message: str) -> None:
    """Before any row."""
    with pytest.raises(ConfigError, match=message):
        PartitionPaths(columns=columns).check(_PARTITIONED)


@pytest.mark.parametrize("columns", [("DT",), ("dt", "DT")])
def test_a_directory_named_as_another_column_is_refused(columns: tuple[str, ...]) -> None:
    """To Spark upper and lower case are alike: it would read the directory's value for both."""
    schema = pa.schema([("dt", pa.int32()), ("DT", pa.int32()), ("value", pa.string())])
    with pytest.raises(ConfigError, match="only in case"):
        PartitionPaths(columns=columns).check(schema)


def test_some_column_must_be_left_to_the_files() -> None:
    """Directories alone hold no rows."""
    with pytest.raises(ConfigError, match="files would be empty"):
        PartitionPaths(columns=("a",)).check(pa.schema([("a", pa.int32())]))


@pytest.mark.parametrize("kind", [pa.binary(), pa.list_(pa.int64()), pa.duration("s")])
def test_type_without_a_spelling_is_refused_as_a_partition(kind: pa.DataType) -> None:
    """Spark fails on them, or writes what cannot be read back."""
    with pytest.raises(ConfigError, match="column=p"):
        PartitionPaths(columns=("p",)).check(pa.schema([("p", kind), ("v", pa.int64())]))


@pytest.mark.parametrize("value", ["x" * 300, "a\0b"])
def test_value_that_no_directory_can_have_is_refused_before_it_is_staged(value: str) -> None:
    """A decided file that cannot be renamed would stop the job for good."""
    batch = pa.record_batch({"p": [value], "v": [1]})
    with pytest.raises(ConfigError, match="column=p"):
        PartitionPaths(columns=("p",)).split(batch)


def test_rows_without_partition_columns_stay_together() -> None:
    """The batch itself, in the target."""
    batch = pa.record_batch({"v": [1, 2]})
    ((path, found),) = PartitionPaths(columns=()).split(batch)
    assert (path, found) == ("", batch)
    assert PartitionPaths(columns=()).split(batch.slice(0, 0)) == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([1.0, 1e7, 1e-4, float("nan"), 12345.678]), "1.0 1.0E7 1.0E-4 NaN 12345.678"),
        (pa.array([0.1, 1e20], pa.float32()), "0.1 1.0E20"),
        (pa.array([True, False, None]), "true false __HIVE_DEFAULT_PARTITION__"),
        (pa.array(["a"]).dictionary_encode(), "a"),
    ],
)
def test_values_are_spelt_as_java_does(values: pa.Array, expected: str) -> None:
    """A directory's name is found again by Spark's own writers."""
    batch = pa.record_batch({"p": values, "v": pa.array(range(len(values)))})
    parts: Any = PartitionPaths(columns=("p",)).split(batch)
    by_row = sorted((part.column("v")[0].as_py(), path.removeprefix("p=")) for path, part in parts)
    assert " ".join(path for _, path in by_row) == expected


def _not_utf8() -> pa.RecordBatch:
    """What Kafka's bytes become when a query casts them to a string."""
    text = pa.array([b"ok", b'a\xff"\xfeb', None]).view(pa.string())
    inner = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), text)
    return pa.record_batch({"s": text, "l": inner, "b": text.view(pa.binary())}).slice(1)


def test_bytes_that_are_not_utf8_are_replaced_in_text_as_spark_does() -> None:
    """One such record must not stop a query for good, nor make a file that no reader takes."""
    replaced = 'a\ufffd\\"\ufffdb'
    assert _text("json", _not_utf8()) == (
        f'{{"s":"{replaced}","l":["{replaced}"],"b":"Yf8i/mI="}}\n{{"l":[null]}}\n'
    )
    assert _text("csv", _not_utf8().select(["s"])) == '"a\ufffd""\ufffdb"\n""\n'


def test_bytes_that_are_not_utf8_are_replaced_in_avro() -> None:
    """At any depth; a column of bytes keeps its own."""
    stream = io.BytesIO()
    batch = _not_utf8()
    form = file_format("avro", {})
    writer = form.open(stream, batch.schema)
    writer.write(batch)
    writer.close()
    stream.seek(0)
    wanted = 'a\ufffd"\ufffdb'
    assert list(fastavro.reader(stream)) == [
        {"s": wanted, "l": [wanted], "b": b'a\xff"\xfeb'},
        {"s": None, "l": [None], "b": None},
    ]


def test_bytes_that_are_not_utf8_have_a_directory() -> None:
    """Spark's spelling of it."""
    found = PartitionPaths(columns=("s",)).split(_not_utf8())
    assert [path for path, _ in found] == ["s=a\ufffd%22\ufffdb", "s=__HIVE_DEFAULT_PARTITION__"]


@pytest.mark.parametrize("kind", [pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.date32()])
@pytest.mark.parametrize("days", _YEARS)
def test_a_directory_may_be_of_any_year(kind: pa.DataType, days: int) -> None:
    """As Spark casts it to a string; instants in the session's zone, by the rules of that year."""
    partitions = PartitionPaths(columns=("d",), session_zone="America/New_York")
    ((path, _),) = partitions.split(pa.record_batch({"d": _moments(days, kind), "n": [1]}))
    if kind == pa.date32():
        assert path == f"d={_YEARS[days]}"
    elif not kind.tz:
        assert path == f"d={_YEARS[days]} 00%3A00%3A00"
    else:  # from Spark 4.3
        spelt = ("+12921-08-17 20:00:00", "-0221-09-03 19:03:58", "-0001-12-31 19:03:58")
        assert path == f"d={dict(zip(_YEARS, spelt, strict=True))[days]}".replace(":", "%3A")


@pytest.mark.parametrize("value", ["x" * 254, "\0", "a\0b"])
def test_a_value_that_names_no_directory_is_refused_with_its_record(value: str) -> None:
    """If the rows still have its position; else by column and length alone."""
    batch = pa.record_batch(
        {"c": ["a", value, "b"], "topic": ["in"] * 3, "partition": [3] * 3, "offset": [7, 8, 9]}
    )
    where = r"column=c .*source_topic=in source_partition=3 source_offset=8\]"
    with pytest.raises(ConfigError, match=where):
        PartitionPaths(columns=("c",)).split(batch)
    with pytest.raises(ConfigError, match=r"column=c bytes=\d+ limit=255\]"):
        PartitionPaths(columns=("c",)).split(
            batch.select(["c", "topic"]).rename_columns(["c", "t"])
        )


def test_an_early_year_has_four_digits_beside_a_fraction() -> None:
    """As Spark spells it."""
    half = pa.array([-62_000_000_000_000_000 + 500_000], pa.int64()).cast(pa.timestamp("us"))
    ((path, _),) = PartitionPaths(columns=("d",)).split(pa.record_batch({"d": half, "n": [1]}))
    assert path == "d=0005-04-19 09%3A46%3A40.5"
