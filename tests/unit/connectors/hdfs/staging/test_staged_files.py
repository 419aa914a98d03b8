"""Staged files: their names, their form in checkpoints, what to do with one, which are orphans."""

import dataclasses
import fnmatch
import itertools
from pathlib import Path

import pytest

from sluice.connectors.hdfs.committing.file_committer import Step, next_step
from sluice.connectors.hdfs.committing.file_sweep import StagingSweeper, orphans
from sluice.connectors.hdfs.staging.committables import (
    COMMITTABLE_KIND,
    FileSet,
    InvalidFileSetError,
    StagedFile,
    decode_file_set,
    encode_file_set,
)
from sluice.connectors.hdfs.staging.pending_files import (
    PendingFile,
    PendingFiles,
    encode_pending_files,
)
from sluice.connectors.hdfs.staging.staged_names import (
    StagingAttempt,
    final_name,
    rolled_name,
    split_target,
    staged_name,
    staging_root,
)
from sluice.runtime.contracts import RegisteredAttempt, SweepView
from sluice.runtime.errors import ConfigError, DamagedCheckpointError, UnsupportedFormatError
from sluice.runtime.model.checkpoint_record import Redistribution, StateEntry
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.storage.file_system_opening import absolute_uri, without_scheme
from tests.kit.files.fake_file_system import Disk, FakeFileSystem, Fault

VERSION_1 = Path(__file__).parents[4] / "data" / "staged-files-v1.json"
ROOT = staging_root("orders", job_uid="job", operator_id="op")


def attempt(*, region: str = "main", attempt_id: int = 3, batch_id: int = 7) -> StagingAttempt:
    return StagingAttempt.draw(BatchKey(region=region, attempt_id=attempt_id, batch_id=batch_id))


def entry_of(one: StagingAttempt, *, operator_id: str = "op") -> StateEntry:
    file = StagedFile(staged="a", final="b", length_bytes=1)
    found = FileSet(
        target="file:///data/orders", staging=f"{ROOT}/{one.path}", rows=1, files=(file,)
    )
    return encode_file_set(found, operator_id=operator_id)


class TestCommittable:
    """What a recovery in another process reads."""

    def test_version_1_is_read_for_ever(self) -> None:
        """The bytes of an older checkpoint give the same file set, and are written alike."""
        payload = VERSION_1.read_bytes().strip()
        entry = StateEntry(
            operator_id="op",
            state_name="committables",
            kind=COMMITTABLE_KIND,
            version=1,
            redistribution=Redistribution.SPLIT,
            payload=payload,
        )
        found = decode_file_set(entry)
        assert found.parent == "hdfs://h:9000/data"
        assert found.final_path(found.files[0]).startswith("orders/dt=1/part-000000000042-main-")
        assert [file.rows for file in found.files] == [3, None]
        assert encode_file_set(found, operator_id="op") == entry

    @pytest.mark.parametrize("payload", [b"", b"{}", b"[]", b'{"target":1}', b"\xff"])
    def test_a_damaged_payload_is_a_typed_error(self, payload: bytes) -> None:
        entry = dataclasses.replace(entry_of(attempt()), payload=payload)
        with pytest.raises(DamagedCheckpointError):
            decode_file_set(entry)

    def test_another_kind_or_version_is_refused(self) -> None:
        entry = entry_of(attempt())
        for other in (
            dataclasses.replace(entry, version=2),
            dataclasses.replace(entry, kind="kafka-transaction"),
        ):
            with pytest.raises(UnsupportedFormatError):
                decode_file_set(other)

    @pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a"])
    def test_no_path_leaves_its_directory(self, path: str) -> None:
        """A damaged record must not move or delete a file that is not ours."""
        for names in ({"staged": path, "final": "b"}, {"staged": "a", "final": path}):
            with pytest.raises(InvalidFileSetError):
                StagedFile(**names, length_bytes=1)
        file = StagedFile(staged="a", final="b", length_bytes=1)
        with pytest.raises(InvalidFileSetError):
            FileSet(target="file:///d/t", staging=path, rows=1, files=(file,))


