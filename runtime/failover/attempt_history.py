"""The ended attempts of one region: when, why, and how soon the region committed again. Pure."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sluice.runtime.model.json_text import well_formed
from sluice.runtime.process.failed_tasks import failed_host

__all__ = ["AttemptHistory", "RegionAttempt", "first_line"]

_KEPT = 20
_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionAttempt:
    """An attempt of a region that has ended.

    Attributes:
        attempt_id: of that attempt.
        began_s: clock when it was allowed to begin; None: with the run.
        ended_s: clock at its end.
        why: the error that ended it, its first line.
        host: of the task that failed, if the error names it.
        committed_after_s: from its end until a later attempt is in a checkpoint that is committed
            on record; None: not yet.
    """

    attempt_id: int
    ended_s: float
    why: str
    began_s: float | None = None
    host: str = ""
    committed_after_s: float | None = None


@dataclass(slots=True)
class AttemptHistory:
    """Owned by the coordinator's core; keeps the newest 20.

    Attributes:
        count: ended attempts, including those that it no longer keeps.
        began_s: clock when the current attempt was allowed to begin; None: with the run.
    """

    count: int = 0
    began_s: float | None = None
    _kept: deque[RegionAttempt] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def ended(self, attempt_id: int, error: BaseException, now_s: float) -> None:
        """An attempt is over."""
        self.count += 1
        self._kept.append(
            RegionAttempt(
                attempt_id=attempt_id,
                began_s=self.began_s,
                ended_s=now_s,
                why=first_line(error),
                host=failed_host(error),
            )
        )

    def committed(self, attempt_id: int, now_s: float) -> None:
        """This attempt has committed on record; record the delay of the attempts before it."""
        for position, attempt in enumerate(self._kept):
            if attempt.committed_after_s is None and attempt.attempt_id < attempt_id:
                after_s = now_s - attempt.ended_s
                self._kept[position] = replace(attempt, committed_after_s=after_s)

    @property
    def attempts(self) -> Sequence[RegionAttempt]:
        """Oldest first."""
        return tuple(self._kept)


def first_line(error: BaseException) -> str:
    """Class and first line of an error, of bounded length."""
    lines = well_formed(str(error)).splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"
