"""The driver's side of an Iceberg sink: start check, lease, sweep and committer."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sluice.connectors.iceberg.committing.commit_positions import CommitPositions
from sluice.connectors.iceberg.committing.iceberg_committer import IcebergCommitter
from sluice.connectors.iceberg.committing.iceberg_sweep import sweep_attempts
from sluice.connectors.iceberg.table.catalog_settings import CatalogSettings
from sluice.connectors.iceberg.table.table_store import TableLeaseStore, TableStore, sink_root
from sluice.connectors.iceberg.table.upsert_key import UpsertKey
from sluice.connectors.iceberg.written_files import decode_written_files
from sluice.runtime.contracts import (
    Clock,
    Committer,
    SinkContext,
    SinkCoordinator,
    SweepReport,
    SweepView,
)
from sluice.runtime.errors import ConfigError, IllegalTransitionError, StreamError, WrongJobError
from sluice.runtime.ownership.lease import Lease, LeasedOutput

if TYPE_CHECKING:
    from pyiceberg.table import Table

__all__ = ["IcebergSinkCoordinator", "require_writable_table"]

log = logging.getLogger(__name__)

_NEWEST_FORMAT = 2
_AS_THE_TABLE_SAYS = UpsertKey()


def require_writable_table(table: "Table", name: str) -> None:
    """ConfigError if pyiceberg cannot append to the table."""
    version = table.metadata.format_version
    if version > _NEWEST_FORMAT:
        raise ConfigError(
            "pyiceberg cannot write to this format version of Iceberg",
            {"table": name, "format-version": version},
            f"Use a table of format version 1 to {_NEWEST_FORMAT}.",
        )
    file_format = table.properties.get("write.format.default", "parquet")
    if file_format.lower() != "parquet":
        raise ConfigError(
            "the sink writes Parquet files alone",
            {"table": name, "write.format.default": file_format},
            "Set write.format.default=parquet on the table.",
        )


class IcebergSinkCoordinator(SinkCoordinator):
    """Implements `sluice.runtime.contracts.SinkCoordinator` for one table. Driver.

    Several jobs may write to one table: the job's uid is part of every note and property. The
    fencing record in the checkpoint directory separates two runs of one job (`fence-first`); the
    lease beside the table separates a job from a copy of its directory (`lease-guards-outputs`).

    Args:
        settings: of the catalog.
        table: name of the table in it.
        key: of upserts.
        expires: see `IcebergCommitter`.
        prepare: runs after the check of the table, before anything is written.
        clock: monotonic seconds.
        sleep: for seconds.
    """

    committer: Committer

    def __init__(
        self,
        settings: CatalogSettings,
        table: str,
        *,
        key: UpsertKey = _AS_THE_TABLE_SAYS,
        expires: bool = False,
        prepare: Callable[[], object] = lambda: None,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._name = table
        self._key = key
        self._prepare = prepare
        self._clock = clock
        self._sleep = sleep
        self._context: SinkContext | None = None
        self._store: TableStore | None = None
        self._lease: Lease | None = None
        self._committer = IcebergCommitter(
            settings, table, expires=expires, clock=clock, sleep=sleep
        )
        self.committer = self._committer

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        """See `SinkCoordinator.check`; the catalog's client bounds each call."""
        del timeout_s
        table = self._settings.load_table(self._name)
        require_writable_table(table, self._name)
        self._key.ids_in(table, self._name)
        return {}

    def claim(self, context: SinkContext, *, timeout_s: float) -> None:
        """See `SinkCoordinator.claim`: takes the lease.

        Raises:
            WrongJobError: the table has commits of this job that its checkpoint directory does not
                know: an older copy of the directory was restored. Its new work would count as
                committed already. Or the table lacks commits that the directory has on record.
        """
        del timeout_s
        table = self._settings.load_table(self._name)
        root = sink_root(table.location(), job_uid=context.job_uid, operator_id=context.operator_id)
        store = TableStore(table.io, root)
        lease = Lease(
            TableLeaseStore(store),
            context,
            LeasedOutput(
                kind="Iceberg table",
                name=f"{self._name} ({root})",
                remedy="Run only one of the two jobs: one checkpoint directory is a copy of the "
                "other, and a copy is the same job. For a job of its own, use an empty checkpoint "
                "directory.",
            ),
            clock=self._clock,
            sleep=self._sleep,
        )
        lease.acquire()
        self._lease, self._store, self._context = lease, store, context
        _require_older_commits(table, self._name, context)
        _require_recorded_commits(table, self._name, context)
        self._prepare()

    def sweep(self, view: SweepView, *, timeout_s: float) -> SweepReport:
        """See `SinkCoordinator.sweep`: files that remain hide nothing."""
        del timeout_s
        context, store = self._context, self._store
        if context is None or store is None:
            raise IllegalTransitionError(
                "an Iceberg sink was swept before it acquired its lease",
                {"table": self._name},
                "Report this bug.",
            )
        try:
            positions = _positions(self._settings.load_table(self._name), context)
        except StreamError as err:
            log.warning("data files were not swept: table=%s error=%s", self._name, err)
            return SweepReport(aborted=0)
        return SweepReport(
            aborted=sweep_attempts(store, view, positions, operator_id=context.operator_id)
        )

    def renew(self) -> None:
        if self._lease is not None:
            self._lease.renew()

    def close(self) -> None:
        self._committer.close()
        lease, self._lease = self._lease, None
        if lease is not None:
            try:
                lease.release()
            except StreamError as err:
                log.info("lease was not released: table=%s error=%s", self._name, err)


def _positions(table: "Table", context: SinkContext) -> CommitPositions:
    return CommitPositions.read(
        table.metadata.properties, job_uid=context.job_uid, operator_id=context.operator_id
    )


def _require_older_commits(table: "Table", name: str, context: SinkContext) -> None:
    """The attempt alone shows little: each refused start of an older copy has a higher one."""
    for region, position in _positions(table, context).of_regions.items():
        is_later = position.checkpoint_id > context.last_decision
        if is_later or position.attempt_id >= context.attempt_id:
            raise WrongJobError(
                "the table has commits that this checkpoint directory does not know",
                {
                    "table": name,
                    "region": region,
                    "checkpoint_in_table": position.checkpoint_id,
                    "checkpoint_in_directory": context.last_decision,
                    "attempt_in_table": position.attempt_id,
                    "attempt": context.attempt_id,
                },
                "Start from the newest checkpoint directory of the job, or start a new job with an "
                "empty one.",
            )


def _require_recorded_commits(table: "Table", name: str, context: SinkContext) -> None:
    """Nothing else would say that committed rows are gone: the job would continue after them."""
    positions = _positions(table, context)
    for work in map(decode_written_files, context.committed):
        if work.job_uid != context.job_uid or work.table != name:
            continue  # of the job whose savepoint this one began with, or of an earlier table
        is_other = work.table_uuid != str(table.metadata.table_uuid)
        if is_other or not positions.covers(work.attempt):
            position = positions.of_regions.get(work.attempt.batch.region)
            raise WrongJobError(
                "the table was dropped and created again: it lacks committed rows"
                if is_other
                else "the table was put back to an earlier state: it lacks committed rows",
                {
                    "table": name,
                    "region": work.attempt.batch.region,
                    "checkpoint_in_directory": work.checkpoint_id,
                    "checkpoint_in_table": position.checkpoint_id if position else "none",
                    "uuid_in_directory": work.table_uuid,
                    "uuid": table.metadata.table_uuid,
                },
                "Bring back the table as it was; or start from a checkpoint that it has, with "
                "restore_from; or start a new job with an empty checkpoint directory.",
            )
