"""The writer of change files and its merges: short lists of parts, and only files that are needed."""

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from sluice.runtime.contracts.keyed import BarrierTime
from sluice.runtime.errors import StorageError, StorageUnreachableError
from sluice.runtime.model.state.keyed_state import KeyedState, StateTableInfo
from sluice.runtime.state import background_merger, state_writer
from sluice.runtime.state.codec.expiry import with_expiry
from sluice.runtime.state.codec.row_codec import schema_to_json
from sluice.runtime.state.state_files import StateFileWriter, StateStore
from tests.kit.state.state_beds import AT, P0, P1, Content, StateTask, content_of, state_store
from tests.kit.waiting import PATIENCE_S, join, wait_for

_TTL = KeyedState(
    max_parallelism=128,
    partitions=3,
    tables=(
        StateTableInfo(
            number=1,
            operator_id="o",
            name="last",
            kind="value",
            value_schema=schema_to_json(pa.schema([("v", pa.int8())]), expires_by="event"),
        ),
    ),
)


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    """An empty checkpoint directory."""
    return state_store(tmp_path)


def _epochs_until(task: StateTask, is_done: Callable[[KeyedState], bool]) -> KeyedState:
    """End epochs without changes until a merge has done what it should."""
    found: list[KeyedState] = []

    def tried() -> bool:
        found.append(task.end_epoch())
        return is_done(found[-1])

    wait_for(tried)
    return found[-1]


def _parts(state: KeyedState, at: int = 0) -> int:
    return len(state.splits[at].parts)


def test_an_epoch_without_changes_writes_no_file(store: StateStore, tmp_path: Path) -> None:
    task = StateTask(store, {P0: None, P1: None}, declared=_TTL)
    assert task.end_epoch() == KeyedState(
        max_parallelism=128, partitions=3, tables=_TTL.tables, splits=task.end_epoch().splits
    )
    assert not (tmp_path / "state").exists()
    task.put(P0, {b"a": b"1"})
    state = task.end_epoch()
    assert [len(split.parts) for split in state.splits] == [1, 0]
    assert len(state.files) == 1
    task.close()


def test_merges_replace_parts_by_one(store: StateStore) -> None:
    """A merge from the first part on is a base: removed entries are not in it."""
    task = StateTask(store, {P0: None, P1: None})
    for epoch in range(20):
        task.put(P0, {b"k": b"%d" % epoch, b"removed": b"x", b"%d" % epoch: os.urandom(200)})
        task.put(P1, {b"k": b"%d" % epoch})
        task.end_epoch()
    task.put(P0, {b"removed": None})
    expected = content_of(task.state, P0)
    state = _epochs_until(task, lambda state: max(map(len, _all_parts(state))) < 8)
    assert all(split.parts[0].is_base for split in state.splits)
    assert not any(part.is_base for split in state.splits for part in split.parts[1:])
    assert content_of(task.state, P0) == expected
    task.close()
    again = StateTask(store, {key: state.of([key]) for key in (P0, P1)})
    assert content_of(again.state, P0) == expected
    assert content_of(again.state, P1) == Content(plain={b"k": b"19"})
    again.close()


def _all_parts(state: KeyedState) -> list[object]:
    return [split.parts for split in state.splits]


class _UntilJoined(threading.Thread):
    """A thread that gets no processor until somebody waits for it."""

    def start(self) -> None:
        self._is_begun = True

    def is_alive(self) -> bool:
        return self._is_begun

    def join(self, timeout: float | None = None) -> None:
        del timeout
        if self._is_begun:
            self._is_begun = False
            self.run()


