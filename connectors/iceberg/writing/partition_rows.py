"""Splits and orders rows as the partition spec and the sort order of a table say. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.connectors.iceberg.written_files import PartitionValue
from sluice.runtime.errors import ConfigError, MissingRequirementError

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.sorting import SortOrder
    from pyiceberg.transforms import Transform

__all__ = ["PartitionRows", "SortedRows"]

Partition = tuple[PartitionValue, ...]


def _source(batch: pa.RecordBatch, schema: "Schema", field_id: int) -> pa.Array:
    """The values of a field, also of one in a struct."""
    path = schema.find_column_name(field_id)
    assert path is not None  # a spec names fields of its schema
    if path in batch.schema.names:
        return batch.column(path)
    first, *rest = path.split(".")
    return pc.struct_field(batch.column(first), rest)


def _transformed(
    transform: "Transform[object, object]", array: pa.Array, schema: "Schema", field_id: int
) -> pa.Array:
    from pyiceberg.exceptions import NotInstalledError
    from pyiceberg.transforms import TruncateTransform
    from pyiceberg.types import BinaryType

    kind = schema.find_field(field_id).field_type
    if isinstance(transform, TruncateTransform) and isinstance(kind, BinaryType):
        return pc.binary_slice(array, 0, transform.width)  # pyiceberg's own fails
    try:
        found = transform.pyarrow_transform(kind)(array)
    except (NotInstalledError, ModuleNotFoundError) as err:
        raise MissingRequirementError(
            "a package that computes partition values is not installed",
            {"transform": str(transform), "error": str(err)},
            "Install sluice-spark[iceberg].",
        ) from err
    except (NotImplementedError, ValueError) as err:
        raise ConfigError(
            "pyiceberg cannot compute a transform of this table",
            {"transform": str(transform), "type": kind, "error": str(err)},
            "Change the table's partition spec or sort order.",
        ) from err
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


@dataclass(frozen=True, kw_only=True)  # no slots: it keeps the fields
class PartitionRows:
    """Splits aligned batches by partition.

    Attributes:
        spec: of the table.
        schema: of the table.
        table: its name, for messages.
    """

    spec: "PartitionSpec"
    schema: "Schema"
    table: str

    @cached_property
    def _is_split(self) -> bool:
        return not self.spec.is_unpartitioned()

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[Partition, pa.RecordBatch]]:
        """The rows of each partition, in their order; the partition in Iceberg's own values.

        Raises:
            ConfigError: a partition field has a null, and its column is required.
        """
        if not self._is_split:
            yield (), batch
            return
        values = [
            _transformed(
                field.transform,
                _source(batch, self.schema, field.source_id),
                self.schema,
                field.source_id,
            )
            for field in self.spec.fields
        ]
        self._require_values(values)
        codes = self._codes(values)
        order = np.argsort(codes, kind="stable")
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        ends = [*starts[1:], len(order)]
        rows = batch if len(starts) == 1 else batch.take(pa.array(order))
        for start, end in zip(starts, ends, strict=True):
            row = int(order[start])
            yield self._partition(values, row), rows.slice(int(start), int(end - start))

    def _require_values(self, values: list[pa.Array]) -> None:
        """Refuse what a manifest cannot have; a struct may hide a required field by its null."""
        for field, array in zip(self.spec.fields, values, strict=True):
            if array.null_count and self.schema.find_field(field.source_id).required:
                raise ConfigError(
                    "a partition field of a required column is null",
                    {
                        "table": self.table,
                        "column": self.schema.find_column_name(field.source_id),
                        "partition": f"{field.name} ({field.transform})",
                        "rows": array.null_count,
                    },
                    "Make the column optional in the table, or fill it in a function before the "
                    "sink.",
                )

    @staticmethod
    def _codes(values: list[pa.Array]) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        """One number for each row; equal for rows of one partition."""
        codes = np.zeros(len(values[0]), np.int64)
        for array in values:
            indices = array.dictionary_encode(null_encoding="encode").indices
            found = indices.to_numpy(zero_copy_only=False).astype(np.int64)
            # Dense again after each field, so that the product of many fields does not overflow.
            mixed = codes * (int(found.max(initial=0)) + 1) + found
            codes = np.unique(mixed, return_inverse=True)[1].astype(np.int64)
        return codes

    def _partition(self, values: list[pa.Array], row: int) -> Partition:
        from pyiceberg.partitioning import partition_record_value

        return tuple(
            cast(
                PartitionValue,
                partition_record_value(field, array[row].as_py(), self.schema),
            )
            for field, array in zip(self.spec.fields, values, strict=True)
        )


@dataclass(frozen=True, kw_only=True)
class SortedRows:
    """Orders the rows of one file.

    Attributes:
        order: of the table.
        schema: of the table.
    """

    order: "SortOrder"
    schema: "Schema"

    @property
    def is_needed(self) -> bool:
        """Whether the table has an order."""
        return not self.order.is_unsorted

    def sort(self, rows: pa.Table) -> pa.Table:
        """The rows in the table's order."""
        from pyiceberg.table.sorting import NullOrder, SortDirection

        (batch,) = rows.combine_chunks().to_batches() or [None]
        if batch is None:
            return rows
        keys: dict[str, pa.Array] = {}
        directions: list[tuple[str, str]] = []
        for number, field in enumerate(self.order.fields):
            source = _source(batch, self.schema, field.source_id)
            array = _transformed(field.transform, source, self.schema, field.source_id)
            if array.null_count:  # pyarrow places the nulls of all keys alike
                is_first = field.null_order is NullOrder.NULLS_FIRST
                keys[f"null{number}"] = array.is_null()
                directions.append((f"null{number}", "descending" if is_first else "ascending"))
            keys[f"key{number}"] = array
            is_up = field.direction is SortDirection.ASC
            directions.append((f"key{number}", "ascending" if is_up else "descending"))
        indices = pc.sort_indices(pa.table(keys), sort_keys=directions)
        return rows.take(indices)
