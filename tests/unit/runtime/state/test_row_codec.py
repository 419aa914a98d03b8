"""Rows of state as bytes: their exact form, which schemas read them, and what is refused."""

import pyarrow as pa
import pytest

from sluice.runtime.errors import ConfigError, DamagedCheckpointError
from sluice.runtime.state.codec.row_codec import RowCodec
from sluice.runtime.state.codec.schema_text import (
    expiry_clock,
    require_readable,
    schema_from_json,
    schema_to_json,
)

_NUMBERS = pa.schema([("count", pa.int64()), ("name", pa.string()), ("few", pa.list_(pa.int16()))])


def _batch(schema: pa.Schema, **columns: list[object]) -> pa.RecordBatch:
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def test_the_form_of_rows_never_changes() -> None:
    """Rows of a checkpoint are read by later versions: these are the bytes of version 1."""
    batch = _batch(_NUMBERS, count=[1, None], name=["ä", None], few=[[7, None], []])
    first, second = RowCodec(_NUMBERS).encode(batch)
    assert first.hex() == ("0300000100000000000000020000000a000000c3a402000000000700010000")
    assert second.hex() == "0300030000000000000000000000000400000000000000"


def test_the_form_of_schemas_never_changes() -> None:
    schema = pa.schema(
        [pa.field("n", pa.int64(), nullable=False), ("t", pa.timestamp("ms", "UTC"))]
    )
    text = schema_to_json(schema, expires_by="event")
    assert text == (
        '{"fields":[{"name":"n","type":"int64","nullable":false},'
        '{"name":"t","type":"timestamp[ms, tz=UTC]"}],"expires_by":"event"}'
    )
    assert schema_from_json(text) == schema
    assert expiry_clock(text) == "event"
    assert expiry_clock(schema_to_json(schema)) is None
    assert expiry_clock("") is None


def test_dictionaries_come_back_as_dictionaries() -> None:
    schema = pa.schema([("d", pa.dictionary(pa.int8(), pa.string()))])
    batch = _batch(schema, d=["a", None, "b", "a"])
    codec = RowCodec(schema)
    decoded = codec.decode(codec.encode(batch))
    assert decoded.schema == schema
    assert decoded.to_pylist() == batch.to_pylist()


def test_rows_of_another_schema_are_refused() -> None:
    """Other types, other names, and nulls where none may be."""
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    codec = RowCodec(schema)
    for wrong in (
        pa.record_batch({"n": pa.array([1], pa.int32())}),
        pa.record_batch({"m": pa.array([1], pa.int64())}),
        pa.record_batch({"n": pa.array([None], pa.int64())}),
    ):
        with pytest.raises(ConfigError, match="state=n: int64"):
            codec.encode(wrong)


@pytest.mark.parametrize("kind", [pa.string_view(), pa.union([], "dense")])
def test_types_that_state_cannot_have_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(ConfigError, match=str(kind)[:5]):
        RowCodec(pa.schema([("a", kind)]))


def test_a_schema_without_columns_is_refused() -> None:
    with pytest.raises(ConfigError, match="no columns"):
        RowCodec(pa.schema([]))


@pytest.mark.parametrize("cut", range(20))
def test_damaged_rows_are_refused(cut: int) -> None:
    """Cut anywhere, or with more columns than the schema."""
    codec = RowCodec(_NUMBERS)
    (row,) = codec.encode(_batch(_NUMBERS, count=[1], name=["abc"], few=[[7]]))
    for wrong in (row[: -1 - cut], row + bytes(1 + cut), b"\x09\x00" + row[2:]):
        with pytest.raises(DamagedCheckpointError):
            codec.decode([row, wrong])


class TestChanges:
    _OLD = schema_to_json(pa.schema([("a", pa.int64()), ("b", pa.string())]))

    @pytest.mark.parametrize(
        "fields",
        [
            [("a", pa.int64()), ("b", pa.string())],
            [("a", pa.int64()), ("b", pa.string()), ("c", pa.list_(pa.int8()))],
        ],
    )
    def test_columns_may_be_added_at_the_end(self, fields: list[pa.Field]) -> None:
        require_readable(self._OLD, schema_to_json(pa.schema(fields)), where={})

    @pytest.mark.parametrize(
        "fields",
        [
            [("a", pa.int64())],
            [("b", pa.string()), ("a", pa.int64())],
            [("a", pa.int32()), ("b", pa.string())],
            [("a", pa.int64()), ("c", pa.string())],
            [("a", pa.int64()), ("b", pa.string()), pa.field("c", pa.int8(), nullable=False)],
            [pa.field("a", pa.int64(), nullable=False), ("b", pa.string())],
        ],
    )
    def test_other_changes_are_refused_with_both_schemas(self, fields: list[pa.Field]) -> None:
        with pytest.raises(ConfigError, match=r"state=total .*checkpoint=a: int64, b: string prog"):
            require_readable(self._OLD, schema_to_json(pa.schema(fields)), where={"state": "total"})

    def test_a_time_to_live_may_not_begin_or_end(self) -> None:
        """Stored values have a time, or have none."""
        schema = schema_from_json(self._OLD)
        texts = [self._OLD, *(schema_to_json(schema, expires_by=by) for by in _CLOCKS)]
        for written in texts:
            for declared in texts:
                if written == declared:
                    require_readable(written, declared, where={})
                else:
                    with pytest.raises(ConfigError, match="TTL"):
                        require_readable(written, declared, where={})


_CLOCKS = ("event", "processing")
