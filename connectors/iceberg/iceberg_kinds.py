"""Shows the entries of Iceberg sinks in records: the entry point group ``sluice.kinds``."""

from collections.abc import Mapping

from sluice.connectors.iceberg.written_files import (
    COMMITTABLE_KIND,
    COMMITTABLE_VERSION,
    decode_written_files,
)
from sluice.runtime.checkpoint.format.committable_kinds import EntryKind
from sluice.runtime.model.checkpoint_record import StateEntry

__all__ = ["DATA_FILES"]


def _describe(entry: StateEntry) -> Mapping[str, object]:
    found = decode_written_files(entry)
    return {
        "table": found.table,
        "table_uuid": found.table_uuid,
        "attempt": found.attempt.path,
        "rows": found.rows,
        "length_bytes": sum(file.length_bytes for file in found.files),
        "files": [file.path for file in found.files],
        "delete_files": [file.path for file in found.deletes],
    }


DATA_FILES = EntryKind(
    kind=COMMITTABLE_KIND, latest_version=COMMITTABLE_VERSION, describe=_describe
)
"""Data files that one task wrote for one batch of an Iceberg sink."""
