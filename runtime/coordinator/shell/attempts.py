"""Work that tasks opened and told us about, until a sweep has dealt with it (`ids-never-reused`).
Pure.

Which errors of a region would come again, so that the job stops instead of trying again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.runtime.contracts import RegisteredAttempt
from sluice.runtime.coordinator.region.region_state import Fate
from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    DamagedCheckpointError,
    DataLostError,
    DeliveryError,
    IllegalTransitionError,
    LateRecordsError,
    PoisonRecordsError,
    SourceChangedError,
    TransactionLostError,
    TransactionUnknownError,
    UnsupportedFormatError,
    WrongJobError,
)
from sluice.runtime.model.model import BatchKey

__all__ = ["PERMANENT_ERRORS", "AttemptBook"]

_SWEEPS = 90  # 15 minutes at 10 s each: Spark has given a paused worker up long before
_MOST_ORPHANS = 10_000


@dataclass(slots=True)
class AttemptBook:
    """Registered attempts by batch. Owned by the coordinator's loop thread.

    Once a batch is committed on record, all it opened may be swept: what its decision names is
    ended already, and an ended transaction cannot be harmed by aborting exactly that producer
    epoch. So nothing here has to know what a committable looks like. An attempt is offered to many
    sweeps, because one may not reach every broker, and because a task that was paused may begin
    its transaction long after nobody wants it; then it is forgotten.
    """

    _open: dict[BatchKey, dict[RegisteredAttempt, None]] = field(default_factory=dict)
    _orphans: dict[RegisteredAttempt, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._orphans) + sum(len(found) for found in self._open.values())

    def add(self, attempt: RegisteredAttempt) -> None:
        """Remember it; repeating is harmless."""
        self._open.setdefault(attempt.batch, {})[attempt] = None

    def orphans(self, fate_of: Callable[[BatchKey], Fate]) -> tuple[RegisteredAttempt, ...]:
        """What the next sweep may abort; counted as offered."""
        for batch in list(self._open):
            fate = fate_of(batch)
            if fate is not Fate.OPEN:
                attempts = self._open.pop(batch)
                if fate is not Fate.OUTDATED:  # older attempts are swept as a whole
                    self._orphans |= dict.fromkeys(attempts, _SWEEPS)
        offered = {
            attempt: sweeps
            for attempt, sweeps in self._orphans.items()
            if fate_of(attempt.batch) is not Fate.OUTDATED
        }
        kept = [(attempt, sweeps - 1) for attempt, sweeps in offered.items() if sweeps > 1]
        self._orphans = dict(kept[-_MOST_ORPHANS:])
        return tuple(offered)


PERMANENT_ERRORS = (
    AuthenticationError,
    ConfigError,
    DamagedCheckpointError,
    DataLostError,
    DeliveryError,
    IllegalTransitionError,
    LateRecordsError,
    PoisonRecordsError,
    SourceChangedError,
    TransactionLostError,
    TransactionUnknownError,
    UnsupportedFormatError,
    WrongJobError,
)
"""Everything else (a lost executor, a bug in user code, a slow broker) is worth another life of
the region, as often as the job tolerates."""
