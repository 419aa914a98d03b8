"""`key_by(…, partitioned=True)`: a key in two partitions is found."""

import numpy as np
import pyarrow as pa
import pytest

from sluice.runtime.contracts.keyed import KeyedRows
from sluice.runtime.errors import ConfigError
from sluice.runtime.keyed.key_places import KeyPlaces

PLACES = {0: "orders-0", 1: "orders-1"}


def rows(*found: tuple[bytes, int]) -> KeyedRows:
    keys = [key for key, _ in found]
    return KeyedRows(
        batch=pa.RecordBatch.from_pydict({"key": keys}),
        splits=np.array([split for _, split in found], np.int16),
        keys=pa.array(keys, pa.large_binary()),
        key_schema=pa.schema([]),
    )


def test_a_key_in_two_partitions_is_refused_with_both() -> None:
    places = KeyPlaces()
    places.require_one_place(rows((b"a", 0), (b"b", 1), (b"a", 0)), PLACES, name="by-a")
    with pytest.raises(ConfigError, match="orders-1,orders-0"):
        places.require_one_place(rows((b"b", 0)), PLACES, name="by-a")


def test_another_number_of_the_same_partition_is_no_other_place() -> None:
    """A task numbers its splits anew after they have moved."""
    places = KeyPlaces()
    places.require_one_place(rows((b"a", 0)), PLACES, name="by-a")
    places.require_one_place(rows((b"a", 3)), {3: "orders-0"}, name="by-a")


def test_no_rows_are_no_error() -> None:
    KeyPlaces().require_one_place(rows(), {}, name="by-a")
