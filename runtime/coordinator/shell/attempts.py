"""Open work that tasks have registered, until a sweep has aborted it (`ids-never-reused`). Pure.

Also the errors that would occur again in a new attempt, so that the job stops.
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
from sluice.runtime.model.splits import BatchKey

__all__ = ["PERMANENT_ERRORS", "RegisteredAttempts"]

_SWEEPS = 90  # 15 minutes at 10 s each: Spark ends a paused worker long before
_MOST_ORPHANS = 10_000


@dataclass(slots=True)
class RegisteredAttempts:
    """Registered attempts by batch. Owned by the coordinator's loop thread.

    Once a batch has its completion marker, all its work may be swept. Work that its decision names
    has ended already, and to abort exactly that producer epoch does not harm an ended transaction.
    So this class does not inspect committables. Each attempt is given to many sweeps: one sweep may
    not reach every broker, and a paused task may begin its transaction late. Then it is forgotten.
    """

    _open: dict[BatchKey, dict[RegisteredAttempt, None]] = field(default_factory=dict)
    _orphans: dict[RegisteredAttempt, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._orphans) + sum(len(found) for found in self._open.values())

    def add(self, attempt: RegisteredAttempt) -> None:
        """Add an attempt; idempotent."""
        self._open.setdefault(attempt.batch, {})[attempt] = None

    def orphans(self, fate_of: Callable[[BatchKey], Fate]) -> tuple[RegisteredAttempt, ...]:
        """Attempts that the next sweep may abort; each call counts as one sweep."""
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
"""After any other error (a lost executor, a bug in user code, a slow broker) the region restarts,
as often as the job's restart strategy allows."""
