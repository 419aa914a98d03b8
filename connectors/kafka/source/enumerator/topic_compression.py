"""What the batches of a source's topics are like: asked of the brokers, once, before a job reads.

The consumer's interface does not tell how a record was compressed, so the newest batch of some
partitions is fetched, and its head is read. Driver; nothing depends on the answer but the cost.

How a topic's records are compressed, as their batches say it. Pure.

No consumer tells: it is in the attributes of the record batches, which clients undo before they
give records out. The layout is that of Kafka's documentation, "Record Batch".
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
    "first_batch",
    "look_at",
    "prevailing",
]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""By the number that a batch has for it; names as librdkafka's ``compression.type``."""

_CODEC_BITS = 0x07
_CONTROL_BIT = 0x20
_HEAD = struct.Struct(
    ">qiibIhi"
)  # base offset, length, leader epoch, magic, CRC, attributes, delta
_OLD_HEAD = struct.Struct(">qiibb")  # offset, length, CRC, magic, attributes
_MAGIC_AT = 16
# Of two that are equally frequent the first: what compresses better costs the less room.
_PREFERRED = ("zstd", "gzip", "lz4", "snappy", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHead:
    """What the beginning of a record batch tells.

    Attributes:
        codec: one of `CODECS`; None: of a number that is not known.
        is_control: it holds the end of a transaction and no record of a user.
    """

    codec: str | None
    is_control: bool


def first_batch(records: bytes | None) -> BatchHead | None:
    """Of what a broker answered to a fetch; None: there is no batch, or only a part of its head."""
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
    """What a topic's ``compression.type`` makes of every batch; None: what the producer chose."""
    if value == "uncompressed":
        return "none"
    return value if value in CODECS else None


def prevailing(found: Iterable[str]) -> str | None:
    """One codec for a source whose partitions have several: the most frequent one."""
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
# Back from a partition's end, in steps of twice the size: what lies there may be markers of
# transactions, and those have no codec.
_MOST_STEPS = 12
_NAMED_TOPICS = 12  # the last version of Fetch that knows topics by name


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLoad:
    """What was found about a source's topics.

    Attributes:
        codec: how most of the partitions that were looked at are compressed; None: nobody knows.
        codecs: all that were found, sorted.
        batch_bytes: the largest ``max.message.bytes`` of the topics; None: it may not be read.
    """

    codec: str | None = None
    codecs: tuple[str, ...] = ()
    batch_bytes: int | None = None


def look_at(
    connection: KafkaConnection, partitions: Collection[PartitionKey], *, timeout_s: float
) -> TopicLoad:
    """Ask for the configurations of the topics and for a batch of some of the partitions.

    Never raises: what cannot be found out in time is None.
    """
    deadline = time.monotonic() + timeout_s
    try:
        client = WireClient.connect(connection.wire(), deadline)
        try:
            return client.run(lambda: _look(Net(client, deadline), partitions), deadline)
        finally:
            client.close()
    except (kafka_errors.KafkaError, StreamError, OSError, RuntimeError) as err:
        reason = connection.scrub(f"{type(err).__name__}: {err}")
        log.info("the source's compression is not known: error=%s", reason)
        return TopicLoad()


async def _look(net: Net, partitions: Collection[PartitionKey]) -> TopicLoad:
    topics = sorted({topic for topic, _ in partitions})
    configs = await _configs(net, topics)
    codecs = {topic: codec_of_config(configs[topic].get("compression.type")) for topic in configs}
    found = [codec for codec in codecs.values() if codec is not None]
    asked = _sample([key for key in sorted(partitions) if codecs.get(key[0]) is None])
    leaders = await leaders_of(net, topics)
    looks = [net.begin(partial(_newest, net, key, leaders[key])) for key in asked if key in leaders]
    for look in looks:
        head: BatchHead | None = await look
        if head is not None and head.codec is not None:
            found.append(head.codec)
    limits = [int(values["max.message.bytes"]) for values in configs.values()]
    return TopicLoad(
        codec=prevailing(found),
        codecs=tuple(sorted(set(found))),
        batch_bytes=max(limits, default=None),
    )


def _sample(keys: Sequence[PartitionKey]) -> list[PartitionKey]:
    """Some of them, spread over all."""
    step = max(1, -(-len(keys) // _MOST_PARTITIONS))
    return list(keys[::step])


async def _configs(net: Net, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """Of those topics whose configuration may be read."""
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
    """The head of the newest batch with records; None: there is none, or it is far back."""
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
        log.info("a batch of the source cannot be looked at: partition=%s error=%s", key, err)
    return None


async def _offset(net: Net, key: PartitionKey, leader: int, which: int) -> int:
    topic, partition = key
    asked = ListOffsetsRequest.ListOffsetsTopic
    response = await net.send(
        ListOffsetsRequest(
            replica_id=-1,
            isolation_level=1,
            topics=[
                asked(
                    name=topic,
                    partitions=[
                        asked.ListOffsetsPartition(
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
    """Of the batch at or behind an offset: one batch is given whatever its size (KIP-74)."""
    topic, partition = key
    asked = FetchRequest.FetchTopic
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
                asked(
                    topic=topic,
                    partitions=[
                        asked.FetchPartition(
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
