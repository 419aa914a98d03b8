"""The table of a broadcast stream: the latest row of each key, from state and back."""

import hashlib
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.contracts.keyed import KeyedRows, OperatorScope
from sluice.runtime.errors import ConfigError, DamagedCheckpointError
from sluice.runtime.keyed.broadcast import LatestRows, broadcast_table
from sluice.runtime.keyed.key_encoding import encode
from sluice.runtime.model.state.broadcast_version import BroadcastVersion
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.model.state.keyed_state import (
    KeyedState,
    SplitState,
    StatePart,
    StateTableInfo,
)

NUMBER = 3
OTHER = 4
ROWS = pa.schema(
    [("table", pa.int32()), ("time", pa.int64()), ("key", pa.binary()), ("value", pa.binary())]
)


class Sections:
    """State of splits as change files would hold it: a section for each epoch."""

    def __init__(self) -> None:
        self.tables: dict[int, dict[bytes, bytes | None]] = {}
        self.sections: dict[int, list[pa.RecordBatch]] = {}

    def table(self, number: int) -> "Sections":
        assert number == NUMBER
        return self

    def put(self, split: int, keys: list[bytes], values: list[bytes | None]) -> None:
        self.tables.setdefault(split, {}).update(zip(keys, values, strict=True))

    def end_epoch(self) -> None:
        for split, changes in self.tables.items():
            columns = [
                pa.array([NUMBER] * len(changes) + [OTHER], pa.int32()),
                pa.nulls(len(changes) + 1, pa.int64()),
                pa.array([*changes, b"other"], pa.binary()),
                pa.array([*changes.values(), b"other"], pa.binary()),
            ]
            batch = pa.RecordBatch.from_arrays(columns, schema=ROWS)
            self.sections.setdefault(split, []).append(batch)
        self.tables.clear()

    def version(self) -> BroadcastVersion:
        files = [
            FileReference(path=f"state/{split}/{at}", length_bytes=1, sha256="0" * 64)
            for split, found in self.sections.items()
            for at in range(len(found))
        ]
        index = {file.path: at for at, file in enumerate(files)}
        state = KeyedState(
            tables=(
                StateTableInfo(number=NUMBER, operator_id="rules", name="latest", kind="broadcast"),
                StateTableInfo(number=OTHER, operator_id="else", name="latest", kind="value"),
            ),
            files=tuple(files),
            splits=tuple(
                SplitState(
                    source_id="source",
                    topic="rules",
                    partition=split,
                    parts=tuple(
                        StatePart(file=index[f"state/{split}/{at}"], offset=0, length=1)
                        for at in range(len(found))
                    ),
                )
                for split, found in self.sections.items()
            ),
        )
        return BroadcastVersion(operator_id="rules", state=state)

    def read(self, file: FileReference, offset: int, length: int) -> Iterator[pa.RecordBatch]:
        _, split, at = file.path.split("/")
        yield self.sections[int(split)][int(at)]

    def rows(self) -> pa.Table:
        return broadcast_table(self.version(), self.read)


class Keeper:
    def __init__(self, *columns: str) -> None:
        self.sections = Sections()
        scope = OperatorScope.__new__(OperatorScope)
        object.__setattr__(scope, "tables", self.sections)
        object.__setattr__(scope, "numbers", {"latest": NUMBER})
        self.columns = columns
        self.operator = LatestRows(columns=columns).open(scope)

    def apply(self, rows: list[Mapping[str, object]], schema: pa.Schema, split: int = 0) -> None:
        batch = pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=schema)
        columns = [batch.column(name) for name in self.columns]
        keys = (
            columns[0]
            if len(columns) == 1
            else pa.StructArray.from_arrays(columns, names=list(self.columns))
        )
        keyed = KeyedRows(
            batch=batch,
            splits=np.full(batch.num_rows, split, np.int16),
            keys=encode(keys),
            key_schema=pa.schema([]),
        )
        assert list(self.operator.apply(keyed)) == []


RULES = pa.schema([("id", pa.string()), ("limit", pa.int64())])


def test_the_table_has_the_latest_row_of_each_key_in_the_order_of_keys() -> None:
    keeper = Keeper("id")
    keeper.apply([{"id": "b", "limit": 1}, {"id": "a", "limit": 2}, {"id": "b", "limit": 3}], RULES)
    keeper.sections.end_epoch()
    keeper.apply([{"id": "c", "limit": 4}, {"id": "a", "limit": 5}], RULES, split=0)
    keeper.sections.end_epoch()
    assert keeper.sections.rows() == pa.table(
        {"id": ["a", "b", "c"], "limit": [5, 3, 4]}, schema=RULES
    )


