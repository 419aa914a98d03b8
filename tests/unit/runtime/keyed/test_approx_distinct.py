"""Sketches: frozen hashes, and the error that is promised."""

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest

from sluice.runtime.keyed.aggregates.approx_distinct import Sketches, hashed

VECTORS = [
    (pa.array(["", "a", "12345678", "123456789", "x" * 100]), "text"),
    (pa.array([0, 1, -1, 2**63 - 1]), "int64"),
    (pa.array([0.0, -0.0, float("nan"), 1.5]), "float64"),
    (pa.array([datetime.date(2026, 1, 1)]), "date"),
    (pa.array([decimal.Decimal("1.50")], pa.decimal128(10, 2)), "decimal"),
]
FROZEN: dict[str, list[str]] = {
    "text": [
        "5c52bd4054e958c9",
        "d26e8784f0a382d0",
        "6903a2b265f9f3de",
        "a1bf762e26ab4b1c",
        "4be43465ce0fe238",
    ],
    "int64": ["ee43d97ef3a9d01d", "9788440584722665", "510a215d7f7c6bd1", "9fe307535570088b"],
    "float64": ["ee43d97ef3a9d01d", "ee43d97ef3a9d01d", "8972ccc43754cc4d", "d65ce9aa434de1a0"],
    "date": ["c307030e8d873582"],
    "decimal": ["767079f06a1d023a"],
}


@pytest.mark.parametrize(("values", "name"), VECTORS, ids=[name for _, name in VECTORS])
def test_hashes_are_frozen(values: pa.Array, name: str) -> None:
    """They are in the state of jobs."""
    assert [f"{each:016x}" for each in hashed(values).tolist()] == FROZEN[name]


@pytest.mark.parametrize("error", [0.3, 0.05, 0.01])
def test_estimates_are_as_exact_as_promised(error: float) -> None:
    """200 groups for each size have at most the promised deviation (and 20 % for chance), and their
    mean is right."""
    made = np.random.default_rng(1)
    for size in (1, 10, 100, 1_000, 5_000):
        groups = 200 if size < 5_000 else 60
        values = pa.array(made.integers(0, 2**62, groups * size))
        sketches = Sketches(error=error)
        sketches.resize(groups)
        sketches.add(np.repeat(np.arange(groups), size), values)
        relative = sketches.results().to_numpy() / size - 1
        assert np.sqrt((relative**2).mean()) <= 1.2 * error
        assert abs(relative.mean()) <= 0.3 * error + 0.002


def test_merged_sketches_are_those_of_all_values() -> None:
    values = pa.array([f"user-{i}" for i in range(3_000)])
    whole, parts = Sketches(error=0.05), Sketches(error=0.05)
    for one in (whole, parts):
        one.resize(2)
    whole.add(np.arange(3_000) % 2, values)
    for start in range(0, 3_000, 700):
        one = Sketches(error=0.05)
        one.resize(2)
        part = values.slice(start, 700)
        one.add(np.arange(start, start + len(part)) % 2, part)
        parts.combine(np.arange(2), one.state())
    assert parts.state() == whole.state()


def test_a_sketch_is_bounded() -> None:
    sketches = Sketches(error=0.05)
    sketches.resize(1)
    sketches.add(np.zeros(100_000, np.int64), pa.array(np.arange(100_000)))
    assert sketches.state()[0].flatten().nbytes <= 2048
