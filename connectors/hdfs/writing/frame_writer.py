"""Writes the frame of one batch into a staging directory of its own."""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from sluice.connectors.hdfs.staging.committables import FileSet, StagedFile, encode_file_set
from sluice.connectors.hdfs.staging.staged_names import StagingAttempt, split_target, staging_root
from sluice.connectors.hdfs.staging.staged_output import make_names_durable
from sluice.runtime.contracts import (
    AttemptRegistry,
    Frame,
    FrameWriter,
    RegisteredAttempt,
    StagedFrame,
    TaskScope,
)
from sluice.runtime.errors import StorageUnreachableError, StreamError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.storage.file_system import (
    FileSystem,
    OpenFileSystem,
    close_quietly,
    require_writable,
)

__all__ = ["FileFrameWriter", "FrameSaver", "SavedFrame", "StagingDirectory"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingDirectory:
    """The directory that one attempt of a batch alone writes into.

    Attributes:
        fs: rooted at the parent of the target.
        root: `sluice.connectors.hdfs.staging.staged_names.staging_root` of the sink.
        attempt: that writes there.
        checkpoint_id: that the batch is expected to join; part of the final names.
    """

    fs: FileSystem
    root: str
    attempt: StagingAttempt
    checkpoint_id: int

    @property
    def path(self) -> str:
        """Relative to the root of the file system."""
        return f"{self.root}/{self.attempt.path}"

    @property
    def uri(self) -> str:
        """Of the directory."""
        return f"{self.fs.uri}/{self.path}"

    def make_names_durable(self, files: Iterable[str]) -> None:
        """Make synced files, named relative to this directory, findable after a crash."""
        make_names_durable(self.fs, self.root, [f"{self.path}/{file}" for file in files])


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFrame:
    """The files that a saver left in the staging directory.

    Attributes:
        rows: of the frame; CSV files hold fewer if their only column is null.
        files: durable; none if the frame had no rows.
    """

    rows: int
    files: tuple[StagedFile, ...]


class FrameSaver(Protocol):
    """Writes a frame's rows as files. Driver; `save` in the batch callback."""

    def check(self, frame: Frame) -> None:
        """Refuse a frame of this schema; the frame is not run and nothing is written.

        Raises:
            ConfigError: files, or directories, cannot hold them; names the column.
        """
        ...

    def save(self, frame: Frame, directory: StagingDirectory) -> SavedFrame:
        """Run the frame once; the returned files are on disk, whole, with all rows of the frame.

        A task that ran twice adds only one set of files.
        """
        ...


@dataclass(frozen=True, kw_only=True)  # no slots: it keeps its client
class FileFrameWriter(FrameWriter):
    """`sluice.runtime.contracts.FrameWriter`: a staging directory for each attempt of a batch.

    Files of lost task attempts stay there, and are deleted with the directory.

    Attributes:
        target: URI of the directory that readers read.
        saver: writes the files.
        open_file_system: opens the one rooted at a URI.
        draw: makes a new attempt for a batch, with a name of its own.
    """

    target: str
    saver: FrameSaver
    open_file_system: OpenFileSystem
    draw: Callable[[BatchKey], StagingAttempt] = StagingAttempt.draw

    @functools.cached_property
    def _fs(self) -> FileSystem:
        """One client for all batches of an attempt, because each opened client stays in the
        session's JVM."""
        return self.open_file_system(split_target(self.target)[0])

    def write(self, frame: Frame, scope: TaskScope, registry: AttemptRegistry) -> StagedFrame:
        directory = self.open(self.target, scope, registry)
        saved = self.save(frame, directory)
        if not saved.files:
            self._fs.delete(directory.path)
            return StagedFrame(rows=saved.rows)
        found = FileSet(
            target=self.target, staging=directory.path, rows=saved.rows, files=saved.files
        )
        return StagedFrame(
            rows=saved.rows, committables=(encode_file_set(found, operator_id=scope.operator_id),)
        )

    def save(self, frame: Frame, directory: StagingDirectory) -> SavedFrame:
        """Run the frame into an open directory."""
        failpoint("before-stage")
        with self.outages_reported(directory):
            saved = self.saver.save(frame, directory)
        failpoint("after-stage")
        return saved

    @contextlib.contextmanager
    def outages_reported(self, directory: StagingDirectory) -> Iterator[None]:
        """Raise `StorageUnreachableError` instead of any failure while the store is away."""
        try:
            yield
        except StorageUnreachableError:
            raise
        except Exception:  # raised unchanged, unless the store is away
            self._require_there(directory.root)
            raise

    def open(self, target: str, scope: TaskScope, registry: AttemptRegistry) -> StagingDirectory:
        """A new attempt's directory beside ``target``, registered before its first file."""
        parent, name = split_target(target)
        directory = StagingDirectory(
            fs=self._fs if target == self.target else self.open_file_system(parent),
            root=staging_root(name, job_uid=scope.job_uid, operator_id=scope.operator_id),
            attempt=self.draw(scope.batch),
            checkpoint_id=scope.checkpoint_id,
        )
        registry.register(
            RegisteredAttempt(
                batch=scope.batch,
                operator_id=scope.operator_id,
                resource=directory.attempt.path,
                checkpoint_id=scope.checkpoint_id,
            )
        )
        return directory

    def require_writable(self, *, job_uid: str, operator_id: str) -> None:
        _, name = split_target(self.target)
        require_writable(self._fs, staging_root(name, job_uid=job_uid, operator_id=operator_id))

    def _require_there(self, root: str) -> None:
        """Raise only for an outage; any other failure is the frame's own."""
        try:
            require_writable(self._fs, root)
        except StorageUnreachableError:
            raise
        except StreamError as err:
            log.info("staging directory was also refused: root=%s error=%s", root, err)

    def close(self) -> None:
        opened = vars(self).pop("_fs", None)
        if opened is not None:
            close_quietly(opened)
