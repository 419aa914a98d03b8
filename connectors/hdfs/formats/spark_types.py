"""Converts Arrow's types to Spark's, so that Spark can read each file. Pure.

Arrow has more types than Spark. Types that Spark has under another name or width are converted:
dictionaries, large and fixed sizes, unsigned numbers, other units. All others are refused by name.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.types as kinds

from sluice.runtime.errors import ConfigError
from sluice.runtime.functions.value_casts import cast_values
from sluice.runtime.model.arrow_leaves import has_required, missing_part

__all__ = [
    "conform",
    "names_alike",
    "portions",
    "recast",
    "refuse_columns",
    "spark_schema",
    "with_leaves",
]

_LARGEST_PRECISION = 38
_SPARKS_STRUCTS = {b"variant", b"geometry", b"geography"}  # tags of such a struct's fields
_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
_SAME = {
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
}


def names_alike(names: Sequence[str]) -> list[str]:
    """The names that equal another one but for case: Spark does not distinguish them."""
    counts = Counter(name.lower() for name in names)
    return [name for name in names if counts[name.lower()] > 1]


def spark_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with each type as Spark has it; names, order and nullability are kept.

    Raises:
        ConfigError: there are no columns; two columns, or two fields of a struct, are equal but for
            case, so Spark cannot read them; or Spark has no type for a column.
    """
    twice = names_alike(schema.names)
    if twice or not schema.names:
        raise ConfigError(
            "a file needs columns whose names differ in more than case",
            {"columns": ",".join(schema.names), "twice": ",".join(twice)},
            "Rename or drop columns, and leave at least one beside those of partition_by.",
        )
    return pa.schema([_field(field, field.name) for field in schema])


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the types of ``schema``, which came from `spark_schema`.

    Raises:
        ConfigError: the columns differ, or a value does not fit.
    """
    if batch.schema.equals(schema) and not any(map(has_required, schema)):
        return batch
    if batch.schema.names != schema.names:
        raise ConfigError(
            "a batch has other columns than its file",
            {"expected": ",".join(schema.names), "found": ",".join(batch.schema.names)},
            "Return the same columns in the same order from the function before the sink.",
        )
    columns = [
        _converted(column, field) for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def portions(batch: pa.RecordBatch, *, limit_bytes: int) -> Iterator[pa.RecordBatch]:
    """The batch in slices of about ``limit_bytes``, with at least one row each."""
    rows = batch.num_rows
    step = max(1, rows * limit_bytes // max(batch.nbytes, limit_bytes))
    for start in range(0, rows, step):
        yield batch.slice(start, step)


def with_leaves(schema: pa.Schema, change: Callable[[pa.Field], pa.Field]) -> pa.Schema:
    """The schema with ``change`` applied to every field that is not nested, at any depth."""
    return pa.schema([_with_leaves(field, change) for field in schema])


def recast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in the form in which a format stores it; ``schema`` came from `with_leaves`."""
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def refuse_columns(
    schema: pa.Schema, is_refused: Callable[[pa.DataType], bool], *, of: str, remedy: str
) -> None:
    """ConfigError for the first column that is, or holds, a refused type."""
    for field in schema:
        if any(is_refused(kind) for kind in (field.type, *_inner_types(field.type))):
            raise ConfigError(
                f"{of} cannot hold a column of this type",
                {"column": field.name, "type": field.type},
                remedy,
            )


def _inner_types(kind: pa.DataType) -> list[pa.DataType]:
    """The types inside a type, at any depth."""
    if kinds.is_map(kind):  # to Arrow a list of structs
        inner = [kind.key_type, kind.item_type]
    else:
        inner = [kind.field(index).type for index in range(kind.num_fields)]
    return [part for each in inner for part in (each, *_inner_types(each))]


def _with_leaves(field: pa.Field, change: Callable[[pa.Field], pa.Field]) -> pa.Field:
    kind = field.type
    if kinds.is_map(kind):
        key, item = _with_leaves(kind.key_field, change), _with_leaves(kind.item_field, change)
        return field.with_type(pa.map_(key, item))
    if kinds.is_list(kind):
        return field.with_type(pa.list_(_with_leaves(kind.value_field, change)))
    if kinds.is_struct(kind):
        parts = [_with_leaves(kind.field(index), change) for index in range(kind.num_fields)]
        return field.with_type(pa.struct(parts))
    return change(field)


def _field(field: pa.Field, column: str) -> pa.Field:
    return pa.field(field.name, _type(field.type, column), nullable=field.nullable)


def _type(kind: pa.DataType, column: str) -> pa.DataType:
    if kind in _SAME:
        return kind
    if kind in _WIDER:
        return _WIDER[kind]
    if kinds.is_dictionary(kind):
        return _type(kind.value_type, column)
    if kinds.is_fixed_size_binary(kind):
        return pa.binary()
    if kinds.is_timestamp(kind):
        return pa.timestamp("us", tz=kind.tz)
    if kinds.is_decimal(kind):
        return _decimal(kind, column)
    return _nested(kind, column)


def _nested(kind: pa.DataType, column: str) -> pa.DataType:
    if kinds.is_map(kind):
        item = _field(kind.item_field.with_name("value"), column)
        return pa.map_(_type(kind.key_type, column), item)
    if kinds.is_struct(kind) and kind.num_fields and not _is_tagged(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        # Spark requires it of structs at any depth: otherwise it reads no column of the file.
        if twice := names_alike([field.name for field in fields]):
            raise ConfigError(
                "two fields of a struct differ only in case",
                {"column": column, "type": kind, "twice": ",".join(twice)},
                "Rename or drop one of them in the function before the sink.",
            )
        return pa.struct([_field(field, column) for field in fields])
    if (
        kinds.is_list(kind)
        or kinds.is_large_list(kind)
        or kinds.is_fixed_size_list(kind)
        or kinds.is_list_view(kind)
        or kinds.is_large_list_view(kind)
    ):
        return pa.list_(_field(kind.value_field.with_name("element"), column))
    raise _unknown(kind, column)


def _is_tagged(kind: pa.DataType) -> bool:
    """Whether the struct stands for a type of Spark that other writers do not know."""
    tags = [kind.field(at).metadata or {} for at in range(kind.num_fields)]
    return any(_SPARKS_STRUCTS & each.keys() for each in tags)


def _decimal(kind: pa.DataType, column: str) -> pa.DataType:
    if not 0 <= kind.scale <= kind.precision <= _LARGEST_PRECISION:
        raise _unknown(kind, column)
    return pa.decimal128(kind.precision, kind.scale)


def _unknown(kind: pa.DataType, column: str) -> ConfigError:
    return ConfigError(
        "tasks without a JVM cannot write a column of this type",
        {"column": column, "type": kind},
        "Convert it in the function before the sink: numbers, text, bytes, dates, timestamps, "
        "decimals up to 38 digits, and lists, maps and structs of them.",
    )


def _converted(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        made = cast_values(column, field.type)
    except (ValueError, pa.ArrowException) as error:
        raise ConfigError(
            "a column does not fit its file",
            {"column": field.name, "type": column.type, "expected": field.type, "error": error},
            "Convert it in the function before the sink.",
        ) from error
    missing = missing_part(made, field)
    if missing is not None:
        raise ConfigError(
            "a column declared without nulls has nulls",
            {"column": missing, "type": field.type},
            "Declare it nullable in the function before the sink.",
        )
    return made
