"""Reads files as the checker's records, for outputs that are not topics.

A row with a column ``value`` is a record, with ``key`` and ``headers`` if present, as the sources
of this project make them. Any other row is a record whose value is the row as JSON
(`canonical_json`). The values in the names of partition directories are part of such a row. Writers
of JSON leave out a null value: in a file with values, a row of only ``key`` and ``headers`` is a
record.
"""

import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.runtime.checker.records.canonical_json import canonical_json
from sluice.runtime.checker.records.history import Location
from sluice.runtime.checker.records.record import Headers, Record
from sluice.runtime.errors import ConfigError, StorageError
from sluice.runtime.model.json_text import parsed_json

__all__ = ["SUFFIXES", "is_read", "read_files", "row_value"]

SUFFIXES = (".parquet", ".json", ".jsonl", ".ndjson")
"""Readable formats: Parquet, and JSON with one object a line."""

_BLANKS = " \t\r\n"
"""White space of JSON; Python accepts more, which would be damage."""

_BATCH_ROWS = 1_000
_READ_BYTES = 1 << 16
_NANOSECONDS = "time64[ns]"
"""Python's times of the day end at microseconds: smaller units would be dropped."""

_OF_RECORDS = frozenset({"key", "value", "headers"})
_VALUE_MEMBER = re.compile(r'"value"\s*:')
_NULL = "__HIVE_DEFAULT_PARTITION__"
_Row = Mapping[str, object]


def read_files(
    path: Path,
    *,
    topic: str,
    need_headers: bool = True,
    left_out: set[str] | None = None,
) -> Iterator[tuple[Record, Location]]:
    """Every row of a file, or of all files below a directory, and its position.

    Names that begin with ``.`` or ``_`` are skipped, as in Spark, except ``_`` names with a ``=``.
    A directory ``name=value`` below ``path`` is a text column of its rows: the name does not show
    the type. Memory is bounded by 1,000 rows.

    Args:
        topic: of the records; their partition is 0. The position is file and row number instead.
        need_headers: False: a record with an empty column ``headers`` has no headers.
        left_out: gets the columns that are not part of a record.
    Raises:
        ConfigError: nothing exists there, a file has another format, a link names a directory,
            headers have another form, or Python cannot hold a time.
        StorageError: a file is damaged, or a directory cannot be listed.
    """
    files = _files(path)
    has_values = functools.cache(lambda: any(map(_has_values, files)))

    def records(file: Path) -> Iterator[Record]:
        partitions = _partitions(file.relative_to(path).parts[:-1])
        for number, row in enumerate(_rows(file)):
            whole = _whole(row, number, partitions)
            is_record = "value" in whole or (_is_keyed(whole, partitions) and has_values())
            if not is_record:
                yield Record(topic, 0, number, None, row_value(whole), ())
                continue
            if left_out is not None:
                left_out.update(whole.keys() - _OF_RECORDS)
            headers = _headers(whole, file, number, need_headers=need_headers)
            key, value = _bytes(whole.get("key")), _bytes(whole.get("value"))
            yield Record(topic, 0, number, key, value, headers)

    for file in files:
        try:
            for record in records(file):
                yield record, Location(str(file), 0, record.offset)
        except (OSError, ValueError, TypeError, KeyError, pa.ArrowException) as err:
            raise StorageError(
                "a file cannot be read whole",
                {"file": file, "reason": err},
                "Compare again after the writer has finished; otherwise the file is damaged.",
            ) from err


def row_value(row: _Row) -> bytes:
    """The canonical JSON of a row, for a mapping that returns the expected row.

    Raises:
        ValueError: it is nested too deeply, or has a decimal with too large an exponent.
    """
    try:
        return canonical_json(row).encode()
    except RecursionError as err:
        raise ValueError("nested too deeply") from err


def _files(path: Path) -> list[Path]:
    """The file, or all files below the directory, in the order of their names."""
    try:
        if path.is_file():
            return [path]
        if path.is_dir():
            return sorted(_below(path))
    except OSError as err:
        raise StorageError(
            "a directory cannot be listed",
            {"path": err.filename or path, "reason": err},
            "Let this user read all of it, so that its files are compared.",
        ) from err
    raise ConfigError(
        "there is no such file or directory", {"path": path}, "Give a path on this machine."
    )


