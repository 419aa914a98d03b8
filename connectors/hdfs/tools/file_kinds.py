"""Shows the entries of file sinks in records: the entry point group ``sluice.kinds``."""

from collections.abc import Mapping

from sluice.connectors.hdfs.partition_commit.partition_state import (
    STATE_KIND,
    STATE_VERSION,
    decode_state,
    encode_state,
    transferred_state,
)
from sluice.connectors.hdfs.staging.committables import (
    COMMITTABLE_KIND,
    COMMITTABLE_VERSION,
    decode_file_set,
)
from sluice.connectors.hdfs.staging.pending_files import (
    PENDING_KIND,
    PENDING_VERSION,
    decode_pending_files,
)
from sluice.connectors.hdfs.staging.uploaded_files import (
    UPLOADS_KIND,
    UPLOADS_VERSION,
    decode_upload_set,
)
from sluice.runtime.checkpoint.format.committable_kinds import EntryKind
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.checkpoint_record import StateEntry

__all__ = ["OPEN_PARTITIONS", "STAGED_FILES", "UPLOADED_FILES"]


def _describe_staged(entry: StateEntry) -> Mapping[str, object]:
    found = decode_file_set(entry)
    return {
        "target": found.target,
        "staging": found.staging,
        "rows": found.rows,
        "length_bytes": sum(file.length_bytes for file in found.files),
        "files": [file.final for file in found.files],
    }


def _describe_uploads(entry: StateEntry) -> Mapping[str, object]:
    found = decode_upload_set(entry)
    return {
        "target": found.target,
        "rows": sum(file.rows or 0 for file in found.files),
        "length_bytes": sum(file.length_bytes for file in found.files),
        "files": [file.final for file in found.files],
        "upload_ids": [file.upload_id for file in found.files],
    }


def _describe_pending(entry: StateEntry) -> Mapping[str, object]:
    found = decode_pending_files(entry)
    return {
        "target": found.target,
        "layout": found.layout,
        "length_bytes": sum(file.length_bytes for file in found.files),
        "files": [file.path for file in found.files],
    }


def _without_pending(entry: StateEntry, region: str) -> StateEntry:
    """The old job still publishes its own files, so no other job may."""
    found = decode_pending_files(entry)
    if found.files:
        raise ConfigError(
            "a file sink holds rows back in files of the old job",
            {
                "region": region,
                "target": found.target,
                "files": len(found.files),
                "rows": sum(file.rows or 0 for file in found.files),
            },
            "Restore from a savepoint or a full checkpoint: there the sink has published them.",
        )
    return entry


STAGED_FILES = (
    EntryKind(kind=COMMITTABLE_KIND, latest_version=COMMITTABLE_VERSION, describe=_describe_staged),
    EntryKind(
        kind=PENDING_KIND,
        latest_version=PENDING_VERSION,
        describe=_describe_pending,
        transferred=_without_pending,
    ),
)
"""Files that one batch of a file sink staged, and files pending over epochs."""


UPLOADED_FILES = EntryKind(
    kind=UPLOADS_KIND, latest_version=UPLOADS_VERSION, describe=_describe_uploads
)
"""Files of an object store whose parts a batch uploaded."""


def _describe_partitions(entry: StateEntry) -> Mapping[str, object]:
    found = decode_state(entry)
    return {
        "checkpoint_id": found.checkpoint_id,
        "open": {path: one.checkpoint_id for path, one in found.opened.items()},
        "marked": list(found.marked),
    }


def _transferred_partitions(entry: StateEntry, region: str) -> StateEntry:
    state = transferred_state(decode_state(entry), region=region)
    return encode_state(state, operator_id=entry.operator_id)


OPEN_PARTITIONS = EntryKind(
    kind=STATE_KIND,
    latest_version=STATE_VERSION,
    describe=_describe_partitions,
    transferred=_transferred_partitions,
)
"""Partitions of a file sink that wait for their mark."""
