"""Avro values of many records at once, as Arrow arrays. Pure.

All records of one schema are read together, field by field: each node of the schema reads its value
of every record with a few calls of numpy. A record of its own costs as much as a thousand records.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.connectors.kafka.records.serde.schema_ids import FramedRecords

__all__ = [
    "TOO_LONG",
    "Boolean",
    "Bytes",
    "Constant",
    "Converted",
    "Cursor",
    "Enum",
    "Fixed",
    "Floating",
    "Ints",
    "Later",
    "Node",
    "Rest",
    "Struct",
    "Union",
    "Unreadable",
    "Varint",
    "read_records",
    "size_of",
]

Ints = npt.NDArray[np.int64]

_BITS, _LAST_SHIFT, _ONE = np.uint8(0x7F), 63, np.uint64(1)
_SHORT = np.array([(byte >> 1) ^ -(byte & 1) for byte in range(128)], np.int64)
TOO_LONG = "a number has more than 64 bits"
_TORN = "a record ends within a value, or has an impossible length"
_EVEN = pa.array(np.arange(0, 1 << 15, 2))


@dataclass(slots=True)
class Cursor:
    """The places of some records in their bytes.

    Attributes:
        data: of all records.
        bytes: the same for numpy.
        pos: the next byte of each record; a node moves it on.
        end: of each record, exclusive.
    """

    data: pa.Buffer
    bytes: npt.NDArray[np.uint8]
    pos: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.pos)

    def part(self, rows: Ints) -> "Cursor":
        """A cursor of some records; `join` it afterwards."""
        return Cursor(self.data, self.bytes, self.pos[rows], self.end[rows])

    def join(self, rows: Ints, part: Self) -> None:
        """Move these records on as far as their part."""
        self.pos[rows] = part.pos

    def skip(self, size: int) -> Ints:
        """Move on by so many bytes; the places before.

        A record that ends too early is found at the end: no place is ever moved back.
        """
        start = self.pos
        self.pos = start + size
        return start

    def skip_lengths(self, sizes: Ints) -> Ints:
        """Move on by the length of each record's value; the places before.

        Raises:
            ValueError: a record has no such value, so that others must not be looked for.
        """
        start = self.pos
        if ((sizes < 0) | (sizes > self.end - start)).any():
            raise ValueError(_TORN)
        self.pos = start + sizes
        return start

    def varints(self) -> Ints:
        """One number of each record, of 64 bits."""
        first = self.bytes[self.skip(1)]
        rows = (first > _BITS).nonzero()[0]
        if not len(rows):
            return _SHORT[first]
        values = (first & _BITS).astype(np.uint64)
        for shift in range(7, 70, 7):
            if not len(rows):
                break
            pos = self.pos[rows]
            found = self.bytes[pos]
            if shift == _LAST_SHIFT and (found > 1).any():
                raise ValueError(TOO_LONG)
            values[rows] |= (found & _BITS).astype(np.uint64) << np.uint64(shift)
            self.pos[rows] = pos + 1
            rows = rows[found > _BITS]
        return (values >> _ONE).astype(np.int64) ^ -(values & _ONE).astype(np.int64)


class Node(Protocol):
    """Reads values of one type."""

    @property
    def size(self) -> int | None:
        """Bytes of each value, if all have the same number."""
        ...

    def read(self, cursor: Cursor) -> pa.Array:
        """The next value of each record; moves the cursor on.

        Raises:
            ValueError: a record does not hold such a value.
        """
        ...


def read_records(records: FramedRecords, nodes: Mapping[Any, Node], kind: pa.DataType) -> pa.Array:
    """The values of a column of records; null where the column is.

    Args:
        nodes: read the records of each schema id, as values of ``kind``.
    Raises:
        ValueError: a record does not hold exactly one value.
    """
    places = np.full(records.length, -1)
    parts, count = [pa.array([], kind)], 0
    data = np.frombuffer(records.data, np.uint8)
    for schema_id, group in records.groups.items():
        starts, ends = records.starts[group], records.ends[group]
        cursor = Cursor(records.data, data, starts, ends)
        try:
            parts.append(nodes[schema_id].read(cursor))
        except IndexError as err:  # of the last records
            raise ValueError(_TORN) from err
        if (cursor.pos > ends).any():
            raise ValueError(_TORN)
        if (cursor.pos < ends).any():
            raise ValueError("a record has bytes after its Avro value")
        places[records.rows[group]] = np.arange(count, count + len(group))
        count += len(group)
    if count == records.length and len(parts) == 2:
        found = parts[1]
    else:
        found = pa.concat_arrays(parts).take(pa.array(places, mask=places < 0))
    found.validate(full=True)  # texts, decimals and times of a day
    return found


@dataclass(frozen=True, slots=True)
class Constant:
    """The same value for each record, without reading: null, or a default."""

    value: pa.Array
    size: int | None = 0

    def read(self, cursor: Cursor) -> pa.Array:
        return self.value.take(pa.array(np.zeros(len(cursor), np.int64)))


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What the reader's schema cannot take: an error where a record has it."""

    why: str
    type: pa.DataType
    size: int | None = None

    def read(self, cursor: Cursor) -> pa.Array:
        if len(cursor):
            raise ValueError(self.why)
        return pa.nulls(0, self.type)


