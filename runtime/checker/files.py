"""Reads files as the checker's records: the shell around it for outputs that are no topics.

A row with a column ``value`` is a record, with ``key`` and ``headers`` where there are such,
as the sources of this project make them; any other row is a record whose value is the row as JSON
(`canonical_json`). What partition directories say is part of such a row. Writers of JSON leave a
value out that is null: beside rows with one, a row of ``key`` and ``headers`` alone is a record.
"""

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.runtime.checker.records.canonical_json import canonical_json
from sluice.runtime.checker.records.history import Place
from sluice.runtime.checker.records.record import Headers, Record
from sluice.runtime.errors import ConfigError, StorageError
from sluice.runtime.model.json_text import parsed_json

__all__ = ["SUFFIXES", "is_read", "read_files", "row_value"]

SUFFIXES = (".parquet", ".json", ".jsonl", ".ndjson")
"""What can be read: Parquet, and JSON with one object a line."""

_BLANKS = " \t\r\n"
"""Of JSON; what else Python takes for blank is damage."""

_BATCH_ROWS = 1_000
_READ_BYTES = 1 << 16
_NANOSECONDS = "time64[ns]"
"""Python's times of the day end at microseconds: what is below would be dropped."""

_OF_RECORDS = frozenset({"key", "value", "headers"})
_VALUE_MEMBER = re.compile(r'"value"\s*:')
_NULL = "__HIVE_DEFAULT_PARTITION__"
_Row = Mapping[str, object]


def read_files(
    path: Path,
    *,
    topic: str,
    need_headers: bool = True,
    left_out: Callable[[Iterable[str]], object] | None = None,
) -> Iterator[tuple[Record, Place]]:
    """Every row of a file, or of all files below a directory, and where it lies.

    Names that begin with ``.`` or ``_`` are passed over, as Spark does, but for ``_`` not those
    with a ``=`` in them. A directory ``name=value`` below ``path`` is a column of the rows in it,
    as text: what type it was, it does not tell. Memory is bounded by 1,000 rows.

    Args:
        topic: of the records; their partition is 0. The place is file and row number instead.
        need_headers: False: a record whose column ``headers`` holds none has no headers.
        left_out: is told the columns that are no part of a record, of rows that are one; often.
    Raises:
        ConfigError: there is nothing there, a file of another format, a link to a directory,
            headers of another form, or times that Python cannot hold.
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
                left_out(whole.keys() - _OF_RECORDS)
            headers = _headers(whole, file, number, need_headers=need_headers)
            key, value = _bytes(whole.get("key")), _bytes(whole.get("value"))
            yield Record(topic, 0, number, key, value, headers)

    for file in files:
        try:
            for record in records(file):
                yield record, Place(str(file), 0, record.offset)
        except (OSError, ValueError, TypeError, KeyError, pa.ArrowException) as err:
            raise StorageError(
                "a file cannot be read whole",
                {"file": file, "reason": err},
                "It is damaged, or still being written; readers of it fail, too.",
            ) from err


def row_value(row: _Row) -> bytes:
    """The canonical JSON of a row, for a mapping that says which row a record must become.

    Raises:
        ValueError: it is nested too deeply, or has a decimal with an exponent out of all bounds.
    """
    try:
        return canonical_json(row).encode()
    except RecursionError as err:
        raise ValueError("nested too deeply") from err


def _files(path: Path) -> list[Path]:
    """The file, or all below the directory, in the order of their names."""
    try:
        if path.is_file():
            return [path]
        if path.is_dir():
            return sorted(_below(path))
    except OSError as err:
        raise StorageError(
            "a directory cannot be looked through",
            {"path": err.filename or path, "reason": err},
            "What is in it would not be compared: let this user read all of it.",
        ) from err
    raise ConfigError(
        "there is no such file or directory", {"path": path}, "Give a path on this machine."
    )


def _below(directory: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:  # or else what cannot be listed would be passed over
        raise error

    for parent, names, files in os.walk(directory, onerror=fail):
        names[:] = filter(is_read, names)
        for path in (Path(parent, name) for name in filter(is_read, names + files)):
            if path.is_file():
                yield path
            elif path.is_symlink() or not path.is_dir():
                raise ConfigError(
                    "neither a file nor a directory lies there",
                    {"path": path},
                    "A link to a directory is not followed: put what it names in its place."
                    if path.is_symlink()
                    else "Compare what nobody writes to any more.",
                )


def is_read(name: str) -> bool:
    """Whether what has that name in a directory is no file of marks or of work under way."""
    return not name.startswith(".") and not (name.startswith("_") and "=" not in name)


def _rows(file: Path) -> Iterator[object]:
    if file.suffix not in SUFFIXES:
        raise ConfigError(
            "a file of this format cannot be verified",
            {"file": file, "supported": ", ".join(SUFFIXES)},
            "Give a directory that holds Parquet or JSON files alone.",
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
        pre_buffer=False,  # what is read ahead is kept until the whole file has been read
        buffer_size=_READ_BYTES,
        coerce_int96_timestamp_unit="us",  # Spark's own; nanoseconds know but 584 years
    ) as parquet:
        schema = parquet.schema_arrow
        if len(set(schema.names)) < len(schema.names):  # a row would have the last one alone
            raise ValueError("two columns have one name")
        wanted = pa.schema([_of_microseconds(each) for each in schema])
        if any(_NANOSECONDS in str(kind) for kind in wanted.types):
            raise _incomparable(file, f"there is a column with {_NANOSECONDS} in it")
        for batch in parquet.iter_batches(batch_size=_BATCH_ROWS):
            try:
                rows = (batch if wanted.equals(schema) else batch.cast(wanted)).to_pylist()
            except (OverflowError, pa.ArrowInvalid) as err:
                raise _incomparable(file, str(err)) from err
            yield from rows


def _of_microseconds(column: pa.Field) -> pa.Field:
    """Some write times of the day so, all of whole microseconds; a cast refuses others."""
    is_finer = str(column.type) == _NANOSECONDS
    return column.with_type(pa.time64("us")) if is_finer else column


def _incomparable(file: Path, reason: str) -> ConfigError:
    return ConfigError(
        "a file has times that cannot be compared",
        {"file": file, "reason": reason},
        "Dates must lie in the years 1 to 9999, times of the day be of microseconds (time64[us]).",
    )


def _partitions(directories: Iterable[str]) -> _Row:
    """What directories say of their rows, by column, as Spark's writers and ours name them."""
    named = (name.partition("=") for name in directories if "=" in name)
    return {
        unquote(column): None if value == _NULL else unquote(value) for column, _, value in named
    }