def test_a_row_of_nulls_removes_its_key_and_a_later_one_brings_it_back() -> None:
    keeper = Keeper("id")
    keeper.apply([{"id": "a", "limit": 1}, {"id": "b", "limit": 2}, {"id": "a"}], RULES)
    keeper.sections.end_epoch()
    assert keeper.sections.rows()["id"].to_pylist() == ["b"]
    keeper.apply([{"id": "b"}, {"id": "a", "limit": 3}], RULES)
    keeper.sections.end_epoch()
    assert keeper.sections.rows().to_pylist() == [{"id": "a", "limit": 3}]


def test_a_null_value_of_kafka_removes_its_key() -> None:
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("offset", pa.int64())])
    keeper = Keeper("key")
    keeper.apply(
        [{"key": b"a", "value": b"1", "offset": 0}, {"key": b"a", "value": None, "offset": 1}],
        schema,
    )
    keeper.sections.end_epoch()
    found = keeper.sections.rows()
    assert found.num_rows == 0
    assert found.schema == schema, "the columns stay known"


def test_a_new_column_is_null_in_older_rows() -> None:
    keeper = Keeper("id")
    keeper.apply([{"id": "a", "limit": 1}, {"id": "b", "limit": 2}], RULES)
    keeper.apply(
        [{"id": "b", "limit": 3, "unit": "EUR"}], RULES.append(pa.field("unit", pa.string()))
    )
    keeper.sections.end_epoch()
    assert keeper.sections.rows().to_pylist() == [
        {"id": "a", "limit": 1, "unit": None},
        {"id": "b", "limit": 3, "unit": "EUR"},
    ]


def test_rows_of_other_types_are_refused_until_they_replace_the_older_ones() -> None:
    keeper = Keeper("id")
    other = pa.schema([("id", pa.string()), ("limit", pa.string())])
    keeper.apply([{"id": "a", "limit": 1}, {"id": "b", "limit": 1}], RULES)
    keeper.apply([{"id": "a", "limit": "x"}], other)
    keeper.sections.end_epoch()
    with pytest.raises(ConfigError, match="different types"):
        keeper.sections.rows()
    keeper.apply([{"id": "b", "limit": "y"}], other)
    keeper.sections.end_epoch()
    assert keeper.sections.rows() == pa.table({"id": ["a", "b"], "limit": ["x", "y"]}, schema=other)


def test_keys_of_several_columns_and_partitions() -> None:
    keeper = Keeper("id", "limit")
    schema = RULES.append(pa.field("value", pa.string()))
    keeper.apply([{"id": "a", "limit": 1, "value": "x"}], schema, split=0)
    keeper.apply([{"id": "a", "limit": 2, "value": "y"}], schema, split=1)
    keeper.sections.end_epoch()
    assert keeper.sections.rows()["value"].to_pylist() == ["x", "y"]


def test_before_the_first_version_there_is_a_table_without_columns() -> None:
    version = BroadcastVersion(operator_id="rules")
    assert version.is_empty
    assert broadcast_table(version, Sections().read) == pa.table({})


def test_rows_without_a_value_are_refused() -> None:
    with pytest.raises(ConfigError, match="no column beside the key"):
        Keeper("id").apply([{"id": "a"}], pa.schema([("id", pa.string())]))


def test_a_row_without_its_schema_is_damage() -> None:
    sections = Sections()
    sections.put(0, [b"\x01a"], [hashlib.sha256(b"other").digest()[:8] + b"row"])
    sections.end_epoch()
    with pytest.raises(DamagedCheckpointError, match="lacks the schema"):
        sections.rows()


_changes = st.lists(
    st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 9), st.booleans()), max_size=30
)


@given(_changes)
def test_the_table_is_that_of_a_dict(changes: list[tuple[str, int | None, bool]]) -> None:
    keeper, expected = Keeper("id"), dict[str, int]()
    batch: list[Mapping[str, object]] = []
    for key, limit, ends in changes:
        batch.append({"id": key, "limit": limit})
        if limit is None:
            expected.pop(key, None)
        else:
            expected[key] = limit
        if ends:
            keeper.apply(batch, RULES)
            keeper.sections.end_epoch()
            batch = []
    keeper.apply(batch, RULES)
    keeper.sections.end_epoch()
    assert {r["id"]: r["limit"] for r in keeper.sections.rows().to_pylist()} == expected
