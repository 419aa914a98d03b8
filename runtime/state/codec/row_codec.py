"""Rows of an Arrow schema as bytes and back, exact for every type that state may have.

A row is: the number of columns (2 bytes), a bitmap of null columns, the columns of fixed width in
order, the lengths of the other columns (4 bytes each), and their bytes. All numbers are
little-endian. Text and bytes are as they are. A list has the number of its items (4 bytes), the
length of each item if these vary (4 bytes), and the items as rows of one column. A struct and an
entry of a map are rows. Rows inside a row have no number of columns. Equal rows have equal bytes.

Values of a table with a time to live begin with 8 more bytes: see
`sluice.runtime.state.codec.expiry`.
"""

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.runtime.errors import ConfigError, DamagedCheckpointError
from sluice.runtime.state.codec.schema_text import schema_from_json, schema_to_json

__all__ = ["RowCodec", "schema_from_json", "schema_to_json"]

_MOST_COLUMNS = (1 << 16) - 1
_LARGEST_VALUE = (1 << 32) - 1
_EMPTY = pa.scalar(b"", pa.large_binary())
_Bytes = npt.NDArray[np.uint8]
_Longs = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]


class RowCodec:
    """Encodes and decodes rows of one schema. Any process; no state but the schema.

    A row that was written before nullable columns were added at the end has nulls there.
    """

    def __init__(self, schema: pa.Schema) -> None:
        """Raises:
        ConfigError: the schema has no columns, too many, or one of a type that state cannot have.
        """
        if not 1 <= len(schema) <= _MOST_COLUMNS:
            raise ConfigError(
                "a state's schema has no columns, or too many",
                {"columns": len(schema), "most": _MOST_COLUMNS},
                "Declare the state with at least one column.",
            )
        schema_to_json(schema)
        self.schema = schema
        self._layouts: dict[int, _Rows] = {}

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        """Each row's bytes.

        Raises:
            ConfigError: the batch has other columns than the schema, or a null where none may be.
        """
        self._require_own(batch)
        if not batch.num_rows:
            return []
        rows = self._layout(len(self.schema)).encode(batch.columns, batch.num_rows)
        if isinstance(rows, np.ndarray):
            encoded: list[bytes] = rows.view(f"V{rows.dtype.itemsize}").tolist()
            return encoded
        offsets, data = _offsets(rows).tolist(), _data(rows).tobytes()
        return [data[a:b] for a, b in itertools.pairwise(offsets)]

    def decode(self, rows: Sequence[bytes]) -> pa.RecordBatch:
        """The rows as a batch.

        Raises:
            DamagedCheckpointError: a row is not one of this schema.
        """
        if not rows:
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        values = _joined(rows)
        starts = _offsets(values)[:-1]
        if (np.diff(_offsets(values)) < 2).any():
            raise _damaged(self.schema)
        data = _data(values)
        counts = data[starts].astype(np.int64) | (data[starts + 1].astype(np.int64) << 8)
        distinct = np.unique(counts).tolist()
        if distinct[0] < 1 or distinct[-1] > len(self.schema):
            raise _damaged(self.schema)
        if len(distinct) == 1:
            return self._decode(values, distinct[0])
        found = [np.flatnonzero(counts == count) for count in distinct]
        batches = [
            self._decode(values.take(pa.array(at)), count)
            for at, count in zip(found, distinct, strict=True)
        ]
        back = np.argsort(np.concatenate(found), kind="stable")
        return pa.Table.from_batches(batches).combine_chunks().to_batches()[0].take(pa.array(back))

    def _decode(self, values: pa.LargeBinaryArray, count: int) -> pa.RecordBatch:
        columns = self._layout(count).decode(values)
        added = [pa.nulls(len(values), field.type) for field in list(self.schema)[count:]]
        return pa.RecordBatch.from_arrays([*columns, *added], schema=self.schema)

    def _layout(self, count: int) -> "_Rows":
        if count not in self._layouts:
            self._layouts[count] = _Rows(list(self.schema)[:count], self.schema, is_outer=True)
        return self._layouts[count]

    def _require_own(self, batch: pa.RecordBatch) -> None:
        is_own = batch.schema.names == self.schema.names and batch.schema.types == self.schema.types
        if is_own and all(
            field.nullable or not column.null_count
            for field, column in zip(self.schema, batch.columns, strict=True)
        ):
            return
        raise ConfigError(
            "rows do not have the schema of their state",
            {"rows": _one_line(batch.schema), "state": _one_line(self.schema)},
            "Give each column the declared type, and no null where the state takes none.",
        )


