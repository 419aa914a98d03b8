"""One checkpoint under way, as the coordinator's core keeps it."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.runtime.contracts import FailedTask, FailureReason
from sluice.runtime.coordinator.core.events import Progress, RegionalStep
from sluice.runtime.coordinator.policy.state_tables import Event, State, advance
from sluice.runtime.coordinator.region.region_pace import records_in
from sluice.runtime.functions.record_counts import added
from sluice.runtime.model.acknowledgement import Acknowledgement, RegionTimes, StageTimes
from sluice.runtime.model.checkpoint_record import (
    Assignment,
    CheckpointKind,
    RegionRecord,
    StateEntry,
)
from sluice.runtime.model.splits import Barrier, BatchKey, SplitKey
from sluice.runtime.model.state.broadcast_version import BroadcastVersion
from sluice.runtime.model.timestamps import earliest

__all__ = ["PUBLISHES_ALL", "CheckpointRequest", "PendingCheckpoint", "RemoteStep"]

PUBLISHES_ALL = frozenset({CheckpointKind.SAVEPOINT, CheckpointKind.FULL, CheckpointKind.FINAL})
"""Their records name no file outside: sinks publish what they would keep for later epochs."""


_STAGES = {
    Event.BARRIER_GIVEN: "barrier_s",
    Event.ALL_ACKED: "acked_s",
    Event.REST_SKIPPED: "acked_s",
    Event.METADATA_DURABLE: "decided_s",
    Event.ALL_COMMITTED: "committed_s",
    Event.MARK_DURABLE: "marked_s",
}
"""The moment that an event sets in its checkpoint."""
_ENDED = frozenset({State.MARKED, State.ABORTED})


class RemoteStep(enum.Enum):
    """The remote step that the I/O executor takes for a checkpoint."""

    IDLE = "idle"  # nothing: the next step may begin, after its pause
    IN_FLIGHT = "in flight"  # a step that has not returned yet
    HALTED = "halted"  # nothing, until the next run


@dataclass(slots=True)
class CheckpointRequest:
    """A savepoint, a full checkpoint or a stop that is under way.

    Attributes:
        kind, is_copied, drain_to: see `sluice.runtime.coordinator.core.events.CheckpointRequested`.
        until_s: clock until which its checkpoint must be committed on record.
        checkpoint_id: its checkpoint; None before it begins.
        is_copying: it is committed on record, and its files are being copied.
        batches: from its decision on, the Spark batch that it names for each region with state.
    """

    kind: CheckpointKind
    is_copied: bool
    drain_to: Mapping[SplitKey, int]
    until_s: float
    checkpoint_id: int | None = None
    is_copying: bool = False
    batches: dict[str, int] = field(default_factory=dict)

    @property
    def ends_job(self) -> bool:
        """Whether the job ends after it."""
        return self.kind is CheckpointKind.FINAL


@dataclass(slots=True)
class PendingCheckpoint:
    """A checkpoint from its trigger until it is marked or its abort is done.

    Attributes:
        checkpoint_id, kind, requested_by: its slot, and why it was taken.
        state: see `sluice.runtime.coordinator.policy.state_tables`.
        decide_by_s: clock after which work in it may be lost undecided; None: never.
        barriers: given out, by region.
        broadcasts: versions of all broadcast streams in its epoch; None before the first barrier of
            a region that reads one.
        next_broadcasts: see `Barrier`.
        watermarks_ms: of its barriers, by source.
        time_ms: of all its barriers; see `Barrier`.
        acks: by region; None: nothing to read, same offsets.
        acknowledged_at_s: clock at the acknowledgement of each region that has a barrier in it.
        skipped, failed_tasks: regions that it is decided without, and why.
        excused: regions that a command restarted while it was under way: it does not wait for
            them.
        must_sweep: failed ones among the skipped regions may have left work open.
        evaluated_s: clock when `complete_if_due` ran last.
        finished: regions whose bounded sources end with it.
        reason: why it was given up.
        regions, assignment: as published.
        steps: its effects on regions, for failpoints.
        remaining: committables not known to be committed yet.
        lost: those of them that were certainly aborted, while they are repaired.
        unrepaired: regions whose repair has failed in this run, and why.
        is_doomed: some of it is lost for good: the job ends once the rest is settled.
        discarded: acknowledged batches that its abort discards.
        remote: its remote step.
        after_crash: a commit was tried before: request the verdict first.
        retry_at_s, retry_pause_s: when a step without an answer is repeated.
        retry_since_s: when a step got no answer in this state for the first time.
        unknown_since_s: since when a committable is UNKNOWN.
        barrier_s, acked_s, decided_s, committed_s, marked_s: clock at each stage.
    """

    checkpoint_id: int
    kind: CheckpointKind
    requested_by: str
    state: State = State.ARMED
    decide_by_s: float | None = None
    barriers: dict[str, Barrier] = field(default_factory=dict)
    broadcasts: tuple[BroadcastVersion, ...] | None = None
    next_broadcasts: tuple[BroadcastVersion, ...] = ()
    watermarks_ms: Mapping[str, int] = field(default_factory=dict)
    time_ms: int = 0
    acks: dict[str, Acknowledgement | None] = field(default_factory=dict)
    acknowledged_at_s: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, FailureReason] = field(default_factory=dict)
    failed_tasks: tuple[FailedTask, ...] = ()
    excused: set[str] = field(default_factory=set)
    must_sweep: bool = False
    evaluated_s: float = 0.0
    finished: set[str] = field(default_factory=set)
    reason: str = ""
    regions: tuple[RegionRecord, ...] = ()
    assignment: Assignment | None = None
    steps: tuple[RegionalStep, ...] = ()
    remaining: tuple[StateEntry, ...] = ()
    lost: tuple[StateEntry, ...] = ()
    unrepaired: dict[str, BaseException] = field(default_factory=dict)
    is_doomed: bool = False
    discarded: list[Acknowledgement] = field(default_factory=list)
    remote: RemoteStep = RemoteStep.IDLE
    after_crash: bool = False
    retry_at_s: float = 0.0
    retry_pause_s: float = 0.0
    retry_since_s: float | None = None
    unknown_since_s: float | None = None
    barrier_s: float | None = None
    acked_s: float | None = None
    decided_s: float | None = None
    committed_s: float | None = None
    marked_s: float | None = None

    def move(self, event: Event, now_s: float) -> None:
        """Change state by the table, and note the time."""
        self.state = advance(self.state, event, checkpoint_id=self.checkpoint_id)
        self.retry_at_s = self.retry_pause_s = 0.0
        self.retry_since_s = None
        if event in _STAGES:
            setattr(self, _STAGES[event], now_s)

    def retry_later(self, now_s: float, *, first_s: float, longest_s: float) -> None:
        """Repeat a remote step without a certain answer, after a growing pause."""
        self.remote = RemoteStep.IDLE
        self.retry_pause_s = min(max(self.retry_pause_s * 2, first_s), longest_s)
        self.retry_at_s = now_s + self.retry_pause_s
        if self.retry_since_s is None:
            self.retry_since_s = now_s

    def may_act(self, now_s: float) -> bool:
        """Whether the next remote step may start now."""
        return self.remote is RemoteStep.IDLE and now_s >= self.retry_at_s

    def acknowledged(self) -> list[Acknowledgement]:
        """Batches in it."""
        return [ack for ack in self.acks.values() if ack is not None]

    def batches(self) -> tuple[BatchKey, ...]:
        """Identities of the batches in it."""
        return tuple(ack.batch for ack in self.acknowledged())

    def has(self, batch: BatchKey) -> bool:
        """Whether this batch is in it."""
        ack = self.acks.get(batch.region)
        return ack is not None and ack.batch == batch

    def decide_by(self, moment_s: float | None) -> None:
        """Work joins it that may be lost after that moment: the earliest one counts."""
        self.decide_by_s = earliest([self.decide_by_s, moment_s])

    def touches(self, region: str) -> bool:
        """Whether the region has a batch in it, or a barrier for one."""
        return region in self.barriers or self.acks.get(region) is not None

    def progress(
        self,
        *,
        attempts: Mapping[str, int] | None = None,
        pending_ratios: Mapping[str, float] | None = None,
        rate_limits: Mapping[str, float] | None = None,
    ) -> Progress:
        """For the listeners, with what only the state knows."""
        start = self.barrier_s

        def since(moment_s: float | None) -> float | None:
            return None if start is None or moment_s is None else moment_s - start

        acknowledged = self.acknowledged()
        return Progress(
            checkpoint_id=self.checkpoint_id,
            kind=self.kind,
            requested_by=self.requested_by,
            state=self.state,
            regions=len(acknowledged),
            skipped=dict(self.skipped),
            failed_tasks=self.failed_tasks,
            records=sum(records_in(ack.region.splits) for ack in acknowledged),
            acked_s=since(self.acked_s),
            decided_s=since(self.decided_s),
            committed_s=since(self.committed_s),
            marked_s=since(self.marked_s),
            reason=self.reason,
            counts=added(ack.counts for ack in acknowledged),
            dropped=tuple(split for ack in acknowledged for split in ack.dropped),
            attempts=attempts or {},
            pending_ratios=pending_ratios or {},
            rate_limits=rate_limits or {},
            stages={
                ack.batch.region: _times_of(
                    ack, since(self.acknowledged_at_s.get(ack.batch.region))
                )
                for ack in (acknowledged if self.state in _ENDED else ())
            },
        )


def _times_of(ack: Acknowledgement, acknowledged_s: float | None) -> RegionTimes:
    found = ack.stages or StageTimes()
    return RegionTimes(
        read_s=found.read_s,
        function_s=found.function_s,
        write_s=found.write_s,
        flush_s=found.flush_s,
        acknowledged_s=acknowledged_s,
    )
