"""Work that tasks opened and told us about, until a sweep has dealt with it (rule 4). Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field

from runtime.checkpoint.regions import Fate
from runtime.contracts import RegisteredAttempt
from runtime.model import BatchKey

__all__ = ["AttemptBook"]

_OFFERED_S = 900.0  # Spark has given a paused worker up long before
_MOST_ORPHANS = 10_000


@dataclass(slots=True)
class AttemptBook:
    """Registered attempts by batch. Owned by the coordinator's loop thread.

    Once a batch is committed on record, all it opened may be swept: what its decision names is
    ended already, and an ended transaction cannot be harmed by aborting exactly that producer
    epoch. So nothing here has to know what a committable looks like. An attempt is offered to each
    sweep of a quarter of an hour, because one may not reach every broker, and because a task that
    was paused may begin its transaction long after nobody wants it; then it is forgotten.
    """

    _open: dict[BatchKey, dict[RegisteredAttempt, None]] = field(default_factory=dict)
    _orphans: dict[RegisteredAttempt, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._orphans) + sum(len(found) for found in self._open.values())

    def add(self, attempt: RegisteredAttempt) -> None:
        """Remember it; repeating is harmless."""
        self._open.setdefault(attempt.batch, {})[attempt] = None

    def orphans(
        self, fate_of: Callable[[BatchKey], Fate], *, now_s: float
    ) -> tuple[RegisteredAttempt, ...]:
        """What a sweep may abort that begins now."""
        for batch in list(self._open):
            fate = fate_of(batch)
            if fate is not Fate.OPEN:
                attempts = self._open.pop(batch)
                if fate is not Fate.OUTDATED:  # older generations are swept as a whole
                    self._orphans |= dict.fromkeys(attempts, now_s + _OFFERED_S)
        kept = [
            (attempt, until_s)
            for attempt, until_s in self._orphans.items()
            if now_s < until_s and fate_of(attempt.batch) is not Fate.OUTDATED
        ]
        self._orphans = dict(kept[-_MOST_ORPHANS:])
        return tuple(self._orphans)
