"""Casts of Arrow columns that keep the values, or fail. Pure."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.runtime.model.arrow_leaves import infinite_count, leaves

__all__ = ["cast_values"]


def cast_values(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values in another type.

    Arrow's own cast turns a number that is too large into infinity, any number into a boolean, a
    timestamp into a date and the text ``007`` into a number. It also adds or removes time zones and
    omits unknown fields of a struct. Here only a float may be rounded, to another float.

    Raises:
        ValueError: a value would be another one; or the type has no such value, as pa.ArrowInvalid.
        pa.ArrowException: Arrow has no such cast.
    """
    if column.type == kind:
        return column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    column = _without_views(column)
    made = column.cast(kind)
    reason = next(_differences(column.type, kind), None)
    if reason is None and infinite_count(made) != infinite_count(column):
        reason = "a number is too large"
    if reason is None and any(map(_is_another, leaves(column), leaves(made))):
        reason = "a value would change"
    if reason is not None:
        raise ValueError(reason)
    return made


def _without_views(column: pa.Array) -> pa.Array:
    """The column with lists for list views: Arrow's own cast empties the last one of them."""
    kind, is_ = column.type, pa.types
    if not _has_views(kind):
        return column
    mask = column.is_null() if column.null_count else None
    if is_.is_struct(kind):
        fields = [_without_views(part) for part in column.flatten()]
        names = [each.name for each in kind]
        return pa.StructArray.from_arrays(fields, names=names, mask=mask)
    if is_.is_map(kind):
        raise ValueError("a map holds list views")
    lengths = np.asarray(pc.list_value_length(column).fill_null(0))
    bounds = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int64())
    items = _without_views(column.flatten())
    return pa.LargeListArray.from_arrays(bounds, items, mask=mask)


def _has_views(kind: pa.DataType) -> bool:
    is_ = pa.types
    if is_.is_list_view(kind) or is_.is_large_list_view(kind):
        return True
    if is_.is_map(kind):
        return _has_views(kind.key_type) or _has_views(kind.item_type)
    return any(_has_views(kind.field(at).type) for at in range(kind.num_fields))


def _is_another(now: pa.Array, then: pa.Array) -> bool:
    """Whether the cast changed numbers or times: then a cast back does not restore them."""
    kinds = (now.type, then.type)
    are_floats = all(map(pa.types.is_floating, kinds))
    is_read = _is_text(now.type) and not pa.types.is_temporal(then.type) and _is_plain(then.type)
    if now.type == then.type or are_floats or not (is_read or all(map(_is_plain, kinds))):
        return False
    try:
        return not then.cast(now.type).equals(now)
    except pa.ArrowException:
        return True


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    is_ = pa.types
    return bool(is_.is_string(kind) or is_.is_large_string(kind) or is_.is_string_view(kind))


def _differences(now: pa.DataType, then: pa.DataType) -> Iterator[str]:
    """Reasons, from the types alone, why Arrow's cast would change values."""
    are = pa.types
    if are.is_timestamp(now) and are.is_timestamp(then) and (now.tz is None) != (then.tz is None):
        yield "one time has a zone and the other has none"
    if are.is_struct(now) and are.is_struct(then):
        mine, theirs = ({each.name: each.type for each in kind} for kind in (now, then))
        if mine.keys() != theirs.keys():
            yield "a struct has other fields"
        for name in mine.keys() & theirs.keys():
            yield from _differences(mine[name], theirs[name])
    elif are.is_map(now) and are.is_map(then):  # the names of its parts say nothing
        yield from _differences(now.key_type, then.key_type)
        yield from _differences(now.item_type, then.item_type)
    elif now.num_fields == then.num_fields == 1:  # lists
        yield from _differences(now.field(0).type, then.field(0).type)
