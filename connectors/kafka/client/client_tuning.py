"""Settings of a task's clients from its memory: queues, fetches, batches, hot path. Pure.

librdkafka bounds payloads, but its bookkeeping for a record is larger than a small record. So every
queue is bounded twice, in bytes and in records. ``docs/research/tuning.md`` has the measurements.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.spelling import choice_of
from sluice.runtime.model.task_memory import TaskMemory

__all__ = [
    "MOST_SENT_MESSAGE_BYTES",
    "HotPath",
    "ReadSettings",
    "WriteSettings",
    "batch_settings",
    "claimed_by_reader",
    "claimed_by_writer",
    "hot_path_of",
    "read_settings",
    "sets_compression",
    "write_settings",
]


class HotPath(enum.Enum):
    """How a task moves records between Kafka and Arrow."""

    AUTO = "auto"  # compiled code if it is available, else confluent-kafka
    NATIVE = "native"  # compiled code; the task fails if it is not available
    PLAIN = "plain"  # confluent-kafka, one Python object per record


def hot_path_of(given: HotPath | str) -> HotPath:
    """Parse the setting.

    Raises:
        ConfigError: there is no such value.
    """
    return choice_of(HotPath, given, setting="hotPath")


MOST_SENT_MESSAGE_BYTES = 1_048_576
"""Default of a sink: that of Java's ``max.request.size``."""

_KIB = 1024
# librdkafka's bookkeeping for a record, without key and value, with the allocator's share.
_CONSUMED_RECORD_BYTES = 400
_PRODUCED_RECORD_BYTES = 256
# A queue with room for one record gets a whole fetch from each broker at the same time.
_BROKERS = 3
_USUAL_MESSAGE_BYTES = 1_000_000  # librdkafka's message.max.bytes; no fetch may be smaller
_MOST_PARTITION_BYTES = 1 << 20
_MOST_QUEUE_KIB = 2**21 - 1  # librdkafka's own limits
_MOST_QUEUE_RECORDS = 10_000_000
_LEAST_RECORDS = 1_000
_LONG_LINGER_MS = 100
_USUAL_LINGER_MS = 20
# Records without a key or partition go to one partition for so long. librdkafka's default is twice
# the linger: all of a short epoch would go to one partition.
_STICKY_MS = 40
# More than a task can send: the queue does not fill within the usual linger.
_SENT_KIB_PER_MS = 512
_SENT_PER_MS = 2_000
_MOST_BATCH_RECORDS = 100_000
_BATCH_COPIES = 16
# The offsets of an Arrow column of bytes have 32 bits. Half of that, because the plain path
# estimates the next batch from the last one, and its records may be larger.
_MOST_BATCH_BYTES = 1 << 30

_QUEUE_KIB = ("queued.max.messages.kbytes",)
_QUEUE_RECORDS = ("queued.min.messages",)
_FETCH = ("fetch.max.bytes",)
_PARTITION = ("fetch.message.max.bytes", "max.partition.fetch.bytes")
_MESSAGE = ("message.max.bytes",)
_BATCH_BYTES = ("batch.size",)
_BATCH_RECORDS = ("batch.num.messages",)
_LINGER = ("linger.ms", "queue.buffering.max.ms")
_STICKY = ("sticky.partitioning.linger.ms",)
_SEND_KIB = ("queue.buffering.max.kbytes",)
_SEND_RECORDS = ("queue.buffering.max.messages",)
_COMPRESSION = ("compression.type", "compression.codec")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """Settings of one consumer, and of the batches of its records. Picklable.

    A task reads with one consumer at a time; all its splits share the queue.

    Attributes:
        queue_kib, queue_records: fetching ahead pauses when either is reached.
        fetch_bytes: largest fetch from a broker; a larger record batch comes all the same.
        partition_bytes: largest part of one partition in it.
        batch_bytes: approximate size of an Arrow batch: the mean record size of the last batch
            decides the number of records in the next one.
    """

    queue_kib: int
    queue_records: int
    fetch_bytes: int
    partition_bytes: int
    batch_bytes: int

    def librdkafka(self) -> dict[str, int]:
        """By librdkafka's names."""
        return {
            _QUEUE_KIB[0]: self.queue_kib,
            _QUEUE_RECORDS[0]: self.queue_records,
            _FETCH[0]: self.fetch_bytes,
            _PARTITION[0]: self.partition_bytes,
        }

    @property
    def most_bytes(self) -> int:
        """Memory of the consumer, if records are larger than their bookkeeping."""
        return claimed_by_reader(self.librdkafka())


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSettings:
    """Settings of one producer. Picklable.

    Only one producer of a sink holds records at a time: it flushes an epoch before the next one
    begins. Prepared producers, and those that wait for a decision, are empty.

    Attributes:
        queue_kib, queue_records: the writer waits when either is reached.
        codec: compression of record batches; None: librdkafka's default, no compression.
    """

    queue_kib: int
    queue_records: int
    codec: str | None = None

    def librdkafka(self) -> dict[str, int | str]:
        """By librdkafka's names."""
        codec = {} if self.codec is None else {_COMPRESSION[0]: self.codec}
        return {_SEND_KIB[0]: self.queue_kib, _SEND_RECORDS[0]: self.queue_records, **codec}

    @property
    def most_bytes(self) -> int:
        """Memory of the producer, and of the Arrow rows that its delivery reports refer to."""
        return claimed_by_writer(self.librdkafka())


