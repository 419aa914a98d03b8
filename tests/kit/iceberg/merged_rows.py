"""Rows of a table with equality deletes, which pyiceberg's scans refuse.

Applies the rule of the table specification, "Scan planning": an equality delete applies to a data
file of a smaller data sequence number, with the same partition spec and values, or to all partitions
if the delete's spec is unpartitioned. A null in a delete's column matches null.
"""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table

__all__ = ["live_files", "merged_rows"]


def live_files(table: Table) -> list[tuple[int, DataFile]]:
    """Data and delete files of the current snapshot with their data sequence numbers."""
    snapshot = table.current_snapshot()
    found = []
    for manifest in [] if snapshot is None else snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io):
            assert entry.sequence_number is not None
            assert manifest.min_sequence_number <= entry.sequence_number <= manifest.sequence_number
            found.append((entry.sequence_number, entry.data_file))
    return found


def merged_rows(table: Table) -> list[dict[str, Any]]:
    """Rows by name of column, in no order."""
    files = live_files(table)
    deletes = [
        (number, file, _keys(table, file))
        for number, file in files
        if file.content is DataFileContent.EQUALITY_DELETES
    ]
    rows = []
    for number, file in files:
        if file.content is not DataFileContent.DATA:
            continue
        applied = [
            (names, keys)
            for of_delete, delete, (names, keys) in deletes
            if number < of_delete and _reaches(table, delete, file)
        ]
        rows += [
            row
            for row in _read(table, file).to_pylist()
            if not any(tuple(row[name] for name in names) in keys for names, keys in applied)
        ]
    return rows


def _keys(table: Table, file: DataFile) -> tuple[list[str], set[tuple[Any, ...]]]:
    read = _read(table, file)
    ids = [int(field.metadata[b"PARQUET:field_id"]) for field in read.schema]
    assert sorted(ids) == sorted(file.equality_ids or [])
    names = [table.schema().find_column_name(found) or "" for found in ids]
    assert len(read) == file.record_count
    return names, {tuple(row.values()) for row in read.to_pylist()}


def _reaches(table: Table, delete: DataFile, data: DataFile) -> bool:
    if not table.specs()[delete.spec_id].fields:
        return True
    return delete.spec_id == data.spec_id and delete.partition == data.partition


def _read(table: Table, file: DataFile) -> pa.Table:
    with table.io.new_input(file.file_path).open() as stream:
        return pq.read_table(pa.BufferReader(stream.read()))
