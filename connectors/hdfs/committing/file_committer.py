"""Publishes staged files by renaming them, and deletes those that no decision names.

The lengths found under both names of a file decide its next step: rule `rename-settled`.
"""

import enum
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from sluice.connectors.hdfs.committing.commit_reports import (
    DONE,
    LATE,
    ReportPool,
    guarded,
    worst,
)
from sluice.connectors.hdfs.staging.committables import FileSet, StagedFile, decode_file_set
from sluice.runtime.contracts import Clock, CommitOutcome, CommitReport, Committer
from sluice.runtime.errors import StorageError, StreamError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.storage.file_system import FileSystem, OpenFileSystem, close_quietly

__all__ = ["RENAMES_AT_ONCE", "FileCommitter", "Step", "next_step"]

log = logging.getLogger(__name__)


class Step(enum.Enum):
    """The step that remains for a file that a decision names."""

    MOVE = "move"  # staged and whole: give it its final name
    NONE = "none"  # published, by us or by an earlier run
    DELETE_STAGED = "delete staged"  # published, and the staged name is still there
    STOP = "stop"  # neither, or another length than recorded: a human must check


def next_step(staged_bytes: int | None, final_bytes: int | None, *, length_bytes: int) -> Step:
    """The step for a file of ``length_bytes``.

    Args:
        staged_bytes: length under the staged name, None when absent.
        final_bytes: length under the final name, None when absent.
        length_bytes: as recorded.
    """
    found = {length for length in (staged_bytes, final_bytes) if length is not None}
    if found != {length_bytes}:
        return Step.STOP
    if final_bytes is None:
        return Step.MOVE
    return Step.NONE if staged_bytes is None else Step.DELETE_STAGED


RENAMES_AT_ONCE = 8
"""A NameNode answers renames from several callers at once; each waits for its edit log."""


@dataclass(slots=True)
class _Progress:
    """The finished part of one file set, from which the next try continues.

    A try has little time, and a set may have more files than it can check. Without this record each
    try would check the published files again and never get further.

    Attributes:
        directories: made.
        files: published.
        reached: the most of both so far.
    """

    directories: set[str] = field(default_factory=set)
    files: set[StagedFile] = field(default_factory=set)
    reached: int = 0

    def is_further(self) -> bool:
        """Whether it has got further since the last call. Work that a failure undid, and that
        was repeated, does not count."""
        steps = len(self.directories) + len(self.files)
        reached, self.reached = self.reached, max(self.reached, steps)
        return steps > reached

    def note(self, files: Iterable[StagedFile], reports: Iterable[CommitReport]) -> None:
        """Record the outcomes of files; after a failure, directories are made again."""
        for file, report in zip(files, reports, strict=True):
            if report.outcome is CommitOutcome.COMMITTED:
                self.files.add(file)
            elif report is not LATE:
                self.directories.clear()


