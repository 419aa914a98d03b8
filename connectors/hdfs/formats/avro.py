"""Avro object container files by fastavro, with the schema that Spark's own writer makes.

Types follow Spark's SchemaConverters: unions with null second, decimals as fixed, one record name
for each nested struct.
"""

import re
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.types as kinds
from fastavro.write import Writer

from sluice.connectors.hdfs.formats.file_format import FileFormat, FormatWriter
from sluice.connectors.hdfs.formats.format_options import Codec
from sluice.connectors.hdfs.formats.python_values import numbers_for_times, python_rows
from sluice.connectors.hdfs.formats.spark_types import (
    conform,
    portions,
    recast,
    refuse_columns,
    spark_schema,
    with_leaves,
)
from sluice.runtime.errors import ConfigError

__all__ = ["CODECS", "Avro"]

_BLOCK_BYTES = 256 << 10  # of Avro data, and of Arrow data that becomes Python values at once
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PRIMITIVES = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
}

CODECS = {
    "deflate": Codec(name="deflate", extension=""),
    "uncompressed": Codec(name="null", extension=""),
    "bzip2": Codec(name="bzip2", extension=""),
    "xz": Codec(name="xz", extension=""),
}
"""By the names of Spark's option ``compression``; the first one is the default.

fastavro has them without another library. Readers find the codec in the file.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Avro(FileFormat):
    """`FileFormat` for Avro.

    Attributes:
        codec: one of `CODECS`.
        record_name: of the record that is a row.
        record_namespace: of that record.
    """

    codec: Codec = CODECS["deflate"]
    record_name: str = "topLevelRecord"
    record_namespace: str = ""

    @property
    def extension(self) -> str:
        return ".avro"

    def check(self, schema: pa.Schema) -> None:
        self._avro_schema(spark_schema(schema))

    def open(self, stream: BinaryIO, schema: pa.Schema) -> "_AvroFile":
        target = spark_schema(schema)
        return _AvroFile(stream, target, self._avro_schema(target), self.codec)

    def _avro_schema(self, target: pa.Schema) -> dict[str, Any]:
        refuse_columns(
            target,
            lambda kind: kinds.is_map(kind) and not kinds.is_string(kind.key_type),
            of="Avro",
            remedy="Make the map's keys strings in the function before the sink.",
        )
        return _SchemaBuilder().record(list(target), self.record_name, self.record_namespace)


class _AvroFile(FormatWriter):
    """`FormatWriter` for Avro."""

    def __init__(
        self, stream: BinaryIO, schema: pa.Schema, avro: dict[str, Any], codec: Codec
    ) -> None:
        self._schema = schema
        self._stored = with_leaves(schema, numbers_for_times)
        self._writer = Writer(stream, avro, codec=codec.name, sync_interval=_BLOCK_BYTES)
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        stored = recast(conform(batch, self._schema), self._stored)
        for portion in portions(stored, limit_bytes=_BLOCK_BYTES):
            for row in python_rows(portion):
                self._writer.write(row)
            self._rows += portion.num_rows

    def close(self) -> int:
        self._writer.flush()
        return self._rows

    def abandon(self) -> None:
        """See `FormatWriter.abandon`."""


class _SchemaBuilder:
    """Names each fixed type once; a second column of the same name and type refers to it."""

    def __init__(self) -> None:
        self._fixed: set[str] = set()

    def record(self, fields: list[pa.Field], name: str, namespace: str) -> dict[str, Any]:
        """The record of a row, or of a struct.

        Raises:
            ConfigError: Avro does not allow a name.
        """
        inner = f"{namespace}.{name}" if namespace else name
        return {
            "type": "record",
            "name": name,
            **({"namespace": namespace} if namespace else {}),
            "fields": [
                {"name": _checked(field.name), "type": self._field(field, field.name, inner)}
                for field in fields
            ],
        }

    def _field(self, field: pa.Field, name: str, namespace: str) -> Any:  # noqa: ANN401 - JSON
        found = self._type(field.type, name, namespace)
        return [found, "null"] if field.nullable else found

    def _type(self, kind: pa.DataType, name: str, namespace: str) -> Any:  # noqa: ANN401 - JSON
        if kind in _PRIMITIVES:
            return _PRIMITIVES[kind]
        if kinds.is_date(kind):
            return {"type": "int", "logicalType": "date"}
        if kinds.is_timestamp(kind):
            local = "" if kind.tz else "local-"
            return {"type": "long", "logicalType": f"{local}timestamp-micros"}
        if kinds.is_decimal(kind):
            return self._decimal(kind, f"{namespace}.{name}.fixed")
        if kinds.is_list(kind):
            return {"type": "array", "items": self._field(kind.value_field, name, namespace)}
        if kinds.is_map(kind):
            return {"type": "map", "values": self._field(kind.item_field, name, namespace)}
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return self.record(fields, name, namespace)

    def _decimal(self, kind: pa.DataType, full_name: str) -> Any:  # noqa: ANN401 - JSON
        if full_name in self._fixed:
            return full_name
        self._fixed.add(full_name)
        return {
            "type": "fixed",
            "name": full_name,
            "size": _bytes_for(kind.precision),
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }


def _bytes_for(precision: int) -> int:
    """The fewest bytes whose signed numbers hold so many digits."""
    largest: int = 10**precision - 1
    return (largest.bit_length() + 8) // 8


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "Avro does not allow this column name",
            {"column": name},
            "Rename the column: use letters a to z, digits and _, and no digit first.",
        )
    return name
