"""The error for a column that a keyed function names and its rows do not have. Pure."""

import difflib
from collections.abc import Iterable

import pyarrow as pa

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.arrow_leaves import column_index

__all__ = ["require_columns"]


def require_columns(
    batch: pa.RecordBatch, columns: Iterable[str], *, what: str = "a keyed function"
) -> pa.RecordBatch:
    """These columns of a batch.

    Args:
        what: the function that needs them, for the message.
    Raises:
        ConfigError: one is missing, or several columns have its name.
    """
    names = list(columns)
    missing = [name for name in names if column_index(batch.schema, name) is None]
    if missing:
        raise ConfigError(
            f"{what} names a column that its rows do not have",
            {"missing": ", ".join(missing), "columns": ", ".join(batch.schema.names)},
            _remedy(missing[0], batch.schema),
        )
    return batch.select(names)


def _remedy(missing: str, rows: pa.Schema) -> str:
    field = missing.rpartition(".")[2]
    for column in rows:
        if pa.types.is_struct(column.type) and column.type.get_field_index(field) >= 0:
            return (
                f"Return {field}, a field of {column.name}, as a column of its own from a "
                "map_batches before key_by."
            )
    close = difflib.get_close_matches(missing, rows.names, n=1)
    if close:
        return f"Write {close[0]!r}, or return {missing!r} from a map_batches before key_by."
    return "Name one of these columns, or return it from a map_batches before key_by."
