"""Logs that end before the end that a bounded source is to read up to: told while it waits."""

import logging
from collections.abc import Container, Mapping

from connectors.kafka.discovery import OffsetFact
from connectors.kafka.positions import PartitionKey
from runtime.contracts import Clock

__all__ = ["ShortLogs"]

log = logging.getLogger(__name__)

_PATIENCE_S = 30.0  # how often one is named


class ShortLogs:
    """A bounded source waits for such a log. It may grow, but it may have been cut off, too, where
    nobody had read yet. Driver; one thread at a time.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_s: dict[PartitionKey, float] = {}

    def tell(
        self,
        latest: Mapping[PartitionKey, OffsetFact],
        ends: Mapping[PartitionKey, int],
        *,
        gone: Container[PartitionKey],
    ) -> None:
        """Name those that have been short for a while.

        Args:
            latest: as of a look.
            ends: that are asked for.
            gone: what is gone on without.
        """
        now_s = self._clock()
        for key, fact in latest.items():
            if key in gone or fact.offset >= ends.get(key, 0):
                self._since_s.pop(key, None)
            elif now_s - self._since_s.setdefault(key, now_s) >= _PATIENCE_S:
                self._since_s[key] = now_s
                log.warning(
                    "a log ends before the end that is asked for, more records are waited for: "
                    "partition=%s-%d log_end=%d end=%d; if it was cut off (an unclean leader "
                    "election, a lost disk) none will come: stop the job, and ask for less",
                    *key,
                    fact.offset,
                    ends[key],
                )
