"""Spark's logs and state in another directory than the checkpoints."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluice.runtime.checkpoint.checkpoint_slots import slot_name
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.inspect.checkpoint_cli import app
from sluice.runtime.checkpoint.spark_place import (
    bind_spark_directory,
    require_undivided,
    with_spark_files,
)
from sluice.runtime.errors import ConfigError, DamagedCheckpointError, UnsupportedFormatError
from sluice.runtime.model.checkpoint_record import RegionRecord, StateSnapshot
from sluice.runtime.savepoint.full_checkpoints import write_full_checkpoint
from sluice.runtime.savepoint.savepoint import open_savepoint
from sluice.runtime.savepoint.savepoint_directory import verify
from sluice.runtime.savepoint.savepoint_writer import write_savepoint
from sluice.runtime.storage.divided_directory import DividedDirectory, holder_of, spark_root
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.files.fake_file_system import Disk, FakeFileSystem
from tests.kit.files.published_records import publish
from tests.kit.files.saved_jobs import decide
from tests.kit.files.spark_state import SparkState, load_state

_STATE = StateSnapshot(
    provider="rocksdb",
    checkpoint_format_version=2,
    state_version=2,
    state_partitions=4,
    operators=((0, "stateStoreSave"),),
    state_schema="[]",
    key_schema="[]",
    location="spark/main/state-1/state",
)


class Places:
    """A checkpoint directory, and directories for Spark."""

    def __init__(self, directory: Path) -> None:
        self.main = LocalFileSystem(directory / "checkpoints")
        self.spark = LocalFileSystem(directory / "spark files")
        self.other = LocalFileSystem(directory / "other")

    def decide_state(self) -> None:
        """The last decision names state of Spark."""
        region = RegionRecord(region="main", attempt_id=1, batch_id=1, state=_STATE)
        publish(CheckpointStore(self.main), record(1, regions=(region,)))


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def test_restore_by_attempt_spark_s_paths_lead_to_the_other_directory(places: Places) -> None:
    bound = bind_spark_directory(places.main, places.spark)
    bound.write_temporary("spark/main/1/offsets/0", b"logged")
    bound.write_temporary("chk-000000000001/_metadata", b"decided")
    assert places.spark.read("spark/main/1/offsets/0") == b"logged"
    assert places.main.read("chk-000000000001/_metadata") == b"decided"
    assert not places.main.exists("spark")
    assert [each.name for each in bound.entries("spark/main/1")] == ["offsets"]
    assert (bound.uri, spark_root(bound)) == (places.main.uri, places.spark.uri)
    assert holder_of(bound, "sparkling") is places.main


def test_a_copy_reads_from_the_directory_that_holds_the_file(places: Places) -> None:
    bound = bind_spark_directory(places.main, places.spark)
    bound.write_temporary("spark/main/1/metadata", b"id")
    bound.copy_from(bound, "spark/main/1/metadata", "full/chk-000000000001/spark/main/1/metadata")
    assert places.main.read("full/chk-000000000001/spark/main/1/metadata") == b"id"
    places.other.copy_from(bound, "spark/main/1/metadata", "copy")
    assert places.other.read("copy") == b"id"


def test_every_later_start_of_the_job_may_use_its_directory(places: Places) -> None:
    bind_spark_directory(places.main, places.spark)
    before = places.main.read("_spark"), places.spark.read("_owner")
    bind_spark_directory(places.main, places.spark)
    assert (places.main.read("_spark"), places.spark.read("_owner")) == before


def test_two_jobs_never_share_a_directory(places: Places) -> None:
    bind_spark_directory(places.main, places.spark)
    with pytest.raises(ConfigError, match="Spark's files of another job") as found:
        bind_spark_directory(places.other, places.spark)
    assert found.value.args[1]["owner"] == places.main.uri
    assert not places.other.exists("_spark")


def test_a_job_whose_checkpoints_were_deleted_does_not_take_over_its_old_logs(
    places: Places,
) -> None:
    """A new job begins with attempt 1 again, and would read logs of the old one."""
    bind_spark_directory(places.main, places.spark)
    places.main.delete("_spark")
    with pytest.raises(ConfigError, match="another job"):
        bind_spark_directory(places.main, places.spark)


def test_checkpoints_of_another_job_are_no_directory_for_spark(places: Places) -> None:
    publish(CheckpointStore(places.other), record(1))
    with pytest.raises(ConfigError, match="is a checkpoint directory"):
        bind_spark_directory(places.main, places.other)


def test_another_job_s_directory_for_spark_takes_no_checkpoints(places: Places) -> None:
    bind_spark_directory(places.main, places.spark)
    with pytest.raises(ConfigError, match="another job keeps Spark's files"):
        require_undivided(places.spark)


def test_a_killed_start_left_the_first_file_alone(places: Places) -> None:
    bind_spark_directory(places.main, places.spark)
    places.spark.delete("_owner")
    bind_spark_directory(places.main, places.spark)
    assert places.spark.exists("_owner")


def test_restore_by_attempt_lost_state_is_reported_before_anything_changes(
    places: Places,
) -> None:
    bind_spark_directory(places.main, places.spark)
    places.decide_state()
    places.spark.delete("")
    with pytest.raises(DamagedCheckpointError, match="logs and state of this job are gone"):
        bind_spark_directory(places.main, places.spark)
    assert not places.spark.exists("_owner")


def test_lost_logs_without_state_are_no_loss(places: Places) -> None:
    bind_spark_directory(places.main, places.spark)
    publish(CheckpointStore(places.main), record(1))
    places.spark.delete("")
    bind_spark_directory(places.main, places.spark)
    bind_spark_directory(places.main, places.other)  # it may move, too
    assert b"other" in (places.main.read("_spark") or b"")


def test_state_elsewhere_is_named(places: Places) -> None:
    """The user gave another directory, or forgot the option."""
    bind_spark_directory(places.main, places.spark)
    places.decide_state()
    with pytest.raises(ConfigError, match="lie in another directory") as of_other:
        bind_spark_directory(places.main, places.other)
    with pytest.raises(ConfigError, match="lie in another directory") as of_none:
        require_undivided(places.main)
    assert of_other.value.args[1]["uri"] == of_none.value.args[1]["uri"] == places.spark.uri


def test_state_in_the_checkpoint_directory_is_named(places: Places) -> None:
    """The option is new, and the state lies where it was."""
    places.decide_state()
    with pytest.raises(ConfigError, match="lie in another directory") as found:
        bind_spark_directory(places.main, places.spark)
    assert found.value.args[1]["uri"] == places.main.uri


def test_copied_state_is_accepted_in_its_new_place(places: Places) -> None:
    bind_spark_directory(places.main, places.spark)
    places.decide_state()
    places.spark.write_temporary("spark/main/state-1/offsets/1", b"v2")
    places.other.copy_from(
        places.spark, "spark/main/state-1/offsets/1", "spark/main/state-1/offsets/1"
    )
    bind_spark_directory(places.main, places.other)
    assert not isinstance(with_spark_files(places.other, LocalFileSystem), DividedDirectory)  # type: ignore[arg-type]


def test_a_command_finds_spark_s_files(places: Places) -> None:
    bind_spark_directory(places.main, places.spark)
    publish(CheckpointStore(places.main), record(1, regions=()))
    found = open_savepoint(f"{places.main.uri}/chk-000000000001")
    assert spark_root(found.fs) == places.spark.uri
    listed = CliRunner().invoke(app, ["list", places.main.uri, "--json"], catch_exceptions=False)
    assert json.loads(listed.stdout)["spark_checkpoint_dir"] == places.spark.uri


def test_copy_protected_savepoints_take_spark_s_files_from_their_directory(
    places: Places,
) -> None:
    """Savepoint, full checkpoint, and a restore from the checkpoint itself."""
    bound = bind_spark_directory(places.main, places.spark)
    spark = SparkState(bound)
    spark.run_batch()
    decided = decide(bound, 5, spark)
    assert not places.main.exists("spark")
    saved = write_savepoint(bound, decided, places.other, name="savepoint-6f9619ff-5-0a1b2c")
    full = write_full_checkpoint(bound, decided)
    ordinary = f"{places.main.uri}/{slot_name(5)}"
    states = []
    for uri in (saved.uri, full.uri, ordinary):
        savepoint = open_savepoint(uri)
        verify(savepoint)
        copy = FakeFileSystem(Disk())
        for each in savepoint.state_files("r0"):
            copy.copy_from(savepoint.fs, each.source, each.path)
        states.append(load_state(copy, 1))
    assert states[0] == states[1] == states[2] != {}


def test_a_cleaning_finds_what_earlier_attempts_left_there(places: Places) -> None:
    bound = bind_spark_directory(places.main, places.spark)
    for each in (1, 5):
        region = RegionRecord(region="main", attempt_id=each, batch_id=each)
        publish(
            CheckpointStore(places.main),
            record(each, regions=(region,), leader_session_id=str(each)),
        )
    for attempt in (1, 5):
        bound.write_temporary(f"spark/main/{attempt}/metadata", b"id")
    arguments = ["clean", places.main.uri, "--older-than", "0s", "--json"]
    found = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert f"{places.spark.uri}/spark/main/1" in found.stdout
    assert [each.name for each in places.spark.entries("spark/main")] == ["5"]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"{", DamagedCheckpointError),
        (b'{"format_version": 1}', DamagedCheckpointError),
        (b'{"format_version": 2, "places": []}', UnsupportedFormatError),
    ],
)
def test_an_unreadable_file_ends_the_start(
    places: Places, content: bytes, error: type[Exception]
) -> None:
    places.main.write_temporary("_spark", content)
    with pytest.raises(error):
        bind_spark_directory(places.main, places.spark)
