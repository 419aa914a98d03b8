"""A frame of one batch, staged: registered first, one committable, nothing left of no rows."""

from dataclasses import dataclass, field, replace

import pytest

from sluice.connectors.hdfs.staging.committables import StagedFile, decode_file_set
from sluice.connectors.hdfs.writing.frame_writer import (
    FileFrameWriter,
    Frame,
    SavedFrame,
    StagingDirectory,
)
from sluice.runtime.contracts import RegisteredAttempt, TaskScope
from sluice.runtime.errors import FencedError
from sluice.runtime.model.splits import BatchKey
from tests.kit.files.fake_file_system import Disk, FakeFileSystem

SCOPE = TaskScope(
    job_uid="job",
    operator_id="op",
    batch=BatchKey(region="main", attempt_id=3, batch_id=7),
    checkpoint_id=9,
    committed_through=8,
)


@dataclass
class Registry:
    """Remembers what was registered; or refuses it."""

    disk: Disk
    refuses: bool = False
    seen: list[tuple[RegisteredAttempt, int]] = field(default_factory=list)

    def register(self, attempt: RegisteredAttempt) -> float:
        if self.refuses:
            raise FencedError("not wanted", {}, "")
        self.seen.append((attempt, len(self.disk.files)))
        return 0.0


class Saver:
    """Writes a file for each of the frame's rows."""

    def save(self, frame: Frame, directory: StagingDirectory) -> SavedFrame:
        names = [f"part-{number}" for number in range(frame)]
        for name in ["left-by-a-lost-attempt", *names]:
            directory.fs.write_temporary(f"{directory.path}/{name}", b"x")
        files = tuple(StagedFile(staged=name, final=name, length_bytes=1, rows=1) for name in names)
        return SavedFrame(rows=frame, files=files)


def writer(disk: Disk) -> FileFrameWriter:
    return FileFrameWriter(
        target="fake:///data/orders",
        saver=Saver(),
        open_file_system=lambda uri: FakeFileSystem(disk, uri=uri),
    )


def test_ids_never_reused_an_attempt_is_registered_before_its_first_file() -> None:
    disk = Disk()
    registry = Registry(disk)
    staged = writer(disk).write(2, SCOPE, registry)
    ((attempt, files_then),) = registry.seen
    (entry,) = staged.committables
    found = decode_file_set(entry)
    assert files_then == 0
    assert found.staging.endswith(attempt.resource)
    assert (staged.rows, found.rows, len(found.files)) == (2, 2, 2)
    assert (found.target, attempt.checkpoint_id) == ("fake:///data/orders", 9)


def test_files_with_decision_no_reader_sees_a_file_before_the_decision() -> None:
    """All that a committable names is staged, beside the target and not below it."""
    disk = Disk()
    (entry,) = writer(disk).write(2, SCOPE, Registry(disk)).committables
    found = decode_file_set(entry)
    assert {found.staged_path(file) for file in found.files} <= disk.files.keys()
    assert [path for path in disk.files if path.startswith("orders/")] == []


def test_a_batch_that_is_not_wanted_any_more_writes_nothing() -> None:
    disk = Disk()
    with pytest.raises(FencedError):
        writer(disk).write(2, SCOPE, Registry(disk, refuses=True))
    assert disk.files == {}


def test_a_batch_without_rows_leaves_nothing() -> None:
    """Neither a committable nor what lost attempts of its tasks wrote."""
    disk = Disk()
    staged = writer(disk).write(0, SCOPE, Registry(disk))
    assert (staged.rows, staged.committables) == (0, ())
    assert disk.files == {}


def test_rows_of_which_no_file_is_made_are_rows_of_the_frame() -> None:
    """CSV has no line for a null in its only column. Were they not counted, the region would miss
    them among what its tasks have answered, in each attempt again."""

    class OfNulls(Saver):
        def save(self, frame: Frame, directory: StagingDirectory) -> SavedFrame:
            super().save(frame, directory)
            return SavedFrame(rows=frame, files=())

    disk = Disk()
    staged = replace(writer(disk), saver=OfNulls()).write(3, SCOPE, Registry(disk))
    assert (staged.rows, staged.committables) == (3, ())
    assert disk.files == {}


def test_two_attempts_of_a_batch_share_no_directory() -> None:
    """Rule `rename-settled`: a zombie cannot write over another's file."""
    disk = Disk()
    registry = Registry(disk)
    for _ in range(2):
        writer(disk).write(1, SCOPE, registry)
    assert len({attempt.resource for attempt, _ in registry.seen}) == 2
