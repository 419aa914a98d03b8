"""One view of the brokers for all regions that reach a barrier at the same time."""

import logging
from collections.abc import Collection, Mapping

from sluice.connectors.kafka.client.retry import Deadline
from sluice.connectors.kafka.source.enumerator.discovery import ClusterView, SourceCluster
from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.connectors.kafka.source.splits import TopicFacts
from sluice.runtime.contracts import Clock
from sluice.runtime.errors import AuthenticationError, StreamError

__all__ = ["SharedView"]

log = logging.getLogger(__name__)

_FRESH_S = 0.02
_UNSHARED_S = 30.0
_SHARED_S = 1.0


class SharedView:
    """Fetches the offsets that all regions are about to need, once. Driver; one thread at a time.

    Regions reach a barrier one after the other, within milliseconds, and a view takes three
    requests: 16 regions would wait for 48 of them. Each region uses a view once. A partition
    without a leader must delay its own region only. So a shared view has a short timeout, and after
    a timeout each region fetches its own view for a while.

    Args:
        cluster: answers the requests.
        clock: monotonic seconds.
    """

    def __init__(self, cluster: SourceCluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._fetch_view: ClusterView | None = None
        self._unused: frozenset[PartitionKey] = frozenset()
        self._until_s = float("-inf")
        self._unshared_until_s = float("-inf")

    def view_of(
        self,
        starts: Mapping[PartitionKey, int],
        others: Collection[PartitionKey],
        *,
        timeout_s: float,
    ) -> ClusterView:
        """Return a view of these partitions, at most 20 ms old.

        Args:
            starts: the caller's positions; a view that ends before one is not used.
            others: partitions of other regions.
            timeout_s: for the brokers' answer.
        """
        view = self._fetch_view
        if view is None or not self._is_usable(view, starts):
            self._fetch_view = view = self._fetch(frozenset(starts), others, timeout_s)
        self._unused -= starts.keys()
        return view

    def topics(
        self, names: Collection[str], read: Collection[str], *, timeout_s: float
    ) -> Mapping[str, TopicFacts]:
        """Return the topics that exist.

        A topic that some region reads, and that the brokers refuse to describe, is left out: the
        next barrier of that region raises the error.

        Args:
            names: of topics.
            read: the names of those that some region reads.
            timeout_s: for each answer.
        Raises:
            AuthenticationError: the brokers refuse to describe a topic that no region reads.
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
                log.warning("new partitions cannot be discovered: topic=%s error=%s", name, err)
        return found

    def forget(self) -> None:
        """Make the next call fetch a new view."""
        self._fetch_view = None

    def _fetch(
        self, own: frozenset[PartitionKey], others: Collection[PartitionKey], timeout_s: float
    ) -> ClusterView:
        self._fetch_view = None
        deadline = Deadline(timeout_s, self._clock)
        all_keys = own.union(others)
        if all_keys != own and self._clock() >= self._unshared_until_s:
            try:
                return self._fetch_and_share(all_keys, min(timeout_s, _SHARED_S))
            except StreamError:
                self._unshared_until_s = self._clock() + _UNSHARED_S
        return self._fetch_and_share(own, max(0.0, deadline.left_s))

    def _fetch_and_share(self, keys: frozenset[PartitionKey], timeout_s: float) -> ClusterView:
        view = self._cluster.fetch_view(keys, timeout_s=timeout_s)
        self._unused, self._until_s = keys, self._clock() + _FRESH_S
        return view

    def _is_usable(self, view: ClusterView, starts: Mapping[PartitionKey, int]) -> bool:
        return (
            starts.keys() <= self._unused
            and self._clock() < self._until_s
            and all(
                key in view.latest and view.latest[key].offset >= start
                for key, start in starts.items()
            )
        )
