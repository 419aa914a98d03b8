"""Keyed parts that are played: a function that counts keys, and state files in memory."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from sluice.runtime.contracts.keyed import (
    BarrierTime,
    KeyBy,
    KeyedOperator,
    KeyedRows,
    OperatorScope,
    TableSpec,
)
from sluice.runtime.functions.function_run import ChainedFunction
from sluice.runtime.model.splits import SplitKey, SplitRange
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.model.state.keyed_state import Due, KeyedState, SplitState, StatePart
from sluice.runtime.state.backend import StateBackend, TableChanges
from sluice.runtime.state.memory_backend import MemoryBackend
from sluice.runtime.state.task_state import EpochChanges, TaskState

__all__ = ["CountKeys", "PlayedStateFiles", "counting", "counts_in", "rows_in", "state_at_ends"]

_NO_FILE = "0" * 64


@dataclass(frozen=True, slots=True)
class CountKeys:
    """A `KeyedFunction`: counts the rows of each key, and returns the changed counts at a barrier.

    Attributes:
        timer_ms: a key's first row sets a timer so much after the barrier's processing time before
            it; the timer returns the count again. None: there are no timers.
    """

    timer_ms: int | None = None

    @property
    def tables(self) -> Sequence[TableSpec]:
        """Counts, and timers."""
        return (
            TableSpec(name="counts", kind="aggregate"),
            TableSpec(name="timers", kind="timers", is_timed=True),
        )

    @property
    def late_topic(self) -> str | None:
        """There are no late rows."""
        return None

    def open(self, scope: OperatorScope) -> KeyedOperator:
        """See `KeyedFunction.open`."""
        return _Counting(scope, self.timer_ms)


class _Counting(KeyedOperator):
    def __init__(self, scope: OperatorScope, timer_ms: int | None) -> None:
        self._tables = scope.tables
        self._counts = scope.tables.table(scope.numbers["counts"])
        self._timers = scope.tables.timed_table(scope.numbers["timers"])
        self._timer_ms = timer_ms
        self._added: dict[tuple[int, bytes], int] = {}

    def apply(self, rows: KeyedRows) -> Iterator[KeyedRows]:
        for split, key in zip(rows.splits.tolist(), rows.keys.to_pylist(), strict=True):
            self._added[split, key] = self._added.get((split, key), 0) + 1
        yield from ()

    def at_barrier(self, time: BarrierTime) -> Iterator[KeyedRows]:
        changed: dict[tuple[int, bytes], int] = {}
        for (split, key), added in self._added.items():
            (before,) = self._counts.get(split, [key])
            count = int(before or b"0") + added
            changed[split, key] = count
            self._counts.put(split, [key], [str(count).encode()])
            if before is None and self._timer_ms is not None:
                self._timers.put(split, [time.now_ms + self._timer_ms], [key], [b""])
        self._added.clear()
        for split in self._tables.splits():
            for at_ms, entries in list(self._timers.due(split, time.now_ms)):
                for key, _ in entries:
                    (found,) = self._counts.get(split, [key])
                    changed[split, key] = int(found or b"0")
                    self._timers.put(split, [at_ms], [key], [None])
        if changed:
            keys = pa.array([key for _, key in changed], pa.large_binary())
            yield KeyedRows(
                batch=pa.RecordBatch.from_pydict(
                    {
                        "partition": [-1] * len(changed),
                        "offset": list(changed.values()),
                        "key": [key[1:].decode() for _, key in changed],
                    }
                ),
                splits=np.array([split for split, _ in changed], np.int16),
                keys=keys,
                key_schema=pa.schema([("key", pa.string())]),
            )

    def rollback(self) -> None:
        self._added.clear()

    def due(self) -> Due:
        found = (self._timers.earliest_ms(split) for split in self._tables.splits())
        return Due(time_ms=min((ms for ms in found if ms is not None), default=None))


def _key(batch: pa.RecordBatch) -> pa.Array:
    return pa.array([str(offset % 3) for offset in batch.column("offset").to_pylist()])


def counting(timer_ms: int | None = None) -> tuple[ChainedFunction, ...]:
    """A pipeline that counts rows by the remainder of their offset by three."""
    return (
        ChainedFunction(name="key", operator_id="key", keyed=KeyBy(function=_key)),
        ChainedFunction(name="count", operator_id="count", keyed=CountKeys(timer_ms)),
    )


@dataclass
class PlayedStateFiles:
    """State files of all attempts, in memory. An `EpochWriter`, and what loads its files.

    Attributes:
        files: by path: for each section its split and its changes.
        failure: what the next write raises.
    """

    files: dict[str, list[tuple[SplitKey, TableChanges]]] = field(default_factory=dict)
    failure: Exception | None = None
    _chains: dict[SplitKey, list[tuple[FileReference, int]]] = field(default_factory=dict)

    def attempt(self) -> "PlayedStateFiles":
        """The same files for another attempt."""
        return PlayedStateFiles(self.files)

    def state(self, *, overlay_mib: float = 64) -> TaskState:
        """The state of a task over these files."""
        return TaskState(
            MemoryBackend(memory_bytes=64 << 20), load=self._load, overlay_mib=overlay_mib
        )

    def close(self) -> None:
        """There are no threads."""

    def write_epoch(
        self, batch_id: int, changes: EpochChanges, declared: KeyedState, at: BarrierTime
    ) -> KeyedState:
        """See `StateWriter.write_epoch`."""
        del at
        if self.failure is not None:
            raise self.failure
        path = f"state/region/{batch_id}-{len(self.files):08x}"
        sections = self.files.setdefault(path, [])
        file = FileReference(path=path, length_bytes=1, sha256=_NO_FILE)
        chains: dict[SplitKey, list[tuple[FileReference, int]]] = {}
        for split in changes.splits:
            chain = list(self._chains.get(split.key, ()))
            if split.restored is not None:
                (of_split,) = split.restored.splits
                chain = [(split.restored.files[p.file], p.offset) for p in of_split.parts]
            if split.tables.plain or split.tables.timed:
                sections.append((split.key, split.tables))
                chain.append((file, len(sections) - 1))
            chains[split.key] = chain
        self._chains = chains
        return _described(chains, declared)

    def _load(self, backend: StateBackend, states: Mapping[int, KeyedState]) -> None:
        for ordinal, state in states.items():
            (split,) = state.splits
            for part in split.parts:
                key, changes = self.files[state.files[part.file].path][part.offset]
                assert key == split.key
                backend.apply(ordinal, changes)


def _described(
    chains: Mapping[SplitKey, list[tuple[FileReference, int]]], declared: KeyedState
) -> KeyedState:
    files = tuple(dict.fromkeys(file for chain in chains.values() for file, _ in chain))
    return replace(
        declared,
        files=files,
        splits=tuple(
            SplitState(
                source_id=key[0],
                topic=key[1],
                partition=key[2],
                parts=tuple(
                    StatePart(file=files.index(file), offset=at, length=1) for file, at in chain
                ),
            )
            for key, chain in chains.items()
        ),
    )


def counts_in(files: PlayedStateFiles, state: KeyedState | None) -> dict[tuple[int, str], int]:
    """The counts in a recorded state, by partition and key."""
    found: dict[tuple[int, str], int] = {}
    for split in () if state is None else state.splits:
        assert state is not None
        for part in split.parts:
            _, changes = files.files[state.files[part.file].path][part.offset]
            for entries in changes.plain.values():
                for key, value in entries.items():
                    found[split.partition, key[1:].decode()] = int(json.loads(value or b"0"))
    return found


def state_at_ends(splits: Sequence[SplitRange], writer: str = "any") -> KeyedState:
    """A state for the end of each range: its only file names the writer, the split and the end."""
    return KeyedState(
        files=tuple(
            FileReference(
                path=f"state/{writer}/{s.partition}-{s.end_offset}",
                length_bytes=1,
                sha256=_NO_FILE,
            )
            for s in splits
        ),
        splits=tuple(
            SplitState(
                source_id=s.source_id,
                topic=s.topic,
                partition=s.partition,
                parts=(StatePart(file=at, offset=0, length=1),),
            )
            for at, s in enumerate(splits)
        ),
    )


def rows_in(split: SplitRange) -> pa.RecordBatch:
    """The records of a range: the value of each is its offset."""
    offsets = list(range(split.start_offset, split.end_offset))
    return pa.RecordBatch.from_arrays(
        [
            pa.array([split.topic] * len(offsets), pa.string()),
            pa.array([split.partition] * len(offsets), pa.int32()),
            pa.array(offsets, pa.int64()),
        ],
        names=["topic", "partition", "offset"],
    )