def claimed_by_reader(options: Mapping[str, object]) -> int:
    """Return the bytes that these settings of a consumer take, for ranges and for streams.

    ``options``: the user's settings, or all of them, by librdkafka's names.
    """
    return (
        _given(options, _QUEUE_KIB) * _KIB
        + _given(options, _QUEUE_RECORDS) * _CONSUMED_RECORD_BYTES
        + _given(options, _FETCH) * _BROKERS
    )


def claimed_by_writer(options: Mapping[str, object]) -> int:
    """As `claimed_by_reader`, for a producer."""
    return (
        2 * _given(options, _SEND_KIB) * _KIB
        + _given(options, _SEND_RECORDS) * _PRODUCED_RECORD_BYTES
    )


def read_settings(memory: TaskMemory, options: Mapping[str, object]) -> ReadSettings:
    """Settings of a consumer.

    Args:
        memory: of the task, less the user's own settings.
        options: the user's own, by librdkafka's names; they win.
    Raises:
        ConfigError: the largest fetch does not fit.
    """
    part = memory.reading_bytes
    message_bytes = _given(options, _MESSAGE) or _USUAL_MESSAGE_BYTES
    fetch_bytes = _given(options, _FETCH) or max(message_bytes, part // 32)
    own_fetch = bool(_given(options, _FETCH))
    if not own_fetch and fetch_bytes * _BROKERS > part:
        raise ConfigError(
            "a task's memory is too small for the largest fetch",
            {
                "task_memory_mib": memory.total_bytes >> 20,
                "message.max.bytes": message_bytes,
                "for_reading_mib": part >> 20,
            },
            "Raise the task memory, or lower the source's kafka.message.max.bytes.",
        )
    # Fetches of large messages leave less for the queue.
    share = part // 4 if own_fetch else min(part // 4, (part - fetch_bytes * _BROKERS) // 2)
    return ReadSettings(
        queue_kib=_given(options, _QUEUE_KIB) or _within(share // _KIB, 1, _MOST_QUEUE_KIB),
        queue_records=_given(options, _QUEUE_RECORDS)
        or _within(share // _CONSUMED_RECORD_BYTES, _LEAST_RECORDS, _MOST_QUEUE_RECORDS),
        fetch_bytes=fetch_bytes,
        partition_bytes=_given(options, _PARTITION) or min(fetch_bytes, _MOST_PARTITION_BYTES),
        batch_bytes=_within(memory.batch_bytes // _BATCH_COPIES, 1, _MOST_BATCH_BYTES),
    )


def write_settings(memory: TaskMemory, options: Mapping[str, object]) -> WriteSettings:
    """Settings of a sink's producer; arguments as of `read_settings`.

    Raises:
        ConfigError: the largest record that may be sent does not fit.
    """
    _require_room_for_message(options)
    part = memory.writing_bytes
    message_kib = -(-(_given(options, _MESSAGE) or MOST_SENT_MESSAGE_BYTES) // _KIB)
    if not _given(options, _SEND_KIB) and 2 * message_kib * _KIB > part:
        raise ConfigError(
            "a task's memory is too small for a sink's largest message",
            {
                "task_memory_mib": memory.total_bytes >> 20,
                "sinks": memory.sinks,
                "message_kib": message_kib,
                "for_each_sink_mib": part >> 20,
            },
            "Raise the task memory, or lower the sink's kafka.message.max.bytes.",
        )
    return WriteSettings(
        # A queue smaller than a record would never take it.
        queue_kib=_given(options, _SEND_KIB)
        or _within(part // 3 // _KIB, message_kib, _MOST_QUEUE_KIB),
        queue_records=_given(options, _SEND_RECORDS)
        or _within(part // 3 // _PRODUCED_RECORD_BYTES, _LEAST_RECORDS, _MOST_QUEUE_RECORDS),
    )


def batch_settings(
    queue: WriteSettings,
    options: Mapping[str, object],
    *,
    batch_bytes: int,
    partitions: int | None,
    is_seen_at_once: bool,
) -> dict[str, int]:
    """Return batch size and linger of a producer, by librdkafka's names. A flush does not linger.

    A partition has one batch in flight. After the next record has waited for the linger, librdkafka
    calls ``poll`` without a pause until the answer arrives, on a core that the broker may need. So
    the linger is long if no `read_committed` reader could see a record sooner. A queue that is full
    before any batch takes no record until the linger ends. A long linger therefore needs batches
    that are always full before the queue is (``docs/adr/0016``).

    Args:
        queue: of the producer.
        options: the user's own, by librdkafka's names.
        batch_bytes: default of the largest batch.
        partitions: of all output topics; None: unknown.
        is_seen_at_once: a record is visible when it is sent, not when its transaction ends.
    """
    batch_bytes = _given(options, _BATCH_BYTES) or batch_bytes
    settings = {_BATCH_BYTES[0]: batch_bytes, _BATCH_RECORDS[0]: _MOST_BATCH_RECORDS}
    if partitions and not is_seen_at_once and not any(name in options for name in _LINGER):
        share = _within(queue.queue_records // partitions, 1, _MOST_BATCH_RECORDS)
        batch_records = _given(options, _BATCH_RECORDS) or share
        message_bytes = _given(options, _MESSAGE) or MOST_SENT_MESSAGE_BYTES
        if (
            partitions * batch_bytes + message_bytes <= queue.queue_kib * _KIB
            and partitions * batch_records <= queue.queue_records
        ):
            long = {_LINGER[0]: _LONG_LINGER_MS, _STICKY[0]: _STICKY_MS}
            return {**settings, _BATCH_RECORDS[0]: batch_records, **long}
    fills_ms = min(queue.queue_kib // _SENT_KIB_PER_MS, queue.queue_records // _SENT_PER_MS)
    return {**settings, _LINGER[0]: _within(fills_ms, 1, _USUAL_LINGER_MS)}


def sets_compression(options: Mapping[str, object]) -> bool:
    """Whether the user has chosen how a sink compresses; ``options`` by librdkafka's names."""
    return any(name in options for name in _COMPRESSION)


def _require_room_for_message(options: Mapping[str, object]) -> None:
    """Check queue and message size if the user has set both."""
    queue_kib, message_bytes = _given(options, _SEND_KIB), _given(options, _MESSAGE)
    # In whole KiB: Java's option of the queue is in bytes and was rounded down.
    if 0 < queue_kib < message_bytes // _KIB:
        raise ConfigError(
            "a producer's queue is smaller than a sink's largest message",
            {_SEND_KIB[0]: queue_kib, _MESSAGE[0]: message_bytes},
            "Raise kafka.queue.buffering.max.kbytes (buffer.memory), or lower "
            "kafka.message.max.bytes (max.request.size).",
        )


def _within(wanted: int, least: int, most: int) -> int:
    return max(least, min(wanted, most))


def _given(options: Mapping[str, object], names: tuple[str, ...]) -> int:
    """Return the user's value under any of its names; 0: none."""
    for name in names:
        if name in options:
            try:
                return int(str(options[name]))
            except ValueError:
                raise ConfigError(
                    "a Kafka option is not a whole number",
                    {"option": f"kafka.{name}", "value": options[name]},
                    "Give a whole number.",
                ) from None
    return 0
