"""Writes the rows of one task and epoch as data files, and pre-commits them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from sluice.connectors.iceberg.table.table_store import TableStore, sink_root
from sluice.connectors.iceberg.table.writing_plan import WritingPlan
from sluice.connectors.iceberg.writing.data_file_writer import DataFileWriter
from sluice.connectors.iceberg.writing.write_notes import WriteNote
from sluice.connectors.iceberg.written_files import (
    WriteAttempt,
    WrittenFiles,
    encode_written_files,
    types_of,
)
from sluice.runtime.contracts import (
    AttemptRegistry,
    ContinuousWriter,
    ContinuousWriterFactory,
    RegisteredAttempt,
    TaskScope,
)
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import SplitRange

__all__ = ["EvolvePlan", "IcebergWriter", "IcebergWriterFactory"]

EvolvePlan = Callable[[Sequence[pa.Field]], WritingPlan]
"""Adds columns to the table; returns its plan after that."""

_MOST_OF_A_REGION = 100  # a file's name has at most 255 bytes


class IcebergWriter(ContinuousWriter):
    """Implements `sluice.runtime.contracts.ContinuousWriter`. Python worker.

    The driver commits for all tasks at once, so a task never does.
    """

    def __init__(
        self,
        plan: WritingPlan,
        evolved: EvolvePlan | None,
        scope: TaskScope,
        registry: AttemptRegistry,
    ) -> None:
        self._plan = plan
        self._evolved = evolved
        self._scope = scope
        self._registry = registry
        self._attempt = WriteAttempt.draw(scope.batch)
        self._checkpoint_id = scope.checkpoint_id
        self._writer: DataFileWriter | None = None
        self.decide_by_s: float | None = None  # data files do not expire

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if self._writer is None:
            self._writer = self._begun()
        self._writer.write(batch)

    def end_epoch(self, ranges: Sequence[SplitRange], *, checkpoint_id: int) -> None:
        """See `ContinuousWriter.end_epoch`: rows that wait are this writer's alone."""
        del ranges
        self._checkpoint_id = checkpoint_id

    def pre_commit(self) -> list[StateEntry]:
        if self._writer is None:
            return []
        files, deletes = self._writer.finish()
        failpoint("after-data-files")
        written = WrittenFiles(
            table=self._plan.table,
            table_uuid=self._plan.table_uuid,
            location=self._plan.location,
            job_uid=self._scope.job_uid,
            attempt=self._attempt,
            spec_id=self._plan.spec.spec_id,
            checkpoint_id=self._checkpoint_id,
            files=files,
            deletes=deletes,
            equality_ids=self._plan.equality_ids,
            types=types_of(self._writer.plan.schema),  # the widest: an epoch only widens types
        )
        return [encode_written_files(written, operator_id=self._scope.operator_id)]

    def commit(self, *, timeout_s: float) -> bool:
        """See `ContinuousWriter.commit`: the `Committer` does it."""
        del timeout_s
        return False

    def release(self) -> None:
        """See `ContinuousWriter.release`: nothing is kept."""

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.abandon()

    def _begun(self) -> DataFileWriter:
        """Register the attempt before its first row, so that the sweep finds it
        (`ids-never-reused`)."""
        scope, plan = self._scope, self._plan
        self._registry.register(
            RegisteredAttempt(
                batch=scope.batch,
                operator_id=scope.operator_id,
                resource=self._attempt.path,
                checkpoint_id=scope.checkpoint_id,
            )
        )
        root = sink_root(plan.location, job_uid=scope.job_uid, operator_id=scope.operator_id)
        note = WriteNote(store=TableStore(plan.io, root), attempt=self._attempt)
        return DataFileWriter(
            plan, evolved=self._evolved, name=self._file_name, announce=note.announce
        )

    def _file_name(self, number: int) -> str:
        """Shows the origin of a file; no other attempt has it."""
        scope = self._scope
        region = scope.batch.region[:_MOST_OF_A_REGION].replace("/", "_")
        task = scope.task.partition(".")[0] or "0"
        return (
            f"{self._checkpoint_id:012d}-{region}-{task}-{self._attempt.attempt}"
            f"-{number:05d}.parquet"
        )


_evolved_plans: dict[tuple[str, str, str, str], tuple[int, WritingPlan]] = {}
"""By table, job, operator and region: the attempt that added columns last in this worker process,
and the plan that it got. So its next epochs do not look for the columns again.

A new attempt begins with what it has loaded: another program may have dropped a column since, and
schema ids are used again.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergWriterFactory(ContinuousWriterFactory):
    """Makes the writer of a task and epoch. Picklable; goes from the driver to executors.

    Attributes:
        plan: of the table when the attempt began.
        evolved: adds columns; None: columns that the table lacks are refused.
    """

    plan: WritingPlan
    evolved: EvolvePlan | None = None

    @property
    def longest_interval_s(self) -> float | None:
        return None

    def open(self, scope: TaskScope, registry: AttemptRegistry) -> IcebergWriter:
        place = (self.plan.table_uuid, scope.job_uid, scope.operator_id, scope.batch.region)
        attempt_id, known = _evolved_plans.get(place, (None, self.plan))
        plan = self.plan
        if attempt_id == scope.batch.attempt_id:
            plan = replace(plan, schema=known.schema)
        evolved = None
        if self.evolved is not None:
            evolved = partial(_evolved_and_kept, self.evolved, place, scope.batch.attempt_id)
        return IcebergWriter(plan, evolved, scope, registry)

    def open_continuous(self, scope: TaskScope, registry: AttemptRegistry) -> IcebergWriter:
        return self.open(scope, registry)


def _evolved_and_kept(
    evolve: EvolvePlan,
    place: tuple[str, str, str, str],
    attempt_id: int,
    columns: Sequence[pa.Field],
) -> WritingPlan:
    plan = evolve(columns)
    _evolved_plans[place] = attempt_id, plan
    return plan
