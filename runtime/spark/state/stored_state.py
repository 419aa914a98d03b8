"""Reads Spark's state after one batch through Spark's own ``statestore`` source."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, StructField, StructType

from sluice.runtime.errors import ConfigError

__all__ = ["StateTable", "StoredState", "shown_column", "spark_errors"]

_ALL_COLUMNS = "_readAllColumnFamilies"  # which Spark's own repartition uses
_JOIN = "symmetricHashJoin"
_TRANSFORM = "transformWithState"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTable:
    """State that Spark's source reads as one table.

    Attributes:
        operator: number of Spark's operator.
        operator_name: of Spark.
        name: side of a join, or variable of `transformWithState`; "" if the operator has one table.
    """

    operator: int
    operator_name: str
    name: str

    @property
    def options(self) -> dict[str, str]:
        """For Spark's source."""
        found = {"operatorId": str(self.operator)}
        if self.name:
            is_side = self.operator_name.startswith(_JOIN)
            found["joinSide" if is_side else "stateVarName"] = self.name
        return found


@contextlib.contextmanager
def spark_errors(what: str, where: Mapping[str, object], remedy: str) -> Iterator[None]:
    """Translate an error of Spark about state into a `ConfigError`."""
    try:
        yield
    except PySparkException as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(what, {**where, "error": first}, remedy) from error


class StoredState:
    """The state of one query after a batch. Command line; reads only.

    Args:
        spark: see `sluice.runtime.spark.state.command_session.state_session`.
        location_uri: Spark's checkpoint location.
        batch_id: the batch.
    """

    def __init__(self, spark: SparkSession, location_uri: str, batch_id: int) -> None:
        self._spark = spark
        self._location_uri = location_uri
        self._batch_id = batch_id

    def tables(self) -> list[StateTable]:
        """All tables, as far as Spark's source reads them."""
        return sorted(
            {
                StateTable(operator=number, operator_name=name, name=table)
                for number, name, _, properties in self._metadata()
                for table in _tables_of(name, properties)
            },
            key=lambda table: (table.operator, table.name),
        )

    def rows(self, table: StateTable, *, limit: int) -> list[Any]:
        """Some rows of a table as JSON values: key, value, number of the state partition."""
        found = self._read(table.options)
        # Spark's rows of a join have a field more than their schema, which `to_json` stumbles over.
        columns = [shown_column(field) for field in found.schema.fields]
        row = F.to_json(F.struct(*columns), {"ignoreNullFields": "false"})
        found = found.limit(limit).select(row)
        with self._errors():
            return [json.loads(text) for (text,) in found.collect()]

    def stored(self) -> Iterator[tuple[str, DataFrame]]:
        """Keys and values of each state store as bytes, by the name of the store."""
        for number, name, store, _ in self._metadata():
            options = {"operatorId": str(number), "storeName": store, _ALL_COLUMNS: "true"}
            columns = ("column_family_name", "key_bytes", "value_bytes")
            yield f"{number}-{name}/{store}", self._read(options).select(*columns)

    def _metadata(self) -> list[tuple[int, str, str, str]]:
        with self._errors():
            found = self._spark.read.format("state-metadata").load(self._location_uri).collect()
        return [
            (row.operatorId, row.operatorName, row.stateStoreName, row.operatorProperties or "")
            for row in found
        ]

    def _read(self, options: Mapping[str, str]) -> DataFrame:
        reader = self._spark.read.format("statestore").option("batchId", self._batch_id)
        with self._errors():
            return reader.options(**options).load(self._location_uri)

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return spark_errors(
            "Spark cannot read this state",
            {"uri": self._location_uri, "batch_id": self._batch_id},
            "Verify the savepoint ('sluice savepoint verify'), or choose a newer checkpoint.",
        )


def shown_column(field: StructField) -> Column:
    """A column of Spark's source with the fields of its schema, bytes as text."""
    column = F.col(field.name)
    if not isinstance(field.dataType, StructType):
        return _as_text(column, field.dataType).alias(field.name)
    inner = ((each.name, each.dataType) for each in field.dataType.fields)
    whole = F.struct(*(_as_text(column[name], kind).alias(name) for name, kind in inner))
    return F.when(column.isNotNull(), whole).alias(field.name)


def _as_text(column: Column, kind: DataType) -> Column:
    """Bytes as UTF-8 text if they are that, for example keys of Kafka; else as ``0x`` and hex."""
    if not isinstance(kind, BinaryType):
        return column
    text = F.try_validate_utf8(column.cast("string"))
    return F.coalesce(text, F.concat(F.lit("0x"), F.hex(column)))


def _tables_of(operator_name: str, properties: str) -> list[str]:
    if operator_name.startswith(_JOIN):
        return ["left", "right"]
    if operator_name.startswith(_TRANSFORM):
        variables = json.loads(properties or "{}").get("stateVariables", ())
        return [each["stateName"] for each in variables]
    return [""]
