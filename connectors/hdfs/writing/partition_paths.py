"""Directories of a partitioned layout, ``dt=2026-01-01/hour=7``, named as Spark names them. Pure.

Source: Spark's ExternalCatalogUtils and FileFormatWriter; an integration test compares the names.
"""

import datetime
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from sluice.connectors.hdfs.formats.python_values import text_of, timestamp_text, valid_text
from sluice.connectors.hdfs.formats.spark_types import names_alike
from sluice.connectors.hdfs.formats.time_zones import time_zone
from sluice.connectors.hdfs.staging.staged_names import HIDDEN
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.spelling import nearest

__all__ = ["DEFAULT_PARTITION", "PartitionPaths", "escaped"]

DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The value of a directory for null and for an empty string."""

_ESCAPED = re.compile(r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
_SOURCE = ("topic", "partition", "offset")  # columns that name a row's source record
_LONGEST_NAME_BYTES = 255  # of local file systems, and by default of a NameNode


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPaths:
    """Splits batches by the values of some columns, which are then only in the path.

    A picklable value, made on the driver and used in tasks.

    Attributes:
        columns: outermost directory first; may be empty.
        session_zone: Spark's session time zone, used to spell instants.
    """

    columns: tuple[str, ...]
    session_zone: str = "UTC"

    def check(self, schema: pa.Schema) -> pa.Schema:
        """The schema of the files: that of the rows, without the partition columns.

        Raises:
            ConfigError: a column is unknown, named twice, or equal to another one but for case; no
                other column is left; its type has no spelling as a directory; or its name hides its
                directories.
        """
        for column in self.columns:
            if column not in schema.names or self.columns.count(column) > 1:
                guess = nearest(column, schema.names)
                raise ConfigError(
                    "partition_by must name columns of the rows, each once",
                    {"column": column, "partition_by": ",".join(self.columns)},
                    f"Did you mean {guess}?" if guess else "Name a column.",
                )
            if column.startswith(HIDDEN):
                raise ConfigError(
                    "readers would not see directories of this column",
                    {"column": column},
                    "Rename it: Hadoop's readers skip names that begin with '.' or '_'.",
                )
            _spelling(schema.field(column), self.session_zone)
        self._require_own_names(schema.names)
        left = [field for field in schema if field.name not in self.columns]
        if not left:
            raise ConfigError(
                "all columns are partition columns, so the files would be empty",
                {"partition_by": ",".join(self.columns)},
                "Leave at least one column to the files.",
            )
        return pa.schema(left)

    def _require_own_names(self, names: Sequence[str]) -> None:
        """Refuse names equal but for case: Spark would read a directory's value for a file's
        column."""
        for column in names_alike(names):
            if column in self.columns:
                raise ConfigError(
                    "a partition column differs from another column only in case",
                    {"column": column, "columns": ",".join(names)},
                    "Rename or drop one of them.",
                )

    def split(self, batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
        """The rows of each directory, in their order, without the partition columns.

        Args:
            batch: of a schema that `check` accepted.
        Returns:
            Paths relative to the target, ``""`` where there are no partition columns; no path
            twice, no batch without rows.
        Raises:
            ConfigError: a value cannot be a directory's name.
        """
        if not batch.num_rows:
            return []
        if not self.columns:
            return [("", batch)]
        paths, codes = self._coded(batch)
        rows = batch.drop_columns(list(self.columns))
        if len(paths) == 1:
            return [(paths[0], rows)]
        return list(_groups(rows, paths, codes))

    def _coded(self, batch: pa.RecordBatch) -> tuple[list[str], np.ndarray]:
        """The batch's paths, and for each row the number of its own."""
        paths: list[str] = [""]
        codes = np.zeros(batch.num_rows, dtype=np.int64)
        for name in self.columns:
            directories, mine = self._column(batch, name)
            used, codes = np.unique(codes * len(directories) + mine, return_inverse=True)
            pairs = [divmod(int(code), len(directories)) for code in used]
            paths = [f"{paths[outer]}/{directories[inner]}" for outer, inner in pairs]
        return [path[1:] for path in paths], codes

    def _column(self, batch: pa.RecordBatch, name: str) -> tuple[list[str], np.ndarray]:
        """Directories of one column, and for each row the number of its own."""
        field, column = batch.schema.field(name), batch.column(name)
        spelling = _spelling(field, self.session_zone)
        plain = column.dictionary_decode() if kinds.is_dictionary(column.type) else column
        encoded = _comparable(plain).dictionary_encode(null_encoding="encode")
        values = encoded.dictionary.to_pylist()  # one may be null
        names = [_directory(name, None if v is None else spelling(v)) for v in values]
        _require_names(names, encoded.indices, batch, column=name)
        directories = list(dict.fromkeys(names))  # null and "" share one
        numbers = {name: number for number, name in enumerate(directories)}
        table = np.array([numbers[name] for name in names], dtype=np.int64)
        return directories, table[encoded.indices.to_numpy(zero_copy_only=False)]


