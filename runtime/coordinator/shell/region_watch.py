"""Measures the lag and the pressure of a job's regions every few seconds."""

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sluice.runtime.contracts import Backlog, Clock, SplitEnumerator
from sluice.runtime.coordinator.core.core import CoordinatorCore
from sluice.runtime.coordinator.region.region_pace import PressureAlarm
from sluice.runtime.coordinator.region.status_views import JobStatus, RegionStatusView
from sluice.runtime.errors import StreamError
from sluice.runtime.model.splits import SplitKey, SplitRange

__all__ = ["RegionWatch", "RegionsView", "view_of_regions"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionsView:
    """The core's view of all regions, by name.

    Attributes:
        positions: next offsets of each region.
        suspended: names of suspended regions.
        ratios: of pending time, see `sluice.runtime.coordinator.region.region_pace`; none for a
            suspended region.
    """

    positions: Mapping[str, Sequence[SplitRange]]
    suspended: Collection[str]
    ratios: Mapping[str, float]


def view_of_regions(core: CoordinatorCore, now_s: float) -> RegionsView:
    """The present view."""
    positions = core.positions()
    return RegionsView(
        positions=positions,
        suspended=[name for name in positions if core.is_suspended(name)],
        ratios=core.pending_ratios(now_s),
    )


@dataclass(slots=True)
class _Found:
    backlogs: Mapping[SplitKey, Backlog] = field(default_factory=dict)
    names: Mapping[SplitKey, str] = field(default_factory=dict)


class RegionWatch:
    """A thread that measures until it is stopped. Any thread may call `with_lags`.

    Its results are for people; they decide nothing. The lag of a running region follows from its
    last barrier and costs nothing. For a suspended region the thread asks the source.

    Args:
        ask: returns the core's view.
        sources: by operator id.
        interval_s: between two measurements.
        alarm_s: how long pressure must be high before an alarm; None: no alarm.
        timeout_s: of one call to a source.
        clock: monotonic seconds.
        warn: called at each measurement, for further alarms.
    """

    def __init__(
        self,
        ask: Callable[[], RegionsView],
        *,
        sources: Mapping[str, SplitEnumerator],
        interval_s: float,
        alarm_s: float | None,
        timeout_s: float,
        clock: Clock,
        warn: Callable[[], None] = lambda: None,
    ) -> None:
        self._ask = ask
        self._sources = sources
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._warn = warn
        self._alarm = PressureAlarm(limit_s=alarm_s)
        self._alarmed: frozenset[str] = frozenset()
        self._found: Mapping[str, _Found] = {}
        self._losses: dict[SplitKey, int] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sluice-regions", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, *, timeout_s: float) -> None:
        """End the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def with_lags(self, status: JobStatus) -> JobStatus:
        """The status with the last measurement."""
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
                self.refresh()
            except Exception:  # a bug in a client must not end the measurements of the run
                log.exception("regions could not be measured, trying again")

    def refresh(self) -> None:
        """Measure once, in the caller's thread."""
        self._warn()
        seen = self._ask()
        self._found = {
            name: self._found_of(name, splits, is_suspended=name in seen.suspended)
            for name, splits in seen.positions.items()
        }
        begun, ended = self._alarm.look(self._clock(), seen.ratios)
        for name in begun:
            log.warning(
                "region is under high pressure: region=%s pending_ratio=%.2f since_s=%.0f. It "
                "does not keep up with its barriers: add regions or cores, or raise interval_s.",
                name,
                seen.ratios[name],
                self._alarm.limit_s,
            )
        for name in ended:
            log.warning("region is no longer under high pressure: region=%s", name)
        self._alarmed = self._alarm.alarmed

    def _found_of(self, name: str, splits: Sequence[SplitRange], *, is_suspended: bool) -> _Found:
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
            log.warning("lag of a suspended region is unknown: region=%s error=%s", name, err)
            return {}
        for split in splits:
            lost = found[split.key].lost_records if split.key in found else 0
            if lost > self._losses.get(split.key, 0):
                log.error(
                    "retention deletes unread records of a suspended region: region=%s split=%s "
                    "lost_records=%d",
                    name,
                    split.name,
                    lost,
                )
                self._losses[split.key] = 2 * lost  # log again when it has doubled
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