@dataclass(frozen=True, slots=True)
class Converted:
    """Values of another node, as another type."""

    node: Node
    convert: Callable[[pa.Array], pa.Array]

    @property
    def size(self) -> int | None:
        return self.node.size

    def read(self, cursor: Cursor) -> pa.Array:
        return self.convert(self.node.read(cursor))


@dataclass(frozen=True, slots=True)
class Boolean:
    """One byte."""

    size: int | None = 1

    def read(self, cursor: Cursor) -> pa.Array:
        found = cursor.bytes[cursor.skip(1)]
        if (found > 1).any():
            raise ValueError("a boolean is neither true nor false")
        return pa.array(found == 1)


@dataclass(frozen=True, slots=True)
class Varint:
    """An ``int`` or a ``long``."""

    type: pa.DataType
    size: int | None = None

    def read(self, cursor: Cursor) -> pa.Array:
        found = cursor.varints()
        narrow = found.astype(self.type.to_pandas_dtype())
        if (narrow != found).any():
            raise ValueError("a number is too large for 32 bits")
        return pa.array(narrow)


@dataclass(frozen=True, slots=True)
class Floating:
    """A ``float`` or a ``double``."""

    type: pa.DataType

    @property
    def size(self) -> int | None:
        return int(self.type.bit_width // 8)

    def read(self, cursor: Cursor) -> pa.Array:
        width = self.type.bit_width // 8
        return pa.array(_fixed_bytes(cursor, width).view(f"<f{width}")[:, 0])


@dataclass(frozen=True, slots=True)
class Fixed:
    """So many bytes."""

    size: int | None

    def read(self, cursor: Cursor) -> pa.Array:
        width = self.size or 0
        found = pa.py_buffer(_fixed_bytes(cursor, width).tobytes())
        return pa.Array.from_buffers(pa.binary(width), len(cursor), [None, found])


@dataclass(frozen=True, slots=True)
class Bytes:
    """``bytes`` or a ``string``; whether a string is UTF-8 shows the validation of the array."""

    type: pa.DataType | None  # None: skipped
    size: int | None = None

    def read(self, cursor: Cursor) -> pa.Array:
        start = cursor.skip_lengths(cursor.varints())
        return pa.nulls(len(cursor)) if self.type is None else _slices(cursor, start, self.type)


@dataclass(frozen=True, slots=True)
class Rest:
    """All bytes of a record: Confluent's writers put ``bytes`` there without a length."""

    type: pa.DataType
    size: int | None = None

    def read(self, cursor: Cursor) -> pa.Array:
        return _slices(cursor, cursor.skip_lengths(cursor.end - cursor.pos), self.type)


@dataclass(frozen=True, slots=True)
class Enum:
    """A symbol of the reader for each one of the writer; None: the reader has none."""

    symbols: Sequence[str | None]
    size: int | None = None

    def read(self, cursor: Cursor) -> pa.Array:
        found = pa.array(self.symbols, pa.string()).take(pa.array(_indexes(cursor, self.symbols)))
        if found.null_count:
            raise ValueError("the reader's enum lacks a symbol, and has no default")
        return found


@dataclass(frozen=True, slots=True)
class Struct:
    """A record.

    Attributes:
        nodes: in the writer's order.
        places: of each node's values in the reader's record; None: they are skipped.
        type: of the reader's record; None: the whole record is skipped.
        defaults: of the reader's fields that the writer lacks, by place.
    """

    nodes: Sequence[Node]
    places: Sequence[int | None]
    type: pa.DataType | None
    defaults: Sequence[tuple[int, Node]] = ()

    @property
    def size(self) -> int | None:
        return size_of(self.nodes)

    def read(self, cursor: Cursor) -> pa.Array:
        found: dict[int | None, pa.Array] = {
            place: node.read(cursor) for node, place in zip(self.nodes, self.places, strict=True)
        }
        if self.type is None:
            return pa.nulls(len(cursor))
        found |= {place: node.read(cursor) for place, node in self.defaults}
        if not self.type.num_fields:
            return pa.array([{}] * len(cursor), self.type)
        columns = [found[place] for place in range(self.type.num_fields)]
        return pa.StructArray.from_arrays(columns, fields=list(self.type))


@dataclass(frozen=True, slots=True)
class Union:
    """One of several types, by its number; all become one Arrow type, or null.

    Attributes:
        nodes: of each branch; None: null.
        type: of the values; None: they are skipped.
    """

    nodes: Sequence[Node | None]
    type: pa.DataType | None
    size: int | None = None

    def read(self, cursor: Cursor) -> pa.Array:
        which = _indexes(cursor, self.nodes)
        places = np.full(len(cursor), -1)
        parts, count = [], 0
        for index, node in enumerate(self.nodes):
            rows = (which == index).nonzero()[0]
            if node is None or not len(rows):
                continue
            part = cursor.part(rows)
            found = node.read(part)
            cursor.join(rows, part)
            if len(rows) == len(cursor):
                return found
            if self.type is None:
                continue
            places[rows] = np.arange(count, count + len(rows))
            count += len(rows)
            parts.append(found)
        if not parts:
            return pa.nulls(len(cursor), self.type)
        return pa.concat_arrays(parts).take(pa.array(places, mask=places < 0))


@dataclass(slots=True)
class Later:
    """A node that may be a part of itself: it is set after its parts are made."""

    node: Node = Constant(pa.nulls(1))
    size: int | None = None

    def read(self, cursor: Cursor) -> pa.Array:
        return self.node.read(cursor)


def size_of(nodes: Sequence[Node]) -> int | None:
    """Bytes of one value of each node; None: it depends on the values."""
    sizes = [node.size for node in nodes]
    return None if None in sizes else sum(size or 0 for size in sizes)


def _fixed_bytes(cursor: Cursor, width: int) -> npt.NDArray[np.uint8]:
    start = cursor.skip(width)
    return np.ascontiguousarray(cursor.bytes[start[:, None] + np.arange(width)])


def _indexes(cursor: Cursor, known: Sequence[object]) -> Ints:
    found = cursor.varints()
    if ((found < 0) | (found >= len(known))).any():
        raise ValueError("the number of a symbol or of a union's type is out of range")
    return found


def _slices(cursor: Cursor, start: Ints, kind: pa.DataType) -> pa.Array:
    """The bytes from ``start`` to the cursor, as values of their own."""
    # Values and the gaps between them, of which every second one is taken.
    bounds = np.zeros(2 * len(start) + 1, np.int32)
    bounds[0:-1:2], bounds[1::2] = start, cursor.pos
    bounds[-1] = bounds[-2] if len(start) else 0
    both = pa.Array.from_buffers(kind, 2 * len(start), [None, pa.py_buffer(bounds), cursor.data])
    even = _EVEN if len(start) <= len(_EVEN) else pa.array(np.arange(0, 2 * len(start), 2))
    return both.take(even[: len(start)])
