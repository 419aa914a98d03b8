"""A sink of files, as the processes of a world have it: committer, sweep, staged and held files are
production code over the model file system; tasks that write are played, and may outlive it all."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sluice.connectors.hdfs.committing.file_sink_coordinator import FileSinkCoordinator
from sluice.connectors.hdfs.rolling.merging import JoiningMerger
from sluice.connectors.hdfs.rolling.roll_plan import Roll
from sluice.connectors.hdfs.rolling.rolling_writer import RollingFrameWriter
from sluice.connectors.hdfs.staging.committables import StagedFile
from sluice.connectors.hdfs.staging.staged_names import StagingAttempt, final_name
from sluice.connectors.hdfs.staging.staged_output import StagedOutput
from sluice.connectors.hdfs.writing.frame_writer import (
    FileFrameWriter,
    SavedFrame,
    StagingDirectory,
)
from sluice.runtime.contracts import (
    AttemptRegistry,
    Frame,
    RegisteredAttempt,
    StagedFrame,
    TaskScope,
)
from sluice.runtime.model.splits import BatchKey, SplitRange
from tests.kit.files.fake_file_system import Disk, FakeFileSystem, Fault
from tests.simulation.file_watch import TARGET

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

FILES = "files"
"""Operator id of the sink."""

_PARENT = "model:///data"
_ROLL = Roll(size=40, age=1.5, idle=0.8)
_SLOW_S = 0.06  # longer than a commit round may take


def open_files(world: "World") -> FakeFileSystem:
    """One process's client: its steps fail, happen unanswered, land later or take long."""
    profile = world.profile

    def fault(step: str) -> Fault:
        if world.fault(profile.refused / 2, f"the file system is slow to {step}"):
            world.clock.advance(_SLOW_S)
        if world.fault(profile.refused / 2, f"the file system refuses to {step}"):
            return Fault.REFUSED
        if world.fault(profile.lost_answer, f"the file system does not answer a {step}"):
            return Fault.ANSWER_LOST
        is_atomic = step in ("move", "delete")
        if is_atomic and world.fault(profile.late, f"a {step} of files comes late"):
            return Fault.LATE
        if world.fault(profile.kill / 2, f"it dies while it asks to {step}"):
            return world.random.choice((Fault.CRASH_BEFORE, Fault.CRASH_DURING, Fault.CRASH_AFTER))
        return Fault.NONE

    def is_unreadable(step: str) -> bool:
        return world.fault(profile.unread, f"the file system fails to answer {step}")

    return FakeFileSystem(world.shelf, uri=_PARENT, fault=fault, is_unreadable=is_unreadable)


def make_file_sink(world: "World", fs: FakeFileSystem) -> FileSinkCoordinator:
    """The driver's side of the sink, for one process."""
    return FileSinkCoordinator(
        TARGET, lambda _: fs, renames_at_once=1, clock=world.clock, sleep=world.nap
    )


@dataclass(slots=True)
class FileTask:
    """A task attempt that stages files, one for each directory, under names of its own.

    It may outlive its driver, its batch and its directory, which it then makes again.
    """

    disk: Disk
    directory: StagingDirectory
    number: int
    rows: list[tuple[str, list[str]]]
    files: list[StagedFile] = field(default_factory=list)
    _is_begun: bool = False

    def write(self, count: int) -> bool:
        """Write some, file by file, each in two pieces; True when all are written."""
        for _ in range(count):
            if not self.rows:
                return True
            partition, rows = self.rows[0]
            data = "".join(f"{row}\n" for row in rows).encode()
            name = f"part-00000-{self.number:036x}-c000.json"
            staged = f"{partition}/{name}"
            path = f"{self.directory.path}/{staged}"
            if not self._is_begun:
                self._is_begun = True
                self.disk.write(path, data[: len(data) // 2])
                continue
            self._is_begun = False
            self.disk.write(path, data)
            self.rows.pop(0)
            attempt, at = self.directory.attempt, self.directory.checkpoint_id
            final = f"{partition}/{final_name(attempt, name, checkpoint_id=at)}"
            self.files.append(
                StagedFile(staged=staged, final=final, length_bytes=len(data), rows=len(rows))
            )
        return not self.rows


@dataclass(frozen=True, kw_only=True)
class _SteppedFiles(FileFrameWriter):
    """Its first directory was opened, and its rows saved, step by step before."""

    directory: StagingDirectory
    saved: SavedFrame
    opened: list[StagingDirectory] = field(default_factory=list)

    def open(self, target: str, scope: TaskScope, registry: AttemptRegistry) -> StagingDirectory:
        """See `FileFrameWriter.open`."""
        if not self.opened:
            self.opened.append(self.directory)
            return self.directory
        return super().open(target, scope, registry)

    def save(self, frame: Frame, directory: StagingDirectory) -> SavedFrame:
        """See `FileFrameWriter.save`; whoever writes counts what is there."""
        StagedOutput(
            fs=directory.fs, root=directory.root, attempt=directory.attempt, count=None
        ).require(self.saved.files)
        return self.saved


class Staging:
    """One process's writers of files."""

    def __init__(self, process: "Process", fs: FakeFileSystem) -> None:
        self._process = process
        self._world = process.world
        self._fs = fs

    def register(self, attempt: RegisteredAttempt) -> float:
        """See `AttemptRegistry.register`."""
        self._process.core.register(attempt)
        return 0.0

    def begin(self, scope: TaskScope) -> StagingDirectory:
        """An attempt's directory, registered before its first file."""
        return FileFrameWriter(**self._options()).open(TARGET, scope, self)

    def task(self, directory: StagingDirectory, splits: Iterable[SplitRange]) -> FileTask:
        """An attempt of the one task of a batch."""
        rows = [
            (
                f"p={split.partition}",
                [f"{split.partition}-{at}" for at in range(split.start_offset, split.end_offset)],
            )
            for split in splits
            if not split.is_empty
        ]
        return FileTask(self._world.shelf, directory, next(self._world.names), rows)

    def finish(
        self, directory: StagingDirectory, files: Iterable[StagedFile], scope: TaskScope
    ) -> StagedFrame:
        """What is published, and what is held."""
        found = tuple(files)
        saved = SavedFrame(rows=sum(file.rows or 0 for file in found), files=found)
        writer = RollingFrameWriter(
            files=_SteppedFiles(directory=directory, saved=saved, **self._options()),
            roll=_ROLL if self._world.profile.roll else None,
            merger=JoiningMerger(),
            layout=lambda _: "lines",
            wall_ms=lambda: int(self._world.clock() * 1000),
        )
        return writer.write(None, scope, self)

    def _options(self) -> dict[str, Any]:
        return {
            "target": TARGET,
            "saver": None,  # `_SteppedFiles` has saved before
            "open_file_system": lambda _: self._fs,
            "draw": self._draw,
        }

    def _draw(self, batch: BatchKey) -> StagingAttempt:
        return StagingAttempt(batch=batch, attempt=f"{next(self._world.names):032x}")
