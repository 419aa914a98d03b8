"""One table commit: the files of a checkpoint as a snapshot, and the positions of its regions."""

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sluice.connectors.iceberg.committing.commit_positions import CommitPositions, position_key
from sluice.connectors.iceberg.committing.spec_schemas import schema_of_spec
from sluice.connectors.iceberg.table.client_errors import as_typed, client_errors, request_errors
from sluice.connectors.iceberg.table.writing_plan import PROPERTY_PREFIX
from sluice.connectors.iceberg.written_files import WrittenFile, WrittenFiles
from sluice.runtime.errors import StreamError
from sluice.runtime.failpoints import failpoint

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.metadata import TableMetadata

__all__ = [
    "UnappendableFilesError",
    "append_files",
    "expire_snapshots",
    "runs_of",
    "summary_of",
]

log = logging.getLogger(__name__)

# The sink uses these if the table has no such property. Without merging, each commit would list all
# manifests of earlier ones; pyiceberg writes a manifest in Python, so that a large one would take
# seconds.
_DEFAULTS = {
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.target-size-bytes": str(1 << 20),
}
_MAX_AGE_MS = "history.expire.max-snapshot-age-ms"
_DEFAULT_MAX_AGE_MS = 5 * 24 * 3600 * 1000
_MIN_KEPT = "history.expire.min-snapshots-to-keep"


class UnappendableFilesError(StreamError):
    """pyiceberg cannot make a snapshot of decided files: a person must change the table."""


def summary_of(
    works: Sequence[WrittenFiles], *, operator_id: str, checkpoint_id: int | None
) -> dict[str, str]:
    """Entries of the snapshot's summary: which checkpoint of which job, and which regions."""
    regions = sorted({work.attempt.batch.region for work in works})
    checkpoint = checkpoint_id
    if checkpoint is None:  # not known, as in a command
        checkpoint = max(work.checkpoint_id for work in works)
    return {
        f"{PROPERTY_PREFIX}job-id": works[0].job_uid,
        f"{PROPERTY_PREFIX}operator-id": operator_id,
        f"{PROPERTY_PREFIX}checkpoint-id": str(checkpoint),
        f"{PROPERTY_PREFIX}regions": ",".join(regions),
    }


def runs_of(works: Sequence[WrittenFiles]) -> list[tuple[WrittenFiles, int]]:
    """The runs of upserts in their order; see `row_delta`. Pure."""
    ordered = sorted(
        works,
        key=lambda work: (work.attempt.batch.region, work.attempt.position, work.attempt.attempt),
    )
    return [(work, run) for work in ordered for run in sorted({file.run for file in work.files})]


def append_files(
    table: "Table",
    works: Sequence[WrittenFiles],
    positions: CommitPositions,
    *,
    operator_id: str,
    checkpoint_id: int | None,
) -> None:
    """Commit the files of one partition spec, once: ``table`` has the metadata after it.

    The catalog accepts the commit only on top of the snapshot that ``table`` knows. So of several
    requests with the same work, in flight or repeated, one is accepted at most.

    Raises:
        UnappendableFilesError: pyiceberg cannot make the snapshot, and nothing was requested.
        CommitFailedException: the table has changed, and nothing was committed.
        StorageError, and what `client_errors` has: it is unknown whether it was committed.
    """
    job_uid = works[0].job_uid
    after = positions.after(works, checkpoint_id=checkpoint_id)
    regions = {work.attempt.batch.region for work in works}
    changed = {
        position_key(job_uid=job_uid, operator_id=operator_id, region=region): position.encoded()
        for region, position in after.of_regions.items()
        if region in regions
    }
    summary = summary_of(works, operator_id=operator_id, checkpoint_id=checkpoint_id)
    where = {"table": works[0].table, "spec": works[0].spec_id}
    try:
        transaction = _made(table, works, summary)
        transaction.set_properties(changed)
    except Exception as err:  # of any kind: a decided epoch must not end the driver each time
        causes = _causes(err)
        if any(isinstance(cause, request_errors()) for cause in causes):
            raise
        raise UnappendableFilesError(
            "pyiceberg cannot append decided files to the table",
            {**where, "error": f"{type(causes[-1]).__name__}: {causes[-1]}"},
            "The decided files are whole. Undo the change of the table that the error names, and "
            "start the job again. 'sluice checkpoint accept-loss' would discard their rows.",
        ) from err
    # A request that arrived twice is refused the second time, and the table has the manifests of
    # the first one. pyiceberg would delete them.
    transaction._snapshot_producers.clear()  # noqa: SLF001 - no setting keeps them
    failpoint("before-append")
    try:
        transaction.commit_transaction()
    except client_errors():
        raise
    except Exception as err:  # an answer that pyiceberg did not expect; it may have happened
        raise as_typed(err, "commit to a table", where) from err
    failpoint("after-append")


