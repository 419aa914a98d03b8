"""Stages the frame of one batch, and keeps its files pending until they roll: rule
`files-with-decision`."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from sluice.connectors.hdfs.rolling.merging import FileMerger
from sluice.connectors.hdfs.rolling.roll_plan import (
    Merge,
    Outcome,
    Roll,
    again_in_s,
    plan,
    settle,
)
from sluice.connectors.hdfs.staging.committables import FileSet, StagedFile, encode_file_set
from sluice.connectors.hdfs.staging.pending_files import (
    PENDING_KIND,
    PendingFile,
    PendingFiles,
    decode_pending_files,
    encode_pending_files,
)
from sluice.connectors.hdfs.staging.staged_names import rolled_name
from sluice.connectors.hdfs.writing.frame_writer import FileFrameWriter, StagingDirectory
from sluice.runtime.contracts import AttemptRegistry, Frame, FrameWriter, StagedFrame, TaskScope
from sluice.runtime.errors import IllegalTransitionError, StorageError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.storage.file_system import close_quietly

__all__ = ["Publication", "PublishedWork", "RollingFrameWriter", "require_whole"]

_ROLLED = "rolled"


def _wall_ms() -> int:
    return int(time.time() * 1000)


class PublishedWork(NamedTuple):
    """Files that a decision publishes."""

    committable: StateEntry
    staging: str | None
    """A directory that the committable names; None: it needs no staged file."""


class Publication(Protocol):
    """Prepares pending files for the decision that publishes them. Driver, in the callback."""

    def published(
        self,
        files: Sequence[PendingFile],
        target: str,
        into: StagingDirectory,
        scope: TaskScope,
        *,
        own: str,
    ) -> PublishedWork:
        """The files of several attempts as one committable. Retained records still name those of
        other attempts, so they stay.

        Args:
            into: a directory of a registered attempt, for what the committable names.
            own: staging directory of the files that this epoch wrote.
        """
        ...


class MovedFiles(Publication):
    """Staged files under one attempt's directory, which renames publish."""

    def published(
        self,
        files: Sequence[PendingFile],
        target: str,
        into: StagingDirectory,
        scope: TaskScope,
        *,
        own: str,
    ) -> PublishedWork:
        found = _file_set(files, target, into, own=own)
        entry = encode_file_set(found, operator_id=scope.operator_id)
        return PublishedWork(committable=entry, staging=found.staging)


