"""`IcebergSink`: what ``.sink(…)`` takes to write to an Iceberg table."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from sluice.connectors.iceberg.table.catalog_settings import CatalogSettings
from sluice.connectors.iceberg.table.upsert_key import UpsertKey
from sluice.connectors.iceberg.table.writing_plan import WritingPlan
from sluice.connectors.iceberg.writing.iceberg_writer import IcebergWriterFactory
from sluice.connectors.iceberg.written_files import decode_written_files
from sluice.runtime.contracts import SinkCoordinator, StoredSink, TaskSink
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.checkpoint_record import StateEntry

__all__ = ["IcebergSink"]

_TABLE = re.compile(r"[^.\s]+(\.[^.\s]+)+")


class IcebergSink(TaskSink, StoredSink):
    """Appends or upserts each epoch's rows into an Iceberg table, a snapshot for each checkpoint.

    Made by the user on the driver; picklable; holds no connection. Tasks write the Parquet data
    files; the driver alone commits. Columns go by name. Partition transforms, sort order and
    ``write.*`` properties are the table's.

    Args:
        catalog: a name in pyiceberg's configuration; or a URI (``sqlite:///…``,
            ``postgresql+psycopg2://…``, ``https://…``); or a mapping of pyiceberg's catalog
            properties.
        table: ``namespace.table``; it must exist.
        warehouse: of the catalog, if ``catalog`` does not say it: a directory or a name.
        evolve: whether columns that the table lacks are added, and types widened where Iceberg
            allows it; else such rows are refused.
        expire_snapshots: whether the committer expires snapshots, as the table's properties
            ``history.expire.*`` say. It deletes no files.
        upsert: whether a row replaces the rows of its key, as Iceberg's Flink sink does; None: as
            the table's property ``write.upsert.enabled`` says.
        equality_fields: columns of the key; none: the table's identifier fields.
        storage_options: of the table's object store, as `Job` takes them; None: those of the job,
            before the environment's. Properties of the catalog go before both.
        name: of the operator; None: made from the table.
        uid: stable id of the operator; set it before you rename.

    Raises:
        ConfigError: a setting is missing or out of range.
    """

    is_exactly_once = True

    def __init__(
        self,
        *,
        catalog: str | Mapping[str, object],
        table: str,
        warehouse: str | None = None,
        evolve: bool = False,
        expire_snapshots: bool = False,
        upsert: bool | None = None,
        equality_fields: Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
        name: str | None = None,
        uid: str | None = None,
    ) -> None:
        if not _TABLE.fullmatch(table):
            raise ConfigError(
                "the table of an Iceberg sink has no namespace",
                {"table": table},
                "Write namespace.table.",
            )
        if isinstance(equality_fields, str):
            equality_fields = [equality_fields]
        self._key = UpsertKey(is_upsert=upsert, fields=tuple(equality_fields))
        self._settings = CatalogSettings.of(
            catalog, warehouse=warehouse, storage_options=storage_options
        )
        self._table = table
        self._evolve = evolve
        self._expires = expire_snapshots
        self._name = name or f"iceberg-{table}"
        self._uid = uid

    @property
    def name(self) -> str:
        return self._name

    @property
    def uid(self) -> str | None:
        return self._uid

    @property
    def catalog_settings(self) -> CatalogSettings:
        """How to open the catalog."""
        return self._settings

    def target(self) -> tuple[str, ...]:
        """See `sluice.runtime.contracts.DropInSink`. Asks the catalog for the table's UUID: its
        name and address may change, and two catalogs may have a table of one name.

        Raises: as `CatalogSettings.load_table`.
        """
        return (str(self._settings.load_table(self._table).metadata.table_uuid),)

    def may_have_written(self, committable: StateEntry) -> bool:
        """See `sluice.runtime.contracts.DropInSink`: the target says it."""
        del committable
        return True

    def may_share_output(self, settings: Mapping[str, str]) -> bool:
        """See `sluice.runtime.contracts.DropInSink`."""
        return settings.get("table") == self._table

    @property
    def upsert_key(self) -> UpsertKey:
        """By which rows replace others."""
        return self._key

    def use_storage_options(self, options: Mapping[str, str]) -> None:
        own = self._settings.storage_options
        self._settings = replace(self._settings, storage_options=own or dict(options))

    def coordinator(self) -> SinkCoordinator:
        # Imported here, because tasks unpickle this class and never commit.
        from sluice.connectors.iceberg.committing.iceberg_sink_coordinator import (
            IcebergSinkCoordinator,
        )

        return IcebergSinkCoordinator(
            self._settings, self._table, key=self._key, expires=self._expires
        )

    def writer_factory(self) -> IcebergWriterFactory:
        """See `TaskSink`: loads the table, so that each attempt of a region begins with its newest
        schema, and with fresh credentials where the catalog gives them out."""
        from sluice.connectors.iceberg.writing.schema_evolution import evolve_table

        table = self._settings.load_table(self._table)
        plan = WritingPlan.of(self._table, table, self._key.ids_in(table, self._table))
        evolved = partial(evolve_table, self._settings, self._table) if self._evolve else None
        return IcebergWriterFactory(plan=plan, evolved=evolved)

    def source_ranges(self, committable: StateEntry) -> Sequence[tuple[str, int, int, int]]:
        """See `sluice.runtime.contracts.Sink`: no time-out loses data files."""
        del committable
        return ()

    def record_counts(self, committable: StateEntry) -> Mapping[str, int]:
        """See `sluice.runtime.contracts.Sink`."""
        return {self._table: decode_written_files(committable).rows}

    def settings(self) -> Mapping[str, str]:
        return {
            "table": self._table,
            "evolve": str(self._evolve).lower(),
            "upsert": "table" if self._key.is_upsert is None else str(self._key.is_upsert).lower(),
            "equality_fields": ",".join(self._key.fields),
            "expire_snapshots": str(self._expires).lower(),
            **{f"catalog.{key}": value for key, value in self._settings.shown().items()},
        }

    def __repr__(self) -> str:
        return f"IcebergSink(table={self._table!r})"
