"""Full checkpoints: incremental, retained by count, and whole whenever a process dies."""

import contextlib
import re

import pytest

from sluice.runtime.checkpoint.checkpoint_slots import slot_name
from sluice.runtime.checkpoint.format.metadata import decode
from sluice.runtime.errors import FencedError
from sluice.runtime.model.checkpoint_record import CheckpointKind, CheckpointRecord, Verdict
from sluice.runtime.savepoint.full_checkpoints import (
    retire_full_checkpoints,
    write_full_checkpoint,
)
from sluice.runtime.savepoint.savepoint import references_of
from tests.kit.files.fake_file_system import Disk, FakeFileSystem, Fault, SimulatedCrashError
from tests.kit.files.saved_jobs import Crashing, decide, state_in
from tests.kit.files.spark_state import SparkState


def _full_records(fs: FakeFileSystem) -> dict[int, CheckpointRecord]:
    """The full checkpoints that can be restored, each of them checked."""
    found = {}
    for name in [entry.name for entry in fs.entries("full")]:
        data = fs.read(f"full/{name}/_metadata")
        if data is not None and (made := decode(data)).verdict is Verdict.DECIDED:
            assert state_in(fs, made, "full")
            found[made.checkpoint_id] = made
    return found


def _job(disk: Disk) -> tuple[FakeFileSystem, SparkState]:
    fs = FakeFileSystem(disk)
    spark = SparkState(fs, partitions=1)
    for _ in range(4):
        spark.run_batch()
    spark.upload_snapshot(3)
    return fs, spark


def _state_files(disk: Disk) -> set[str]:
    """All that full checkpoints have beside their records."""
    return {path for path in disk.files if re.match(r"full/[^/]+/(?:spark|state)/", path)}


def test_only_files_that_are_new_are_copied() -> None:
    """An unchanged snapshot is named where the first full checkpoint has put it."""
    fs, spark = _job(Disk())
    first = write_full_checkpoint(fs, decide(fs, 10, spark))
    second = write_full_checkpoint(fs, decide(fs, 11, spark))
    assert first.record.kind is second.record.kind is CheckpointKind.FULL
    assert first.copied_bytes == first.bytes
    shared = {each.path for each in references_of(first.record)} & {
        each.path for each in references_of(second.record)
    }
    assert {path.rpartition(".")[2] for path in shared} >= {"zip", "sst", "changelog"}
    assert {path.split("/")[0] for path in shared} == {slot_name(10)}
    keyed = {path.rpartition("/")[2] for path in shared if "/state/r1/" in path}
    assert keyed == {"0-9-00000009.changes", "0-10-0000000a.changes"}
    assert second.copied_bytes == second.bytes - sum(
        each.length_bytes for each in references_of(second.record) if each.path in shared
    )
    assert list(_full_records(fs)) == [10, 11]


def test_a_file_that_is_no_longer_whole_is_copied_again() -> None:
    disk = Disk()
    fs, spark = _job(disk)
    write_full_checkpoint(fs, decide(fs, 10, spark))
    for path in [path for path in disk.files if path.startswith("full") and path.endswith("sst")]:
        disk.files[path] = b""
    second = write_full_checkpoint(fs, decide(fs, 11, spark))
    assert state_in(fs, second.record, "full")


def test_retention_keeps_the_newest_and_what_they_name() -> None:
    """Files of a deleted full checkpoint stay as long as a later one names them."""
    disk = Disk()
    fs, spark = _job(disk)
    for checkpoint_id in range(10, 30):
        written = write_full_checkpoint(fs, decide(fs, checkpoint_id, spark))
        if checkpoint_id % 4 == 0:
            spark.upload_snapshot(spark.next_batch)
        retired = retire_full_checkpoints(fs, written.record, retained=2)
        assert retired == ([checkpoint_id - 2] if checkpoint_id >= 12 else [])
        standing = _full_records(fs)
        assert list(standing) == [*range(max(checkpoint_id - 1, 10), checkpoint_id + 1)]
    named = {f"full/{each.path}" for made in standing.values() for each in references_of(made)}
    assert _state_files(disk) == named, "nothing else stays"
    assert len({path.split("/")[1] for path in disk.files if path.startswith("full/")}) < 9