def escaped(name: str) -> str:
    """A name or value with ``%3A`` and the like for special characters of paths, URIs and
    shells."""
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", name)


def _directory(column: str, value: str | None) -> str:
    return f"{escaped(column)}={escaped(value) if value else DEFAULT_PARTITION}"


def _require_names(
    names: Sequence[str], indices: pa.Array, batch: pa.RecordBatch, *, column: str
) -> None:
    """Refuse names that no directory can have, with the source record if the rows name it."""
    for number, name in enumerate(names):
        length = len(name.encode())
        if "\0" in name or length > _LONGEST_NAME_BYTES:
            row = pc.index(indices, pa.scalar(number, indices.type)).as_py()
            known = [each for each in _SOURCE if each in batch.schema.names]
            source = {f"source_{each}": batch[each][row] for each in known}
            raise ConfigError(
                "a value of a partition column cannot name a directory",
                {"column": column, "bytes": length, "limit": _LONGEST_NAME_BYTES, **source},
                "Partition by another column, or shorten or filter such values before the sink; "
                "a NUL character is not allowed.",
            )


def _groups(
    rows: pa.RecordBatch, paths: Sequence[str], codes: np.ndarray
) -> Iterator[tuple[str, pa.RecordBatch]]:
    sorted_rows = rows.take(pa.array(np.argsort(codes, kind="stable")))
    bounds = np.cumsum(np.bincount(codes, minlength=len(paths)))
    start = 0
    for path, end in zip(paths, bounds, strict=True):
        yield path, sorted_rows.slice(start, int(end) - start)
        start = int(end)


def _comparable(column: pa.Array) -> pa.Array:
    """Dates as days and timestamps as microseconds: Python has fewer years. Text as UTF-8."""
    if kinds.is_string(column.type) or kinds.is_large_string(column.type):
        return valid_text(column.cast(pa.string()))
    if kinds.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
    return column.cast(pa.date32()).cast(pa.int32()) if kinds.is_date(column.type) else column


def _spelling(field: pa.Field, session_zone: str) -> "Callable[..., str]":
    """How Spark casts a value of this column to a string."""
    kind = field.type.value_type if kinds.is_dictionary(field.type) else field.type
    if kinds.is_timestamp(kind):
        zone = time_zone(session_zone) if kind.tz else None
        return lambda micros: _timestamp(micros, zone)
    spelling = text_of(kind)
    if spelling is not None:
        return spelling
    raise ConfigError(
        "rows cannot be partitioned by a column of this type",
        {"column": field.name, "type": field.type},
        "Partition by text, a number, a boolean, a date or a timestamp.",
    )


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_LAST_MICROS = (datetime.datetime(9999, 1, 1, tzinfo=datetime.UTC) - _EPOCH) // _MICROSECOND
_FIRST_MICROS = (datetime.datetime(2, 1, 1, tzinfo=datetime.UTC) - _EPOCH) // _MICROSECOND
_CYCLE_MICROS = 146_097 * 86_400_000_000  # 400 years, after which the calendar repeats itself


def _timestamp(micros: int, zone: datetime.tzinfo | None) -> str:
    if zone is not None:
        cycles = -max(0, micros - _LAST_MICROS) // _CYCLE_MICROS
        cycles -= min(0, micros - _FIRST_MICROS) // _CYCLE_MICROS
        like = _EPOCH + datetime.timedelta(microseconds=micros + cycles * _CYCLE_MICROS)
        micros += (like.astimezone(zone).replace(tzinfo=datetime.UTC) - like) // _MICROSECOND
    return timestamp_text(micros).replace("T", " ").rstrip("0").rstrip(".")
