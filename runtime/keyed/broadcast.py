"""The table of a broadcast stream: the latest row of each key.

The region of the stream keeps it as keyed state, so that it is saved, restored and deleted as all
keyed state. Tasks of other regions read it from the files that a decided checkpoint names.

In the state, an entry of a row has the row's encoded key; its value is the digest of the row's
schema and the row. An entry of a schema has the key 0xFF and the digest. So rows of an older
schema stay readable, and a table needs no declared schema.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.runtime.contracts.keyed import (
    BarrierTime,
    Due,
    KeyedFunction,
    KeyedOperator,
    KeyedRows,
    OperatorScope,
    TableSpec,
)
from sluice.runtime.errors import ConfigError, DamagedCheckpointError
from sluice.runtime.model.state.broadcast_version import BroadcastVersion
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.state.codec.row_codec import RowCodec, schema_from_json, schema_to_json

__all__ = ["LatestRows", "ReadSection", "broadcast_table"]

ReadSection = Callable[[FileReference, int, int], Iterator[pa.RecordBatch]]
"""The rows of a section of a state file: `sluice.runtime.state.state_files.StateStore.rows`."""

_TABLE = "latest"
_SCHEMA_KEY = b"\xff"  # no encoded key begins with it
_DIGEST_BYTES = 8
_VALUE = "value"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestRows(KeyedFunction):
    """Keeps the latest row of each key, and has no output. Picklable.

    A row removes its key if its column ``value`` is null; without such a column, if all columns
    except those of the key are.

    Attributes:
        columns: of the key.
    """

    columns: tuple[str, ...]

    @property
    def tables(self) -> Sequence[TableSpec]:
        """See `KeyedFunction`: rows bring their schemas."""
        return (TableSpec(name=_TABLE, kind="broadcast"),)

    @property
    def late_topic(self) -> str | None:
        """See `KeyedFunction`."""
        return None

    def open(self, scope: OperatorScope) -> KeyedOperator:
        """See `KeyedFunction`."""
        return _LatestRowsOperator(self.columns, scope)


class _LatestRowsOperator(KeyedOperator):
    def __init__(self, columns: tuple[str, ...], scope: OperatorScope) -> None:
        self._columns = columns
        self._table = scope.tables.table(scope.numbers[_TABLE])
        self._codec: RowCodec | None = None

    def apply(self, rows: KeyedRows) -> Iterator[KeyedRows]:
        for split in np.unique(rows.splits).tolist():
            mine = pa.array(np.flatnonzero(rows.splits == split))
            self._put(split, rows.batch.take(mine), rows.keys.take(mine).to_pylist())
        yield from ()

    def _put(self, split: int, batch: pa.RecordBatch, keys: list[bytes]) -> None:
        latest = {key: at for at, key in enumerate(keys)}  # the last one stays
        batch = batch.take(pa.array(latest.values(), pa.int64()))
        if self._codec is None or self._codec.schema != batch.schema:
            self._codec = RowCodec(batch.schema.remove_metadata())
        schema = schema_to_json(self._codec.schema).encode()
        digest = hashlib.sha256(schema).digest()[:_DIGEST_BYTES]
        encoded = self._codec.encode(batch.replace_schema_metadata(None))
        removed = _removed(batch, self._columns)
        values = [
            None if gone else digest + row for gone, row in zip(removed, encoded, strict=True)
        ]
        self._table.put(split, [*latest, _SCHEMA_KEY + digest], [*values, schema])

    def at_barrier(self, time: BarrierTime) -> Iterator[KeyedRows]:
        yield from ()

    def rollback(self) -> None:
        """See `KeyedOperator`: all rows are in the state already."""

    def due(self) -> Due:
        return Due()


def _removed(batch: pa.RecordBatch, columns: tuple[str, ...]) -> list[bool]:
    """Whether each row removes its key."""
    names = batch.schema.names
    others = [_VALUE] if _VALUE in names else [name for name in names if name not in columns]
    if not others:
        raise ConfigError(
            "rows of a broadcast stream have no column beside the key",
            {"columns": ",".join(names)},
            "Let the functions before broadcast(key=…) return the rows' values, too.",
        )
    found = pa.array(np.ones(batch.num_rows, np.bool_))
    for name in others:
        found = pc.and_(found, pc.is_null(batch.column(name)))
    removed: list[bool] = found.to_pylist()
    return removed


def broadcast_table(version: BroadcastVersion, read: ReadSection) -> pa.Table:
    """The table of a version: a row for each key, in the order of encoded keys. A key of several
    partitions has the row of the last one.

    Raises:
        DamagedCheckpointError: a file is not as the checkpoint names it.
        StorageUnreachableError: the store does not answer.
    """
    state = version.state
    numbers = [] if state is None else [t.number for t in state.tables if _is_of(t, version)]
    found: dict[bytes, bytes] = {}
    for split in () if state is None else sorted(state.splits, key=lambda each: each.key):
        mine: dict[bytes, bytes] = {}
        for part in split.parts:
            assert state is not None
            for batch in read(state.files[part.file], part.offset, part.length):
                _override(mine, batch, numbers)
        found |= mine
    return _decoded(found, version)


def _is_of(table: object, version: BroadcastVersion) -> bool:
    return getattr(table, "operator_id", None) == version.operator_id


def _override(rows: dict[bytes, bytes], batch: pa.RecordBatch, numbers: Sequence[int]) -> None:
    is_mine = pc.is_in(batch.column("table"), pa.array(numbers, pa.int32()))
    batch = batch.filter(is_mine)
    for key, value in zip(
        batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True
    ):
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value


def _decoded(found: dict[bytes, bytes], version: BroadcastVersion) -> pa.Table:
    schemas = {key[1:]: value for key, value in found.items() if key.startswith(_SCHEMA_KEY)}
    rows: dict[bytes, list[bytes]] = {digest: [] for digest in sorted(schemas)}
    places: dict[bytes, list[int]] = {digest: [] for digest in rows}
    keys = sorted(key for key in found if not key.startswith(_SCHEMA_KEY))
    for at, key in enumerate(keys):
        digest, row = found[key][:_DIGEST_BYTES], found[key][_DIGEST_BYTES:]
        if digest not in rows:
            raise DamagedCheckpointError(
                "a broadcast table lacks the schema of a row",
                {"operator_id": version.operator_id},
                "Restore from another checkpoint (sluice checkpoint list), and report this one.",
            )
        rows[digest].append(row)
        places[digest].append(at)
    parts = [
        pa.Table.from_batches([RowCodec(schema_from_json(schemas[d].decode())).decode(rows[d])])
        for d in rows
    ]
    if not parts:
        return pa.table({})
    table = _together(parts, version)
    order = np.argsort([at for digest in rows for at in places[digest]], kind="stable")
    return table.take(pa.array(order, pa.int64())).combine_chunks()


def _together(parts: Sequence[pa.Table], version: BroadcastVersion) -> pa.Table:
    """Rows of several schemas. A schema without rows adds its columns, as far as they fit.

    Raises:
        ConfigError: a column has rows of types that do not fit.
    """
    try:
        return pa.concat_tables(parts, promote_options="permissive")
    except pa.ArrowException as err:
        used = [part for part in parts if part.num_rows]
        if 0 < len(used) < len(parts):
            return _together(used, version)
        shown = [", ".join(f"{f.name}: {f.type}" for f in part.schema) for part in parts]
        raise ConfigError(
            "rows of a broadcast stream have columns of different types",
            {"operator_id": version.operator_id, "schemas": " | ".join(shown)},
            "Cast the columns in a function before broadcast(key=…), and give it another uid.",
        ) from err
