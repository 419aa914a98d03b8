"""JSON records, read by Arrow: a batch at once, each record by itself."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from sluice.connectors.kafka.records.serde.deserializing import Deserializer
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.arrow_leaves import infinite_count, leaves, with_leaf_types

__all__ = ["JsonDeserializer"]

_CLOSES = re.compile(rb'\]\s*,\s*"')
_STRING_OR_NUMBER = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.eE+-]*', re.DOTALL)
_UNKNOWN_FIELDS = ("ignore", "error")
_IS_SUPPORTED: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_string,
    pa.types.is_decimal128,
    pa.types.is_timestamp,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonDeserializer(Deserializer):
    """Reads one JSON value from each record. Picklable.

    A missing field is null, or an error if the schema's field is not nullable and its struct is not
    null. A string field takes text, and any other value as its JSON, character for character. Text
    is not read as a number, nor a fraction as an integer. A number beyond its type is an error, and
    so is a field of the schema that an object has twice. An empty record, or one with more than one
    value, is an error. A record without a value (a tombstone) is null, and so is ``null``.

    A timestamp is text of ISO 8601. If its type has a time zone, the offset counts, and text
    without an offset is UTC. If its type has none, text with an offset (or ``Z``) is an error, as
    in Spark's ``from_json``: without its offset it would be another time.

    Attributes:
        schema: an Arrow schema, for objects, or a type.
        unknown_fields: ``ignore`` fields that the schema lacks, or ``error``.
    Raises:
        ConfigError: JSON has no such type, two fields of a struct have one name, or the setting
            does not exist.
    """

    schema: pa.Schema | pa.DataType
    unknown_fields: str = "ignore"

    def __post_init__(self) -> None:
        if self.unknown_fields not in _UNKNOWN_FIELDS:
            raise ConfigError(
                "unknown_fields has a value that does not exist",
                {"unknown_fields": self.unknown_fields, "known": ", ".join(_UNKNOWN_FIELDS)},
                "Use ignore, or error.",
            )
        _require_supported(self._wanted, "")

    @property
    def type(self) -> pa.DataType:
        """Type of the values; required fields are nullable, because a tombstone has none."""
        return _nullable(self._wanted)

    @property
    def _wanted(self) -> pa.DataType:
        return pa.struct(list(self.schema)) if isinstance(self.schema, pa.Schema) else self.schema

    def deserialize(self, column: pa.Array) -> pa.Array:
        values = self._values(column.drop_null().to_pylist())
        if not column.null_count:
            return values
        # A null for a tombstone, else the next value.
        is_there = column.is_valid()
        places = pc.subtract(pc.cumulative_sum(is_there.cast(pa.int64())), 1)
        return values.take(pc.if_else(is_there, places, None))

    def _values(self, records: Sequence[bytes]) -> pa.Array:
        if not records:
            return pa.array([], self.type)
        try:
            return self._read_records(records)
        except ValueError:  # perhaps only because Arrow takes nothing but text for a string
            return self._read_records([_with_texts(record, self._wanted) for record in records])

    def _read_records(self, records: Sequence[bytes]) -> pa.Array:
        # A list around each record: no record can take a part of its neighbour, and the length is
        # the number of values in the record.
        text = b"\n".join([b'{"v":[' + record + b"]}" for record in records])
        text.decode()  # Arrow takes over any bytes between quotation marks
        values = self._read(text, with_leaf_types(self.type, _as_read))
        if self.unknown_fields == "ignore":
            # A record that closes the list and opens another one would pass as its first value.
            for record in filter(_CLOSES.search, records):
                json.loads(record)
        if len(values) != len(records) or not pc.all(pc.equal(values.value_lengths(), 1)).as_py():
            raise ValueError("a record is not one JSON value")
        found = values.flatten()
        if infinite_count(found):
            self._require_in_range(found, text)
        _require_present(found, self._wanted, "")
        return found.cast(self.type)

    def _read(self, text: bytes, wanted: pa.DataType) -> pa.Array:
        """Read a list of values from each line."""
        try:
            read = pj.read_json(
                pa.BufferReader(text),
                # One block: a record may be longer than Arrow's default block.
                read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
                parse_options=pj.ParseOptions(
                    explicit_schema=pa.schema([pa.field("v", pa.list_(wanted))]),
                    unexpected_field_behavior=self.unknown_fields,
                ),
            )
        except pa.ArrowInvalid as err:
            raise pa.ArrowInvalid(str(err).replace("/v/[]", "")) from None
        return read.column("v").combine_chunks()

    def _require_in_range(self, found: pa.Array, text: bytes) -> None:
        """Refuse numbers that their type cannot hold: Arrow reads them as infinities.

        The text is read again, as 64 bits and with 0 for larger numbers, to find the infinities
        that were written as such. It is not read so at first: 32-bit numbers would be rounded
        twice.
        """
        text = _STRING_OR_NUMBER.sub(_small, text)
        wide = self._read(text, with_leaf_types(self.type, _as_double)).flatten()
        for narrow, wanted in zip(leaves(found), leaves(wide), strict=True):
            if pa.types.is_floating(narrow.type) and infinite_count(narrow) != infinite_count(
                wanted
            ):
                bits = narrow.type.bit_width
                remedy = ": use float64" if pa.types.is_float32(narrow.type) else ""
                raise ValueError(f"a number is too large for {bits} bits{remedy}")


def _small(token: re.Match[bytes]) -> bytes:
    """A number that 64 bits cannot hold becomes 0; all else stays."""
    text = token[0]
    return b"0" if not text.startswith(b'"') and math.isinf(float(text)) else text


def _as_read(kind: pa.DataType) -> pa.DataType:
    """Arrow's reader drops an offset where there is no zone; its cast of text refuses it."""
    return pa.string() if pa.types.is_timestamp(kind) and kind.tz is None else kind


