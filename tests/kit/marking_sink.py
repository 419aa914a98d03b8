"""A file sink with partition commit, put together as a job does, without Spark.

``python -m tests.kit.marking_sink DIRECTORY`` is one run of it on a real directory, for tests that kill
it: a partition is written, decided and reported, its record kept beside the target.
"""

import pickle
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from sluice import PartitionCommit
from sluice.connectors.hdfs.committing.file_sink_coordinator import FileSinkCoordinator
from sluice.connectors.hdfs.partition_commit import partition_marks as marks
from sluice.connectors.hdfs.partition_commit.partition_marks import PartitionMarks
from sluice.connectors.hdfs.staging.committables import StagedFile
from sluice.connectors.hdfs.writing.frame_writer import (
    FileFrameWriter,
    SavedFrame,
    StagingDirectory,
)
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.contracts import (
    CommitListener,
    CommitOutcome,
    Frame,
    PublishOutcome,
    RegionProgress,
    RegisteredAttempt,
    SinkContext,
    StagedFrame,
    TaskScope,
)
from sluice.runtime.model.checkpoint_record import RegionStatus, StateEntry
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.waiting import PATIENCE_S

CONTEXT = SinkContext(
    job_uid="job",
    job_name="orders",
    operator_id="op",
    checkpoint_uri="fake:///checkpoint",
    leader_session_id="s",
)


class _Saver:
    """A file for each partition that the frame names."""

    def save(self, frame: Frame, directory: StagingDirectory) -> SavedFrame:
        files = []
        for number, path in enumerate(frame):
            staged = f"{path}/part-{number}"
            directory.fs.write_temporary(f"{directory.path}/{staged}", b"x")
            final = f"{path}/part-{directory.checkpoint_id}-{number}"
            files.append(StagedFile(staged=staged, final=final, length_bytes=1, rows=1))
        return SavedFrame(rows=len(files), files=tuple(files))


class _Registry:
    """Takes every attempt."""

    def register(self, attempt: RegisteredAttempt) -> float:
        """See `sluice.runtime.contracts.AttemptRegistry`."""
        del attempt
        return time.monotonic()


@dataclass
class MarkingSink:
    """One run of the sink.

    Attributes:
        parent: URI of the target's parent.
        opened: opens the file system there.
        commit: what the user asked for.
        states: in the region's record.
    """

    parent: str
    opened: Callable[[str], FileSystem]
    commit: PartitionCommit
    states: tuple[StateEntry, ...] = ()
    checkpoint_id: int = 0
    marks: PartitionMarks = field(init=False)
    coordinator: FileSinkCoordinator = field(init=False)

    def __post_init__(self) -> None:
        target, opened = f"{self.parent}/orders", self.opened
        self.marks = PartitionMarks(self.commit, target=target, open_file_system=opened)
        self.coordinator = FileSinkCoordinator(target, opened, marks=self.marks)
        self.fencing_record(CONTEXT.leader_session_id)
        self.coordinator.claim(self.context, timeout_s=1.0)
        self.inner = FileFrameWriter(target=target, saver=_Saver(), open_file_system=opened)
        self.writer = self.marks.writer(self.inner)

    @property
    def context(self) -> SinkContext:
        """Of this sink."""
        return replace(CONTEXT, checkpoint_uri=f"{self.parent}/checkpoint")

    def fencing_record(self, session: str) -> None:
        """A start does, before it claims anything."""
        store = CheckpointStore(self.opened(self.context.checkpoint_uri))
        sealed = record(len(store.slots()), leader_session_id=session)
        assert store.publish(sealed, timeout_s=1.0) is PublishOutcome.OURS

    def write(self, *paths: str) -> StagedFrame:
        """A batch, up to its acknowledgement."""
        self.checkpoint_id += 1
        scope = TaskScope(
            job_uid="job",
            operator_id="op",
            batch=BatchKey(region="main", attempt_id=0, batch_id=self.checkpoint_id),
            checkpoint_id=self.checkpoint_id,
            committed_through=self.checkpoint_id - 1,
            operator_states=self.states,
        )
        return self.writer.write(paths, scope, _Registry())

    def decide(self, staged: StagedFrame, *, watermark_ms: int | None = None) -> None:
        """It is decided, published, and reported."""
        self.states = staged.operator_states
        committer = self.coordinator.committer
        reports = committer.commit(staged.committables, timeout_s=120.0, after_crash=False)
        assert all(report.outcome is CommitOutcome.COMMITTED for report in reports)
        self.tell(watermark_ms)

    def tell(self, watermark_ms: int | None = None) -> None:
        """How far the region is."""
        committer = self.coordinator.committer
        assert isinstance(committer, CommitListener)
        progress = RegionProgress(
            region="main",
            status=RegionStatus.COMPLETED,
            least_watermark_ms=watermark_ms,
            operator_states=self.states,
        )
        report = committer.regions_published(self.checkpoint_id, [progress], timeout_s=120.0)
        assert report.outcome is CommitOutcome.COMMITTED

    @property
    def marked(self) -> list[str]:
        """Partitions with a success file."""
        fs = self.opened(self.parent)
        return [
            entry.name
            for entry in fs.entries("orders")
            if fs.exists(f"orders/{entry.name}/_SUCCESS")
        ]


def _run(directory: Path) -> None:
    sink = MarkingSink(
        directory.as_uri(), lambda uri: open_file_system(uri, None), PartitionCommit()
    )
    staged = sink.write("dt=1")
    (directory / "record").write_bytes(pickle.dumps(staged.operator_states))
    sink.decide(staged)


if __name__ == "__main__":
    marks._WAIT_S = PATIENCE_S  # noqa: SLF001 - else a slow machine ends the run before its marks
    _run(Path(sys.argv[1]))
