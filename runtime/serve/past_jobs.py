"""Details of a job that does not answer, from its checkpoint directory."""

from typing import Any

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.errors import DamagedCheckpointError, UnsupportedFormatError
from sluice.runtime.history.history_file import read_history
from sluice.runtime.job_registry.registration import Registration
from sluice.runtime.model.checkpoint_record import CheckpointRecord, Verdict
from sluice.runtime.service.job_view import JobFacts, details_of, facts_of_record, history_of
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["past_details", "past_history"]


def past_details(store: CheckpointStore, registration: Registration) -> dict[str, Any]:
    """As `sluice.runtime.service.job_view.details_of`, from the newest decided record of the job.

    A directory that was deleted, or that another job uses by now, leaves graph and settings empty.
    """
    record = _newest_decision(store)
    if record is None or record.job_uid != registration.job_uid:
        return details_of(
            JobFacts(
                job_uid=registration.job_uid,
                name=registration.name,
                state=registration.state,
                checkpoint_uri=registration.checkpoint_uri,
            )
        )
    return details_of(
        facts_of_record(
            record, checkpoint_uri=registration.checkpoint_uri, state=registration.state
        )
    )


def past_history(fs: FileSystem, *, checkpoints: int | None) -> dict[str, Any]:
    """As `sluice.runtime.service.job_view.history_of`, from the history file."""
    return history_of(read_history(fs), checkpoints=checkpoints)


def _newest_decision(store: CheckpointStore) -> CheckpointRecord | None:
    for checkpoint_id in reversed(store.slots()):
        try:
            record = store.read(checkpoint_id)
        except (DamagedCheckpointError, UnsupportedFormatError):
            continue
        if record is not None and record.verdict is Verdict.DECIDED:
            return record
    return None
