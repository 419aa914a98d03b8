"""The history of a job: what it notes, that it goes on after restarts, and that nobody waits for it."""

import gzip
import json
import logging
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.contracts import FailedTask, FailureReason
from sluice.runtime.coordinator.core.events import Progress
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.coordinator.region.status_views import (
    AttemptView,
    JobStatus,
    RegionStatusView,
)
from sluice.runtime.errors import FencedError, StorageUnreachableError, UnsupportedFormatError
from sluice.runtime.history import job_history
from sluice.runtime.history.history_file import (
    HISTORY_FILE,
    HistoryMembers,
    decoded,
    read_history,
)
from sluice.runtime.history.job_history import JobHistory
from sluice.runtime.job.job_cli import app
from sluice.runtime.model.acknowledgement import RegionTimes
from sluice.runtime.model.checkpoint_record import CheckpointKind
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.waiting import wait_for

STARTED_MS = 1_800_000_000_000
TIMES = RegionTimes(
    read_s=0.1, function_s=0.2, write_s=0.3, flush_s=0.4, acknowledged_s=0.500_000_01
)
LEFT_OUT = FailedTask(
    subtask_id=3,
    task_name="task 3.1",
    region="side",
    reason=FailureReason.ERROR,
    message="ValueError: no",
)


def marked(checkpoint_id: int, **changes: Any) -> Progress:
    known: dict[str, Any] = {
        "requested_by": "interval",
        "kind": CheckpointKind.CHECKPOINT,
        "state": State.MARKED,
        "records": 7,
        "acked_s": 0.5,
        "decided_s": 0.6,
        "committed_s": 0.7,
        "marked_s": 0.8,
        "stages": {"main": TIMES},
    }
    return Progress(checkpoint_id=checkpoint_id, **{**known, **changes})


def region(
    name: str, *attempts: AttemptView, attempt_id: int = 1, lag: int = 5
) -> RegionStatusView:
    return RegionStatusView(
        region=name,
        attempt_id=attempt_id,
        is_open=True,
        batch_id=None,
        splits={},
        begins_ms=None,
        ended=len(attempts),
        attempts=attempts,
        pending_ratio=None,
        pressure=None,
        rate_limit=None,
        dropped=0,
        late_rows=0,
        lag_records=lag,
    )


def status(*regions: RegionStatusView, state: str = "running") -> JobStatus:
    return JobStatus(
        state=state,
        drop_limit=None,
        error="",
        last_decided=0,
        last_committed=0,
        pending=(),
        regions=regions or (region("main"),),
    )


@pytest.fixture
def fs(tmp_path: Path) -> LocalFileSystem:
    return LocalFileSystem(tmp_path)


def history_of(fs: Any, found: Callable[[], JobStatus] = status, **changes: Any) -> JobHistory:
    known: dict[str, Any] = {"every_s": 0.01, "wall_ms": lambda: STARTED_MS + 10_000}
    return JobHistory(fs, found, **{**known, **changes})


def test_a_checkpoint_is_noted_with_the_times_of_its_regions(fs: LocalFileSystem) -> None:
    with history_of(fs) as history:
        history.begin({"attempt_id": 1})
        history.on_progress(marked(5, failed_tasks=(LEFT_OUT,)))
    (found,) = read_history(fs)["checkpoints"]
    assert found == {
        "checkpoint_id": 5,
        "ms": STARTED_MS + 9_200,
        "kind": "checkpoint",
        "requested_by": "interval",
        "state": "marked",
        "verdict": "decided",
        "reason": "",
        "records": 7,
        "bytes": None,
        "acked_s": 0.5,
        "decided_s": 0.6,
        "committed_s": 0.7,
        "marked_s": 0.8,
        "regions": {
            "main": {
                "read_s": 0.1,
                "function_s": 0.2,
                "write_s": 0.3,
                "flush_s": 0.4,
                "acknowledged_s": 0.5,
            }
        },
        "skipped": {"side": "error: ValueError: no"},
        "failures": [
            {
                "region": "side",
                "subtask_id": 3,
                "task_name": "task 3.1",
                "reason": "error",
                "message": "ValueError: no",
            }
        ],
    }


