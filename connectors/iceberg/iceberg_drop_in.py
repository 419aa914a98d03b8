"""The format ``sluice-iceberg``: a sink class that holds the address of its service."""

from collections.abc import Callable, Mapping

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from sluice.connectors.iceberg.iceberg_sink import IcebergSink
from sluice.connectors.iceberg.table.writing_plan import WritingPlan
from sluice.connectors.iceberg.writing.row_alignment import require_known, unknown_columns
from sluice.connectors.iceberg.writing.upsert_rows import require_key, upsert_key
from sluice.runtime.contracts import DropInSink
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.spelling import nearest
from sluice.runtime.spark.drop_in.drop_in_format import WriteOnlyFormat
from sluice.runtime.storage.objects.object_location import is_storage_option

__all__ = ["IcebergFormat", "iceberg_sink"]

_OF_CATALOG = "catalog."
_OPTIONS = {
    name.lower(): name
    for name in (
        *("catalog", "table", "path", "warehouse", "evolve", "expireSnapshots"),
        *("upsert", "equalityFields"),
    )
}
# Names of Iceberg's Flink sink and of its Kafka Connect sink.
_ALIASES = {
    "upsert-enabled": "upsert",
    "iceberg.tables.upsert-mode-enabled": "upsert",
    "equality-fields": "equalityfields",
    "id-columns": "equalityfields",
    "iceberg.tables.default-id-columns": "equalityfields",
    "iceberg.tables.evolve-schema-enabled": "evolve",
}
# Spark passes these to the sink of every format.
_SPARKS_OWN = frozenset({"checkpointlocation", "outputmode", "queryname"})


class IcebergFormat(WriteOnlyFormat):
    """Spark makes one for each ``format("sluice-iceberg")``."""

    format_name = "sluice-iceberg"
    other_formats = "Use Iceberg's own format, or pyiceberg."

    @classmethod
    def check_rows(cls, options: Mapping[str, str], schema: StructType) -> None:
        """Also compares the columns with those of the table, and its key."""
        given = _Options(options)
        sink = given.sink()
        table = sink.catalog_settings.load_table(given.table)
        plan = WritingPlan.of(given.table, table, sink.upsert_key.ids_in(table, given.table))
        rows = to_arrow_schema(schema, timezone="UTC")
        require_key(rows, upsert_key(plan), table=given.table)
        if given.evolve:
            return
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        target = schema_to_pyarrow(table.schema())
        require_known(unknown_columns(rows, target), target, table=given.table)


def iceberg_sink(options: Mapping[str, str], setting: Callable[[str], str]) -> DropInSink:
    """A query's sink; the same whatever its session has set."""
    del setting
    return _Options(options).sink()


class _Options:
    """Options by names in any case; ``catalog.*`` are pyiceberg's properties of the catalog.

    Raises:
        ConfigError: one is missing, unknown or not valid.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        known: dict[str, str] = {}
        self._properties: dict[str, object] = {}
        self._storage: dict[str, str] = {}
        for name, value in options.items():
            plain = name.strip().lower()
            plain = _ALIASES.get(plain, plain)
            if plain.startswith(_OF_CATALOG):
                self._properties[plain.removeprefix(_OF_CATALOG)] = value
            elif is_storage_option(plain):
                self._storage[plain] = value
            elif plain in _OPTIONS:
                known[plain] = value
            elif plain not in _SPARKS_OWN:
                raise _unknown(name)
        self._known = known
        self.table = known.get("table", known.get("path", ""))
        self.evolve = self._flag("evolve")

    def sink(self) -> IcebergSink:
        """The sink that they describe."""
        catalog = self._known.get("catalog")
        given: str | dict[str, object] = self._properties or catalog or ""
        if catalog and self._properties:
            place = "uri" if ":" in catalog else "name"
            given = {place: catalog, **self._properties}
        return IcebergSink(
            catalog=given,
            table=self.table,
            warehouse=self._known.get("warehouse"),
            evolve=self.evolve,
            expire_snapshots=self._flag("expiresnapshots"),
            upsert=self._flag("upsert") if "upsert" in self._known else None,
            equality_fields=[
                field.strip() for field in self._known.get("equalityfields", "").split(",") if field
            ],
            storage_options=self._storage,
            name="iceberg",
            uid="sluice-iceberg",  # another table does not make it another sink
        )

    def _flag(self, name: str) -> bool:
        value = self._known.get(name, "false").strip().lower()
        if value not in ("true", "false"):
            raise ConfigError(
                "an option of the Iceberg sink is neither true nor false",
                {"option": _OPTIONS[name], "value": value},
                "Write true or false.",
            )
        return value == "true"


def _unknown(name: str) -> ConfigError:
    guess = nearest(name.lower(), set(_OPTIONS))
    return ConfigError(
        "the Iceberg sink has no such option",
        {"format": IcebergFormat.format_name, "option": name},
        f"Did you mean {_OPTIONS[guess]}?"
        if guess
        else "Give properties of the catalog as catalog.NAME.",
    )
