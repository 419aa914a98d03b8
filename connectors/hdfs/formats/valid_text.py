"""Text that is UTF-8: Spark lets any bytes be cast to a string, and looks at them later. Pure."""

from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

__all__ = ["valid_rows", "valid_text"]


def valid_text(column: pa.Array) -> pa.Array:
    """The strings, with U+FFFD for bytes that are not UTF-8, as Spark's text writers put it."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        values = column.view(pa.binary()).to_pylist()
        return pa.array([None if v is None else _decoded(v) for v in values], pa.string())
    return column


def valid_rows(rows: list[dict[str, Any]], schema: pa.Schema) -> list[dict[str, Any]]:
    """Rows of ``schema`` whose strings, at any depth, came as bytes."""
    return [{field.name: _text(row[field.name], field.type) for field in schema} for row in rows]


def _text(value: Any, kind: pa.DataType) -> Any:  # noqa: ANN401 - any value of a row
    if value is None:
        return None
    if kinds.is_string(kind):
        return _decoded(value)
    if kinds.is_list(kind):
        return [_text(item, kind.value_type) for item in value]
    if kinds.is_map(kind):
        entries = value.items()
        return {_text(key, kind.key_type): _text(item, kind.item_type) for key, item in entries}
    if kinds.is_struct(kind):
        parts = [kind.field(at) for at in range(kind.num_fields)]
        return {part.name: _text(value[part.name], part.type) for part in parts}
    return value


def _decoded(value: bytes) -> str:
    return value.decode("utf-8", errors="replace")
