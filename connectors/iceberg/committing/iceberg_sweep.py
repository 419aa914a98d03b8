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
    """Whether the last commit of its region names it. A note of an earlier commit is gone: it is
    deleted before its checkpoint is committed on record."""
    position = positions.of_regions.get(attempt.batch.region)
    return position is not None and position.order == attempt.position and position.covers(attempt)


def sweep_attempts(
    store: TableStore, view: SweepView, positions: CommitPositions, *, operator_id: str
) -> int:
    """One pass; returns how many attempts were deleted. Never raises for a store.

    A task that outlives its batch may write a file again: its note is gone then, so the file
    remains, invisible, until a tool deletes orphaned files.
    """
    deleted = 0
    try:
        found = list(noted_attempts(store.names()))
        for attempt in orphaned_attempts(found, view, positions, operator_id=operator_id):
            store.delete(noted_files(store, attempt) or ())
            store.delete([note_name(attempt)])
            log.info("orphaned data files deleted: root=%s attempt=%s", store.root, attempt.path)
            deleted += 1
    except StreamError as err:
        log.warning(
            "data files were not swept, the next sweep tries again: root=%s error=%s",
            store.root,
            err,
        )
    return deleted