class FileCommitter(Committer):
    """Implements `sluice.runtime.contracts.Committer` for file sets of any target.

    Driver or command line. A rename counts only if its answer is true. After false, an error or no
    answer, the committer checks both names (`rename-settled`). Readers see whole files only; the
    files of one epoch appear one after the other.

    Args:
        open_file_system: called once for each root.
        at_once: number of renames at once; 1: in the caller's thread.
        is_staged_verified: whether this process compared the staged files with the lengths that
            their writers reported, before the decision; else it checks each before its first move.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        open_file_system: OpenFileSystem,
        *,
        at_once: int = RENAMES_AT_ONCE,
        is_staged_verified: bool = True,
        clock: Clock = time.monotonic,
    ) -> None:
        self._open = open_file_system
        self._is_staged_verified = is_staged_verified
        self._clock = clock
        self._opened: dict[str, FileSystem] = {}
        self._under_way: dict[FileSet, _Progress] = {}
        self._pool = ReportPool(at_once)

    def commit(
        self, committables: Sequence[StateEntry], *, timeout_s: float, after_crash: bool
    ) -> list[CommitReport]:
        deadline_s = self._clock() + timeout_s
        publish = partial(self._publish, deadline_s=deadline_s, check_first=after_crash)
        return [guarded(partial(publish, decode_file_set(entry))) for entry in committables]

    def abort(self, committables: Sequence[StateEntry], *, timeout_s: float) -> list[CommitReport]:
        """See `Committer.abort`: deletes the attempts' staging directories."""
        deadline_s = self._clock() + timeout_s
        discard = partial(self._discard, deadline_s=deadline_s)
        return [guarded(partial(discard, decode_file_set(entry))) for entry in committables]

    def await_visible(self, *, timeout_s: float) -> bool:
        """See `Committer.await_visible`: a renamed file is visible at once."""
        del timeout_s
        return True

    def close(self) -> None:
        """End the threads, after the renames under way, and the clients."""
        self._pool.close()
        for fs in self._opened.values():
            close_quietly(fs)

    def _publish(self, files: FileSet, *, deadline_s: float, check_first: bool) -> CommitReport:
        progress = self._under_way.setdefault(files, _Progress())
        report = self._continue_publishing(
            files, progress, deadline_s=deadline_s, check_first=check_first
        )
        if report.outcome is not CommitOutcome.PENDING:
            return report
        return replace(report, has_progressed=progress.is_further())

    def _continue_publishing(
        self, files: FileSet, progress: _Progress, *, deadline_s: float, check_first: bool
    ) -> CommitReport:
        fs = self._file_system(files)
        directories = sorted({_directory(files.final_path(file)) for file in files.files})
        for directory in directories:
            if directory in progress.directories:
                continue
            if self._clock() >= deadline_s:
                return LATE
            fs.make_directories(directory)
            progress.directories.add(directory)
        failpoint("before-rename")

        def publish(file: StagedFile) -> CommitReport:
            if self._clock() >= deadline_s:
                return LATE
            is_verified = self._is_staged_verified
            step = partial(
                _publish_one, fs, files, file, check_first=check_first, is_verified=is_verified
            )
            report = guarded(step)
            failpoint("mid-rename")
            return report

        todo = [file for file in files.files if file not in progress.files]
        reports = self._pool.each(publish, todo)
        progress.note(todo, reports)
        report = worst([*reports, DONE])
        if report.outcome is not CommitOutcome.COMMITTED:
            return report
        for directory in directories:
            fs.sync_directory(directory)
        failpoint("after-rename")
        del self._under_way[files]
        self._tidy(fs, files)
        return report

    def _discard(self, files: FileSet, *, deadline_s: float) -> CommitReport:
        if self._clock() >= deadline_s:
            return LATE
        self._file_system(files).delete(files.staging)
        return CommitReport(outcome=CommitOutcome.ABORTED)

    def _tidy(self, fs: FileSystem, files: FileSet) -> None:
        """Delete the attempt's directory: it holds at most checksums and markers. The sweep
        retries."""
        try:
            fs.delete(files.staging)
        except StreamError as err:
            log.warning(
                "staging directory was not deleted: staging=%s error=%s", files.staging, err
            )

    def _file_system(self, files: FileSet) -> FileSystem:
        if files.parent not in self._opened:
            self._opened[files.parent] = self._open(files.parent)
        return self._opened[files.parent]


def _publish_one(
    fs: FileSystem, files: FileSet, file: StagedFile, *, check_first: bool, is_verified: bool
) -> CommitReport:
    staged, final = files.staged_path(file), files.final_path(file)
    if not (check_first or is_verified):
        check_first = fs.length_bytes(staged) != file.length_bytes
    if not check_first:
        try:
            if fs.move(staged, final):
                return DONE
        except StorageError as err:
            log.info("a rename did not answer, checking both names: file=%s error=%s", final, err)
    found = fs.length_bytes(staged), fs.length_bytes(final)
    step = next_step(*found, length_bytes=file.length_bytes)
    if step is Step.STOP:
        return _report_stop(files, file, *found)
    if step is Step.DELETE_STAGED:
        fs.delete(staged)
    if step is Step.MOVE and not fs.move(staged, final):
        detail = f"{final} was not published, and no file has its name"
        return CommitReport(outcome=CommitOutcome.PENDING, detail=detail)
    return DONE


def _report_stop(
    files: FileSet, file: StagedFile, staged_bytes: int | None, final_bytes: int | None
) -> CommitReport:
    return CommitReport(
        outcome=CommitOutcome.UNKNOWN,
        detail=(
            f"a decided file of {file.length_bytes} bytes and {file.rows} rows was changed: "
            f"{files.parent}/{files.staged_path(file)} has {_size(staged_bytes)}, "
            f"{files.parent}/{files.final_path(file)} has {_size(final_bytes)}"
        ),
    )


def _size(length_bytes: int | None) -> str:
    return "no file" if length_bytes is None else f"{length_bytes} bytes"


def _directory(path: str) -> str:
    return path.rpartition("/")[0]
