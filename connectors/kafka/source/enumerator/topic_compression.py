"""Finds out how a source's topics are compressed, once, before a job reads. Driver.

A consumer does not show how a record was compressed: the codec is in the attributes of the record
batch, and clients decompress before they return records. So this module fetches the newest batch of
some partitions and reads its head. The layout is that of Kafka's documentation, "Record Batch". The
result affects cost only.
"""

import logging
import struct
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.wire_client import (
    DescribeConfigsRequest,
    FetchRequest,
    ListOffsetsRequest,
    Message,
    Net,
    WireClient,
    kafka_errors,
)
from sluice.connectors.kafka.source.enumerator.leader_epochs import leaders_of
from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.runtime.errors import StreamError

__all__ = [
    "CODECS",
    "BatchHead",
    "TopicLoad",
    "codec_of_config",
    "fetch_topic_load",
    "first_batch",
    "prevailing",
]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""Index: the number in a batch's attributes. Names: librdkafka's ``compression.type``."""

_CODEC_BITS = 0x07
_CONTROL_BIT = 0x20
_HEAD = struct.Struct(
    ">qiibIhi"
)  # base offset, length, leader epoch, magic, CRC, attributes, delta
_OLD_HEAD = struct.Struct(">qiibb")  # offset, length, CRC, magic, attributes
_MAGIC_AT = 16
# The first of two equally frequent codecs wins: better compression needs less space.
_PREFERRED = ("zstd", "gzip", "lz4", "snappy", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHead:
    """The head of a record batch.

    Attributes:
        codec: one of `CODECS`; None: an unknown number.
        is_control: whether it holds a transaction marker, and no record of a user.
    """

    codec: str | None
    is_control: bool


def first_batch(records: bytes | None) -> BatchHead | None:
    """Read the first head of a fetch response; None: there is no batch, or a part of its head."""
    if records is None or len(records) <= _MAGIC_AT:
        return None
    if records[_MAGIC_AT] < 2:  # a message set of before 0.11, which a broker may still hold
        if len(records) < _OLD_HEAD.size:
            return None
        *_, attributes = _OLD_HEAD.unpack_from(records)
        return BatchHead(codec=_codec(attributes), is_control=False)
    if len(records) < _HEAD.size:
        return None
    *_, attributes, _ = _HEAD.unpack_from(records)
    return BatchHead(codec=_codec(attributes), is_control=bool(attributes & _CONTROL_BIT))


def codec_of_config(value: str | None) -> str | None:
    """Return the codec that ``compression.type`` of a topic sets; None: the producer chooses."""
    if value == "uncompressed":
        return "none"
    return value if value in CODECS else None


def prevailing(found: Iterable[str]) -> str | None:
    """Return the most frequent codec; None: there is none."""
    counts = Counter(found)
    if not counts:
        return None
    return max(counts, key=lambda codec: (counts[codec], -_PREFERRED.index(codec)))


def _codec(attributes: int) -> str | None:
    number = attributes & _CODEC_BITS
    return CODECS[number] if number < len(CODECS) else None


log = logging.getLogger(__name__)

_TOPIC_RESOURCE = 2  # DescribeConfigs' resource type
_EARLIEST, _LATEST = -2, -1
_MOST_PARTITIONS = 16
# Steps back from a partition's end, each twice as large: transaction markers there have no codec.
_MOST_STEPS = 12
_NAMED_TOPICS = 12  # the last version of Fetch that knows topics by name


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLoad:
    """Compression and batch size of a source's topics.

    Attributes:
        codec: the most frequent one of the sampled partitions; None: unknown.
        codecs: all codecs of the sample, sorted.
        batch_bytes: the largest ``max.message.bytes`` of the topics; None: it cannot be read.
    """

    codec: str | None = None
    codecs: tuple[str, ...] = ()
    batch_bytes: int | None = None


def fetch_topic_load(
    connection: KafkaConnection, partitions: Collection[PartitionKey], *, timeout_s: float
) -> TopicLoad:
    """Fetch the configurations of the topics, and a batch of some of the partitions.

    Never raises: values that cannot be fetched in time are None.
    """
    deadline = time.monotonic() + timeout_s
    try:
        client = WireClient.connect(connection.wire(), deadline)
        try:
            return client.run(lambda: _fetch(Net(client, deadline), partitions), deadline)
        finally:
            client.close()
    except (kafka_errors.KafkaError, StreamError, OSError, RuntimeError) as err:
        reason = connection.scrub(f"{type(err).__name__}: {err}")
        log.info("the source's compression is not known: error=%s", reason)
        return TopicLoad()


async def _fetch(net: Net, partitions: Collection[PartitionKey]) -> TopicLoad:
    topics = sorted({topic for topic, _ in partitions})
    configs = await _configs(net, topics)
    codecs = {topic: codec_of_config(configs[topic].get("compression.type")) for topic in configs}
    found = [codec for codec in codecs.values() if codec is not None]
    sampled = _sample([key for key in sorted(partitions) if codecs.get(key[0]) is None])
    leaders = await leaders_of(net, topics)
    heads = [
        net.begin(partial(_newest, net, key, leaders[key])) for key in sampled if key in leaders
    ]
    for future in heads:
        head: BatchHead | None = await future
        if head is not None and head.codec is not None:
            found.append(head.codec)
    limits = [int(values["max.message.bytes"]) for values in configs.values()]
    return TopicLoad(
        codec=prevailing(found),
        codecs=tuple(sorted(set(found))),
        batch_bytes=max(limits, default=None),
    )


def _sample(keys: Sequence[PartitionKey]) -> list[PartitionKey]:
    """Return some of the partitions, spread over all."""
    step = max(1, -(-len(keys) // _MOST_PARTITIONS))
    return list(keys[::step])


async def _configs(net: Net, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the settings of those topics whose configuration can be read."""
    names = ["compression.type", "max.message.bytes"]
    resources = [
        DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_TOPIC_RESOURCE, resource_name=topic, configuration_keys=names
        )
        for topic in topics
    ]
    try:
        response = await net.send(DescribeConfigsRequest(resources=resources))
    except kafka_errors.KafkaError as err:
        log.info("configurations of the source's topics cannot be read: error=%s", err)
        return {}
    found = {
        result.resource_name: {entry.name: str(entry.value) for entry in result.configs or ()}
        for result in response.results
        if result.error_code == 0
    }
    return {topic: values for topic, values in found.items() if set(names) <= values.keys()}


