"""Finds attempts whose files no decision names and no snapshot has, and deletes their files."""

import logging
from collections.abc import Iterable

from sluice.connectors.iceberg.committing.commit_positions import CommitPositions
from sluice.connectors.iceberg.table.table_store import TableStore
from sluice.connectors.iceberg.writing.write_notes import note_name, noted_attempts, noted_files
from sluice.connectors.iceberg.written_files import (
    COMMITTABLE_KIND,
    WriteAttempt,
    decode_written_files,
)
from sluice.runtime.contracts import SweepView
from sluice.runtime.errors import StreamError

__all__ = ["orphaned_attempts", "sweep_attempts"]

log = logging.getLogger(__name__)


def orphaned_attempts(
    found: Iterable[WriteAttempt],
    view: SweepView,
    positions: CommitPositions,
    *,
    operator_id: str,
) -> list[WriteAttempt]:
    """The attempts among ``found`` whose files may be deleted.

    No protected committable names such an attempt, the table's positions do not cover its work, and
    one of three is true: its region's attempt is over, its batch is committed on record, or the
    coordinator has declared exactly this attempt an orphan.

    Args:
        found: attempts that have a note.
        positions: from the table, read after ``view`` was made.
        operator_id: of the sink.
    """
    protected = {
        decode_written_files(entry).attempt
        for entry in view.protected
        if entry.kind == COMMITTABLE_KIND and entry.operator_id == operator_id
    }
    declared = {one.resource for one in view.orphans if one.operator_id == operator_id}
    return [
        attempt
        for attempt in found
        if attempt not in protected
        and not _is_in_last_commit(positions, attempt)
        and (
            view.is_attempt_over(attempt.batch.region, attempt.batch.attempt_id)
            or view.is_settled(attempt.batch)
            or attempt.path in declared
        )
    ]


def _is_in_last_commit(positions: CommitPositions, attempt: WriteAttempt) -> bool:
    position = positions.of_regions.get(attempt.batch.region)
    return position is not None and position.order == attempt.position and position.covers(attempt)


def _may_be_committed(
    attempt: WriteAttempt, view: SweepView, positions: CommitPositions, *, operator_id: str
) -> bool:
    """Whether an earlier commit of its region may have its files. The note of a committed attempt
    is deleted before its checkpoint is committed on record. But the request that wrote it may reach
    a store late, after a repetition of it and after the deletion."""
    position = positions.of_regions.get(attempt.batch.region)
    is_declared = any(
        one.operator_id == operator_id and one.resource == attempt.path for one in view.orphans
    )
    return position is not None and attempt.position < position.order and not is_declared


def sweep_attempts(
    store: TableStore, view: SweepView, positions: CommitPositions, *, operator_id: str
) -> int:
    """One pass; returns how many attempts were deleted. Never raises for a store.

    Some files remain, invisible, until a tool deletes orphaned files: those that a task which
    outlives its batch writes again, and those of attempts that may be committed.
    """
    deleted = 0
    try:
        found = list(noted_attempts(store.names()))
        for attempt in orphaned_attempts(found, view, positions, operator_id=operator_id):
            if _may_be_committed(attempt, view, positions, operator_id=operator_id):
                log.info("data files stay: root=%s attempt=%s", store.root, attempt.path)
            else:
                store.delete(noted_files(store, attempt) or ())
                log.info(
                    "orphaned data files deleted: root=%s attempt=%s", store.root, attempt.path
                )
                deleted += 1
            store.delete([note_name(attempt)])
    except StreamError as err:
        log.warning(
            "data files were not swept, the next sweep tries again: root=%s error=%s",
            store.root,
            err,
        )
    return deleted
