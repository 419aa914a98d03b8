"""One look at the brokers for all regions: for those that are cut at the same time, and for new
partitions."""

import logging
from collections.abc import Collection, Mapping

from sluice.connectors.kafka.source.enumerator.discovery import Look, SourceCluster
from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.connectors.kafka.source.splits import TopicFacts
from sluice.runtime.contracts import Clock
from sluice.runtime.errors import AuthenticationError, StreamError

__all__ = ["SharedLook"]

log = logging.getLogger(__name__)

_FRESH_S = 0.02
_ALONE_S = 30.0
_SHARED_S = 1.0


class SharedLook:
    """Looks for whoever cuts first at what the others are about to ask for. Driver; one thread at
    a time.

    A barrier is cut for one region after the other, within milliseconds, and a look is three
    requests: 16 regions waited for 48 of them. Who has used it looks anew the next time. A
    partition without a leader must cost its own region alone, so a shared look is given a moment,
    and behind one that was not answered each looks for itself for a while.

    Args:
        cluster: that is asked.
        clock: monotonic seconds.
    """

    def __init__(self, cluster: SourceCluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._look: Look | None = None
        self._unused: frozenset[PartitionKey] = frozenset()
        self._until_s = float("-inf")
        self._alone_until_s = float("-inf")

    def of(
        self,
        starts: Mapping[PartitionKey, int],
        others: Collection[PartitionKey],
        *,
        timeout_s: float,
    ) -> Look:
        """A look at these partitions, at most a moment old.

        Args:
            starts: where the caller is; a look that is older than that is not used.
            others: what is read besides.
            timeout_s: for the brokers' answer.
        """
        look = self._look
        if look is None or not self._is_usable(look, starts):
            self._look = look = self._look_anew(frozenset(starts), others, timeout_s)
        self._unused -= starts.keys()
        return look

    def topics(
        self, names: Collection[str], read: Collection[str], *, timeout_s: float
    ) -> Mapping[str, TopicFacts]:
        """Those that exist, without what is read already and the cluster does not tell of any more:
        who reads that is told so by its own cut, and anybody may be looking here.

        Args:
            names: of topics.
            read: those of them that some region reads.
            timeout_s: for each of the brokers' answers.
        Raises:
            AuthenticationError: one that nobody reads is refused.
        """
        try:
            return self._cluster.describe(names, timeout_s=timeout_s)
        except AuthenticationError:
            if not set(read).intersection(names):
                raise
        found: dict[str, TopicFacts] = {}
        for name in sorted(names):
            try:
                found |= self._cluster.describe([name], timeout_s=timeout_s)
            except AuthenticationError as err:
                if name not in read:
                    raise
                log.warning("no new partitions are looked for: topic=%s error=%s", name, err)
        return found

    def forget(self) -> None:
        """The next look is made anew, for whoever asks what is there now."""
        self._look = None

    def _look_anew(
        self, own: frozenset[PartitionKey], others: Collection[PartitionKey], timeout_s: float
    ) -> Look:
        self._look = None
        until_s = self._clock() + timeout_s
        all_keys = own.union(others)
        if all_keys != own and self._clock() >= self._alone_until_s:
            try:
                return self._kept(all_keys, min(timeout_s, _SHARED_S))
            except StreamError:
                self._alone_until_s = self._clock() + _ALONE_S
        return self._kept(own, max(0.0, until_s - self._clock()))

    def _kept(self, keys: frozenset[PartitionKey], timeout_s: float) -> Look:
        look = self._cluster.look(keys, timeout_s=timeout_s)
        self._unused, self._until_s = keys, self._clock() + _FRESH_S
        return look

    def _is_usable(self, look: Look, starts: Mapping[PartitionKey, int]) -> bool:
        return (
            starts.keys() <= self._unused
            and self._clock() < self._until_s
            and all(
                key in look.latest and look.latest[key].offset >= start
                for key, start in starts.items()
            )
        )
