"""Logs that end before the end that a bounded source should reach: warnings and errors."""

import logging
from collections.abc import Container, Iterable, Mapping, Sequence

from sluice.connectors.kafka.source.enumerator.discovery import OffsetFact
from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.connectors.kafka.source.splits import reach, require_whole, stops_short
from sluice.runtime.contracts import Clock
from sluice.runtime.model.splits import SplitRange

__all__ = ["ShortLogs", "check_short_ranges"]

log = logging.getLogger(__name__)

_WARNING_INTERVAL_S = 30.0


class ShortLogs:
    """Warns of partitions without a leader, and of logs that end before a bounded source's end.

    A short log may grow. It may also have been truncated after the last record that the source has
    read. Driver; one thread at a time.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_s: dict[PartitionKey, float] = {}

    def report(
        self,
        latest: Mapping[PartitionKey, OffsetFact],
        ends: Mapping[PartitionKey, int],
        *,
        requested: Iterable[PartitionKey] = (),
        gone: Container[PartitionKey],
    ) -> None:
        """Log a warning for each partition that has been short, or without an answer, for 30 s.

        Args:
            latest: current visible ends.
            ends: where the source should end.
            requested: the partitions that ``latest`` was requested for.
            gone: deleted partitions, which the source skips.
        """
        self.report_timed_out(key for key in requested if key not in latest and key not in gone)
        for key, fact in latest.items():
            if key in gone or fact.offset >= ends.get(key, 0):
                self._since_s.pop(key, None)
            elif self._is_due(key):
                log.warning(
                    "a log ends before the requested end, waiting for records: partition=%s-%d "
                    "log_end=%d end=%d; if an unclean leader election or a lost disk truncated the "
                    "log, stop the job and lower the end",
                    *key,
                    fact.offset,
                    ends[key],
                )

    def report_timed_out(self, keys: Iterable[PartitionKey]) -> None:
        """Log a warning for each of these partitions that has had no leader for 30 s.

        If only some partitions of a request have no leader, librdkafka returns an error. If all of
        them have none, it returns an answer without them.
        """
        for key in keys:
            if self._is_due(key):
                log.warning(
                    "a partition has no leader, waiting for its records: partition=%s-%d; are all "
                    "brokers up?",
                    *key,
                )

    def _is_due(self, key: PartitionKey) -> bool:
        now_s = self._clock()
        is_due = now_s - self._since_s.setdefault(key, now_s) >= _WARNING_INTERVAL_S
        if is_due:
            self._since_s[key] = now_s
        return is_due


def check_short_ranges(
    ranges: Sequence[SplitRange], ends: Mapping[PartitionKey, int], *, is_error: bool
) -> None:
    """Check that ranges reach these ends.

    Raises:
        ConfigError: a range ends earlier, and ``is_error`` is set; otherwise it is a warning.
    """
    if is_error:
        require_whole(ranges, ends)
    elif short := reach(stops_short(ranges, ends), ends):
        log.warning(
            "fewer records are read than requested: %s",
            ", ".join(f"{name}: {how_far}" for name, how_far in short.items()),
        )
