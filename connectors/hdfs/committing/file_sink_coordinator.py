"""The driver's side of a file sink: start check, staging, sweep and committer."""

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sluice.connectors.hdfs.committing.file_committer import RENAMES_AT_ONCE, FileCommitter
from sluice.connectors.hdfs.committing.file_lease import FileLeaseStore, leased_staging
from sluice.connectors.hdfs.committing.file_sweep import StagingSweeper
from sluice.connectors.hdfs.partition_commit.partition_marks import MarkedRun, PartitionMarks
from sluice.connectors.hdfs.staging.staged_names import split_target, staging_root
from sluice.runtime.contracts import (
    Clock,
    CommitListener,
    CommitOutcome,
    CommitReport,
    Committer,
    RegionProgress,
    SinkContext,
    SinkCoordinator,
    SweepReport,
    SweepView,
)
from sluice.runtime.errors import (
    ConfigError,
    IllegalTransitionError,
    StorageError,
    StorageUnreachableError,
    StreamError,
)
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.ownership.lease import Lease
from sluice.runtime.storage.file_system import FileSystem, OpenFileSystem, close_quietly

__all__ = ["ClosableCommitter", "FileSinkCoordinator", "Sweeper"]

log = logging.getLogger(__name__)

_PROBE = ".sluice-probe-"
_SPARKS_LOG = "_spark_metadata"


class _MarkingCommitter(CommitListener, Committer):
    """A committer of files that is also a `CommitListener`: it reports decisions to the marks.

    It waits so that usually a mark is made before its checkpoint is committed on record. If the
    process is killed in between, the next start reports the checkpoint again and marks.

    Args:
        files: publishes them.
        report: takes the checkpoint's id, the regions' progress and a time-out; returns at once if
            a policy fails.
    """

    def __init__(
        self,
        files: Committer,
        report: Callable[[int, Sequence[RegionProgress], float], object],
    ) -> None:
        self._files = files
        self._report = report

    def commit(
        self, committables: Sequence[StateEntry], *, timeout_s: float, after_crash: bool
    ) -> list[CommitReport]:
        return self._files.commit(committables, timeout_s=timeout_s, after_crash=after_crash)

    def abort(self, committables: Sequence[StateEntry], *, timeout_s: float) -> list[CommitReport]:
        return self._files.abort(committables, timeout_s=timeout_s)

    def await_visible(self, *, timeout_s: float) -> bool:
        return self._files.await_visible(timeout_s=timeout_s)

    def regions_published(
        self, checkpoint_id: int, regions: Sequence[RegionProgress], *, timeout_s: float
    ) -> CommitReport:
        self._report(checkpoint_id, regions, timeout_s)
        return CommitReport(outcome=CommitOutcome.COMMITTED)


class ClosableCommitter(Committer, Protocol):
    """A `Committer` with threads of its own."""

    def close(self) -> None:
        """End them, after the requests under way."""
        ...


class Sweeper(Protocol):
    """Ends the work that no decision can publish. Driver, one thread."""

    def sweep(self, view: SweepView) -> int:
        """One pass; returns how much work it ended. Never raises for a store."""
        ...


