"""Adds columns to a table by name, and widens types where Iceberg allows it."""

import random
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from sluice.connectors.iceberg.table.catalog_settings import CatalogSettings
from sluice.connectors.iceberg.table.client_errors import as_typed, client_errors
from sluice.connectors.iceberg.table.writing_plan import WritingPlan
from sluice.connectors.iceberg.writing.row_alignment import require_known, unknown_columns
from sluice.runtime.errors import ConfigError
from sluice.runtime.failpoints import failpoint

if TYPE_CHECKING:
    from pyiceberg.table import Table

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
        ConfigError: a column cannot have the type; StorageError, AuthenticationError.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    table = settings.load_table(name)
    for tries_left in reversed(range(_TRIES)):
        missing = unknown_columns(pa.schema(columns), schema_to_pyarrow(table.schema()))
        if not missing:
            break
        try:
            failpoint("before-evolve")
            _add(table, missing, name)
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


def _add(table: "Table", columns: Sequence[pa.Field], name: str) -> None:
    from pyiceberg.exceptions import ResolveError, ValidationError

    try:
        with table.update_schema() as update:
            update.union_by_name(pa.schema([column.with_nullable(True) for column in columns]))
    except (ResolveError, ValidationError, TypeError) as err:
        raise ConfigError(
            "Iceberg cannot evolve a column to the type of its rows",
            {
                "table": name,
                "columns": ",".join(f"{column.name}:{column.type}" for column in columns),
                "error": str(err),
            },
            "Convert the column in a function before the sink, or give it another name.",
        ) from err
