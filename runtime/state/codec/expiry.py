"""Values with a time to live: 8 bytes with the time of expiry come before the value.

The time is in milliseconds, big-endian, of the clock that the table's schema text names
(`schema_to_json`): event time (the barrier's watermark) or processing time (the barrier's
`now_ms`). An entry has expired once its clock is at that time or later. Reads leave it out
(`without_expired`), and a merge to a base drops it: no removal is written.
"""

import struct
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.runtime.contracts.keyed import BarrierTime
from sluice.runtime.state.codec.schema_text import Clock

__all__ = [
    "ExpiryTimes",
    "expired_rows",
    "expires_ms",
    "expiry_times",
    "with_expiry",
    "without_expired",
]

_TIME = struct.Struct(">q")

ExpiryTimes = Mapping[int, int]
"""By number of each table with a time to live: entries up to this time have expired."""


def with_expiry(values: Iterable[bytes | None], expires_ms: int) -> list[bytes | None]:
    """The values as they are stored, all with one time of expiry; None stays None."""
    head = _TIME.pack(expires_ms)
    return [None if value is None else head + value for value in values]


def expires_ms(stored: bytes) -> int:
    """The time of expiry of a stored value."""
    time_ms: int = _TIME.unpack_from(stored)[0]
    return time_ms


def without_expired(stored: Iterable[bytes | None], now_ms: int | None) -> list[bytes | None]:
    """The values without their times; None where one has expired. ``now_ms`` None: none has."""
    if now_ms is None:
        return [None if value is None else value[8:] for value in stored]
    return [
        None if value is None or _TIME.unpack_from(value)[0] <= now_ms else value[8:]
        for value in stored
    ]


def expiry_times(clocks: Mapping[int, Clock], time: BarrierTime) -> ExpiryTimes:
    """The time of each table's clock at a barrier."""
    now = {"event": time.watermark_ms, "processing": time.now_ms}
    found = {number: now[clock] for number, clock in clocks.items()}
    return {number: now_ms for number, now_ms in found.items() if now_ms is not None}


def expired_rows(
    tables: npt.NDArray[np.int32], values: pa.BinaryArray, times: ExpiryTimes
) -> npt.NDArray[np.bool_]:
    """Which rows of a state file have expired; a removal has not."""
    expired = np.zeros(len(tables), bool)
    if not times or not np.isin(tables, list(times)).any():
        return expired
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset :][: len(values) + 1]
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)
    for number, now_ms in times.items():
        at = np.flatnonzero((tables == number) & (np.diff(offsets) >= _TIME.size))
        heads = data[offsets[at][:, None] + np.arange(_TIME.size)]
        expired[at] = np.ascontiguousarray(heads).view(">i8").ravel() <= now_ms
    return expired
