"""Keyed records go where Java's producer would put them."""

import pytest

from sluice.connectors.kafka.records.partitioner import murmur2, partition_for_key
from sluice.runtime.errors import ConfigError

# From org.apache.kafka.common.utils.UtilsTest of Apache Kafka; the last two from running it.
GOLDEN = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
    (b"", 275646681),
    (bytes(range(128, 256)), 872916902),
]


@pytest.mark.parametrize(("data", "signed"), GOLDEN)
def test_murmur2_equals_javas(data: bytes, signed: int) -> None:
    """Golden vectors of the Java implementation."""
    assert murmur2(data) == signed & 0xFFFFFFFF


@pytest.mark.parametrize(("data", "signed"), GOLDEN)
def test_the_partition_is_javas(data: bytes, signed: int) -> None:
    """``Utils.toPositive(murmur2(key)) % partitions``."""
    assert partition_for_key(data, 7) == (signed & 0x7FFFFFFF) % 7


def test_a_topic_without_partitions_is_refused() -> None:
    """A mistake of the caller's, named."""
    with pytest.raises(ConfigError):
        partition_for_key(b"a", 0)
