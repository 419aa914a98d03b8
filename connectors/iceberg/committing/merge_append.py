"""One snapshot of appended data files, whose manifests may follow several partition specs.

pyiceberg writes every manifest by the current schema. Without the column of a partition field it
does not know the type of the field's values, and cannot write them.
"""

from typing import TYPE_CHECKING, Any

from pyiceberg.manifest import ManifestContent, ManifestFile, ManifestWriter, write_manifest
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _MergeAppendFiles

from sluice.connectors.iceberg.committing.spec_schemas import schema_of_spec

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Transaction

__all__ = ["ManifestMerging", "MergeAppend"]


class MergeAppend(_MergeAppendFiles):
    """Appends files, and merges manifests of each spec by a schema that has its columns. Driver.

    pyiceberg's producer of snapshots is private, so its version is pinned.

    Args:
        transaction: of the table.
        summary: further entries of the snapshot's summary.
        current: the table's current schema; that of the transaction may be an older one.
        operation: of the snapshot.
    """

    def __init__(
        self,
        transaction: "Transaction",
        summary: dict[str, str],
        *,
        current: "Schema",
        operation: Operation = Operation.APPEND,
    ) -> None:
        io = transaction._table.io  # noqa: SLF001 - `UpdateSnapshot` is made from the same
        super().__init__(operation, transaction, io, snapshot_properties=summary)
        self._current = current

    def schema_of(self, spec: "PartitionSpec") -> "Schema | None":
        """The schema for manifests of a spec; None: no schema of the table has its columns."""
        return schema_of_spec(self._transaction.table_metadata, spec, current=self._current)

    def new_manifest_writer(self, spec: "PartitionSpec") -> ManifestWriter:
        return write_manifest(
            format_version=self._transaction.table_metadata.format_version,
            spec=spec,
            schema=self.schema_of(spec) or self._current,
            output_file=self.new_manifest_output(),
            snapshot_id=self._snapshot_id,
            avro_compression=self._compression,
        )

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """Leaves delete manifests as they are."""
        data = [one for one in manifests if one.content is ManifestContent.DATA]
        deletes = [one for one in manifests if one.content is not ManifestContent.DATA]
        return ManifestMerging(self).merge_manifests(data) + deletes


class ManifestMerging(_ManifestMergeManager[Any]):
    """Leaves manifests of a spec alone if no schema of the table has its columns.

    Args:
        producer: of the snapshot.
        writers: makes the writers of merged manifests; None: the producer.
    """

    def __init__(self, producer: MergeAppend, writers: object = None) -> None:
        super().__init__(
            producer._target_size_bytes,  # noqa: SLF001 - as the producer makes its own
            producer._min_count_to_merge,  # noqa: SLF001 - as above
            producer._merge_enabled,  # noqa: SLF001 - as above
            producer if writers is None else writers,  # type: ignore[arg-type]  # has what it calls
        )
        self._of_table = producer

    def _merge_group(
        self, first_manifest: ManifestFile, spec_id: int, manifests: list[ManifestFile]
    ) -> list[ManifestFile]:
        if self._of_table.schema_of(self._of_table.spec(spec_id)) is None:
            return manifests
        return super()._merge_group(first_manifest, spec_id, manifests)
