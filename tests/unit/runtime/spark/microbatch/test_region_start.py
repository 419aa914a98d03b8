"""Where a region's query starts: logs and state are rewound or deleted, never a newer run's."""

import json
from dataclasses import replace
from typing import cast

import pytest

from sluice.runtime.errors import DamagedCheckpointError, FencedError
from sluice.runtime.graph.job_graph import Region
from sluice.runtime.graph.pipeline import Pipeline
from sluice.runtime.model import offsets
from sluice.runtime.model.checkpoint_record import CheckpointRecord, RegionRecord, StateSnapshot
from sluice.runtime.model.splits import Barrier
from sluice.runtime.spark.microbatch.region_start import (
    delete_vanished,
    location_of,
    make_ready,
    replayed,
    require_rewindable,
)
from sluice.runtime.storage.file_system import Entry
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.files.fake_file_system import Disk, FakeFileSystem

LOCATION = "spark/main/3"


def logs(*batches: int) -> dict[str, bytes]:
    """Spark's logs of these batches, and a state file."""
    offset = offsets.encode(Barrier(checkpoint_id=1, region="main", attempt_id=2, splits=()))
    entry = "\n".join(["v2", "{}", f"source_s:{json.dumps(offset)}"]).encode()
    names = [*(f"commits/{batch}" for batch in batches), "metadata", "state/0/1.zip"]
    found = dict.fromkeys(names, b"x") | {f"offsets/{batch}": entry for batch in batches}
    return {f"spark/main/state/{name}": data for name, data in found.items()}


def state_at(location: str) -> StateSnapshot:
    return StateSnapshot(
        provider="rocksdb",
        checkpoint_format_version=2,
        state_version=10,
        state_partitions=1,
        location=f"{location}/state",
    )


def region(*, stateful: bool) -> Region:
    return Region(
        name="main", pipeline=cast(Pipeline, None), source_id="s", sinks={}, stateful=stateful
    )


def restored(batch_id: int | None) -> RegionRecord:
    return RegionRecord(region="main", attempt_id=2, batch_id=batch_id)


def test_restore_by_attempt_a_stateful_regions_logs_are_rewound_to_the_decision() -> None:
    disk = Disk()
    disk.files |= logs(8, 9, 10, 11)
    location = "spark/main/state"
    make_ready(FakeFileSystem(disk), region(stateful=True), location, restored(9), attempt_id=3)
    assert disk.files == logs(8, 9)


def test_restore_by_attempt_a_checkpoint_whose_batch_is_not_in_sparks_log_any_more_cannot_be_restored() -> (
    None
):
    """An earlier restore has removed it; of regions without state the record alone says all."""
    disk = Disk()
    disk.files |= logs(8, 9)
    fs, made = FakeFileSystem(disk), region(stateful=True)

    def of_batch(batch_id: int | None) -> CheckpointRecord:
        state = None if batch_id is None else state_at("spark/main/state")
        return record(regions=(replace(restored(batch_id), state=state),))

    for batch_id in (9, None):
        require_rewindable(fs, [made], of_batch(batch_id))
    require_rewindable(fs, [region(stateful=False)], of_batch(11))
    with pytest.raises(DamagedCheckpointError, match="does not hold the offset"):
        require_rewindable(fs, [made], of_batch(11))
    assert disk.files == logs(8, 9)


def test_a_decided_batch_that_spark_has_not_noted_as_done_is_run_once_more() -> None:
    """The last attempt ended between the decision and Spark's own log. One without state begins in a
    directory of its own, and so does one before its first decision: nothing is run again there."""
    disk = Disk()
    disk.files |= logs(8, 9)
    fs, location, made = FakeFileSystem(disk), "spark/main/state", region(stateful=True)
    assert replayed(fs, made, location, restored(9)) is None
    fs.delete(f"{location}/commits/9")
    again = replayed(fs, made, location, restored(9))
    assert again == Barrier(checkpoint_id=1, region="main", attempt_id=2, splits=())
    assert replayed(fs, made, location, restored(8)) is None
    assert replayed(fs, made, location, restored(None)) is None
    assert replayed(fs, region(stateful=False), location, restored(9)) is None


