"""Cutting barriers and discovering splits, in the threads of those who poll."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from runtime.checkpoint.messages import AskCut, RegionCut, SplitsDiscovered
from runtime.checkpoint.plan import CheckpointSettings
from runtime.contracts import Clock, SplitEnumerator
from runtime.errors import UnreachableError
from runtime.failpoints import failpoint
from runtime.model import SplitKey, SplitRange

__all__ = ["SourceDesk"]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Looks:
    """When a source is asked for new splits.

    Attributes:
        due_s: the next look.
        is_open: the last one is under way, or was not answered.
        pause_s: before a look that follows one without an answer; grows.
    """

    due_s: float = float("-inf")
    is_open: bool = False
    pause_s: float = 0.0


class SourceDesk:
    """The job's sources. Any thread; each source serialises its own calls.

    A look for new splits that is not answered is taken again soon; until it is, no source has come
    to its end, for a bounded job would go without what nobody has found yet.
    """

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
        self._looks = {source_id: _Looks() for source_id in sources}

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
                if splits is not None:
                    self._looks[source_id].is_open = False  # whoever cuts now has what was found
        return found

    def _is_due(self, source_id: str) -> bool:
        interval_s = self._settings.discovery_interval_s
        if interval_s is None:
            return False
        with self._lock:
            look, now_s = self._looks[source_id], self._clock()
            if now_s < look.due_s:
                return False
            look.due_s, look.is_open = now_s + interval_s, True
            return True

    def _discover(self, source_id: str) -> tuple[SplitRange, ...] | None:
        """What is new; None: not answered."""
        look = self._looks[source_id]
        try:
            found = self._sources[source_id].discover(timeout_s=self._settings.call_timeout_s)
        except UnreachableError as err:
            with self._lock:
                first_s, longest_s = self._settings.retry_s, self._settings.max_retry_s
                look.pause_s = min(max(look.pause_s * 2, first_s), longest_s)
                look.due_s = min(look.due_s, self._clock() + look.pause_s)
            log.warning("discovery was not answered: source_id=%s error=%s", source_id, err)
            return None
        look.pause_s = 0.0
        return found

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
                is_known = not self._looks[source_id].is_open
                finished = finished and is_known and source.is_finished(cut)
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
