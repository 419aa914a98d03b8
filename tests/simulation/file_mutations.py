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
from sluice.runtime.model.model import BatchKey, SplitRange, StateEntry, Verdict, committables_of
from sluice.runtime.storage.file_system import FileSystem
from tests.simulation.files import FILES, FileTask, Staging

__all__ = ["FILE_MUTATIONS"]


def rename_before_the_decision(patch: pytest.MonkeyPatch) -> None:
    """Section 4: what no decision names is not visible."""
    publish = IoExecutor._publish  # noqa: SLF001 - broken on purpose

    def broken(self: Any, action: Publish) -> Generator[str, None, CoreEvent]:
        entries = [e for e in committables_of(action.regions) if e.kind == COMMITTABLE_KIND]
        if action.verdict is Verdict.DECIDED:
            self._sinks[FILES].committer.commit(entries, timeout_s=1.0, after_crash=True)
        yield "renamed too early"
        return (yield from publish(self, action))

    patch.setattr(IoExecutor, "_publish", broken)


def believe_a_rename_that_did_not_answer(patch: pytest.MonkeyPatch) -> None:
    """Rule `rename-settled`: a rename is settled by looking, not by its answer."""

    def broken(fs: FileSystem, files: FileSet, file: StagedFile, **_: bool) -> CommitReport:
        with contextlib.suppress(StorageError):
            fs.move(files.staged_path(file), files.final_path(file))
        return CommitReport(outcome=CommitOutcome.COMMITTED)

    patch.setattr(committer, "_publish_one", broken)


def take_what_is_not_renamed_for_published(patch: pytest.MonkeyPatch) -> None:
    """Rule `rename-settled`: what a file system could not do now is done later, and not for
    good."""
    commit = FileCommitter.commit

    def broken(self: Any, committables: Sequence[StateEntry], **limits: Any) -> list[CommitReport]:
        reports = commit(self, committables, **limits)
        is_open = CommitOutcome.PENDING
        done = CommitReport(outcome=CommitOutcome.COMMITTED)
        return [done if report.outcome is is_open else report for report in reports]

    patch.setattr(FileCommitter, "commit", broken)


def take_a_rename_back_that_did_not_answer(patch: pytest.MonkeyPatch) -> None:
    """Rule `rename-settled`: it may have happened, and readers may have seen the file: it stays."""
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
    """Rule `rename-settled`: what is staged lies beside the target, where no reader looks."""
    patch.setattr(staging, "_PREFIX", "out/staging-")


def one_name_for_all_attempts(patch: pytest.MonkeyPatch) -> None:
    """Rule `rename-settled`: a staged name is one attempt's alone, or a task that outlives its
    driver writes over what another one has staged."""
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
    """Rule `rename-settled`: the sweep leaves what an unfinished decision names, however old its
    attempt."""
    run = Settlement.run

    def sweep_first(self: Any, records: Any) -> Generator[str, None, None]:
        yield from self._sweep(())
        yield from run(self, records)

    _with_view(patch, protected=())
    patch.setattr(Settlement, "run", sweep_first)


def sweep_held_files(patch: pytest.MonkeyPatch) -> None:
    """Rule `retire-after-commit`: what a record that can be started from holds is nobody's
    orphan."""
    _with_view(patch, kept=())


def sweep_staged_files_of_open_batches(patch: pytest.MonkeyPatch) -> None:
    """Rule `ids-never-reused`: what belongs to a batch that may still be decided is no orphan."""
    patch.setattr(SweepView, "is_settled", lambda self, batch: True)


def move_held_files(patch: pytest.MonkeyPatch) -> None:
    """Rule `files-with-decision`: an epoch touches nothing that is held before its own decision."""
    bring = rolling_writer._bring  # noqa: SLF001 - broken on purpose

    def broken(file: Any, into: Any, staged: str, *, is_fresh: bool) -> None:
        bring(file, into, staged, is_fresh=True)

    patch.setattr(rolling_writer, "_bring", broken)


def forget_what_vanished_regions_hold(patch: pytest.MonkeyPatch) -> None:
    """Rule `files-with-decision`: rows that are held are published by whoever goes on with the
    region's splits."""
    patch.setattr(rescaling, "_with_states", lambda regions, record, plan: tuple(regions))


def clean_what_checkpoints_hold(patch: pytest.MonkeyPatch) -> None:
    """Rule `files-with-decision`: what any checkpoint holds is safe from ``sluice files clean``."""
    patch.setattr(files_survey, "_pending_files", lambda record: iter(()))


def clean_what_the_newest_run_stages(patch: pytest.MonkeyPatch) -> None:
    """The newest run may be running, and decide what it has staged."""
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
    "believe a rename that did not answer": (
        believe_a_rename_that_did_not_answer,
        {**_FILES, "refused": 0.1, "lost_answer": 0.1, "late": 0.1},
        "a decided file is deleted",  # the emptied directory is thought to be, and tidied away
    ),
    "take what is not renamed for published": (
        take_what_is_not_renamed_for_published,
        {**_FILES, "refused": 0.2, "lost_answer": 0.1},
        "marked before its files are visible",
    ),
    "take a rename back that did not answer": (
        take_a_rename_back_that_did_not_answer,
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
    "one name for all attempts, where files are held": (
        one_name_for_all_attempts,
        {**_HELD, "fail_task": 0.2},
        "a held file is written over",
    ),
    "sweep decided files": (
        sweep_decided_files,
        {**_FILES, "kill": 0.03},
        "a decided file is deleted",
    ),
    "sweep held files": (sweep_held_files, _HELD, "a held file is deleted"),
    "sweep staged files of open batches": (
        sweep_staged_files_of_open_batches,
        _FILES,
        "a decision names a file that is not there",
    ),
    "move held files": (move_held_files, _HELD, "a held file is moved away"),
    "clean what checkpoints hold": (
        clean_what_checkpoints_hold,
        {**_HELD, **_CLEANED},
        "a held file is deleted",
    ),
    "clean what the newest run stages": (
        clean_what_the_newest_run_stages,
        {**_FILES, **_CLEANED},
        "a decision names a file that is not there",
    ),
    "forget what vanished regions hold": (
        forget_what_vanished_regions_hold,
        {**_HELD, "rescale": 4, "partitions": 5, "start": 0.1},
        "a decision loses or doubles rows of files",
    ),
}
"""Each broken rule, with a world rough enough in the right way, and the promise that it breaks."""
