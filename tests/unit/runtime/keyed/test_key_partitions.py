"""`key_by(…, partitioned=True)`: a key in two partitions is found."""

import numpy as np
import pyarrow as pa
import pytest

from sluice.runtime.contracts.keyed import KeyedRows
from sluice.runtime.errors import ConfigError
from sluice.runtime.keyed.key_partitions import KeyPartitions

PARTITIONS = {0: "orders-0", 1: "orders-1"}


def rows(*found: tuple[bytes, int]) -> KeyedRows:
    keys = [key for key, _ in found]
    return KeyedRows(
        batch=pa.RecordBatch.from_pydict({"key": keys}),
        splits=np.array([split for _, split in found], np.int16),
        keys=pa.array(keys, pa.large_binary()),
        key_schema=pa.schema([]),
    )


def test_a_key_in_two_partitions_is_refused_with_both() -> None:
    seen = KeyPartitions()
    seen.require_one_each(rows((b"a", 0), (b"b", 1), (b"a", 0)), PARTITIONS, name="by-a")
    with pytest.raises(ConfigError, match="orders-1,orders-0"):
        seen.require_one_each(rows((b"b", 0)), PARTITIONS, name="by-a")


def test_another_number_of_the_same_partition_is_no_other_partition() -> None:
    """A task numbers its splits anew after they have moved."""
    seen = KeyPartitions()
    seen.require_one_each(rows((b"a", 0)), PARTITIONS, name="by-a")
    seen.require_one_each(rows((b"a", 3)), {3: "orders-0"}, name="by-a")


def test_no_rows_are_no_error() -> None:
    KeyPartitions().require_one_each(rows(), {}, name="by-a")
