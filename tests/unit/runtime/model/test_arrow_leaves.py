"""The plain columns inside nested ones: all of them, and nothing below a null or beside a slice."""

import pyarrow as pa

from sluice.runtime.model.arrow_leaves import infinite_count, leaves, with_leaf_types

INF = float("inf")
NESTED = pa.struct(
    [
        ("map", pa.map_(pa.string(), pa.float32())),
        ("list", pa.list_(pa.struct([("x", pa.float64()), ("s", pa.string())]))),
        ("pair", pa.list_(pa.float32(), 2)),
        ("large", pa.large_list(pa.float64())),
    ]
)


def test_infinities_are_counted_at_every_depth() -> None:
    row = {
        "map": [("a", INF), ("b", None)],
        "list": [{"x": INF, "s": "inf"}, None],
        "pair": [INF, 1.0],
        "large": [-INF],
    }
    column = pa.array([row, None, dict.fromkeys(row)], NESTED)
    assert [str(leaf.type) for leaf in leaves(column)] == (
        ["double", "string", "double", "string", "float", "float"]
    )
    assert infinite_count(column) == 4
    assert infinite_count(column[1:]) == infinite_count(column[:0]) == 0


def test_a_slice_has_its_own_leaves_alone() -> None:
    column = pa.array([[("a", INF)], [("b", 1.0)], None], pa.map_(pa.string(), pa.float32()))
    assert [infinite_count(column.slice(at, 1)) for at in range(3)] == [1, 0, 0]


def test_other_leaves_leave_names_and_nullability_as_they_are() -> None:
    fields = [pa.field("a", pa.list_(pa.float32()), nullable=False), pa.field("b", pa.string())]
    wide = with_leaf_types(
        pa.struct(fields), lambda kind: pa.float64() if pa.types.is_float32(kind) else kind
    )
    assert wide == pa.struct([fields[0].with_type(pa.list_(pa.float64())), fields[1]])
