"""Schemas of Spark's state as `sluice checkpoint inspect` shows them."""

import json

import pytest
from pyspark.sql import types as T
from pyspark.sql.types import StructType

from sluice.runtime.checkpoint.inspect.schema_text import columns_of, schemas_of

_WINDOW = StructType().add("start", T.TimestampType()).add("end", T.TimestampNTZType())


@pytest.mark.parametrize(
    ("struct", "text"),
    [
        (
            StructType().add("k", T.IntegerType()).add("n", T.LongType(), nullable=False),
            "k INT, n BIGINT NOT NULL",
        ),
        (
            StructType().add("window", _WINDOW).add("price", T.DecimalType(10, 2)),
            "window STRUCT<start: TIMESTAMP, end: TIMESTAMP_NTZ>, price DECIMAL(10,2)",
        ),
        (
            StructType()
            .add("tags", T.ArrayType(T.StringType()))
            .add("counts", T.MapType(T.ShortType(), T.ArrayType(T.ByteType()))),
            "tags ARRAY<STRING>, counts MAP<SMALLINT, ARRAY<TINYINT>>",
        ),
        (
            StructType().add("a b", T.DoubleType()).add("x`y", T.DateType()),
            "`a b` DOUBLE, `x``y` DATE",
        ),
        (StructType(), ""),
    ],
)
def test_a_struct_is_shown_as_columns_in_sql(struct: StructType, text: str) -> None:
    assert columns_of(json.loads(struct.json())) == text


def test_key_and_value_of_each_variable_are_shown() -> None:
    key, value = ({"fields": [{"name": n, "type": "long", "nullable": True}]} for n in "kn")
    stored = [{"operator": 1, "store": "default", "schemas": [key, value, key, key]}]
    known = {"operator": 1, "store": "default", "key": "k BIGINT"}
    assert schemas_of(json.dumps(stored)) == [
        {**known, "value": "n BIGINT"},
        {**known, "value": "k BIGINT"},
    ]
    assert schemas_of("") == []
