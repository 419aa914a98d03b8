"""Keys as bytes: equal keys have equal bytes, and the bytes of numbers and times sort as values.

A key of one column is a tag (0: null, 1: a value) and the value: text and bytes as they are; a
number, time or bool as 8 bytes, a decimal as 16, big-endian with the sign bit flipped, so that
smaller values come first. A negative float has all its bits flipped instead. A key of
several columns is these in order, each with its length (4 bytes, big-endian) in front.
The rule is frozen by test vectors: state is found by these bytes.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.runtime.errors import ConfigError, DamagedCheckpointError

__all__ = ["binaries", "bytes_and_offsets", "decode", "encode", "key_schema"]

_SIGN = np.uint64(1 << 63)
_Bytes = npt.NDArray[np.uint8]
_Longs = npt.NDArray[np.int64]


def encode(keys: pa.Array) -> pa.LargeBinaryArray:
    """The encoded key of each row; never null.

    Args:
        keys: of n rows; a struct is a key of its columns.
    Raises:
        ConfigError: a column has a type that is not allowed for keys.
    """
    if not pa.types.is_struct(keys.type):
        return _encoded(keys)
    if not keys.type.num_fields:
        raise _not_a_key("key", keys.type)
    if keys.type.num_fields == 1:
        return _encoded(keys.flatten()[0])
    data: list[pa.LargeBinaryArray] = []
    for column in keys.flatten():
        one = _encoded(column)
        lengths = np.diff(bytes_and_offsets(one)[1])
        data += [_fixed(lengths.astype(">u4").view(np.uint8).reshape(-1, 4)), one]
    return _joined(data)


def decode(keys: pa.LargeBinaryArray, schema: pa.Schema) -> list[pa.Array]:
    """The columns of encoded keys.

    Args:
        schema: of the columns, from `key_schema`.
    Raises:
        DamagedCheckpointError: a key is not one of this schema.
    """
    data, offsets = bytes_and_offsets(keys)
    starts, ends = offsets[:-1], offsets[1:]
    if len(schema) == 1:
        return [_decoded(data, starts, ends, schema.field(0).type)]
    columns = []
    for field in schema:
        if (starts + 4 > ends).any():
            raise _damaged(schema)
        lengths = data[starts[:, None] + np.arange(4)].view(">u4").ravel().astype(np.int64)
        stops = starts + 4 + lengths
        if (stops > ends).any():
            raise _damaged(schema)
        columns.append(_decoded(data, starts + 4, stops, field.type))
        starts = stops
    if (starts != ends).any():
        raise _damaged(schema)
    return columns


def key_schema(keys: pa.Array, names: Sequence[str]) -> pa.Schema:
    """Names and types of the key's columns: as `decode` needs them.

    Args:
        names: that `key_by` has; none: ``key``. A struct's fields have their own names.
    """
    if pa.types.is_struct(keys.type):
        return pa.schema([pa.field(field.name, _plain(field.type)) for field in keys.type])
    return pa.schema([pa.field(names[0] if names else "key", _plain(keys.type))])


def bytes_and_offsets(values: pa.LargeBinaryArray) -> tuple[_Bytes, _Longs]:
    """All bytes, and where each value begins in them; one more offset ends the last value."""
    _, offsets, data = values.buffers()
    if offsets is None or not len(values):
        return np.zeros(0, np.uint8), np.zeros(len(values) + 1, np.int64)
    found = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    return np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8), found


def binaries(data: _Bytes, offsets: _Longs) -> pa.LargeBinaryArray:
    """Values of these bytes, without nulls."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _encoded(column: pa.Array) -> pa.LargeBinaryArray:
    kind = _plain(column.type)
    if pa.types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    column = column.cast(kind)
    valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
    if _is_bytes(kind):
        return _tagged(column.cast(pa.large_binary()), valid)
    image = _image(column, kind)
    tagged = np.empty((len(column), image.shape[1] + 1), np.uint8)
    tagged[:, 0], tagged[:, 1:] = 1, image
    if valid is None:
        return _fixed(tagged)
    tagged[~valid, 0] = 0
    keep = np.ones(tagged.shape, bool)
    keep[~valid, 1:] = False
    return binaries(tagged[keep], _ends(np.where(valid, tagged.shape[1], 1)))


def _tagged(
    values: pa.LargeBinaryArray, valid: npt.NDArray[np.bool_] | None
) -> pa.LargeBinaryArray:
    data, offsets = bytes_and_offsets(values)
    lengths = np.diff(offsets)
    if valid is not None and lengths[~valid].any():  # a null may have bytes
        values = values.fill_null(b"")
        data, offsets = bytes_and_offsets(values)
        lengths = np.diff(offsets)
    places = _ends(lengths + 1)
    made = np.empty(places[-1], np.uint8)
    is_data = np.ones(len(made), bool)
    is_data[places[:-1]] = False
    made[is_data] = data[offsets[0] : offsets[-1]]
    made[places[:-1]] = 1 if valid is None else valid
    return binaries(made, places)


