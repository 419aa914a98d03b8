"""Where a source is, published as a group's offsets for tools that measure lag; never read back."""

import logging
from collections.abc import Sequence

from connectors.kafka.discovery import SourceCluster
from connectors.kafka.splits import key_of
from runtime.contracts import Clock
from runtime.errors import StreamError
from runtime.model import SplitRange

__all__ = ["OffsetPublication"]

log = logging.getLogger(__name__)

_TIMEOUT_S = 5.0
_PAUSE_S = 60.0  # a group that nobody coordinates must not cost every epoch that time-out


class OffsetPublication:
    """Publishes positions; what cannot be published is told, and stops nothing. Driver; one thread
    at a time.

    Args:
        cluster: that holds the group.
        group_id: name of the group.
        clock: monotonic seconds.
    """

    def __init__(self, cluster: SourceCluster, group_id: str, clock: Clock) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._clock = clock
        self._again_at_s = float("-inf")

    def publish(self, positions: Sequence[SplitRange]) -> None:
        """Their ends become the group's offsets. Never raises."""
        if not positions or self._clock() < self._again_at_s:
            return
        offsets = {key_of(split): split.end_offset for split in positions}
        try:
            self._cluster.commit(self._group_id, offsets, timeout_s=_TIMEOUT_S)
        except StreamError as err:
            self._again_at_s = self._clock() + _PAUSE_S
            log.warning("group offsets not published: group=%s reason=%s", self._group_id, err)
