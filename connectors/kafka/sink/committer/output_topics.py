"""Reports output topics that were deleted and created again while a job writes to them.

Kafka's transactions know topics by name. A transaction commits without an error although the
records that it wrote to a deleted topic are gone.
"""

import logging
from collections.abc import Mapping, Sequence

from sluice.connectors.kafka.sink.committer.transaction_requests import Wire
from sluice.runtime.errors import StreamError

__all__ = ["OutputTopics"]

log = logging.getLogger(__name__)


class OutputTopics:
    """The ids that a sink's topics have had in this run. Driver, one thread at a time."""

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics
        self._ids: dict[str, list[str]] = {}

    def find_missing(self, wire: Wire, *, timeout_s: float) -> list[str]:
        """The topics that do not exist. Remembers the ids of the others.

        Raises: UnreachableError, AuthenticationError.
        """
        found = wire.topic_ids(self._topics, timeout_s=timeout_s)
        self._compare(found)
        return [topic for topic in self._topics if topic not in found]

    def report_recreated(self, wire: Wire, *, timeout_s: float) -> None:
        """Warn once of each topic whose id has changed. Never raises for a remote."""
        if not self._topics:
            return
        try:
            found = wire.topic_ids(self._topics, timeout_s=timeout_s)
        except StreamError as err:
            log.debug("the ids of output topics are unknown: error=%s", err)
            return
        self._compare(found)

    def _compare(self, found: Mapping[str, str | None]) -> None:
        for topic, now in found.items():
            seen = self._ids.setdefault(topic, [])
            # A broker may describe the deleted topic for a moment after another one has not.
            if now is None or now in seen:
                continue
            seen.append(now)
            if len(seen) > 1:
                log.warning(
                    "an output topic was deleted and created again: topic=%s old_id=%s new_id=%s. "
                    "Records of epochs around that time may be gone although they are committed. "
                    "Stop a job before you recreate its output topic.",
                    *(topic, seen[-2], now),
                )
