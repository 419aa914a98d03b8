"""Running aggregates of each key: at a barrier, each changed key comes out once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sluice.runtime.contracts.keyed import (
    BarrierTime,
    Due,
    KeyedOperator,
    KeyedRows,
    OperatorScope,
    TableSpec,
)
from sluice.runtime.errors import ConfigError
from sluice.runtime.keyed.aggregates.accumulators import Accumulators, Groups, columns_of
from sluice.runtime.keyed.declarations import Aggregate
from sluice.runtime.keyed.key_encoding import decode
from sluice.runtime.keyed.missing_columns import require_columns
from sluice.runtime.keyed.operators.operator_memory import (
    MEMORY_TABLE,
    OperatorMemory,
    declared_as,
    present,
)
from sluice.runtime.state.codec.row_codec import RowCodec

__all__ = ["Aggregation", "RowBuffer", "merged", "output_of"]

_TABLE = TableSpec(name="aggregates", kind="aggregate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """A `KeyedFunction`: the aggregates of all rows of a key so far.

    Attributes:
        aggregates: by the name of their column.
    """

    aggregates: Mapping[str, Aggregate]

    @property
    def tables(self) -> Sequence[TableSpec]:
        """See `KeyedFunction`."""
        return declared_as(_TABLE, self.aggregates), MEMORY_TABLE

    @property
    def late_topic(self) -> str | None:
        """See `KeyedFunction`."""
        return None

    def open(self, scope: OperatorScope) -> KeyedOperator:
        """See `KeyedFunction`."""
        return _Operator(self.aggregates, scope)


class RowBuffer:
    """Rows that wait to be folded together: large chunks are faster.

    Args:
        columns: that are needed of a row; None: all.

    Attributes:
        rows: number of rows that wait.
    """

    LARGEST = 100_000
    """Rows to wait for."""

    def __init__(self, columns: Sequence[str] | None) -> None:
        self._columns = columns
        self._waiting: list[KeyedRows] = []
        self.rows = 0

    def add(self, rows: KeyedRows) -> bool:
        """Keep rows, or refuse them: their schema is another one than that of rows that wait.

        Raises:
            ConfigError: a column is missing.
        """
        every = self._columns is None
        needed = rows.batch if every else require_columns(rows.batch, self._columns or ())
        first = self._waiting[0] if self._waiting else None
        if first is not None and (
            first.batch.schema != needed.schema or first.key_schema != rows.key_schema
        ):
            return False
        self._waiting.append(
            KeyedRows(batch=needed, splits=rows.splits, keys=rows.keys, key_schema=rows.key_schema)
        )
        self.rows += needed.num_rows
        return True

    def take(self) -> KeyedRows | None:
        """All rows, in order; None: there are none."""
        waiting, self._waiting, self.rows = self._waiting, [], 0
        if len(waiting) <= 1:
            return waiting[0] if waiting else None
        return KeyedRows(
            batch=pa.concat_batches([rows.batch for rows in waiting]),
            splits=np.concatenate([rows.splits for rows in waiting]),
            keys=pa.concat_arrays([rows.keys for rows in waiting]),
            key_schema=waiting[0].key_schema,
        )

    def clear(self) -> None:
        """Forget them."""
        self.take()


class _Operator:
    """Executor, the task's thread."""

    def __init__(self, aggregates: Mapping[str, Aggregate], scope: OperatorScope) -> None:
        self._aggregates = aggregates
        self._table = scope.tables.table(scope.numbers[_TABLE.name])
        self._memory = OperatorMemory(scope)
        self._buffer = RowBuffer(columns_of(aggregates))
        self._begin()

    def apply(self, rows: KeyedRows) -> Iterator[KeyedRows]:
        if not self._buffer.add(rows):
            self._fold()
            self._buffer.add(rows)
        if self._buffer.rows >= RowBuffer.LARGEST:
            self._fold()
        yield from ()

    def at_barrier(self, time: BarrierTime) -> Iterator[KeyedRows]:
        self._fold()
        groups, folded, key_schema = self._groups, self._folded, self._key_schema
        self._begin()
        if folded is None or key_schema is None:
            return
        state = folded.state()
        for (split,), index in groups.of.items():
            keys = list(index)
            mine = state.take(pa.array(np.fromiter(index.values(), np.int64, len(keys))))
            total = self._accumulators(len(keys))
            codec = RowCodec(total.schema)
            merged(total, codec, self._table.get(split, keys), mine)
            self._table.put(split, keys, codec.encode(total.state()))
            yield output_of(split, keys, key_schema, {}, total.results())

    def rollback(self) -> None:
        self._buffer.clear()
        self._memory.rollback()
        self._begin()

    def due(self) -> Due:
        return Due()

    def _begin(self) -> None:
        self._groups = Groups()
        self._folded: Accumulators | None = None
        self._key_schema: pa.Schema | None = None

    def _fold(self) -> None:
        rows = self._buffer.take()
        if rows is None or not rows.batch.num_rows:
            return
        splits = present(rows.splits)
        self._key_schema, self._rows_schema = rows.key_schema, rows.batch.schema
        self._folded = self._folded or self._accumulators(0)
        types = rows.key_schema, rows.batch.schema, self._folded.schema
        self._memory.keep_schemas(splits, *types)
        place_of = np.searchsorted(splits, rows.splits)
        ids = self._groups.ids([(split,) for split in splits], place_of, rows.keys)
        self._folded.resize(self._groups.count)
        self._folded.add(ids, rows.batch)

    def _accumulators(self, groups: int) -> Accumulators:
        made = Accumulators(self._aggregates, self._rows_schema)
        made.resize(groups)
        return made


def merged(
    total: Accumulators, codec: RowCodec, stored: Sequence[bytes | None], later: pa.RecordBatch
) -> None:
    """Fold stored state and then ``later`` accumulators into ``total``, each row into its group."""
    has = [at for at, value in enumerate(stored) if value is not None]
    if has:
        earlier = codec.decode([value for value in stored if value is not None])
        total.combine(np.array(has, np.int64), earlier)
    total.combine(np.arange(len(stored)), later)


def output_of(
    split: int,
    keys: Sequence[bytes],
    key_schema: pa.Schema,
    added: Mapping[str, pa.Array],
    results: Mapping[str, pa.Array],
) -> KeyedRows:
    """The output of some keys of a split: ``added`` columns, the key's columns, the results.

    Raises:
        ConfigError: a result has the name of a column of the key.
    """
    encoded = pa.array(keys, pa.large_binary())
    names = [*added, *key_schema.names, *results]
    if len(set(names)) != len(names):
        raise ConfigError(
            "a result has the name of another column of the output",
            {"columns": ", ".join(names)},
            "Give the result another name.",
        )
    columns = [*added.values(), *decode(encoded, key_schema), *results.values()]
    return KeyedRows(
        batch=pa.RecordBatch.from_arrays(columns, names),
        splits=np.full(len(keys), split, np.int16),
        keys=encoded,
        key_schema=key_schema,
    )
