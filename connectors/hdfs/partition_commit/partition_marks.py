"""All of partition commit that a sink has, and that one run of it has; made and ended together."""

import threading
from collections.abc import Callable, Sequence

from sluice.connectors.hdfs.partition_commit.marker import PartitionMarker
from sluice.connectors.hdfs.partition_commit.marking_frame_writer import (
    MarkingFrameWriter,
    PendingPartitions,
    nothing_pending,
)
from sluice.connectors.hdfs.partition_commit.open_partitions import PartitionLedger
from sluice.connectors.hdfs.partition_commit.policies import policies_of
from sluice.connectors.hdfs.partition_commit.settings import PartitionCommit
from sluice.connectors.hdfs.staging.staged_names import split_target
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.succession import has_last_record
from sluice.runtime.contracts import (
    CommitOutcome,
    CommitReport,
    Committer,
    FrameWriter,
    RegionProgress,
    SinkContext,
)
from sluice.runtime.errors import ConfigError, IllegalTransitionError
from sluice.runtime.model.model import StateEntry
from sluice.runtime.storage.file_system import FileSystem, OpenFileSystem, close_quietly

__all__ = ["MarkedRun", "MarkingCommitter", "PartitionMarks"]

_WAIT_S = 1.0
_CLOSE_S = 5.0  # a webhook under way then is asked again by the next run
_REPORTED = CommitReport(outcome=CommitOutcome.COMMITTED)


class MarkedRun:
    """What one run knows and does, for all operators that the sink is in it. Driver.

    Args:
        commit, target, open_file_system: see `PartitionMarks`.
        context: of the operator that was claimed first.
    """

    def __init__(
        self,
        commit: PartitionCommit,
        *,
        target: str,
        open_file_system: OpenFileSystem,
        context: SinkContext,
    ) -> None:
        self.session = context.leader_session_id
        self.ledger = PartitionLedger(commit, target=target)
        self._parent, _ = split_target(target)
        self._open = open_file_system
        self._opened: FileSystem | None = None
        self._checkpoint_uri = context.checkpoint_uri
        self._records: CheckpointStore | None = None  # the marker's own: one thread has a store
        self._lock = threading.Lock()
        self._operators: set[str] = set()
        self._marker = PartitionMarker(
            self.ledger,
            policies_of(commit, self.file_system),
            context=context,
            target=target,
            is_newest_run=self._is_newest,
        )
        self._marker.start()

    def join(self, operator_id: str) -> None:
        """One more operator writes by this sink."""
        with self._lock:
            self._operators.add(operator_id)
        self.ledger.expect(operator_id)

    def published(
        self,
        operator_id: str,
        regions: Sequence[RegionProgress],
        *,
        checkpoint_id: int,
        timeout_s: float,
    ) -> None:
        """A decision's files are published: mark what is due, and wait for it a moment."""
        self.ledger.published(operator_id, regions, checkpoint_id=checkpoint_id)
        self._marker.look(timeout_s=min(timeout_s, _WAIT_S))

    @property
    def is_over(self) -> bool:
        """Whether no operator of it is left."""
        with self._lock:
            return not self._operators

    def leave(self, operator_id: str) -> None:
        """The last one out marks what is due, within a bound."""
        with self._lock:
            self._operators.discard(operator_id)
            if self._operators:
                return
        self._marker.close(timeout_s=_CLOSE_S)
        with self._lock:
            if self._opened is not None:
                close_quietly(self._opened)
                self._opened = None
            if self._records is not None:
                close_quietly(self._records.fs)
                self._records = None

    def _is_newest(self) -> bool:
        if self._records is None:
            self._records = CheckpointStore(self._open(self._checkpoint_uri))
        return has_last_record(self._records, session=self.session)

    def file_system(self) -> FileSystem:
        """Rooted at the target's parent: one client for the marker and all writers of a run."""
        with self._lock:
            if self._opened is None:
                self._opened = self._open(self._parent)
            return self._opened


class PartitionMarks:
    """Kept by a sink; a run of its job begins with the first operator that is claimed. Driver.

    Args:
        commit: what the user asked for.
        target: URI of the directory that the sink writes.
        open_file_system: opens the one rooted at a URI.
    """

    def __init__(
        self, commit: PartitionCommit, *, target: str, open_file_system: OpenFileSystem
    ) -> None:
        self._commit = commit
        self._target = target
        self._open = open_file_system
        self._lock = threading.Lock()
        self._run: MarkedRun | None = None

    def require_free(self) -> None:
        """Asked before a run begins.

        Raises:
            ConfigError: another one is under way, whose partitions would be taken for this one's.
        """
        if self._run is not None and not self._run.is_over:
            raise ConfigError(
                "one object of a file sink with partition commit stands in two jobs that run",
                {"path": self._target},
                "Make an HdfsSink for each Job; or stop the other one first.",
            )

    def begin(self, context: SinkContext) -> MarkedRun:
        """An operator of this sink is the job's own from here on: what is due is marked.

        Raises:
            ConfigError: see `require_free`.
        """
        with self._lock:
            if self._run is None or self._run.session != context.leader_session_id:
                self.require_free()
                self._run = MarkedRun(
                    self._commit, target=self._target, open_file_system=self._open, context=context
                )
            self._run.join(context.operator_id)
            return self._run

    @property
    def run(self) -> MarkedRun:
        """The run under way."""
        if self._run is None:
            raise IllegalTransitionError(
                "partitions are written before their sink was claimed",
                {"path": self._target},
                "This is a bug: please report it.",
            )
        return self._run

    def writer(
        self,
        inner: FrameWriter,
        *,
        columns: tuple[str, ...] | None = None,
        pending: PendingPartitions = nothing_pending,
    ) -> FrameWriter:
        """``inner``, which keeps track of the partitions that it writes."""
        return MarkingFrameWriter(
            writer=inner,
            commit=self._commit,
            ledger=self.run.ledger,
            file_system=self.run.file_system,
            target=self._target,
            columns=columns,
            pending=pending,
        )


class MarkingCommitter:
    """`sluice.runtime.contracts.Committer` and `CommitListener` around a committer of files.

    The wait is for the usual case, in which a mark is made before its checkpoint is committed on
    record: killed in between, the next start is told again and marks.

    Args:
        inner: publishes the files.
        told: takes the checkpoint's id, the regions' progress, and a time-out; returns at once
            where a policy fails.
    """

    def __init__(
        self, inner: Committer, told: Callable[[int, Sequence[RegionProgress], float], object]
    ) -> None:
        self._inner = inner
        self._report = told

    def commit(
        self, committables: Sequence[StateEntry], *, timeout_s: float, after_crash: bool
    ) -> list[CommitReport]:
        """See `sluice.runtime.contracts.Committer.commit`."""
        return self._inner.commit(committables, timeout_s=timeout_s, after_crash=after_crash)

    def abort(self, committables: Sequence[StateEntry], *, timeout_s: float) -> list[CommitReport]:
        """See `sluice.runtime.contracts.Committer.abort`."""
        return self._inner.abort(committables, timeout_s=timeout_s)

    def await_visible(self, *, timeout_s: float) -> bool:
        """See `sluice.runtime.contracts.Committer.await_visible`."""
        return self._inner.await_visible(timeout_s=timeout_s)

    def regions_published(
        self, checkpoint_id: int, regions: Sequence[RegionProgress], *, timeout_s: float
    ) -> CommitReport:
        """See `sluice.runtime.contracts.CommitListener`."""
        self._report(checkpoint_id, regions, timeout_s)
        return _REPORTED
