"""The phases of one region: a table, and one function that changes the phase."""

import enum
from collections.abc import Mapping

from sluice.runtime.errors import IllegalTransitionError

__all__ = ["OPEN", "OUT_OF_SERVICE", "TRANSITIONS", "RegionEvent", "RegionPhase", "advance"]


class RegionPhase(enum.Enum):
    """The phase of a region."""

    RUNNING = "running"  # its attempt polls for barriers and writes batches.
    TIMED_OUT = "timed out"  # a checkpoint was decided without its batch, which is still under way.
    STARTING = "starting"  # its next attempt may begin, and has not polled for a barrier yet.
    FAILED = "failed"  # its attempt has ended: old work is not settled, or no restart is due yet.
    SUSPENDED = "suspended"  # failed for good; its old work is not settled yet.
    FENCED = "fenced"  # failed for good, and its old work is settled: waits for an operator


class RegionEvent(enum.Enum):
    """The events of a region."""

    POLLED = "polled"
    BARRIER_GIVEN = "barrier given"
    ACKNOWLEDGED = "acknowledged"
    BATCH_SKIPPED = "its batch skipped"
    ENDED = "attempt ended"
    GIVEN_UP = "given up"
    SETTLED = "old work settled"
    RESTART_COMMANDED = "restart commanded"


OPEN = frozenset({RegionPhase.RUNNING, RegionPhase.TIMED_OUT, RegionPhase.STARTING})
"""An attempt is current: its messages are accepted."""

OUT_OF_SERVICE = frozenset({RegionPhase.SUSPENDED, RegionPhase.FENCED})
"""The job continues without the region, until an operator restarts it."""

TRANSITIONS: Mapping[tuple[RegionPhase, RegionEvent], RegionPhase] = {
    (RegionPhase.STARTING, RegionEvent.POLLED): RegionPhase.RUNNING,
    (RegionPhase.RUNNING, RegionEvent.POLLED): RegionPhase.RUNNING,
    (RegionPhase.TIMED_OUT, RegionEvent.POLLED): RegionPhase.TIMED_OUT,  # gets the same barrier
    (RegionPhase.RUNNING, RegionEvent.BARRIER_GIVEN): RegionPhase.RUNNING,
    (RegionPhase.STARTING, RegionEvent.ACKNOWLEDGED): RegionPhase.RUNNING,  # Spark's replay
    (RegionPhase.RUNNING, RegionEvent.ACKNOWLEDGED): RegionPhase.RUNNING,
    (RegionPhase.TIMED_OUT, RegionEvent.ACKNOWLEDGED): RegionPhase.RUNNING,
    # No STARTING: such a region has no barrier, so no batch of it can be skipped.
    (RegionPhase.RUNNING, RegionEvent.BATCH_SKIPPED): RegionPhase.TIMED_OUT,
    **{(phase, RegionEvent.ENDED): RegionPhase.FAILED for phase in RegionPhase if phase in OPEN},
    (RegionPhase.FAILED, RegionEvent.GIVEN_UP): RegionPhase.SUSPENDED,
    (RegionPhase.FAILED, RegionEvent.SETTLED): RegionPhase.STARTING,
    (RegionPhase.SUSPENDED, RegionEvent.SETTLED): RegionPhase.FENCED,
    # No STARTING from here: the next attempt needs a fencing record of its own first.
    (RegionPhase.FAILED, RegionEvent.RESTART_COMMANDED): RegionPhase.FAILED,
    (RegionPhase.SUSPENDED, RegionEvent.RESTART_COMMANDED): RegionPhase.FAILED,
    (RegionPhase.FENCED, RegionEvent.RESTART_COMMANDED): RegionPhase.FAILED,
}


def advance(phase: RegionPhase, event: RegionEvent, *, region: str) -> RegionPhase:
    """Next phase of a region; pure, no I/O."""
    target = TRANSITIONS.get((phase, event))
    if target is None:
        raise IllegalTransitionError(
            f"{event.value!r} is not legal while {phase.value!r}",
            {"region": region},
            "Stop the job, keep its log, restart from the last checkpoint, and report this bug.",
        )
    return target
