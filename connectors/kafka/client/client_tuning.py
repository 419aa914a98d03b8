"""From a task's memory to the settings of its clients: queues, fetches, batches. Pure.

librdkafka bounds payloads, and what it needs beside them for each record is more than a small
record itself; so every queue is bounded twice, in bytes and in records. The measurements behind
the numbers are in ``docs/research/tuning.md``.

The setting that chooses how records get from Kafka into Arrow and back. Pure.
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
    "says_compression",
    "write_settings",
]


class HotPath(enum.Enum):
    """Who moves the records of a task."""

    AUTO = "auto"  # compiled code where it can be had, else confluent-kafka's own calls
    NATIVE = "native"  # compiled code; where it cannot be had, the task fails and says why
    PLAIN = "plain"  # confluent-kafka's own calls, one Python object per record


def hot_path_of(given: HotPath | str) -> HotPath:
    """The setting, in words or as it is.

    Raises:
        ConfigError: there is none of this name.
    """
    return choice_of(HotPath, given, setting="hotPath")


MOST_SENT_MESSAGE_BYTES = 1_048_576
"""Of a sink, unless the user says otherwise: Java's ``max.request.size``."""

_KIB = 1024
# What librdkafka keeps for a record beside its key and value, the allocator's share included.
_CONSUMED_RECORD_BYTES = 400
_PRODUCED_RECORD_BYTES = 256
# A queue that has room for one more record is given a whole fetch, by each broker at once.
_BROKERS = 3
_USUAL_MESSAGE_BYTES = 1_000_000  # librdkafka's message.max.bytes; no fetch may be smaller
_MOST_PARTITION_BYTES = 1 << 20
_MOST_QUEUE_KIB = 2**21 - 1  # librdkafka's own limits
_MOST_QUEUE_RECORDS = 10_000_000
_LEAST_RECORDS = 1_000
_PATIENT_LINGER_MS = 100
_USUAL_LINGER_MS = 20
# Records without a key or partition stay with a partition for so long; librdkafka's own is twice
# the linger, for which all of a short epoch would go to one.
_STICKY_MS = 40
# More than a task can send; so with the usual linger the queue is not full before it is over.
_SENT_KIB_PER_MS = 512
_SENT_PER_MS = 2_000
_MOST_BATCH_RECORDS = 100_000
_BATCH_COPIES = 16
# The offsets of an Arrow column of bytes have 32 bits. Half of what they count, for without the hot
# path the next batch is only guessed from the last one, and its records may be larger.
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
    """Of one consumer, and of the batches made of its records. Picklable.

    A task reads with one consumer at a time, whatever the number of its splits: they share its
    queue.

    Attributes:
        queue_kib, queue_records: fetching ahead pauses when either is reached.
        fetch_bytes: most that a broker is asked for at once; a larger record batch comes all the
            same.
        partition_bytes: most of one partition.
        batch_bytes: of an Arrow batch, about: the next batch has as many records as the last one's
            mean size allows.
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
        """What the consumer may hold, of records that are larger than their bookkeeping."""
        return claimed_by_reader(self.librdkafka())


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSettings:
    """Of one producer. Picklable.

    A sink has one producer at a time that holds records: an epoch's are flushed before the next
    one's are sent. The others, made ready or waiting for their decision, are empty.

    Attributes:
        queue_kib, queue_records: the writer waits when either is reached.
        codec: how record batches are compressed; None: as librdkafka does unless told, not at all.
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
        """What the producer may hold, and the Arrow rows that its reports refer to."""
        return claimed_by_writer(self.librdkafka())


def claimed_by_reader(options: Mapping[str, object]) -> int:
    """Bytes that these settings of a consumer take: a user's own, or all of them, whether it reads
    ranges or follows; ``options`` by librdkafka's names."""
    return (
        _given(options, _QUEUE_KIB) * _KIB
        + _given(options, _QUEUE_RECORDS) * _CONSUMED_RECORD_BYTES
        + _given(options, _FETCH) * _BROKERS
    )


def claimed_by_writer(options: Mapping[str, object]) -> int:
    """As `claimed_by_reader`, of a producer."""
    return (
        2 * _given(options, _SEND_KIB) * _KIB
        + _given(options, _SEND_RECORDS) * _PRODUCED_RECORD_BYTES
    )


def read_settings(memory: TaskMemory, options: Mapping[str, object]) -> ReadSettings:
    """Settings of a consumer.

    Args:
        memory: of the task, in which the user's own settings are claimed.
        options: the user's own, by librdkafka's names; they win.
    Raises:
        ConfigError: the largest fetch that is asked for does not fit.
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
            "Raise it, or lower kafka.message.max.bytes (max.request.size) of the source.",
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
            "a task's memory is too small for the largest message of a sink",
            {
                "task_memory_mib": memory.total_bytes >> 20,
                "sinks": memory.sinks,
                "message_kib": message_kib,
                "for_each_sink_mib": part >> 20,
            },
            "Raise it, or lower kafka.message.max.bytes (max.request.size) of the sink.",
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
    """When a producer sends a batch, by librdkafka's names; a flush does not wait for it.

    A partition has one batch on its way at a time. Once a record behind it has waited for the
    linger, librdkafka calls ``poll`` without a pause until the answer is there, on a core that the
    broker may need; so a record waits for long where no `read_committed` reader could see it any
    sooner. But a queue that is full before any of its batches takes no record until the linger is
    over: for long only where a batch is full before the queue is, however the records are spread
    (``docs/adr/0016``).

    Args:
        queue: of the producer.
        options: the user's own, by librdkafka's names.
        batch_bytes: of a batch at most, unless the user says otherwise.
        partitions: of all topics that are written to; None: not known.
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
            patient = {_LINGER[0]: _PATIENT_LINGER_MS, _STICKY[0]: _STICKY_MS}
            return {**settings, _BATCH_RECORDS[0]: batch_records, **patient}
    fills_ms = min(queue.queue_kib // _SENT_KIB_PER_MS, queue.queue_records // _SENT_PER_MS)
    return {**settings, _LINGER[0]: _within(fills_ms, 1, _USUAL_LINGER_MS)}


def says_compression(options: Mapping[str, object]) -> bool:
    """Whether the user has chosen how a sink compresses; ``options`` by librdkafka's names."""
    return any(name in options for name in _COMPRESSION)


def _require_room_for_message(options: Mapping[str, object]) -> None:
    """Where the user has given both. A queue alone may be for records that are all small."""
    queue_kib, message_bytes = _given(options, _SEND_KIB), _given(options, _MESSAGE)
    # Of whole KiB, for Java's name of the queue is given in bytes, and rounded down.
    if 0 < queue_kib < message_bytes // _KIB:
        raise ConfigError(
            "a producer's queue is smaller than the largest message of a sink",
            {_SEND_KIB[0]: queue_kib, _MESSAGE[0]: message_bytes},
            "Raise kafka.queue.buffering.max.kbytes (buffer.memory), or lower "
            "kafka.message.max.bytes (max.request.size).",
        )


def _within(wanted: int, least: int, most: int) -> int:
    return max(least, min(wanted, most))


def _given(options: Mapping[str, object], names: tuple[str, ...]) -> int:
    """The user's own value under any of its names; 0: none."""
    for name in names:
        if name in options:
            try:
                return int(str(options[name]))
            except ValueError:
                raise ConfigError(
                    "a Kafka option is not a whole number",
                    {"option": f"kafka.{name}", "value": options[name]},
                    "Correct it.",
                ) from None
    return 0