@dataclass(frozen=True, kw_only=True)
class RollingFrameWriter(FrameWriter):
    """`sluice.runtime.contracts.FrameWriter` that keeps files pending over epochs.

    Driver, in the batch callback, which returns only after its checkpoint is committed on record.
    So the state that it gets is the state of the last decided record. It writes only into
    directories of the present attempt: an aborted epoch has touched no pending file. Pending files
    of another layout or target are published at once, as they are.

    Attributes:
        files: stages the frame.
        roll: the policy; None: no file stays pending.
        merger: merges files of one layout.
        layout: of a frame's files.
        publication: makes the committable of files that the decision publishes.
        unpending: writes a frame of which no file stays pending; None: `files` does.
        wall_ms: wall clock; later runs read from it when rows were staged.
    """

    files: FileFrameWriter
    roll: Roll | None
    merger: FileMerger
    layout: Callable[[Frame], str]
    publication: Publication = field(default_factory=MovedFiles)
    unpending: FrameWriter | None = None
    wall_ms: Callable[[], int] = field(default=_wall_ms)

    def write(self, frame: Frame, scope: TaskScope, registry: AttemptRegistry) -> StagedFrame:
        pending = _pending_in(scope.operator_states)
        if self.roll is None and not pending:
            return (self.unpending or self.files).write(frame, scope, registry)
        directory = self.files.open(self.files.target, scope, registry)
        staged = self.files.save(frame, directory)
        now_ms = self.wall_ms()
        own = tuple(_own_file(file, directory, now_ms) for file in staged.files)
        layout = self.layout(frame)
        mine, others = self._parted(pending, layout)
        outcome = Outcome(publish=own, keep=())
        if self.roll is not None:
            files = (*mine, *own)
            outcome = self._rolled(frame, files, scope, directory, now_ms=now_ms, roll=self.roll)
        published = [*self._published(outcome, scope, registry, directory)]
        published += [self._given_up(each, scope, registry) for each in others if each.files]
        _tidy(directory, published, outcome)
        return StagedFrame(
            rows=staged.rows,
            committables=tuple(each.committable for each in published),
            operator_states=self._state(outcome.keep, layout, scope),
            again_in_s=again_in_s(outcome.keep, self.roll, now_ms=now_ms) if self.roll else None,
        )

    def require_writable(self, *, job_uid: str, operator_id: str) -> None:
        self.files.require_writable(job_uid=job_uid, operator_id=operator_id)

    def close(self) -> None:
        self.files.close()

    def _parted(
        self, pending: Sequence[PendingFiles], layout: str
    ) -> tuple[tuple[PendingFile, ...], list[PendingFiles]]:
        """Pending files of the present settings, and those of other settings."""
        mine: list[PendingFile] = []
        others: list[PendingFiles] = []
        for each in pending:
            is_same = (each.target, each.layout) == (self.files.target, layout)
            if is_same and self.roll is not None:
                mine += each.files
            else:
                others.append(each)
        return tuple(mine), others

    def _rolled(
        self,
        frame: Frame,
        files: Sequence[PendingFile],
        scope: TaskScope,
        directory: StagingDirectory,
        *,
        now_ms: int,
        roll: Roll,
    ) -> Outcome:
        planned = plan(files, roll, now_ms=now_ms, publishes_all=scope.publishes_all)
        merged = self._merged(frame, planned.merges, directory) if planned.merges else []
        return settle(planned, merged, roll)

    def _merged(
        self, frame: Frame, merges: Sequence[Merge], directory: StagingDirectory
    ) -> list[list[PendingFile]]:
        failpoint("before-merge")
        if not self.merger.counts_rows:  # a merger that counts rows finds a damaged file itself
            with self.files.outages_reported(directory):
                for file in (file for merge in merges for file in merge.files):
                    require_whole(file, directory, directory.fs.length_bytes(file.path))
        groups = [[file.path for file in merge.files] for merge in merges]
        with self.files.outages_reported(directory):
            answers = self.merger.merge(frame, groups, directory)
        failpoint("after-merge")
        found = [
            [
                merge.merged(
                    staging=directory.path,
                    staged=file.staged,
                    length_bytes=file.length_bytes,
                    rows=file.rows,
                )
                for file in files
            ]
            for merge, files in zip(merges, answers, strict=True)
        ]
        for merge, written in zip(merges, found, strict=True):
            _require_all_rows(merge, written, directory)
        return found

    def _published(
        self,
        outcome: Outcome,
        scope: TaskScope,
        registry: AttemptRegistry,
        directory: StagingDirectory,
    ) -> Iterator[PublishedWork]:
        """The files that the decision publishes, in a directory that its commit may delete."""
        if not outcome.publish:
            return
        into = directory
        if any(file.staging == directory.path for file in outcome.keep):
            into = self.files.open(self.files.target, scope, registry)
        yield self.publication.published(
            outcome.publish, self.files.target, into, scope, own=directory.path
        )

    def _given_up(
        self, pending: PendingFiles, scope: TaskScope, registry: AttemptRegistry
    ) -> PublishedWork:
        """Files that another run kept under other settings: published to their own target, as
        they are."""
        into = self.files.open(pending.target, scope, registry)
        try:
            return self.publication.published(
                pending.files, pending.target, into, scope, own=into.path
            )
        finally:
            if pending.target != self.files.target:
                close_quietly(into.fs)

    def _state(
        self, keep: tuple[PendingFile, ...], layout: str, scope: TaskScope
    ) -> tuple[StateEntry, ...]:
        if not keep:
            return ()
        pending = PendingFiles(target=self.files.target, layout=layout, files=keep)
        return (encode_pending_files(pending, operator_id=scope.operator_id),)


