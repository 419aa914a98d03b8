"""Opens, lists, verifies and deletes savepoints on a local disk; each refusal has its name."""

import shutil
from pathlib import Path

import pytest

from sluice.runtime.checkpoint.checkpoint_slots import slot_name
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.format.container import ContainerWriter, read_container
from sluice.runtime.checkpoint.format.schema import METADATA_V1
from sluice.runtime.contracts import PublishOutcome
from sluice.runtime.errors import ConfigError, DamagedCheckpointError, UnsupportedFormatError
from sluice.runtime.model.checkpoint_record import Verdict
from sluice.runtime.savepoint.full_checkpoints import write_full_checkpoint
from sluice.runtime.savepoint.savepoint import Savepoint, open_savepoint, references_of
from sluice.runtime.savepoint.savepoint_directory import (
    dispose,
    find_savepoints,
    verify,
)
from sluice.runtime.savepoint.savepoint_writer import write_savepoint
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.files.fake_file_system import Disk, FakeFileSystem
from tests.kit.files.saved_jobs import decide, saved_record
from tests.kit.files.spark_state import SparkState, load_state

_ALL = {(0, "default"): [0, 1, 2], (1, "default"): [0, 1, 2]}


_KEYED = [f"state/r1/0-{each}-{each:08x}.changes" for each in (3, 4, 5)]


