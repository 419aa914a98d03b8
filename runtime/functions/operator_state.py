"""Operator state: a bounded list of rows that a function of ``map_batches`` keeps in its region.

The names are Flink's: a list state of an operator, with one of three redistributions. Without
Spark and without I/O.
"""

import io
from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, overload

import pyarrow as pa

from sluice.runtime.errors import ConfigError, DamagedCheckpointError, UnsupportedFormatError
from sluice.runtime.model.checkpoint_record import Redistribution, StateEntry
from sluice.runtime.model.spelling import choice_of

__all__ = [
    "MOST_BYTES",
    "OPERATOR_LIST_KIND",
    "OPERATOR_LIST_VERSION",
    "OperatorState",
    "Row",
    "StateList",
    "dealt",
    "decoded",
    "described_list",
    "encoded",
    "state_entry",
]

OPERATOR_LIST_KIND = "operator-list"
"""`StateEntry.kind` of a list of rows: an Arrow IPC stream, compressed with zstd."""

MOST_BYTES = 8 * 1024 * 1024
"""Bound of all lists of a region: each checkpoint's record holds them whole."""

OPERATOR_LIST_VERSION = 1
_WORTH_ZSTD = 1_000  # bytes; less is not smaller compressed
_STATE_NAME = "list"
_REDISTRIBUTIONS = (Redistribution.SPLIT, Redistribution.UNION, Redistribution.BROADCAST)

Row = Mapping[str, Any]
"""A row by column; a value is Python's, as ``pyarrow.Table.to_pylist`` gives it."""


@dataclass(frozen=True, slots=True)
class OperatorState:
    """Declares the operator state of a function: ``map_batches(function, state=OperatorState(…))``.

    Args:
        schema: of the rows.
        redistribution: the rows after a start with other regions. ``split``: each row is in one
            region. ``union``: every region gets the rows of all regions. ``broadcast``: every
            region gets the list of one region; use it if the lists are equal.
    Raises:
        ConfigError: there is no such redistribution, or ``schema`` is no Arrow schema.
    """

    schema: pa.Schema
    redistribution: str = "split"

    def __post_init__(self) -> None:
        if not isinstance(self.schema, pa.Schema) or not self.schema.names:
            raise ConfigError(
                "operator state needs an Arrow schema with columns",
                {"given": repr(self.schema)[:100]},
                "Pass a pyarrow.Schema: pa.schema([('name', pa.string()), ('n', pa.int64())]).",
            )
        _ = self.mode

    @property
    def mode(self) -> Redistribution:
        """The redistribution as a value."""
        found = choice_of(
            Redistribution,
            self.redistribution,
            setting="redistribution",
            remedy="Use split, union or broadcast.",
        )
        if found not in _REDISTRIBUTIONS:
            raise ConfigError(
                "operator state has no redistribution by key",
                {"redistribution": self.redistribution},
                "Use split, union or broadcast. State by key: stream.key_by(…).process(…).",
            )
        return found


class StateList(MutableSequence[dict[str, Any]]):
    """``ctx.state``: the rows of one region, as a list of dicts. Executor, the task's thread.

    Changes belong to the epoch under way. Its checkpoint saves them together with the output, and a
    replay of the epoch begins with the list as it was before.

    Args:
        schema: of the rows.
        payload: the rows at the beginning; None: the list is empty.
    """

    def __init__(self, schema: pa.Schema, payload: bytes | None = None) -> None:
        self._schema = schema
        self._saved = payload
        self._rows: list[dict[str, Any]] = []
        self._is_used = False
        self.rollback()

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""
        return self._schema

    def replace(self, rows: Iterable[Row] | pa.Table | pa.RecordBatch) -> None:
        """Put these rows in place of all rows."""
        self._used()[:] = _as_rows(rows)

    def to_table(self) -> pa.Table:
        """The rows as a table of the state's schema."""
        return _table(self._used(), self._schema)

    def insert(self, index: int, value: Row) -> None:
        """Insert a row before ``index``."""
        self._used().insert(index, dict(value))

    def extend(self, values: Iterable[Row] | pa.Table | pa.RecordBatch) -> None:
        """Append these rows."""
        self._used().extend(_as_rows(values))

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> "list[dict[str, Any]]": ...
    def __getitem__(self, index: int | slice) -> "dict[str, Any] | list[dict[str, Any]]":
        return self._used()[index]

    @overload
    def __setitem__(self, index: int, value: Row) -> None: ...
    @overload
    def __setitem__(self, index: slice, value: Iterable[Row]) -> None: ...
    def __setitem__(self, index: int | slice, value: Any) -> None:
        if isinstance(index, slice):
            self._used()[index] = _as_rows(value)
        else:
            self._used()[index] = dict(value)

    def __delitem__(self, index: int | slice) -> None:
        del self._used()[index]

    def __len__(self) -> int:
        return len(self._used())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._used())

    def __repr__(self) -> str:
        return f"StateList({len(self._rows)} rows, {self._schema.names})"

    def rollback(self) -> None:
        """Take back the changes of the epoch under way."""
        self._rows = [] if self._saved is None else _rows_in(self._saved)
        self._is_used = False

    def end_epoch(self) -> bytes | None:
        """Keep the changes of the epoch; the new payload, or None: the rows have not changed.

        Raises:
            ConfigError: the rows do not match the schema.
        """
        if not self._is_used:
            return None
        payload = encoded(_table(self._rows, self._schema))
        self._is_used = False
        if payload == self._saved or (self._saved is None and not self._rows):
            return None
        self._saved = payload
        return payload

    def _used(self) -> list[dict[str, Any]]:
        # A read counts, too: the function may change the row that it got.
        self._is_used = True
        return self._rows