async def _newest(net: Net, key: PartitionKey, leader: int) -> BatchHead | None:
    """Return the head of the newest batch with records; None: there is none, or it is far back."""
    try:
        first = await _offset(net, key, leader, _EARLIEST)
        end = await _offset(net, key, leader, _LATEST)
        step, at = 1, end - 1
        for _ in range(_MOST_STEPS):
            if at < first:
                return None
            head = await _head_at(net, key, leader, at)
            if head is not None and not head.is_control:
                return head
            at -= step
            step *= 2
    except (kafka_errors.KafkaError, ValueError) as err:
        log.info("a batch of the source cannot be read: partition=%s error=%s", key, err)
    return None


async def _offset(net: Net, key: PartitionKey, leader: int, which: int) -> int:
    topic, partition = key
    row = ListOffsetsRequest.ListOffsetsTopic
    response = await net.send(
        ListOffsetsRequest(
            replica_id=-1,
            isolation_level=1,
            topics=[
                row(
                    name=topic,
                    partitions=[
                        row.ListOffsetsPartition(
                            partition_index=partition, current_leader_epoch=-1, timestamp=which
                        )
                    ],
                )
            ],
            min_version=2,
            max_version=7,
        ),
        leader,
    )
    (answer,) = response.topics[0].partitions
    _require_done(answer.error_code, f"offsets of {topic}-{partition}")
    return int(answer.offset)


async def _head_at(net: Net, key: PartitionKey, leader: int, offset: int) -> BatchHead | None:
    """Return the head of the first batch at or after an offset, of any size (KIP-74)."""
    topic, partition = key
    row = FetchRequest.FetchTopic
    response = await net.send(
        FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[
                row(
                    topic=topic,
                    partitions=[
                        row.FetchPartition(
                            partition=partition,
                            current_leader_epoch=-1,
                            fetch_offset=offset,
                            last_fetched_epoch=-1,
                            log_start_offset=-1,
                            partition_max_bytes=1,
                        )
                    ],
                )
            ],
            forgotten_topics_data=[],
            rack_id="",
            min_version=4,
            max_version=_NAMED_TOPICS,
        ),
        leader,
    )
    _require_done(response.error_code or 0, f"a batch of {topic}-{partition}")
    (answer,) = response.responses[0].partitions
    _require_done(answer.error_code, f"a batch of {topic}-{partition}")
    return first_batch(_as_bytes(answer.records))


def _as_bytes(records: Message) -> bytes | None:
    return None if records is None else bytes(memoryview(records)[:64])


def _require_done(code: int, what: str) -> None:
    if code != 0:
        raise kafka_errors.for_code(code)(what)
