"""State files of a savepoint or checkpoint with rows that a test chooses."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from sluice.runtime.model.splits import SplitKey
from sluice.runtime.model.state.keyed_state import (
    KeyedState,
    SplitState,
    StatePart,
    StateTableInfo,
)
from sluice.runtime.state.state_files import StateStore
from sluice.runtime.state.state_rows import ROW_SCHEMA
from sluice.runtime.storage.task_files import LocalTaskFiles

__all__ = ["Row", "written_state"]

Row = tuple[int, int | None, bytes, bytes | None]
"""Number of the table, time, key and value."""


def written_state(
    root: Path,
    parts: Sequence[Mapping[SplitKey, Sequence[Row]]],
    *,
    tables: Sequence[StateTableInfo] = (),
    region: str = "r0",
    **partitioning: Any,
) -> KeyedState:
    """Write a file for each of the parts, oldest first, with a section for each split.

    Args:
        root: of the savepoint or checkpoint directory.
        partitioning: ``max_parallelism`` and ``partitions``.
    """
    store = StateStore(files=LocalTaskFiles(), root=str(root))
    files = []
    chains: dict[SplitKey, list[StatePart]] = {}
    for at, sections in enumerate(parts):
        writer = store.create(f"state/{region}/0-{at}-{at:08x}.changes")
        for split, rows in sections.items():
            offset, length = writer.write_section(_sorted(rows))
            part = StatePart(file=at, offset=offset, length=length, is_base=at == 0)
            chains.setdefault(split, []).append(part)
        files.append(writer.finish())
    return KeyedState(
        tables=tuple(tables),
        files=tuple(files),
        splits=tuple(
            SplitState(source_id=key[0], topic=key[1], partition=key[2], parts=tuple(chain))
            for key, chain in chains.items()
        ),
        **partitioning,
    )


def _sorted(rows: Sequence[Row]) -> Iterator[pa.RecordBatch]:
    names = ("table", "time", "key", "value")
    ordered = sorted(rows, key=lambda row: (row[0], row[1] or 0, row[2]))
    dicts = [dict(zip(names, row, strict=True)) for row in ordered]
    return iter([pa.RecordBatch.from_pylist(dicts, schema=ROW_SCHEMA)])
