"""One rule about files broken at a time; see `tests.simulation.mutations`."""

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sluice.connectors.hdfs.committing import file_committer as committer
from sluice.connectors.hdfs.committing.file_committer import FileCommitter
from sluice.connectors.hdfs.committing.file_sink_coordinator import FileSinkCoordinator
from sluice.connectors.hdfs.rolling import rolling_writer
from sluice.connectors.hdfs.staging import staged_names as staging
from sluice.connectors.hdfs.staging.committables import COMMITTABLE_KIND, FileSet, StagedFile
from sluice.connectors.hdfs.staging.staged_names import StagingAttempt
from sluice.connectors.hdfs.tools import files_survey
from sluice.runtime.contracts import CommitOutcome, CommitReport, SweepView
from sluice.runtime.coordinator.core.events import CoreEvent, Publish
from sluice.runtime.coordinator.shell.io_executor import IoExecutor
from sluice.runtime.coordinator.start import rescaling
from sluice.runtime.coordinator.start.settlement import Settlement
from sluice.runtime.errors import StorageError
from sluice.runtime.model.checkpoint_record import StateEntry, Verdict, committables_of
from sluice.runtime.model.splits import BatchKey, SplitRange
from sluice.runtime.storage.file_system import FileSystem
from tests.simulation.files import FILES, FileTask, Staging


def rename_before_the_decision(patch: pytest.MonkeyPatch) -> None:
    """A file is not visible before a decision names it."""
    publish = IoExecutor._publish  # noqa: SLF001 - broken on purpose

    def broken(self: Any, action: Publish) -> Generator[str, None, CoreEvent]:
        entries = [e for e in committables_of(action.regions) if e.kind == COMMITTABLE_KIND]
        if action.verdict is Verdict.DECIDED:
            with self._sinks[FILES].committing() as committer:
                committer.commit(entries, timeout_s=1.0, after_crash=True)
        yield "renamed too early"
        return (yield from publish(self, action))

    patch.setattr(IoExecutor, "_publish", broken)


def trust_an_unanswered_rename(patch: pytest.MonkeyPatch) -> None:
    """Rule `rename-settled`: the committer checks the files to learn whether an unanswered rename
    happened."""

    def broken(fs: FileSystem, files: FileSet, file: StagedFile, **_: bool) -> CommitReport:
        with contextlib.suppress(StorageError):
            fs.move(files.staged_path(file), files.final_path(file))
        return CommitReport(outcome=CommitOutcome.COMMITTED)

    patch.setattr(committer, "_publish_one", broken)


def report_failed_renames_as_published(patch: pytest.MonkeyPatch) -> None:
    """Rule `rename-settled`: the committer repeats a rename that the file system could not do."""
    commit = FileCommitter.commit

    def broken(self: Any, committables: Sequence[StateEntry], **limits: Any) -> list[CommitReport]:
        reports = commit(self, committables, **limits)
        is_open = CommitOutcome.PENDING
        done = CommitReport(outcome=CommitOutcome.COMMITTED)
        return [done if report.outcome is is_open else report for report in reports]

    patch.setattr(FileCommitter, "commit", broken)


def undo_an_unanswered_rename(patch: pytest.MonkeyPatch) -> None:
    """Rule `rename-settled`: an unanswered rename may have happened, and readers may have seen the
    file, so the file stays."""
    publish_one = committer._publish_one  # noqa: SLF001 - broken on purpose

    def broken(fs: FileSystem, files: FileSet, file: StagedFile, **looks: bool) -> CommitReport:
        try:
            if fs.move(files.staged_path(file), files.final_path(file)):
                return CommitReport(outcome=CommitOutcome.COMMITTED)
        except StorageError:
            fs.delete(files.final_path(file))
            raise
        return publish_one(fs, files, file, **looks)

    patch.setattr(committer, "_publish_one", broken)


def stage_below_the_target(patch: pytest.MonkeyPatch) -> None:
    """Rule `rename-settled`: staged files are outside the target directory, so readers do not list
    them."""
    patch.setattr(staging, "_PREFIX", "out/staging-")


def one_name_for_all_attempts(patch: pytest.MonkeyPatch) -> None:
    """Rule `rename-settled`: the name of a staged file is unique to one attempt. Otherwise a task
    that outlives its driver overwrites the file of a newer task."""
    task = Staging.task

    def broken(self: Staging, directory: Any, splits: Iterable[SplitRange]) -> FileTask:
        made = task(self, directory, splits)
        made.number = 0
        return made

    def draw(self: Staging, batch: BatchKey) -> StagingAttempt:
        return StagingAttempt(batch=batch, attempt="0" * 32)

    patch.setattr(Staging, "task", broken)
    patch.setattr(Staging, "_draw", draw)


def _with_view(patch: pytest.MonkeyPatch, **changes: Any) -> None:
    sweep = FileSinkCoordinator.sweep

    def broken(self: FileSinkCoordinator, view: SweepView, *, timeout_s: float) -> int:
        return sweep(self, replace(view, **changes), timeout_s=timeout_s)

    patch.setattr(FileSinkCoordinator, "sweep", broken)


