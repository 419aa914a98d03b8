"""The parts of partition commit that one sink has, and that one run of it has."""

import threading
from collections.abc import Sequence

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
    FrameWriter,
    RegionProgress,
    SinkContext,
)
from sluice.runtime.errors import ConfigError, IllegalTransitionError
from sluice.runtime.storage.file_system import FileSystem, OpenFileSystem, close_quietly

__all__ = ["MarkedRun", "PartitionMarks"]

_WAIT_S = 1.0
_CLOSE_S = 5.0  # the next run repeats a webhook that is under way then


class MarkedRun:
    """One run's ledger and marker, for all operators of the sink. Driver.

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
        """Add an operator that writes by this sink."""
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
        """Take a decision whose files are published; wait up to a second for the marks that are
        due."""
        self.ledger.published(operator_id, regions, checkpoint_id=checkpoint_id)
        self._marker.look(timeout_s=min(timeout_s, _WAIT_S))

    @property
    def is_over(self) -> bool:
        """Whether no operator is left."""
        with self._lock:
            return not self._operators

    def leave(self, operator_id: str) -> None:
        """Remove an operator; with the last one, make the marks that are due, within a bound."""
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
        """The file system rooted at the target's parent: one client for the marker and all
        writers."""
        with self._lock:
            if self._opened is None:
                self._opened = self._open(self._parent)
            return self._opened


class PartitionMarks:
    """The marks of one sink; its run begins with the first operator that is claimed. Driver.

    Args:
        commit: what the user asked for, in the session's time zone.
        target: URI of the directory that the sink writes.
        open_file_system: opens the one rooted at a URI.
    """

    def __init__(
        self, commit: PartitionCommit, *, target: str, open_file_system: OpenFileSystem
    ) -> None:
        self.commit = commit
        self._target = target
        self._open = open_file_system
        self._lock = threading.Lock()
        self._run: MarkedRun | None = None

    def require_free(self) -> None:
        """Refuse a second run at once; called before a run begins.

        Raises:
            ConfigError: another run is under way, and its partitions would be mixed with this
                one's.
        """
        if self._run is not None and not self._run.is_over:
            raise ConfigError(
                "two running jobs share one file sink with partition commit",
                {"path": self._target},
                "Make an HdfsSink for each Job; or stop the other one first.",
            )

    def begin(self, context: SinkContext) -> MarkedRun:
        """Start marking for an operator that its job has claimed.

        Raises:
            ConfigError: see `require_free`.
        """
        with self._lock:
            if self._run is None or self._run.session != context.leader_session_id:
                self.require_free()
                self._run = MarkedRun(
                    self.commit, target=self._target, open_file_system=self._open, context=context
                )
            self._run.join(context.operator_id)
            return self._run

    @property
    def run(self) -> MarkedRun:
        """The run under way."""
        if self._run is None:
            raise IllegalTransitionError(
                "partitions were written before their sink acquired its lease",
                {"path": self._target},
                "Report this bug.",
            )
        return self._run

    def writer(
        self,
        inner: FrameWriter,
        *,
        columns: tuple[str, ...] | None = None,
        pending: PendingPartitions = nothing_pending,
    ) -> FrameWriter:
        """``inner``, wrapped so that it records the partitions it writes."""
        return MarkingFrameWriter(
            writer=inner,
            commit=self.commit,
            ledger=self.run.ledger,
            file_system=self.run.file_system,
            target=self._target,
            columns=columns,
            pending=pending,
        )
