"""The plain columns inside a nested one, for rules that hold at every depth. Pure."""

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["infinite_count", "leaves", "with_leaf_types"]


def leaves(values: pa.Array) -> Iterator[pa.Array]:
    """Fields of structs, by name, and items of lists and maps; without those below a null."""
    kind = values.type
    if pa.types.is_struct(kind):
        fields = values.flatten()
        for at in sorted(range(len(fields)), key=lambda number: kind.field(number).name):
            yield from leaves(fields[at])
    elif pa.types.is_map(kind):
        # A copy: a slice of a map shares keys and items with the whole array.
        there = values.take(pc.indices_nonzero(values.is_valid()))
        yield from leaves(there.keys)
        yield from leaves(there.items)
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
