"""Completes the uploads that a decision names, and aborts those of no decision.

One request publishes a file, and a repeated one does no harm: an upload makes one object, once. If
the store has no such upload any more, a look at the object shows why: rule `upload-settled`.
"""

import enum
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from sluice.connectors.hdfs.committing.commit_reports import (
    DONE,
    LATE,
    ReportPool,
    guarded,
    worst,
)
from sluice.connectors.hdfs.staging.uploaded_files import (
    UploadedFile,
    UploadSet,
    decode_upload_set,
)
from sluice.runtime.contracts import Clock, CommitOutcome, CommitReport, Committer
from sluice.runtime.errors import StorageError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.storage.objects.multipart_uploads import (
    CompletedObject,
    MultipartUploads,
    UploadGoneError,
)

__all__ = ["COMPLETIONS_AT_ONCE", "Found", "OpenUploads", "UploadCommitter", "found_object"]

log = logging.getLogger(__name__)

OpenUploads = Callable[[str], MultipartUploads]
"""Opens the uploads below a URI."""

COMPLETIONS_AT_ONCE = 16
"""A store answers them at the same time; each waits for its own parts."""


class Found(enum.Enum):
    """The result of a look at a file's name."""

    OURS = "ours"  # the whole object: completed by us or by an earlier run
    NOTHING = "nothing"
    FOREIGN = "foreign"  # another length than recorded, or no mark of this upload


def found_object(found: CompletedObject | None, *, length_bytes: int, mark: str) -> Found:
    """Compare an object with an upload of this length and mark. Pure."""
    if found is None:
        return Found.NOTHING
    is_ours = found.length_bytes == length_bytes and found.mark == mark
    return Found.OURS if is_ours else Found.FOREIGN


_NOT_YET = CommitReport(outcome=CommitOutcome.PENDING)


class UploadCommitter(Committer):
    """Implements `sluice.runtime.contracts.Committer` for upload sets of any target.

    Driver or command line. Readers see whole files only; the files of one epoch appear one after
    the other.

    Args:
        open_uploads: called once for each parent of a target.
        at_once: number of completions at once; 1: in the caller's thread.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        open_uploads: OpenUploads,
        *,
        at_once: int = COMPLETIONS_AT_ONCE,
        clock: Clock = time.monotonic,
    ) -> None:
        self._open = open_uploads
        self._clock = clock
        self._opened: dict[str, MultipartUploads] = {}
        self._completed: dict[UploadSet, set[UploadedFile]] = {}  # of sets that are not done
        self._pool = ReportPool(at_once)

    def commit(
        self, committables: Sequence[StateEntry], *, timeout_s: float, after_crash: bool
    ) -> list[CommitReport]:
        deadline_s = self._clock() + timeout_s
        complete = partial(self._complete, deadline_s=deadline_s, after_crash=after_crash)
        return [guarded(partial(complete, decode_upload_set(entry))) for entry in committables]

    def abort(self, committables: Sequence[StateEntry], *, timeout_s: float) -> list[CommitReport]:
        deadline_s = self._clock() + timeout_s
        discard = partial(self._discard, deadline_s=deadline_s)
        return [guarded(partial(discard, decode_upload_set(entry))) for entry in committables]

    def await_visible(self, *, timeout_s: float) -> bool:
        """See `Committer.await_visible`: a completed object is visible at once."""
        del timeout_s
        return True

    def close(self) -> None:
        """End the threads, after the requests under way. The process keeps its clients."""
        self._pool.close()

    def _complete(self, files: UploadSet, *, deadline_s: float, after_crash: bool) -> CommitReport:
        uploads = self._uploads(files)
        looks_first = after_crash or files in self._completed
        done = self._completed.setdefault(files, set())
        done_before = len(done)

        def complete(file: UploadedFile) -> CommitReport:
            if self._clock() >= deadline_s:
                return LATE
            if looks_first and guarded(partial(_looked, uploads, files, file)) == DONE:
                return DONE
            return guarded(partial(_complete_one, uploads, files, file))

        todo = [file for file in files.files if file not in done]
        reports = self._pool.each(complete, todo)
        done.update(f for f, r in zip(todo, reports, strict=True) if r == DONE)
        report = worst([*reports, DONE])
        if report.outcome is CommitOutcome.COMMITTED:
            del self._completed[files]
            return report
        return CommitReport(
            outcome=report.outcome, detail=report.detail, has_progressed=len(done) > done_before
        )

    def _discard(self, files: UploadSet, *, deadline_s: float) -> CommitReport:
        if self._clock() >= deadline_s:
            return LATE
        uploads = self._uploads(files)
        for file in files.files:
            uploads.abort(files.key(file), file.upload_id)
        return CommitReport(outcome=CommitOutcome.ABORTED)

    def _uploads(self, files: UploadSet) -> MultipartUploads:
        if files.parent not in self._opened:
            self._opened[files.parent] = self._open(files.parent)
        return self._opened[files.parent]


def _complete_one(uploads: MultipartUploads, files: UploadSet, file: UploadedFile) -> CommitReport:
    key = files.key(file)
    failpoint("before-complete")
    try:
        uploads.complete(key, file.upload_id, file.tags, mark=files.mark)
    except StorageError as err:
        log.info("an upload was not completed, looking at its object: key=%s error=%s", key, err)
        return _settled(uploads, files, file, err)
    failpoint("after-complete")
    return DONE


def _looked(uploads: MultipartUploads, files: UploadSet, file: UploadedFile) -> CommitReport:
    """Whether an earlier try has completed it; its answer may have been lost."""
    found = found_object(
        _look(uploads, files, file), length_bytes=file.length_bytes, mark=files.mark
    )
    return DONE if found is Found.OURS else _NOT_YET


def _settled(
    uploads: MultipartUploads, files: UploadSet, file: UploadedFile, err: StorageError
) -> CommitReport:
    """The outcome of a completion that failed, or whose answer was lost."""
    key = files.key(file)
    object_there = _look(uploads, files, file)
    found = found_object(object_there, length_bytes=file.length_bytes, mark=files.mark)
    if found is Found.OURS:
        return DONE
    if found is Found.NOTHING and not isinstance(err, UploadGoneError):
        return CommitReport(outcome=CommitOutcome.PENDING, detail=str(err))
    seen = "no object" if object_there is None else f"{object_there.length_bytes} bytes"
    return CommitReport(
        outcome=CommitOutcome.UNKNOWN,
        detail=(
            f"a decided file of {file.length_bytes} bytes and {file.rows} rows was changed: "
            f"{files.parent}/{key} has {seen}, and its upload {file.upload_id} is gone"
        ),
    )


def _look(
    uploads: MultipartUploads, files: UploadSet, file: UploadedFile
) -> CompletedObject | None:
    failpoint("before-look")
    found = uploads.look(files.key(file))
    failpoint("after-look")
    return found
