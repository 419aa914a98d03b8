"""What keyed functions get from their task: the state of its splits, and the time of barriers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.runtime.model.splits import SplitKey
from sluice.runtime.model.state.keyed_state import Due

__all__ = [
    "BarrierTime",
    "DecodedRows",
    "Due",
    "KeyBy",
    "KeyedFunction",
    "KeyedOperator",
    "KeyedRows",
    "OperatorScope",
    "StateTable",
    "TableSpec",
    "TaskTables",
    "TimedTable",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierTime:
    """The time of a barrier; the same in all tasks.

    Attributes:
        watermark_ms: event time that all sources have passed; never back. None: none has a time.
        now_ms: processing time: the driver's wall clock when the barrier was given; never back.
        is_end: the input ends with this barrier: every window closes.
    """

    watermark_ms: int | None
    now_ms: int
    is_end: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRows:
    """Rows of a keyed stream, in the order of each split.

    Attributes:
        batch: the rows.
        splits: of shape (rows,): each row's split, as `TaskTables.ordinal` numbers it.
        keys: encoded keys (`sluice.runtime.keyed.key_encoding`), of type large_binary.
        key_schema: names and types of the key's columns, to decode ``keys``.
    """

    batch: pa.RecordBatch
    splits: npt.NDArray[np.int16]
    keys: pa.LargeBinaryArray
    key_schema: pa.Schema


class DecodedRows(NamedTuple):
    """Rows of a repartition topic, in the order of each partition.

    Attributes:
        batch: the rows, of one side if the topic has two; see
            `sluice.runtime.contracts.repartitioning.SIDE_COLUMN`.
        topic: its name.
        partitions: of shape (rows,): each row's partition.
        keys, key_schema: as of `KeyedRows`.
    """

    batch: pa.RecordBatch
    topic: str
    partitions: npt.NDArray[np.int32]
    keys: pa.LargeBinaryArray
    key_schema: pa.Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBy:
    """How the rows of a stream get their key. Picklable as far as the function is.

    Attributes:
        columns: that are the key; none: ``function`` returns it.
        function: a batch's keys, one for each row; a struct is a key of several columns.
        partitioned: the source's topic is partitioned by this key; else a repartition topic is.
        partitions: of the repartition topic; None: the default.
        decode: of a pipeline that reads a repartition topic: the rows, with their keys, in a batch
            of its source. None: the pipeline's rows get their keys here.
    """

    columns: tuple[str, ...] = ()
    function: Callable[[pa.RecordBatch], pa.Array] | None = None
    partitioned: bool = False
    partitions: int | None = None
    decode: Callable[[pa.RecordBatch], Iterator[DecodedRows]] | None = None


class StateTable(Protocol):
    """One declared state: key -> value in bytes, apart for each split. Executor, one thread.

    Changes are visible at once, and belong to the epoch under way: `TaskTables.rollback` takes all
    of them back.
    """

    def get(self, split: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key; None: there is none."""
        ...

    def put(self, split: int, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Set the values of different keys; None removes."""
        ...

    def scan(self, split: int, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """All entries whose key begins with ``prefix``, in any order. Not while they change."""
        ...


class TimedTable(Protocol):
    """State by time: (milliseconds, key) -> value; timers and open windows. As `StateTable`."""

    def get(self, split: int, times: Sequence[int], keys: Sequence[bytes]) -> list[bytes | None]:
        """The value at each (time, key)."""
        ...

    def put(
        self,
        split: int,
        times: Sequence[int],
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
    ) -> None:
        """Set the values at different (time, key); None removes."""
        ...

    def due(self, split: int, until_ms: int) -> Iterator[tuple[int, list[tuple[bytes, bytes]]]]:
        """The entries at each time <= ``until_ms``, earliest time first, keys in order of bytes.
        The caller removes them; it may add entries meanwhile, which are found in a later call."""
        ...

    def earliest_ms(self, split: int) -> int | None:
        """The earliest time; None: the table is empty."""
        ...


class TaskTables(Protocol):
    """All keyed state of one task. Executor, the task's thread."""

    def table(self, number: int) -> StateTable:
        """The state with this number (`sluice.runtime.model.state.keyed_state.StateTableInfo`)."""
        ...

    def timed_table(self, number: int) -> TimedTable:
        """The same, of a state by time."""
        ...

    def splits(self) -> Sequence[int]:
        """The ordinals of the task's splits, in order."""
        ...

    def ordinal(self, split: SplitKey) -> int:
        """A small number for a split of this task; it stays while the task has the split."""
        ...


class KeyedOperator(Protocol):
    """A stateful function of a pipeline, in one task attempt. Executor, the task's thread.

    It may keep rows until `at_barrier`: an epoch ends there, and only what `TaskTables` holds
    survives it.
    """

    def apply(self, rows: KeyedRows) -> Iterator[KeyedRows]:
        """Take in rows; yields output that is due already, in the order of each split."""
        ...

    def at_barrier(self, time: BarrierTime) -> Iterator[KeyedRows]:
        """End the epoch: write all state, fire timers, close windows; yields the rest of the
        output."""
        ...

    def rollback(self) -> None:
        """Forget the rows of the epoch under way. The state is taken back by the task."""
        ...

    def due(self) -> Due:
        """When its state wants the next barrier, also without records; called after
        `at_barrier`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """A declared state of a keyed function, before it has a number.

    Attributes:
        name, kind: see `sluice.runtime.model.state.keyed_state.StateTableInfo`.
        is_timed: it is a `TimedTable`.
        key_schema, value_schema: Arrow schemas as JSON (`sluice.runtime.state.codec.row_codec`).
    """

    name: str
    kind: str
    is_timed: bool = False
    key_schema: str = ""
    value_schema: str = ""


def _no_watermark(split: int) -> int | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorScope:
    """What a keyed function gets when a task opens it.

    Attributes:
        tables: of the task.
        numbers: of the function's tables, by name.
        count_late: notes that so many rows came after the watermark.
        write_late: writes late rows to a side topic, in the epoch's transaction.
        count: adds to a counter of the user, by name.
        now_ms: processing time of the rows that come now, by the driver's clock. In micro-batches
            it is that of their barrier.
        closed_ms: watermark of the barrier that last ended an epoch of a split, by its ordinal, in
            this attempt or before it: rows before it are late. None: no barrier had one yet.
        time_column: the column of the rows' event time; None: the source has no time.
    """

    tables: TaskTables
    numbers: Mapping[str, int]
    count_late: Callable[[int], None]
    write_late: Callable[[str, pa.RecordBatch], None]
    count: Callable[[str, int], None]
    now_ms: Callable[[], int]
    closed_ms: Callable[[int], int | None] = _no_watermark
    time_column: str | None = None


class KeyedFunction(Protocol):
    """The description of a keyed function: made in the driver, picklable, the same in all tasks."""

    @property
    def tables(self) -> Sequence[TableSpec]:
        """Its declared states. Types may depend on the rows: then a schema is "" until known."""
        ...

    @property
    def late_topic(self) -> str | None:
        """The topic that late rows are written to; None: they are only counted."""
        ...

    def open(self, scope: OperatorScope) -> KeyedOperator:
        """The operator of one task attempt."""
        ...
