"""The error for a missing column says which column to write, or how to make one."""

import pyarrow as pa
import pytest

from sluice.runtime.contracts.keyed import KeyBy
from sluice.runtime.errors import ConfigError
from sluice.runtime.keyed.missing_columns import require_columns
from sluice.runtime.keyed.row_keys import RowKeys

ROWS = pa.RecordBatch.from_pylist(
    [{"key": "a", "event_time": 1, "value": {"amount": 2.0}}],
    pa.schema(
        [
            ("key", pa.string()),
            ("event_time", pa.int64()),
            ("value", pa.struct([("amount", pa.float64())])),
        ]
    ),
)


@pytest.mark.parametrize(
    ("missing", "remedy"),
    [
        ("event_tiem", "Write 'event_time', or return 'event_tiem' from a map_batches"),
        ("amount", "Return amount, a field of value, as a column of its own"),
        ("value.amount", "Return amount, a field of value, as a column of its own"),
        ("zzz", "Name one of these columns, or return it"),
    ],
)
def test_the_remedy_fits_the_name(missing: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match="names a column that its rows do not have") as caught:
        require_columns(ROWS, ["key", missing])
    assert caught.value.args[1] == {"missing": missing, "columns": "key, event_time, value"}
    assert caught.value.args[2].startswith(remedy)


def test_the_columns_are_in_the_order_of_their_names() -> None:
    assert require_columns(ROWS, ["event_time", "key"]).schema.names == ["event_time", "key"]


def test_key_by_has_the_same_error() -> None:
    keys = RowKeys(key_by=KeyBy(columns=("kye",)), name="orders-key_by")
    with pytest.raises(ConfigError, match=r"key_by names a column .*Write 'key'"):
        keys(ROWS)


@pytest.mark.parametrize("returned", [["a"], pa.array(["a", "b"]), None])
def test_a_function_of_key_by_returns_one_key_for_each_row(returned: object) -> None:
    keys = RowKeys(key_by=KeyBy(function=lambda batch: returned), name="orders-key_by")
    with pytest.raises(ConfigError, match=r"one key for each row.*Return a pyarrow\.Array"):
        keys(ROWS)


def test_two_columns_of_a_name_are_an_error_with_the_name() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array([1])] * 2, names=["key", "key"])
    with pytest.raises(ConfigError, match=r"several columns have one name .*column=key "):
        require_columns(rows, ["key"])