def state_entry(payload: bytes, *, operator_id: str, redistribution: Redistribution) -> StateEntry:
    """The entry of a region's record for such a list."""
    return StateEntry(
        operator_id=operator_id,
        state_name=_STATE_NAME,
        kind=OPERATOR_LIST_KIND,
        version=OPERATOR_LIST_VERSION,
        redistribution=redistribution,
        payload=payload,
    )


def encoded(rows: pa.Table) -> bytes:
    """The payload of these rows; equal rows give equal bytes."""
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression="zstd" if rows.nbytes > _WORTH_ZSTD else None)
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows.combine_chunks())
    return sink.getvalue()


def decoded(entry: StateEntry) -> pa.Table:
    """The rows of an entry.

    Raises:
        UnsupportedFormatError: a later version, or another kind.
        DamagedCheckpointError: it cannot be read.
    """
    where = {"operator_id": entry.operator_id, "kind": entry.kind, "version": entry.version}
    if entry.kind != OPERATOR_LIST_KIND or not 1 <= entry.version <= OPERATOR_LIST_VERSION:
        raise UnsupportedFormatError(
            "this version does not know such an operator state",
            where,
            "Read it with the version that wrote it.",
        )
    try:
        return pa.ipc.open_stream(entry.payload).read_all()
    except (pa.ArrowException, OSError, ValueError) as err:
        raise DamagedCheckpointError(
            "an operator state cannot be read",
            where | {"error": str(err)},
            "Restore from another checkpoint (sluice checkpoint list), and report this one.",
        ) from err


def described_list(entry: StateEntry) -> dict[str, object]:
    """The list for people."""
    rows = decoded(entry)
    return {"rows": rows.num_rows, "columns": {f.name: str(f.type) for f in rows.schema}}


def _rows_in(payload: bytes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.ipc.open_stream(payload).read_all().to_pylist()
    return rows


def _as_rows(rows: Iterable[Row] | pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    if isinstance(rows, pa.Table | pa.RecordBatch):
        made: list[dict[str, Any]] = rows.to_pylist()
        return made
    return [dict(row) for row in rows]


def _table(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    unknown = sorted({name for row in rows for name in row} - set(schema.names))
    try:
        if not unknown:
            return pa.Table.from_pylist(list(rows), schema=schema)
        error = "columns that the schema lacks"
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as err:
        error = str(err)
    raise ConfigError(
        "rows of an operator state do not match its schema",
        {"columns": ",".join(schema.names), "unknown": ",".join(unknown), "error": error},
        "Append dicts with the columns and types of OperatorState(schema), or change the schema.",
    )


def dealt(lists: Sequence[pa.Table], mode: Redistribution, regions: int) -> list[pa.Table]:
    """The lists of ``regions`` regions, from those of the regions before, in their order. Pure.

    Rows keep their order. The rules are those of Flink's
    ``RoundRobinOperatorStateRepartitioner``: ``split`` cuts the joined list into parts of equal
    length, of which the first ones may have a row more; ``union`` gives every region the joined
    list; with ``broadcast``, region i gets the list of region i modulo the regions before.

    Args:
        lists: of one operator, at least one.
        regions: > 0.
    """
    if mode is Redistribution.BROADCAST:
        return [lists[at % len(lists)] for at in range(regions)]
    joined = pa.concat_tables(lists, promote_options="permissive")
    if mode is Redistribution.UNION:
        return [joined] * regions
    least, longer = divmod(joined.num_rows, regions)
    lengths = [least + (at < longer) for at in range(regions)]
    return [joined.slice(sum(lengths[:at]), length) for at, length in enumerate(lengths)]