def _below(directory: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:  # otherwise an unreadable directory would be skipped
        raise error

    for parent, names, files in os.walk(directory, onerror=fail):
        names[:] = filter(is_read, names)
        for path in (Path(parent, name) for name in filter(is_read, names + files)):
            if path.is_file():
                yield path
            elif path.is_symlink() or not path.is_dir():
                raise ConfigError(
                    "the path names neither a file nor a directory",
                    {"path": path},
                    "Replace the link by the directory that it names: links to directories are not "
                    "followed."
                    if path.is_symlink()
                    else "Compare after all writers have finished.",
                )


def is_read(name: str) -> bool:
    """Whether a name in a directory belongs to a data file, not to a marker or unfinished work."""
    return not name.startswith(".") and not (name.startswith("_") and "=" not in name)


def _rows(file: Path) -> Iterator[object]:
    if file.suffix not in SUFFIXES:
        raise ConfigError(
            "a file of this format cannot be verified",
            {"file": file, "supported": ", ".join(SUFFIXES)},
            "Give a directory that holds only Parquet or JSON files.",
        )
    if file.suffix == ".parquet":
        yield from _parquet_rows(file)
        return
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip(_BLANKS):
                yield parsed_json(line, exact=True)


def _parquet_rows(file: Path) -> Iterator[object]:
    with pq.ParquetFile(
        file,
        pre_buffer=False,  # the reader keeps its read-ahead until the whole file has been read
        buffer_size=_READ_BYTES,
        coerce_int96_timestamp_unit="us",  # Spark's own; nanoseconds cover only 584 years
    ) as parquet:
        schema = parquet.schema_arrow
        if len(set(schema.names)) < len(schema.names):  # a row would keep only the last one
            raise ValueError("two columns have one name")
        wanted = pa.schema([_of_microseconds(each) for each in schema])
        if any(_NANOSECONDS in str(kind) for kind in wanted.types):
            raise _incomparable(file, f"there is a column named {_NANOSECONDS}")
        for batch in parquet.iter_batches(batch_size=_BATCH_ROWS):
            try:
                rows = (batch if wanted.equals(schema) else batch.cast(wanted)).to_pylist()
            except (OverflowError, pa.ArrowInvalid) as err:
                raise _incomparable(file, str(err)) from err
            yield from rows


def _of_microseconds(column: pa.Field) -> pa.Field:
    """Some writers use this unit for whole microseconds; a cast refuses others."""
    is_finer = str(column.type) == _NANOSECONDS
    return column.with_type(pa.time64("us")) if is_finer else column


def _incomparable(file: Path, reason: str) -> ConfigError:
    return ConfigError(
        "a file has times that cannot be compared",
        {"file": file, "reason": reason},
        "Give dates within the years 1 to 9999, and times of the day in microseconds (time64[us]).",
    )


def _partitions(directories: Iterable[str]) -> _Row:
    """Values from directory names, by column, as Spark's writers and Sluice's write them."""
    named = (name.partition("=") for name in directories if "=" in name)
    return {
        unquote(column): None if value == _NULL else unquote(value) for column, _, value in named
    }


def _whole(row: object, number: int, partitions: _Row) -> _Row:
    """A row as readers of the table see it: a directory wins over a column in the file."""
    if not isinstance(row, Mapping):
        raise ValueError(f"row {number} is not an object")
    return {**row, **partitions} if partitions else row


def _is_keyed(row: _Row, partitions: _Row) -> bool:
    """Whether a row is a record without a value; not if no row of its table has one."""
    has_headers = isinstance(row.get("headers"), list | None)
    others = row.keys() - partitions.keys() - _OF_RECORDS
    return row.get("key") is not None and has_headers and not others


def _has_values(file: Path) -> bool:
    """Whether an object in a JSON file has a member ``value``; searched without parsing.

    A member inside another column counts, too: then a row of a key alone is a record, whose key is
    compared and whose directories are reported as not compared.
    """
    if file.suffix == ".parquet":  # lists all columns in every row
        return False
    with file.open(encoding="utf-8", errors="replace") as lines:
        return any(map(_VALUE_MEMBER.search, lines))


def _headers(row: _Row, file: Path, number: int, *, need_headers: bool) -> Headers:
    cell = row.get("headers")
    if cell is None:
        return ()
    if isinstance(cell, list) and all(map(_is_header, cell)):
        return tuple((str(one["key"]), _bytes(one.get("value"))) for one in cell)
    if need_headers:
        raise ConfigError(
            "headers are not a list of objects with key and value",
            {"file": file, "column": "headers", "row": number},
            "Write headers in the form of the sources of this project, rename the column, or "
            "leave headers out with --ignore-headers.",
        )
    return ()


def _is_header(one: object) -> bool:
    """Writers of JSON leave out a null value; no other member is compared."""
    if not isinstance(one, Mapping) or not isinstance(one.get("key"), str):
        return False
    return one.keys() <= {"key", "value"}


def _bytes(cell: object) -> bytes | None:
    if cell is None or isinstance(cell, bytes):
        return cell
    return cell.encode() if isinstance(cell, str) else row_value({"value": cell})
