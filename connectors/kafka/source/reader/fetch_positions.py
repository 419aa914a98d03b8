"""How far a client has fetched, from librdkafka's statistics."""

import json
from collections.abc import Callable, Mapping

from sluice.connectors.kafka.source.positions import PartitionKey

__all__ = ["FetchPositions", "reporting"]

_INTERVAL_MS = 1_000


class FetchPositions:
    """Progress of a client's fetches. Used by the thread that polls the client.

    A client returns no aborted record and no marker: while it skips them, only this changes.
    """

    def __init__(self) -> None:
        self._reported = ""
        self._next: dict[PartitionKey, int] = {}
        self._seen: dict[PartitionKey, int] = {}

    def report(self, statistics: str) -> None:
        """The client's ``stats_cb``. It only keeps the text: few of them are read."""
        self._reported = statistics

    def next_offsets(self) -> Mapping[PartitionKey, int]:
        """Return the next offset to fetch of each partition, as of the last report."""
        if self._reported:
            topics, self._reported = json.loads(self._reported)["topics"], ""
            self._next = {
                (topic, int(number)): found["next_offset"]
                for topic, facts in topics.items()
                for number, found in facts["partitions"].items()
            }
        return self._next

    def has_moved(self, positions: Mapping[PartitionKey, int]) -> bool:
        """Whether one of these partitions was fetched further than its position, and further than
        at the last call."""
        if not self._reported:
            return False
        at = self.next_offsets()
        moved = {
            key: at[key]
            for key, position in positions.items()
            if at.get(key, 0) > max(position, self._seen.get(key, 0))
        }
        self._seen |= moved
        return bool(moved)


def reporting(report: Callable[[str], None]) -> dict[str, object]:
    """Return librdkafka's settings for reports each second. A client must be polled as long as it
    lives: reports that nothing takes fill its memory."""
    return {"stats_cb": report, "statistics.interval.ms": _INTERVAL_MS}
