"""Runs one keyed function on tables in memory: rows in any batches, barriers, rollbacks, restarts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.runtime.contracts.keyed import BarrierTime, KeyedFunction, KeyedRows, OperatorScope
from sluice.runtime.errors import ConfigError
from sluice.runtime.keyed.key_encoding import encode, key_schema
from sluice.runtime.state.memory_backend import MemoryBackend
from sluice.runtime.state.task_state import TaskState

__all__ = ["OperatorBed"]

Row = Mapping[str, Any]


class OperatorBed:
    """One task attempt with splits 0 to n - 1.

    Attributes:
        late: number of late rows.
        late_rows: those that were written to a topic.
        refusal: raised for rows that are written to a topic.
        now_ms: processing time: that of the last barrier, until a test sets a later one.
    """

    def __init__(
        self, function: KeyedFunction, schema: pa.Schema, *, key: str = "key", splits: int = 2
    ) -> None:
        self.function, self.schema, self.key = function, schema, key
        self.late, self.late_rows, self.now_ms = 0, [], 0
        self.late_rows: list[Row] = []
        self.refusal: ConfigError | None = None
        self.state = TaskState(
            MemoryBackend(memory_bytes=1 << 30), load=lambda *_: None, overlay_mib=64
        )
        for number in range(splits):
            self.state.add_split(("source", "topic", number), None)
        self.restart()

    def restart(self) -> None:
        """A new attempt begins with the state of the last barrier."""
        self.state.rollback()
        numbers = {table.name: at for at, table in enumerate(self.function.tables)}

        def count_late(rows: int) -> None:
            self.late += rows

        def write_late(topic: str, rows: pa.RecordBatch) -> None:
            if self.refusal is not None:
                raise self.refusal
            self.late_rows += rows.to_pylist()

        self.operator = self.function.open(
            OperatorScope(
                tables=self.state,
                numbers=numbers,
                count_late=count_late,
                write_late=write_late,
                count=lambda *_: None,
                now_ms=lambda: self.now_ms,
            )
        )

    def rollback(self) -> None:
        """The epoch under way is read again."""
        self.operator.rollback()
        self.state.rollback()

    def rows(
        self, rows: Sequence[Row], *, schema: pa.Schema | None = None, split: str = "split"
    ) -> KeyedRows:
        """Rows as an operator gets them; the field ``split`` says whose they are, by default 0."""
        kept = [{name: value for name, value in row.items() if name != split} for row in rows]
        batch = pa.RecordBatch.from_pylist(kept, schema=schema or self.schema)
        keys = batch.column(self.key)
        return KeyedRows(
            batch=batch,
            splits=np.array([row.get(split, 0) for row in rows], np.int16),
            keys=encode(keys),
            key_schema=key_schema(keys, [self.key]),
        )

    def apply(self, *batches: Sequence[Row], schema: pa.Schema | None = None) -> list[Row]:
        """The output for batches."""
        made = [
            out for rows in batches for out in self.operator.apply(self.rows(rows, schema=schema))
        ]
        return _listed(made)

    def barrier(
        self, watermark_ms: int | None = None, *, now_ms: int | None = None, is_end: bool = False
    ) -> list[Row]:
        """The output of a barrier; its epoch is committed."""
        self.now_ms = self.now_ms + 1_000 if now_ms is None else now_ms
        time = BarrierTime(watermark_ms=watermark_ms, now_ms=self.now_ms, is_end=is_end)
        made = _listed(list(self.operator.at_barrier(time)))
        self.state.end_epoch()
        return made


def _listed(made: Sequence[KeyedRows]) -> list[Row]:
    for rows in made:
        assert len(rows.splits) == len(rows.keys) == rows.batch.num_rows
    return [row for rows in made for row in rows.batch.to_pylist()]
