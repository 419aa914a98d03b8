"""Which schema of a table has the columns of a partition spec. Pure."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

__all__ = ["schema_of_spec"]


def schema_of_spec(
    metadata: "TableMetadata", spec: "PartitionSpec", *, current: "Schema"
) -> "Schema | None":
    """The current schema if it has the columns of the spec, or the newest schema that has them.

    None: the schemas with the columns were removed from the table.
    """
    columns = {field.source_id for field in spec.fields}
    newest = sorted(metadata.schemas, key=lambda schema: -schema.schema_id)
    return next((one for one in (current, *newest) if columns <= one.field_ids), None)
