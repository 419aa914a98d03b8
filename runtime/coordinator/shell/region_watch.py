"""Looks at a job's regions every few seconds: how far they are behind, and who is for too long."""

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sluice.runtime.contracts import Backlog, Clock, SplitEnumerator
from sluice.runtime.coordinator.core.core import CoordinatorCore
from sluice.runtime.coordinator.region.pressure import PressureAlarm
from sluice.runtime.coordinator.region.status_views import JobStatus, RegionStatusView
from sluice.runtime.errors import StreamError
from sluice.runtime.model.model import SplitKey, SplitRange

__all__ = ["RegionWatch", "RegionsSeen", "regions_seen"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionsSeen:
    """What the coordinator's core says of all regions, by name; of suspended ones no ratio.

    Attributes:
        positions: where each goes on.
        suspended: those that stand still.
        ratios: of pending time, see `sluice.runtime.coordinator.region.pressure`.
    """

    positions: Mapping[str, Sequence[SplitRange]]
    suspended: Collection[str]
    ratios: Mapping[str, float]


def regions_seen(core: CoordinatorCore, now_s: float) -> RegionsSeen:
    """What it says now."""
    positions = core.positions()
    return RegionsSeen(
        positions=positions,
        suspended=[name for name in positions if core.is_suspended(name)],
        ratios=core.pending_ratios(now_s),
    )


@dataclass(slots=True)
class _Found:
    backlogs: Mapping[SplitKey, Backlog] = field(default_factory=dict)
    names: Mapping[SplitKey, str] = field(default_factory=dict)


class RegionWatch:
    """A thread that looks until it is stopped; `told` may be called by every thread.

    Nothing is decided by it. A region that runs is told by its last cut, which costs nothing; of a
    suspended one, whose lag nobody else would notice, the source is asked.

    Args:
        ask: the core's answer.
        sources: by operator id.
        interval_s: between looks.
        alarm_s: pressure that is high for so long is told; None: never.
        timeout_s: of one question to a source.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        ask: Callable[[], RegionsSeen],
        *,
        sources: Mapping[str, SplitEnumerator],
        interval_s: float,
        alarm_s: float | None,
        timeout_s: float,
        clock: Clock,
    ) -> None:
        self._ask = ask
        self._sources = sources
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._alarm = PressureAlarm(limit_s=alarm_s)
        self._alarmed: frozenset[str] = frozenset()
        self._found: Mapping[str, _Found] = {}
        self._losses: dict[SplitKey, int] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sluice-regions", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, *, timeout_s: float) -> None:
        """End the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def told(self, status: JobStatus) -> JobStatus:
        """The status, with what was found at the last look."""
        found, alarmed = self._found, self._alarmed
        return replace(
            status,
            regions=tuple(
                _with_lag(
                    replace(region, has_alarm=region.region in alarmed),
                    found.get(region.region, _Found()),
                )
                for region in status.regions
            ),
        )

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            try:
                self.look()
            except Exception:  # a client's own bug must not end the looks of the whole run
                log.exception("regions could not be looked at; the next look tries again")

    def look(self) -> None:
        """One look, in the caller's thread."""
        seen = self._ask()
        self._found = {
            name: self._look_at(name, splits, is_suspended=name in seen.suspended)
            for name, splits in seen.positions.items()
        }
        begun, ended = self._alarm.look(self._clock(), seen.ratios)
        for name in begun:
            log.warning(
                "region is under high pressure: region=%s pending_ratio=%.2f since_s=%.0f. It is "
                "behind its barriers: more regions, more cores, or a longer interval_s.",
                name,
                seen.ratios[name],
                self._alarm.limit_s,
            )
        for name in ended:
            log.warning("region is no longer under high pressure: region=%s", name)
        self._alarmed = self._alarm.alarmed

    def _look_at(self, name: str, splits: Sequence[SplitRange], *, is_suspended: bool) -> _Found:
        backlogs: dict[SplitKey, Backlog] = {}
        for source_id in {split.source_id for split in splits} & self._sources.keys():
            mine = [split for split in splits if split.source_id == source_id]
            source = self._sources[source_id]
            backlogs |= self._measured(name, source, mine) if is_suspended else _cheap(source, mine)
        return _Found(backlogs=backlogs, names={split.key: split.name for split in splits})

    def _measured(
        self, name: str, source: SplitEnumerator, splits: Sequence[SplitRange]
    ) -> Mapping[SplitKey, Backlog]:
        try:
            found = source.measure(splits, timeout_s=self._timeout_s)
        except StreamError as err:
            log.warning("lag of a suspended region is not known: region=%s error=%s", name, err)
            return {}
        for split in splits:
            lost = found[split.key].lost_records if split.key in found else 0
            if lost > self._losses.get(split.key, 0):
                log.error(
                    "retention deletes what a suspended region has not read: region=%s split=%s "
                    "lost_records=%d",
                    name,
                    split.name,
                    lost,
                )
                self._losses[split.key] = 2 * lost  # once more when it is twice as much
        return found


def _cheap(source: SplitEnumerator, splits: Sequence[SplitRange]) -> dict[SplitKey, Backlog]:
    lags = {split.key: source.lag_records([split]) for split in splits}
    return {key: Backlog(records=lag) for key, lag in lags.items() if lag is not None}


def _with_lag(view: RegionStatusView, found: _Found) -> RegionStatusView:
    if not found.backlogs:
        return view
    return replace(
        view,
        lags={found.names[key]: each.records for key, each in sorted(found.backlogs.items())},
        lag_records=sum(each.records for each in found.backlogs.values()),
        lost_records=sum(each.lost_records for each in found.backlogs.values()),
    )
