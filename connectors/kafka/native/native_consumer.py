"""A consumer of our own: assigned, never subscribed, read in batches of C pointers."""

import ctypes
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sluice.connectors.kafka.client.confluent import (
    KafkaError,
    KafkaException,
    TopicPartition,
    error_codes,
)
from sluice.connectors.kafka.native.library import NativeLibrary
from sluice.connectors.kafka.native.native_client import CONSUMER, NativeClient, to_ms

__all__ = ["Addresses", "NativeConsumer"]

log = logging.getLogger(__name__)

Addresses = npt.NDArray[np.uint64]

(_FAIL,) = error_codes("_FAIL")
_SEEK_MS = 1_000  # answered by the client itself, within microseconds


class NativeConsumer(NativeClient):
    """The methods of confluent-kafka's ``Consumer`` that `range_reader` uses, by the same names.

    `take` calls ``rd_kafka_consume_batch_queue`` on the consumer's own queue, as ``consume()``
    does. librdkafka leaves out messages of an earlier assignment there, even if it has fetched them
    already (``rd_kafka_op_version_outdated``). A barrier in the queue covers messages that the same
    call has already taken. The queue forwards to no other queue.

    Unlike in confluent-kafka, events do not arrive in that queue (``rd_kafka_poll_set_consumer`` is
    not called): `serve` takes them.
    """

    def __init__(self, library: NativeLibrary, config: Mapping[str, Any]) -> None:
        super().__init__(library, CONSUMER, config)
        self._queue: int = self._kafka.rd_kafka_queue_get_consumer(self.address)
        self._taken = ctypes.c_int64(0)

    @property
    def library(self) -> NativeLibrary:
        """The compiled code that made it."""
        return self._library

    def take(self, most: int, timeout_s: float) -> Addresses:
        """Take messages, as addresses; each must go back by `give_back`, before `close`."""
        address, before = self.address, self._taken.value
        found = np.empty(most, np.uint64)
        try:
            count = self._library.call.sluice_consume(
                self._queue, to_ms(timeout_s), found.ctypes.data, most, ctypes.byref(self._taken)
            )
        except BaseException:  # an interrupt is raised after the call
            self.give_back(found[: self._taken.value - before])
            raise
        if count < 0 or not address:
            raise KafkaException(KafkaError(_FAIL))
        return found[:count]

    def give_back(self, messages: Addresses) -> None:
        """Free messages."""
        if len(messages):
            messages = np.ascontiguousarray(messages)
            self._library.call.sluice_destroy(
                messages.ctypes.data, len(messages), ctypes.byref(self._taken)
            )

    @property
    def is_sound(self) -> bool:
        """Whether all messages have come back."""
        return not self._taken.value

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Assign these partitions from their offsets, and no others."""
        with _List(self._kafka, partitions) as wanted:
            self.require(self._kafka.rd_kafka_assign(self.address, wanted))

    def unassign(self) -> None:
        """Remove the assignment."""
        self.require(self._kafka.rd_kafka_assign(self.address, None))

    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Add these partitions to the assignment."""
        with _List(self._kafka, partitions) as wanted:
            self.require_done(self._kafka.rd_kafka_incremental_assign(self.address, wanted))

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """Remove these partitions from the assignment."""
        with _List(self._kafka, partitions) as unwanted:
            self.require_done(self._kafka.rd_kafka_incremental_unassign(self.address, unwanted))

    def seek(self, partition: TopicPartition) -> None:
        """Continue there; raises if the partition's fetch has not begun."""
        found = _List(self._kafka, [partition])
        with found as wanted:
            self.require_done(self._kafka.rd_kafka_seek_partitions(self.address, wanted, _SEEK_MS))
            self.require(found.error(0))

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float, cached: bool
    ) -> tuple[int, int]:
        """Fetch the first offset, and the end by the isolation level, from the broker."""
        assert not cached  # cached offsets may be old
        first, end = ctypes.c_int64(), ctypes.c_int64()
        self.require(
            self._kafka.rd_kafka_query_watermark_offsets(
                self.address,
                partition.topic.encode(),
                partition.partition,
                ctypes.byref(first),
                ctypes.byref(end),
                to_ms(timeout),
            )
        )
        return first.value, end.value

    def list_topics(self, topic: str, timeout: float) -> None:
        """Fetch the leaders of a topic."""
        self.partitions_of(topic, timeout)

    def close(self) -> None:
        """End the client; later calls raise RuntimeError."""
        if self._address is not None and self._pid == self._getpid():
            taken = self._taken.value
            if taken:
                # After a bug or an interrupt, librdkafka would wait for the messages for ever.
                log.error("consumer was not closed: messages=%d name=%s", taken, self.name)
                self._address = None
                return
            self._kafka.rd_kafka_consumer_close(self._address)
            self._kafka.rd_kafka_queue_destroy(self._queue)
        self._destroy()

    def __del__(self) -> None:
        if getattr(self, "_queue", None) is None:
            self._destroy()
        else:
            self.close()


class _Element(ctypes.Structure):
    """``rd_kafka_topic_partition_t``, as ``rdkafka.h`` has it."""

    _fields_ = (
        ("topic", ctypes.c_char_p),
        ("partition", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("metadata", ctypes.c_void_p),
        ("metadata_size", ctypes.c_size_t),
        ("opaque", ctypes.c_void_p),
        ("err", ctypes.c_int),
        ("_private", ctypes.c_void_p),
    )


class _List:
    """A ``rd_kafka_topic_partition_list_t`` for the time of a call."""

    def __init__(self, kafka: Any, partitions: Sequence[TopicPartition]) -> None:  # noqa: ANN401 - ctypes finds functions by name
        self._kafka = kafka
        self._address: int = kafka.rd_kafka_topic_partition_list_new(len(partitions))
        self._elements: list[int] = []
        for each in partitions:
            topic = each.topic.encode()
            added = kafka.rd_kafka_topic_partition_list_add(self._address, topic, each.partition)
            self._elements.append(added)
            kafka.rd_kafka_topic_partition_list_set_offset(
                self._address, topic, each.partition, each.offset
            )
            if each.leader_epoch is not None:
                kafka.rd_kafka_topic_partition_set_leader_epoch(added, each.leader_epoch)

    def error(self, at: int) -> int:
        """Return the error code of one partition."""
        return int(_Element.from_address(self._elements[at]).err)

    def __enter__(self) -> int:
        return self._address

    def __exit__(self, *_: object) -> None:
        self._kafka.rd_kafka_topic_partition_list_destroy(self._address)
