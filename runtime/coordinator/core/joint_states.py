"""What regions and checkpoints mean for each other: three tables. Pure.

`checkpoint_states` and `region_phases` say what an event does to a checkpoint or a region alone. An
event of one of them can be an event of the other, too. These tables name each such pair.
"""

import enum
from collections.abc import Mapping

from sluice.runtime.coordinator.core.checkpoint_states import Event, State
from sluice.runtime.coordinator.region.region_phases import OPEN, RegionEvent, RegionPhase

__all__ = ["FOR_CHECKPOINT", "FOR_REGION", "PARTS", "Part"]

_UNDECIDED = (State.ARMED, State.ALIGNING, State.PRE_COMMITTED)
_ABORTS = (
    Event.REGION_FAILED,
    Event.EXPIRED,
    Event.OVERTAKEN,
    Event.STOPPED,
    Event.ABORT_RECORD_DURABLE,
)

FOR_CHECKPOINT: Mapping[tuple[RegionEvent, State], Event] = {
    (RegionEvent.BARRIER_GIVEN, State.ARMED): Event.BARRIER_CUT,
    (RegionEvent.ACKNOWLEDGED, State.ARMED): Event.BARRIER_CUT,
    # Only with a global checkpoint handler. A regional one decides what a failed region means.
    **{(RegionEvent.ENDED, state): Event.REGION_FAILED for state in _UNDECIDED},
}
"""What an event of a region means for a checkpoint in that state; nothing if it is not here."""

FOR_REGION: Mapping[tuple[Event, RegionPhase], RegionEvent] = {
    (Event.REST_SKIPPED, RegionPhase.RUNNING): RegionEvent.BATCH_SKIPPED,  # with a barrier in it
    **{
        (event, phase): RegionEvent.ENDED
        for event in _ABORTS
        for phase in RegionPhase
        if phase in OPEN
    },
}
"""What an event of a checkpoint means for a region with a barrier or a batch in it."""


class Part(enum.Enum):
    """What a region without an acknowledgement is to a checkpoint."""

    AWAITED = "waits for it"
    STARTING = "waits for it or skips it, as the handler rules"
    FAILED = "skips it or is given up, as the handler rules"
    ABSENT = "does not wait for it"


PARTS: Mapping[RegionPhase, Part] = {
    RegionPhase.RUNNING: Part.AWAITED,
    RegionPhase.TIMED_OUT: Part.AWAITED,
    RegionPhase.STARTING: Part.STARTING,
    RegionPhase.FAILED: Part.FAILED,
    RegionPhase.SUSPENDED: Part.ABSENT,
    RegionPhase.FENCED: Part.ABSENT,
}
