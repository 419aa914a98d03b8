"""Runs a real keyed operator over rows that a test plans, through batches, rollbacks and restarts."""

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from sluice.runtime.contracts.keyed import (
    BarrierTime,
    KeyedFunction,
    KeyedOperator,
    KeyedRows,
    OperatorScope,
)
from sluice.runtime.keyed.key_encoding import encode, key_schema
from tests.kit.keyed.plain_tables import PlainTables
from tests.kit.keyed.reference_windows import Timed

__all__ = ["SPLITS", "Epoch", "OperatorRun", "epochs", "timed_rows"]

SPLITS = (("s", "t", 0), ("s", "t", 1))
_KEYS = (b"a", b"b", None)
_SCHEMA = pa.schema({"key": pa.binary(), "at": pa.timestamp("ms", "UTC"), "value": pa.int64()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """What happens up to a barrier.

    Attributes:
        rows: in order.
        cuts: after how many rows a batch ends.
        attempts: how many rows an attempt reads before it is rolled back; the last one is whole.
        restarts: a new operator begins from the state, after the barrier.
    """

    rows: Sequence[Any]
    cuts: frozenset[int]
    attempts: Sequence[int]
    time: BarrierTime
    restarts: bool


def timed_rows(longest_ms: int) -> st.SearchStrategy[Timed]:
    """Few splits, keys and times, so that they meet; some rows have no time, and no key."""
    times = st.one_of(st.none(), st.integers(-5, longest_ms), st.integers(-5, longest_ms))
    return st.builds(
        Timed,
        st.tuples(st.integers(0, len(SPLITS) - 1), st.sampled_from(_KEYS)),
        times,
        st.one_of(st.none(), st.integers(-9, 9)),
    )


@st.composite
def epochs(draw: st.DrawFn, rows: st.SearchStrategy[Any], longest_ms: int) -> list[Epoch]:
    """Epochs whose times never go back; the last one may end the input."""
    found = []
    watermark: int | None = None
    now = 0
    count = draw(st.integers(1, 6))
    for number in range(count):
        given = draw(st.lists(rows, max_size=12))
        step = draw(st.one_of(st.none(), st.integers(0, longest_ms // 2)))
        if step is not None:
            watermark = step if watermark is None else watermark + step
        now += draw(st.integers(0, longest_ms // 2))
        is_end = number == count - 1 and draw(st.booleans())
        places = st.integers(0, len(given))
        found.append(
            Epoch(
                rows=given,
                cuts=draw(st.frozensets(places, max_size=3)),
                attempts=draw(st.lists(places, max_size=2)),
                time=BarrierTime(watermark_ms=watermark, now_ms=now, is_end=is_end),
                restarts=draw(st.booleans()),
            )
        )
    return found


@dataclass(slots=True)
class OperatorRun:
    """A real operator over tables that are plain dicts.

    Args:
        function: of the operator.
        batch_of: the batch of rows that follow one another, or several.

    Attributes:
        late: values of the late rows of all epochs that were not rolled back.
        late_count: their number.
        now_ms: processing time: that of the last barrier.
    """

    function: KeyedFunction
    batches_of: Callable[[Sequence[Any]], Iterator[tuple[Sequence[Timed], pa.RecordBatch]]]
    late: list[Mapping[str, Any]] = field(default_factory=list)
    late_count: int = 0
    now_ms: int = 0
    tables: PlainTables = field(default_factory=lambda: PlainTables(SPLITS))
    _operator: KeyedOperator | None = None

    def epoch(self, given: Epoch) -> list[Mapping[str, Any]]:
        """The output of the attempt that ends the epoch, each row with its split."""
        operator = self._operator or self._open()
        for until in given.attempts:
            late = copy.copy(self.late), self.late_count
            list(self._applied(operator, given, until))
            operator.rollback()
            self.tables.rollback()
            self.late, self.late_count = late
        made = list(self._applied(operator, given, len(given.rows)))
        made += [row for out in operator.at_barrier(given.time) for row in _listed(out)]
        self.tables.end_epoch()
        self.now_ms = given.time.now_ms
        operator.due()
        if given.restarts:
            self._operator = None
        return made

    def _open(self) -> KeyedOperator:
        numbers = {spec.name: number for number, spec in enumerate(self.function.tables)}
        scope = OperatorScope(
            tables=self.tables,
            numbers=numbers,
            count_late=self._count_late,
            write_late=lambda _, rows: self.late.extend(rows.to_pylist()),
            count=lambda name, number: None,
            now_ms=lambda: self.now_ms,
        )
        self._operator = self.function.open(scope)
        return self._operator

    def _count_late(self, rows: int) -> None:
        self.late_count += rows

    def _applied(
        self, operator: KeyedOperator, given: Epoch, until: int
    ) -> Iterator[Mapping[str, Any]]:
        rows = given.rows[:until]
        bounds = sorted({0, len(rows), *(cut for cut in given.cuts if cut < len(rows))})
        for start, end in itertools.pairwise(bounds):
            for timed, batch in self.batches_of(rows[start:end]):
                keys = batch.column("key")
                taken = KeyedRows(
                    batch=batch,
                    splits=np.array([row.key[0] for row in timed], np.int16),
                    keys=encode(keys),
                    key_schema=key_schema(keys, ["key"]),
                )
                for out in operator.apply(taken):
                    yield from _listed(out)


def batch_of(rows: Sequence[Timed]) -> pa.RecordBatch:
    """Rows as a source returns them."""
    columns = {
        "key": [row.key[1] for row in rows],
        "at": [row.time_ms for row in rows],
        "value": [row.value for row in rows],
    }
    return pa.RecordBatch.from_pydict(columns, schema=_SCHEMA)


def one_batch(rows: Sequence[Timed]) -> Iterator[tuple[Sequence[Timed], pa.RecordBatch]]:
    """For `OperatorRun`, where all rows are of one kind."""
    if rows:
        yield rows, batch_of(rows)


def _listed(out: KeyedRows) -> list[Mapping[str, Any]]:
    assert out.batch.num_rows == len(out.splits) == len(out.keys)
    found = out.batch.to_pylist()
    return [{"split": split, **row} for split, row in zip(out.splits.tolist(), found, strict=True)]
