"""A job between two runs: its records, its directory, its broker, and starts of new runs."""

import dataclasses
from collections.abc import Callable
from typing import Any

from sluice.runtime.contracts import RegionRegistration
from sluice.runtime.coordinator.committing.commit_steps import RunIdentity
from sluice.runtime.coordinator.committing.repairs import Repairer
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
    JobPlan,
    RegionPlan,
)
from sluice.runtime.coordinator.shell.io_executor import IoExecutor
from sluice.runtime.coordinator.start.restoring import RestoreRequest
from sluice.runtime.coordinator.start.startup import Found, StartSequence
from sluice.runtime.coordinator.start.takeover import Takeover
from sluice.runtime.model.checkpoint_record import (
    CheckpointKind,
    CheckpointRecord,
    OperatorNode,
    RegionRecord,
    StateEntry,
    StateSnapshot,
    Verdict,
)
from sluice.runtime.model.splits import BatchKey
from tests.kit.coordinator.core_driver import split
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.fakes import (
    FakeBroker,
    FakeSink,
    FakeSource,
    ManualClock,
    Transaction,
    entry_of,
    transactional_id,
)

JOB_UID = "7d9f"
GRAPH = (
    OperatorNode(operator_id="source", name="orders", kind="source", upstream=()),
    OperatorNode(operator_id="sink", name="copy", kind="sink", upstream=("source",)),
)
PLAN = JobPlan(
    name="job",
    regions=(RegionPlan(name="main", source_ids=("source",), sink_ids=("sink",), chained=True),),
    graph=GRAPH,
)
NEVER_WRITTEN = StateSnapshot(
    provider="rocksdb",
    checkpoint_format_version=2,
    state_version=8,
    state_partitions=0,
    location="spark/main/state-0/state",
)
"""Of a frame that counted as stateful, and is none; and of one whose operators nobody has reported."""


def record(
    checkpoint_id: int, *, entries: tuple[StateEntry, ...] = (), **changes: Any
) -> CheckpointRecord:
    """A decided record at a place, 10 offsets for each id."""
    made = CheckpointRecord(
        job_uid=JOB_UID,
        job_name="job",
        checkpoint_id=checkpoint_id,
        kind=CheckpointKind.CHECKPOINT,
        verdict=Verdict.DECIDED,
        leader_session_id="old",
        run_attempt=1,
        graph=GRAPH,
        regions=(
            RegionRecord(
                region="main",
                attempt_id=0,
                batch_id=checkpoint_id or None,
                splits=(split(0, max(0, checkpoint_id - 1) * 10, checkpoint_id * 10),),
                committables=entries,
            ),
        ),
    )
    return dataclasses.replace(made, **changes)


def aborted(checkpoint_id: int, **changes: Any) -> CheckpointRecord:
    """An aborted record."""
    return record(checkpoint_id, verdict=Verdict.ABORTED, regions=(), **changes)


class Job:
    """A job between two runs: its directory, its broker, and starts of new runs."""

    def __init__(self, *records: CheckpointRecord, committed: tuple[int, ...] = ()) -> None:
        self.store = FakeStore(records={r.checkpoint_id: r for r in records})
        self.store.committed |= set(committed)
        self.broker = FakeBroker()
        self.sink = FakeSink(self.broker)
        self.source = FakeSource("source", {0: 100})
        self.other_sources: dict[str, FakeSource] = {}
        self.clock = ManualClock()
        self.settings = CheckpointSettings()
        self.repairer: Repairer | None = None
        self.require_known: Callable[[CheckpointRecord], None] = lambda _: None
        self.require_restorable: Callable[[CheckpointRecord], None] = lambda _: None
        self.require_elected: Callable[[], None] = lambda: None
        self.takeover: Takeover | None = None
        self.points: list[str] = []

    def pre_commit(self, name: str, *, attempt_id: int = 0) -> StateEntry:
        """An open transaction of the old run."""
        return entry_of(self.open(name, attempt_id=attempt_id))

    def open(self, name: str, *, attempt_id: int = 0) -> Transaction:
        """A transaction with a record."""
        batch = BatchKey(region="main", attempt_id=attempt_id, batch_id=1)
        transaction = self.broker.init(transactional_id(JOB_UID, batch, name))
        self.broker.append(transaction, 0, name)
        return transaction

    def sequence(
        self,
        *,
        session: str = "new",
        plan: JobPlan = PLAN,
        told: tuple[RegionRegistration, ...] = (),
    ) -> StartSequence:
        """A new run's start."""
        return StartSequence(
            plan=plan,
            settings=self.settings,
            store=self.store,
            sinks={"sink": SerialSink(self.sink)},
            sources={"source": self.source, **self.other_sources},
            session=session,
            clock=self.clock,
            pause=self.clock.advance,
            wall_ms=lambda: 0,
            repairer=self.repairer,
            require_known=self.require_known,
            require_restorable=self.require_restorable,
            require_elected=self.require_elected,
            registrations=told,
            takeover=self.takeover,
        )

    def io_executor(self, *, session: str, attempt_id: int, plan: JobPlan = PLAN) -> IoExecutor:
        """The remote steps of a run whose own first record is at ``attempt_id``."""
        return IoExecutor(
            store=self.store,
            sinks={"sink": SerialSink(self.sink)},
            sources={},
            identity=RunIdentity(
                plan=plan,
                job_uid=JOB_UID,
                session=session,
                attempt_id=attempt_id,
                run_attempt=1,
                restored_from=0,
            ),
            settings=self.settings,
            age_clock=self.clock,
            wall_ms=lambda: 0,
        )

    def start(
        self,
        *,
        session: str = "new",
        plan: JobPlan = PLAN,
        restore_from: int | RestoreRequest | None = None,
        told: tuple[RegionRegistration, ...] = (),
        at: Callable[[str], None] = lambda _: None,
    ) -> Found:
        """Run it to its end; ``at`` is called at each point it names."""
        steps = self.sequence(session=session, plan=plan, told=told).run(
            timeout_s=30.0, restore_from=restore_from
        )
        while True:
            try:
                point = next(steps)
            except StopIteration as end:
                found: Found = end.value
                return found
            self.points.append(point)
            at(point)
