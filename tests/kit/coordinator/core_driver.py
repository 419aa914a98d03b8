"""The coordinator's core with small answers: remote steps happen at once unless a test says not."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from sluice.runtime.contracts import CommitOutcome, CommitReport, PublishOutcome
from sluice.runtime.coordinator.core.core import CoordinatorCore
from sluice.runtime.coordinator.core.events import (
    AbortedWork,
    AbortWork,
    Acknowledged,
    Action,
    BarrierPolled,
    Commit,
    CommitReported,
    CoreEvent,
    FetchBarrierOffsets,
    GiveBarrier,
    MarkCommitted,
    Marked,
    OrphansSwept,
    Publish,
    Published,
    RegionBarrierOffsets,
    RegionRestarted,
    RestartRequested,
    StopRequested,
    SweepOrphans,
    Tick,
    TriggerRequested,
)
from sluice.runtime.coordinator.policy.assignment import assignment_of
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, RegionPlan
from sluice.runtime.coordinator.region.status_views import JobStatus
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.checkpoint_record import (
    CheckpointKind,
    Redistribution,
    RegionRecord,
    StateEntry,
)
from sluice.runtime.model.splits import Barrier, BatchKey, SplitRange
from tests.kit.fakes import ManualClock

T = TypeVar("T")

FAST = CheckpointSettings(interval_s=1.0, timeout_s=10.0, retry_s=0.1, max_retry_s=0.4)
TWO = (
    RegionPlan(name="main", source_ids=("source",)),
    RegionPlan(name="side", source_ids=("source",)),
)


def split(partition: int, start: int, end: int, *, source_id: str = "source") -> SplitRange:
    """A range of the input."""
    return SplitRange(
        source_id=source_id,
        topic="input",
        topic_id="uuid",
        partition=partition,
        start_offset=start,
        end_offset=end,
    )


def committable(name: str) -> StateEntry:
    """A committable that differs from others by its name."""
    return StateEntry(
        operator_id="sink",
        state_name="committables",
        kind="fake",
        version=1,
        redistribution=Redistribution.SPLIT,
        payload=name.encode(),
    )


class CoreDriver:
    """Runs a core on a manual clock and plays every remote, as long as ``auto`` is on.

    Attributes:
        log: every action, in order.
        held: remote steps that were asked for while ``auto`` was off.
        slept_s: how long nobody has waited, which the clock leaves out.
        drawn: the next random numbers; one half: no jitter.
    """

    def __init__(
        self,
        settings: CheckpointSettings | None = None,
        *,
        regions: Sequence[RegionPlan] = (RegionPlan(name="main", source_ids=("source",)),),
        partitions: int = 1,
        attempt_id: int = 0,
    ) -> None:
        self.clock = ManualClock()
        self._began_s = self.clock()
        self.slept_s = 0.0
        self.auto = True
        self.drawn = 0.5
        self.log: list[Action] = []
        self.held: list[Action] = []
        self.outcomes: dict[bytes, CommitOutcome] = {}
        records = {
            plan.name: RegionRecord(
                region=plan.name,
                attempt_id=0,
                splits=tuple(
                    split(number, 0, 0, source_id=source_id)
                    for source_id in plan.source_ids[:1]
                    for number in range(at * partitions, (at + 1) * partitions)
                ),
            )
            for at, plan in enumerate(regions)
        }
        self.core = CoordinatorCore(
            settings or CheckpointSettings(),
            regions,
            records,
            assignment=assignment_of(records.values()),
            attempt_id=attempt_id,
            last_decided=0,
            draw=lambda: self.drawn,
        )
        self._batch_ids: dict[tuple[str, int], int] = {}

    # --- events ---------------------------------------------------------------------------------

    def tell(self, event: CoreEvent) -> list[Action]:
        """One event; the actions it led to at once, without those of answered steps."""
        actions = self.core.step(event, self.clock(), slept_s=self.slept_s)
        self._take(actions)
        return actions

    def _take(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self.log.append(action)
            if isinstance(action, Publish | Commit | MarkCommitted | AbortWork | SweepOrphans):
                if self.auto:
                    self.answer(action)
                else:
                    self.held.append(action)

    def answer(self, action: Action) -> None:
        """The remote does what it was asked for."""
        event: CoreEvent
        if isinstance(action, Publish):
            event = Published(checkpoint_id=action.checkpoint_id, outcome=PublishOutcome.OURS)
        elif isinstance(action, Commit):
            event = CommitReported(
                checkpoint_id=action.checkpoint_id,
                committables=action.committables,
                reports=tuple(
                    CommitReport(
                        outcome=self.outcomes.get(entry.payload, CommitOutcome.COMMITTED),
                        detail=entry.payload.decode(),
                    )
                    for entry in action.committables
                ),
            )
        elif isinstance(action, MarkCommitted):
            event = Marked(checkpoint_id=action.checkpoint_id, durable=True)
        elif isinstance(action, AbortWork):
            event = AbortedWork(checkpoint_id=action.checkpoint_id)
        elif isinstance(action, SweepOrphans):
            event = OrphansSwept(checkpoint_id=action.checkpoint_id)
        else:
            raise AssertionError(action)
        self._take(self.core.step(event, self.clock(), slept_s=self.slept_s))

    def tick(self, seconds: float = 0.0) -> list[Action]:
        """Time passes."""
        self.clock.advance(seconds)
        return self.tell(Tick())

    # --- a region -------------------------------------------------------------------------------

    def poll(
        self, end: int = 0, *, region: str = "main", attempt_id: int = 0, finished: bool = False
    ) -> Barrier | None:
        """The region polls; its source has records up to ``end`` in each partition."""
        for action in self.tell(BarrierPolled(region=region, attempt_id=attempt_id)):
            if isinstance(action, GiveBarrier):
                return action.barrier
            if isinstance(action, FetchBarrierOffsets):
                cut = RegionBarrierOffsets(
                    checkpoint_id=action.checkpoint_id,
                    region=region,
                    attempt_id=attempt_id,
                    splits=tuple(
                        replace(s, start_offset=s.end_offset, end_offset=max(end, s.end_offset))
                        for s in action.positions
                    ),
                    finished=finished,
                )
                given = [a for a in self.tell(cut) if isinstance(a, GiveBarrier)]
                return given[0].barrier if given else None
        return None

    def ack(
        self,
        barrier: Barrier | None = None,
        *,
        region: str = "main",
        attempt_id: int = 0,
        again_in_s: float | None = None,
        state_is_due: bool = False,
        keeps: bool = False,
        states: tuple[StateEntry, ...] = (),
    ) -> BatchKey:
        """The region acknowledges its next batch; a sink may keep a state, and ask for another, as
        may Spark's. ``states``: further states of operators."""
        number = self._batch_ids.get((region, attempt_id), 0) + 1
        batch = BatchKey(region=region, attempt_id=attempt_id, batch_id=number)
        ack = replace(self.acknowledgement(batch, barrier), again_in_s=again_in_s)
        ack = replace(ack, state_is_due=state_is_due)
        states += (committable("kept"),) if keeps else ()
        ack = replace(ack, region=replace(ack.region, operator_states=states))
        self.tell(Acknowledged(ack=ack))
        self._batch_ids[region, attempt_id] = number
        return batch

    def acknowledgement(self, batch: BatchKey, barrier: Barrier | None = None) -> Acknowledgement:
        """With one committable named after the batch."""
        return Acknowledgement(
            batch=batch,
            checkpoint_id=None if barrier is None else barrier.checkpoint_id,
            region=RegionRecord(
                region=batch.region,
                attempt_id=batch.attempt_id,
                batch_id=batch.batch_id,
                splits=() if barrier is None else barrier.splits,
                committables=(committable(f"{batch.region}.{batch.attempt_id}.{batch.batch_id}"),),
            ),
        )

    def epoch(self, end: int) -> Barrier:
        """One whole checkpoint of one region."""
        self.tick()
        barrier = self.poll(end)
        assert barrier is not None, "no barrier was due"
        self.ack(barrier)
        return barrier

    def epoch_batch(self, end: int) -> BatchKey:
        """As `epoch`; the batch."""
        self.tick()
        return self.ack(self.poll(end))

    def restart(self, region: str = "main") -> int:
        """A region comes back; its new attempt."""
        self.tell(RestartRequested(region=region))
        return self.seen(RegionRestarted)[-1].attempt_id

    def stop(self) -> None:
        """Somebody stops the job."""
        self.tell(StopRequested())

    def trigger(self, kind: CheckpointKind, requested_by: str) -> None:
        """Somebody asks for a checkpoint."""
        self.tell(TriggerRequested(kind=kind, requested_by=requested_by))

    def tell_poll(self, attempt_id: int = 0) -> list[Action]:
        """The answer to a poll, without a cut."""
        return self.tell(BarrierPolled(region="main", attempt_id=attempt_id))

    def asked_cut(self, attempt_id: int = 0) -> FetchBarrierOffsets:
        """What a poll asks the region to cut."""
        return next(a for a in self.tell_poll(attempt_id) if isinstance(a, FetchBarrierOffsets))

    def asked_cut_of(self, region: str, attempt_id: int) -> FetchBarrierOffsets:
        """What a poll asks another region to cut."""
        told = self.tell(BarrierPolled(region=region, attempt_id=attempt_id))
        return next(a for a in told if isinstance(a, FetchBarrierOffsets))

    # --- what happened --------------------------------------------------------------------------

    def status(self) -> JobStatus:
        """What people are shown; the wall clock began at 0 when the manual one did."""
        now_s = self.clock()
        return self.core.status(now_s=now_s, now_ms=round((now_s - self._began_s) * 1000))

    def seen(self, kind: type[T]) -> list[T]:
        """Actions of a kind so far."""
        return [action for action in self.log if isinstance(action, kind)]
