"""Avro schemas, and their values as Arrow types. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import fastavro
import pyarrow as pa

from sluice.runtime.errors import ConfigError

__all__ = [
    "PRIMITIVES",
    "AvroSchema",
    "arrow_type",
    "is_null",
    "kind_of",
    "logical_type",
    "name_of",
    "text_of",
    "type_of",
]

PRIMITIVES = {
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

Json = Any


class AvroSchema:
    """A schema whose names are full ones, without logical types that have no Arrow type.

    Args:
        schema: JSON text, or its value.
        named: the same of schemas that it refers to, each after those that it needs.
    Attributes:
        names: definition of each named type.
        root: the schema.
    Raises:
        ValueError: it is no Avro schema.
    """

    def __init__(self, schema: Json, named: Sequence[Json] = ()) -> None:
        self.names: dict[str, Json] = {}
        try:
            values = [_value(each) for each in (*named, schema)]
            self._text = json.dumps(values)
            for value in values:
                self.root: Json = fastavro.parse_schema(_plain(value), self.names)
        except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as err:
            raise ValueError(f"{type(err).__name__}: {err}") from err

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AvroSchema) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def definition(self, schema: Json) -> Json:
        """The schema itself, or the definition that its name stands for."""
        return self.names.get(schema, schema) if isinstance(schema, str) else schema


def kind_of(schema: Json) -> str:
    """``union``, or the type of a definition."""
    if isinstance(schema, str):
        return schema
    return "union" if isinstance(schema, Sequence) else str(schema["type"])


def is_null(schema: Json) -> bool:
    """Whether a branch of a union is null; Avro has two spellings."""
    return kind_of(schema) == "null"


def logical_type(schema: Json) -> pa.DataType | None:
    """The Arrow type of a logical type; None: the values are those of the plain type."""
    if not isinstance(schema, Mapping):
        return None
    logical, kind = schema.get("logicalType"), schema.get("type")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision", 0), schema.get("scale", 0)
        fits = 0 < precision <= _MOST_DIGITS
        return pa.decimal128(precision, scale) if fits else None
    return _LOGICAL.get((str(kind), str(logical)))


def arrow_type(schema: AvroSchema) -> pa.DataType:
    """Type of the values that a schema describes.

    Raises:
        ConfigError: a union of several types, a type that contains itself, or a record with two
            fields of one name.
    """
    return _type(schema, schema.root, ())


def type_of(schema: AvroSchema, part: Json) -> pa.DataType:
    """Type of a part of a schema."""
    return _type(schema, part, ())


def _type(schema: AvroSchema, part: Json, within: tuple[str, ...]) -> pa.DataType:
    part = schema.definition(part)
    kind, logical = kind_of(part), logical_type(part)
    if logical is not None:
        return logical
    if kind == "union":
        return _type(schema, _only_branch(part), within)
    if kind == "array":
        return pa.list_(_type(schema, part["items"], within))
    if kind == "map":
        return pa.map_(pa.string(), _type(schema, part["values"], within))
    if kind == "enum":
        return pa.string()
    if kind == "fixed":
        return pa.binary(part["size"])
    if kind not in ("record", "error"):
        return PRIMITIVES[kind]
    name = part["name"]
    if name in within:
        raise ConfigError(
            "an Avro schema has a type that contains itself",
            {"type": name},
            "Read such records in a function: Arrow has no such types.",
        )
    _require_distinct(name, [field["name"] for field in part["fields"]])
    return pa.struct(
        [
            pa.field(field["name"], _type(schema, field["type"], (*within, name)))
            for field in part["fields"]
        ]
    )


def _only_branch(branches: Sequence[Json]) -> Json:
    others = [branch for branch in branches if not is_null(branch)]
    if len(others) > 1:
        raise ConfigError(
            "an Avro schema has a union of several types",
            {"types": ", ".join(map(str, others))},
            "Read such records in a function: only a union of null and one type becomes a column.",
        )
    return others[0] if others else "null"


def _require_distinct(record: str, names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            "an Avro schema has two fields of one name",
            {"record": record, "fields": ",".join(twice)},
            "Correct it: Avro has no such records.",
        )


def name_of(schema: Json) -> str | None:
    """Full name of a schema, as text or its value; None: it has none."""
    value = _value(schema)
    if not isinstance(value, Mapping) or "name" not in value:
        return None
    name, namespace = value["name"], value.get("namespace")
    return f"{namespace}.{name}" if namespace and "." not in name else str(name)


def text_of(schema: Json) -> str:
    """JSON text of a schema that is given as text or as its value."""
    is_text = isinstance(schema, str) and schema not in PRIMITIVES
    return str(schema) if is_text else json.dumps(schema)


def _value(schema: Json) -> Json:
    """Of JSON text, or the value itself."""
    return json.loads(text_of(schema)) if isinstance(schema, str) else schema


def _plain(schema: Json) -> Json:
    """A schema for fastavro: without logical types that have no Arrow type."""
    if isinstance(schema, Mapping):
        if "name" not in schema and not isinstance(schema.get("type", ""), str):
            return _plain(schema["type"])  # ``{"type": {"type": …}}``
        made = {name: _plain(value) for name, value in schema.items()}
        if "logicalType" in made and logical_type(schema) is None:
            del made["logicalType"]
        return made
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        return [_plain(each) for each in schema]
    return schema
