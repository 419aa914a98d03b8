"""A table in a catalog of its own, and what writes to it without Spark and Kafka."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.connectors.iceberg.committing.iceberg_committer import IcebergCommitter
from sluice.connectors.iceberg.iceberg_sink import IcebergSink
from sluice.connectors.iceberg.table.catalog_settings import CatalogSettings
from sluice.connectors.iceberg.table.table_store import TableStore, sink_root
from sluice.runtime.contracts import AttemptRegistry, CommitReport, RegisteredAttempt, TaskScope
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import BatchKey
from tests.kit.iceberg.merged_rows import merged_rows
from tests.kit.waiting import PATIENCE_S

__all__ = ["JOB", "OPERATOR", "SCHEMA", "IcebergBed", "rows_of"]

JOB, OPERATOR, TABLE = "job-1", "sink-1", "lake.events"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
TIMEOUT_S = 20.0


def rows_of(*ids: int) -> pa.RecordBatch:
    """Rows of `SCHEMA`."""
    return pa.record_batch({"id": list(ids), "name": [f"n{i}" for i in ids]}, schema=SCHEMA)


@dataclass(slots=True)
class Registered(AttemptRegistry):
    """Keeps what was registered."""

    attempts: list[RegisteredAttempt] = field(default_factory=list)

    def register(self, attempt: RegisteredAttempt) -> float:
        self.attempts.append(attempt)
        return 0.0


@dataclass(slots=True, kw_only=True)
class IcebergBed:
    """One table below a directory.

    Attributes:
        directory: of catalog and warehouse.
        extra: further properties of the catalog.
        job_uid: of the job that writes.
        storage_options: of the table's object store.
    """

    directory: Path
    extra: dict[str, str] = field(default_factory=dict)
    job_uid: str = JOB
    storage_options: dict[str, str] = field(default_factory=dict)
    registry: Registered = field(default_factory=Registered)

    @property
    def properties(self) -> dict[str, object]:
        """Of the catalog."""
        return {
            # SQLite waits 5 s for another process; on a busy machine that may be too short.
            "uri": f"sqlite:///{self.directory}/catalog.db?timeout={PATIENCE_S}",
            "warehouse": f"file://{self.directory}/warehouse",
            **self.extra,
        }

    @property
    def settings(self) -> CatalogSettings:
        """Of the catalog."""
        return CatalogSettings.of(self.properties, storage_options=self.storage_options)

    def catalog(self) -> Catalog:
        """A client of its own."""
        return self.settings.open()

    def create(self, schema: pa.Schema = SCHEMA, **of_table: Any) -> Table:
        """Make the table."""
        catalog = self.catalog()
        catalog.create_namespace_if_not_exists("lake")
        return catalog.create_table(TABLE, schema, **of_table)

    def table(self) -> Table:
        """As it is now."""
        return self.catalog().load_table(TABLE)

    def ids(self) -> Counter[int]:
        """How often the table has each id."""
        return Counter(self.table().scan().to_arrow()["id"].to_pylist())

    def rows(self) -> list[dict[str, Any]]:
        """Rows that a reader of format version 2 sees, with equality deletes applied."""
        return merged_rows(self.table())

    def sink(self, **of_sink: Any) -> IcebergSink:
        """Of the table."""
        return IcebergSink(
            catalog=self.properties, table=TABLE, storage_options=self.storage_options, **of_sink
        )

    def committer(self, **of_committer: Any) -> IcebergCommitter:
        """A new one, as after a restart."""
        return IcebergCommitter(self.settings, TABLE, **of_committer)

    def scope(self, region: str, batch_id: int, *, attempt_id: int, task: str) -> TaskScope:
        """Of a task."""
        return TaskScope(
            job_uid=self.job_uid,
            operator_id=OPERATOR,
            batch=BatchKey(region=region, attempt_id=attempt_id, batch_id=batch_id),
            checkpoint_id=batch_id + 1,
            committed_through=0,
            task=task,
        )

    def pre_commit(
        self,
        *batches: pa.RecordBatch,
        region: str = "orders",
        batch_id: int = 0,
        attempt_id: int = 1,
        task: str = "0.0",
        **of_sink: Any,
    ) -> list[StateEntry]:
        """What a task writes and reports."""
        factory = self.sink(**of_sink).writer_factory()
        scope = self.scope(region, batch_id, attempt_id=attempt_id, task=task)
        writer = factory.open(scope, self.registry)
        for batch in batches:
            writer.write(batch)
        return writer.pre_commit()

    def commit(
        self,
        entries: Sequence[StateEntry],
        *,
        committer: IcebergCommitter | None = None,
        checkpoint_id: int = 1,
        after_crash: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> list[CommitReport]:
        """Commit as the coordinator does."""
        committer = committer or self.committer()
        committer.begin_checkpoint(checkpoint_id)
        return committer.commit(entries, timeout_s=timeout_s, after_crash=after_crash)

    def notes(self) -> list[str]:
        """Notes of the sink, and its lease."""
        table = self.table()
        root = sink_root(table.location(), job_uid=self.job_uid, operator_id=OPERATOR)
        return TableStore(table.io, root).names()

    def data_files(self) -> set[str]:
        """On the disk."""
        return {path.name for path in self.directory.glob("warehouse/**/*.parquet")}
