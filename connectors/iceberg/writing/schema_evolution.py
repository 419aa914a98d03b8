"""Adds columns to a table by name, and widens types where Iceberg allows it."""

import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pt

from sluice.connectors.iceberg.table.catalog_settings import CatalogSettings
from sluice.connectors.iceberg.table.client_errors import as_typed, client_errors
from sluice.connectors.iceberg.table.writing_plan import WritingPlan
from sluice.connectors.iceberg.writing.row_alignment import require_known, unknown_columns
from sluice.runtime.errors import ConfigError
from sluice.runtime.failpoints import failpoint

if TYPE_CHECKING:
    from pyiceberg.table import Table, Transaction

__all__ = ["evolve_table"]

_TRIES = 10
_FIRST_PAUSE_S = 0.05


def evolve_table(
    settings: CatalogSettings,
    name: str,
    columns: Sequence[pa.Field],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> WritingPlan:
    """The plan of the table after it has these columns. Driver at a start; else a task.

    Adds what the table lacks; drops nothing and makes no required column optional. Safe to repeat,
    and safe beside another process that adds the same columns: each try looks at the table again.

    Raises:
        ConfigError: a column cannot have the type, or its name; StorageError, AuthenticationError.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    table = settings.load_table(name)
    for tries_left in reversed(range(_TRIES)):
        missing = unknown_columns(pa.schema(columns), schema_to_pyarrow(table.schema()))
        if not missing:
            break
        try:
            failpoint("before-evolve")
            _changed(table, missing, name).commit_transaction()
            failpoint("after-evolve")
        except client_errors() as err:  # it may have happened: look again
            if not tries_left:
                raise as_typed(err, "evolve a table", {**settings.where(), "table": name}) from err
            sleep(_FIRST_PAUSE_S * (_TRIES - tries_left) * random.random())
        table = settings.load_table(name)
    require_known(
        unknown_columns(pa.schema(columns), schema_to_pyarrow(table.schema())),
        schema_to_pyarrow(table.schema()),
        table=name,
    )
    return WritingPlan.of(name, table)


def _changed(table: "Table", columns: Sequence[pa.Field], name: str) -> "Transaction":
    """A change that has yet to be committed; after it the table can hold the columns."""
    from pyiceberg.exceptions import ResolveError, ValidationError
    from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, schema_to_pyarrow

    _require_other_names(columns, schema_to_pyarrow(table.schema()), name)
    wanted = [column.with_nullable(True).with_type(_held(column.type)) for column in columns]
    refusals = (ResolveError, ValidationError, UnsupportedPyArrowTypeException)
    try:
        change = table.transaction()
        with change.update_schema() as update:
            update.union_by_name(pa.schema(wanted))
        evolved = schema_to_pyarrow(change.table_metadata.schema())
        if refused := unknown_columns(pa.schema(columns), evolved):
            raise TypeError(f"no type of Iceberg holds {', '.join(map(str, refused))}")
    except (*refusals, TypeError, ValueError) as err:
        raise ConfigError(
            "Iceberg cannot evolve a column to the type of its rows",
            {
                "table": name,
                "columns": ",".join(f"{column.name}:{column.type}" for column in columns),
                "error": str(err),
            },
            "Convert the column in a function before the sink, or give it another name.",
        ) from err
    return change


def _held(kind: pa.DataType) -> pa.DataType:
    """With ``uint32`` as ``int64``: pyiceberg would make it an int, which does not hold it."""
    if pt.is_dictionary(kind):
        return _held(kind.value_type)
    if pt.is_struct(kind):
        return pa.struct([field.with_type(_held(field.type)) for field in kind])
    if pt.is_map(kind):
        items = kind.item_field
        return pa.map_(_held(kind.key_type), items.with_type(_held(items.type)))
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        items = kind.value_field
        return pa.list_(items.with_type(_held(items.type)))
    return pa.int64() if kind == pa.uint32() else kind


def _require_other_names(columns: Sequence[pa.Field], known: pa.Schema, name: str) -> None:
    twins = _twins(columns, known, "")
    if twins is not None:
        raise ConfigError(
            "a new column differs from another one by case alone",
            {"table": name, "column": twins[0], "other": twins[1]},
            "Rename it before the sink: Spark takes both for one name, and can read neither.",
        )


def _twins(
    columns: Iterable[pa.Field], known: Iterable[pa.Field], path: str
) -> tuple[str, str] | None:
    """A new column, and another one whose name differs by case alone; also inside columns."""
    by_name = {field.name: field for field in known}
    spelled = {field_name.lower(): field_name for field_name in by_name}
    for column in columns:
        name, old = column.name, by_name.get(column.name)
        other = spelled.setdefault(name.lower(), name)
        if old is None and other != name:
            return path + name, path + other
        inside = _fields(old.type) if old else []
        if twins := _twins(_fields(column.type), inside, f"{path}{name}."):
            return twins
    return None


def _fields(kind: pa.DataType) -> list[pa.Field]:
    """Fields of a struct, or of the structs in a list or map."""
    if pt.is_struct(kind):
        return list(kind)
    if pt.is_map(kind):
        return _fields(kind.item_type)
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return _fields(kind.value_type)
    return []
