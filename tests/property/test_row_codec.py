"""The row codec on random schemas and rows: exact, equal for equal rows, and open for new columns."""

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.runtime.state.codec.row_codec import RowCodec, schema_from_json, schema_to_json
from tests.kit.effort import examples

_PLAIN: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(1 << 7), (1 << 7) - 1),
    pa.uint16(): st.integers(0, (1 << 16) - 1),
    pa.int32(): st.integers(-(1 << 31), (1 << 31) - 1),
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.uint64(): st.integers(0, (1 << 64) - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.date32(): st.dates(),
    pa.time64("us"): st.times(),
    pa.timestamp("ns", "Europe/Berlin"): st.integers(-(1 << 62), 1 << 62),
    pa.timestamp("s"): st.integers(-(1 << 30), 1 << 30),
    pa.duration("ms"): st.integers(-(1 << 56), 1 << 56),  # as far as timedelta goes
    pa.decimal128(12, 3): st.decimals(-(10**8), 10**8, places=3),
    pa.decimal256(60, 0): st.decimals(-(10**50), 10**50, places=0),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.binary(): st.binary(max_size=9),
    pa.large_binary(): st.binary(max_size=9),
    pa.string(): st.text(max_size=9),
    pa.large_string(): st.text(max_size=9),
    pa.null(): st.none(),
}

_Typed = tuple[pa.DataType, st.SearchStrategy[Any]]


def _nested(children: st.SearchStrategy[_Typed]) -> st.SearchStrategy[_Typed]:
    """Lists, structs and maps of these types, with nulls."""

    def lists(child: _Typed) -> st.SearchStrategy[_Typed]:
        values = st.lists(child[1] | st.none(), max_size=3)
        pairs = st.lists(child[1] | st.none(), min_size=2, max_size=2)
        return st.sampled_from(
            [
                (pa.list_(child[0]), values),
                (pa.large_list(child[0]), values),
                (pa.list_(child[0], 2), pairs),
                (
                    pa.map_(pa.string(), child[0]),
                    st.dictionaries(st.text(max_size=2), child[1] | st.none(), max_size=3).map(
                        lambda found: list(found.items())
                    ),
                ),
            ]
        )

    def structs(fields: list[_Typed]) -> _Typed:
        named = {f"f{at}": child for at, child in enumerate(fields)}
        kind = pa.struct([(name, child[0]) for name, child in named.items()])
        parts = {name: child[1] | st.none() for name, child in named.items()}
        return kind, st.fixed_dictionaries(parts)

    return children.flatmap(lists) | st.lists(children, max_size=2).map(structs)


_TYPES = st.recursive(st.sampled_from(list(_PLAIN.items())), _nested, max_leaves=4)


@st.composite
def _batches(draw: st.DrawFn) -> pa.RecordBatch:
    columns = draw(st.lists(_TYPES, min_size=1, max_size=4))
    count = draw(st.integers(0, 5))
    values = [
        draw(st.lists(strategy | st.none(), min_size=count, max_size=count))
        for _, strategy in columns
    ]
    schema = pa.schema([(f"c{at}", kind) for at, (kind, _) in enumerate(columns)])
    arrays = [pa.array(v, kind) for v, (kind, _) in zip(values, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@settings(max_examples=examples(200), deadline=None)
@given(batch=_batches(), start=st.integers(0, 3), added=_TYPES)
def test_rows_come_back_as_they_were(batch: pa.RecordBatch, start: int, added: _Typed) -> None:
    """Also those of a slice, one by one, and under a schema with one more column."""
    assert schema_from_json(schema_to_json(batch.schema)).equals(batch.schema)
    codec = RowCodec(batch.schema)
    part = batch.slice(start)
    encoded = codec.encode(part)
    decoded = codec.decode(encoded)
    decoded.validate(full=True)
    assert decoded.to_pylist() == part.to_pylist()
    assert codec.encode(decoded) == encoded
    assert [codec.encode(part.slice(at, 1))[0] for at in range(part.num_rows)] == encoded
    wider = RowCodec(batch.schema.append(pa.field("added", added[0])))
    assert wider.decode(encoded).to_pylist() == [row | {"added": None} for row in part.to_pylist()]
    mixed = [*wider.encode(wider.decode(encoded)), *encoded]
    assert wider.decode(mixed[::-1]).to_pylist()[::-1] == wider.decode(encoded).to_pylist() * 2