def _causes(err: BaseException) -> list[BaseException]:
    """The error and those before it: pyiceberg's writers raise another one while they close."""
    found = [err]
    while (before := found[-1].__context__) is not None:
        found.append(before)
    return found


def _made(table: "Table", works: Sequence[WrittenFiles], summary: dict[str, str]) -> "Transaction":
    """A transaction with the snapshot. Writes its manifests, and asks the catalog for nothing."""
    from pyiceberg.table.update import AssertCurrentSchemaId

    current = table.schema()
    runs = runs_of(works) if any(work.deletes for work in works) else []
    _prepare(table, works[0].spec_id, skipped=len(runs) - 1)
    transaction = table.transaction()
    if runs:
        _upsert(transaction, summary, runs, current)
    else:
        _append(transaction, summary, works, current)
    if table.metadata.current_schema_id != current.schema_id:
        _set_schema(transaction, current.schema_id)
    # Else the catalog would accept files of one type in an empty table that has another one by now.
    transaction._requirements += (  # noqa: SLF001 - pyiceberg requires it of schema changes alone
        AssertCurrentSchemaId.model_validate({"current-schema-id": current.schema_id}),
    )
    return transaction


def _append(
    transaction: "Transaction",
    summary: dict[str, str],
    works: Sequence[WrittenFiles],
    current: "Schema",
) -> None:
    from sluice.connectors.iceberg.committing.merge_append import MergeAppend

    append = MergeAppend(transaction, summary, current=current)
    for work in works:
        for file in work.files:
            append.append_data_file(_data_file(file, work.spec_id))
    append.commit()


def _upsert(
    transaction: "Transaction",
    summary: dict[str, str],
    runs: Sequence[tuple[WrittenFiles, int]],
    current: "Schema",
) -> None:
    from sluice.connectors.iceberg.committing.row_delta import RowDelta

    first = transaction.table_metadata.next_sequence_number() - (len(runs) - 1)
    delta = RowDelta(transaction, summary, current=current)
    for number, (work, run) in enumerate(runs, first):
        for file in work.files:
            if file.run == run:
                delta.add(_data_file(file, work.spec_id), number)
        for file in work.deletes:
            if file.run == run:
                delta.add(_data_file(file, work.spec_id, work.equality_ids), number)
    delta.commit()


