"""Keyed state in random order: puts, removals, rollbacks, epochs, merges, moves and restores, with a
crash between any two steps. After each of them, a task holds what a dict holds."""

import math
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sluice.runtime.model.state.keyed_state import KeyedState
from sluice.runtime.state.merge_plan import first_to_merge, most_parts
from sluice.runtime.state.state_rows import merged_rows
from sluice.runtime.state.state_settings import StateSettings
from tests.kit.effort import examples
from tests.kit.state.state_beds import P0, P1, Content, StateTask, content_of, rows, state_store

_KEYS = st.sampled_from([b"", b"a", b"ab", b"b", b"\xff", b"\x00", b"long" * 9])
_VALUES = st.none() | st.binary(max_size=3)
_TIMES = st.integers(-3, 3)
_PLAIN = st.dictionaries(_KEYS, _VALUES, min_size=1)
_TIMED = st.dictionaries(st.tuples(_TIMES, _KEYS), _VALUES, min_size=1)
_SPLITS = st.sampled_from([P0, P1])


class _Tasks(RuleBasedStateMachine):
    """One region, attempt after attempt. Only an acknowledged epoch lasts."""

    backend = "memory"

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self._store = state_store(Path(self._directory.name) / "checkpoints")
        self._recorded: KeyedState | None = None
        self._durable = {P0: Content(), P1: Content()}
        self._epoch = {P0: Content(), P1: Content()}
        self._base = {P0: Content(), P1: Content()}
        self._attempt_id = 0
        self._start()

    def teardown(self) -> None:
        self._task.close()
        self._directory.cleanup()

    def _start(self) -> None:
        states = {
            split: self._recorded.of([split]) if self._recorded else None for split in (P0, P1)
        }
        local = str(Path(self._directory.name) / "local")
        self._task = StateTask(
            self._store,
            states,
            attempt_id=self._attempt_id,
            settings=StateSettings(backend=self.backend, memory_mib=16, directory=local),
        )

    @rule(split=_SPLITS, changes=_PLAIN)
    def put(self, split: Any, changes: dict[bytes, bytes | None]) -> None:
        self._task.put(split, changes)
        _apply(self._epoch[split].plain, changes)

    @rule(split=_SPLITS, changes=_TIMED)
    def put_timed(self, split: Any, changes: dict[tuple[int, bytes], bytes | None]) -> None:
        self._task.put_timed(split, changes)
        _apply(self._epoch[split].timed, changes)

    @rule()
    def read_again(self) -> None:
        self._task.state.rollback()
        self._epoch = {split: content.copy() for split, content in self._base.items()}

    @rule()
    def end_epoch(self) -> None:
        self._recorded = self._task.end_epoch()
        self._base = {split: content.copy() for split, content in self._epoch.items()}
        self._durable = {split: content.copy() for split, content in self._epoch.items()}

    @rule()
    def end_epoch_without_acknowledgement(self) -> None:
        """The attempt ends: nothing of the epoch lasts, whatever was written."""
        self._task.end_epoch()
        self.crash()

    @rule()
    def end_many_epochs(self) -> None:
        """As many as a merge needs; it may be done or under way afterwards."""
        for at in range(12):
            self.put(P0, {b"many": b"%d" % at})
            self.end_epoch()

    @rule()
    def crash(self) -> None:
        self._task.close()
        self._attempt_id += 1
        self._base = {split: content.copy() for split, content in self._durable.items()}
        self._epoch = {split: content.copy() for split, content in self._durable.items()}
        self._start()

    @rule(split=_SPLITS)
    def move_away_and_back(self, split: Any) -> None:
        """At a barrier, by way of a task of another region."""
        self.end_epoch()
        assert self._recorded is not None
        self._task.state.drop_split(split)
        other = StateTask(self._store, {split: self._recorded.of([split])}, attempt_id=99)
        moved = other.end_epoch()
        other.close()
        self._task.state.add_split(split, moved)
        self._recorded = KeyedState.merged([self._recorded.without([split]), moved])

    @invariant()
    def holds_what_a_dict_holds(self) -> None:
        for split, content in self._epoch.items():
            assert content_of(self._task.state, split) == content
            ordinal = self._task.state.ordinal(split)
            earliest = min((time for time, _ in content.timed), default=None)
            assert self._task.state.timed_table(2).earliest_ms(ordinal) == earliest
            keys = [b"a", b"never", b"\xff"]
            assert self._task.state.table(1).get(ordinal, keys) == list(
                map(content.plain.get, keys)
            )