def _whole(row: object, number: int, partitions: _Row) -> _Row:
    """A row as readers of the table see it: a directory goes before a column in the file."""
    if not isinstance(row, Mapping):
        raise ValueError(f"row {number} is no object")
    return {**row, **partitions} if partitions else row


def _is_keyed(row: _Row, partitions: _Row) -> bool:
    """Whether a row is a record without a value, unless its table has none at all."""
    has_headers = isinstance(row.get("headers"), list | None)
    others = row.keys() - partitions.keys() - _OF_RECORDS
    return row.get("key") is not None and has_headers and not others


def _has_values(file: Path) -> bool:
    """Whether an object in a JSON file has a member ``value``; looked for without parsing.

    One within another column counts, too: then a row of a key alone is a record, whose key is
    compared and whose directories are named as not compared.
    """
    if file.suffix == ".parquet":  # names all columns in every row
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
            "headers are a list of objects of key and value, and here they are not",
            {"file": file, "column": "headers", "row": number},
            "Write them so, as the sources of this project give them, rename the column, or leave "
            "headers out with --ignore-headers.",
        )
    return ()


def _is_header(one: object) -> bool:
    """Writers of JSON leave a value out that is null; no other member is compared."""
    if not isinstance(one, Mapping) or not isinstance(one.get("key"), str):
        return False
    return one.keys() <= {"key", "value"}


def _bytes(cell: object) -> bytes | None:
    if cell is None or isinstance(cell, bytes):
        return cell
    return cell.encode() if isinstance(cell, str) else row_value({"value": cell})
