"""The states of a checkpoint, the phases of a region, and their effects on each other: tables.

`advance` and `advance_region` alone change a state. `docs/internals/checkpoint-states.md` is made
from this module.
"""

import enum
from collections.abc import Mapping
from typing import TypeVar

from sluice.runtime.errors import IllegalTransitionError

__all__ = [
    "ABORTABLE",
    "DECIDED_OPEN",
    "FOR_CHECKPOINT",
    "FOR_REGION",
    "OPEN",
    "OUT_OF_SERVICE",
    "PARTS",
    "REGION_TRANSITIONS",
    "TRANSITIONS",
    "Event",
    "Part",
    "RegionEvent",
    "RegionPhase",
    "State",
    "advance",
    "advance_region",
]

S = TypeVar("S", bound=enum.Enum)
E = TypeVar("E", bound=enum.Enum)


class State(enum.Enum):
    """How far a checkpoint has come. The state of a key: `ValueState`, `ListState`, `MapState`."""

    ARMED = "armed"  # due, but no region has records to read yet: nothing is published.
    ALIGNING = "aligning"  # barriers are out, acknowledgements are awaited.
    PRE_COMMITTED = "pre-committed"  # every region acknowledged or is skipped: waits for its slot.
    DECIDING = "deciding"  # the record may be durable or not: neither abort nor commit.
    DECIDED = "decided"  # the record is durable: it is never aborted from here on.
    REPAIRING = "repairing"  # a decided transaction was lost and is written again.
    COMMITTED = "committed"  # every committable is committed, the marker is not durable yet.
    MARKED = "marked"  # committed on record: callbacks return, ids may be used again.
    WITHDRAWING = "withdrawing"  # grew old while deciding: the first record that lands stands.
    ABORTING = "aborting"  # given up; the ABORTED record is not durable yet.
    ABORTED = "aborted"  # the ABORTED record holds the slot.
    FENCED = "fenced"  # another session holds the slot: this coordinator stops.


class Event(enum.Enum):
    """The events of a checkpoint."""

    BARRIER_GIVEN = "barrier given"
    ALL_ACKED = "all acknowledged"
    REST_SKIPPED = "remaining regions skipped"
    EXPIRED = "expired"
    REGION_FAILED = "region failed"
    OVERTAKEN = "an earlier one aborted"
    STOPPED = "job stopped"
    PUBLISH_STARTED = "publish started"
    GREW_OLD = "too old"
    METADATA_DURABLE = "metadata durable"
    ABORT_RECORD_DURABLE = "abort record durable"
    SLOT_TAKEN = "slot taken"
    COMMITTABLE_LOST = "committable lost"
    REPAIR_DURABLE = "repair durable"
    REPAIR_FAILED = "repair failed"
    ALL_COMMITTED = "all committed"
    MARK_DURABLE = "marker durable"


ABORTABLE = (State.ARMED, State.ALIGNING, State.PRE_COMMITTED)
"""No record of it can be durable."""

DECIDED_OPEN = (State.DECIDED, State.REPAIRING, State.COMMITTED)
"""Decided, and not committed on record."""

_GIVE_UP = (Event.REGION_FAILED, Event.OVERTAKEN)

TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.ARMED, Event.BARRIER_GIVEN): State.ALIGNING,
    (State.ALIGNING, Event.ALL_ACKED): State.PRE_COMMITTED,
    (State.ALIGNING, Event.REST_SKIPPED): State.PRE_COMMITTED,
    (State.ALIGNING, Event.EXPIRED): State.ABORTING,
    (State.PRE_COMMITTED, Event.EXPIRED): State.ABORTING,
    **{(state, event): State.ABORTING for state in ABORTABLE for event in _GIVE_UP},
    # An armed one is dropped by a stop: no region read anything, and its id was never seen outside.
    (State.ALIGNING, Event.STOPPED): State.ABORTING,
    (State.PRE_COMMITTED, Event.STOPPED): State.ABORTING,
    (State.PRE_COMMITTED, Event.PUBLISH_STARTED): State.DECIDING,
    # No EXPIRED and no STOPPED while DECIDING: the publish may have happened. A checkpoint that
    # grows old there tries an ABORTED record in the same slot, and one of the two stands in the
    # end.
    (State.DECIDING, Event.METADATA_DURABLE): State.DECIDED,
    (State.DECIDING, Event.SLOT_TAKEN): State.FENCED,
    (State.DECIDING, Event.GREW_OLD): State.WITHDRAWING,
    (State.WITHDRAWING, Event.METADATA_DURABLE): State.DECIDED,
    (State.WITHDRAWING, Event.ABORT_RECORD_DURABLE): State.ABORTED,
    (State.WITHDRAWING, Event.SLOT_TAKEN): State.FENCED,
    (State.ABORTING, Event.ABORT_RECORD_DURABLE): State.ABORTED,
    (State.ABORTING, Event.SLOT_TAKEN): State.FENCED,
    (State.DECIDED, Event.ALL_COMMITTED): State.COMMITTED,  # no abort: from here only forward
    (State.DECIDED, Event.COMMITTABLE_LOST): State.REPAIRING,
    (State.REPAIRING, Event.REPAIR_DURABLE): State.DECIDED,
    (State.REPAIRING, Event.REPAIR_FAILED): State.DECIDED,  # the rest of it is committed first
    (State.REPAIRING, Event.SLOT_TAKEN): State.FENCED,  # a newer run repairs it
    (State.COMMITTED, Event.MARK_DURABLE): State.MARKED,
}


# --- a region ------------------------------------------------------------------------------------


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

REGION_TRANSITIONS: Mapping[tuple[RegionPhase, RegionEvent], RegionPhase] = {
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


# --- both ----------------------------------------------------------------------------------------

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
    # `alignment`.
    **{(RegionEvent.ENDED, state): Event.REGION_FAILED for state in ABORTABLE},
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


# --- transitions ---------------------------------------------------------------------------------


def advance(state: State, event: Event, *, checkpoint_id: int) -> State:
    """Next state of a checkpoint; pure, no I/O."""
    return _next(TRANSITIONS, state, event, {"checkpoint_id": checkpoint_id})


def advance_region(phase: RegionPhase, event: RegionEvent, *, region: str) -> RegionPhase:
    """Next phase of a region; pure, no I/O."""
    return _next(REGION_TRANSITIONS, phase, event, {"region": region})


def _next(
    transitions: Mapping[tuple[S, E], S], state: S, event: E, where: Mapping[str, object]
) -> S:
    target = transitions.get((state, event))
    if target is None:
        raise IllegalTransitionError(
            f"{event.value!r} is not legal while {state.value!r}",
            where,
            "Stop the job, keep its log, restart from the last checkpoint, and report this bug.",
        )
    return target
