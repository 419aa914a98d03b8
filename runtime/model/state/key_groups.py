"""Key groups: the unit by which keyed rows and their state are distributed.

The formulas are frozen by ``tests/data/key-groups.json``: state and repartition topics of
earlier runs were divided by them. Pure.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.runtime.errors import ConfigError

__all__ = [
    "LARGEST_MAX_PARALLELISM",
    "default_max_parallelism",
    "default_partitions",
    "group_range",
    "key_group",
    "key_groups",
    "murmur2",
    "murmur2_of_column",
    "partition_of_groups",
]

LARGEST_MAX_PARALLELISM = 32_768
_LEAST_MAX_PARALLELISM = 1_024
_LEAST_PARTITIONS = 16
_POSITIVE = 0x7FFFFFFF
_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C
_M = 0x5BD1E995
_R = 24

UInt32Array = npt.NDArray[np.uint32]
Int32Array = npt.NDArray[np.int32]


def default_max_parallelism(parallelism: int) -> int:
    """The number of key groups for so many tasks or partitions: a power of two.

    Source: ``KeyGroupRangeAssignment.computeDefaultMaxParallelism`` of Flink, with a higher least
    value, so that a small job can grow.
    """
    wanted = 1 << (15 * parallelism - 1).bit_length()  # 10 x 1.5, rounded up to a power of two
    return min(max(wanted, _LEAST_MAX_PARALLELISM), LARGEST_MAX_PARALLELISM)


def default_partitions(regions: int) -> int:
    """The partitions of a repartition topic that so many regions read: a power of two."""
    wanted = 1 << (4 * regions - 1).bit_length()
    return min(max(wanted, _LEAST_PARTITIONS), LARGEST_MAX_PARALLELISM)


def key_group(key: bytes, max_parallelism: int) -> int:
    """The key group of an encoded key (`sluice.runtime.keyed.key_encoding`)."""
    return (murmur2(key) & _POSITIVE) % max_parallelism


def key_groups(keys: pa.LargeBinaryArray, max_parallelism: int) -> Int32Array:
    """`key_group` of each key of a column without nulls, of shape (n,)."""
    hashes = murmur2_of_column(keys) & np.uint32(_POSITIVE)
    groups: Int32Array = (hashes % np.uint32(max_parallelism)).astype(np.int32)
    return groups


def partition_of_groups(groups: Int32Array, *, partitions: int, max_parallelism: int) -> Int32Array:
    """The partition of each key group in a topic of so many partitions; non-decreasing."""
    _require_fit(partitions, max_parallelism)
    owners: Int32Array = (groups.astype(np.int64) * partitions // max_parallelism).astype(np.int32)
    return owners


def group_range(partition: int, *, partitions: int, max_parallelism: int) -> range:
    """The key groups of a partition; not empty."""
    _require_fit(partitions, max_parallelism)
    first, end = (
        -(-each * max_parallelism // partitions) for each in (partition, partition + 1)
    )  # rounded up
    return range(first, end)


def _require_fit(partitions: int, max_parallelism: int) -> None:
    if not 1 <= partitions <= max_parallelism <= LARGEST_MAX_PARALLELISM:
        raise ConfigError(
            "partitions and maximum parallelism do not fit together",
            {"partitions": partitions, "max_parallelism": max_parallelism},
            f"Use 1 <= partitions <= max_parallelism <= {LARGEST_MAX_PARALLELISM}.",
        )


def murmur2(data: bytes) -> int:
    """Murmur2 of ``data`` as an unsigned 32-bit number.

    Source: ``org.apache.kafka.common.utils.Utils.murmur2``, which returns the same bits signed.
    """
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little") * _M & _MASK
        k ^= k >> _R
        h = (h * _M & _MASK) ^ (k * _M & _MASK)
    if whole < length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ (h >> 13)) * _M & _MASK
    return h ^ (h >> 15)


def murmur2_of_column(keys: pa.Array) -> UInt32Array:
    """`murmur2` of each value of a large_binary column, any slice of one; of a null: undefined.

    Measured: 25 ns per key of 10 bytes.
    """
    _, offsets_buffer, data_buffer = keys.buffers()
    count = len(keys)
    if count == 0:
        return np.zeros(0, np.uint32)
    offsets = np.frombuffer(offsets_buffer, np.int64, count + 1, 8 * keys.offset)
    data = np.frombuffer(data_buffer or b"", np.uint8)
    starts, lengths = offsets[:-1], np.diff(offsets)
    hashes = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    # Four bytes from any position, as Java reads them: overlapping little-endian words.
    words = np.ndarray((max(0, len(data) - 3),), "<u4", data, strides=(1,))
    for index in range(int(lengths.max()) // 4):
        has_word = lengths >= 4 * (index + 1)
        if has_word.all():
            hashes = _mix(hashes, words[starts + 4 * index])
        else:
            mixed = _mix(hashes[has_word], words[starts[has_word] + 4 * index])
            hashes[has_word] = mixed
    return _finish(hashes, starts, lengths, data)


def _mix(hashes: UInt32Array, words: UInt32Array) -> UInt32Array:
    words = words * np.uint32(_M)
    words ^= words >> np.uint32(_R)
    mixed: UInt32Array = (hashes * np.uint32(_M)) ^ (words * np.uint32(_M))
    return mixed


def _finish(
    hashes: UInt32Array,
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    data: npt.NDArray[np.uint8],
) -> UInt32Array:
    rest = lengths & 3
    tail_at = starts + (lengths & ~3)
    for byte in (2, 1, 0):
        has_byte = rest > byte
        if has_byte.any():
            values = data[tail_at[has_byte] + byte].astype(np.uint32)
            hashes[has_byte] ^= values << np.uint32(8 * byte)
    with_rest = rest > 0
    hashes[with_rest] *= np.uint32(_M)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(_M)
    hashes ^= hashes >> np.uint32(15)
    return hashes
