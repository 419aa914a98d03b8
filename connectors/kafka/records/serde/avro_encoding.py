"""Arrow values as Avro records, a column at once. Pure.

Each part of a schema becomes a column of its bytes, and Arrow joins these columns row by row.
"""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.connectors.kafka.records.serde.avro_resolution import default_of
from sluice.connectors.kafka.records.serde.avro_types import (
    AvroSchema,
    is_null,
    kind_of,
    type_of,
)
from sluice.runtime.errors import ConfigError

__all__ = ["encoded"]

Json = Any
_RECORDS = ("record", "error")

Numbers = npt.NDArray[Any]

_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)
_TAKEN: Mapping[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "null": (pa.types.is_null,),
    "boolean": (pa.types.is_boolean,),
    "int": (pa.types.is_integer, pa.types.is_date, pa.types.is_time, pa.types.is_timestamp),
    "long": (pa.types.is_integer, pa.types.is_date, pa.types.is_time, pa.types.is_timestamp),
    "float": (pa.types.is_floating, pa.types.is_integer),
    "double": (pa.types.is_floating, pa.types.is_integer),
    "string": _TEXTS,
    "enum": _TEXTS,
    "bytes": (*_BYTES, pa.types.is_decimal),
    "fixed": (*_BYTES, pa.types.is_decimal),
    "array": (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
    "map": (pa.types.is_map,),
    "record": (pa.types.is_struct,),
    "error": (pa.types.is_struct,),
}
"""Arrow types that become a type of Avro; a cast then finds values that it cannot hold."""


def encoded(schema: AvroSchema, values: pa.Array, *, bare_bytes: bool = False) -> pa.Array:
    """One Avro value of each row; null where the row is null.

    Args:
        bare_bytes: a record of the type ``bytes`` is these bytes, without their length.
    Raises:
        ConfigError: the column has another type, or other fields, than the schema.
        ValueError: a row has a value that the schema does not take.
    """
    _require_type(schema, schema.root, values.type, "")
    made, present = _Encoder(schema), values.drop_null()
    if bare_bytes and kind_of(schema.definition(schema.root)) == "bytes":
        found = made.plain("bytes", present, "")
    else:
        found = made.of(schema.root, present, "")
    return _spread(found, values)


class _Encoder:
    """Encodes the parts of one schema, of columns whose types fit it."""

    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema

    def of(self, part: Json, values: pa.Array, path: str) -> pa.Array:
        """The bytes of each value of a column."""
        part = self._schema.definition(part)
        kind = kind_of(part)
        if kind == "union":
            return self._union(part, values, path)
        if values.null_count and kind != "null":
            raise ValueError(f"the field {path or '(the record)'} is null, and its schema is not")
        if kind in _RECORDS:
            return self._record(part, values, path)
        if kind == "array":
            return _blocks(values, self.of(part["items"], values.flatten(), f"{path}[]"))
        if kind == "map":
            of, at = values.type, f"{path}{{}}"
            pairs = pa.struct(
                [pa.field("key", of.key_type, nullable=False), ("value", of.item_type)]
            )
            lists = values.cast(pa.list_(pairs))
            names, found = lists.flatten().flatten()
            names, found = self.of("string", names, at), self.of(part["values"], found, at)
            return _blocks(lists, _joined(names, found))
        found = self.plain(part, values, path)
        if kind in ("bytes", "string"):
            return _joined(_varints(_lengths(found)), found)
        return found

    def plain(self, part: Json, values: pa.Array, path: str) -> pa.Array:
        """The bytes of values without parts; of texts and bytes without their length."""
        kind = kind_of(part)
        if kind == "null":
            return _constant(b"", len(values))
        if kind == "enum":
            return _varints(_symbols(part["symbols"], values, path))
        wanted = type_of(self._schema, part)
        given, values = values, values.cast(wanted)
        if kind == "float" and _has_overflow(given, values):
            raise ValueError(f"the field {path or '(the record)'} has a number above any float")
        if pa.types.is_decimal(wanted):
            return _of_decimals(values, part.get("size"))
        if kind == "boolean":
            return _fixed(_numpy(values.cast(pa.uint8())), 1)
        if kind in ("float", "double"):
            return _fixed(_numpy(values), wanted.bit_width // 8)
        if kind in ("int", "long"):
            bits = pa.int32() if kind == "int" else pa.int64()
            return _varints(_numpy(values.view(bits)))
        return values.cast(pa.binary())

    def _union(self, branches: Json, values: pa.Array, path: str) -> pa.Array:
        others = [index for index, branch in enumerate(branches) if not is_null(branch)]
        nulls = [index for index, branch in enumerate(branches) if is_null(branch)]
        if values.null_count and not nulls:
            raise ValueError(f"the field {path or '(the record)'} is null, and its schema is not")
        which = np.where(values.is_valid(), *(x[0] if x else 0 for x in (others, nulls)))
        if not others:
            return _varints(which)
        found = self.of(branches[others[0]], values.drop_null(), path)
        return _joined(_varints(which), _spread(found, values).fill_null(b""))

    def _record(self, part: Json, values: pa.Array, path: str) -> pa.Array:
        columns = dict(zip((field.name for field in values.type), values.flatten(), strict=True))
        made = [_constant(b"", len(values))]
        for field in part["fields"]:
            name, at = field["name"], _below(path, field)
            if name in columns:
                made.append(self.of(field["type"], columns[name], at))
            else:
                (value,) = self.of(field["type"], default_of(self._schema, field), at).to_pylist()
                made.append(_constant(value, len(values)))
        return _joined(*made)


def _below(path: str, field: Json) -> str:
    return f"{path}.{field['name']}".lstrip(".")


def _require_type(schema: AvroSchema, part: Json, found: pa.DataType, path: str) -> None:
    """Refuse a column that no value of fits: this is no fault of a record."""
    part = schema.definition(part)
    kind = kind_of(part)
    if kind == "union":
        type_of(schema, part)  # refuses a union of several types
        others = [branch for branch in part if not is_null(branch)]
        if others and not pa.types.is_null(found):
            _require_type(schema, others[0], found, path)
        return
    plain = found.value_type if pa.types.is_dictionary(found) else found
    if not any(check(plain) for check in _TAKEN[kind]):
        _refuse(path, found, kind)
    if kind in ("int", "long"):
        _require_time(plain, type_of(schema, part), path)
    elif kind == "array":
        _require_type(schema, part["items"], found.value_type, f"{path}[]")
    elif kind == "map":
        _require_type(schema, "string", found.key_type, f"{path}{{}}")
        _require_type(schema, part["values"], found.item_type, f"{path}{{}}")
    elif kind in _RECORDS:
        _require_fields(schema, part, found, path)


def _require_time(found: pa.DataType, wanted: pa.DataType, path: str) -> None:
    """Refuse what a cast would take for another time, or a number for a time."""
    for check in (pa.types.is_timestamp, pa.types.is_date, pa.types.is_time):
        if check(found) != check(wanted):
            _refuse(path, found, str(wanted))
    if pa.types.is_timestamp(found) and (found.tz is None) != (wanted.tz is None):
        _refuse(path, found, str(wanted))


def _require_fields(schema: AvroSchema, part: Json, found: pa.DataType, path: str) -> None:
    types = {field.name: field.type for field in found}
    known = {field["name"] for field in part["fields"]}
    more = [name for name in types if name not in known]
    if more or len(types) < found.num_fields:
        raise ConfigError(
            "a column has fields that its Avro schema lacks, or one twice",
            {"record": path or part["name"], "fields": ",".join(more or types)},
            "Leave them out before the serializer, or add them to the schema.",
        )
    for field in part["fields"]:
        at = _below(path, field)
        if field["name"] in types:
            _require_type(schema, field["type"], types[field["name"]], at)
        elif "default" not in field:
            raise ConfigError(
                "a column lacks a field of its Avro schema, which has no default",
                {"field": at},
                "Add the field before the serializer, or a default to the schema.",
            )


def _refuse(path: str, found: pa.DataType, wanted: str) -> NoReturn:
    raise ConfigError(
        "a column has another type than its Avro schema",
        {"field": path or "(the record)", "type": str(found), "schema": wanted},
        "Cast the column in a function before the serializer, or change the schema.",
    )


def _symbols(symbols: list[str], values: pa.Array, path: str) -> Numbers:
    found = pc.index_in(values.cast(pa.string()), value_set=pa.array(symbols, pa.string()))
    if found.null_count:
        raise ValueError(f"the enum {path or '(the record)'} lacks a symbol")
    return _numpy(found)


def _has_overflow(given: pa.Array, floats: pa.Array) -> bool:
    """Whether a finite number has become infinite; Arrow's cast lets it."""
    wide = given.filter(pc.is_inf(floats)).cast(pa.float64())
    return not pc.all(pc.is_inf(wide), min_count=0).as_py()


def _spread(found: pa.Array, values: pa.Array) -> pa.Array:
    """The bytes of the rows that are not null, in the places of all rows."""
    if not values.null_count:
        return found
    is_valid = np.asarray(values.is_valid())
    return found.take(pa.array(np.cumsum(is_valid) - 1, mask=~is_valid))


def _joined(*columns: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*columns, b"")


def _constant(value: bytes, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.binary()), rows)


def _lengths(values: pa.Array) -> Numbers:
    return _numpy(pc.binary_length(values))


def _numpy(values: pa.Array) -> Numbers:
    return np.asarray(values.to_numpy(zero_copy_only=False))


def _column(data: bytes, lengths: Numbers) -> pa.Array:
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


def _fixed(values: Numbers, width: int) -> pa.Array:
    little = values.astype(values.dtype.newbyteorder("<"))
    return _column(little.tobytes(), np.full(len(values), width))


def _varints(numbers: Numbers) -> pa.Array:
    """Numbers in zigzag order, seven bits in each byte."""
    wide = numbers.astype(np.int64)
    left = ((wide << 1) ^ (wide >> 63)).view(np.uint64)
    shifts = np.arange(0, 70, 7, dtype=np.uint64)
    parts = left[:, None] >> np.minimum(shifts, np.uint64(63))
    parts[:, -1] = left >> np.uint64(63)
    lengths = np.maximum((parts != 0).sum(axis=1), 1)
    used = np.arange(len(shifts)) < lengths[:, None]
    last = np.arange(len(shifts)) == lengths[:, None] - 1
    found = (parts & np.uint64(0x7F)).astype(np.uint8) | np.where(last, 0, 0x80).astype(np.uint8)
    return _column(found[used].tobytes(), lengths)


def _blocks(lists: pa.Array, items: pa.Array) -> pa.Array:
    """The bytes of lists, of the bytes of all their items in order: one block, and its end."""
    counts = _numpy(pc.list_value_length(lists))
    lengths = np.concatenate(([0], np.cumsum(_lengths(items))))
    bounds = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    sizes = np.diff(lengths[bounds])
    data = b"".join(items.to_pylist()) if len(items) else b""
    found = _joined(_varints(counts), _column(data, sizes), _constant(b"\0", len(lists)))
    return pc.if_else(pa.array(counts == 0), pa.scalar(b"\0", pa.binary()), found)


def _of_decimals(values: pa.Array, size: int | None) -> pa.Array:
    """Big-endian numbers with a sign, as short as possible or of a fixed size."""
    data, made = values.buffers()[1].to_pybytes(), []
    for place in range(16 * values.offset, 16 * (values.offset + len(values)), 16):
        number = int.from_bytes(data[place : place + 16], "little", signed=True)
        length = size if size is not None else (number + (number < 0)).bit_length() // 8 + 1
        made.append(number.to_bytes(length, signed=True))
    return pa.array(made, pa.binary())
