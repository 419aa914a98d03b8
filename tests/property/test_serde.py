"""What the JSON serializer writes, the deserializer reads as it was."""

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.connectors.kafka.records.serde.json_records import JsonDeserializer
from sluice.connectors.kafka.records.serde.record_json import JsonSerializer
from sluice.runtime.errors import ConfigError

ROW = pa.struct(
    [
        pa.field("id", pa.int64()),
        pa.field("share", pa.float64()),
        pa.field("note", pa.string()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("price", pa.decimal128(12, 3)),
        pa.field("tags", pa.list_(pa.struct([pa.field("ok", pa.bool_())]))),
    ]
)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_MOMENTS = st.datetimes(
    datetime.datetime(1700, 1, 1),  # noqa: DTZ001 - hypothesis wants them without
    datetime.datetime(2200, 1, 1),  # noqa: DTZ001
    timezones=st.just(datetime.UTC),
)
_ROWS = st.fixed_dictionaries(
    {
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "share": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "note": st.none() | _TEXT,
        "at": st.none() | _MOMENTS,
        "price": st.none() | st.decimals(-(10**8), 10**8, places=3),
        "tags": st.none() | st.lists(st.fixed_dictionaries({"ok": st.none() | st.booleans()})),
    }
)


@given(st.lists(st.none() | _ROWS, max_size=5))
def test_json_comes_back_as_it_was(rows: list[dict[str, Any] | None]) -> None:
    """Tombstones, too."""
    batch = pa.record_batch({"key": [None] * len(rows), "value": pa.array(rows, ROW)})
    texts = JsonSerializer()(batch).column("value")
    assert texts.type == pa.string()
    assert JsonDeserializer(schema=ROW).deserialize(texts.cast(pa.binary())).to_pylist() == rows


@pytest.mark.parametrize("nested", [False, True])
def test_a_time_with_nanoseconds_is_an_error_and_is_not_cut_off(nested: bool) -> None:
    """Of microseconds, whatever their type, nothing is lost."""

    def texts(*nanoseconds: int | None) -> list[str | None]:
        times = pa.array(nanoseconds, pa.time64("ns"))
        column = pa.StructArray.from_arrays([times], ["at"]) if nested else times
        return JsonSerializer()(pa.record_batch({"value": column})).column("value").to_pylist()

    (found,) = texts(1_000)
    assert found == ('{"at":"00:00:00.000001"}' if nested else '"00:00:00.000001"')
    assert len(texts(None, 86_399_999_999_000, None)) == 3
    assert texts(None) == ['{"at":null}' if nested else None]
    assert texts() == []
    with pytest.raises(ValueError, match="nanoseconds"):
        texts(1_000, None, 1_001)


@pytest.mark.parametrize("year", [1, 1890, 1970])
@pytest.mark.parametrize("zone", ["Europe/Paris", "Africa/Monrovia"])
def test_a_moment_in_a_zone_with_seconds_comes_back_as_it_was(zone: str, year: int) -> None:
    """ISO 8601 has no seconds in an offset; with others the zone's offset stays."""
    kind = pa.timestamp("us", tz=zone)
    moment = datetime.datetime(year, 6, 1, 12, tzinfo=datetime.UTC)
    texts = JsonSerializer()(pa.record_batch({"value": pa.array([moment], kind)})).column("value")
    (found,) = JsonDeserializer(schema=kind).deserialize(texts.cast(pa.binary())).to_pylist()
    assert found == moment


@pytest.mark.parametrize("value", [b"x", float("nan"), [float("inf")]], ids=repr)
def test_what_has_no_json_fails_for_its_record(value: object) -> None:
    """And goes by the policy of the function."""
    with pytest.raises((TypeError, ValueError)):
        JsonSerializer()(pa.record_batch({"value": pa.array([value])}))
    with pytest.raises(ConfigError, match="columns=value"):
        JsonSerializer(column="key")(pa.record_batch({"value": pa.array([Decimal(1)])}))
