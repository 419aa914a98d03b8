"""Parquet as Spark writes it: snappy, standard lists and maps, timestamps in microseconds."""

from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.connectors.hdfs.formats.file_format import FileFormat, FormatWriter
from sluice.connectors.hdfs.formats.format_options import Codec
from sluice.connectors.hdfs.formats.spark_types import conform, spark_schema

__all__ = ["Parquet"]

_ROW_GROUP_BYTES = 64 << 20  # of Arrow data; what a task buffers of each open file
_ROW_GROUP_ROWS = 1 << 20

CODECS = {
    "snappy": Codec(name="snappy", extension=".snappy"),
    "none": Codec(name="none", extension=""),
    "uncompressed": Codec(name="none", extension=""),
    "gzip": Codec(name="gzip", extension=".gz"),
    "zstd": Codec(name="zstd", extension=".zstd"),
    "lz4_raw": Codec(name="lz4", extension=".lz4raw"),
}
"""By the names of Spark's option ``compression``; the first one is the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parquet(FileFormat):
    """`FileFormat` for Parquet.

    Timestamps are TIMESTAMP_MICROS, which Spark reads as its own INT96, and others read too.

    Attributes:
        codec: one of `CODECS`.
        row_group_bytes: Arrow data of one row group; bounds what a writer holds.
    """

    codec: Codec = CODECS["snappy"]
    row_group_bytes: int = _ROW_GROUP_BYTES

    @property
    def extension(self) -> str:
        return f"{self.codec.extension}.parquet"

    def check(self, schema: pa.Schema) -> None:
        spark_schema(schema)

    def open(self, stream: BinaryIO, schema: pa.Schema) -> "_ParquetFile":
        return _ParquetFile(stream, spark_schema(schema), self)


class _ParquetFile(FormatWriter):
    """Buffers batches into row groups, because each call of Arrow's writer makes one row group."""

    def __init__(self, stream: BinaryIO, schema: pa.Schema, parquet: Parquet) -> None:
        self._schema = schema
        self._limit_bytes = parquet.row_group_bytes
        self._buffered: list[pa.RecordBatch] = []
        self._buffered_bytes = 0
        self._buffered_rows = 0
        self._rows = 0
        self._writer = pq.ParquetWriter(
            stream,
            schema,
            compression=parquet.codec.name,
            store_schema=False,  # else Arrow's readers see Arrow's types, Spark's see Spark's
            store_decimal_as_integer=True,
        )

    def write(self, batch: pa.RecordBatch) -> None:
        conformed = conform(batch, self._schema)
        self._buffered.append(conformed)
        self._buffered_rows += conformed.num_rows
        self._buffered_bytes += conformed.nbytes
        if self._buffered_bytes >= self._limit_bytes or self._buffered_rows >= _ROW_GROUP_ROWS:
            self._flush()

    def close(self) -> int:
        self._flush()
        self._writer.close()
        return self._rows

    def abandon(self) -> None:
        self._writer.is_open = False  # else it closes itself when it is collected

    def _flush(self) -> None:
        if self._buffered_rows:
            table = pa.Table.from_batches(self._buffered, self._schema)
            self._writer.write_table(table, row_group_size=_ROW_GROUP_ROWS)
        self._rows += self._buffered_rows
        self._buffered, self._buffered_bytes, self._buffered_rows = [], 0, 0
