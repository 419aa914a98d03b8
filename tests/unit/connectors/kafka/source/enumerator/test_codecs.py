"""What a batch's head says of its compression, and which codec a source has when several do; what a
source makes of it."""

import struct

import pytest

from sluice import KafkaSource
from sluice.connectors.kafka.source.enumerator.topic_compression import (
    TopicLoad,
    codec_of_config,
    first_batch,
    prevailing,
)
from tests.kit.source.fake_source_cluster import FakeLog, FakeSourceCluster


def batch(attributes: int, *, magic: int = 2) -> bytes:
    """The beginning of one, as Kafka's documentation lays it out."""
    head = struct.pack(">qii", 7, 100, 0) + bytes([magic])
    if magic < 2:
        return head + bytes([attributes]) + bytes(50)
    return head + struct.pack(">Ih", 0, attributes) + bytes(50)


@pytest.mark.parametrize(
    ("number", "codec"), [(0, "none"), (1, "gzip"), (2, "snappy"), (3, "lz4"), (4, "zstd")]
)
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_the_codec_stands_in_the_attributes(number: int, codec: str, magic: int) -> None:
    """In the lowest three bits, whatever the others say, in every format."""
    transactional_append_time = 0x18 if magic == 2 else 0x08
    found = first_batch(batch(number | transactional_append_time, magic=magic))
    assert found is not None
    assert (found.codec, found.is_control) == (codec, False)


def test_a_marker_of_a_transaction_is_no_batch_of_records() -> None:
    """It is never compressed, and stands behind every transaction."""
    found = first_batch(batch(0x30))
    assert found is not None
    assert found.is_control


@pytest.mark.parametrize("records", [None, b"", bytes(16), batch(4)[:20], batch(1, magic=1)[:17]])
def test_no_batch_or_a_part_of_one_says_nothing(records: bytes | None) -> None:
    """A partition at its end answers so."""
    assert first_batch(records) is None


def test_an_unknown_number_is_no_codec() -> None:
    """Of a later Kafka."""
    found = first_batch(batch(5))
    assert found is not None
    assert found.codec is None


def test_the_most_frequent_codec_is_taken_and_of_equals_what_compresses_better() -> None:
    """Whatever order the partitions answered in."""
    assert prevailing(["lz4", "none", "lz4", "zstd"]) == "lz4"
    assert prevailing(["none", "zstd"]) == prevailing(["zstd", "none"]) == "zstd"
    assert prevailing([]) is None


def test_a_topic_may_fix_the_codec_of_every_batch() -> None:
    """``producer`` leaves it to whoever writes."""
    assert [codec_of_config(v) for v in ("producer", "uncompressed", "gzip", None)] == [
        None,
        "none",
        "gzip",
        None,
    ]


@pytest.mark.parametrize(
    ("batch_bytes", "warns"), [(None, False), (1 << 20, False), (200 << 20, True)]
)
def test_a_source_tells_its_codec_also_where_it_may_not_read_how_large_batches_get(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    batch_bytes: int | None,
    *,
    warns: bool,
) -> None:
    """Some brokers let nobody look into configurations: a job starts all the same."""
    cluster = FakeSourceCluster()
    cluster.create("orders", FakeLog(latest=5))
    load = TopicLoad(codec="zstd", codecs=("zstd",), batch_bytes=batch_bytes)
    monkeypatch.setattr(
        "sluice.connectors.kafka.kafka_source.KafkaCluster", lambda *_, **__: cluster
    )
    monkeypatch.setattr(
        "sluice.connectors.kafka.source.enumerator.topic_compression.fetch_topic_load",
        lambda *_, **__: load,
    )
    source = KafkaSource(bootstrap_servers="b:9092", topics=["orders"])
    assert source.compression(timeout_s=1) == "zstd"
    assert ("max.message.bytes" in caplog.text) is warns
