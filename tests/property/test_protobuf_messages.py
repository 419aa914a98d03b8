"""Any Protobuf message that is read as Arrow values and written again is the same message."""

from typing import Any

import pyarrow as pa
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from sluice.connectors.kafka.records.registry.protobuf.protobuf_reading import MessageReader
from sluice.connectors.kafka.records.registry.protobuf.protobuf_schema import ProtobufSchema
from sluice.connectors.kafka.records.registry.protobuf.protobuf_writing import MessageWriter
from sluice.connectors.kafka.records.registry.registered_schema import RegisteredSchema
from tests.unit.connectors.kafka.records.registry.protobuf.test_protobuf_values import EVERY_TYPE

_SCHEMA = RegisteredSchema(text=EVERY_TYPE, schema_type="PROTOBUF")
_MESSAGE = ProtobufSchema.of(_SCHEMA).message(None)
_CLASS: Any = GetMessageClass(_MESSAGE)


def _integers(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    least = -(2 ** (bits - 1)) if signed else 0
    return st.integers(least, least + 2**bits - 1)


_SINGLE = st.floats(width=32, allow_nan=False)
_DOUBLE = st.floats(allow_nan=False)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
_COLOR = st.one_of(st.sampled_from([0, 1, -7]), _integers(32))
_PART = st.fixed_dictionaries({"number": _integers(32)}, optional={"note": _TEXT})
_MICROS = st.integers(0, 999_999).map(lambda micros: micros * 1000)
_AT = st.builds(
    lambda seconds, nanos: {"seconds": seconds, "nanos": nanos},
    st.integers(-62_135_596_800, 253_402_300_799),
    _MICROS,
)
_TOOK = st.builds(
    lambda seconds, nanos, sign: {"seconds": sign * seconds, "nanos": sign * nanos},
    st.integers(0, 315_576_000_000),
    _MICROS,
    st.sampled_from([1, -1]),
)
_WHOLE = st.integers(-(2**53), 2**53).map(float)
_JSON = st.recursive(
    st.one_of(
        st.just({"null_value": 0}),
        st.builds(lambda v: {"number_value": v}, _DOUBLE.filter(lambda v: abs(v) < 1e300) | _WHOLE),
        st.builds(lambda v: {"string_value": v}, _TEXT),
        st.builds(lambda v: {"bool_value": v}, st.booleans()),
    ),
    lambda inner: st.one_of(
        st.builds(lambda v: {"list_value": {"values": v}}, st.lists(inner, max_size=2)),
        st.builds(
            lambda v: {"struct_value": {"fields": v}}, st.dictionaries(_TEXT, inner, max_size=2)
        ),
    ),
    max_leaves=4,
)
_CHOICE: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"text": _TEXT}),
    st.fixed_dictionaries({"other": _PART}),
    st.fixed_dictionaries({"number": _integers(64)}),
)
_FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "a_double": _DOUBLE,
        "a_float": _SINGLE,
        "an_int32": _integers(32),
        "an_int64": _integers(64),
        "a_uint32": _integers(32, signed=False),
        "a_uint64": _integers(64, signed=False),
        "a_sint32": _integers(32),
        "a_sint64": _integers(64),
        "a_fixed32": _integers(32, signed=False),
        "a_fixed64": _integers(64, signed=False),
        "a_sfixed32": _integers(32),
        "a_sfixed64": _integers(64),
        "a_bool": st.booleans(),
        "a_string": _TEXT,
        "some_bytes": st.binary(max_size=4),
        "color": _COLOR,
        "part": _PART,
        "nothing": st.just({}),
        "numbers": st.lists(_integers(32), max_size=3),
        "parts": st.lists(_PART, max_size=3),
        "counts": st.dictionaries(_TEXT, _integers(64), max_size=3),
        "colors": st.dictionaries(st.booleans(), _COLOR, max_size=2),
        "perhaps": _integers(32),
        "at": _AT,
        "took": _TOOK,
        "times": st.lists(_AT, max_size=2),
        "json": _JSON,
        "list": st.builds(lambda v: {"values": v}, st.lists(_JSON, max_size=2)),
        "object": st.builds(lambda v: {"fields": v}, st.dictionaries(_TEXT, _JSON, max_size=2)),
        "wrapped": st.builds(lambda v: {"value": v}, _integers(64)),
        "wrapped_uint64": st.builds(lambda v: {"value": v}, _integers(64, signed=False)),
        "wrapped_text": st.builds(lambda v: {"value": v}, _TEXT),
        "wrapped_bytes": st.builds(lambda v: {"value": v}, st.binary(max_size=3)),
    },
)


@given(st.lists(st.tuples(_FIELDS, _CHOICE, st.booleans()), min_size=1, max_size=4))
def test_each_message_is_the_same_after_a_round_trip(rows: list[Any]) -> None:
    """Compared as bytes: equal messages could differ in the sign of a zero."""
    records = [
        None if is_null else _CLASS(**fields, **choice).SerializeToString(deterministic=True)
        for fields, choice, is_null in rows
    ]
    read = MessageReader(message=_MESSAGE).read([each for each in records if each is not None])
    read.validate(full=True)
    places = iter(range(len(read)))
    column = read.take(
        pa.array([None if each is None else next(places) for each in records], pa.int32())
    )
    assert MessageWriter(message=_MESSAGE).write(column) == records