class TestNames:
    """Names of staged and of published files."""

    def test_an_attempt_is_known_by_its_path(self) -> None:
        one = attempt(region="eu.orders")
        assert StagingAttempt.parse(one.path) == one

    @pytest.mark.parametrize("path", ["", "main.3", "main.x/7-0", "main/7-" + "0" * 32, ".3/7-1"])
    def test_other_names_are_not_ours(self, path: str) -> None:
        assert StagingAttempt.parse(path) is None

    def test_two_attempts_of_a_batch_never_share_a_final_name(self) -> None:
        """Rule `rename-settled`: a name has one content for ever."""
        written = "part-00003-0f6c1fd2-7f0f-4a43-9ae3-d5d0fd2ed5d8-c000.snappy.parquet"
        first, second = (final_name(attempt(), written, checkpoint_id=42) for _ in range(2))
        assert first != second
        assert first.startswith("part-000000000042-main-00003-")
        assert first.endswith("-c000.snappy.parquet")

    @pytest.mark.parametrize(
        "kind", [".snappy.parquet", ".json", ".json.gz", ".csv", ".avro", ".orc"]
    )
    def test_no_pattern_of_a_reader_takes_a_staged_file(self, kind: str) -> None:
        """Even of one that lists hidden directories; publication gives the name of the format."""
        written = f"part-00003-0f6c1fd2-7f0f-4a43-9ae3-d5d0fd2ed5d8-c000{kind}"
        staged = staged_name(written)
        suffix = kind.split(".")[1 if kind.startswith((".json", ".csv")) else -1]
        for pattern in (f"*{kind}", f"*.{suffix}", f"*.{suffix}*", "part-*.*.*", f"*.{suffix}.gz"):
            assert not fnmatch.fnmatch(staged, pattern)
        for name in (staged, f"rolled/00001-{staged}".rpartition("/")[2]):
            assert rolled_name(attempt(), name, number=1, checkpoint_id=2).endswith(kind)

    def test_a_name_is_never_too_long_for_a_directory(self) -> None:
        """A region may be named after many topics; found out after the decision it would wedge."""
        written = "part-00003-0f6c1fd2-7f0f-4a43-9ae3-d5d0fd2ed5d8-c000.snappy.parquet"
        name = final_name(attempt(region="r" * 240), written, checkpoint_id=42)
        assert len(name) < 200

    def test_a_name_that_is_no_writers_is_refused(self) -> None:
        with pytest.raises(ConfigError):
            final_name(attempt(), "data.parquet", checkpoint_id=1)

    @pytest.mark.parametrize(
        ("uri", "parent", "name"),
        [
            ("hdfs://h:1/a/b", "hdfs://h:1/a", "b"),
            ("hdfs://h:1/a", "hdfs://h:1", "a"),
            ("file:///a/b/", "file:///a", "b"),
        ],
    )
    def test_staging_lies_beside_the_target(self, uri: str, parent: str, name: str) -> None:
        assert split_target(uri) == (parent, name)

    @pytest.mark.parametrize("uri", ["hdfs://h:1/", "hdfs://h:1", "file:///", "file:///a/_b", ""])
    def test_a_target_without_a_parent_or_hidden_is_refused(self, uri: str) -> None:
        with pytest.raises(ConfigError):
            split_target(uri)


def test_rename_settled_the_step_for_a_file_follows_from_both_its_names() -> None:
    """Rule `rename-settled`: every combination of absent, whole and other length."""
    expected = {
        (5, None): Step.MOVE,
        (None, 5): Step.NONE,
        (5, 5): Step.DELETE_STAGED,
    }
    for found in itertools.product((None, 5, 4), repeat=2):
        assert next_step(*found, length_bytes=5) is expected.get(found, Step.STOP)


