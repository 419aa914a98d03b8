"""Avro object container files as Spark writes them, by fastavro; snappy by Arrow."""

import bz2
import io
import json
import lzma
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import fastavro
import pyarrow as pa

from sluice.connectors.hdfs.formats.avro_schema import avro_schema, stored_field
from sluice.connectors.hdfs.formats.format_options import Codec
from sluice.connectors.hdfs.formats.spark_types import (
    conform,
    portions,
    recast,
    spark_schema,
    with_leaves,
)
from sluice.connectors.hdfs.formats.valid_text import valid_rows

__all__ = ["Avro"]

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_BLOCK_BYTES = 256 << 10  # of Arrow data; rows become Python values block by block
_HEADER = fastavro.parse_schema({"type": "map", "values": "bytes"})
_LONG = fastavro.parse_schema({"type": "long"})

CODECS = {
    "snappy": Codec(name="snappy", extension=""),
    "uncompressed": Codec(name="null", extension=""),
    "deflate": Codec(name="deflate", extension=""),
    "zstandard": Codec(name="zstandard", extension=""),
    "bzip2": Codec(name="bzip2", extension=""),
    "xz": Codec(name="xz", extension=""),
}
"""By the names of Spark's option ``compression``; the first one is the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Avro:
    """`FileFormat` for Avro.

    Attributes:
        codec: one of `CODECS`.
        record_name: of the record that is a row.
        record_namespace: of that record.
    """

    codec: Codec = CODECS["snappy"]
    record_name: str = "topLevelRecord"
    record_namespace: str = ""

    @property
    def extension(self) -> str:
        """See `FileFormat.extension`."""
        return ".avro"

    def check(self, schema: pa.Schema) -> None:
        """See `FileFormat.check`."""
        self._avro_schema(spark_schema(schema))

    def open(self, stream: BinaryIO, schema: pa.Schema) -> "_AvroFile":
        """See `FileFormat.open`."""
        target = spark_schema(schema)
        return _AvroFile(stream, target, self._avro_schema(target), self.codec)

    def _avro_schema(self, target: pa.Schema) -> dict[str, Any]:
        return avro_schema(target, name=self.record_name, namespace=self.record_namespace)


class _AvroFile:
    """Writes a batch as blocks. fastavro's own writer has snappy only with another library."""

    def __init__(
        self, stream: BinaryIO, schema: pa.Schema, avro: Mapping[str, Any], codec: Codec
    ) -> None:
        self._stream = stream
        self._schema = schema
        self._stored = with_leaves(schema, stored_field)
        self._block = fastavro.parse_schema({"type": "array", "items": avro})
        self._compress = _COMPRESSIONS[codec.name]
        self._sync = os.urandom(_SYNC_BYTES)
        self._rows = 0
        meta = {"avro.codec": codec.name.encode(), "avro.schema": json.dumps(avro).encode()}
        stream.write(_MAGIC + _encoded(_HEADER, meta) + self._sync)

    def write(self, batch: pa.RecordBatch) -> None:
        """See `FormatWriter.write`."""
        stored = recast(conform(batch, self._schema), self._stored)
        for portion in portions(stored, limit_bytes=_BLOCK_BYTES):
            rows = _rows(portion)
            self._stream.write(self._encoded_block(rows))
            self._rows += len(rows)

    def close(self) -> int:
        """See `FormatWriter.close`."""
        return self._rows

    def abandon(self) -> None:
        """See `FormatWriter.abandon`."""

    def _encoded_block(self, rows: list[dict[str, Any]]) -> bytes:
        # An Avro array is its count, its items and a zero; a block of a file is the items alone.
        count = _encoded(_LONG, len(rows))
        items = _encoded(self._block, rows)[len(count) : -1]
        data = self._compress(items)
        return b"".join((count, _encoded(_LONG, len(data)), data, self._sync))


def _rows(portion: pa.RecordBatch) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = portion.to_pylist(maps_as_pydicts="strict")
    except UnicodeDecodeError:
        as_bytes = recast(portion, with_leaves(portion.schema, _bytes_of_text))
        rows = valid_rows(as_bytes.to_pylist(maps_as_pydicts="strict"), portion.schema)
    return rows


def _bytes_of_text(field: pa.Field) -> pa.Field:
    return field.with_type(pa.binary()) if pa.types.is_string(field.type) else field


def _encoded(schema: Any, value: Any) -> bytes:  # noqa: ANN401 - any JSON, any value
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, schema, value)
    return buffer.getvalue()


def _snappy(data: bytes) -> bytes:
    checksum = zlib.crc32(data).to_bytes(4, "big")
    return bytes(pa.compress(data, codec="snappy", asbytes=True)) + checksum


def _raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(data) + compressor.flush()


_COMPRESSIONS: Mapping[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "snappy": _snappy,
    "deflate": _raw_deflate,
    "zstandard": lambda data: bytes(pa.compress(data, codec="zstd", asbytes=True)),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}