def _as_double(kind: pa.DataType) -> pa.DataType:
    return pa.float64() if pa.types.is_float32(kind) else _as_read(kind)


def _nullable(found: pa.DataType) -> pa.DataType:
    """The type with nullable fields only: Arrow would require a field inside a null struct, too."""
    if pa.types.is_struct(found):
        return pa.struct([pa.field(each.name, _nullable(each.type)) for each in found])
    if pa.types.is_list(found):
        items = found.value_field.with_nullable(True)
        return pa.list_(items.with_type(_nullable(found.value_type)))
    return found


def _require_present(values: pa.Array, wanted: pa.DataType, path: str) -> None:
    """Refuse a null in a required field, unless the struct around it is null."""
    if pa.types.is_struct(wanted):
        parts = [(f, f"{path}.{f.name}") for f in wanted]
        children = values.drop_null().flatten()
    elif pa.types.is_list(wanted):
        parts, children = [(wanted.value_field, f"{path}[]")], [values.flatten()]
    else:
        return
    for (field, place), child in zip(parts, children, strict=True):
        if child.null_count and not field.nullable:
            raise ValueError(f"the field {place.lstrip('.')} is null or missing")
        _require_present(child, field.type, place)


_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


def _with_texts(record: bytes, wanted: pa.DataType) -> bytes:
    """The record with text in each string field. If it is not one JSON value, it stays as it is:
    Arrow refuses it."""
    try:
        walk = _Walk(record.decode())
        found, end = walk.value(walk.skip(0), wanted)
    except (ValueError, RecursionError):
        return record
    return f"{found}{walk.text[end:]}".encode()


class _Walk:
    """Copies one JSON text, guided by a type: each method takes a position and returns the copy and
    the position after the original."""

    def __init__(self, text: str) -> None:
        self.text = text

    def skip(self, at: int) -> int:
        """The position after white space."""
        found = _SPACE.match(self.text, at)
        return at if found is None else found.end()

    def value(self, at: int, wanted: pa.DataType) -> tuple[str, int]:
        """One value, as text if a string is wanted."""
        first = self.text[at : at + 1]
        if first == "{" and pa.types.is_struct(wanted):
            kinds = {field.name: field.type for field in wanted}
            return self._items(at, "}", lambda start: self._member(start, kinds))
        if first == "[" and pa.types.is_list(wanted):
            return self._items(at, "]", lambda start: self.value(start, wanted.value_type))
        _, end = _DECODER.raw_decode(self.text, at)
        found = self.text[at:end]
        is_read = first == '"' or found == "null" or not pa.types.is_string(wanted)
        return found if is_read else json.dumps(found), end

    def _member(self, at: int, kinds: Mapping[str, pa.DataType]) -> tuple[str, int]:
        name, end = _DECODER.raw_decode(self.text, at)
        after = self.skip(end) + 1
        if not isinstance(name, str) or self.text[after - 1 : after] != ":":
            raise ValueError("an object has no name and value here")
        start = self.skip(after)
        found, end = self.value(start, kinds.get(name, pa.null()))
        return f"{self.text[at:start]}{found}", end

    def _items(
        self, at: int, closing: str, item: Callable[[int], tuple[str, int]]
    ) -> tuple[str, int]:
        """A list or an object, item by item."""
        found: list[str] = []
        start = self.skip(at + 1)
        while found or self.text[start : start + 1] != closing:
            copied, end = item(start)
            found.append(copied)
            start = self.skip(end)
            if self.text[start : start + 1] == closing:
                break
            if self.text[start : start + 1] != ",":
                raise ValueError("a list or an object lacks a comma or its end")
            start = self.skip(start + 1)
        return f"{self.text[at]}{','.join(found)}{closing}", start + 1


def _require_supported(found: pa.DataType, path: str) -> None:
    if pa.types.is_struct(found):
        _require_distinct(found, path)
        for field in found:
            _require_supported(field.type, f"{path}.{field.name}")
    elif pa.types.is_list(found):
        _require_supported(found.value_type, f"{path}[]")
    elif not any(check(found) for check in _IS_SUPPORTED):
        raise ConfigError(
            "a JSON record has no values of this type",
            {"field": path.lstrip(".") or "(the record)", "type": str(found)},
            "Use booleans, numbers, strings, timestamps, lists and structs; read other types as "
            "strings, and cast them in a function.",
        )


def _require_distinct(found: pa.StructType, path: str) -> None:
    """Refuse two fields of one name: Arrow would fill only the first."""
    names = [field.name for field in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            "a schema has two fields of one name",
            {"struct": path.lstrip(".") or "(the record)", "fields": ",".join(twice)},
            "Give each field of a struct a name of its own.",
        )
