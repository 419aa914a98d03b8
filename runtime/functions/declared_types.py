"""Rows of functions in the types that the functions declared by their output for no rows."""

import pyarrow as pa

from sluice.runtime.errors import ConfigError
from sluice.runtime.functions.value_casts import cast_values
from sluice.runtime.model.arrow_leaves import missing_part

__all__ = ["with_declared_types"]


def with_declared_types(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """The same values in exactly these columns and types.

    Raises:
        ConfigError: there are other columns, a value does not fit its type, or one that is declared
            non-nullable is null.
    """
    same = batch if batch.schema.equals(columns) else _cast_batch(batch, columns)
    for field, column in zip(columns, same.columns, strict=True):
        missing = missing_part(column, field)
        if missing is not None:
            raise ConfigError(
                "a function's column has a null but is declared non-nullable",
                {"column": missing, "type": str(field.type)},
                "Declare it nullable in the function, or fill it.",
            )
    return same


def _cast_batch(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    if sorted(batch.schema.names) != sorted(columns.names):
        raise ConfigError(
            "a function's columns differ from those that an empty batch gave",
            {"now": ",".join(batch.schema.names), "empty_batch": ",".join(columns.names)},
            "Return the same columns for all records: files have one schema.",
        )
    cast = [_cast(batch.column(field.name), field) for field in columns]
    return pa.RecordBatch.from_arrays(cast, schema=columns)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return cast_values(column, field.type)
    except (ValueError, pa.ArrowException) as err:
        raise _misfit(column, field, err) from err


def _misfit(column: pa.Array, field: pa.Field, reason: object) -> ConfigError:
    return ConfigError(
        "a function's column has another type than for an empty batch",
        {
            "column": field.name,
            "now": str(column.type),
            "empty_batch": str(field.type),
            "error": str(reason),
        },
        "Return the same types for all records: files have one schema.",
    )
