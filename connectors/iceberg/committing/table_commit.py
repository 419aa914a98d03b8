"""One table commit: the files of a checkpoint as a snapshot, and the positions of its regions."""

import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sluice.connectors.iceberg.committing.commit_positions import CommitPositions, position_key
from sluice.connectors.iceberg.table.writing_plan import PROPERTY_PREFIX
from sluice.connectors.iceberg.written_files import WrittenFile, WrittenFiles
from sluice.runtime.failpoints import failpoint

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction

__all__ = ["append_files", "expire_snapshots", "runs_of", "summary_of"]

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
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MIN_KEPT = "history.expire.min-snapshots-to-keep"


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
        CommitFailedException: the table has changed, and nothing was committed.
        Exception: any other error of pyiceberg: it is unknown whether it was committed.
    """
    job_uid = works[0].job_uid
    after = positions.after(works, checkpoint_id=checkpoint_id)
    regions = {work.attempt.batch.region for work in works}
    changed = {
        position_key(job_uid=job_uid, operator_id=operator_id, region=region): position.encoded()
        for region, position in after.of_regions.items()
        if region in regions
    }
    runs = runs_of(works) if any(work.deletes for work in works) else []
    _prepare(table, works[0].spec_id, skipped=len(runs) - 1)
    summary = summary_of(works, operator_id=operator_id, checkpoint_id=checkpoint_id)
    transaction = table.transaction()
    if runs:
        _upsert(transaction, summary, runs)
    else:
        _append(transaction, summary, works)
    transaction.set_properties(changed)
    # A request that arrived twice is refused the second time, and the table has the manifests of
    # the first one. pyiceberg would delete them.
    transaction._snapshot_producers.clear()  # noqa: SLF001 - no setting keeps them
    failpoint("before-append")
    transaction.commit_transaction()
    failpoint("after-append")


def _append(
    transaction: "Transaction", summary: dict[str, str], works: Sequence[WrittenFiles]
) -> None:
    update = transaction.update_snapshot(snapshot_properties=summary)
    properties = transaction.table_metadata.properties
    is_merging = properties["commit.manifest-merge.enabled"].lower() == "true"
    with update.merge_append() if is_merging else update.fast_append() as append:
        for work in works:
            for file in work.files:
                append.append_data_file(_data_file(file, work.spec_id))


def _upsert(
    transaction: "Transaction",
    summary: dict[str, str],
    runs: Sequence[tuple[WrittenFiles, int]],
) -> None:
    from sluice.connectors.iceberg.committing.row_delta import RowDelta

    first = transaction.table_metadata.next_sequence_number() - (len(runs) - 1)
    delta = RowDelta(transaction, summary)
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

    Files stay on the store until a tool deletes orphaned files. Raises as `append_files`.

    Args:
        least: does nothing for fewer expired snapshots: each expiry is one more table commit.
    """
    properties = table.metadata.properties
    oldest_ms = int(time.time() * 1000) - int(properties.get(_MAX_AGE_MS, _DEFAULT_MAX_AGE_MS))
    snapshots = sorted(table.metadata.snapshots, key=lambda one: one.timestamp_ms)
    kept = snapshots[-max(1, int(properties.get(_MIN_KEPT, "1"))) :]
    oldest_ms = min([oldest_ms, *(one.timestamp_ms for one in kept)])
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    expired = [
        one.snapshot_id
        for one in snapshots
        if one.timestamp_ms < oldest_ms and one.snapshot_id not in named
    ]
    if len(expired) < least:
        return 0
    # By time: by their ids, pyiceberg copies the whole metadata for each.
    before = _EPOCH + timedelta(milliseconds=oldest_ms)
    table.maintenance.expire_snapshots().older_than(before).commit()
    return len(expired)


def _prepare(table: "Table", spec_id: int, *, skipped: int) -> None:
    """Set what pyiceberg reads from the metadata in memory; nothing of it is committed.

    pyiceberg must not repeat a commit by itself: a repetition would not look at the positions. Its
    manifests follow the default spec, which may be newer than that of the files. A snapshot of
    several runs skips the sequence numbers of all but its last one. pyiceberg copies the metadata
    17 times for each commit. Without earlier snapshots that takes no longer in a long history.
    """
    metadata = table.metadata
    changed: dict[str, object] = {
        "properties": {**_DEFAULTS, **metadata.properties, "commit.retry.num-retries": "0"},
        "default_spec_id": spec_id,
        "snapshots": [one for one in metadata.snapshots if one == metadata.current_snapshot()],
        "snapshot_log": [],
    }
    if skipped > 0:
        changed["last_sequence_number"] = metadata.next_sequence_number() - 1 + skipped
    table.metadata = metadata.model_copy(update=changed)


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
