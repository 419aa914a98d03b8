"""Schema resolution of Avro: how a reader's schema takes the values of a writer's schema. Pure.

Source: "Schema Resolution" of the Avro specification, 1.12.
"""

from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.connectors.kafka.records.serde import avro_columns as columns
from sluice.connectors.kafka.records.serde.avro_lists import Array, Map
from sluice.connectors.kafka.records.serde.avro_types import (
    PRIMITIVES,
    AvroSchema,
    is_null,
    kind_of,
    logical_type,
    type_of,
)
from sluice.runtime.errors import ConfigError

__all__ = ["default_of", "reading", "require_defaults"]

Json = Any

_RECORDS = ("record", "error")
_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_DECIMAL_BYTES = 16


def reading(writer: AvroSchema, reader: AvroSchema, *, bare_bytes: bool = False) -> columns.Node:
    """The node that reads the writer's records as values of the reader's type.

    What the reader cannot take is an error where a record has it.

    Args:
        bare_bytes: a record of the type ``bytes`` is these bytes, without their length.
    """
    made = _Resolution(writer, reader)
    if bare_bytes and kind_of(writer.definition(writer.root)) == "bytes":
        return made.value(writer.root, reader.root, columns.Rest(pa.binary()))
    return made.value(writer.root, reader.root)


class _Resolution:
    """Makes the nodes for two schemas."""

    def __init__(self, writer: AvroSchema, reader: AvroSchema) -> None:
        self._writer, self._reader = writer, reader
        self._skipped: dict[str, columns.Later] = {}

    def value(self, written: Json, read: Json, plain: columns.Node | None = None) -> columns.Node:
        """The node of a type; ``plain`` reads the bytes of a primitive one."""
        written, read = self._writer.definition(written), self._reader.definition(read)
        kind = type_of(self._reader, read)
        if kind_of(written) == "union":
            branches = [self._branch(each, read, kind) for each in written]
            return columns.Union(branches, kind)
        if kind_of(read) == "union":
            if is_null(written):
                return self._branch(written, read, kind) or columns.Constant(pa.nulls(1, kind))
            others = [each for each in read if not is_null(each)]
            read = self._reader.definition(others[0] if others else "null")
        return self._plain(written, read, kind, plain)

    def _branch(self, written: Json, read: Json, kind: pa.DataType) -> columns.Node | None:
        """The node of a type in a writer's union; None: null, which the reader takes."""
        if not is_null(written):
            return self.value(written, read)
        nullable = is_null(read) or (kind_of(read) == "union" and any(map(is_null, read)))
        return None if nullable else columns.Unreadable("the reader's type is not null", kind)

    def _plain(
        self, written: Json, read: Json, kind: pa.DataType, plain: columns.Node | None
    ) -> columns.Node:
        """The node of types that are no unions."""
        of, to = kind_of(written), kind_of(read)
        if of in _RECORDS and to in _RECORDS and _same_name(written, read):
            return self._record(written, read, kind)
        if of == to == "enum" and _same_name(written, read):
            known, default = set(read["symbols"]), read.get("default")
            return columns.Enum([s if s in known else default for s in written["symbols"]])
        if of == to == "array":
            return Array(self.value(written["items"], read["items"]), kind)
        if of == to == "map":
            return Map(self.value(written["values"], read["values"]), kind)
        convert = _conversion(logical_type(written), logical_type(read), kind)
        if of == to == "fixed" and written["size"] == read["size"] and _same_name(written, read):
            node: columns.Node = columns.Fixed(written["size"])
        elif of in PRIMITIVES and (to == of or to in _PROMOTIONS.get(of, ())):
            node = plain or _primitive(of)
            if to != of:
                node = columns.Converted(node, partial(_cast, to=PRIMITIVES[to]))
        else:
            convert = None
        if convert is None:
            why = f"the reader's schema does not take {_name(written)} as {_name(read)}"
            return columns.Unreadable(why, kind)
        return columns.Converted(node, convert)

    def _record(self, written: Json, read: Json, kind: pa.DataType) -> columns.Node:
        places: dict[str, int] = {}
        names = {field["name"] for field in written["fields"]}
        for place, field in enumerate(read["fields"]):
            found = [n for n in (field["name"], *field.get("aliases", ())) if n in names]
            if found and found[0] not in places:
                places[found[0]] = place
        fields = read["fields"]
        nodes = [
            self._skip(field["type"])
            if field["name"] not in places
            else self.value(field["type"], fields[places[field["name"]]]["type"])
            for field in written["fields"]
        ]
        missing = set(range(len(fields))) - set(places.values())
        return columns.Struct(
            nodes,
            [places.get(field["name"]) for field in written["fields"]],
            kind,
            [(place, self._default(fields[place])) for place in sorted(missing)],
        )

    def _default(self, field: Json) -> columns.Node:
        found = default_of(self._reader, field)
        if found is not None:
            return columns.Constant(found)
        why = f"the writer's schema lacks the field {field['name']}, which has no default"
        return columns.Unreadable(why, type_of(self._reader, field["type"]))

    def _skip(self, written: Json) -> columns.Node:
        """The node that reads over a value; its type may contain itself, or have no Arrow type."""
        written = self._writer.definition(written)
        kind = kind_of(written)
        if kind in PRIMITIVES:
            return columns.Bytes(None) if kind in ("bytes", "string") else _primitive(kind)
        if kind == "fixed":
            return columns.Fixed(written["size"])
        if kind == "enum":
            return columns.Enum(written["symbols"])
        if kind == "array":
            return Array(self._skip(written["items"]), None)
        if kind == "map":
            return Map(self._skip(written["values"]), None)
        if kind == "union":
            return columns.Union([None if is_null(b) else self._skip(b) for b in written], None)
        name = written["name"]
        if name not in self._skipped:
            later = self._skipped[name] = columns.Later()
            nodes = [self._skip(field["type"]) for field in written["fields"]]
            later.node = columns.Struct(nodes, [None] * len(nodes), None)
            later.size = later.node.size
        return self._skipped[name]


