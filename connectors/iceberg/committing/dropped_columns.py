"""Values of decided files that readers do not see: their columns were dropped meanwhile. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sluice.connectors.iceberg.written_files import WrittenFiles

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

__all__ = ["values_of_dropped_columns"]


def values_of_dropped_columns(
    metadata: "TableMetadata", works: Iterable[WrittenFiles]
) -> Mapping[str, int]:
    """How many values the data files have for each column that the current schema lacks.

    A column that was dropped and added again has another id: its values from before are not seen.
    Files without counts count their rows. A column of nulls alone has no values.

    Args:
        metadata: of the table that has the files.
    """
    known = metadata.schema().field_ids
    found: Counter[int] = Counter()
    for work in works:
        for file in work.files:
            for column in file.column_sizes.keys() - known:
                values = file.value_counts.get(column, file.rows)
                found[column] += values - file.null_value_counts.get(column, 0)
    return {_name(metadata, column): count for column, count in sorted(found.items()) if count}


def _name(metadata: "TableMetadata", column: int) -> str:
    """As the newest schema that had the column names it."""
    for schema in sorted(metadata.schemas, key=lambda one: -one.schema_id):
        name = schema.find_column_name(column)
        if name is not None:
            return name
    return f"id {column}"
