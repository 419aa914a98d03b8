"""Regions that ask for no barrier any more: between two batches nobody else misses them. Pure."""

from dataclasses import dataclass, field

__all__ = ["Silence"]

_LONGEST_STEP_S = 2.0  # the loop steps the core every second, if only to tell the time


@dataclass(slots=True)
class Silence:
    """When each region was heard of last. Owned by the core's book, changed only inside a step.

    It counts on a clock of its own, which stands still while nobody steps the core: behind a pause
    of the whole driver every region would look as silent as the pause was long, and none of them
    had a chance to ask.

    A life is watched from its first question on; how long a start may take is not known here.
    """

    _watched_s: float = 0.0
    _stepped_s: float | None = None
    _heard_s: dict[str, float] = field(default_factory=dict)  # in the order of the moments

    def asked(self, region: str, now_s: float) -> None:
        """It asks for a barrier."""
        self.watch(now_s)
        self._heard_s.pop(region, None)
        self._heard_s[region] = self._watched_s

    def returned(self, region: str, now_s: float) -> None:
        """Its batch is done with; it asks again, if its life still goes on."""
        if region in self._heard_s:
            self.asked(region, now_s)

    def ended(self, region: str) -> None:
        """Its life is over: the next one is watched when it has begun to ask."""
        self._heard_s.pop(region, None)

    def watch(self, now_s: float) -> None:
        """The core is stepped."""
        if self._stepped_s is not None:
            self._watched_s += min(max(now_s - self._stepped_s, 0.0), _LONGEST_STEP_S)
        self._stepped_s = now_s

    def over(self, limit_s: float) -> list[str]:
        """Those that were not heard of for so long, with a batch under way or without."""
        found = []
        for region, heard_s in self._heard_s.items():
            if self._watched_s - heard_s < limit_s:
                break  # all others were heard of later
            found.append(region)
        return found
