"""Commits decided files to their table, each once, whatever the catalog answered."""

import itertools
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from sluice.connectors.iceberg.committing.changed_types import changed_types
from sluice.connectors.iceberg.committing.commit_positions import CommitPositions
from sluice.connectors.iceberg.committing.dropped_columns import values_of_dropped_columns
from sluice.connectors.iceberg.committing.table_commit import (
    UnappendableFilesError,
    append_files,
    expire_snapshots,
)
from sluice.connectors.iceberg.table.catalog_settings import CatalogSettings, load_table
from sluice.connectors.iceberg.table.client_errors import (
    client_errors,
    client_errors_translated,
)
from sluice.connectors.iceberg.table.table_store import TableStore, sink_root
from sluice.connectors.iceberg.table.upsert_key import foreign_specs
from sluice.connectors.iceberg.writing.write_notes import note_name
from sluice.connectors.iceberg.written_files import WrittenFiles, decode_written_files
from sluice.runtime.contracts import CheckpointCommitter, Clock, CommitOutcome, CommitReport
from sluice.runtime.errors import AuthenticationError, ConfigError, StorageError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.process.backoff import Backoff

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

__all__ = ["IcebergCommitter"]

log = logging.getLogger(__name__)

_DONE = CommitReport(outcome=CommitOutcome.COMMITTED)
_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_EXPIRES_AT_ONCE = 100