def _pending_in(states: Sequence[StateEntry]) -> list[PendingFiles]:
    """One entry, or several if the region takes over from regions that no longer exist."""
    return [decode_pending_files(entry) for entry in states if entry.kind == PENDING_KIND]


def _own_file(file: StagedFile, directory: StagingDirectory, now_ms: int) -> PendingFile:
    return PendingFile(
        directory=file.final.rpartition("/")[0],
        staging=directory.path,
        staged=file.staged,
        length_bytes=file.length_bytes,
        rows=file.rows,
        first_ms=now_ms,
        last_ms=now_ms,
    )


def _require_all_rows(
    merge: Merge, written: Sequence[PendingFile], directory: StagingDirectory
) -> None:
    """Refuse a merge that lost or added rows, if the format counts them, or that is empty."""
    counts = [file.rows for file in written if file.rows is not None]
    may_be_notified = merge.rows is not None and len(counts) == len(written)
    if not written or (may_be_notified and sum(counts) != merge.rows):
        raise IllegalTransitionError(
            "a merged file does not hold the rows of its parts",
            {"staging": directory.path, "rows": merge.rows, "found": sum(counts)},
            "Unset spark.sql.files.ignoreCorruptFiles and ignoreMissingFiles, which skip "
            "unreadable files; else report this. No row becomes visible.",
        )


def _file_set(
    files: Sequence[PendingFile], target: str, into: StagingDirectory, *, own: str
) -> FileSet:
    """Files of several attempts as one set. Files that this epoch wrote are moved; others are
    copied, because retained records still name them."""
    numbers: dict[str, int] = {}
    found: list[StagedFile] = []
    for position, file in enumerate(files):
        number = numbers[file.directory] = numbers.get(file.directory, -1) + 1
        _, _, written = file.staged.rpartition("/")
        staged = file.staged
        if file.staging != into.path:
            staged = f"{_ROLLED}/{position:05d}-{written}"
            _bring(file, into, staged, is_fresh=file.staging == own)
        name = rolled_name(into.attempt, written, number=number, checkpoint_id=into.checkpoint_id)
        found.append(
            StagedFile(
                staged=staged,
                final=f"{file.directory}/{name}".lstrip("/"),
                length_bytes=file.length_bytes,
                rows=file.rows,
            )
        )
    if any(file.staging != into.path for file in files):
        into.fs.sync_directory(f"{into.path}/{_ROLLED}")  # a move is durable only after this
    into.make_names_durable([file.staged for file in found])
    counts = [file.rows for file in found if file.rows is not None]
    rows = sum(counts) if len(counts) == len(found) else None
    return FileSet(target=target, staging=into.path, rows=rows, files=tuple(found))


def _bring(file: PendingFile, into: StagingDirectory, staged: str, *, is_fresh: bool) -> None:
    path = f"{into.path}/{staged}"
    if is_fresh:
        into.fs.make_directories(path.rpartition("/")[0])
        length_bytes = file.length_bytes if into.fs.move(file.path, path) else None
    else:
        length_bytes = into.fs.join([file.path], path)
    require_whole(file, into, length_bytes)


def require_whole(file: PendingFile, directory: StagingDirectory, length_bytes: int | None) -> None:
    """Refuse a file of another length than recorded: without a row count only the length shows
    it."""
    if length_bytes != file.length_bytes:
        raise StorageError(
            "a pending file differs from the last checkpoint's record of it",
            {
                "file": f"{directory.fs.uri}/{file.path}",
                "length_bytes": file.length_bytes,
                "found": length_bytes,
            },
            "Restore the file, or start from an earlier checkpoint: another program changed or "
            "deleted it. Nothing is published.",
        )


def _tidy(
    directory: StagingDirectory, published: Sequence[PublishedWork], outcome: Outcome
) -> None:
    """Delete an attempt's directory at once if no record names a file in it."""
    needed = {file.staging for file in outcome.keep} | {work.staging for work in published}
    if directory.path not in needed:
        directory.fs.delete(directory.path)
