"""Finds columns: one by its name, and the plain ones inside a nested one. Pure."""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.runtime.errors import ConfigError

__all__ = [
    "column_index",
    "has_required",
    "infinite_count",
    "leaves",
    "missing_part",
    "with_leaf_types",
]


def column_index(columns: pa.Schema | pa.StructType, name: str) -> int | None:
    """The place of a column, or of a field of a struct; None: there is none.

    Raises:
        ConfigError: several have the name. Arrow's ``get_field_index`` says -1 then, as for none.
    """
    found = columns.get_all_field_indices(name)
    if len(found) > 1:
        raise ConfigError(
            "several columns have one name",
            {"column": name, "columns": ",".join(columns.names)},
            "Rename them, or leave all but one out.",
        )
    return found[0] if found else None


def leaves(values: pa.Array) -> Iterator[pa.Array]:
    """Fields of structs, by name, and items of lists and maps; without those below a null."""
    kind = values.type
    if pa.types.is_struct(kind):
        fields = values.flatten()
        for at in sorted(range(len(fields)), key=lambda number: kind.field(number).name):
            yield from leaves(fields[at])
    elif pa.types.is_map(kind):
        for part in _entries(values):
            yield from leaves(part)
    elif _has_items(kind):
        yield from leaves(values.flatten())
    else:
        yield values


def has_required(field: pa.Field) -> bool:
    """Whether a column, or a part of it at any depth, is declared without nulls."""
    return not field.nullable or any(map(has_required, _parts(field.type)))


def missing_part(values: pa.Array, field: pa.Field) -> str | None:
    """The path of a part that is declared without nulls and has one, although the part around it is
    there; None: there is none. Arrow itself does not look for it.
    """
    name: str = field.name
    if not field.nullable and values.null_count:
        return name
    if not has_required(field.with_nullable(True)):
        return None
    parts = _parts(field.type)
    if pa.types.is_struct(field.type):
        within, nulls = values.flatten(), values.null_count  # a null struct has null fields
    elif pa.types.is_map(field.type):
        within, nulls = _entries(values)[1:], 0
    else:
        within, nulls = [values.flatten()], 0
    for part, inner in zip(parts, within, strict=True):
        is_missing = not part.nullable and inner.null_count > nulls
        found = part.name if is_missing else missing_part(inner, part.with_nullable(True))
        if found is not None:
            return f"{name}.{found}"
    return None


def with_leaf_types(
    kind: pa.DataType, replaced: Callable[[pa.DataType], pa.DataType]
) -> pa.DataType:
    """``kind`` of structs and lists, with other leaves; fields stay as nullable as they are."""
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(with_leaf_types(f.type, replaced)) for f in kind])
    if pa.types.is_list(kind):
        items = kind.value_field
        return pa.list_(items.with_type(with_leaf_types(items.type, replaced)))
    return replaced(kind)


def infinite_count(values: pa.Array) -> int:
    """Number of infinities among the numbers."""
    numbers = (leaf for leaf in leaves(values) if pa.types.is_floating(leaf.type))
    return sum(pc.sum(pc.is_inf(leaf)).as_py() or 0 for leaf in numbers)


def _has_items(kind: pa.DataType) -> bool:
    is_ = pa.types
    return bool(is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind))


def _entries(values: pa.MapArray) -> list[pa.Array]:
    """Keys and items of a map, without those below a null: slices share them with the whole
    array."""
    bounds = np.asarray(values.offsets)
    found = [each.slice(bounds[0], bounds[-1] - bounds[0]) for each in (values.keys, values.items)]
    is_there = np.repeat(np.asarray(values.is_valid()), np.diff(bounds))
    if not is_there.all():
        found = [each.filter(pa.array(is_there)) for each in found]
    return found


def _parts(kind: pa.DataType) -> list[pa.Field]:
    """The fields of a struct, the items of a list or map; a key of a map is never null."""
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.item_field]
    return [kind.value_field] if _has_items(kind) else []
