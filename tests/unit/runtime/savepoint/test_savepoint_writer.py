"""A savepoint is whole or absent, whenever its writer dies; and it says why it was refused."""

import contextlib
from dataclasses import replace

import pytest

from sluice.runtime.checkpoint.checkpoint_slots import SAVEPOINT_NAME, slot_name
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.format.metadata import decode
from sluice.runtime.errors import (
    ConfigError,
    DamagedCheckpointError,
    StorageError,
)
from sluice.runtime.model.checkpoint_record import CheckpointKind, RegionStatus, Verdict
from sluice.runtime.savepoint.savepoint_writer import (
    savepoint_name,
    write_savepoint,
)
from tests.kit.files.fake_file_system import Disk, FakeFileSystem, Fault, SimulatedCrashError
from tests.kit.files.saved_jobs import Crashing, decide, saved_record, state_in
from tests.kit.files.spark_state import SparkState

_NAME = "savepoint-6f9619ff-3-0a1b2c"


def _job(disk: Disk) -> tuple[FakeFileSystem, SparkState]:
    fs = FakeFileSystem(disk)
    spark = SparkState(fs)
    for _ in range(3):
        spark.run_batch()
    spark.upload_snapshot(2)
    return fs, spark


def test_savepoint_holds_the_state_without_anything_else() -> None:
    """It is read after the job's directory is gone; the same paths, and what was copied."""
    disk, elsewhere = Disk(), Disk()
    fs, spark = _job(disk)
    record = decide(fs, 3, spark)
    seen: list[tuple[int, int, int]] = []
    parent = FakeFileSystem(elsewhere, uri="fake:///elsewhere")
    written = write_savepoint(
        fs, record, parent, name=_NAME, progress=lambda *each: seen.append(each)
    )
    disk.files.clear()
    assert written.uri == f"fake:///elsewhere/{_NAME}"
    assert decode(elsewhere.files[f"{_NAME}/_metadata"]) == written.record
    assert state_in(parent, written.record, _NAME) == {
        (0, "default"): [0, 1, 2, 3],
        (1, "default"): [0, 1, 2, 3],
    }
    assert seen[-1] == (written.files, written.files, written.bytes)
    assert written.copied_bytes == written.bytes
    assert written.record.kind is CheckpointKind.SAVEPOINT


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_DURING, Fault.CRASH_AFTER])
def test_killed_at_any_step_leaves_a_whole_savepoint_or_none(fault: Fault) -> None:
    """And a second try, killed or not, makes another one."""
    step = 0
    while True:
        disk, elsewhere = Disk(), Disk()
        fs, spark = _job(disk)
        record = decide(fs, 3, spark)
        crashing = Crashing(step, fault)
        with contextlib.suppress(SimulatedCrashError):
            write_savepoint(fs, record, FakeFileSystem(elsewhere, fault=crashing), name=_NAME)
        parent = FakeFileSystem(elsewhere)
        metadata = elsewhere.files.get(f"{_NAME}/_metadata")
        if metadata is not None:
            state_in(parent, decode(metadata), _NAME)
        again = write_savepoint(fs, record, parent, name=_NAME[:-1] + "d")
        state_in(parent, again.record, _NAME[:-1] + "d")
        if crashing.steps <= step:
            return
        step += 1


def test_lost_answer_of_the_last_step_is_settled_by_reading() -> None:
    disk, elsewhere = Disk(), Disk()
    fs, spark = _job(disk)
    faults = iter([Fault.ANSWER_LOST])
    parent = FakeFileSystem(
        elsewhere, fault=lambda step: next(faults, Fault.NONE) if step == "place" else Fault.NONE
    )
    written = write_savepoint(fs, decide(fs, 3, spark), parent, name=_NAME)
    state_in(parent, written.record, _NAME)


def test_refused_copy_leaves_nothing() -> None:
    disk, elsewhere = Disk(), Disk()
    fs, spark = _job(disk)
    steps = iter(range(1000))
    parent = FakeFileSystem(
        elsewhere, fault=lambda _: Fault.REFUSED if next(steps) == 4 else Fault.NONE
    )
    with pytest.raises(StorageError):
        write_savepoint(fs, decide(fs, 3, spark), parent, name=_NAME)
    assert elsewhere.files == {}


