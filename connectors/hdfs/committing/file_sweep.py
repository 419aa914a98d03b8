"""Finds staged attempts that can never be published, and deletes them: rules `fence-first` and
`rename-settled`."""

import logging
import re
import time
from collections.abc import Iterable, Iterator

from sluice.connectors.hdfs.staging.committables import COMMITTABLE_KIND, decode_file_set
from sluice.connectors.hdfs.staging.pending_files import PENDING_KIND, decode_pending_files
from sluice.connectors.hdfs.staging.staged_names import StagingAttempt
from sluice.runtime.checkpoint.leftover_files import HALF_MADE, Leftovers
from sluice.runtime.contracts import Clock, SweepView
from sluice.runtime.errors import StreamError
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["StagingSweeper", "attempts_below", "orphans"]

log = logging.getLogger(__name__)

_OF_KILLED = re.compile(rf"{HALF_MADE.pattern}|\.sluice-probe-[0-9a-f]{{32}}")
"""Half-written leases, and probe files of starts and regions."""


def orphans(
    found: Iterable[StagingAttempt], view: SweepView, *, root: str, operator_id: str
) -> list[StagingAttempt]:
    """The attempts among ``found`` that may be deleted.

    An attempt may be deleted if neither a protected committable nor a retained record names it, and
    one of three is true: its region's attempt is over, its batch is committed on record, or the
    coordinator has declared exactly this attempt an orphan.

    Args:
        found: the attempts under ``root``.
        root: `sluice.connectors.hdfs.staging.staged_names.staging_root` of this sink and job.
        operator_id: of this sink.
    """
    protected = {
        decode_file_set(entry).staging
        for entry in view.protected
        if entry.kind == COMMITTABLE_KIND and entry.operator_id == operator_id
    }
    for entry in view.kept:
        if entry.kind == PENDING_KIND and entry.operator_id == operator_id:
            protected |= decode_pending_files(entry).stagings
    declared = {one.resource for one in view.orphans if one.operator_id == operator_id}
    return [
        attempt
        for attempt in found
        if f"{root}/{attempt.path}" not in protected
        and (
            view.is_attempt_over(attempt.batch.region, attempt.batch.attempt_id)
            or view.is_settled(attempt.batch)
            or attempt.path in declared
        )
    ]


def attempts_below(fs: FileSystem, root: str) -> Iterator[StagingAttempt]:
    """The staged attempts of one sink, of all runs; foreign names are left out."""
    for directory in _attempts(fs, root):
        for found in fs.entries(f"{root}/{directory}"):
            attempt = StagingAttempt.parse(f"{directory}/{found.name}")
            if attempt is not None:
                yield attempt


def _attempts(fs: FileSystem, root: str) -> list[str]:
    """Directories of regions' attempts; a start that was killed may leave a file among them."""
    return [entry.name for entry in fs.entries(root) if entry.is_directory]


class StagingSweeper:
    """Lists, decides by `orphans`, deletes. Driver, one thread; keeps no attempt between sweeps.

    A task that outlives its batch may write into a deleted directory again: the next sweep, or
    the next start, finds it there.

    Args:
        fs: rooted at the parent of the target.
        root: `sluice.connectors.hdfs.staging.staged_names.staging_root` of the sink.
        operator_id: of the sink.
        clock: monotonic seconds.
    """

    def __init__(
        self, fs: FileSystem, *, root: str, operator_id: str, clock: Clock = time.monotonic
    ) -> None:
        self._fs = fs
        self._root = root
        self._operator_id = operator_id
        self._leftovers = Leftovers(fs, clock=clock, directory=root, pattern=_OF_KILLED)

    def sweep(self, view: SweepView) -> int:
        """One pass; returns how many attempts were deleted. Never raises for a file system."""
        deleted = 0
        try:
            for attempt in orphans(
                attempts_below(self._fs, self._root),
                view,
                root=self._root,
                operator_id=self._operator_id,
            ):
                self._fs.delete(f"{self._root}/{attempt.path}")
                log.info("orphaned staging deleted: root=%s attempt=%s", self._root, attempt.path)
                deleted += 1
            self._delete_empty_attempts(view)
            self._leftovers.delete_abandoned()
        except StreamError as err:
            log.warning(
                "staging was not swept, the next sweep tries again: root=%s error=%s",
                self._root,
                err,
            )
        return deleted

    def _delete_empty_attempts(self, view: SweepView) -> None:
        """Delete the empty directories of regions' attempts that are over."""
        for attempt in _attempts(self._fs, self._root):
            region, _, attempt_id = attempt.rpartition(".")
            is_over = attempt_id.isdecimal() and view.is_attempt_over(region, int(attempt_id))
            if is_over and not self._fs.entries(f"{self._root}/{attempt}"):
                self._fs.delete(f"{self._root}/{attempt}")