def test_an_aborted_checkpoint_is_noted_from_its_barrier_on(fs: LocalFileSystem) -> None:
    now_ms = [STARTED_MS]
    with history_of(fs, wall_ms=lambda: now_ms[0]) as history:
        history.begin({"attempt_id": 1})
        history.on_progress(marked(5, state=State.ALIGNING))
        now_ms[0] += 5_000
        aborted = marked(5, state=State.ABORTED, reason="expired\nin the stack", marked_s=None)
        history.on_progress(aborted)
    (found,) = read_history(fs)["checkpoints"]
    assert (found["ms"], found["verdict"], found["reason"]) == (STARTED_MS, "aborted", "expired")


def test_attempts_are_noted_once_with_their_begin_end_cause_and_host(fs: LocalFileSystem) -> None:
    first = AttemptView(attempt_id=1, ended_ms=20, why="ValueError: x", committed_after_s=None)
    second = replace(first, attempt_id=4, began_ms=30, ended_ms=40, host="node-7")
    known = [status(region("main", first, attempt_id=4))]
    with history_of(fs, lambda: known[0]) as history:
        history.begin({"attempt_id": 1})
        wait_for(lambda: len(history.view()["attempts"]) == 1)
        known[0] = status(region("main", first, second, attempt_id=6))
        wait_for(lambda: len(history.view()["attempts"]) == 2)
    attempts = read_history(fs)["attempts"]
    assert [(a["attempt_id"], a["began_ms"], a["ended_ms"], a["host"]) for a in attempts] == [
        (1, STARTED_MS + 10_000, 20, ""),
        (4, 30, 40, "node-7"),
        (6, STARTED_MS + 10_000, STARTED_MS + 10_000, ""),
    ]
    assert [a["why"] for a in attempts][1:] == ["ValueError: x", "the job ended: finished"]


def test_a_savepoint_is_noted_once_and_gives_its_checkpoint_its_size(fs: LocalFileSystem) -> None:
    made = {"request_id": "abc", "kind": "savepoint", "state": "running", "checkpoint_id": None}
    known: list[dict[str, Any]] = [made]
    with history_of(fs, savepoints=lambda: known) as history:
        history.begin({"attempt_id": 1})
        wait_for(lambda: history.view()["savepoints"])
        done = {"state": "completed", "checkpoint_id": 5, "bytes": 99, "uri": "file:///s"}
        known[0] = {**made, **done}
        history.on_progress(marked(5, kind=CheckpointKind.SAVEPOINT))
        wait_for(lambda: history.view()["savepoints"][0]["state"] == "completed")
    found = read_history(fs)
    (savepoint,) = found["savepoints"]
    assert savepoint == {"ms": STARTED_MS + 10_000, **made, **done}
    assert found["checkpoints"][0]["bytes"] == 99


def test_throughput_and_lag_are_sampled(fs: LocalFileSystem) -> None:
    clock = [0.0]
    lags = status(region("main", lag=5), region("side", lag=7))
    with history_of(fs, lambda: lags, clock=lambda: clock[0]) as history:
        history.begin({"attempt_id": 1})
        wait_for(lambda: history.view()["samples"])
        history.on_progress(marked(1, records=40))
        clock[0] = 8.0
        wait_for(lambda: any(each[1] for each in history.view()["samples"]))
    assert [STARTED_MS + 10_000, 5.0, 12] in read_history(fs)["samples"]


