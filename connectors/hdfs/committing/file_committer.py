"""Publishes staged files by renaming them, and deletes those that no decision names.

The lengths found under both names of a file decide its next step: rule `rename-settled`.
"""

import contextlib
import enum
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from sluice.connectors.hdfs.staging.committables import FileSet, StagedFile, decode_file_set
from sluice.runtime.contracts import Clock, CommitOutcome, CommitReport, Committer
from sluice.runtime.errors import AuthenticationError, StorageError, StreamError
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

_DONE = CommitReport(outcome=CommitOutcome.COMMITTED)
_LATE = CommitReport(outcome=CommitOutcome.PENDING, detail="the time ran out before the try")
_WORST = (CommitOutcome.UNKNOWN, CommitOutcome.PENDING, CommitOutcome.COMMITTED)
_MOST_DETAILS = 5


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
            elif report is not _LATE:
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
        self._pool: ThreadPoolExecutor | None = None
        if at_once > 1:
            self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="sluice-files")

    def commit(
        self, committables: Sequence[StateEntry], *, timeout_s: float, after_crash: bool
    ) -> list[CommitReport]:
        deadline_s = self._clock() + timeout_s
        publish = partial(self._publish, deadline_s=deadline_s, check_first=after_crash)
        return [_guarded(partial(publish, decode_file_set(entry))) for entry in committables]

    def abort(self, committables: Sequence[StateEntry], *, timeout_s: float) -> list[CommitReport]:
        """See `Committer.abort`: deletes the attempts' staging directories."""
        deadline_s = self._clock() + timeout_s
        discard = partial(self._discard, deadline_s=deadline_s)
        return [_guarded(partial(discard, decode_file_set(entry))) for entry in committables]

    def await_visible(self, *, timeout_s: float) -> bool:
        """See `Committer.await_visible`: a renamed file is visible at once."""
        del timeout_s
        return True

    def close(self) -> None:
        """End the threads, after the renames under way, and the clients."""
        if self._pool is not None:
            self._pool.shutdown()
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
                return _LATE
            fs.make_directories(directory)
            progress.directories.add(directory)
        failpoint("before-rename")

        def publish(file: StagedFile) -> CommitReport:
            if self._clock() >= deadline_s:
                return _LATE
            is_verified = self._is_staged_verified
            step = partial(
                _publish_one, fs, files, file, check_first=check_first, is_verified=is_verified
            )
            report = _guarded(step)
            failpoint("mid-rename")
            return report

        todo = [file for file in files.files if file not in progress.files]
        reports = self._each(publish, todo)
        progress.note(todo, reports)
        report = _worst([*reports, _DONE])
        if report.outcome is not CommitOutcome.COMMITTED:
            return report
        for directory in directories:
            fs.sync_directory(directory)
        failpoint("after-rename")
        del self._under_way[files]
        self._tidy(fs, files)
        return report

    def _each(
        self, step: Callable[[StagedFile], CommitReport], todo: Sequence[StagedFile]
    ) -> list[CommitReport]:
        """Several at once. While the process ends, the pool takes no more work: then the
        caller's thread publishes the rest, because these files are decided."""
        begun = [] if self._pool is None else _begun(self._pool, step, todo)
        try:
            return [each.result() for each in begun] + [step(file) for file in todo[len(begun) :]]
        finally:
            for each in begun:
                each.cancel()

    def _discard(self, files: FileSet, *, deadline_s: float) -> CommitReport:
        if self._clock() >= deadline_s:
            return _LATE
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


def _begun(
    pool: ThreadPoolExecutor, step: Callable[[StagedFile], CommitReport], todo: Iterable[StagedFile]
) -> list[Future[CommitReport]]:
    """The futures of as many steps as the pool takes."""
    begun: list[Future[CommitReport]] = []
    with contextlib.suppress(RuntimeError):
        for file in todo:
            begun.append(pool.submit(step, file))  # noqa: PERF401 - may end early
    return begun


def _guarded(step: Callable[[], CommitReport]) -> CommitReport:
    """Turn a failure into PENDING: a later try can still check both names."""
    try:
        return step()
    except (StorageError, AuthenticationError) as err:
        return CommitReport(outcome=CommitOutcome.PENDING, detail=str(err))


def _publish_one(
    fs: FileSystem, files: FileSet, file: StagedFile, *, check_first: bool, is_verified: bool
) -> CommitReport:
    staged, final = files.staged_path(file), files.final_path(file)
    if not (check_first or is_verified):
        check_first = fs.length_bytes(staged) != file.length_bytes
    if not check_first:
        try:
            if fs.move(staged, final):
                return _DONE
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
    return _DONE


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


def _worst(reports: Iterable[CommitReport]) -> CommitReport:
    found = list(reports)
    outcome = min((report.outcome for report in found), key=_WORST.index)
    details = sorted({r.detail for r in found if r.outcome is outcome and r.detail})
    if len(details) > _MOST_DETAILS:
        details[_MOST_DETAILS:] = [f"and {len(details) - _MOST_DETAILS} more"]
    return CommitReport(outcome=outcome, detail="; ".join(details))


def _directory(path: str) -> str:
    return path.rpartition("/")[0]