def test_epochs_wait_for_a_merge_that_lags(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the chain of a split would grow as long as epochs end faster than a merge."""
    monkeypatch.setattr(background_merger.threading, "Thread", _UntilJoined)
    task = StateTask(store, {P0: None})
    longest = 0
    for epoch in range(200):
        task.put(P0, {b"key-%d" % (epoch % 7): b"%d" % epoch})
        (split,) = task.end_epoch().splits
        longest = max(longest, len(split.parts))
    task.close()
    assert longest <= 64


def test_a_base_leaves_out_what_has_expired(store: StateStore) -> None:
    """By the clock of the table, as of the barrier."""
    task = StateTask(store, {P0: None}, declared=_TTL)
    at = BarrierTime(watermark_ms=8, now_ms=0)
    for epoch in range(12):
        task.put(P0, {b"%d" % epoch: with_expiry([b"v"], epoch)[0]})
        task.end_epoch(at)
    wait_for(lambda: task.end_epoch(at).splits[0].parts[0].is_base and _has_merged(task, at))
    state = task.end_epoch(at)
    task.close()
    again = StateTask(store, {P0: state})
    found = {int(key) for key in content_of(again.state, P0).plain}
    assert found >= {9, 10, 11}
    assert len(found) < 12
    again.close()


def _has_merged(task: StateTask, at: BarrierTime) -> bool:
    return _parts(task.end_epoch(at)) < 8


def test_a_failed_merge_is_logged_and_tried_again(
    store: StateStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The parts stay until then, and a restore needs no merge."""
    task = StateTask(store, {P0: None})
    finish = StateFileWriter.finish
    failures = []

    def failing(writer: StateFileWriter) -> object:
        if writer.path.endswith(".merged") and len(failures) < 2:
            failures.append(writer.path)
            raise StorageError("no room", {}, "Make room.")
        return finish(writer)

    monkeypatch.setattr(StateFileWriter, "finish", failing)
    with caplog.at_level(logging.WARNING):
        for epoch in range(12):
            task.put(P0, {b"%d" % epoch: b"1"})
            state = task.end_epoch()
        again = StateTask(store, {P0: state})
        assert len(content_of(again.state, P0).plain) == 12
        again.close()
        state = _epochs_until(task, lambda state: _parts(state) < 8)
    assert len(failures) == 2
    assert caplog.text.count("a merge of state files failed") == 2
    assert not set(failures) & {file.path for file in state.files}
    task.close()


def _failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[str]:
    """Each merge fails; the paths of the merges."""
    finish, failures = StateFileWriter.finish, []

    def failing(writer: StateFileWriter) -> object:
        if not writer.path.endswith(".merged"):
            return finish(writer)
        failures.append(writer.path)
        raise error

    monkeypatch.setattr(StateFileWriter, "finish", failing)
    return failures


def _end_epochs(task: StateTask, count: int) -> int:
    """Each with a change; the most parts of the split."""
    longest = 0
    for epoch in range(count):
        task.put(P0, {b"%d" % epoch: b"1"})
        longest = max(longest, _parts(task.end_epoch()))
    return longest


@pytest.mark.parametrize("error", [StorageError("no room", {}, "Make room."), MemoryError()])
def test_merges_that_keep_failing_end_the_attempt(
    store: StateStore, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Else each epoch would add a part, until a restore takes hours."""
    failures = _failing(monkeypatch, error)
    task = StateTask(store, {P0: None})
    with pytest.raises(StorageError, match=r"no room|cannot be merged .*parts=32"):
        _end_epochs(task, 1000)
    assert len(failures) > 3
    assert task.batch_id < 40
    task.close()


def test_an_epoch_waits_while_merges_find_no_store(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its change file does: the task reports that it waits, and may be ended."""
    failures = _failing(monkeypatch, StorageUnreachableError("away", {}, "Wait."))
    task = StateTask(store, {P0: None})

    def ends() -> None:
        if len(task.outages) == 7:
            monkeypatch.undo()

    task.on_outage = ends
    assert _end_epochs(task, 60) <= 40
    assert len(task.outages) == 7
    assert len(failures) >= 7
    task.close()


def test_a_merge_without_progress_is_reported_and_ends_the_attempt(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_writer, "_MERGE_STEP_S", 0.01)
    goes_on, finish = threading.Event(), StateFileWriter.finish

    def hangs(writer: StateFileWriter) -> object:
        if writer.path.endswith(".merged"):
            goes_on.wait(PATIENCE_S)
        return finish(writer)

    monkeypatch.setattr(StateFileWriter, "finish", hangs)
    task = StateTask(store, {P0: None})
    with pytest.raises(StorageUnreachableError, match="waits for a merge"):
        _end_epochs(task, 1000)
    assert len(task.outages) >= 100
    assert task.batch_id < 40
    goes_on.set()
    task.close()


def test_a_file_that_is_mostly_unused_is_left(store: StateStore) -> None:
    """Its last part is copied, however few parts its split has."""
    task = StateTask(store, {P0: None, P1: None})
    task.put(P0, {b"rare": b"1"})
    task.put(P1, {b"%d" % at: os.urandom(100) for at in range(100)})
    (first,) = task.end_epoch().files
    for epoch in range(20):
        task.put(P1, {b"%d" % at: b"%d" % epoch for at in range(100)})
        task.end_epoch()
    state = _epochs_until(task, lambda state: first not in state.files)
    task.close()
    again = StateTask(store, {P0: state.of([P0])})
    assert content_of(again.state, P0) == Content(plain={b"rare": b"1"})
    again.close()


def test_a_dropped_split_is_in_no_later_record(store: StateStore) -> None:
    """Also if a merge of its parts ends after that; the split may come back."""
    task = StateTask(store, {P0: None, P1: None})
    for epoch in range(9):
        task.put(P0, {b"%d" % epoch: b"1"})
        task.put(P1, {b"%d" % epoch: b"1"})
        state = task.end_epoch()
    task.state.drop_split(P1)
    for _ in range(3):
        assert [split.key for split in task.end_epoch().splits] == [P0]
    task.state.add_split(P1, state.of([P1]))
    task.put(P1, {b"more": b"2"})
    state = task.end_epoch()
    task.close()
    again = StateTask(store, {P1: state.of([P1])})
    assert len(content_of(again.state, P1).plain) == 10
    again.close()


def test_a_merge_of_parts_that_a_split_no_longer_has_is_not_taken(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The split left while they were merged, and came back with other state."""
    other = StateTask(store, {P0: None}, attempt_id=1)
    other.put(P0, {b"other": b"1"})
    moved = other.end_epoch()
    other.close()
    task = StateTask(store, {P0: None})
    may_end = threading.Event()
    finish = StateFileWriter.finish

    def waiting(writer: StateFileWriter) -> object:
        assert not writer.path.endswith(".merged") or may_end.wait(PATIENCE_S)
        return finish(writer)

    monkeypatch.setattr(StateFileWriter, "finish", waiting)
    for epoch in range(9):
        task.put(P0, {b"%d" % epoch: b"1"})
        task.end_epoch()
    task.state.drop_split(P0)
    task.state.add_split(P0, moved)
    task.end_epoch()
    may_end.set()
    merging = [each for each in threading.enumerate() if each.name == "sluice-state-merge"]
    join(*merging)
    assert task.end_epoch().splits[0].parts[0].length == moved.splits[0].parts[0].length
    task.close()


def test_a_closed_writer_leaves_no_thread(store: StateStore) -> None:
    """A merge that runs is given up."""
    task = StateTask(store, {P0: None})
    for epoch in range(9):
        task.put(P0, {b"%d" % at: os.urandom(100) for at in range(100 * epoch, 100 * epoch + 2000)})
        task.end_epoch(AT)
    task.close()
    task.writer.close()
