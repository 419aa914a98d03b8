"""Both state backends keep one contract: what a task writes is what it reads, and restores."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.runtime.contracts.keyed import BarrierTime
from sluice.runtime.errors import ConfigError, MissingRequirementError
from sluice.runtime.model.state.keyed_state import KeyedState
from sluice.runtime.state.backend import TableChanges
from sluice.runtime.state.state_files import StateStore
from sluice.runtime.state.state_settings import StateSettings
from sluice.runtime.state.state_writer import StateWriter
from sluice.runtime.state.task_state import EpochChanges, TaskState
from sluice.runtime.storage.task_files import LocalTaskFiles

BACKENDS = ("memory", "rocksdb")
P0, P1 = ("source", "topic", 0), ("source", "topic", 1)
AT = BarrierTime(watermark_ms=None, now_ms=0)


@pytest.fixture(params=BACKENDS)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> StateSettings:
    """Of each backend."""
    return StateSettings(backend=request.param, memory_mib=16, directory=str(tmp_path / "local"))


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    """An empty checkpoint directory."""
    return StateStore(files=LocalTaskFiles(), root=str(tmp_path / "checkpoints"))


@pytest.fixture
def state(settings: StateSettings, store: StateStore) -> Iterator[TaskState]:
    """A task with two splits."""
    with_splits = settings.open(store)
    with_splits.add_splits({P0: None, P1: None})
    yield with_splits
    with_splits.close()


def _written(store: StateStore, changes: EpochChanges) -> KeyedState:
    writer = StateWriter(store, region="r", attempt_id=1, on_outage=_never)
    written = writer.write_epoch(0, changes, KeyedState(), AT)
    writer.close()
    return written


def _put_mebibytes(state: TaskState, count: int) -> None:
    for at in range(count):
        state.table(1).put(state.ordinal(P0), [b"%d" % at], [bytes(1 << 20)])


def _never(error: Exception) -> None:
    raise error


class TestTables:
    def test_values_are_read_in_the_epoch_that_wrote_them_and_later(self, state: TaskState) -> None:
        table, split = state.table(1), state.ordinal(P0)
        assert table.get(split, [b"a", b"b"]) == [None, None]
        table.put(split, [b"a", b"b"], [b"1", b"2"])
        assert table.get(split, [b"b", b"a", b"c"]) == [b"2", b"1", None]
        state.end_epoch()
        table.put(split, [b"b", b"c"], [b"3", b"4"])
        assert table.get(split, [b"a", b"b", b"c"]) == [b"1", b"3", b"4"]
        state.end_epoch()
        assert table.get(split, [b"a", b"b", b"c"]) == [b"1", b"3", b"4"]

    def test_splits_and_tables_are_apart(self, state: TaskState) -> None:
        one, other = state.table(1), state.table(2)
        one.put(state.ordinal(P0), [b"a"], [b"1"])
        other.put(state.ordinal(P0), [b"a"], [b"2"])
        one.put(state.ordinal(P1), [b"a"], [b"3"])
        for _ in range(2):
            assert one.get(state.ordinal(P0), [b"a"]) == [b"1"]
            assert other.get(state.ordinal(P0), [b"a"]) == [b"2"]
            assert one.get(state.ordinal(P1), [b"a"]) == [b"3"]
            assert other.get(state.ordinal(P1), [b"a"]) == [None]
            state.end_epoch()

    def test_none_removes(self, state: TaskState) -> None:
        table, split = state.table(1), state.ordinal(P0)
        table.put(split, [b"a", b"b"], [b"1", b"2"])
        state.end_epoch()
        table.put(split, [b"a", b"never"], [None, None])
        for _ in range(2):
            assert table.get(split, [b"a", b"b"]) == [None, b"2"]
            assert list(table.scan(split)) == [(b"b", b"2")]
            state.end_epoch()

    def test_a_rollback_takes_back_the_epoch_alone(self, state: TaskState) -> None:
        table, split = state.table(1), state.ordinal(P0)
        timed = state.timed_table(2)
        table.put(split, [b"a", b"b"], [b"1", b"2"])
        timed.put(split, [5], [b"t"], [b""])
        state.end_epoch()
        table.put(split, [b"a", b"b", b"c"], [b"9", None, b"9"])
        timed.put(split, [5, 3], [b"t", b"u"], [None, b""])
        state.rollback()
        assert table.get(split, [b"a", b"b", b"c"]) == [b"1", b"2", None]
        assert sorted(table.scan(split)) == [(b"a", b"1"), (b"b", b"2")]
        assert list(timed.due(split, 9)) == [(5, [(b"t", b"")])]
        assert state.overlay_bytes == 0

    def test_a_scan_finds_the_keys_of_a_prefix(self, state: TaskState) -> None:
        """In base and changes; prefixes of bytes 255 too."""
        table, split = state.table(1), state.ordinal(P0)
        keys = [b"", b"a", b"ab", b"abc", b"b", b"\xff", b"\xff\xff", b"\xff\xff\x00"]
        table.put(split, keys[::2], [b"1"] * len(keys[::2]))
        state.end_epoch()
        table.put(split, keys[1::2], [b"2"] * len(keys[1::2]))
        state.table(2).put(split, [b"ab"], [b"of another table"])
        for prefix in (b"", b"a", b"ab", b"abcd", b"\xff", b"\xff\xff"):
            found = sorted(key for key, _ in table.scan(split, prefix))
            assert found == sorted(key for key in keys if key.startswith(prefix))
        table.put(split, [b"ab", b"abd"], [None, b"3"])
        for _ in range(2):
            assert dict(table.scan(split, b"ab")) == {b"abc": b"2", b"abd": b"3"}
            state.end_epoch()


class TestTimes:
    def test_due_entries_come_by_time_and_key(self, state: TaskState) -> None:
        table, split = state.timed_table(1), state.ordinal(P0)
        table.put(split, [7, -3, 7], [b"b", b"x", b"a"], [b"1", b"2", b"3"])
        state.end_epoch()
        table.put(split, [-3, 0], [b"y", b"z"], [b"4", b"5"])
        expected = [
            (-3, [(b"x", b"2"), (b"y", b"4")]),
            (0, [(b"z", b"5")]),
            (7, [(b"a", b"3"), (b"b", b"1")]),
        ]
        for _ in range(2):
            assert table.earliest_ms(split) == -3
            assert list(table.due(split, 6)) == expected[:2]
            assert list(table.due(split, 7)) == expected
            assert table.get(split, [7, 0, 1], [b"a", b"z", b"a"]) == [b"3", b"5", None]
            state.end_epoch()

    def test_entries_are_removed_and_added_while_they_are_read(self, state: TaskState) -> None:
        """What is added is found by the next call."""
        table, split = state.timed_table(1), state.ordinal(P0)
        table.put(split, [1, 2], [b"a", b"b"], [b"", b""])
        state.end_epoch()
        found = []
        for time, entries in table.due(split, 10):
            found.append(time)
            keys = [key for key, _ in entries]
            table.put(split, [time] * len(keys), keys, [None] * len(keys))
            table.put(split, [time + 5], [b"new"], [b""])
        assert found == [1, 2]
        assert [time for time, _ in table.due(split, 10)] == [6, 7]
        state.end_epoch()
        assert table.earliest_ms(split) == 6

    def test_an_earlier_entry_is_found_after_later_ones_left(self, state: TaskState) -> None:
        table, split = state.timed_table(1), state.ordinal(P0)
        for time in (100, 200):
            table.put(split, [time], [b"a"], [b""])
            state.end_epoch()
            assert [found for found, _ in table.due(split, time)] == [time]
            table.put(split, [time], [b"a"], [None])
            state.end_epoch()
            assert list(table.due(split, time)) == []
            assert table.earliest_ms(split) is None
        table.put(split, [50], [b"a"], [b""])
        state.end_epoch()
        assert table.earliest_ms(split) == 50

    def test_the_earliest_time_is_of_an_entry_that_is_still_there(self, state: TaskState) -> None:
        """Whatever the epoch has removed, added and kept at the times before it."""
        table, split = state.timed_table(1), state.ordinal(P0)
        table.put(split, [1, 1, 2, 5], [b"a", b"b", b"a", b"a"], [b""] * 4)
        state.end_epoch()
        for time, key, expected in ((1, b"a", 1), (1, b"b", 2), (2, b"a", 5), (5, b"a", None)):
            table.put(split, [time], [key], [None])
            assert table.earliest_ms(split) == expected
        table.put(split, [4], [b"n"], [b""])
        assert table.earliest_ms(split) == 4
        table.put(split, [2, 3], [b"a", b"n"], [b"", None])
        assert table.earliest_ms(split) == 2
        state.end_epoch()
        assert table.earliest_ms(split) == 2

    def test_extreme_times_are_in_order(self, state: TaskState) -> None:
        table, split = state.timed_table(1), state.ordinal(P0)
        times = [-(1 << 63), -1, 0, (1 << 63) - 1]
        table.put(split, times, [b"k"] * 4, [b""] * 4)
        state.end_epoch()
        assert [time for time, _ in table.due(split, times[-1])] == times
        assert [time for time, _ in table.due(split, -1)] == times[:2]


class TestSplits:
    def test_a_split_moves_with_its_state(
        self, state: TaskState, settings: StateSettings, store: StateStore
    ) -> None:
        """Also with what it changed in the epoch in which it came."""
        table = state.table(1)
        table.put(state.ordinal(P0), [b"a", b"b"], [b"1", b"2"])
        state.timed_table(2).put(state.ordinal(P0), [4], [b"t"], [b"3"])
        table.put(state.ordinal(P1), [b"a"], [b"4"])
        written = _written(store, state.end_epoch())
        state.drop_split(P0)
        assert state.splits() == [state.ordinal(P1)]
        other = settings.open(store)
        other.add_split(P0, written.of([P0]))
        split = other.ordinal(P0)
        assert dict(other.table(1).scan(split)) == {b"a": b"1", b"b": b"2"}
        assert list(other.timed_table(2).due(split, 9)) == [(4, [(b"t", b"3")])]
        other.table(1).put(split, [b"b"], [None])
        again = _written(store, other.end_epoch())
        other.close()
        third = settings.open(store)
        third.add_splits({P0: again, P1: written.of([P1])})
        assert third.table(1).get(third.ordinal(P0), [b"a", b"b"]) == [b"1", None]
        assert third.table(1).get(third.ordinal(P1), [b"a", b"b"]) == [b"4", None]
        third.close()

    def test_a_split_that_left_and_came_back_begins_anew(self, state: TaskState) -> None:
        table = state.table(1)
        table.put(state.ordinal(P0), [b"a"], [b"1"])
        state.end_epoch()
        table.get(state.ordinal(P0), [b"a"])
        state.drop_split(P0)
        state.add_split(P0, None)
        assert table.get(state.ordinal(P0), [b"a"]) == [None]
        assert list(table.scan(state.ordinal(P0))) == []

    def test_a_number_of_a_split_is_used_again_without_its_values(
        self, settings: StateSettings
    ) -> None:
        """Numbers of splits are few, so a backend gets one again after a while."""
        backend = settings.open_backend()
        for value in (b"1", b"2"):
            backend.add_split(0)
            assert backend.get(0, 1, [b"a"]) == [None]
            backend.apply(0, TableChanges(plain={1: {b"a": value}}))
            assert backend.get(0, 1, [b"a"]) == [value]
            backend.drop_split(0)
        backend.close()

    def test_a_frozen_epoch_is_not_changed_by_the_next_one(self, state: TaskState) -> None:
        table, split = state.table(1), state.ordinal(P0)
        table.put(split, [b"a"], [b"1"])
        frozen = state.end_epoch()
        table.put(split, [b"a", b"b"], [None, b"2"])
        state.end_epoch()
        assert frozen.splits[0].tables.plain == {1: {b"a": b"1"}}


class TestMemory:
    def test_more_changes_than_the_memory_are_refused(self, state: TaskState) -> None:
        """The error says what to set."""
        with pytest.raises(ConfigError, match="state_memory_mib=16"):
            _put_mebibytes(state, 17)
        state.rollback()
        _put_mebibytes(state, 15)

    def test_an_epoch_is_full_before_that(self, state: TaskState) -> None:
        table, split = state.table(1), state.ordinal(P0)
        while not state.is_full:
            table.put(split, [state.overlay_bytes.to_bytes(8, "big")], [bytes(1 << 20)])
        assert state.overlay_bytes < 6 << 20
        state.end_epoch()
        assert not state.is_full

    def test_sizes_return_to_zero(self, state: TaskState) -> None:
        table, timed, split = state.table(1), state.timed_table(2), state.ordinal(P0)
        empty_bytes = state.base_bytes
        keys = [b"%05d" % at for at in range(1000)]
        table.put(split, keys, [bytes(100)] * 1000)
        timed.put(split, range(1000), keys, [bytes(100)] * 1000)
        assert state.overlay_bytes > 200_000
        table.put(split, keys, [bytes(200)] * 1000)
        assert state.overlay_bytes > 300_000
        state.end_epoch()
        assert state.overlay_bytes == 0
        table.put(split, keys, [None] * 1000)
        timed.put(split, range(1000), keys, [None] * 1000)
        state.end_epoch()
        assert state.base_bytes < empty_bytes + 2_000_000  # of RocksDB's buffers
        state.drop_split(P0)
        state.drop_split(P1)
        assert state.overlay_bytes == 0


def test_memory_names_rocksdb_if_the_state_is_too_large(store: StateStore) -> None:
    """Spread over epochs, and on a restore."""
    large = StateSettings(backend="rocksdb", memory_mib=16).open(store)
    state = StateSettings(memory_mib=16).open(store)
    for one in (large, state):
        one.add_split(P0, None)
    _put_mebibytes(state, 12)
    state.end_epoch()
    with pytest.raises(ConfigError, match='state_backend="rocksdb"'):
        _put_mebibytes(state, 5)
    _put_mebibytes(large, 15)
    first = _written(store, large.end_epoch())
    restored = StateSettings(memory_mib=16).open(store)
    restored.add_split(P0, first)
    restored.table(1).put(restored.ordinal(P0), [b"more"], [bytes(900_000)])
    with pytest.raises(ConfigError, match='state_backend="rocksdb"'):
        restored.table(1).put(restored.ordinal(P0), [b"most"], [bytes(900_000)])
    large.close()


def test_settings_are_checked() -> None:
    """A name that is misspelt, and memory that is too little."""
    with pytest.raises(ConfigError, match="Use memory or rocksdb"):
        StateSettings(backend="rocks")
    with pytest.raises(ConfigError, match="at least 16 MiB"):
        StateSettings(memory_mib=1)


def test_rocksdb_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the driver, before a task starts, and in a task."""
    monkeypatch.setitem(sys.modules, "rocksdict", None)  # as if it was not installed
    settings = StateSettings(backend="rocksdb")
    for call in (settings.require_available, settings.open_backend):
        with pytest.raises(MissingRequirementError, match=r"sluice-spark\[state\]"):
            call()
    StateSettings(backend="memory").require_available()
