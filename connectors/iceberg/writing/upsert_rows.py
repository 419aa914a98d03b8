"""Keeps the last row of each key. Pure."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from sluice.connectors.iceberg.table.writing_plan import WritingPlan
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.arrow_leaves import column_index

__all__ = ["UpsertRows", "last_of_each_key", "require_key", "upsert_key"]


class UpsertRows:
    """Rows that wait for the end of a run. Python worker, one thread.

    Args:
        key: names of the key's columns.
        most_bytes: how much may wait.
    """

    def __init__(self, key: Sequence[str], *, most_bytes: int) -> None:
        self.key = tuple(key)
        self._most_bytes = most_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, rows: pa.RecordBatch) -> bool:
        """Keep rows; returns whether the run must end: too many keys wait."""
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        if self._bytes < self._most_bytes:
            return False
        last = self.take()
        self._waiting, self._bytes = [last], last.nbytes
        return self._bytes >= self._most_bytes // 2

    def take(self) -> pa.RecordBatch:
        """The last row of each key, in the order of arrival; nothing waits after that. There must
        be rows."""
        rows = pa.Table.from_batches(self._waiting).combine_chunks().to_batches()
        self._waiting, self._bytes = [], 0
        return last_of_each_key(pa.concat_batches(rows), self.key)

    def __bool__(self) -> bool:
        return bool(self._waiting)


def upsert_key(plan: WritingPlan) -> Sequence[str]:
    """Names of the key's columns.

    Raises:
        ConfigError: the table has lost one; another of its name has another id.
    """
    names = {field.field_id: field.name for field in plan.schema.fields}
    lost = [field_id for field_id in plan.equality_ids if field_id not in names]
    if lost:
        raise ConfigError(
            "the table has lost a column of the upsert's key",
            {"table": plan.table, "field-id": lost, "columns": ",".join(names.values())},
            "Add it again if the table lacks it: the next attempt takes its new id.",
        )
    return [name for field_id, name in names.items() if field_id in plan.equality_ids]


def require_key(rows: pa.Schema, key: Sequence[str], *, table: str) -> None:
    """ConfigError if rows lack a column of the key: all of them would be one row."""
    for name in key:
        if column_index(rows, name) is None:
            raise ConfigError(
                "rows lack a column of the upsert's key",
                {"table": table, "column": name, "columns": ",".join(rows.names)},
                "Add the column in a function before the sink, in this very spelling; its value "
                "may be null.",
            )


def last_of_each_key(rows: pa.RecordBatch, key: Sequence[str]) -> pa.RecordBatch:
    """The last row of each key in their order; nulls are equal, as in Iceberg's deletes."""
    columns = {f"key{i}": _plain(rows.column(name)) for i, name in enumerate(key)}
    numbered = pa.table({**columns, "row": pa.array(np.arange(rows.num_rows))})
    last = numbered.group_by(list(columns)).aggregate([("row", "max")])["row_max"]
    if len(last) == rows.num_rows:
        return rows
    return rows.take(pa.array(np.sort(last.to_numpy())))


def _plain(column: pa.Array) -> pa.Array:
    return column.storage if isinstance(column, pa.ExtensionArray) else column