def test_an_unreadable_full_checkpoint_stops_all_deletes() -> None:
    """It may name any file; a later version may have written it."""
    disk = Disk()
    fs, spark = _job(disk)
    first = write_full_checkpoint(fs, decide(fs, 10, spark))
    write_full_checkpoint(fs, decide(fs, 11, spark))
    disk.files[f"full/{slot_name(11)}/_metadata"] = b"of a later version"
    third = write_full_checkpoint(fs, decide(fs, 12, spark))
    assert third.copied_bytes == third.bytes, "nothing is shared with what cannot be read"
    retire_full_checkpoints(fs, third.record, retained=1)
    named = {f"full/{each.path}" for each in references_of(first.record)}
    assert named <= disk.files.keys()


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_DURING, Fault.CRASH_AFTER])
def test_killed_at_any_step_every_full_checkpoint_stays_whole(fault: Fault) -> None:
    """Each run dies at a step of its copy or retention; the next ones finish what is left."""
    step, is_over = 0, False
    while not is_over:
        disk = Disk()
        fs, spark = _job(disk)
        for checkpoint_id in (10, 11, 12):
            write_full_checkpoint(fs, decide(fs, checkpoint_id, spark))
        for checkpoint_id in (13, 14):  # once and twice in a row
            crashing = Crashing(step, fault)
            mortal = FakeFileSystem(disk, fault=crashing)
            decided = decide(fs, checkpoint_id, spark)
            with contextlib.suppress(SimulatedCrashError):
                written = write_full_checkpoint(mortal, decided)
                retire_full_checkpoints(mortal, written.record, retained=2)
            assert len(_full_records(fs)) >= 2
            is_over = crashing.steps <= step
        last = write_full_checkpoint(fs, decide(fs, 15, spark))
        retire_full_checkpoints(fs, last.record, retained=2)
        standing = _full_records(fs)
        assert len(standing) == 2
        assert max(standing) == 15
        named = {f"full/{each.path}" for made in standing.values() for each in references_of(made)}
        assert _state_files(disk) == named
        step += 1


class TestPausedRun:
    """An older run wakes up while a newer one retains full checkpoints."""

    def test_its_copy_is_refused_or_whole(self) -> None:
        """Paused at each of its steps in turn, also at its reads."""
        turn = 0
        while self._run_beside(turn):
            turn += 1
        assert turn > 50

    def _run_beside(self, turn: int) -> bool:
        """Let a newer run work at one step of the older one; False: there are not that many."""
        disk = Disk()
        fs, spark = _job(disk)
        write_full_checkpoint(fs, decide(fs, 10, spark))
        record = decide(fs, 11, spark)
        turns: list[None] = []

        def pause() -> None:
            turns.append(None)
            for checkpoint_id in (20, 21, 22) if len(turns) == turn + 1 else ():
                written = write_full_checkpoint(fs, decide(fs, checkpoint_id, spark))
                spark.upload_snapshot(spark.next_batch)
                retire_full_checkpoints(fs, written.record, retained=1)

        older = FakeFileSystem(disk, turn=pause)
        with contextlib.suppress(FencedError):
            written = write_full_checkpoint(older, record)
            retire_full_checkpoints(older, written.record, retained=1)
        _full_records(fs)  # checks each of them
        return len(turns) > turn

    def test_it_retires_nothing_beside_a_newer_run(self) -> None:
        disk = Disk()
        fs, spark = _job(disk)
        older = write_full_checkpoint(fs, decide(fs, 10, spark))
        write_full_checkpoint(fs, decide(fs, 20, spark))
        assert retire_full_checkpoints(fs, older.record, retained=1) == []
        assert list(_full_records(fs)) == [10, 20]

    def test_a_closed_directory_takes_no_record(self) -> None:
        disk = Disk()
        fs, spark = _job(disk)
        record = decide(fs, 10, spark)
        fs.write_temporary(f"full/{slot_name(10)}/_began", b"older")
        newer = write_full_checkpoint(fs, decide(fs, 20, spark))
        retire_full_checkpoints(fs, newer.record, retained=1)
        with pytest.raises(FencedError, match="a newer run of the job has closed"):
            write_full_checkpoint(fs, record)
        assert list(_full_records(fs)) == [20]
