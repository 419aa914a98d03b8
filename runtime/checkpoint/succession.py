"""What other runs of the job have done meanwhile, as the checkpoint directory tells it.

A run may be paused for long at any point, and a start behind it commits what it decided, seals,
and goes on. Asked last, right before something that only the newest run may do or believe.
"""

from sluice.runtime.contracts import MetadataStore
from sluice.runtime.errors import FencedError
from sluice.runtime.model.model import Verdict

__all__ = ["has_last_record", "is_settled", "is_taken_over", "taken_over"]

_LOOKS = 3


def is_settled(store: MetadataStore, checkpoint_id: int) -> bool:
    """Whether a decision is committed on record, by whichever run: then nothing of it is lost.

    Asked behind a sink's answer, not before it. Once it is marked its ids may be used again, and
    what the sink says is about something else (`outcome-from-broker`): at transaction.version 0
    even an aborted transaction of the same identity, begun by a late AddPartitions. A place
    without the decision was retired, which only a committed one is: it is empty, or a start that
    slept has sealed it.
    """
    if store.is_committed(checkpoint_id):
        return True
    record = store.read(checkpoint_id)
    return record is None or record.verdict is not Verdict.DECIDED


def is_taken_over(store: MetadataStore, *, session: str, last: int) -> bool:
    """Whether another run has sealed behind the last record that this session knows as its own.

    That seal lies in the next place, and is never deleted (`fence-first`). One record is read, as
    a rule one that is not there.
    """
    record = store.read(last + 1)
    while record is not None and record.leader_session_id == session:
        record = store.read(record.checkpoint_id + 1)
    return record is not None


def has_last_record(store: MetadataStore, *, session: str) -> bool:
    """Whether the last record of all is this session's, which has sealed: it is the newest run.

    For whoever does not know the session's own records. A run behind it has sealed above them, and
    the last record is never deleted. The directory is listed. False also where none is found to be
    the last: the directory is not there now, or others go on too fast to look.
    """
    for _ in range(_LOOKS):
        places = store.places()
        record = store.read(places[-1]) if places else None
        if record is not None:  # else it was retired since it was listed: there is a newer one
            return record.leader_session_id == session
    return False


def taken_over(checkpoint_id: int) -> FencedError:
    """The error of a run that finds it.

    Args:
        checkpoint_id: the place where it shows.
    """
    return FencedError(
        "another coordinator has taken over this job",
        {"checkpoint_id": checkpoint_id},
        "Nothing undecided was committed by this one; let the newer one run, or stop it first.",
    )
