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
        self._seen: dict[PartitionKey, int] = {}

    def report(self, statistics: str) -> None:
        """The client's ``stats_cb``. It only keeps the text: few of them are read."""
        self._reported = statistics

    def moved(self, positions: Mapping[PartitionKey, int]) -> set[PartitionKey]:
        """Return the partitions that were fetched further than their position and than at the last
        call, or whose broker delays the client by a quota."""
        if not self._reported:
            return set()
        report, self._reported = json.loads(self._reported), ""
        delaying = {
            broker["nodeid"]
            for broker in report["brokers"].values()
            if broker.get("throttle", {}).get("max", 0) > 0
        }
        found = set()
        for key, position in positions.items():
            topic, number = key
            facts = report["topics"].get(topic, {}).get("partitions", {}).get(str(number), {})
            at, seen = facts.get("next_offset", 0), max(position, self._seen.get(key, 0))
            if at > seen or facts.get("broker") in delaying:
                found.add(key)
            self._seen[key] = max(at, seen)
        return found


def reporting(report: Callable[[str], None]) -> dict[str, object]:
    """Return librdkafka's settings for reports each second. A client must be polled as long as it
    lives: reports that nothing takes fill its memory."""
    return {"stats_cb": report, "statistics.interval.ms": _INTERVAL_MS}
