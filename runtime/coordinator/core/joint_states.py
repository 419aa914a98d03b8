"""Effects of regions and checkpoints on each other: three tables. Pure.

`checkpoint_states` and `region_phases` have the transitions of each of them alone. An event of one
can be an event of the other, too. These tables name each such pair.
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
    (RegionEvent.BARRIER_GIVEN, State.ARMED): Event.BARRIER_GIVEN,
    (RegionEvent.ACKNOWLEDGED, State.ARMED): Event.BARRIER_GIVEN,
    # Only with a global checkpoint handler. A regional one skips the region or gives up, in
    # `completion`.
    **{(RegionEvent.ENDED, state): Event.REGION_FAILED for state in _UNDECIDED},
}
"""(event of a region, state of a checkpoint) -> event of the checkpoint; absent: no effect."""

FOR_REGION: Mapping[tuple[Event, RegionPhase], RegionEvent] = {
    (Event.REST_SKIPPED, RegionPhase.RUNNING): RegionEvent.BATCH_SKIPPED,  # with a barrier in it
    **{
        (event, phase): RegionEvent.ENDED
        for event in _ABORTS
        for phase in RegionPhase
        if phase in OPEN
    },
}
"""(event of a checkpoint, phase of a region with a barrier or a batch in it) -> event of the
region; absent: no effect."""


class Part(enum.Enum):
    """The part of a region without an acknowledgement in a checkpoint."""

    AWAITED = "waits for it"
    STARTING = "waits for it or skips it, as its handler decides"
    FAILED = "skips it or is given up, as its handler decides"
    ABSENT = "does not wait for it"


PARTS: Mapping[RegionPhase, Part] = {
    RegionPhase.RUNNING: Part.AWAITED,
    RegionPhase.TIMED_OUT: Part.AWAITED,
    RegionPhase.STARTING: Part.STARTING,
    RegionPhase.FAILED: Part.FAILED,
    RegionPhase.SUSPENDED: Part.ABSENT,
    RegionPhase.FENCED: Part.ABSENT,
}
