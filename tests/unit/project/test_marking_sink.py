"""A file sink with partition commit: marks come after publications, and hold up none."""

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sluice import PartitionCommit, PartitionMark
from sluice.connectors.hdfs.committing.file_sink_coordinator import FileSinkCoordinator
from sluice.connectors.hdfs.partition_commit import partition_marks as marks
from sluice.connectors.hdfs.partition_commit.partition_state import decode_state
from sluice.connectors.hdfs.staging.committables import FileSet, StagedFile, encode_file_set
from sluice.connectors.hdfs.staging.pending_files import (
    PendingFile,
    PendingFiles,
    encode_pending_files,
    pending_partitions,
)
from sluice.runtime.contracts import (
    AttemptRegistry,
    CommitListener,
    Frame,
    RegionProgress,
    StagedFrame,
    TaskScope,
)
from sluice.runtime.errors import ConfigError, LateRecordsError
from sluice.runtime.failpoints import VARIABLE
from sluice.runtime.model.checkpoint_record import Redistribution, RegionStatus, StateEntry
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.kit.files.fake_file_system import Disk, FakeFileSystem
from tests.kit.marking_sink import MarkingSink
from tests.kit.waiting import PATIENCE_S, wait_for

PARENT = "fake:///data"
OTHERS = StateEntry(
    operator_id="op",
    state_name="other",
    kind="of-another-writer",
    version=1,
    redistribution=Redistribution.SPLIT,
    payload=b"kept",
)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, a decision waits until its marks were tried."""
    monkeypatch.setattr(marks, "_WAIT_S", PATIENCE_S)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def sink_of(disk: Disk) -> "SinkOf":
    def made(commit: PartitionCommit, *before: MarkingSink) -> MarkingSink:
        found = MarkingSink(PARENT, lambda uri: FakeFileSystem(disk, uri=uri), commit)
        for run in before:
            found.states, found.checkpoint_id = run.states, run.checkpoint_id
        return found

    return made


SinkOf = Callable[..., MarkingSink]


def test_a_mark_is_there_when_its_checkpoint_may_be_marked(sink_of: SinkOf, disk: Disk) -> None:
    sink = sink_of(PartitionCommit())
    sink.decide(sink.write("dt=1", "dt=2"))
    assert sink.marked == ["dt=1", "dt=2"]
    assert {path.rpartition("/")[2] for path in disk.files if path.startswith("orders/dt=1")} == {
        "part-1-0",
        "_SUCCESS",
    }
    sink.coordinator.close()


def test_a_batch_without_rows_keeps_what_is_open_and_drops_what_is_marked(sink_of: SinkOf) -> None:
    """States of another writer of the same operator pass through, whatever happens."""
    sink = sink_of(PartitionCommit())
    sink.decide(sink.write("dt=1"))
    sink.states = (*sink.states, OTHERS)
    staged = sink.write()
    assert staged.committables == ()
    (entry,) = (one for one in staged.operator_states if one.kind == "open-partitions")
    assert decode_state(entry).opened == {}
    assert list(decode_state(entry).marked) == ["dt=1"]
    sink.coordinator.close()


def test_rows_whose_partition_has_no_time_are_written_and_never_waited_for(sink_of: SinkOf) -> None:
    """A null; nonsense stops the job while nothing of it is acknowledged."""
    sink = sink_of(PartitionCommit(trigger="partition-time"))
    sink.decide(sink.write("dt=1970-01-01", "dt=__HIVE_DEFAULT_PARTITION__"), watermark_ms=10**9)
    assert sink.marked == ["dt=1970-01-01"]
    with pytest.raises(ConfigError, match="form no timestamp"):
        sink.write("dt=soon")
    sink.coordinator.close()


def test_files_of_another_target_or_layout_are_no_partitions_of_this_one(
    sink_of: SinkOf, disk: Disk
) -> None:
    """Held under other settings, they are published where they were meant for: they must neither
    mark a partition here nor stop the job for values that make no time."""
    sink = sink_of(PartitionCommit(trigger="partition-time"))
    elsewhere = FileSet(
        target="fake:///old/orders", staging=".s/a", rows=1, files=(_file("dt=1970-01-01/part-0"),)
    )
    otherwise = FileSet(
        target=f"{PARENT}/orders",
        staging=".s/b",
        rows=2,
        files=(_file("topic=in/part-0"), _file("part-1")),
    )
    given_up = StagedFrame(
        rows=0,
        committables=tuple(encode_file_set(s, operator_id="op") for s in (elsewhere, otherwise)),
    )
    writer = sink.marks.writer(_Answering(given_up), columns=("dt",))
    sink.writer = writer
    staged = sink.write()
    (entry,) = staged.operator_states
    assert decode_state(entry).opened == {}
    sink.coordinator.close()


def _holding(path: str) -> StagedFrame:
    """A batch without rows that holds on to a file of the partition."""
    file = PendingFile(
        directory=path,
        staging=".s/a",
        staged=f"{path}/part-0",
        length_bytes=1,
        rows=1,
        first_ms=0,
        last_ms=0,
    )
    held = PendingFiles(target=f"{PARENT}/orders", layout="l", files=(file,))
    states = (encode_pending_files(held, operator_id="op"),)
    return StagedFrame(rows=0, committables=(), operator_states=states)


def test_a_partition_held_by_an_earlier_run_may_make_no_time_under_new_settings(
    sink_of: SinkOf,
) -> None:
    """Its rows are decided: each start would stop at them. A new one of that kind still stops."""
    sink = sink_of(PartitionCommit(trigger="partition-time"))
    answer = _holding("dt=soon")
    sink.writer = sink.marks.writer(_Answering(answer), pending=pending_partitions)
    with pytest.raises(ConfigError, match="form no timestamp"):
        sink.write()
    sink.states = answer.operator_states
    sink.decide(sink.write(), watermark_ms=10**9)
    assert sink.marked == []
    sink.coordinator.close()


def test_late_rows_that_a_decision_holds_are_no_error_of_a_later_run(sink_of: SinkOf) -> None:
    """They came when late rows were marked again; ``error`` stops at those that come now."""
    first = sink_of(PartitionCommit())
    first.decide(first.write("dt=1"))
    first.writer = first.marks.writer(_Answering(_holding("dt=1")), pending=pending_partitions)
    first.decide(first.write())
    first.coordinator.close()

    second = sink_of(PartitionCommit(on_late="error"), first)
    inner = second.writer
    second.writer = second.marks.writer(_Answering(_holding("dt=1")), pending=pending_partitions)
    second.decide(second.write())
    second.writer, second.states = inner, ()
    with pytest.raises(LateRecordsError):
        second.write("dt=1")
    second.coordinator.close()


@dataclass
class _Answering:
    """A frame writer whose answer a test has made."""

    answer: StagedFrame

    def write(self, frame: Frame, scope: TaskScope, registry: AttemptRegistry) -> StagedFrame:
        return self.answer

    def require_writable(self, *, job_uid: str, operator_id: str) -> None:
        """Always."""

    def close(self) -> None:
        """Nothing is held."""


def _file(final: str) -> StagedFile:
    return StagedFile(staged=final, final=final, length_bytes=1, rows=1)


def test_a_policy_that_hangs_holds_up_no_checkpoint(
    sink_of: SinkOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "_WAIT_S", 1.0)
    free = threading.Event()
    asked: list[str] = []

    def slow(mark: PartitionMark) -> None:
        asked.append(mark.partition)
        assert free.wait(300)

    sink = sink_of(PartitionCommit(policies=[slow, "success-file"]))
    sink.decide(sink.write("dt=1"))
    wait_for(lambda: asked, what="the policy is asked")
    sink.decide(sink.write("dt=2"))
    assert asked == ["dt=1"]
    assert sink.marked == []
    free.set()
    wait_for(lambda: sink.marked == ["dt=1", "dt=2"], what="both partitions are marked")
    sink.coordinator.close()


def test_the_end_of_a_run_marks_what_is_due(sink_of: SinkOf) -> None:
    """A policy that failed is not tried again there; the next start is reported and does."""
    fails = [True]

    def fickle(mark: PartitionMark) -> None:
        if fails[0]:
            raise OSError("not now")

    sink = sink_of(PartitionCommit(policies=[fickle, "success-file"]))
    sink.decide(sink.write("dt=1"))
    sink.coordinator.close()
    assert sink.marked == []
    fails[0] = False
    again = sink_of(sink.commit, sink)
    again.tell()
    wait_for(lambda: again.marked == ["dt=1"], what="the next run marks it")
    again.coordinator.close()


@pytest.mark.parametrize(
    ("point", "left"), [("before-partition-mark", []), ("after-partition-mark", ["dt=1"])]
)
def test_a_process_killed_around_a_mark_leaves_it_to_the_next(
    tmp_path: Path, point: str, left: list[str]
) -> None:
    """Between publication and mark, and between mark and record; once more does no harm."""
    found = subprocess.run(
        [sys.executable, "-m", "tests.kit.marking_sink", str(tmp_path)],
        env={**os.environ, VARIABLE: f"{point}=kill"},
        timeout=PATIENCE_S,
        check=False,
    )
    assert found.returncode == -signal.SIGKILL
    assert [path.name for path in (tmp_path / "orders" / "dt=1").glob("part*")] == ["part-1-0"]
    again = MarkingSink(
        tmp_path.as_uri(), lambda uri: open_file_system(uri, None), PartitionCommit()
    )
    assert again.marked == left
    again.states = pickle.loads((tmp_path / "record").read_bytes())
    again.tell()
    assert again.marked == ["dt=1"]
    again.coordinator.close()


def test_a_sink_of_two_pipelines_marks_when_both_have_been_heard(
    sink_of: SinkOf, disk: Disk
) -> None:
    """They write the same partitions, each with a region of its own."""
    sink = sink_of(PartitionCommit(trigger="partition-time"))
    other = FileSinkCoordinator(
        f"{PARENT}/orders", lambda uri: FakeFileSystem(disk, uri=uri), marks=sink.marks
    )
    other.claim(replace(sink.context, operator_id="other"), timeout_s=1.0)
    sink.decide(sink.write("dt=1970-01-01"), watermark_ms=10**9)
    assert sink.marked == []
    committer = other.committer
    assert isinstance(committer, CommitListener)
    for watermark_ms, expected in ((0, []), (10**9, ["dt=1970-01-01"])):
        progress = RegionProgress(
            region="elsewhere", status=RegionStatus.COMPLETED, least_watermark_ms=watermark_ms
        )
        committer.regions_published(1, [progress], timeout_s=PATIENCE_S)
        assert sink.marked == expected
    for run in (sink.coordinator, other):
        run.close()


def test_a_sink_object_of_two_jobs_that_run_is_refused(sink_of: SinkOf, disk: Disk) -> None:
    """They would mark each other's partitions. The next run of a job, after its end, may have it,
    and so may another job."""
    sink = sink_of(PartitionCommit())
    other = FileSinkCoordinator(
        f"{PARENT}/orders", lambda uri: FakeFileSystem(disk, uri=uri), marks=sink.marks
    )
    context = replace(sink.context, leader_session_id="another")
    with pytest.raises(ConfigError, match="two running jobs"):
        other.check(timeout_s=1.0)
    with pytest.raises(ConfigError, match="two running jobs"):
        other.claim(context, timeout_s=1.0)
    sink.decide(sink.write("dt=1"))
    assert sink.marked == ["dt=1"]
    sink.coordinator.close()
    other.check(timeout_s=1.0)
    sink.fencing_record("another")
    other.claim(context, timeout_s=1.0)
    sink.coordinator, sink.states = other, ()
    sink.writer = sink.marks.writer(sink.inner)
    sink.decide(sink.write("dt=2"))
    assert sink.marked == ["dt=1", "dt=2"]
    other.close()


def test_a_run_after_which_another_one_has_sealed_marks_nothing(sink_of: SinkOf) -> None:
    """It was stopped for long, say, and its marker wakes up first."""
    first = sink_of(PartitionCommit())
    staged = first.write("dt=1")
    second = sink_of(PartitionCommit())
    second.fencing_record("another")
    first.decide(staged)
    first.coordinator.close()
    second.coordinator.close()
    assert first.marked == []