def sweep_decided_files(patch: pytest.MonkeyPatch) -> None:
    """Rule `rename-settled`: a sweep keeps the files that an unfinished decision names, however old
    their attempt is."""
    run = Settlement.run

    def sweep_first(self: Any, records: Any) -> Generator[str, None, None]:
        yield from self._sweep(())
        yield from run(self, records)

    _with_view(patch, protected=())
    patch.setattr(Settlement, "run", sweep_first)


def sweep_open_files(patch: pytest.MonkeyPatch) -> None:
    """Rule `retire-after-commit`: a file is not an orphan while a record that a run can start from
    holds it."""
    _with_view(patch, kept=())


def sweep_staged_files_of_open_batches(patch: pytest.MonkeyPatch) -> None:
    """Rule `ids-never-reused`: a sweep leaves the files of a batch that may still be decided."""
    patch.setattr(SweepView, "is_settled", lambda self, batch: True)


def move_open_files(patch: pytest.MonkeyPatch) -> None:
    """Rule `files-with-decision`: an epoch does not touch the open files of earlier epochs before
    its own decision."""
    bring = rolling_writer._bring  # noqa: SLF001 - broken on purpose

    def broken(file: Any, into: Any, staged: str, *, is_fresh: bool) -> None:
        bring(file, into, staged, is_fresh=True)

    patch.setattr(rolling_writer, "_bring", broken)


def forget_open_files_of_removed_regions(patch: pytest.MonkeyPatch) -> None:
    """Rule `files-with-decision`: the region that takes over a removed region's splits also
    publishes its open files."""
    patch.setattr(rescaling, "_with_states", lambda regions, record, plan: tuple(regions))


def clean_files_of_checkpoints(patch: pytest.MonkeyPatch) -> None:
    """Rule `files-with-decision`: ``sluice files clean`` keeps every file that a checkpoint
    names."""
    patch.setattr(files_survey, "_pending_files", lambda record: iter(()))


def clean_files_of_the_newest_run(patch: pytest.MonkeyPatch) -> None:
    """``sluice files clean`` keeps the staged files of the newest run, which may be running and may
    decide them."""
    patch.setattr(files_survey, "first_slot_of_newest_run", lambda records: 10**9)


_FILES: Mapping[str, Any] = {"files": True, "only_files": True}
_HELD: Mapping[str, Any] = {**_FILES, "roll": True, "kill": 0.03}
_CLEANED: Mapping[str, Any] = {"disk": True, "clean": 0.3, "start": 0.1}

FILE_MUTATIONS: Mapping[
    str, tuple[Callable[[pytest.MonkeyPatch], None], Mapping[str, Any], str]
] = {
    "rename before the decision": (
        rename_before_the_decision,
        _FILES,
        "a file is visible before its decision",
    ),
    "trust an unanswered rename": (
        trust_an_unanswered_rename,
        {**_FILES, "refused": 0.1, "lost_answer": 0.1, "late": 0.1},
        "a decided file is deleted",  # the committer deletes the directory, which it takes for empty
    ),
    "report failed renames as published": (
        report_failed_renames_as_published,
        {**_FILES, "refused": 0.2, "lost_answer": 0.1},
        "marked before its files are visible",
    ),
    "undo an unanswered rename": (
        undo_an_unanswered_rename,
        {**_FILES, "lost_answer": 0.2},
        "a published file is deleted",
    ),
    "stage below the target": (
        stage_below_the_target,
        _FILES,
        "a file is written where readers look",
    ),
    "one name for all attempts": (
        one_name_for_all_attempts,
        {**_FILES, "fail_task": 0.2, "kill": 0.03},
        "a decided file is written over",
    ),
    "one name for all attempts, with open files": (
        one_name_for_all_attempts,
        {**_HELD, "fail_task": 0.2},
        "a held file is written over",
    ),
    "sweep decided files": (
        sweep_decided_files,
        {**_FILES, "kill": 0.03},
        "a decided file is deleted",
    ),
    "sweep open files": (sweep_open_files, _HELD, "a held file is deleted"),
    "sweep staged files of open batches": (
        sweep_staged_files_of_open_batches,
        _FILES,
        "a decision names a file that is not there",
    ),
    "move open files": (move_open_files, _HELD, "a held file is moved away"),
    "clean files of checkpoints": (
        clean_files_of_checkpoints,
        {**_HELD, **_CLEANED},
        "a held file is deleted",
    ),
    "clean files of the newest run": (
        clean_files_of_the_newest_run,
        {**_FILES, **_CLEANED},
        "a decision names a file that is not there",
    ),
    "forget open files of removed regions": (
        forget_open_files_of_removed_regions,
        {**_HELD, "rescale": 4, "partitions": 5, "start": 0.1},
        "a decision loses or doubles rows of files",
    ),
}
"""Each broken rule, with a profile of failures that shows it, and the promise that it breaks."""