@pytest.mark.parametrize(
    ("error", "state", "text"),
    [
        (None, "finished", ""),
        (ValueError("first\nsecond"), "failed", "ValueError: first"),
        (SystemExit(143), "stopped", ""),
    ],
)
def test_a_later_run_continues_the_history(
    fs: LocalFileSystem, error: BaseException | None, state: str, text: str
) -> None:
    """The one before was killed; this one ends by itself."""
    killed = history_of(fs)
    killed.begin({"attempt_id": 1})
    killed.on_progress(marked(2))
    wait_for(lambda: (found := fs.read(HISTORY_FILE)) and decoded(found)["checkpoints"])
    later = history_of(fs)
    later.begin({"attempt_id": 3, "restored_from": 2})
    later.on_progress(marked(4))
    wait_for(lambda: [each["checkpoint_id"] for each in later.view()["checkpoints"]] == [2, 4])
    later.__exit__(None, error, None)
    found = read_history(fs)
    assert [each["checkpoint_id"] for each in found["checkpoints"]] == [2, 4]
    assert [(each["attempt_id"], each["state"]) for each in found["runs"]] == [
        (1, "lost"),
        (3, state),
    ]
    assert found["runs"][1]["error"] == text
    assert found["runs"][1]["ended_ms"] == STARTED_MS + 10_000


def test_a_fenced_run_leaves_the_file_to_its_successor(fs: LocalFileSystem) -> None:
    known = [status()]
    fenced = history_of(fs, lambda: known[0])
    fenced.begin({"attempt_id": 1})
    wait_for(lambda: fs.read(HISTORY_FILE))
    known[0] = status(state="fenced")
    fs.replace(HISTORY_FILE, b"of the successor")
    fenced.on_progress(marked(2))
    fenced.__exit__(None, FencedError("taken over", {}, ""), None)
    assert fs.read(HISTORY_FILE) == b"of the successor"


# --- a store that fails ---------------------------------------------------------------------------


class Store:
    """A store that can fail or hang."""

    def __init__(self, inner: LocalFileSystem) -> None:
        self.inner, self.uri = inner, inner.uri
        self.is_away = False
        self.returns = threading.Event()
        self.returns.set()
        self.calls = 0

    def read(self, path: str) -> bytes | None:
        self.require()
        return self.inner.read(path)

    def replace(self, path: str, data: bytes) -> None:
        self.require()
        self.inner.replace(path, data)

    def require(self) -> None:
        self.calls += 1
        self.returns.wait()
        if self.is_away:
            raise StorageUnreachableError("HDFS is away", {}, "Wait.")


@pytest.fixture
def store(fs: LocalFileSystem) -> Iterator[Store]:
    made = Store(fs)
    yield made
    made.returns.set()