class Job:
    """A job's directory with checkpoint 5 as savepoint, full checkpoint and ordinary one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.fs = LocalFileSystem(root)
        self.spark = SparkState(self.fs)
        self.spark.run_batch()
        self.spark.run_batch()
        self.spark.upload_snapshot(1)
        self.record = decide(self.fs, 5, self.spark)
        parent = LocalFileSystem(root / "savepoints")
        self.savepoint = Path(
            write_savepoint(self.fs, self.record, parent, name="savepoint-6f9619ff-5-0a1b2c").uri[
                len("file://") :
            ]
        )
        self.full = Path(write_full_checkpoint(self.fs, self.record).uri[len("file://") :])
        self.ordinary = root / slot_name(5)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "a job")


def _state(savepoint: Savepoint) -> object:
    """What a restore reads: only the files that the savepoint gives, under their paths."""
    copy = FakeFileSystem(Disk())
    for each in savepoint.state_files("r0"):
        copy.copy_from(savepoint.fs, each.source, each.path)
    return load_state(copy, 2)


@pytest.mark.parametrize(
    ("kind", "suffix"), [("savepoint", "/"), ("full", "/_metadata"), ("ordinary", "")]
)
def test_each_kind_gives_the_same_files_under_the_same_paths(
    job: Job, kind: str, suffix: str
) -> None:
    opened = open_savepoint(f"{getattr(job, kind)}{suffix}")
    assert _state(opened) == _ALL
    assert opened.state_files("r9") == [], "a region without state"
    assert all(each.reference is None for each in opened.state_files("r0")) == (kind == "ordinary")
    assert opened.region("r0").batch_id == 2
    assert [each.path for each in opened.keyed_files()] == _KEYED
    verify(opened)
    with pytest.raises(ConfigError, match="the savepoint has no such region"):
        opened.state_files("r7")


def test_savepoint_and_full_checkpoint_outlive_the_state_of_the_job(
    job: Job, tmp_path: Path
) -> None:
    """A savepoint needs nothing else, also under another path."""
    shutil.rmtree(job.root / "spark")
    shutil.rmtree(job.root / "state")
    shutil.rmtree(job.ordinary)
    verify(open_savepoint(str(job.full)))
    shutil.copytree(job.savepoint, tmp_path / "elsewhere")
    shutil.rmtree(job.root)
    opened = open_savepoint(f"file://{tmp_path / 'elsewhere'}")
    verify(opened)
    assert _state(opened) == _ALL


def test_files_that_never_change_are_linked_and_others_copied(job: Job) -> None:
    for each in open_savepoint(str(job.savepoint)).state_files("r0"):
        is_data = each.path.endswith((".zip", ".changelog", ".crc", ".sst"))
        assert (job.root / each.path).samefile(job.savepoint / each.path) == is_data
    for path in _KEYED:
        assert (job.root / path).samefile(job.savepoint / path)


class TestRefusals:
    """By name, before anything is read from the state."""

    @pytest.mark.parametrize("kind", ["savepoint", "full", "ordinary"])
    def test_without_metadata(self, job: Job, kind: str) -> None:
        directory: Path = getattr(job, kind)
        (directory / "_metadata").unlink()
        with pytest.raises(ConfigError, match="holds no complete savepoint: _metadata is missing"):
            open_savepoint(str(directory))

    def test_a_wrong_path_is_told_from_a_savepoint_that_is_not_complete(self, job: Job) -> None:
        with pytest.raises(ConfigError, match="there is no such directory"):
            open_savepoint(str(job.root / "absent"))
        with pytest.raises(ConfigError, match="a checkpoint directory, not a savepoint"):
            open_savepoint(str(job.root))
        for parent in (job.root, job.full.parent):
            with pytest.raises(ConfigError, match="has no checkpoint of this id"):
                open_savepoint(str(parent / "chk-000000000099"))

    @pytest.mark.parametrize("kind", ["savepoint", "full", "ordinary"])
    def test_damaged_metadata(self, job: Job, kind: str) -> None:
        path: Path = getattr(job, kind) / "_metadata"
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(DamagedCheckpointError, match="a checkpoint record is damaged"):
            open_savepoint(str(path.parent))

    @pytest.mark.parametrize("kind", ["savepoint", "full", "ordinary"])
    def test_later_version(self, job: Job, kind: str) -> None:
        path: Path = getattr(job, kind) / "_metadata"
        fields = read_container(path.read_bytes(), latest=1, where={}).fields
        path.write_bytes(ContainerWriter(METADATA_V1, format_version=99).write(fields))
        with pytest.raises(UnsupportedFormatError, match="format version 99"):
            open_savepoint(str(path.parent))

    def test_decided_and_not_committed(self, job: Job) -> None:
        (job.ordinary / "_committed").unlink()
        with pytest.raises(ConfigError, match="the checkpoint is decided, but not committed"):
            open_savepoint(str(job.ordinary))

    def test_left_out_by_a_start_from_an_older_one(self, job: Job) -> None:
        CheckpointStore(job.fs).mark_superseded(5, by=6)
        with pytest.raises(ConfigError, match="a start from an older checkpoint has left"):
            open_savepoint(str(job.ordinary))

    def test_given_up(self, job: Job) -> None:
        aborted = saved_record(6, verdict=Verdict.ABORTED, reason="expired")
        outcome = CheckpointStore(job.fs).publish(aborted, timeout_s=60)
        assert outcome is PublishOutcome.OURS
        with pytest.raises(ConfigError, match=r"the checkpoint was given up.*reason=expired"):
            open_savepoint(str(job.root / slot_name(6)))

    def test_another_record_in_a_directory_of_that_name(self, job: Job) -> None:
        shutil.copytree(job.full, job.root / "copy")
        with pytest.raises(ConfigError, match="another record than that of a savepoint"):
            open_savepoint(str(job.root / "copy"))

    @pytest.mark.parametrize("kind", ["savepoint", "full"])
    @pytest.mark.parametrize(
        ("damage", "problem"),
        [("missing", "is missing"), ("shorter", "bytes instead of"), ("changed", "other content")],
    )
    def test_a_file_that_is_not_as_named(
        self, job: Job, kind: str, damage: str, problem: str
    ) -> None:
        opened = open_savepoint(str(getattr(job, kind)))
        for each in references_of(opened.record):
            path = Path(opened.fs.uri[len("file://") :]) / each.path
            kept = path.read_bytes()
            path.unlink()
            if damage != "missing":
                path.write_bytes(kept[:-1] + (b"\x01" if damage == "changed" else b""))
            with pytest.raises(DamagedCheckpointError, match=f"files=1 {each.path}=.*{problem}"):
                verify(opened)
            path.write_bytes(kept)
        verify(opened)

    @pytest.mark.parametrize("length", [0, 9])
    def test_an_ordinary_checkpoint_with_a_damaged_file_of_keyed_state(
        self, job: Job, length: int
    ) -> None:
        (job.root / _KEYED[1]).unlink()  # a second name of it is in the savepoint
        (job.root / _KEYED[1]).write_bytes(b"x" * length)
        with pytest.raises(DamagedCheckpointError, match=f"files=1 {_KEYED[1]}="):
            verify(open_savepoint(str(job.ordinary)))
        verify(open_savepoint(str(job.savepoint)))

    def test_no_savepoint_is_made_of_a_damaged_file_of_keyed_state(
        self, job: Job, tmp_path: Path
    ) -> None:
        (job.root / _KEYED[1]).unlink()
        (job.root / _KEYED[1]).write_bytes(b"x" * 9)
        parent = LocalFileSystem(tmp_path)
        with pytest.raises(DamagedCheckpointError, match=_KEYED[1]):
            write_savepoint(job.fs, job.record, parent, name="savepoint-6f9619ff-5-0a1b2d")
        assert [*tmp_path.glob("savepoint-*")] == []

    def test_an_ordinary_checkpoint_whose_state_spark_has_deleted(self, job: Job) -> None:
        shutil.rmtree(job.root / "spark/r0/state-0/state/0/1/SSTs")
        (job.root / "spark/r0/state-0/offsets/1").unlink()
        with pytest.raises(DamagedCheckpointError, match="offsets/1"):
            verify(open_savepoint(str(job.ordinary)))


class TestList:
    def test_of_a_job_of_a_parent_and_of_one_savepoint(self, job: Job) -> None:
        of_job = find_savepoints(str(job.root))
        assert {each.uri for each in of_job} == {f"file://{job.savepoint}", f"file://{job.full}"}
        for uri in (job.savepoint.parent, job.savepoint):
            (found,) = find_savepoints(str(uri))
            assert found.uri == f"file://{job.savepoint}"
            assert found.record == open_savepoint(str(job.savepoint)).record

    def test_what_a_killed_writer_left_has_its_problem(self, job: Job) -> None:
        (job.savepoint / "_metadata").unlink()
        (found,) = find_savepoints(str(job.savepoint.parent))
        assert found.record is None
        assert "_metadata is missing" in found.problem


class TestDispose:
    def test_deletes_the_savepoint_and_nothing_of_the_job(self, job: Job) -> None:
        named = sum(
            e.length_bytes for e in references_of(open_savepoint(str(job.savepoint)).record)
        )
        assert dispose(str(job.savepoint)) == named
        assert not job.savepoint.exists()
        verify(open_savepoint(str(job.full)))
        verify(open_savepoint(str(job.ordinary)))

    def test_files_of_others_stay(self, job: Job) -> None:
        (job.savepoint / "notes.txt").write_text("mine")
        dispose(str(job.savepoint))
        assert [path.name for path in job.savepoint.iterdir()] == ["notes.txt"]

    @pytest.mark.parametrize("kind", ["full", "ordinary"])
    def test_refuses_a_checkpoint_of_the_job(self, job: Job, kind: str) -> None:
        with pytest.raises(ConfigError, match="a checkpoint of a job cannot be disposed of"):
            dispose(str(getattr(job, kind)))

    @pytest.mark.parametrize("incomplete", [False, True])
    def test_refuses_any_other_directory(self, job: Job, incomplete: bool) -> None:
        with pytest.raises(ConfigError, match="a checkpoint directory, not a savepoint"):
            dispose(str(job.root), incomplete=incomplete)
        assert (job.root / "spark").exists()
        with pytest.raises(ConfigError, match="there is no such directory"):
            dispose(str(job.root / "absent"), incomplete=incomplete)
        with pytest.raises(ConfigError, match="holds no complete savepoint"):
            dispose(str(job.root / "spark"), incomplete=incomplete)
        assert (job.root / "spark").exists()

    def test_deletes_leftovers_only_on_request(self, job: Job) -> None:
        """A job may be writing them."""
        (job.savepoint / "_metadata").unlink()
        with pytest.raises(ConfigError, match="--incomplete"):
            dispose(str(job.savepoint))
        dispose(str(job.savepoint), incomplete=True)
        assert not job.savepoint.exists()

    def test_a_damaged_savepoint_may_go(self, job: Job) -> None:
        (job.savepoint / "_metadata").write_bytes(b"damaged")
        assert dispose(str(job.savepoint)) == 0
        assert not job.savepoint.exists()
