"""ORC as Spark reads it: zstd, timestamps as instants."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.orc
import pyarrow.types as kinds

from sluice.connectors.hdfs.formats.format_options import Codec
from sluice.connectors.hdfs.formats.spark_types import (
    conform,
    inner_types,
    recast,
    refuse_columns,
    spark_schema,
    with_leaves,
)
from sluice.runtime.errors import ConfigError

__all__ = ["Orc"]

_STRIPE_BYTES = 64 << 20
_GREGORIAN_DAYS = -141_427  # 1582-10-15
_MICROS_OF_A_SECOND = 1_000_000
_MICROS_OF_A_DAY = 86_400 * _MICROS_OF_A_SECOND
_LOCAL_TIMESTAMP = {"spark.sql.catalyst.type": "timestamp_ntz"}

CODECS = {
    "zstd": Codec(name="zstd", extension=".zstd"),
    "none": Codec(name="uncompressed", extension=""),
    "uncompressed": Codec(name="uncompressed", extension=""),
    "snappy": Codec(name="snappy", extension=".snappy"),
    "zlib": Codec(name="zlib", extension=".zlib"),
    "lz4": Codec(name="lz4", extension=".lz4"),
}
"""By the names of Spark's option ``compression``; the first one is the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orc:
    """`FileFormat` for ORC.

    Attributes:
        codec: one of `CODECS`.
        stripe_bytes: of one stripe; bounds what a writer holds.
    """

    codec: Codec = CODECS["zstd"]
    stripe_bytes: int = _STRIPE_BYTES

    @property
    def extension(self) -> str:
        """See `FileFormat.extension`."""
        return f"{self.codec.extension}.orc"

    def check(self, schema: pa.Schema) -> None:
        """See `FileFormat.check`."""
        _orc_schema(schema)

    def open(self, stream: BinaryIO, schema: pa.Schema) -> "_OrcFile":
        """See `FileFormat.open`."""
        return _OrcFile(stream, _orc_schema(schema), self)


def _orc_schema(schema: pa.Schema) -> pa.Schema:
    target = spark_schema(schema)
    # Measured with Arrow 26: where an inner struct is null, values of other rows are lost.
    refuse_columns(
        target,
        lambda kind: kinds.is_struct(kind) and any(map(kinds.is_struct, inner_types(kind))),
        of="ORC written by a task without a JVM",
        remedy="Flatten the inner struct in the function before the sink, or use Parquet.",
    )
    return target


class _OrcFile:
    """Arrow's writer keeps a stripe in memory and writes it when it is full."""

    def __init__(self, stream: BinaryIO, schema: pa.Schema, orc: Orc) -> None:
        self._schema = schema
        self._stored = with_leaves(schema, _stored_field)
        self._rows = 0
        self._failures = _Failures(stream)
        self._writer = pyarrow.orc.ORCWriter(
            self._failures, compression=orc.codec.name, stripe_size=orc.stripe_bytes
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """See `FormatWriter.write`."""
        conformed = _without_offsets(conform(batch, self._schema))
        for column, field in zip(conformed.columns, self._schema, strict=True):
            _refuse_damaged(column, field.name)
        stored = recast(conformed, self._stored)
        self._writer.write(pa.Table.from_batches([stored]))
        self._failures.require_none()
        self._rows += stored.num_rows

    def close(self) -> int:
        """See `FormatWriter.close`."""
        if not self._rows:
            self._writer.write(self._stored.empty_table())
        self._writer.close()
        self._failures.require_none()
        return self._rows

    def abandon(self) -> None:
        """See `FormatWriter.abandon`."""
        self._writer.is_open = False  # else it closes itself when it is collected


class _Failures(io.RawIOBase):
    """Keeps a stream's error for later: one inside Arrow's writer ends the whole process.

    Measured with Arrow 26: ``terminate called``, in its close, where the disk was full.
    """

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream
        self._first: BaseException | None = None

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any, /) -> int:  # noqa: ANN401 - any buffer
        """Pass on, until that has failed once."""
        if self._first is None:
            try:
                self._stream.write(data)
            except BaseException as error:  # noqa: BLE001 - raised where no C++ is on the stack
                self._first = error
        return memoryview(data).nbytes

    def require_none(self) -> None:
        """Raise what the stream raised."""
        if self._first is not None:
            raise self._first


def _stored_field(field: pa.Field) -> pa.Field:
    """Spark keeps a timestamp without a zone as a number, and says so in an attribute."""
    if kinds.is_timestamp(field.type) and field.type.tz is None:
        return field.with_type(pa.int64()).with_metadata(_LOCAL_TIMESTAMP)
    return field


def _without_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A copy where columns are nested: Arrow's writer loses null structs of a slice."""
    if any(kinds.is_nested(field.type) for field in batch.schema):
        return batch.take(pa.array(np.arange(batch.num_rows)))
    return batch


def _refuse_damaged(column: pa.Array, name: str) -> None:
    """What Spark would read as something else, or not at all, must not be written.

    Arrow's writer gives an instant such as 1969-12-31 23:59:59.5 a negative fraction, on which
    Spark fails; and it does not say which calendar it uses, so Spark takes old days for Julian.
    """
    kind, found = column.type, None
    if kinds.is_date(kind) or (kinds.is_timestamp(kind) and kind.tz is not None):
        values = _numbers(column)
        per_day = 1 if kinds.is_date(kind) else _MICROS_OF_A_DAY
        if np.any(values < _GREGORIAN_DAYS * per_day):
            found = "a day before 1582-10-15"
        elif per_day > 1 and np.any((values < 0) & (values % _MICROS_OF_A_SECOND != 0)):
            found = "an instant before 1970 with a fraction of a second"
    if found:
        raise ConfigError(
            f"ORC written by a task without a JVM cannot hold {found}",
            {"column": name},
            "Change it in the function before the sink, or use Parquet.",
        )
    for inner in _children(column):
        _refuse_damaged(inner, name)


def _numbers(column: pa.Array) -> np.ndarray:
    plain = pa.int32() if kinds.is_date(column.type) else pa.int64()
    return np.asarray(column.drop_null().cast(plain).to_numpy(), dtype=np.int64)


def _children(column: pa.Array) -> Sequence[pa.Array]:
    if kinds.is_struct(column.type):
        return list(column.flatten())
    if kinds.is_map(column.type):
        return [column.keys, column.items]
    return [column.flatten()] if kinds.is_list(column.type) else []
