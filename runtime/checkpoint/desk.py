"""Cutting barriers and discovering splits, in the threads of those who poll."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from runtime.checkpoint.messages import AskCut, RegionCut, SplitsDiscovered
from runtime.checkpoint.plan import CheckpointSettings
from runtime.contracts import Clock, SplitEnumerator
from runtime.errors import UnreachableError
from runtime.failpoints import failpoint
from runtime.model import SplitKey, SplitRange

__all__ = ["SourceDesk"]

log = logging.getLogger(__name__)


class SourceDesk:
    """The job's sources. Any thread; each source serialises its own calls."""

    def __init__(
        self,
        sources: Mapping[str, SplitEnumerator],
        *,
        settings: CheckpointSettings,
        clock: Clock,
    ) -> None:
        self._sources = sources
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._discovered_s: dict[str, float] = {}

    def discover(
        self, source_ids: Sequence[str], tell: Callable[[SplitsDiscovered], object]
    ) -> bool:
        """Ask sources for new splits when their time has come; whether there were any."""
        found = False
        for source_id in source_ids:
            if source_id in self._sources and self._is_due(source_id):
                splits = self._discover(source_id)
                if splits:
                    tell(SplitsDiscovered(source_id=source_id, splits=splits))
                    found = True
        return found

    def _is_due(self, source_id: str) -> bool:
        interval_s = self._settings.discovery_interval_s
        if interval_s is None:
            return False
        with self._lock:
            now_s = self._clock()
            last_s = self._discovered_s.get(source_id)
            if last_s is not None and now_s - last_s < interval_s:
                return False
            self._discovered_s[source_id] = now_s
            return True

    def _discover(self, source_id: str) -> tuple[SplitRange, ...]:
        try:
            return self._sources[source_id].discover(timeout_s=self._settings.call_timeout_s)
        except UnreachableError as err:  # the next interval asks again
            log.warning("discovery was not answered: source_id=%s error=%s", source_id, err)
            return ()

    def cut(self, asked: AskCut, source_ids: Sequence[str]) -> RegionCut | None:
        """Cut a region's sources; None when one did not answer: the next poll tries again.

        Raises:
            SourceChangedError, DataLostError: going on would lose records.
        """
        failpoint("before-cut")
        splits: list[SplitRange] = []
        finished = bool(source_ids)
        for source_id in source_ids:
            source = self._sources[source_id]
            mine = [split for split in asked.positions if split.source_id == source_id]
            try:
                cut = source.cut(
                    mine, max_records=asked.max_records, timeout_s=self._settings.call_timeout_s
                )
                finished = source.is_finished(cut) and finished
            except UnreachableError as err:
                log.warning("barrier was not cut: region=%s error=%s", asked.region, err)
                return None
            splits.extend(cut)
        failpoint("after-cut")
        is_balanced = self._settings.balancer is not None
        return RegionCut(
            checkpoint_id=asked.checkpoint_id,
            region=asked.region,
            generation=asked.generation,
            splits=tuple(splits),
            finished=finished,
            waiting=self._waiting(splits) if is_balanced else {},
            asked=frozenset(split.key for split in asked.positions),
            has_read=asked.has_read,
        )

    def _waiting(self, splits: Sequence[SplitRange]) -> dict[SplitKey, int]:
        """Records behind a cut, of each split whose source knows."""
        lags = {split.key: self._sources[split.source_id].lag_records([split]) for split in splits}
        return {key: lag for key, lag in lags.items() if lag is not None}
