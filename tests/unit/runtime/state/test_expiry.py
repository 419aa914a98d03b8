"""Values with a time to live."""

import numpy as np
import pyarrow as pa

from sluice.runtime.contracts.keyed import BarrierTime
from sluice.runtime.state.codec.expiry import (
    expired_rows,
    expiry_times,
    with_expiry,
    without_expired,
)


def test_a_value_is_read_until_its_time_comes() -> None:
    stored = with_expiry([b"a", None, b""], 100)
    assert without_expired(stored, 99) == [b"a", None, b""]
    assert without_expired(stored, 100) == [None, None, None]
    assert without_expired(stored, None) == [b"a", None, b""]
    assert without_expired(with_expiry([b"a"], -5), -6) == [b"a"]


def test_the_clock_of_each_table_counts() -> None:
    """Without a watermark, nothing has expired by event time."""
    clocks = {1: "event", 2: "processing"}
    at = BarrierTime(watermark_ms=None, now_ms=7)
    assert expiry_times(clocks, at) == {2: 7}  # type: ignore[arg-type]
    at = BarrierTime(watermark_ms=-3, now_ms=7)
    assert expiry_times(clocks, at) == {1: -3, 2: 7}  # type: ignore[arg-type]


def test_rows_of_files_expire_alike() -> None:
    """Tables without a time to live, removals and slices too."""
    stored = [*with_expiry([b"a", None], 10), *with_expiry([b"b"], -10), b"short", b"x" * 9]
    values = pa.array([b"before", *stored], pa.binary()).slice(1)
    tables = np.array([1, 1, 1, 2, 2], np.int32)
    assert expired_rows(tables, values, {1: 9}).tolist() == [False, False, True, False, False]
    assert expired_rows(tables, values, {1: 10}).tolist() == [True, False, True, False, False]
    assert not expired_rows(tables, values, {}).any()
    assert not expired_rows(tables, values, {3: 99}).any()
