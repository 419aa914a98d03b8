"""Cutting barriers and discovering splits, in the threads of those who poll."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sluice.runtime.contracts import Clock, SplitEnumerator
from sluice.runtime.coordinator.core.events import (
    FetchBarrierOffsets,
    RegionBarrierOffsets,
    SplitsDiscovered,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings
from sluice.runtime.coordinator.shell.serial_calls import SerialSource
from sluice.runtime.errors import SourceChangedError, UnreachableError, UnreadSplitsLostError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.model import Barrier, SplitKey, SplitRange, busy_by_source

__all__ = ["SourceService"]

log = logging.getLogger(__name__)

_LIMIT_S = 9.0
"""For all that one poll asks: a task takes a coordinator that is 10 s late for a silent one."""
_HELD = 0.5
"""How much of that one look may hold a source: whoever waits behind it has the rest."""
_PATIENT_EVERY = 4
"""Tries behind one that was not answered are short, and share that time among the regions whose
brokers do not answer, for others wait behind them; but for every fourth, for brokers are slow."""
_SHORTEST = 0.05
"""Of a poll's time, for such a try: enough for brokers that answer."""
_KEPT_S = 30.0
"""An answer that waits for other sources is as old at most: it says what is there now."""


@dataclass(slots=True)
class _Looks:
    """When a source is asked for new splits.

    Attributes:
        due_s: the next look.
        is_open: the last one is under way, or was not answered.
        pause_s: before a look that follows one without an answer; grows.
        misses: looks in a row that were not answered.
    """

    due_s: float = float("-inf")
    is_open: bool = False
    pause_s: float = 0.0
    misses: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """A source's answer.

    Attributes:
        at_s: when it was given.
        splits: its ranges.
        is_finished: whether they end at the source's end.
        waiting: records behind them.
    """

    at_s: float
    splits: tuple[SplitRange, ...]
    is_finished: bool
    waiting: Mapping[SplitKey, int]


@dataclass(slots=True)
class _Question:
    """A region's, as far as it is answered: what one source has said waits for the others."""

    asked: FetchBarrierOffsets
    cuts: dict[str, _Cut] = field(default_factory=dict)
    tries: int = 0
    again_s: float = float("-inf")


