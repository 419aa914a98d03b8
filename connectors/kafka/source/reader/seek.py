"""Positions that are read on only once the leader has said that its log is the one that was read.

An assignment is believed: librdkafka reads on from its offset whatever is there by now. Behind a
seek it first asks the leader where the records of the position's epoch end (KIP-320), and says so
where that is before the position.
"""

import time
from collections.abc import Callable
from typing import Protocol

from sluice.connectors.kafka.client.confluent import KafkaException, TopicPartition, error_codes
from sluice.runtime.contracts import Clock, RecordsRead
from sluice.runtime.model.model import SplitRange

__all__ = ["Seeking", "place_of", "seek_surely"]

_PAUSE_S = 0.005
_NOT_YET = error_codes("_STATE", "_PREV_IN_PROGRESS", "_OUTDATED", "_TIMED_OUT")


class Seeking(Protocol):
    """What is needed of a consumer."""

    def seek(self, partition: TopicPartition) -> object:
        """Read on there; raises KafkaException where the partition's fetch has not begun."""
        ...


def place_of(split: SplitRange, position: int, read: RecordsRead | None) -> TopicPartition:
    """Where to read on, with the epoch by which a leader can be asked, where one is known. Pure.

    Whose markers lie between the last record and a position, nobody tells. So it goes on right
    behind that record: markers yield nothing again, and what another log has in their place comes
    as records. Not so where the pass began behind them, for from there on it takes records.

    Args:
        split: its start is where the pass began.
        position: where nothing but markers was seen behind it; of a range, the next offset.
        read: how far its records came; None: none came, or every record is checked.
    """
    if read is None or read.leader_epoch is None or read.end_offset < split.start_offset:
        return TopicPartition(split.topic, split.partition, position)
    return TopicPartition(
        split.topic, split.partition, read.end_offset, leader_epoch=read.leader_epoch
    )


def seek_surely(
    consumer: Seeking,
    place: TopicPartition,
    *,
    until_s: float,
    clock: Clock = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> bool:
    """Whether the seek has taken effect, behind the assignment of its partition.

    An assignment returns before its fetch begins: what was assigned before, and is not any more,
    stops first. A seek that comes earlier is refused, and all that follows would be believed; so it
    is tried again until its partition's fetch has begun.

    Args:
        place: assigned just now; where its records' epoch is known.
        until_s: on the clock; one try is made in any case.
    """
    while True:
        try:
            consumer.seek(place)
        except KafkaException as err:
            if err.args[0].code() not in _NOT_YET or clock() >= until_s:
                return False
            pause(_PAUSE_S)
        else:
            return True