class FileSinkCoordinator(SinkCoordinator):
    """Implements `sluice.runtime.contracts.SinkCoordinator` for file sinks. Driver.

    Several jobs may write into one directory, because the job's uid is part of every staged name.
    The fencing record in the checkpoint directory separates two runs of one job (`fence-first`). If
    that directory was copied, the lease in the shared staging directory separates them
    (`lease-guards-outputs`).

    Args:
        target: URI of the directory that readers read.
        open_file_system: opens the one rooted at a URI.
        marks: makes the marks of complete partitions; None: no partition commit.
        renames_at_once, is_staged_verified: see `FileCommitter`.
        committer: publishes in another way than by renames.
        clock: monotonic seconds.
        sleep: for seconds.
    """

    committer: Committer

    def __init__(
        self,
        target: str,
        open_file_system: OpenFileSystem,
        *,
        marks: PartitionMarks | None = None,
        renames_at_once: int = RENAMES_AT_ONCE,
        is_staged_verified: bool = True,
        committer: ClosableCommitter | None = None,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._target = target
        self._parent, self._name = split_target(target)
        self._open = open_file_system
        self._opened: FileSystem | None = None
        self._sweeper: Sweeper | None = None
        self._clock = clock
        self._sleep = sleep
        self._lease: Lease | None = None
        self._files = committer or FileCommitter(
            open_file_system,
            at_once=renames_at_once,
            is_staged_verified=is_staged_verified,
            clock=clock,
        )
        self.committer = self._files
        if marks is not None:
            self.committer = _MarkingCommitter(self._files, self._published)
        self._marks = marks
        self._marked: tuple[MarkedRun, str] | None = None  # as which operator

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        """See `SinkCoordinator.check`; the file system's client bounds each call."""
        del timeout_s
        if self._marks is not None:
            self._marks.require_free()
        if self._fs.length_bytes(self._name) is not None:
            raise ConfigError(
                "the target of a file sink is a file",
                {"path": self._target},
                "Give a directory; it is made where it is absent.",
            )
        if self._fs.exists(f"{self._name}/{_SPARKS_LOG}"):
            raise ConfigError(
                "Spark's own file sink has written into the target",
                {"log": f"{self._target}/{_SPARKS_LOG}"},
                "Give another path: Spark's readers list only the files of that log. Or delete the "
                "log, after you checked that its files are whole and that no query writes there.",
            )
        return {}

    def claim(self, context: SinkContext, *, timeout_s: float) -> None:
        """See `SinkCoordinator.claim`: takes the lease, makes the target, and tries a rename into
        it. If another run's lease exists, watching it takes 15 s.

        An encryption zone, a quota or a permission that forbids the rename is thus an error before
        the first decision, not after it.
        """
        del timeout_s
        root = staging_root(self._name, job_uid=context.job_uid, operator_id=context.operator_id)
        lease = Lease(
            FileLeaseStore(self._fs, root),
            context,
            leased_staging(f"{self._parent}/{root}"),
            clock=self._clock,
            sleep=self._sleep,
        )
        lease.acquire()
        self._lease = lease
        self._sweeper = self._try_publication(context, root)
        if self._marks is not None:
            self._marked = self._marks.begin(context), context.operator_id

    def _try_publication(self, context: SinkContext, root: str) -> Sweeper:
        """Try a rename; returns what sweeps the staging directory."""
        self._fs.make_directories(self._name)
        self._try_rename(root)
        return StagingSweeper(
            self._fs, root=root, operator_id=context.operator_id, clock=self._clock
        )

    def _try_rename(self, root: str) -> None:
        probe = f"{_PROBE}{uuid.uuid4().hex}"
        self._fs.write_temporary(f"{root}/{probe}", b"sluice")
        try:
            moved = self._fs.move(f"{root}/{probe}", f"{self._name}/{probe}")
        except StorageUnreachableError:
            raise
        except StorageError as err:
            raise self._no_rename(root, err) from err
        finally:
            self._fs.delete(f"{root}/{probe}")
            self._fs.delete(f"{self._name}/{probe}")
        if not moved:
            raise self._no_rename(root, "it was refused")

    def _no_rename(self, root: str, why: object) -> StorageError:
        return StorageError(
            "a file cannot be renamed from the staging directory into the target",
            {"path": self._target, "staging": f"{self._parent}/{root}", "error": str(why)},
            "Put both on one device (give a directory below a mount point), in one encryption "
            "zone, within their quotas, and make them writable.",
        )

    def sweep(self, view: SweepView, *, timeout_s: float) -> SweepReport:
        del timeout_s
        if self._sweeper is None:
            raise IllegalTransitionError(
                "a file sink was swept before it acquired its lease",
                {"path": self._target},
                "Report this bug.",
            )
        return SweepReport(aborted=self._sweeper.sweep(view))  # files that remain hide nothing

    def _published(
        self, checkpoint_id: int, regions: Sequence[RegionProgress], timeout_s: float
    ) -> None:
        if self._marked is not None:
            run, operator_id = self._marked
            run.published(operator_id, regions, checkpoint_id=checkpoint_id, timeout_s=timeout_s)

    def renew(self) -> None:
        if self._lease is not None:
            self._lease.renew()

    def close(self) -> None:
        """See `SinkCoordinator.close`: ends its clients; the session owns the JVM."""
        if self._marked is not None:
            run, operator_id = self._marked
            run.leave(operator_id)
        self._files.close()
        lease, self._lease = self._lease, None
        if lease is not None:
            try:
                lease.release()
            except StreamError as err:
                log.info("lease was not released: target=%s error=%s", self._target, err)
        if self._opened is not None:
            close_quietly(self._opened)

    @property
    def _fs(self) -> FileSystem:
        if self._opened is None:
            self._opened = self._open(self._parent)
        return self._opened
