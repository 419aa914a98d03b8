"""Seeks that make librdkafka check whether a log is still the one that was read.

librdkafka does not check an assignment: it reads on from the offset, whatever record is there.
After a seek it first asks the leader where the records of the position's epoch end (KIP-320), and
reports a truncation if that is before the position.
"""

import time
from collections.abc import Callable
from typing import Protocol

from sluice.connectors.kafka.client.confluent import KafkaException, TopicPartition, error_codes
from sluice.connectors.kafka.client.retry import Deadline
from sluice.runtime.contracts import RecordsRead
from sluice.runtime.model.splits import SplitRange

__all__ = ["Seeking", "resume_position", "seek_with_retries"]

_PAUSE_S = 0.005
_NOT_YET = error_codes("_STATE", "_PREV_IN_PROGRESS", "_OUTDATED", "_TIMED_OUT")


class Seeking(Protocol):
    """The seek of a consumer."""

    def seek(self, partition: TopicPartition) -> object:
        """Continue there; raises KafkaException if the partition's fetch has not begun."""
        ...


def resume_position(split: SplitRange, position: int, read: RecordsRead | None) -> TopicPartition:
    """Return the offset from which to continue, with its leader epoch if that is known. Pure.

    The leader that wrote the markers between the last record and a position is unknown. So reading
    continues directly after that record: markers give no record again, and records of another log
    at their offsets are returned. A pass that began after the markers continues at the position.

    Args:
        split: its start is where the pass began.
        position: the next offset; between the last record and it there are markers only.
        read: end of the records so far; None: no record came, or every record is checked.
    """
    if read is None or read.leader_epoch is None or read.end_offset < split.start_offset:
        return TopicPartition(split.topic, split.partition, position)
    return TopicPartition(
        split.topic, split.partition, read.end_offset, leader_epoch=read.leader_epoch
    )


def seek_with_retries(
    consumer: Seeking,
    place: TopicPartition,
    *,
    deadline: Deadline,
    pause: Callable[[float], object] = time.sleep,
) -> bool:
    """Seek after an assignment; return whether the seek has taken effect.

    An assignment returns before its fetch begins: librdkafka first stops partitions that are no
    longer assigned. It refuses a seek before that, and would not check the log then. So the seek is
    repeated until the partition's fetch has begun.

    If the leader's epoch arrives between the two, librdkafka checks the log by itself. If that log
    is another one, it ends the fetch, and refuses each seek: the result is False.

    Args:
        place: assigned just now, with the epoch of its records.
        deadline: at least one try is made.
    """
    while True:
        try:
            consumer.seek(place)
        except KafkaException as err:
            if err.args[0].code() not in _NOT_YET or deadline.is_over:
                return False
            pause(_PAUSE_S)
        else:
            return True