def test_a_directory_that_was_cleaned_while_its_writer_was_paused_is_no_savepoint() -> None:
    disk, elsewhere = Disk(), Disk()
    fs, spark = _job(disk)
    parent = FakeFileSystem(elsewhere)

    def cleaned(done: int, files: int, length_bytes: int) -> None:
        """It was closed first, and deleted an hour later."""
        del files, length_bytes
        if done == 2:
            parent.delete(_NAME)

    with pytest.raises(StorageError, match="deleted"):
        write_savepoint(fs, decide(fs, 3, spark), parent, name=_NAME, progress=cleaned)
    assert f"{_NAME}/_metadata" not in elsewhere.files


def test_a_checkpoint_whose_slot_was_retired_meanwhile_is_saved() -> None:
    """With short epochs that is sooner than Spark has logged the end of a batch."""
    disk = Disk()
    fs, spark = _job(disk)
    record = decide(fs, 3, spark)
    fs.delete(slot_name(3))
    assert state_in(fs, write_savepoint(fs, record, fs, name=_NAME).record, _NAME)


def test_suspended_region_is_saved_with_its_last_snapshot() -> None:
    """And reported."""
    disk = Disk()
    fs, spark = _job(disk)
    old = replace(spark.record(spark.run_batch()), status=RegionStatus.SKIPPED, snapshot_id=2)
    spark.run_batch(commit=False)
    written = write_savepoint(fs, saved_record(3, regions=(old,)), fs, name=_NAME)
    assert written.suspended == ["r0"]
    assert state_in(fs, written.record, _NAME)


def test_a_batch_that_spark_has_not_logged_as_complete_runs_again() -> None:
    """Then the state before the batch is saved, and the batch itself."""
    disk = Disk()
    fs, spark = _job(disk)
    batch = spark.run_batch(commit=False)
    written = write_savepoint(fs, saved_record(3, regions=(spark.record(batch),)), fs, name=_NAME)
    state = written.record.regions[0].state
    assert state is not None
    paths = {each.path.removeprefix("spark/r0/state-0/") for each in state.files}
    assert {"offsets/2", "offsets/3", "commits/2"} <= paths
    assert "commits/3" not in paths
    assert not [path for path in paths if path.startswith("state/0/1/4_")]


class TestRefusals:
    """Nothing is written."""

    def test_an_uncommitted_checkpoint(self) -> None:
        disk = Disk()
        fs, spark = _job(disk)
        record = saved_record(3, spark.record(spark.run_batch()))
        CheckpointStore(fs).publish(record, timeout_s=60)
        before = dict(disk.files)
        with pytest.raises(ConfigError, match="a savepoint needs a committed checkpoint"):
            write_savepoint(fs, record, fs, name=_NAME)
        assert disk.files == before

    def test_an_aborted_checkpoint(self) -> None:
        fs, spark = _job(Disk())
        record = saved_record(3, spark.record(2), verdict=Verdict.ABORTED)
        with pytest.raises(ConfigError, match="a savepoint needs a decided checkpoint"):
            write_savepoint(fs, record, fs, name=_NAME)

    @pytest.mark.parametrize(
        "name", ["2_", "4_", ".sst", "offsets/2", "metadata", "state/0/1/", "state/0/"]
    )
    def test_a_missing_file_of_spark(self, name: str) -> None:
        disk = Disk()
        fs, spark = _job(disk)
        record = decide(fs, 3, spark)
        victims = [path for path in disk.files if path.startswith("spark") and name in path]
        for path in victims:
            del disk.files[path]
        elsewhere = Disk()
        with pytest.raises((DamagedCheckpointError, StorageError)):
            write_savepoint(fs, record, FakeFileSystem(elsewhere), name=_NAME)
        assert elsewhere.files == {}


def test_a_missing_store_of_a_join_is_refused() -> None:
    """The commit log has the id of each store."""
    disk = Disk()
    fs = FakeFileSystem(disk)
    spark = SparkState(fs, stores=("left-keyToNumValues", "right-keyToNumValues"))
    record = decide(fs, 3, spark)
    fs.delete("spark/r0/state-0/state/0/1/right-keyToNumValues")
    with pytest.raises(DamagedCheckpointError, match=r"path=spark/r0/state-0/state/0/1/1_"):
        write_savepoint(fs, record, FakeFileSystem(Disk()), name=_NAME)


def test_name_says_job_and_checkpoint() -> None:
    name = savepoint_name(saved_record(42), "0a1b2c")
    assert name == "savepoint-6f9619ff-42-0a1b2c"
    assert SAVEPOINT_NAME.fullmatch(name)