@pytest.mark.parametrize(("stateful", "batch_id"), [(False, 9), (True, None)])
def test_restore_by_attempt_without_decided_state_nothing_of_an_older_attempt_is_left(
    stateful: bool, batch_id: int | None
) -> None:
    """A stateless region's place is in the record alone."""
    disk = Disk()
    disk.files |= logs(8, 9) | {"chk-000000000001/_metadata": b"kept"}
    made = region(stateful=stateful)
    make_ready(FakeFileSystem(disk), made, "spark/main/state", restored(batch_id), attempt_id=3)
    assert list(disk.files) == ["chk-000000000001/_metadata"]


def test_restore_by_attempt_an_attempt_before_the_first_decision_has_a_directory_of_its_own() -> (
    None
):
    """One that slept deletes its own and older ones; a newer one's stays, also with nothing in its
    log yet. From the first decision on the place is that of the state that is on record."""
    made = region(stateful=True)
    assert location_of(made, restored(None), attempt_id=3) == "spark/main/state-3"
    decided = replace(restored(9), state=state_at("spark/main/state-3"))
    assert location_of(made, decided, attempt_id=7) == "spark/main/state-3"

    disk = Disk()
    disk.files |= {f"spark/main/state-{number}/metadata": b"x" for number in (2, 3)}

    class Slept(FakeFileSystem):
        def delete(self, path: str) -> None:
            disk.files["spark/main/state-9/metadata"] = b"x"
            super().delete(path)

    make_ready(Slept(disk), made, "spark/main/state-3", restored(None), attempt_id=3)
    assert set(disk.files) == {"spark/main/state-9/metadata"}
    with pytest.raises(FencedError):
        make_ready(FakeFileSystem(disk), made, "spark/main/state-3", restored(None), attempt_id=3)


def test_logs_of_regions_that_are_no_more_are_deleted() -> None:
    """A job that is started with other numbers of regions would gather them for ever."""
    disk = Disk()
    disk.files |= {f"spark/{name}/3/offsets/1": b"" for name in ("main", "main-0", "main-1")}
    delete_vanished(FakeFileSystem(disk), {"main"}, attempt_id=3)
    assert set(disk.files) == {"spark/main/3/offsets/1"}


@pytest.mark.parametrize("batch_id", [9, None])
def test_restore_by_attempt_a_run_that_was_taken_over_leaves_the_newer_ones_state_alone(
    batch_id: int | None,
) -> None:
    disk = Disk()
    disk.files |= logs(9, 10, 11)
    before = dict(disk.files)
    with pytest.raises(FencedError, match=r"newer run.*If there is none, checkpoints were deleted"):
        make_ready(
            FakeFileSystem(disk),
            region(stateful=True),
            "spark/main/state",
            restored(batch_id),
            attempt_id=1,
        )
    assert disk.files == before


def test_restore_by_attempt_a_run_that_was_taken_over_deletes_older_lives_alone() -> None:
    """The newer run's query would fail without its log."""
    disk = Disk()
    attempts = {number: f"spark/main/{number}/offsets/1" for number in (2, 3, 4)}
    disk.files |= dict.fromkeys(attempts.values(), b"x") | logs(1)
    fs = FakeFileSystem(disk)
    make_ready(fs, region(stateful=False), "spark/main/3", restored(1), attempt_id=3)
    assert set(disk.files) == {attempts[4]}
    delete_vanished(fs, set(), attempt_id=3)
    assert set(disk.files) == {attempts[4]}
    delete_vanished(fs, set(), attempt_id=4)
    assert not disk.files


def test_restore_by_attempt_an_attempt_that_begins_while_older_ones_are_listed_keeps_its_logs() -> (
    None
):
    """The one that lists may sleep before it deletes."""
    disk = Disk()
    disk.files["spark/main/3/offsets/1"] = b"x"

    class Slept(FakeFileSystem):
        def entries(self, path: str) -> list[Entry]:
            found = super().entries(path)
            disk.files["spark/main/4/offsets/1"] = b"x"
            return found

    make_ready(Slept(disk), region(stateful=False), LOCATION, restored(1), attempt_id=3)
    assert set(disk.files) == {"spark/main/4/offsets/1"}
