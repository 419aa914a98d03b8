"""Key groups: formulas frozen by vectors, and what they promise for all keys and sizes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.state.key_groups import (
    default_max_parallelism,
    default_partitions,
    group_range,
    key_group,
    key_groups,
    murmur2,
    murmur2_of_column,
    partition_of_groups,
)

VECTORS: dict[str, Any] = json.loads(Path("tests/data/key-groups.json").read_text())


def test_the_formulas_are_frozen() -> None:
    """Another number would send a key away from its state."""
    for text, hashed in VECTORS["hashes"].items():
        assert murmur2(bytes.fromhex(text)) == hashed
    for text, groups in VECTORS["groups"].items():
        for most, group in groups.items():
            assert key_group(bytes.fromhex(text), int(most)) == group
    for name, ranges in VECTORS["ranges"].items():
        partitions, most = map(int, name.split("/"))
        found = [
            group_range(p, partitions=partitions, max_parallelism=most) for p in range(partitions)
        ]
        assert [[each.start, each.stop] for each in found] == ranges
    for parallelism, most in VECTORS["default_max_parallelism"].items():
        assert default_max_parallelism(int(parallelism)) == most
    for regions, partitions in VECTORS["default_partitions"].items():
        assert default_partitions(int(regions)) == partitions


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(1, 32_768), st.integers(0, 3))
def test_a_column_has_the_groups_of_its_keys(keys: list[bytes], most: int, start: int) -> None:
    """Also a slice of a column."""
    column = pa.array(keys, pa.large_binary()).slice(start)
    assert murmur2_of_column(column).tolist() == [murmur2(key) for key in keys[start:]]
    assert key_groups(column, most).tolist() == [key_group(key, most) for key in keys[start:]]


@given(st.integers(1, 300), st.integers(0, 2_000))
def test_each_group_belongs_to_the_one_partition_whose_range_has_it(
    partitions: int, more: int
) -> None:
    most = partitions + more
    ranges = [
        group_range(p, partitions=partitions, max_parallelism=most) for p in range(partitions)
    ]
    assert [group for each in ranges for group in each] == list(range(most))
    assert all(ranges)
    owners = partition_of_groups(
        np.arange(most, dtype=np.int32), partitions=partitions, max_parallelism=most
    )
    assert owners.tolist() == [p for p, each in enumerate(ranges) for _ in each]


def test_more_partitions_than_groups_are_refused() -> None:
    with pytest.raises(ConfigError, match="do not fit"):
        group_range(0, partitions=9, max_parallelism=8)
