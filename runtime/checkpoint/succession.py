"""Checks in the checkpoint directory whether another run of the job has continued it.

A run may be paused for long at any point. Meanwhile a new start commits its decisions, publishes a
fencing record, and continues. So a run calls these checks last, right before a step that only the
newest run may take.
"""

from sluice.runtime.contracts import MetadataStore
from sluice.runtime.errors import NotLeaderError
from sluice.runtime.model.checkpoint_record import CheckpointRecord, Verdict

__all__ = ["has_last_record", "is_settled", "is_taken_over", "last_record", "taken_over"]

_LISTINGS = 3


def is_settled(store: MetadataStore, checkpoint_id: int) -> bool:
    """Whether a decision has its completion marker, written by any run: then nothing of it is lost.

    Call it after a sink's answer. Once a decision is marked, its ids may be used again, and the
    answer may be about other work (`outcome-from-broker`). At transaction.version 0 it may even be
    about an aborted transaction of the same identity, begun by a late AddPartitions. If the slot
    holds no decision, the decision was committed and retired: the slot is empty, or a paused start
    has published its fencing record there.
    """
    if store.is_committed(checkpoint_id):
        return True
    record = store.read(checkpoint_id)
    return record is None or record.verdict is not Verdict.DECIDED


def is_taken_over(store: MetadataStore, *, session: str, last: int) -> bool:
    """Whether another run has published a fencing record above the last known record of a session.

    That record is in the next slot, and is never deleted (`fence-first`). As a rule this reads one
    slot, which is empty.
    """
    record = store.read(last + 1)
    while record is not None and record.leader_session_id == session:
        record = store.read(record.checkpoint_id + 1)
    return record is not None


def has_last_record(store: MetadataStore, *, session: str) -> bool:
    """Whether the last record of all belongs to this session: then it is the newest run.

    For a caller that does not know the records of the session. A later run has published its
    fencing record above them. The directory is listed. False also if no last record is found: the
    directory is gone, or other runs publish too fast.
    """
    record = last_record(store)
    return record is not None and record.leader_session_id == session


def last_record(store: MetadataStore) -> CheckpointRecord | None:
    """The last record of all, which is never deleted; None if several listings did not find it."""
    for _ in range(_LISTINGS):
        slots = store.slots()
        record = store.read(slots[-1]) if slots else None
        if record is not None:  # else it was retired since the listing: there is a newer one
            return record
    return None


def taken_over(checkpoint_id: int) -> NotLeaderError:
    """The error of a run that another run has replaced.

    Args:
        checkpoint_id: slot of the other run's record.
    """
    return NotLeaderError(
        "another coordinator has taken over this job",
        {"checkpoint_id": checkpoint_id},
        "Keep the newer run, or stop it first. This run committed nothing undecided.",
    )
