"""The states of one checkpoint: a table, and one function that changes the state."""

import enum
from collections.abc import Mapping

from sluice.runtime.errors import IllegalTransitionError

__all__ = ["TRANSITIONS", "Event", "State", "advance"]


class State(enum.Enum):
    """How far a checkpoint has come."""

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


_ABORTABLE = (State.ARMED, State.ALIGNING, State.PRE_COMMITTED)
_GIVE_UP = (Event.REGION_FAILED, Event.OVERTAKEN)

TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.ARMED, Event.BARRIER_GIVEN): State.ALIGNING,
    (State.ALIGNING, Event.ALL_ACKED): State.PRE_COMMITTED,
    (State.ALIGNING, Event.REST_SKIPPED): State.PRE_COMMITTED,
    (State.ALIGNING, Event.EXPIRED): State.ABORTING,
    (State.PRE_COMMITTED, Event.EXPIRED): State.ABORTING,
    **{(state, event): State.ABORTING for state in _ABORTABLE for event in _GIVE_UP},
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


def advance(state: State, event: Event, *, checkpoint_id: int) -> State:
    """Next state of a checkpoint; pure, no I/O."""
    target = TRANSITIONS.get((state, event))
    if target is None:
        raise IllegalTransitionError(
            f"{event.value!r} is not legal while {state.value!r}",
            {"checkpoint_id": checkpoint_id},
            "Stop the job, keep its log, restart from the last checkpoint, and report this bug.",
        )
    return target