class _RocksDbTasks(_Tasks):
    backend = "rocksdb"


TestMemory = _Tasks.TestCase
TestMemory.settings = settings(max_examples=examples(25), stateful_step_count=20, deadline=None)
TestRocksDb = _RocksDbTasks.TestCase
TestRocksDb.settings = settings(max_examples=examples(5), stateful_step_count=12, deadline=None)


def _apply(content: dict[Any, bytes], changes: dict[Any, bytes | None]) -> None:
    for key, value in changes.items():
        if value is None:
            content.pop(key, None)
        else:
            content[key] = value


_ROW = st.tuples(st.sampled_from([1, 3]), st.none(), _KEYS) | st.tuples(st.just(2), _TIMES, _KEYS)


@settings(max_examples=examples(100), deadline=None)
@given(
    streams=st.lists(st.dictionaries(_ROW, _VALUES, max_size=12), min_size=1, max_size=5),
    cut=st.integers(1, 4),
    is_base=st.booleans(),
)
def test_merged_streams_have_the_latest_row_of_each_place(
    streams: list[dict[Any, bytes | None]], cut: int, is_base: bool
) -> None:
    """However they are cut into batches; in order, each place once."""
    expected: dict[Any, bytes | None] = {}
    for stream in streams:
        expected.update(stream)
    if is_base:
        expected = {place: value for place, value in expected.items() if value is not None}
    sorted_streams = [sorted(stream.items(), key=_in_order) for stream in streams]
    cuts = [
        iter(
            [
                rows(*((*p, v) for p, v in stream[at : at + cut]))
                for at in range(0, len(stream), cut)
            ]
        )
        for stream in sorted_streams
    ]
    found = [
        ((row["table"], row["time"], row["key"]), row["value"])
        for batch in merged_rows(cuts, drops={} if is_base else None)
        for row in batch.to_pylist()
    ]
    assert found == sorted(expected.items(), key=_in_order)


def _in_order(entry: tuple[Any, Any]) -> tuple[int, int, bytes]:
    table, time, key = entry[0]
    return table, 0 if time is None else time, key


_SIZES = st.sampled_from([1, 100, 1_000, 5_000, 100_000])


@settings(max_examples=examples(20), deadline=None)
@given(
    changed=st.lists(_SIZES, min_size=1, max_size=40),
    keys=st.sampled_from([1_000, 30_000, 1_000_000, None]),
)
def test_merges_keep_few_parts_and_write_each_byte_a_few_times(
    changed: list[int], keys: int | None
) -> None:
    """For any sizes of epochs; all keys are new (None), or they come back."""
    parts: list[tuple[float, int]] = []
    written = new = 0
    for epoch in range(3_000):
        size = changed[epoch % len(changed)]
        parts.append((size, size))
        written, new = written + size, new + size
        unit = sum(changed) / len(changed)
        first = first_to_merge([part[1] for part in parts], unit=unit)
        if first is not None:
            raw = sum(part[0] for part in parts[first:])
            merged = int(raw if keys is None else keys * -math.expm1(-raw / keys))
            written += merged
            parts[first:] = [(raw, merged)]
        assert len(parts) < most_parts([part[1] for part in parts], unit=unit) <= 32 * 6
    assert written <= 3.5 * new
