"""A start behind a crash: what takes long is finished, what does not move is given up."""

import pytest

from sluice.connectors.hdfs.committing.file_sink_coordinator import FileSinkCoordinator
from sluice.connectors.hdfs.staging.committables import FileSet, StagedFile, encode_file_set
from sluice.connectors.hdfs.staging.staged_names import staging_root
from sluice.runtime.coordinator.committing.commit_steps import drive
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings
from sluice.runtime.coordinator.start.startup import StartSequence
from sluice.runtime.errors import UnreachableError
from sluice.runtime.storage.file_system import FileSystem
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.coordinator.starting_job import JOB_UID, PLAN, record
from tests.kit.fakes import FakeSource, ManualClock
from tests.kit.files.fake_file_system import Disk, FakeFileSystem, Fault

FILES = 2_000
CALL_S = 0.01  # so that two looks at each file take longer than a start waits
TARGET = "fake:///lake/orders"


def decided(disk: Disk) -> FakeStore:
    """Checkpoint 1 is decided, none of its files is published, a directory for every other one."""
    root = staging_root("orders", job_uid=JOB_UID, operator_id="sink")
    staging = f"{root}/main.0/1-{'a' * 32}"
    names = [f"day={i // 2}/part-{i}" for i in range(FILES)]
    files = tuple(StagedFile(staged=name, final=name, length_bytes=1) for name in names)
    disk.files |= {f"{staging}/{name}": b"x" for name in names}
    made = FileSet(target=TARGET, staging=staging, rows=None, files=files)
    entries = (encode_file_set(made, operator_id="sink"),)
    store = FakeStore(records={0: record(0), 1: record(1, entries=entries)})
    store.committed = {0}
    return store


def start(store: FakeStore, disk: Disk, clock: ManualClock, *, is_broken: bool = False) -> None:
    """Of a new process, which knows nothing of what an earlier one has published."""
    moves = iter([Fault.NONE])  # the sink's own, when it looks whether one is possible

    def fault(step: str) -> Fault:
        return next(moves, Fault.REFUSED) if is_broken and step == "move" else Fault.NONE

    def opened(uri: str) -> FileSystem:
        return FakeFileSystem(disk, uri=uri, fault=fault, turn=lambda: clock.advance(CALL_S))

    sink = FileSinkCoordinator(
        TARGET, opened, renames_at_once=1, is_staged_verified=False, clock=clock
    )
    sequence = StartSequence(
        plan=PLAN,
        settings=CheckpointSettings(),
        store=store,
        sinks={"sink": SerialSink(sink)},
        sources={"source": FakeSource("source", {0: 100})},
        session="new",
        clock=clock,
        pause=clock.advance,
        wall_ms=lambda: 0,
    )
    drive(sequence.run(timeout_s=30, restore_from=None))


def published(disk: Disk) -> int:
    """Files under their final names."""
    return sum(path.startswith("orders/") for path in disk.files)


def test_many_files_are_published_by_one_start_however_long_it_takes() -> None:
    """Each start would look anew at what the ones before it have published, and the last ones
    would never have their turn."""
    disk, clock = Disk(), ManualClock()
    store = decided(disk)
    began_s = clock()
    start(store, disk, clock)
    assert published(disk) == FILES
    assert 1 in store.committed
    assert clock() - began_s > 60


def test_files_that_do_not_move_are_given_up_in_time() -> None:
    """Directories are made again behind each failure; that is no progress."""
    disk, clock = Disk(), ManualClock()
    store = decided(disk)
    began_s = clock()
    with pytest.raises(UnreachableError, match="could not be committed in time"):
        start(store, disk, clock, is_broken=True)
    assert clock() - began_s < 60
    assert 1 not in store.committed
