"""The liveness of regions between two batches, and cached views of all regions. Pure.

With thousands of regions the core would mostly compute these views: each region polls, gets offsets
and acknowledges in every checkpoint. None of these three changes a view of other regions. All other
events drop the views.
"""

from collections import OrderedDict
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from functools import partial
from math import inf

from sluice.runtime.model.checkpoint_record import CheckpointKind
from sluice.runtime.process.pause_tolerant_clock import PauseTolerantTime

__all__ = ["CachedViews", "HeartbeatTimeout"]


@dataclass(slots=True)
class _Awaited:
    names: list[str]
    until_s: float


@dataclass(slots=True)
class CachedViews:
    """Results that hold until an event drops them.

    Attributes:
        with_backlog: regions whose last barrier left records unread; None: not computed yet.
        may_decide: by kind, whether a checkpoint begun now could be decided.
        is_timed: the job's watermark is that of the regions' records.
    """

    with_backlog: set[str] | None = None
    may_decide: dict[CheckpointKind, bool] = field(default_factory=dict)
    is_timed: bool = False
    _awaited: dict[int, _Awaited] = field(default_factory=dict)

    def wait_for(self, checkpoint_id: int, names: Iterable[str], until_s: float) -> None:
        """The handler waits for these regions; until then time alone changes nothing."""
        self._awaited[checkpoint_id] = _Awaited(list(names), until_s)

    def is_waiting(self, checkpoint_id: int, acknowledged: Container[str], now_s: float) -> bool:
        """Whether it still waits for one of them. Each region is tested once, not at every call."""
        found = self._awaited.get(checkpoint_id)
        if found is None or now_s >= found.until_s:
            return False
        while found.names and found.names[-1] in acknowledged:
            found.names.pop()
        return bool(found.names)


_LONGEST_STEP_S = 2.0  # the loop steps the core every second


@dataclass(slots=True)
class HeartbeatTimeout:
    """When each region polled last. Owned by the core's state, changed only inside a step.

    It uses a clock of its own, which is paused while nothing steps the core. After a pause of the
    whole driver no region could have polled, so none of them may time out for that.

    An attempt is timed from the start of its query, and from its first poll on. The time before the
    first poll has a longer limit: Spark may run a whole batch once more, for its state. While that
    makes progress the region does not time out.
    """

    _watched: PauseTolerantTime = field(
        default_factory=partial(PauseTolerantTime, longest_step_s=_LONGEST_STEP_S)
    )
    # In the order of the moments. To find its first entry, a plain dict passes over all entries
    # that were removed before it, at each step.
    _polled_s: OrderedDict[str, float] = field(default_factory=OrderedDict)
    _started_s: OrderedDict[str, float] = field(default_factory=OrderedDict)  # until the first poll
    _replayed: dict[str, int] = field(default_factory=dict)  # the progress of a replay until then
    _loading_s: dict[str, float] = field(default_factory=dict)  # last progress, after that

    @property
    def watched_s(self) -> float:
        """That clock."""
        return self._watched.passed_s

    def started(self, region: str, now_s: float, *, replayed: int | None = None) -> None:
        """Its query was started; a repetition changes nothing. After its first poll, only the
        progress of a batch counts that loads keyed state.

        Args:
            replayed: progress of a batch that Spark runs once more; a number other than the last
                one restarts the timeout.
        """
        self.watch(now_s)
        if region in self._polled_s:
            if replayed is not None:
                self._loading_s[region] = now_s
            return
        if replayed is not None and self._replayed.get(region) != replayed:
            self._replayed[region] = replayed
            self._started_s.pop(region, None)
        self._started_s.setdefault(region, self.watched_s)

    def is_replaying(self, region: str) -> bool:
        """Whether its attempt runs a batch once more, and has not polled yet."""
        return region in self._replayed

    @property
    def loads_state(self) -> bool:
        """Whether a batch of any region has told of its load."""
        return bool(self._loading_s)

    def loading_s(self, region: str) -> float:
        """When its batch has made progress in the load of keyed state last; -inf: it loads none."""
        return self._loading_s.get(region, -inf)

    def polled(self, region: str, now_s: float) -> None:
        """It polls for a barrier."""
        self.watch(now_s)
        self._started_s.pop(region, None)
        self._replayed.pop(region, None)
        self._loading_s.pop(region, None)
        self._polled_s[region] = self.watched_s
        self._polled_s.move_to_end(region)

    def returned(self, region: str, now_s: float) -> None:
        """Its batch is committed; it polls again, if its attempt is current."""
        if region in self._polled_s:
            self.polled(region, now_s)

    def ended(self, region: str) -> None:
        """Its attempt is over: the next one is timed from the start of its query."""
        self._started_s.pop(region, None)
        self._polled_s.pop(region, None)
        self._replayed.pop(region, None)
        self._loading_s.pop(region, None)

    def watch(self, now_s: float) -> None:
        """The core is stepped."""
        self._watched.advance(now_s)

    def may_time_out(self, least_s: float) -> bool:
        """Whether any region may have timed out; called at each step."""
        before_s = self._watched.passed_s - least_s
        polled_s = next(iter(self._polled_s.values()), inf)
        return polled_s <= before_s or next(iter(self._started_s.values()), inf) <= before_s

    def timed_out(self, limit_s: float) -> list[str]:
        """Regions that have not polled for so long, with a batch under way or without."""
        return self._before(limit_s, self._polled_s)

    def never_polled(self, limit_s: float) -> list[str]:
        """Regions whose queries were started so long ago, and have not polled once."""
        return self._before(limit_s, self._started_s)

    def _before(self, limit_s: float, moments: OrderedDict[str, float]) -> list[str]:
        found, watched_s = [], self._watched.passed_s
        for region, moment_s in moments.items():
            if watched_s - moment_s < limit_s:
                break  # all later ones polled later
            found.append(region)
        return found