def expire_snapshots(table: "Table", *, least: int) -> int:
    """Expire snapshots as the properties ``history.expire.*`` of the table say; returns how many.

    Files stay on the store until a tool deletes orphaned files. Without its snapshot, a branch or
    tag would vanish too; without that of ``main``, the table would be empty. So the catalog refuses
    the expiry if a person has moved one meanwhile.

    Args:
        least: does nothing for fewer expired snapshots: each expiry is one more table commit.

    Raises:
        CommitFailedException: the table has changed, and nothing expired.
        Also as `append_files`.
    """
    if len(_expired(table.metadata)) < least:
        return 0
    from pyiceberg.table.refs import MAIN_BRANCH
    from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, RemoveSnapshotsUpdate

    table.refresh()  # a person may have made a tag since
    metadata = table.metadata
    expired = _expired(metadata)
    if len(expired) < least:
        return 0
    seen = {MAIN_BRANCH: None, **{name: ref.snapshot_id for name, ref in metadata.refs.items()}}
    # Not through pyiceberg's own class: it requires nothing of the table, and repeats by itself.
    table._do_commit(  # noqa: SLF001 - as a transaction does
        updates=(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": expired}),),
        requirements=(
            AssertTableUUID(uuid=metadata.table_uuid),
            *(
                AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": found})
                for name, found in seen.items()
            ),
        ),
    )
    return len(expired)


def _expired(metadata: "TableMetadata") -> list[int]:
    """Snapshots that are too old, and that no branch or tag names."""
    properties = metadata.properties
    oldest_ms = int(time.time() * 1000) - int(properties.get(_MAX_AGE_MS, _DEFAULT_MAX_AGE_MS))
    snapshots = sorted(metadata.snapshots, key=lambda one: one.timestamp_ms)
    kept = snapshots[-max(1, int(properties.get(_MIN_KEPT, "1"))) :]
    oldest_ms = min([oldest_ms, *(one.timestamp_ms for one in kept)])
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    return [
        one.snapshot_id
        for one in snapshots
        if one.timestamp_ms < oldest_ms and one.snapshot_id not in named
    ]


def _prepare(table: "Table", spec_id: int, *, skipped: int) -> None:
    """Set what pyiceberg reads from the metadata in memory; nothing of it is committed.

    pyiceberg must not repeat a commit by itself: a repetition would not look at the positions. Its
    new manifests follow the default spec, which may be newer than that of the files. Its summary
    follows the current schema, which may have lost columns of that spec. A snapshot of several runs
    skips the sequence numbers of all but its last one. pyiceberg copies the metadata 17 times for
    each commit. Without earlier snapshots that takes no longer in a long history.
    """
    metadata = table.metadata
    current = metadata.current_snapshot()
    schema = schema_of_spec(metadata, metadata.specs()[spec_id], current=metadata.schema())
    changed: dict[str, object] = {
        "properties": {**_DEFAULTS, **metadata.properties, "commit.retry.num-retries": "0"},
        "default_spec_id": spec_id,
        "current_schema_id": (schema or metadata.schema()).schema_id,
        "snapshots": [] if current is None else [current],
        "snapshot_log": [],
    }
    if skipped > 0:
        changed["last_sequence_number"] = metadata.next_sequence_number() - 1 + skipped
    table.metadata = metadata.model_copy(update=changed)


def _set_schema(transaction: "Transaction", schema_id: int) -> None:
    """Let the snapshot name the table's schema, and not that of its manifests."""
    from pyiceberg.table.update import AddSnapshotUpdate

    updates = transaction._updates  # noqa: SLF001 - the producer takes the id from the metadata
    transaction._updates = tuple(  # noqa: SLF001 - as above
        AddSnapshotUpdate(snapshot=one.snapshot.model_copy(update={"schema_id": schema_id}))
        if isinstance(one, AddSnapshotUpdate)
        else one
        for one in updates
    )


def _data_file(
    file: WrittenFile, spec_id: int, equality_ids: Sequence[int] | None = None
) -> "DataFile":
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    found = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES if equality_ids else DataFileContent.DATA,
        file_path=file.path,
        file_format=FileFormat.PARQUET,
        partition=Record(*file.partition),
        record_count=file.rows,
        file_size_in_bytes=file.length_bytes,
        column_sizes=dict(file.column_sizes),
        value_counts=dict(file.value_counts),
        null_value_counts=dict(file.null_value_counts),
        nan_value_counts=dict(file.nan_value_counts),
        lower_bounds=dict(file.lower_bounds),
        upper_bounds=dict(file.upper_bounds),
        split_offsets=list(file.split_offsets) or None,
        sort_order_id=file.sort_order_id,
        equality_ids=list(equality_ids) if equality_ids else None,
        key_metadata=None,
    )
    found.spec_id = spec_id
    return found
