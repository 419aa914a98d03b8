"""A frame writer that records which partitions of its region wait for their mark."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from sluice.connectors.hdfs.partition_commit.open_partitions import PartitionLedger
from sluice.connectors.hdfs.partition_commit.partition_state import (
    STATE_KIND,
    encode_state,
    state_in,
)
from sluice.connectors.hdfs.partition_commit.partition_time import values_of
from sluice.connectors.hdfs.partition_commit.settings import PartitionCommit
from sluice.connectors.hdfs.staging.committables import (
    COMMITTABLE_KIND,
    FileSet,
    decode_file_set,
)
from sluice.connectors.hdfs.staging.staged_names import split_target
from sluice.connectors.hdfs.staging.uploaded_files import (
    UPLOADS_KIND,
    UploadSet,
    decode_upload_set,
)
from sluice.runtime.contracts import AttemptRegistry, Frame, FrameWriter, StagedFrame, TaskScope
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["MarkingFrameWriter", "nothing_pending"]

PendingPartitions = Callable[[Sequence[StateEntry]], Collection[str]]
"""Returns, from a writer's states, the partitions of files that it keeps for a later decision."""


def nothing_pending(states: Sequence[StateEntry]) -> Collection[str]:
    """For a writer whose files are all published by their batch's decision."""
    del states
    return ()


@dataclass(frozen=True, kw_only=True)
class MarkingFrameWriter(FrameWriter):
    """`sluice.runtime.contracts.FrameWriter` around another one. Driver, in the batch callback.

    Attributes:
        writer: stages the files; its own states pass through.
        commit, ledger: of the sink.
        file_system: returns the file system rooted at the target's parent.
        target: URI of the directory that readers read.
        columns: that the sink partitions by; None: unknown, so every partition counts.
        pending: see `PendingPartitions`.
    """

    writer: FrameWriter
    commit: PartitionCommit
    ledger: PartitionLedger
    file_system: Callable[[], FileSystem]
    target: str
    columns: tuple[str, ...] | None = None
    pending: PendingPartitions = nothing_pending

    def write(self, frame: Frame, scope: TaskScope, registry: AttemptRegistry) -> StagedFrame:
        """See `sluice.runtime.contracts.FrameWriter`.

        Raises:
            LateRecordsError: rows came for a marked partition, and the sink stops at late rows.
            ConfigError: a partition's values make no time.
        """
        mine = [entry for entry in scope.operator_states if entry.kind == STATE_KIND]
        others = tuple(entry for entry in scope.operator_states if entry.kind != STATE_KIND)
        previous = state_in(mine, target=self.target)
        staged = self.writer.write(frame, replace(scope, operator_states=others), registry)
        accepted, pending = set(self.pending(others)), set(self.pending(staged.operator_states))
        written = self._timed(self._partitions(staged.committables) | pending, accepted)
        state = self.ledger.stage(
            scope.batch.region,
            previous=previous,
            written=written,
            pending=pending & written,
            accepted=accepted,
            found_marked=self._marked(self.ledger.first_written(written)),
            checkpoint_id=scope.checkpoint_id,
        )
        entry = encode_state(state, operator_id=scope.operator_id)
        return replace(staged, operator_states=(*staged.operator_states, entry))

    def require_writable(self, *, job_uid: str, operator_id: str) -> None:
        self.writer.require_writable(job_uid=job_uid, operator_id=operator_id)

    def close(self) -> None:
        self.writer.close()

    def _timed(self, paths: set[str], accepted: Collection[str]) -> set[str]:
        """The partitions that have a time. A null value has none.

        Values that an earlier run kept pending may have no time under the present settings. The
        marker never marks partitions without a time.
        """
        if not self.commit.is_by_partition_time:
            return paths
        return {path for path in paths if self._has_time(path, is_new=path not in accepted)}

    def _has_time(self, path: str, *, is_new: bool) -> bool:
        try:
            return self.commit.times.begins_ms(path) is not None
        except ConfigError:
            if is_new:
                raise
            return False

    def _marked(self, paths: Collection[str]) -> set[str]:
        """Partitions whose success file exists: an earlier run or another program marked them."""
        if not paths or not self.commit.has_success_file:
            return set()
        fs, name = self.file_system(), self.commit.success_file_name
        _, directory = split_target(self.target)
        return {p for p in paths if fs.length_bytes(f"{directory}/{p}/{name}") is not None}

    def _partitions(self, committables: Sequence[StateEntry]) -> set[str]:
        """Partitions that get files. Files that another run kept for another target or directory
        layout are in none of them."""
        found: list[FileSet | UploadSet] = []
        found += [decode_file_set(e) for e in committables if e.kind == COMMITTABLE_KIND]
        found += [decode_upload_set(e) for e in committables if e.kind == UPLOADS_KIND]
        paths = {
            file.final.rpartition("/")[0]
            for files in found
            if files.target == self.target
            for file in files.files
        }
        return {p for p in paths if self.columns is None or (*values_of(p),) == self.columns}