class _Column(Protocol):
    """One type."""

    width: int | None
    """Bytes of a value; None: it varies."""

    def encode(self, column: pa.Array) -> Any:  # noqa: ANN401 - an array of Arrow or numpy
        """Fixed: numpy records of ``width`` bytes; else large binaries, empty for null."""
        ...

    def decode(self, values: Any, valid: _Flags) -> pa.Array:  # noqa: ANN401 - as encoded
        ...


class _Fixed(_Column):
    """Numbers, times, decimals and bytes of one length, as Arrow holds them."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self.width = kind.bit_width // 8
        self.dtype = np.dtype(f"<u{self.width}" if self.width in (1, 2, 4, 8) else f"V{self.width}")

    def encode(self, column: pa.Array) -> Any:  # noqa: ANN401 - numpy records
        if not len(column):
            return np.zeros(0, self.dtype)
        end = column.offset + len(column)  # the buffer may be longer, by a part of a value
        values = np.frombuffer(column.buffers()[1], self.dtype, end)[column.offset :]
        if column.null_count:
            values = values.copy()
            values[column.is_null().to_numpy(zero_copy_only=False)] = np.zeros(1, self.dtype)[0]
        return values

    def decode(self, values: Any, valid: _Flags) -> pa.Array:  # noqa: ANN401 - numpy records
        data = pa.py_buffer(np.ascontiguousarray(values))
        return pa.Array.from_buffers(self._kind, len(values), [_bitmap(valid), data])


class _Flag(_Column):
    """A bool: one byte."""

    width = 1
    dtype = np.dtype("u1")

    def encode(self, column: pa.Array) -> Any:  # noqa: ANN401 - numpy bytes
        return column.fill_null(False).cast(pa.uint8()).to_numpy()

    def decode(self, values: Any, valid: _Flags) -> pa.Array:  # noqa: ANN401 - numpy bytes
        return pa.array(np.asarray(values, bool), mask=~valid)


class _Null(_Column):
    """A column without values."""

    width = None

    def encode(self, column: pa.Array) -> pa.LargeBinaryArray:
        return pa.repeat(_EMPTY, len(column))

    def decode(self, values: pa.LargeBinaryArray, valid: _Flags) -> pa.Array:
        return pa.nulls(len(values))


class _Text(_Column):
    """Text and bytes."""

    width = None

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind

    def encode(self, column: pa.Array) -> pa.LargeBinaryArray:
        return column.cast(pa.large_binary()).fill_null(_EMPTY)

    def decode(self, values: pa.LargeBinaryArray, valid: _Flags) -> pa.Array:
        return _masked(values, valid).cast(self._kind)


class _Dictionary(_Column):
    """As its values are; the dictionary is made again."""

    width = None

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._values = _Rows([pa.field("value", kind.value_type)], None)

    def encode(self, column: pa.Array) -> pa.LargeBinaryArray:
        return self._values.encode_binaries([column.cast(self._kind.value_type)], len(column))

    def decode(self, values: pa.LargeBinaryArray, valid: _Flags) -> pa.Array:
        return self._values.decode(values)[0].dictionary_encode().cast(self._kind)


class _Struct(_Column):
    """A row in a row."""

    width = None

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._rows = _Rows(list(kind), None)

    def encode(self, column: pa.StructArray) -> pa.LargeBinaryArray:
        rows = self._rows.encode_binaries(column.flatten(), len(column))
        return pc.if_else(column.is_valid(), rows, _EMPTY)

    def decode(self, values: pa.LargeBinaryArray, valid: _Flags) -> pa.Array:
        at = np.flatnonzero(valid)
        columns = self._rows.decode(values.take(pa.array(at)))
        back = _positions(valid)
        return pa.StructArray.from_arrays(
            [column.take(back) for column in columns],
            fields=list(self._kind),
            mask=pa.array(~valid),
        )


class _List(_Column):
    """Items as rows of one column, their number and lengths in front."""

    width = None

    def __init__(self, kind: pa.DataType, item: pa.Field) -> None:
        self._kind = kind
        self._items = _Rows([item], None)

    def encode(self, column: pa.Array) -> pa.LargeBinaryArray:
        if pa.types.is_map(self._kind):
            column = _as_list(column)
        counts = pc.list_value_length(column).fill_null(0).to_numpy().astype(np.int64)
        items = column.flatten()
        rows = self._items.encode_binaries([items], len(items))
        ends, of_items = _from_lengths(counts), _offsets(rows)
        parts = [_large_binaries(counts.astype("<u4"), 4 * np.arange(len(counts) + 1))]
        if self._items.width is None:
            parts.append(_large_binaries(np.diff(of_items).astype("<u4"), 4 * ends))
        parts.append(_large_binaries(_data(rows), of_items[ends]))
        return pc.if_else(column.is_valid(), pc.binary_join_element_wise(*parts, _EMPTY), _EMPTY)

    def decode(self, values: pa.LargeBinaryArray, valid: _Flags) -> pa.Array:
        offsets, data = _offsets(values), _data(values)
        starts, ends = offsets[:-1], offsets[1:]
        heads = np.minimum(starts + 4, ends)
        counts = np.zeros(len(values), np.int64)
        counts[valid] = _numbers(_gathered(data, starts[valid], heads[valid]))
        width = self._items.width
        if width is None:
            firsts = np.minimum(heads + 4 * counts, ends)
            lengths = _numbers(_gathered(data, heads, firsts))
        else:
            firsts, lengths = heads, np.full(int(counts.sum()), width)
        rows = _data(_gathered(data, firsts, ends))
        if len(lengths) != counts.sum() or lengths.sum() != len(rows):
            raise _damaged(self._kind)
        items = self._items.decode(_large_binaries(rows, _from_lengths(lengths)))[0]
        return self._of_items(items, counts, valid)

    def _of_items(self, items: pa.Array, counts: _Longs, valid: _Flags) -> pa.Array:
        mask = None if valid.all() else pa.array(~valid)
        ends = _from_lengths(counts)
        kind = self._kind
        if pa.types.is_fixed_size_list(kind):
            back = np.repeat(valid, kind.list_size)
            return pa.FixedSizeListArray.from_arrays(
                items.take(_positions(back)), type=kind, mask=mask
            )
        if pa.types.is_large_list(kind):
            return pa.LargeListArray.from_arrays(pa.array(ends), items, type=kind, mask=mask)
        offsets = pa.array(ends.astype(np.int32))
        if pa.types.is_map(kind):
            keys, values = items.flatten()
            return pa.MapArray.from_arrays(offsets, keys, values, type=kind, mask=mask)
        return pa.ListArray.from_arrays(offsets, items, type=kind, mask=mask)


class _Rows:
    """The layout of rows with these columns."""

    def __init__(self, fields: list[pa.Field], shown: object, *, is_outer: bool = False) -> None:
        self._shown = shown or fields
        self._columns = [_column(field.type) for field in fields]
        self._count = len(fields)
        self._bitmap = max(1, (len(fields) + 7) // 8)  # also of a struct without fields
        self._varied = [at for at, one in enumerate(self._columns) if one.width is None]
        parts: list[tuple[str, Any]] = [("count", "<u2")] if is_outer else []
        parts += [("nulls", f"V{self._bitmap}")]
        parts += [(f"c{at}", one.dtype) for at, one in enumerate(self._columns) if one.width]
        parts += [(f"c{at}", "<u4") for at in self._varied]
        self._dtype = np.dtype(parts)
        self._is_outer = is_outer
        self.width = None if self._varied else self._dtype.itemsize

    def encode(self, columns: Sequence[pa.Array], rows: int) -> Any:  # noqa: ANN401 - see below
        """Numpy records if all rows have one width, else large binaries."""
        head = np.empty(rows, self._dtype)
        if self._is_outer:
            head["count"] = self._count
        head["nulls"] = self._nulls(columns, rows)
        varied = []
        for at, (codec, column) in enumerate(zip(self._columns, columns, strict=True)):
            values = codec.encode(column)
            if codec.width is None:
                lengths = np.diff(_offsets(values))
                _require_short(lengths)
                varied.append(values)
                head[f"c{at}"] = lengths
            else:
                head[f"c{at}"] = values
        if not varied:
            return head
        offsets = self._dtype.itemsize * np.arange(rows + 1)
        return pc.binary_join_element_wise(_large_binaries(head, offsets), *varied, _EMPTY)

    def encode_binaries(self, columns: Sequence[pa.Array], rows: int) -> pa.LargeBinaryArray:
        """Always large binaries."""
        encoded = self.encode(columns, rows)
        if self.width is None:
            return encoded
        return _large_binaries(encoded, self.width * np.arange(rows + 1))

    def decode(self, values: pa.LargeBinaryArray) -> list[pa.Array]:
        """The columns.

        Raises:
            DamagedCheckpointError: the lengths do not fit.
        """
        offsets, data = _offsets(values), _data(values)
        starts, ends = offsets[:-1], offsets[1:]
        size = self._dtype.itemsize
        if (ends - starts < size).any():
            raise _damaged(self._shown)
        heads = _data(_gathered(data, starts, starts + size)) if self._varied else data
        if len(heads) != size * len(values):
            raise _damaged(self._shown)
        head = np.frombuffer(heads, self._dtype)
        at = starts + size
        pieces: dict[int, pa.LargeBinaryArray] = {}
        for column in self._varied:
            until = at + head[f"c{column}"]
            if (until > ends).any():
                raise _damaged(self._shown)
            pieces[column] = _gathered(data, at, until)
            at = until
        if self._varied and (at != ends).any():
            raise _damaged(self._shown)
        return [
            codec.decode(pieces[i] if i in pieces else head[f"c{i}"], self._valid(head, i))
            for i, codec in enumerate(self._columns)
        ]

    def _nulls(self, columns: Sequence[pa.Array], rows: int) -> Any:  # noqa: ANN401 - records
        if not any(column.null_count for column in columns):
            return np.zeros(rows, f"V{self._bitmap}")
        flags = np.zeros((rows, self._count), bool)
        for at, column in enumerate(columns):
            if column.null_count:
                flags[:, at] = column.is_null().to_numpy(zero_copy_only=False)
        return np.packbits(flags, axis=1, bitorder="little").view(f"V{self._bitmap}").ravel()

    def _valid(self, head: Any, column: int) -> _Flags:  # noqa: ANN401 - records
        where = head.dtype.fields["nulls"][1] + column // 8
        flags = head.view(np.uint8).reshape(len(head), self._dtype.itemsize)[:, where]
        valid: _Flags = np.equal(flags & (1 << column % 8), 0)
        return valid


def _column(kind: pa.DataType) -> Any:  # noqa: ANN401 - a `_Column`; `dtype` if it is fixed
    types = pa.types
    if types.is_boolean(kind):
        return _Flag()
    if types.is_null(kind):
        return _Null()
    if types.is_dictionary(kind):
        return _Dictionary(kind)
    if types.is_struct(kind):
        return _Struct(kind)
    if types.is_map(kind):
        entry = pa.struct([kind.key_field, kind.item_field])
        return _List(kind, pa.field("entry", entry, nullable=False))
    if kind.num_fields:
        return _List(kind, kind.value_field)
    is_bytes = types.is_binary(kind) or types.is_large_binary(kind)
    is_text = types.is_string(kind) or types.is_large_string(kind)
    return _Text(kind) if is_bytes or is_text else _Fixed(kind)


def _as_list(column: pa.MapArray) -> pa.ListArray:
    entry = pa.struct([column.type.key_field, column.type.item_field])
    entries = pa.StructArray.from_arrays([column.keys, column.items], fields=list(entry))
    offsets = pa.array(column.offsets.to_numpy().copy())
    mask = column.is_null() if column.null_count else None
    return pa.ListArray.from_arrays(offsets, entries, mask=mask)


def _joined(rows: Sequence[bytes]) -> pa.LargeBinaryArray:
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return _large_binaries(b"".join(rows), _from_lengths(lengths))


def _large_binaries(data: Any, offsets: _Longs) -> pa.LargeBinaryArray:  # noqa: ANN401 - a buffer
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets, np.int64)), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _offsets(values: pa.LargeBinaryArray) -> _Longs:
    if not len(values):
        return np.zeros(1, np.int64)
    found = np.frombuffer(values.buffers()[1], np.int64)
    return found[values.offset : values.offset + len(values) + 1]


def _data(values: pa.LargeBinaryArray) -> _Bytes:
    """The bytes that `_offsets` point into."""
    buffer = values.buffers()[2]
    return np.frombuffer(buffer, np.uint8) if buffer is not None else np.zeros(0, np.uint8)


def _gathered(data: _Bytes, starts: _Longs, ends: _Longs) -> pa.LargeBinaryArray:
    """The pieces of ``data``, which do not overlap and are in order, without the gaps."""
    bounds = np.empty(2 * len(starts) + 1, np.int64)
    bounds[0:-1:2], bounds[1::2] = starts, ends
    bounds[-1] = ends[-1] if len(ends) else 0
    pieces = _large_binaries(data, bounds)
    return pieces.take(pa.array(np.arange(0, 2 * len(starts), 2)))


def _numbers(values: pa.LargeBinaryArray) -> _Longs:
    data = _data(values)
    if len(data) % 4:
        raise _damaged("list")
    return np.frombuffer(data, "<u4").astype(np.int64)


def _from_lengths(lengths: _Longs) -> _Longs:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _positions(valid: _Flags) -> pa.Array:
    """For each valid row its number among the valid rows; null for a null row."""
    return pa.array(np.cumsum(valid) - 1, pa.int64(), mask=~valid)


def _bitmap(valid: _Flags) -> pa.Buffer | None:
    if valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _masked(values: pa.LargeBinaryArray, valid: _Flags) -> pa.LargeBinaryArray:
    if valid.all():
        return values
    buffers = values.buffers()
    return pa.LargeBinaryArray.from_buffers(
        values.type, len(values), [_bitmap(valid), *buffers[1:]], offset=values.offset
    )


def _require_short(lengths: _Longs) -> None:
    if len(lengths) and lengths.max() > _LARGEST_VALUE:
        raise ConfigError(
            "a column's value is too large for state",
            {"bytes": int(lengths.max()), "most": _LARGEST_VALUE},
            "Keep smaller values, for example in a MapState.",
        )


def _one_line(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _damaged(schema: object) -> DamagedCheckpointError:
    shown = _one_line(schema) if isinstance(schema, pa.Schema) else schema
    return DamagedCheckpointError(
        "a value of keyed state does not fit its schema",
        {"schema": shown},
        "Restore from another checkpoint (sluice checkpoint list), and report this one.",
    )
