"""Finds columns: one by its name, and the plain ones inside a nested one. Pure."""

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from sluice.runtime.errors import ConfigError

__all__ = ["column_index", "infinite_count", "leaves", "with_leaf_types"]


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
        # As a list: a slice of a map shares keys and items with the whole array.
        pairs = pa.list_(pa.struct([kind.key_field, kind.item_field]))
        for part in values.cast(pairs).flatten().flatten():
            yield from leaves(part)
    elif _has_items(kind):
        yield from leaves(values.flatten())
    else:
        yield values


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
