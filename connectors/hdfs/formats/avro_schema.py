"""The Avro schema that Spark's own writer makes of a schema. Pure.

Types follow Spark's SchemaConverters: unions with null second, decimals as fixed, one record name
for each nested struct.
"""

import re
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from sluice.runtime.errors import ConfigError

__all__ = ["avro_schema", "stored_field"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOP = "topLevelRecord"
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


def avro_schema(schema: pa.Schema, *, name: str = _TOP, namespace: str = "") -> dict[str, Any]:
    """The record that holds a row of ``schema``, which came from `spark_schema`.

    Raises:
        ConfigError: a name that Avro does not allow, or a map whose keys are not strings.
    """
    return _Builder().record(list(schema), name, namespace)


def stored_field(field: pa.Field) -> pa.Field:
    """What Avro stores for a field that is not nested: dates and timestamps are numbers there."""
    if kinds.is_timestamp(field.type):
        return field.with_type(pa.int64())
    if kinds.is_date(field.type):
        return field.with_type(pa.int32())
    return field


class _Builder:
    """Names each fixed type once; a second column of the same name and type refers to it."""

    def __init__(self) -> None:
        self._fixed: set[str] = set()

    def record(self, fields: list[pa.Field], name: str, namespace: str) -> dict[str, Any]:
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
            _refuse_other_keys(kind, name)
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
            "Avro does not allow this name of a column",
            {"column": name},
            "Rename it: letters a to z, digits and _, the first one no digit.",
        )
    return name


def _refuse_other_keys(kind: pa.DataType, name: str) -> None:
    if not kinds.is_string(kind.key_type):
        raise ConfigError(
            "Avro's maps have strings as keys",
            {"column": name, "type": kind},
            "Convert the keys in the function before the sink.",
        )
