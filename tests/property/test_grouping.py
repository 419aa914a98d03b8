"""Putting rows together changes neither the order in a partition nor anybody's partition."""

from collections import defaultdict
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.connectors.kafka.records.partitioner import (
    by_partition,
    partition_for_key,
    partitions_for_keys,
)
from sluice.connectors.kafka.records.rows import RecordColumns

KEYS = st.one_of(st.none(), st.binary(max_size=17))


@settings(deadline=None)
@given(keys=st.lists(KEYS), partitions=st.integers(1, 50), start=st.integers(0, 5))
def test_a_column_of_keys_is_partitioned_as_each_key_alone(
    keys: list[bytes | None], partitions: int, start: int
) -> None:
    """Nulls, empty keys, every length, and slices; -1 for null."""
    column = pa.array(keys, pa.large_binary()).slice(min(start, len(keys)))
    expected = [-1 if k is None else partition_for_key(k, partitions) for k in column.to_pylist()]
    assert partitions_for_keys(column, partitions).tolist() == expected


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    count = draw(st.integers(1, 60))
    columns: dict[str, Any] = {"value": pa.array([b"%d" % n for n in range(count)])}
    if draw(st.booleans()):
        columns["key"] = pa.array(draw(lists_of(KEYS, count)), pa.binary())
    if draw(st.booleans()):
        numbers = st.one_of(st.none(), st.integers(0, 4))
        columns["partition"] = pa.array(draw(lists_of(numbers, count)), pa.int32())
    return pa.record_batch(columns)


def lists_of(elements: st.SearchStrategy[Any], count: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(elements, min_size=count, max_size=count)


def by_client(
    batch: pa.RecordBatch, count: int, *, newer_count: int | None = None
) -> dict[int, list[bytes | None]]:
    """Which values each partition gets, in order, from what `produce` is called with.

    The client sends null keys without a partition where it likes: to partition 0 here. It may have
    learned meanwhile that there are more partitions.
    """
    rows, known = by_partition(batch, RecordColumns.of(batch.schema, "t"), count)
    arguments = RecordColumns.of(batch.schema, "t").arguments(rows, known)
    found: dict[int, list[bytes | None]] = defaultdict(list)
    for value, key, partition in zip(
        arguments.values, arguments.keys, arguments.partitions, strict=False
    ):
        chosen = partition
        if partition < 0:
            chosen = 0 if key is None else partition_for_key(key, newer_count or count)
        found[chosen].append(value)
    return found


def as_it_came(batch: pa.RecordBatch, count: int) -> dict[int, list[bytes | None]]:
    found: dict[int, list[bytes | None]] = defaultdict(list)
    for row in batch.to_pylist():
        partition, key = row.get("partition"), row.get("key")
        if partition is None:
            partition = 0 if key is None else partition_for_key(key, count)
        found[partition].append(row["value"])
    return found


@settings(deadline=None)
@given(batch=batches())
def test_every_partition_gets_its_rows_in_their_order(batch: pa.RecordBatch) -> None:
    """Whatever columns decide the partition, and although null keys may land anywhere."""
    assert by_client(batch, 5) == as_it_came(batch, 5)
    assert by_client(batch, 5, newer_count=7) == as_it_came(batch, 5)


def test_a_key_has_one_partition_in_whatever_runs_its_records_come() -> None:
    """The client learns of new partitions by itself: long runs went by its count, not by ours."""
    key = next(k for k in (b"%d" % n for n in range(99)) if partition_for_key(k, 5) == 4)
    long_run = pa.record_batch({"value": [b"v"] * 500, "key": [key] * 500})
    with_nulls = pa.record_batch({"value": [b"v"] * 4, "key": [key, None, key, None]})
    assert set(by_client(long_run, 5, newer_count=7)) == {4}
    assert set(by_client(with_nulls, 5, newer_count=7)) == {4, 0}
