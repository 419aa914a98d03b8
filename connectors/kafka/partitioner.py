"""Java's default partitioning of keyed records, so that Sluice and Java producers agree.

The producing itself is librdkafka's ``partitioner=murmur2_random``, which hashes every key that is
not null, an empty one too, exactly as Java's producer does; null keys stick to one partition per
batch. These functions are for user code that must know a record's partition beforehand.
"""

from runtime.errors import ConfigError

__all__ = ["LIBRDKAFKA_PARTITIONER", "murmur2", "partition_for_key"]

LIBRDKAFKA_PARTITIONER = "murmur2_random"
"""Value of librdkafka's ``partitioner`` that agrees with Java's default."""

_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C
_M = 0x5BD1E995
_R = 24


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


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition of a keyed record when it names none.

    Args:
        key: not null; may be empty.
        partitions: of the topic; >= 1.
    Source: ``BuiltInPartitioner.partitionForKey``.
    """
    if partitions < 1:
        raise ConfigError(
            "a topic has at least one partition",
            {"partitions": partitions},
            "Pass the topic's number of partitions.",
        )
    return (murmur2(key) & 0x7FFFFFFF) % partitions
