"""Lists and maps of Avro in many records at once. Pure.

The number of items differs by record, so items are read in turn: the first of each record, then the
second. The items of a few records are found one by one before, and read together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.connectors.kafka.records.serde.avro_columns import (
    TOO_LONG,
    Bytes,
    Converted,
    Cursor,
    Ints,
    Later,
    Node,
    Struct,
    Union,
    size_of,
)

__all__ = ["Array", "Map"]

_MOST_EMPTY_ITEMS = 1_000_000
_FEW_ROWS = 16


@dataclass(frozen=True, slots=True)
class Array:
    """A list, in blocks of so many items each."""

    item: Node
    type: pa.DataType | None  # None: skipped
    size: int | None = None

    @property
    def nodes(self) -> Sequence[Node]:
        """Of one item."""
        return (self.item,)

    def read(self, cursor: Cursor) -> pa.Array:
        if self.type is None:
            _items(cursor, self.nodes, None)
            return pa.nulls(len(cursor))
        offsets, (items,) = _items(cursor, self.nodes, (self.type.value_type,))
        return pa.ListArray.from_arrays(offsets, items, type=self.type)


@dataclass(frozen=True, slots=True)
class Map:
    """Names and values; if a name comes twice, the last one counts."""

    value: Node
    type: pa.DataType | None  # None: skipped
    size: int | None = None

    @property
    def nodes(self) -> Sequence[Node]:
        """Of one item."""
        return (Bytes(None if self.type is None else pa.string()), self.value)

    def read(self, cursor: Cursor) -> pa.Array:
        if self.type is None:
            _items(cursor, self.nodes, None)
            return pa.nulls(len(cursor))
        kinds = (pa.string(), self.type.item_type)
        offsets, (names, values) = _items(cursor, self.nodes, kinds)
        owners = np.repeat(np.arange(len(cursor)), np.diff(offsets))
        keys = names.dictionary_encode()
        pairs = owners * (len(keys.dictionary) + 1) + keys.indices.to_numpy(zero_copy_only=False)
        _, last = np.unique(pairs[::-1], return_index=True)
        if len(last) < len(pairs):
            kept = np.sort(len(pairs) - 1 - last)
            names, values = names.take(pa.array(kept)), values.take(pa.array(kept))
            offsets = _offsets(np.bincount(owners[kept], minlength=len(cursor)))
        return pa.MapArray.from_arrays(offsets, names, values, type=self.type)


def _offsets(counts: npt.NDArray[Any]) -> pa.Array:
    return pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))


def _items(
    cursor: Cursor, nodes: Sequence[Node], kinds: Sequence[pa.DataType] | None
) -> tuple[pa.Array, list[pa.Array]]:
    """The items of lists or maps: where those of each record begin, and the values of each node.

    Args:
        kinds: types of the nodes' values; None: skip the items.
    """
    owners: list[Ints] = [np.zeros(0, np.int64)]
    parts = [[pa.array([], kind)] for kind in kinds or ()]

    def read(rows: Ints, part: Cursor) -> None:
        found = [node.read(part) for node in nodes]
        if kinds is not None:
            owners.append(rows)
            for values, more in zip(parts, found, strict=True):
                values.append(more)

    size, taken = size_of(nodes), np.zeros(len(cursor), np.int64)
    open_rows, left = np.arange(len(cursor)), np.zeros(len(cursor), np.int64)
    while len(open_rows):
        fresh = open_rows[left[open_rows] == 0]
        if len(fresh):
            left[fresh] = _block_counts(cursor, fresh, size, taken)
            open_rows = open_rows[left[open_rows] > 0]
        if size is None and len(open_rows) < _FEW_ROWS:
            rows, part, stops = _scanned(cursor, nodes, open_rows, left)
            read(rows, part)
            if (part.pos != stops).any():
                raise ValueError("a list or a map has other items than it seems")
        elif size is None:
            part = cursor.part(open_rows)
            read(open_rows, part)
            cursor.join(open_rows, part)
            left[open_rows] -= 1
        elif len(open_rows):
            counts = left[open_rows]
            rows = np.repeat(open_rows, counts)
            before = np.repeat(np.cumsum(counts) - counts, counts)
            part = cursor.part(rows)
            part.pos += (np.arange(len(rows)) - before) * size
            read(rows, part)
            cursor.pos[open_rows] += counts * size
            left[open_rows] = 0
    owner = np.concatenate(owners)
    order = pa.array(np.argsort(owner, kind="stable"))
    values = [pa.concat_arrays(each).take(order) for each in parts]
    return _offsets(np.bincount(owner, minlength=len(cursor))), values


def _scanned(
    cursor: Cursor, nodes: Sequence[Node], open_rows: Ints, left: Ints
) -> tuple[Ints, Cursor, Ints]:
    """All items of the blocks of a few records, found one by one: owners, a cursor, and ends.

    Long lists of few records are read so: a call of numpy for each item would cost more.
    """
    view = memoryview(cursor.data).cast("B")
    starts: list[int] = []
    stops: list[int] = []
    for row in open_rows.tolist():
        pos, data = int(cursor.pos[row]), view[: int(cursor.end[row])]
        for _ in range(int(left[row])):
            starts.append(pos)
            for node in nodes:
                pos = _after(node, data, pos)
            stops.append(pos)
        cursor.pos[row] = pos
    rows = np.repeat(open_rows, left[open_rows])
    left[open_rows] = 0
    part = Cursor(cursor.data, cursor.bytes, np.array(starts, np.int64), cursor.end[rows])
    return rows, part, np.array(stops, np.int64)


def _after(node: Node, data: memoryview, pos: int) -> int:
    """The place after the value here.

    Raises:
        ValueError, IndexError: there is no such value.
    """
    if isinstance(node, Converted | Later):
        return _after(node.node, data, pos)
    if isinstance(node, Struct):
        for field in node.nodes:
            pos = _after(field, data, pos)
        return pos
    if node.size is not None:
        return pos + node.size
    number, pos = _number(data, pos)
    if isinstance(node, Bytes):
        return pos + max(number, 0)
    if isinstance(node, Union):
        branch = node.nodes[number] if number >= 0 else None
        return pos if branch is None else _after(branch, data, pos)
    if isinstance(node, Array | Map):
        return _after_blocks(node.nodes, data, number, pos)
    return pos


def _after_blocks(nodes: Sequence[Node], data: memoryview, number: int, pos: int) -> int:
    size = size_of(nodes)
    while number:
        if number < 0:  # the bytes of the block follow, which `_block_counts` does not use either
            _, pos = _number(data, pos)
        if size is not None:
            pos += abs(number) * size
        else:  # each item has a byte, and the data end
            for node in (node for _ in range(abs(number)) for node in nodes):
                pos = _after(node, data, pos)
        number, pos = _number(data, pos)
    return pos


def _number(data: memoryview, pos: int) -> tuple[int, int]:
    """A number and the place after it."""
    found = 0
    for shift in range(0, 70, 7):
        byte = data[pos]
        pos += 1
        found |= (byte & 0x7F) << shift
        if byte <= 0x7F:
            return (found >> 1) ^ -(found & 1), pos
    raise ValueError(TOO_LONG)


def _block_counts(cursor: Cursor, rows: Ints, size: int | None, taken: Ints) -> Ints:
    """Number of items in the next block of these records; none is the end.

    Args:
        taken: items of the blocks before; bounds those without bytes.
    """
    part = cursor.part(rows)
    counts = part.varints()
    sized = (counts < 0).nonzero()[0]
    if len(sized):
        counts = np.abs(counts)
        with_bytes = part.part(sized)
        with_bytes.varints()
        part.join(sized, with_bytes)
    cursor.join(rows, part)
    left = part.end - part.pos
    most = left // size if size else _MOST_EMPTY_ITEMS - taken[rows] if size == 0 else left
    if ((counts < 0) | (counts > most)).any():
        raise ValueError("a list or a map has more items than its record has bytes")
    taken[rows] += counts
    return counts