def test_a_store_that_is_away_costs_one_line_and_no_entry_once_it_is_back(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.is_away = True
    with caplog.at_level(logging.WARNING), history_of(store) as history:
        history.begin({"attempt_id": 1})
        history.on_progress(marked(1))
        wait_for(lambda: store.calls > 3)
        store.is_away = False
        wait_for(lambda: store.inner.read(HISTORY_FILE))
    assert history.write_failures >= 3, "for metrics"
    assert [each["checkpoint_id"] for each in read_history(store.inner)["checkpoints"]] == [1]
    assert caplog.text.count("history is not written") == 1


def test_a_store_that_hangs_delays_no_progress_and_no_end(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_history, "_JOIN_S", 0.01)
    store.returns.clear()
    with caplog.at_level(logging.WARNING), history_of(store) as history:
        history.begin({"attempt_id": 1})
        wait_for(lambda: store.calls)
        for checkpoint_id in range(20_000):  # more than it keeps for the store
            history.on_progress(marked(checkpoint_id, stages={}))
        assert history.view()["checkpoints"][-1]["checkpoint_id"] == 19_999
    assert caplog.text.count("the store does not answer") == 1


# --- the file -------------------------------------------------------------------------------------


def test_the_file_is_bounded_and_the_rare_entries_outlive_many_checkpoints() -> None:
    members = HistoryMembers()
    members.add("runs", [{"attempt_id": 1}])
    noise = random.Random(0)
    for start in range(0, 40_000, 50):
        members.add(
            "checkpoints",
            [{"id": start + n, "x": noise.random(), "y": noise.random()} for n in range(50)],
        )
    assert 900_000 < members.size_bytes < 1_100_000
    content = members.content()
    assert len(content) == members.size_bytes
    found = decoded(content)
    assert found["runs"] == [{"attempt_id": 1}]
    ids = [each["id"] for each in found["checkpoints"]]
    assert ids == list(range(ids[0], 40_000))
    assert gzip.decompress(content).splitlines()[0] == b'["format",1]'


@pytest.mark.parametrize("keep", [0, 1, 15, 60, 150, -9, -1])
def test_a_damaged_file_is_read_up_to_the_damage(fs: LocalFileSystem, keep: int) -> None:
    with history_of(fs) as history:
        history.begin({"attempt_id": 1})
        history.on_progress(marked(1))
    whole = fs.read(HISTORY_FILE)
    assert whole is not None
    for damaged in (whole[:keep], whole[:keep] + b"\x00" * 50, whole[:keep] + whole[keep + 1 :]):
        fs.replace(HISTORY_FILE, damaged)
        found = read_history(fs)
        assert len(found["checkpoints"]) <= 1
        with history_of(fs) as history:  # a run replaces it
            history.begin({"attempt_id": 2})
        assert read_history(fs)["runs"][-1]["attempt_id"] == 2


def test_foreign_lines_are_left_out(fs: LocalFileSystem) -> None:
    lines = [
        *(b"no json", b'{"a": 1}', b'["checkpoints"]', b'["checkpoints", {"checkpoint_id": 1}]'),
        *(b'["checkpoints", 7]', b'["unknown", {}]', b'["samples", [1, 2.0, null]]', b"[[], {}]"),
        b'["runs", {"attempt_id": 1, "state": "finished", "ended_ms": 1}]',
    ]
    fs.replace(HISTORY_FILE, gzip.compress(b"\n".join(lines)))
    found = read_history(fs)
    assert {part: len(entries) for part, entries in found.items()} == {
        "checkpoints": 0,
        "attempts": 0,
        "savepoints": 0,
        "runs": 1,
        "samples": 1,
    }


def test_a_later_format_is_neither_read_nor_replaced(
    fs: LocalFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    later = gzip.compress(json.dumps(["format", 2]).encode())
    fs.replace(HISTORY_FILE, later)
    with pytest.raises(UnsupportedFormatError, match="format version 2"):
        read_history(fs)
    with caplog.at_level(logging.WARNING), history_of(fs) as history:
        history.begin({"attempt_id": 1})
        history.on_progress(marked(1))
        assert history.view()["checkpoints"]
    assert fs.read(HISTORY_FILE) == later
    assert caplog.text.count("history is not written") == 1


# --- the command ----------------------------------------------------------------------------------


def test_the_command_prints_the_newest_entries(fs: LocalFileSystem, tmp_path: Path) -> None:
    done = {"request_id": "abc", "kind": "savepoint", "state": "completed", "uri": "file:///s"}
    with history_of(fs, savepoints=lambda: [done]) as history:
        history.begin({"attempt_id": 1})
        for checkpoint_id in range(2, 40):
            history.on_progress(marked(checkpoint_id))
        history.on_progress(marked(40, failed_tasks=(LEFT_OUT,)))
        history.on_progress(marked(41, state=State.ABORTED, reason="it expired"))
    open_store(str(tmp_path)).publish(record(0), timeout_s=60)
    shown = CliRunner().invoke(app, ["history", str(tmp_path), "--limit", "3"])
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    assert any(line.split()[:1] == ["1"] and "finished" in line for line in lines)
    assert any("file:///s" in line for line in lines)
    assert any("the job ended: finished" in line for line in lines)
    ids = [line.split()[0] for line in lines if " interval " in line]
    assert ids == [*("39", "40", "41")]
    assert "skipped side: error: ValueError: no" in shown.output
    assert "aborted: it expired" in shown.output
    found = json.loads(CliRunner().invoke(app, ["history", str(tmp_path), "--json"]).output)
    assert len(found["checkpoints"]) == 20
    assert found["checkpoints"][-1]["checkpoint_id"] == 41
