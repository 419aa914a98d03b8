"""Regions that ask for no barrier any more: between two batches nobody else misses them. Pure.

What the core found by looking at every region, kept until one of them may have changed. Pure.

With thousands of regions the core would do little else: each of them polls, cuts and acknowledges
in every checkpoint, and none of these three changes what the others are waited for. Whatever ends
or begins a life, suspends a region or comes from a remote step makes the core look again.
"""

from collections import OrderedDict
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from math import inf

from sluice.runtime.model.model import CheckpointKind
from sluice.runtime.process.pause_tolerant_clock import PauseTolerantTime

__all__ = ["HeartbeatTimeout", "Outlook"]


@dataclass(slots=True)
class _Awaited:
    names: list[str]
    until_s: float


@dataclass(slots=True)
class Outlook:
    """Answers that hold for a while.

    Attributes:
        behind: regions whose last cut left records behind; None: not looked yet.
        may_decide: by kind, whether a checkpoint begun now could be decided.
    """

    behind: set[str] | None = None
    may_decide: dict[CheckpointKind, bool] = field(default_factory=dict)
    _awaited: dict[int, _Awaited] = field(default_factory=dict)

    def wait_for(self, checkpoint_id: int, names: Iterable[str], until_s: float) -> None:
        """The handler has ruled to wait for these; until then time alone changes nothing."""
        self._awaited[checkpoint_id] = _Awaited(list(names), until_s)

    def is_waiting(self, checkpoint_id: int, acknowledged: Container[str], now_s: float) -> bool:
        """Whether it still waits for one of them. Each is looked at once, not at every call."""
        found = self._awaited.get(checkpoint_id)
        if found is None or now_s >= found.until_s:
            return False
        while found.names and found.names[-1] in acknowledged:
            found.names.pop()
        return bool(found.names)


_LONGEST_STEP_S = 2.0  # the loop steps the core every second, if only to tell the time


def _time() -> PauseTolerantTime:
    return PauseTolerantTime(longest_step_s=_LONGEST_STEP_S)


@dataclass(slots=True)
class HeartbeatTimeout:
    """When each region was heard of last. Owned by the core's book, changed only inside a step.

    It counts on a clock of its own, which stands still while nobody steps the core: behind a pause
    of the whole driver every region would look as silent as the pause was long, and none of them
    had a chance to ask.

    A life is watched from the moment at which its query was started, and anew from its first
    question on: what lies between the two takes longer than what lies between two questions. It may
    be a whole batch that Spark runs once more, for its state; while that gets on nobody is silent.
    """

    _watched: PauseTolerantTime = field(default_factory=_time)
    # In the order of the moments. A plain dict looks for its first entry past all that were taken
    # out in front of it, at each step, and the more there are the longer.
    _heard_s: OrderedDict[str, float] = field(default_factory=OrderedDict)
    _begun_s: OrderedDict[str, float] = field(default_factory=OrderedDict)  # who has not asked yet
    _replayed: dict[str, int] = field(default_factory=dict)  # of them, what has been done so far

    @property
    def watched_s(self) -> float:
        """That clock."""
        return self._watched.passed_s

    def begun(self, region: str, now_s: float, *, replayed: int | None = None) -> None:
        """Its query was started; said again, or behind its first question, it changes nothing.

        Args:
            replayed: of a batch that Spark runs once more; another number than the last one says
                that it gets on.
        """
        self.watch(now_s)
        if region in self._heard_s:
            return
        if replayed is not None and self._replayed.get(region) != replayed:
            self._replayed[region] = replayed
            self._begun_s.pop(region, None)
        self._begun_s.setdefault(region, self.watched_s)

    def is_replaying(self, region: str) -> bool:
        """Whether it was heard of a batch that its life runs once more, and has not asked yet."""
        return region in self._replayed

    def asked(self, region: str, now_s: float) -> None:
        """It asks for a barrier."""
        self.watch(now_s)
        self._begun_s.pop(region, None)
        self._replayed.pop(region, None)
        self._heard_s[region] = self.watched_s
        self._heard_s.move_to_end(region)

    def returned(self, region: str, now_s: float) -> None:
        """Its batch is done with; it asks again, if its life still goes on."""
        if region in self._heard_s:
            self.asked(region, now_s)

    def ended(self, region: str) -> None:
        """Its life is over: the next one is watched when its query was started."""
        self._begun_s.pop(region, None)
        self._heard_s.pop(region, None)
        self._replayed.pop(region, None)

    def watch(self, now_s: float) -> None:
        """The core is stepped."""
        self._watched.advance(now_s)

    def is_anybody(self, least_s: float) -> bool:
        """Whether somebody was not heard of for so long; asked at each step."""
        before_s = self._watched.passed_s - least_s
        heard_s = next(iter(self._heard_s.values()), inf)
        return heard_s <= before_s or next(iter(self._begun_s.values()), inf) <= before_s

    def over(self, limit_s: float) -> list[str]:
        """Those that were not heard of for so long, with a batch under way or without."""
        return self._before(limit_s, self._heard_s)

    def never_requested(self, limit_s: float) -> list[str]:
        """Those whose queries were started so long ago, and have not asked once."""
        return self._before(limit_s, self._begun_s)

    def _before(self, limit_s: float, moments: OrderedDict[str, float]) -> list[str]:
        found, watched_s = [], self._watched.passed_s
        for region, moment_s in moments.items():
            if watched_s - moment_s < limit_s:
                break  # those of all others came later
            found.append(region)
        return found