def require_defaults(schema: AvroSchema) -> None:
    """Check the defaults of a reader's schema: a wrong one would make good records bad.

    Raises:
        ConfigError: a default is no value of its type.
    """
    for record in schema.names.values():
        for field in record.get("fields", ()):
            try:
                default_of(schema, field)
            except (ValueError, TypeError, AttributeError, OverflowError, KeyError) as err:
                raise ConfigError(
                    "a default of an Avro schema does not fit its type",
                    {"record": record["name"], "field": field["name"], "error": err},
                    "Correct the default in the reader's schema.",
                ) from err


def default_of(schema: AvroSchema, field: Json) -> pa.Array | None:
    """The default of a field of a record, as its only value; None: the field has none."""
    if "default" not in field:
        return None
    value = _value(schema, field["default"], field["type"])
    return pa.array([value], type_of(schema, field["type"]))


def _value(schema: AvroSchema, value: Json, part: Json) -> object:
    """The value that the JSON of a default stands for."""
    part = schema.definition(part)
    kind, logical = kind_of(part), logical_type(part)
    if kind == "union":
        others = [each for each in part if not is_null(each)]
        return None if value is None or not others else _value(schema, value, others[0])
    if kind in ("bytes", "fixed"):
        found = value.encode("latin-1")
        return found if logical is None else _decimal(found, logical)
    if kind in _RECORDS:
        own = {f["name"]: f["default"] for f in part["fields"] if "default" in f}
        given = {**own, **value}
        return {f["name"]: _value(schema, given[f["name"]], f["type"]) for f in part["fields"]}
    if kind == "array":
        return [_value(schema, each, part["items"]) for each in value]
    if kind == "map":
        return [(name, _value(schema, each, part["values"])) for name, each in value.items()]
    if kind == "enum" and value not in part["symbols"]:
        raise ValueError(f"{value!r} is no symbol of {part['name']}")
    return float(value) if kind in ("float", "double") else value


def _primitive(kind: str) -> columns.Node:
    found = PRIMITIVES[kind]
    if kind == "null":
        return columns.Constant(pa.nulls(1))
    if kind == "boolean":
        return columns.Boolean()
    if kind in ("int", "long"):
        return columns.Varint(found)
    return columns.Floating(found) if kind in ("float", "double") else columns.Bytes(found)


def _same_name(written: Json, read: Json) -> bool:
    """Types match by their names without namespace, or by an alias of the reader."""
    names = {_last(read["name"]), *map(_last, read.get("aliases", ()))}
    return _last(written["name"]) in names


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _name(schema: Json) -> str:
    if not isinstance(schema, Mapping):
        return kind_of(schema)
    return str(schema.get("name") or schema.get("logicalType") or kind_of(schema))


def _conversion(
    written: pa.DataType | None, read: pa.DataType | None, kind: pa.DataType
) -> Callable[[pa.Array], pa.Array] | None:
    """From the values of the reader's plain type; None: the logical types do not fit."""
    if written is not None and read is not None and written != read:
        same_scale = pa.types.is_decimal(written) and pa.types.is_decimal(read)
        if not same_scale or written.scale != read.scale or written.precision > read.precision:
            return None
    if read is not None and pa.types.is_decimal(read):
        return partial(_decimals, kind=read)
    return partial(_view, to=kind)


def _cast(values: pa.Array, to: pa.DataType) -> pa.Array:
    """A promotion; a large number loses digits in a ``float``, as Avro has it."""
    return values.cast(to, safe=not pa.types.is_floating(to))


def _view(values: pa.Array, to: pa.DataType) -> pa.Array:
    return values if values.type == to else values.view(to)


def _decimals(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Decimals of big-endian numbers with a sign; validation of the array checks the precision."""
    values = values.cast(pa.binary())
    if (pc.max(pc.binary_length(values)).as_py() or 0) > _DECIMAL_BYTES:
        values = pa.array([_short(each, kind) for each in values.to_pylist()], pa.binary())
    offsets = np.frombuffer(values.buffers()[1], np.int32)
    bounds = offsets[values.offset : values.offset + len(values) + 1].astype(np.int64)
    data = np.frombuffer(values.buffers()[2] or b"\0", np.uint8)
    start, end = bounds[:-1, None], bounds[1:, None]
    at = end - 1 - np.arange(_DECIMAL_BYTES)
    sign = np.where((start < end) & (data[np.minimum(start, len(data) - 1)] > 0x7F), 0xFF, 0)
    numbers = np.where(at >= start, data[np.maximum(at, 0)], sign).astype(np.uint8)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(numbers.tobytes())])


def _short(found: bytes, kind: pa.DataType) -> bytes:
    try:
        return int.from_bytes(found, signed=True).to_bytes(_DECIMAL_BYTES, signed=True)
    except OverflowError:
        raise pa.ArrowInvalid(
            f"a decimal has more digits than its precision {kind.precision}"
        ) from None


def _decimal(found: bytes, kind: pa.DataType) -> Decimal:
    return Decimal(int.from_bytes(found, signed=True)).scaleb(-kind.scale)
