"""Logs that end before an end that is asked for: waited for and told while it lasts, or judged."""

import logging
from collections.abc import Container, Iterable, Mapping, Sequence

from sluice.connectors.kafka.source.enumerator.discovery import OffsetFact
from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.connectors.kafka.source.splits import reach, require_whole, stops_short
from sluice.runtime.contracts import Clock
from sluice.runtime.model.model import SplitRange

__all__ = ["ShortLogs", "judge_short"]

log = logging.getLogger(__name__)

_RETRY_FOR_S = 30.0  # how often one is named


class ShortLogs:
    """Partitions of which no leader tells an end, and logs that end before the end that a bounded
    source is to read up to. Such a log may grow, but it may have been cut off, too, where nobody
    had read yet. Driver; one thread at a time.

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
        asked: Iterable[PartitionKey] = (),
        gone: Container[PartitionKey],
    ) -> None:
        """Name those that have been short, or silent, for a while.

        Args:
            latest: as of a look.
            ends: that are asked for.
            asked: the look was for these.
            gone: what is gone on without.
        """
        self.report_timed_out(key for key in asked if key not in latest and key not in gone)
        for key, fact in latest.items():
            if key in gone or fact.offset >= ends.get(key, 0):
                self._since_s.pop(key, None)
            elif self._lasts(key):
                log.warning(
                    "a log ends before the end that is asked for, more records are waited for: "
                    "partition=%s-%d log_end=%d end=%d; if it was cut off (an unclean leader "
                    "election, a lost disk) none will come: stop the job, and ask for less",
                    *key,
                    fact.offset,
                    ends[key],
                )

    def report_timed_out(self, keys: Iterable[PartitionKey]) -> None:
        """Name those of which no leader has told an end for a while.

        Of some partitions without a leader beside others with one librdkafka makes an error, of
        those alone an answer that leaves them out.
        """
        for key in keys:
            if self._lasts(key):
                log.warning(
                    "no leader tells where a partition ends, its records are waited for: "
                    "partition=%s-%d; are all brokers up?",
                    *key,
                )

    def _lasts(self, key: PartitionKey) -> bool:
        now_s = self._clock()
        is_due = now_s - self._since_s.setdefault(key, now_s) >= _RETRY_FOR_S
        if is_due:
            self._since_s[key] = now_s
        return is_due


def judge_short(
    ranges: Sequence[SplitRange], ends: Mapping[PartitionKey, int], *, is_error: bool
) -> None:
    """Refuse ranges that stop short of these ends, or say so.

    Raises:
        ConfigError: a log ends, for this reader, before its end, and that is to be an error.
    """
    if is_error:
        require_whole(ranges, ends)
    elif short := reach(stops_short(ranges, ends), ends):
        log.warning(
            "fewer records are read than asked for: %s",
            ", ".join(f"{name}: {how_far}" for name, how_far in short.items()),
        )
