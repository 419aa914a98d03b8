"""One snapshot of upserts: data files, equality deletes, and the order between them.

A delete applies to data of a smaller sequence number. Java's writers give all files of a snapshot
one number, and delete an earlier row of the same writer by its position. Here each run of each task
has a number of its own, and the snapshot has the last one: of two rows of a key, the row of the
later run stays. Runs of one region follow in the order of its batches. Kafka has no order between
the partitions of two tasks, and neither have their runs.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import TableVersion
from pyiceberg.types import IcebergType, IntegerType, ListType, NestedField, StructType

from sluice.connectors.iceberg.committing.merge_append import ManifestMerging, MergeAppend

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table import Transaction

__all__ = ["RowDelta"]

_EQUALITY_IDS = 135  # of the field in a manifest entry


class RowDelta(MergeAppend):
    """Adds files with their sequence numbers in one snapshot, as Java's ``RowDelta``. Driver.

    pyiceberg has neither this operation nor a writer of delete manifests.

    Args:
        transaction: of the table, a format version 2.
        summary: further entries of the snapshot's summary.
        current: as of `MergeAppend`.
    """

    def __init__(
        self, transaction: "Transaction", summary: dict[str, str], *, current: Schema
    ) -> None:
        super().__init__(transaction, summary, current=current, operation=Operation.OVERWRITE)
        self._numbered: list[tuple[DataFile, int]] = []

    def add(self, file: DataFile, sequence_number: int) -> None:
        """Add a data or delete file."""
        self.append_data_file(file)  # for the summary
        self._numbered.append((file, sequence_number))

    def _manifests(self) -> list[ManifestFile]:
        data = [one for one in self._numbered if one[0].equality_ids is None]
        deletes = [one for one in self._numbered if one[0].equality_ids is not None]
        return self._process_manifests(
            [
                self._written(self.new_manifest_writer(self._spec), data),
                self._written(_DeleteManifests(self).new_manifest_writer(self._spec), deletes),
                *self._existing_manifests(),
            ]
        )

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """Merges delete manifests too."""
        deletes = [one for one in manifests if one.content is ManifestContent.DELETES]
        data = [one for one in manifests if one.content is ManifestContent.DATA]
        merged = ManifestMerging(self, _DeleteManifests(self)).merge_manifests(deletes)
        return super()._process_manifests(data) + merged

    @property
    def _spec(self) -> "PartitionSpec":
        return self._transaction.table_metadata.spec()

    def _written(
        self, opened: ManifestWriter, files: Sequence[tuple[DataFile, int]]
    ) -> ManifestFile:
        with opened as writer:
            for file, sequence_number in files:
                writer.add_entry(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._snapshot_id,
                        sequence_number=sequence_number,
                        file_sequence_number=None,  # inherited from the snapshot
                        data_file=file,
                    )
                )
        return writer.to_manifest_file()


class _DeleteManifestWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}

    def _with_partition(self, format_version: TableVersion) -> Schema:
        return Schema(*_with_int_ids(super()._with_partition(format_version).fields))


def _with_int_ids(fields: Iterable[NestedField]) -> list[NestedField]:
    """``equality_ids`` is a list of int in the specification, and of long in pyiceberg; Java's
    readers fail on that."""
    found = []
    for field in fields:
        kind: IcebergType = field.field_type
        if isinstance(kind, StructType):
            kind = StructType(*_with_int_ids(kind.fields))
        elif field.field_id == _EQUALITY_IDS and isinstance(kind, ListType):
            kind = ListType(kind.element_id, IntegerType(), element_required=True)
        found.append(NestedField(field.field_id, field.name, kind, required=field.required))
    return found


class _DeleteManifests:
    """A producer whose new manifests are of deletes."""

    def __init__(self, producer: RowDelta) -> None:
        self._producer = producer

    def __getattr__(self, name: str) -> object:
        return getattr(self._producer, name)

    def new_manifest_writer(self, spec: "PartitionSpec") -> ManifestWriter:
        producer = self._producer
        return _DeleteManifestWriter(
            spec,
            producer.schema_of(spec) or producer.schema(),
            producer.new_manifest_output(),
            producer.snapshot_id,
            producer._compression,  # noqa: SLF001 - as the producer makes its own
        )