class TestOrphans:
    """Rules `ids-never-reused`, `fence-first` and `rename-settled`: what a sweep may delete."""

    @staticmethod
    def view(**changes: object) -> SweepView:
        whole = SweepView(job_uid="job", attempt_ids={"main": 3}, protected=(), orphans=())
        return dataclasses.replace(whole, **changes)

    @staticmethod
    def gone(found: StagingAttempt, view: SweepView) -> bool:
        return orphans([found], view, root=ROOT, operator_id="op") == [found]

    def test_an_attempt_of_an_older_attempt_goes(self) -> None:
        assert self.gone(attempt(attempt_id=2), self.view())
        assert self.gone(attempt(region="gone", attempt_id=2), self.view())

    def test_an_attempt_of_the_present_one_stays_until_it_is_declared(self) -> None:
        one = attempt()
        declared = RegisteredAttempt(batch=one.batch, operator_id="op", resource=one.path)
        assert not self.gone(one, self.view())
        assert self.gone(one, self.view(orphans=(declared,)))
        other_sink = dataclasses.replace(declared, operator_id="other")
        assert not self.gone(one, self.view(orphans=(other_sink,)))

    def test_a_file_system_that_refuses_is_swept_next_time(self) -> None:
        """Orphans cost room, and nobody reads them: no reason to end a job."""
        disk = Disk()
        path = f"{ROOT}/{attempt(attempt_id=2).path}/part"
        FakeFileSystem(disk).write_temporary(path, b"rows")
        away = [Fault.REFUSED]
        fs = FakeFileSystem(disk, fault=lambda _: away.pop() if away else Fault.NONE)
        sweeper = StagingSweeper(fs, root=ROOT, operator_id="op")
        assert sweeper.sweep(self.view()) == 0
        assert list(disk.files) == [path]
        assert sweeper.sweep(self.view()) == 1
        assert not disk.files

    def test_what_a_decision_names_stays(self) -> None:
        one = attempt(attempt_id=1)
        assert not self.gone(one, self.view(protected=(entry_of(one),)))
        assert self.gone(one, self.view(protected=(entry_of(one, operator_id="other"),)))

    def test_files_with_decision_what_a_record_holds_stays_however_old_its_life(self) -> None:
        """Of this sink; also where the coordinator has declared it an orphan of its batch."""
        one = attempt(attempt_id=1)
        held = PendingFiles(
            target="hdfs://h:1/data/orders",
            layout="x",
            files=(
                PendingFile(
                    directory="",
                    staging=f"{ROOT}/{one.path}",
                    staged="part-0",
                    length_bytes=1,
                    rows=None,
                    first_ms=0,
                    last_ms=0,
                ),
            ),
        )
        declared = RegisteredAttempt(batch=one.batch, operator_id="op", resource=one.path)
        kept = (encode_pending_files(held, operator_id="op"),)
        assert not self.gone(one, self.view(kept=kept, orphans=(declared,)))
        assert self.gone(one, self.view(kept=(encode_pending_files(held, operator_id="other"),)))
        assert self.gone(attempt(attempt_id=1), self.view(kept=kept))

    def test_ids_never_reused_what_a_settled_batch_left_and_nobody_names_goes(self) -> None:
        """However long ago: the coordinator forgets attempts, a file may be held for hours."""
        one = attempt()
        settled = {"main": one.batch.batch_id}
        assert self.gone(one, self.view(settled=settled))
        assert not self.gone(one, self.view(settled={"main": one.batch.batch_id - 1}))
        assert not self.gone(one, self.view(settled=settled, protected=(entry_of(one),)))

    def test_an_attempt_that_the_view_does_not_know_stays(self) -> None:
        assert not self.gone(attempt(attempt_id=4), self.view())
        assert not self.gone(attempt(region="new", attempt_id=3), self.view())


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///lake/a b%20#ü?", "/lake/a b%20#ü?"),
        ("hdfs://name:9000/lake", "/lake"),
        ("hdfs:///lake", "/lake"),
        ("hdfs://name:9000", ""),
    ],
)
def test_tasks_name_files_without_scheme_and_authority(uri: str, path: str) -> None:
    """And with every character as it is."""
    assert without_scheme(uri) == path


@pytest.mark.parametrize(
    ("given", "uri"),
    [
        ("hdfs:/lake/orders", "hdfs:///lake/orders"),
        ("hdfs:///lake/orders/", "hdfs:///lake/orders"),
        ("HDFS://name:9000//lake/./a//../orders", "hdfs://name:9000/lake/orders"),
        ("hdfs://name:9000/ü #?%20/orders", "hdfs://name:9000/ü #?%20/orders"),
        ("file:/lake/orders", "file:///lake/orders"),
    ],
)
def test_targets_have_one_spelling(given: str, uri: str) -> None:
    """Hadoop takes all of them for the same; who takes the path out of one must not miss it, or
    tasks stage where nobody looks."""
    assert absolute_uri(given) == uri


def test_a_relative_target_on_hdfs_is_refused() -> None:
    """Hadoop would put the user's home before it."""
    with pytest.raises(ConfigError, match="hdfs:///path"):
        absolute_uri("hdfs:orders")