class SourceService:
    """The job's sources. Any thread; each source serialises its own calls.

    A look for new splits that is not answered is taken again soon; until it is, no source has come
    to its end, for a bounded job would go without what nobody has found yet.
    """

    def __init__(
        self,
        sources: Mapping[str, SerialSource],
        *,
        settings: CheckpointSettings,
        clock: Clock,
    ) -> None:
        self._sources = sources
        self._settings = settings
        self._clock = clock
        self._limit_s = min(settings.call_timeout_s, _LIMIT_S)
        self._lock = threading.Lock()
        self._questions: dict[str, _Question] = {}
        self._unanswered: dict[str, set[str]] = {source_id: set() for source_id in sources}
        self._looks = {source_id: _Looks() for source_id in sources}

    def deadline_s(self) -> float:
        """Until when whoever polls now is to be answered."""
        return self._clock() + self._limit_s

    def discover(
        self,
        source_ids: Sequence[str],
        tell: Callable[[SplitsDiscovered], object],
        *,
        until_s: float,
    ) -> bool:
        """Ask sources for new splits when their time has come; whether there were any. Takes half
        of the time, and the cut the other one; all of it now and then, where brokers are slow.

        Raises:
            UnreadSplitsLostError: a source's own SourceChangedError, which is about no region.
        """
        found = False
        for source_id in source_ids:
            if source_id in self._sources and self._is_due(source_id):
                is_patient = self._looks[source_id].misses % _PATIENT_EVERY == _PATIENT_EVERY - 1
                cuts_s = 0.0 if is_patient else self._limit_s * _HELD
                left_s = max(0.0, until_s - cuts_s - self._clock())
                splits = self._discover(source_id, timeout_s=left_s)
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

    def _discover(self, source_id: str, *, timeout_s: float) -> tuple[SplitRange, ...] | None:
        """What is new; None: not answered."""
        look = self._looks[source_id]
        try:
            found = self._sources[source_id].discover(timeout_s=timeout_s)
        except UnreachableError as err:
            with self._lock:
                first_s, longest_s = self._settings.retry_s, self._settings.max_retry_s
                look.pause_s = min(max(look.pause_s * 2, first_s), longest_s)
                look.misses += 1
                look.due_s = min(look.due_s, self._clock() + look.pause_s)
            log.warning("discovery was not answered: source_id=%s error=%s", source_id, err)
            return None
        except SourceChangedError as err:
            # Of what a region reads its own cut tells: whoever looks here has lost nothing.
            raise UnreadSplitsLostError(*err.args) from err
        look.pause_s, look.misses = 0.0, 0
        return found

    def cut(
        self, asked: FetchBarrierOffsets, source_ids: Sequence[str], *, until_s: float
    ) -> RegionBarrierOffsets | None:
        """Cut a region's sources; None when one did not answer: the next poll tries again.

        Raises:
            SourceChangedError, DataLostError: going on would lose records.
        """
        failpoint("before-cut")
        question = self._question(asked)
        if self._clock() < question.again_s:
            return None
        for source_id in source_ids:
            known = question.cuts.get(source_id)
            if known is not None and self._clock() - known.at_s < _KEPT_S:
                continue
            try:
                question.cuts[source_id] = self._cut(question, source_id, until_s)
            except UnreachableError as err:
                log.warning("barrier was not cut: region=%s error=%s", asked.region, err)
                self._note_unanswered(question, source_id)
                return None
            self._unanswered[source_id].discard(asked.region)
        with self._lock:  # what is asked next may be the same, and its answer another one
            self._questions.pop(asked.region, None)
        cuts = [question.cuts[source_id] for source_id in source_ids]
        is_known = not any(self._looks[source_id].is_open for source_id in source_ids)
        failpoint("after-cut")
        return RegionBarrierOffsets(
            checkpoint_id=asked.checkpoint_id,
            region=asked.region,
            attempt_id=asked.attempt_id,
            splits=tuple(split for cut in cuts for split in cut.splits),
            finished=is_known and all(cut.is_finished for cut in cuts),
            waiting={key: lag for cut in cuts for key, lag in cut.waiting.items()},
            asked=frozenset(split.key for split in asked.positions),
            has_read=asked.has_read,
        )

    def replayable(self, batch: Barrier) -> Barrier:
        """A batch that is read again, without what is gone of it since it was cut. Whole where
        nobody answers: its tasks wait for the brokers then, and whoever begins anew asks again.

        Raises:
            SourceChangedError, DataLostError: it cannot be read, or not whole.
        """
        left: list[SplitRange] = []
        for source_id, mine in busy_by_source(batch.splits).items():
            try:
                left += self._sources[source_id].replayable(mine, timeout_s=self._limit_s)
            except UnreachableError as err:
                log.warning("replay is not looked at: region=%s error=%s", batch.region, err)
                left += mine
        return replace(batch, splits=tuple(left))

    def _question(self, asked: FetchBarrierOffsets) -> _Question:
        """The region's open one, if it is still the same."""
        with self._lock:
            found = self._questions.get(asked.region)
            if found is None or found.asked != asked:
                found = self._questions[asked.region] = _Question(asked)
            return found

    def _cut(self, question: _Question, source_id: str, until_s: float) -> _Cut:
        asked = question.asked
        mine = [split for split in asked.positions if split.source_id == source_id]
        with self._sources[source_id].held(until_s - self._clock()) as (source, left_s):
            splits = source.cut(
                mine,
                max_records=asked.max_records,
                timeout_s=min(left_s, self._retry_for_s(question, source_id)),
            )
            return _Cut(
                at_s=self._clock(),
                splits=tuple(splits),
                is_finished=source.is_finished(splits),
                waiting=self._waiting(source, splits),
            )

    def _retry_for_s(self, question: _Question, source_id: str) -> float:
        """How long this try may hold the source."""
        held_s = self._limit_s * _HELD
        if question.tries % _PATIENT_EVERY == 0:
            return held_s
        sharing = max(1, len(self._unanswered[source_id]))
        return max(held_s / sharing, self._limit_s * _SHORTEST)

    def _note_unanswered(self, question: _Question, source_id: str) -> None:
        """Whoever asks again at once stands in the way of those whose brokers answer."""
        self._unanswered[source_id].add(question.asked.region)
        first_s, longest_s = self._settings.retry_s, self._settings.max_retry_s
        pause_s = min(first_s * 2.0 ** min(question.tries, 16), longest_s)
        question.again_s = self._clock() + pause_s
        question.tries += 1

    def _waiting(
        self, source: SplitEnumerator, splits: Sequence[SplitRange]
    ) -> dict[SplitKey, int]:
        """Records behind a cut, of each split whose source knows, where splits may move."""
        if self._settings.balancer is None:
            return {}
        lags = {split.key: source.lag_records([split]) for split in splits}
        return {key: lag for key, lag in lags.items() if lag is not None}
