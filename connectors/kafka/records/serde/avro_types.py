"""Avro schemas as Arrow types. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from sluice.runtime.errors import ConfigError

__all__ = ["arrow_type", "plain_schema"]

_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_MOST_DIGITS = 38

Schema = str | Mapping[str, Any] | Sequence[Any]


def plain_schema(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a schema for fastavro, without logical types that should stay plain values.

    Those are the types without an Arrow type here, and dates and times. Arrow takes these as
    numbers; Python has years 1 to 9999 only, and fastavro makes a time of the previous day of a
    negative one.
    """
    if isinstance(schema, Mapping):
        made = {name: plain_schema(value) for name, value in schema.items()}
        if "logicalType" in made and not pa.types.is_decimal(_logical(schema) or pa.null()):
            del made["logicalType"]
        return made
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        return [plain_schema(each) for each in schema]
    return schema


def arrow_type(schema: Schema) -> pa.DataType:
    """Type of the values that a schema describes.

    Raises:
        ConfigError: a union of several types, a type that contains itself, or a record with two
            fields of one name.
    """
    return _Types().of(schema)


class _Types:
    """Knows the named types seen so far; None: one that is not complete yet."""

    def __init__(self) -> None:
        self._named: dict[str, pa.DataType | None] = {}

    def of(self, schema: Schema, namespace: str = "") -> pa.DataType:
        if isinstance(schema, str):
            return _PRIMITIVES[schema] if schema in _PRIMITIVES else self._known(schema, namespace)
        if not isinstance(schema, Mapping):
            return self._union(schema, namespace)
        kind = schema["type"]
        if kind in ("record", "enum", "fixed", "error"):
            return self._definition(schema, kind, namespace)
        logical = _logical(schema)
        if logical is not None:
            return logical
        if kind == "array":
            return pa.list_(self.of(schema["items"], namespace))
        if kind == "map":
            return pa.map_(pa.string(), self.of(schema["values"], namespace))
        return self.of(kind, namespace)

    def _definition(self, schema: Mapping[str, Any], kind: str, namespace: str) -> pa.DataType:
        name, namespace = _full_name(schema["name"], schema.get("namespace", namespace))
        self._named[name] = None
        made: pa.DataType
        if kind == "enum":
            made = pa.string()
        elif kind == "fixed":
            made = _logical(schema) or pa.binary(schema["size"])
        else:
            _require_distinct(name, [field["name"] for field in schema["fields"]])
            made = pa.struct(
                [
                    pa.field(field["name"], self.of(field["type"], namespace))
                    for field in schema["fields"]
                ]
            )
        self._named[name] = made
        return made

    def _known(self, name: str, namespace: str) -> pa.DataType:
        full, _ = _full_name(name, namespace)
        found = self._named.get(full, self._named.get(name))
        if found is None:
            raise ConfigError(
                "an Avro schema uses a type that is undefined or contains itself",
                {"type": name},
                "Define each type before its use. Read records that contain themselves in a "
                "function: Arrow has no such types.",
            )
        return found

    def _union(self, branches: Sequence[Any], namespace: str) -> pa.DataType:
        others = [branch for branch in branches if not _is_null(branch)]
        if len(others) > 1:
            raise ConfigError(
                "an Avro schema has a union of several types",
                {"types": ", ".join(map(str, others))},
                "Read such records in a function: only a union of null and one type becomes a "
                "column.",
            )
        return self.of(others[0], namespace) if others else pa.null()


def _require_distinct(record: str, names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            "an Avro schema has two fields of one name",
            {"record": record, "fields": ",".join(twice)},
            "Correct it: Avro has no such records.",
        )


def _is_null(branch: Any) -> bool:  # noqa: ANN401 - JSON
    return branch == "null" or (isinstance(branch, Mapping) and branch.get("type") == "null")


def _full_name(name: str, namespace: str) -> tuple[str, str]:
    if "." in name:
        return name, name.rpartition(".")[0]
    return (f"{namespace}.{name}" if namespace else name), namespace


def _logical(schema: Mapping[str, Any]) -> pa.DataType | None:
    """The type of a logical type that fastavro reads as Arrow's; None: read as the plain type."""
    logical, kind = schema.get("logicalType"), schema.get("type")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision", 0), schema.get("scale", 0)
        fits = 0 < precision <= _MOST_DIGITS
        return pa.decimal128(precision, scale) if fits else None
    return _LOGICAL.get((str(kind), str(logical)))