class IcebergCommitter(CheckpointCommitter):
    """Implements `sluice.runtime.contracts.CheckpointCommitter`. Driver; one thread at a time.

    All regions that completed a checkpoint share one snapshot; files that follow an older partition
    spec get one of their own. The positions in the table's properties say what it already has; see
    `CommitPositions`. A conflict with another writer is tried again on top of its snapshot. After
    any other failure the committer loads the table and looks at the positions.

    Args:
        settings: of the catalog.
        table: name of the table in it.
        expires: whether it also expires snapshots.
        clock: monotonic seconds.
        sleep: for seconds.
    """

    def __init__(
        self,
        settings: CatalogSettings,
        table: str,
        *,
        expires: bool = False,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._name = table
        self._expires = expires
        self._clock = clock
        self._sleep = sleep
        self._catalog: Catalog | None = None
        self._table: Table | None = None
        self._checkpoint_id: int | None = None
        self._refusal: CommitReport | None = None

    def begin_checkpoint(self, checkpoint_id: int) -> None:
        self._checkpoint_id = checkpoint_id

    def commit(
        self, committables: Sequence[StateEntry], *, timeout_s: float, after_crash: bool
    ) -> list[CommitReport]:
        deadline_s = self._clock() + timeout_s
        works = [decode_written_files(entry) for entry in committables]
        reports: dict[int, CommitReport] = {}
        stopped: dict[str, CommitReport] = {}
        for places in _snapshots_of(works):
            going = [i for i in places if works[i].attempt.batch.region not in stopped]
            reports |= {i: stopped[works[i].attempt.batch.region] for i in places if i not in going}
            if not going:
                continue
            report = self._settle(
                [works[i] for i in going],
                operator_id=committables[going[0]].operator_id,
                deadline_s=deadline_s,
                after_crash=after_crash,
            )
            reports |= dict.fromkeys(going, report)
            if report.outcome is not CommitOutcome.COMMITTED:
                # With a later batch of the region in the table, these would count as committed.
                stopped |= {works[i].attempt.batch.region: _behind(report) for i in going}
        if self._expires and all(one is _DONE for one in reports.values()):
            self._expire()
        return [reports[i] for i in range(len(works))]

    def abort(self, committables: Sequence[StateEntry], *, timeout_s: float) -> list[CommitReport]:
        """See `Committer.abort`: deletes the files."""
        deadline_s = self._clock() + timeout_s
        return [
            self._discard(entry, decode_written_files(entry), deadline_s) for entry in committables
        ]

    def await_visible(self, *, timeout_s: float) -> bool:
        """See `Committer.await_visible`: a committed snapshot is visible at once."""
        del timeout_s
        return True

    def close(self) -> None:
        """End the client."""
        catalog, self._catalog, self._table = self._catalog, None, None
        if catalog is not None and hasattr(catalog, "close"):
            catalog.close()

    def _settle(
        self,
        works: Sequence[WrittenFiles],
        *,
        operator_id: str,
        deadline_s: float,
        after_crash: bool,
    ) -> CommitReport:
        """One outcome for all: they join one snapshot."""
        pauses, is_checked = Backoff(_PAUSE_S, _LONGEST_PAUSE_S), not after_crash
        detail = "the time ran out before the try"
        if after_crash:
            self._table = None
        for attempt in itertools.count():
            if attempt and self._clock() >= deadline_s:
                return CommitReport(outcome=CommitOutcome.PENDING, detail=detail)
            try:
                report = self._try(works, operator_id=operator_id, is_checked=is_checked)
                if report is not None:
                    # Else a person must act, and may change the table.
                    self._table = self._table if report is _DONE else None
                    return report
                detail = "other writers change the table all the time"
            except (StorageError, AuthenticationError) as err:
                detail = str(err)
            except (ConfigError, UnappendableFilesError) as err:  # a person must act
                self._table = None
                return CommitReport(outcome=CommitOutcome.UNKNOWN, detail=str(err))
            except client_errors() as err:
                # It may have happened. The next try loads the table and looks at the positions.
                detail = f"{type(err).__name__}: {err}"
                log.warning(
                    "a table commit did not answer, reading the table: table=%s error=%s",
                    self._name,
                    detail,
                )
            self._table, is_checked = None, False
            pause_s = pauses.next_s() * (0.5 + random.random() / 2)
            self._sleep(max(0.0, min(pause_s, deadline_s - self._clock())))
        raise AssertionError("unreachable")

    def _try(
        self, works: Sequence[WrittenFiles], *, operator_id: str, is_checked: bool
    ) -> CommitReport | None:
        """A report; None after a conflict: nothing happened."""
        from pyiceberg.exceptions import CommitFailedException

        if self._refusal is not None:
            return self._refusal
        table = self._current()
        foreign = _foreign(works, str(table.metadata.table_uuid))
        if foreign is not None:
            return foreign
        positions = CommitPositions.read(
            table.metadata.properties, job_uid=works[0].job_uid, operator_id=operator_id
        )
        todo = [work for work in works if not positions.covers(work.attempt)]
        if todo:
            missing = [] if is_checked else _missing(table, todo)
            if missing:
                return _lost(missing)
            if todo[0].spec_id not in table.specs():
                return _specless(todo[0])
            changed = changed_types(table.metadata, todo)
            if changed:
                return _unreadable(todo[0], changed)
            if any(work.deletes for work in todo) and foreign_specs(table, todo[0].spec_id):
                return _unreached(todo[0])
            try:
                append_files(
                    table,
                    todo,
                    positions,
                    operator_id=operator_id,
                    checkpoint_id=self._checkpoint_id,
                )
            except CommitFailedException as err:
                log.info("table commit refused: table=%s error=%s", self._name, err)
                return None
            _warn_of_dropped(table, todo)
            after = CommitPositions.read(
                table.metadata.properties, job_uid=works[0].job_uid, operator_id=operator_id
            )
            if not all(after.covers(work.attempt) for work in todo):
                self._refusal = _forgotten(todo[0])  # this work is in the table
        _delete_notes(table, works, operator_id)
        return _DONE

    def _current(self) -> "Table":
        """The table as this process knows it; loaded if it knows none."""
        if self._table is None:
            if self._catalog is None:
                self._catalog = self._settings.open()
            failpoint("before-lookup")
            self._table = load_table(self._catalog, self._name, self._settings.where())
            failpoint("after-lookup")
        return self._table

    def _discard(self, entry: StateEntry, work: WrittenFiles, deadline_s: float) -> CommitReport:
        if self._clock() >= deadline_s:
            return CommitReport(outcome=CommitOutcome.PENDING, detail="the time ran out")
        try:
            table = self._current()
            _store(table, work, entry.operator_id).delete([*work.paths, note_name(work.attempt)])
        except (StorageError, AuthenticationError, ConfigError) as err:
            return CommitReport(outcome=CommitOutcome.PENDING, detail=str(err))
        return CommitReport(outcome=CommitOutcome.ABORTED)

    def _expire(self) -> None:
        """Metadata only; whatever goes wrong, a later commit tries again."""
        try:
            with client_errors_translated("expire snapshots", self._settings.where()):
                expired = expire_snapshots(self._current(), least=_EXPIRES_AT_ONCE)
        except (StorageError, AuthenticationError, ConfigError) as err:
            self._table = None
            log.warning("snapshots were not expired: table=%s error=%s", self._name, err)
            return
        if expired:
            log.info("snapshots expired: table=%s snapshots=%d", self._name, expired)


def _snapshots_of(works: Sequence[WrittenFiles]) -> Iterator[list[int]]:
    """The indices of the work that each snapshot has: of one partition spec, and of each region in
    the order of its batches. A spec's id says nothing of its age: a person may change it back.
    """
    left = sorted(range(len(works)), key=lambda i: (works[i].attempt.position, works[i].spec_id))
    while left:
        spec_id = works[left[0]].spec_id
        taken, later, behind = [], [], set()
        for i in left:
            region = works[i].attempt.batch.region
            if works[i].spec_id == spec_id and region not in behind:
                taken.append(i)
            else:
                later.append(i)
                behind.add(region)
        yield taken
        left = later


def _behind(report: CommitReport) -> CommitReport:
    return CommitReport(
        outcome=CommitOutcome.PENDING,
        detail=f"an earlier batch of the region is not in the table: {report.detail}",
    )


def _unknown(detail: str) -> CommitReport:
    return CommitReport(outcome=CommitOutcome.UNKNOWN, detail=detail)


def _foreign(works: Iterable[WrittenFiles], table_uuid: str) -> CommitReport | None:
    for work in works:
        if work.table_uuid != table_uuid:
            return _unknown(
                f"table {work.table} was dropped and created again: decided files belong to "
                f"{work.table_uuid}, and the table is {table_uuid}"
            )
    return None


def _missing(table: "Table", works: Iterable[WrittenFiles]) -> list[str]:
    store = TableStore(table.io, table.location())
    return [path for work in works for path in work.paths if not store.exists(path)]


def _lost(missing: Sequence[str]) -> CommitReport:
    """Another program deleted decided files. A person decides: a copy may exist."""
    return _unknown(f"{len(missing)} decided data files are gone, the first is {missing[0]}")


def _specless(work: WrittenFiles) -> CommitReport:
    """Another program removed the partition spec that decided files follow."""
    return _unknown(
        f"table {work.table} no longer has partition spec {work.spec_id} of decided files"
    )


def _forgotten(work: WrittenFiles) -> CommitReport:
    """After a lost answer or a crash, work would be appended a second time."""
    return _unknown(
        f"the catalog of table {work.table} does not keep table properties that a commit sets. "
        "The sink needs them to append files once, and has appended nothing more. Use another "
        "catalog"
    )


def _unreadable(work: WrittenFiles, changed: Mapping[str, str]) -> CommitReport:
    """A person replaced the table. With the files in it, no reader could read the columns."""
    named = ", ".join(f"{name} ({types})" for name, types in changed.items())
    return _unknown(
        f"table {work.table} has changed the types of columns, and decided files were not "
        f"appended: {named}. Give the columns back their types, or the table its earlier "
        "metadata, and start the job again"
    )


def _unreached(work: WrittenFiles) -> CommitReport:
    """Another program changed the partition spec. Old and new rows of a key would both be seen."""
    return _unknown(
        f"table {work.table} has rows of another partition spec than {work.spec_id}, and "
        "upserts cannot replace them: call rewrite_data_files with rewrite-all=true"
    )


def _warn_of_dropped(table: "Table", works: Sequence[WrittenFiles]) -> None:
    """The rows are decided, so the commit goes on: a column may be dropped on purpose."""
    found = values_of_dropped_columns(table.metadata, works)
    if found:
        log.warning(
            "the table has dropped columns, and values of committed rows are not visible; restart "
            "the job to write by the table's columns: table=%s values=%s",
            works[0].table,
            ",".join(f"{name}:{count}" for name, count in found.items()),
        )


def _store(table: "Table", work: WrittenFiles, operator_id: str) -> TableStore:
    root = sink_root(work.location, job_uid=work.job_uid, operator_id=operator_id)
    return TableStore(table.io, root)


def _delete_notes(table: "Table", works: Sequence[WrittenFiles], operator_id: str) -> None:
    """Before the checkpoint is committed on record; see `write_notes`."""
    failpoint("before-notes-deleted")
    by_root: dict[str, tuple[TableStore, list[str]]] = {}
    for work in works:
        store = _store(table, work, operator_id)
        by_root.setdefault(store.root, (store, []))[1].append(note_name(work.attempt))
    for store, names in by_root.values():
        store.delete(names)
    failpoint("after-notes-deleted")