def _image(column: pa.Array, kind: pa.DataType) -> _Bytes:
    """The bytes of each value, of shape (rows, 8 or 16); of a null anything."""
    if pa.types.is_decimal(kind):
        data = np.frombuffer(column.buffers()[1], np.uint8)
        little = data[16 * column.offset : 16 * (column.offset + len(column))].reshape(-1, 16)
        big = little[:, ::-1].copy()
        big[:, 0] ^= 0x80
        return big
    if column.null_count:
        column = column.fill_null(pa.scalar(0).cast(_integer(kind)).cast(kind))
    if pa.types.is_floating(kind):
        numbers = column.cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0  # no -0.0
        bits = np.where(np.isnan(numbers), np.nan, numbers).view(np.uint64)
        bits = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    elif pa.types.is_uint64(kind):
        bits = column.to_numpy()
    else:
        bits = column.cast(_integer(kind)).cast(pa.int64()).to_numpy().view(np.uint64) ^ _SIGN
    return bits.astype(">u8").view(np.uint8).reshape(-1, 8)


def _decoded(data: _Bytes, starts: _Longs, ends: _Longs, kind: pa.DataType) -> pa.Array:
    if (ends <= starts).any():
        raise _damaged(kind)
    valid = data[starts] == 1
    if _is_bytes(kind):
        pieces = _gathered(data, starts + 1, ends)
        return _with_nulls(pieces, valid).cast(kind)
    width = 16 if pa.types.is_decimal(kind) else 8
    if (ends - starts != np.where(valid, width + 1, 1)).any():
        raise _damaged(kind)
    places = (starts + 1)[valid]
    image = np.zeros((len(starts), width), np.uint8)
    image[:, 0] = 0x80  # zero, where it is null
    image[valid] = data[places[:, None] + np.arange(width)]
    return _with_nulls(_values(image, kind), valid)


def _values(image: _Bytes, kind: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(kind):
        image[:, 0] ^= 0x80
        buffer = pa.py_buffer(np.ascontiguousarray(image[:, ::-1]))
        return pa.Array.from_buffers(kind, len(image), [None, buffer])
    bits = image.view(">u8").ravel().astype(np.uint64)
    if pa.types.is_floating(kind):
        return pa.array(np.where(bits & _SIGN, bits ^ _SIGN, ~bits).view(np.float64)).cast(kind)
    if pa.types.is_uint64(kind):
        return pa.array(bits)
    return pa.array((bits ^ _SIGN).view(np.int64)).cast(_integer(kind)).cast(kind)


def _with_nulls(values: pa.Array, valid: npt.NDArray[np.bool_]) -> pa.Array:
    if valid.all():
        return values
    return values.take(pa.array(np.arange(len(values)), pa.int64(), mask=~valid))


def _joined(columns: Sequence[pa.LargeBinaryArray]) -> pa.LargeBinaryArray:
    """The columns' bytes of each row, one after the other."""
    lengths = [np.diff(bytes_and_offsets(column)[1]) for column in columns]
    offsets = _ends(np.sum(lengths, axis=0))
    made = np.empty(offsets[-1], np.uint8)
    places = offsets[:-1]
    for column, long in zip(columns, lengths, strict=True):
        data, of_column = bytes_and_offsets(column)
        piece = data[of_column[0] : of_column[-1]]
        made[np.repeat(places - _ends(long)[:-1], long) + np.arange(len(piece))] = piece
        places = places + long
    return binaries(made, offsets)


def _gathered(data: _Bytes, starts: _Longs, ends: _Longs) -> pa.LargeBinaryArray:
    lengths = ends - starts
    offsets = _ends(lengths)
    return binaries(
        data[np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])], offsets
    )


def _fixed(rows: _Bytes) -> pa.LargeBinaryArray:
    count, width = rows.shape
    return binaries(rows.ravel(), width * np.arange(count + 1))


def _ends(lengths: npt.NDArray[np.integer]) -> _Longs:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type that a key of this type is decoded to.

    Raises:
        ConfigError: the type is not allowed for keys.
    """
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _plain(kind.value_type)
    is_ordered = types.is_temporal(kind) and not types.is_interval(kind)
    is_number = types.is_integer(kind) or types.is_boolean(kind) or types.is_floating(kind)
    is_decimal = types.is_decimal128(kind)
    if is_number or is_decimal or (is_ordered and kind.bit_width <= 64) or _is_bytes(kind):
        return kind
    raise _not_a_key("key", kind)


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    is_text = types.is_string(kind) or types.is_large_string(kind)
    is_bytes = types.is_binary(kind) or types.is_large_binary(kind)
    return bool(is_text or is_bytes or types.is_fixed_size_binary(kind))


def _integer(kind: pa.DataType) -> pa.DataType:
    """The integer type that holds the values of this type."""
    if pa.types.is_temporal(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    return pa.uint8() if pa.types.is_boolean(kind) else kind


def _not_a_key(name: str, kind: pa.DataType) -> ConfigError:
    return ConfigError(
        "a column has a type that is not allowed for keys",
        {"column": name, "type": kind},
        "Use text, bytes, numbers, times, bools or decimals of 38 digits; several as a struct.",
    )


def _damaged(schema: object) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        "a key of keyed state does not fit its schema",
        {"schema": str(schema).replace("\n", ", ")},
        "Restore from another checkpoint (sluice checkpoint list), and report this one.",
    )
