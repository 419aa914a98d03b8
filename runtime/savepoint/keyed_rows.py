"""Reads the rows of keyed state from the files of a checkpoint or savepoint. Reads only.

For commands: files of a local store are read where they are, those of another store are copied to
this host first.
"""

import contextlib
import json
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.runtime.errors import ConfigError, DamagedCheckpointError
from sluice.runtime.keyed.key_encoding import decode
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.model.state.keyed_state import KeyedState, StateTableInfo
from sluice.runtime.savepoint.savepoint import Savepoint
from sluice.runtime.state.codec.expiry import expires_ms, without_expired
from sluice.runtime.state.codec.row_codec import RowCodec
from sluice.runtime.state.codec.schema_text import expiry_clock, schema_from_json
from sluice.runtime.state.state_files import StateStore
from sluice.runtime.state.state_parts import PlacedPart, placed_parts
from sluice.runtime.state.state_rows import merged_rows
from sluice.runtime.storage.file_copies import in_parallel
from sluice.runtime.storage.local_fs import LocalFileSystem
from sluice.runtime.storage.task_files import LocalTaskFiles

__all__ = ["MEMORY", "first_rows", "local_state", "rows_of_split"]

MEMORY = "memory"
"""Kind of a table whose keys are no keys of rows: what an operator remembers of a split."""
_SCHEMAS_OF = b"schemas of "
_OF_ROWS = frozenset({"aggregate", "window"})


@contextlib.contextmanager
def local_state(savepoint: Savepoint, files: Collection[FileReference]) -> Iterator[StateStore]:
    """The files of keyed state on this host, while the block runs."""
    if isinstance(savepoint.fs, LocalFileSystem):
        yield StateStore(files=LocalTaskFiles(), root=str(savepoint.fs.host_path("")))
        return
    with tempfile.TemporaryDirectory(prefix="sluice-state-") as scratch:

        def export(file: FileReference) -> None:
            target = Path(scratch) / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            savepoint.fs.export(file.path, target)

        for _ in in_parallel(export, files):
            pass
        yield StateStore(files=LocalTaskFiles(), root=scratch)


def rows_of_split(store: StateStore, parts: Sequence[PlacedPart]) -> Iterator[pa.RecordBatch]:
    """The whole state of a split, in order of table, time and key, without removed entries."""
    streams = [store.rows(part.file, part.offset, part.length) for part in parts]
    return merged_rows(streams, drops={})


def first_rows(
    store: StateStore, state: KeyedState, tables: Collection[StateTableInfo], *, limit: int
) -> dict[int, list[dict[str, Any]]]:
    """Some rows of each of these tables as JSON values, by its number: split, time, key and value.

    Raises:
        DamagedCheckpointError: a file is missing or damaged.
    """
    found = {table.number: _Rows(limit) for table in tables}
    memories = {table.number: table.operator_id for table in state.tables if table.kind == MEMORY}
    schemas = {operator_id: _Schemas() for operator_id in memories.values()}
    for (_, topic, partition), parts in placed_parts(state).items():
        if all(rows.is_full for rows in found.values()):
            break
        for number, mine in _by_table(rows_of_split(store, parts)):
            if number in found and not found[number].is_full:
                found[number].add(f"{topic}-{partition}", mine)
            if number in memories:
                schemas[memories[number]].learn(mine)
    return {
        table.number: found[table.number].shown(table, schemas.get(table.operator_id, _Schemas()))
        for table in tables
    }


def _by_table(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    for batch in batches:
        for number in np.unique(batch["table"].to_numpy()).tolist():
            yield number, batch.filter(pc.equal(batch["table"], number))


class _Schemas:
    """The types of an operator's rows, as it remembers them
    (`sluice.runtime.keyed.operator_memory`)."""

    def __init__(self) -> None:
        self.key: pa.Schema | None = None
        self.value: pa.Schema | None = None
        """Of values whose types depend on the rows: aggregates and windows."""

    def learn(self, rows: pa.RecordBatch) -> None:
        for key, value in zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True):
            if key.startswith(_SCHEMAS_OF):
                known = [schema_from_json(text) for text in json.loads(value)]
                self.key = known[0] if known else None
                self.value = known[2] if len(known) > 2 else None


class _Rows:
    """The first rows of one table."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._splits: list[str] = []
        self._batches: list[pa.RecordBatch] = []

    @property
    def is_full(self) -> bool:
        return len(self._splits) >= self._limit

    def add(self, split: str, rows: pa.RecordBatch) -> None:
        rows = rows.slice(0, self._limit - len(self._splits))
        self._splits += [split] * rows.num_rows
        self._batches.append(rows)

    def shown(self, table: StateTableInfo, schemas: _Schemas) -> list[dict[str, Any]]:
        """The rows of the table as JSON values; bytes whose schema is not known as text."""
        if not self._splits:
            return []
        rows = pa.concat_batches(self._batches)
        values = rows["value"].to_pylist()
        expires: list[Any] = [None] * len(values)
        if " ttl by " in table.kind or expiry_clock(table.value_schema) is not None:
            expires = [_moment(expires_ms(value)) for value in values]
            values = without_expired(values, None)
        columns: dict[str, list[Any]] = {
            "split": self._splits,
            "time": [_moment(each) for each in rows["time"].to_pylist()],
            "key": _decoded_keys(rows["key"].to_pylist(), table, schemas),
            "value": _decoded_values(values, table, schemas),
            "expires": expires,
        }
        shown = [name for name, column in columns.items() if any(v is not None for v in column)]
        table_rows = zip(*(columns[name] for name in shown), strict=True)
        return [dict(zip(shown, row, strict=True)) for row in table_rows]


def _decoded_keys(keys: list[bytes], table: StateTableInfo, schemas: _Schemas) -> list[Any]:
    schema = schema_from_json(table.key_schema) if table.key_schema else schemas.key
    if schema is not None and table.kind != MEMORY:
        with contextlib.suppress(DamagedCheckpointError):
            columns = decode(pa.array(keys, pa.large_binary()), schema)
            return _as_json(pa.RecordBatch.from_arrays(columns, schema=schema))
    return [_text(key) for key in keys]


def _decoded_values(values: list[bytes], table: StateTableInfo, schemas: _Schemas) -> list[Any]:
    schema = schema_from_json(table.value_schema) if table.value_schema else None
    if table.kind.partition(" ")[0] in _OF_ROWS:
        schema = schema or schemas.value
    if schema is not None:
        with contextlib.suppress(DamagedCheckpointError, ConfigError):
            return _as_json(RowCodec(schema).decode(values))
    return [_text(value) or None for value in values]


def _as_json(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    return [{name: _plain(value) for name, value in row.items()} for row in rows.to_pylist()]


def _plain(value: Any) -> Any:  # noqa: ANN401 - any value of Arrow
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return _text(value)
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _text(data: bytes) -> str:
    """UTF-8 text that can be printed, else ``0x`` and hex."""
    with contextlib.suppress(UnicodeDecodeError):
        text = data.decode()
        if text.isprintable():
            return text
    return f"0x{data.hex().upper()}"


def _moment(time_ms: int | None) -> str | int | None:
    """As text in UTC, if it is the time of a calendar."""
    if time_ms is None:
        return None
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return time_ms
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
