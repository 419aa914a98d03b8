"""`FileCommitter` where one call is not enough: each continues where the last one ended."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.connectors.hdfs.committing.file_committer import FileCommitter
from sluice.connectors.hdfs.staging.committables import FileSet, StagedFile, encode_file_set
from sluice.runtime.contracts import CommitOutcome
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.kit.files.fake_file_system import Disk, FakeFileSystem, Fault, SimulatedCrashError
from tests.kit.waiting import PATIENCE_S

_CALL_S = 10.0


def entry_of(parent: str, finals: list[str]) -> StateEntry:
    files = tuple(
        StagedFile(staged=f"s{n}", final=final, length_bytes=1) for n, final in enumerate(finals)
    )
    found = FileSet(target=f"{parent}/orders", staging=".s/a", rows=len(files), files=files)
    return encode_file_set(found, operator_id="op")


def test_an_epoch_of_more_files_than_one_call_can_look_at_is_published() -> None:
    """Each step takes a second, a call ten, and there are a hundred files in 25 directories."""
    entry = entry_of("fake:///data", [f"dt={n % 25}/part-{n}" for n in range(100)])
    disk = Disk(files={f".s/a/s{n}": b"x" for n in range(100)})
    steps: list[None] = []

    def opened(uri: str) -> FileSystem:
        return FakeFileSystem(disk, uri=uri, turn=lambda: steps.append(None))

    committer = FileCommitter(opened, at_once=1, clock=lambda: float(len(steps)))
    for _ in range(200):
        (report,) = committer.commit([entry], timeout_s=_CALL_S, after_crash=True)
        if report.outcome is CommitOutcome.COMMITTED:
            break
    assert report.outcome is CommitOutcome.COMMITTED
    assert set(disk.files) == {f"orders/dt={n % 25}/part-{n}" for n in range(100)}


def test_a_directory_that_somebody_deletes_between_two_calls_is_made_again(tmp_path: Path) -> None:
    """A job that tidies empty partitions does not hold up a decided epoch."""
    (tmp_path / ".s" / "a").mkdir(parents=True)
    (tmp_path / ".s" / "a" / "s0").write_bytes(b"x")
    partition = tmp_path / "orders" / "dt=1"
    (partition / "part-0").mkdir(parents=True)  # nothing can be moved to this name
    committer = FileCommitter(open_file_system)
    entry = entry_of(f"file://{tmp_path}", ["dt=1/part-0"])
    (report,) = committer.commit([entry], timeout_s=_CALL_S, after_crash=True)
    assert report.outcome is CommitOutcome.PENDING
    shutil.rmtree(partition)
    (report,) = committer.commit([entry], timeout_s=_CALL_S, after_crash=True)
    assert report.outcome is CommitOutcome.COMMITTED
    assert (partition / "part-0").read_bytes() == b"x"


def test_a_report_names_a_few_files_and_counts_the_rest() -> None:
    """A thousand files of one refused directory do not fill the error."""
    entry = entry_of("fake:///data", [f"part-{n}" for n in range(20)])
    disk = Disk(files={f".s/a/s{n}": b"x" for n in range(20)})
    committer = FileCommitter(
        lambda uri: FakeFileSystem(
            disk, uri=uri, fault=lambda step: Fault.NONE if step == "mkdir" else Fault.REFUSED
        )
    )
    entries = [entry, entry_of("fake:///data", [f"other-{n}" for n in range(20)])]
    for found in committer.commit(entries, timeout_s=_CALL_S, after_crash=False):
        assert found.outcome is CommitOutcome.PENDING
        assert len(found.detail) < 2_000


def test_a_commit_is_reported_once_the_names_are_durable() -> None:
    """Its mark is: a host that loses its power after that would leave a decided file nowhere."""
    refused = {"sync"}
    disk = Disk(files={".s/a/s0": b"x"})
    committer = FileCommitter(
        lambda uri: FakeFileSystem(
            disk, uri=uri, fault=lambda step: Fault.REFUSED if step in refused else Fault.NONE
        )
    )
    entry = entry_of("fake:///data", ["part-0"])
    (report,) = committer.commit([entry], timeout_s=_CALL_S, after_crash=False)
    assert report.outcome is CommitOutcome.PENDING
    refused.clear()
    (report,) = committer.commit([entry], timeout_s=_CALL_S, after_crash=False)
    assert report.outcome is CommitOutcome.COMMITTED
    assert set(disk.files) == {"orders/part-0"}


def test_an_abort_that_runs_out_of_time_says_so_and_continues_later() -> None:
    now_s = [0.0]
    disk = Disk(files={".s/a/s0": b"x"})
    committer = FileCommitter(lambda uri: FakeFileSystem(disk, uri=uri), clock=lambda: now_s[0])
    entry = entry_of("fake:///data", ["part-0"])
    (report,) = committer.abort([entry], timeout_s=0)
    assert report.outcome is CommitOutcome.PENDING
    assert disk.files, "nothing was touched"
    (report,) = committer.abort([entry], timeout_s=_CALL_S)
    assert report.outcome is CommitOutcome.ABORTED
    assert disk.files == {}


def test_rename_settled_what_was_published_by_a_copy_leaves_no_second_one() -> None:
    """Both names hold the same bytes: the file is there, and the staged one goes."""
    disk = Disk(files={".s/a/s0": b"x", "orders/part-0": b"x"})
    committer = FileCommitter(lambda uri: FakeFileSystem(disk, uri=uri))
    entry = entry_of("fake:///data", ["part-0"])
    (report,) = committer.commit([entry], timeout_s=_CALL_S, after_crash=True)
    assert report.outcome is CommitOutcome.COMMITTED
    assert disk.files == {"orders/part-0": b"x"}


def test_files_that_each_fail_in_their_own_way_are_named_up_to_a_few() -> None:
    """Twenty sets of files in twenty directories: the report says how many more there are."""
    files = tuple(StagedFile(staged=f"s{n}", final=f"d{n}/p", length_bytes=1) for n in range(20))
    found = FileSet(target="fake:///data/orders", staging=".s/a", rows=20, files=files)
    disk = Disk(files={})
    committer = FileCommitter(lambda uri: FakeFileSystem(disk, uri=uri))
    entry = encode_file_set(found, operator_id="op")
    (report,) = committer.commit([entry], timeout_s=_CALL_S, after_crash=True)
    assert report.outcome is CommitOutcome.UNKNOWN, "decided files are gone"
    assert "more" in report.detail
    assert len(report.detail) < 2_000


def test_a_report_of_a_file_that_is_gone_does_not_hide_it_among_others() -> None:
    disk = Disk(files={".s/a/s1": b"x"})
    committer = FileCommitter(
        lambda uri: FakeFileSystem(
            disk, uri=uri, fault=lambda step: Fault.REFUSED if step == "move" else Fault.NONE
        )
    )
    entry = entry_of("fake:///data", ["part-0", "part-1"])
    (report,) = committer.commit([entry], timeout_s=_CALL_S, after_crash=True)
    assert report.outcome is CommitOutcome.UNKNOWN
    assert "orders/part-0" in report.detail
    assert "simulated fault" not in report.detail


def test_a_staging_directory_that_stays_holds_up_no_published_epoch() -> None:
    disk = Disk(files={".s/a/s0": b"x"})

    def opened(uri: str) -> FileSystem:
        return FakeFileSystem(
            disk, uri=uri, fault=lambda step: Fault.REFUSED if step == "delete" else Fault.NONE
        )

    committer = FileCommitter(opened)
    entry = entry_of("fake:///data", ["part-0"])
    (report,) = committer.commit([entry], timeout_s=_CALL_S, after_crash=False)
    assert report.outcome is CommitOutcome.COMMITTED
    assert disk.files == {"orders/part-0": b"x"}


def test_one_rename_at_a_time_ends_at_the_one_at_which_the_process_dies() -> None:
    """In the caller's thread: no rename after it is under way, as the simulated worlds need it."""
    entry = entry_of("fake:///data", [f"part-{n}" for n in range(3)])
    disk = Disk(files={f".s/a/s{n}": b"x" for n in range(3)})
    moves: list[str] = []

    def fault(step: str) -> Fault:
        moves.extend([step] * (step == "move"))
        return Fault.CRASH_BEFORE if len(moves) == 2 else Fault.NONE

    committer = FileCommitter(lambda uri: FakeFileSystem(disk, uri=uri, fault=fault), at_once=1)
    with pytest.raises(SimulatedCrashError):
        committer.commit([entry], timeout_s=_CALL_S, after_crash=False)
    assert set(disk.files) == {"orders/part-0", ".s/a/s1", ".s/a/s2"}
    committer.close()


_ENDS = """
import atexit, sys
from sluice.connectors.hdfs.committing.file_committer import FileCommitter
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.unit.connectors.hdfs.committing.test_file_committer import entry_of

committer = FileCommitter(open_file_system)
entry = entry_of(sys.argv[1], [f"dt={n}/part" for n in range(20)])
atexit.register(lambda: print(committer.commit([entry], timeout_s=10, after_crash=False)))
"""


def test_what_is_decided_when_a_process_ends_is_published(tmp_path: Path) -> None:
    """A program with a drop-in query that continues has its last batch settled at its end, when
    Python's thread pools take no work any more."""
    staging = tmp_path / ".s" / "a"
    staging.mkdir(parents=True)
    for n in range(20):
        (staging / f"s{n}").write_bytes(b"x")
    ended = subprocess.run(
        [sys.executable, "-c", _ENDS, f"file://{tmp_path}"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert "CommitOutcome.COMMITTED" in ended.stdout, ended.stderr
    assert len(list((tmp_path / "orders").glob("dt=*/part"))) == 20
