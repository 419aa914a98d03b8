"""Columns whose type a table has changed since, so that no reader could read the files. Pure.

A table that is replaced (``CREATE OR REPLACE TABLE`` of Spark) keeps its UUID, and its new columns
get the field ids of the old ones of their names.
"""

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sluice.connectors.iceberg.written_files import WrittenFiles, type_name

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

__all__ = ["changed_types"]

_WIDENED = {("int", "long"), ("float", "double")}
_DECIMAL = re.compile(r"decimal\((\d+), (\d+)\)")


def changed_types(metadata: "TableMetadata", works: Iterable[WrittenFiles]) -> Mapping[str, str]:
    """For each such column of the current schema, its type in the files and in the table.

    A reader promotes a type as the specification allows it: int to long, float to double, and a
    decimal to a wider one of its scale.
    """
    from pyiceberg.schema import index_by_id

    fields = index_by_id(metadata.schema())
    found = {}
    for work in works:
        for column, written in work.types.items():
            if column not in fields:
                continue  # dropped; see `dropped_columns`
            name = metadata.schema().find_column_name(column) or f"id {column}"
            read = type_name(fields[column].field_type)
            if not _is_readable(written, read):
                found[name] = f"{written} in the files, {read} in the table"
    return found


def _is_readable(written: str, read: str) -> bool:
    if written == read or (written, read) in _WIDENED:
        return True
    of_file, of_table = _DECIMAL.fullmatch(written), _DECIMAL.fullmatch(read)
    if of_file is None or of_table is None:
        return False
    is_wider = int(of_table[1]) >= int(of_file[1])
    return is_wider and of_table[2] == of_file[2]
