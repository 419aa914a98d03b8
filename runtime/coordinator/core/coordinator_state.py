"""The state of the coordinator's core: all regions, all checkpoints under way, what to do next."""

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sluice.runtime.contracts import OpenWork
from sluice.runtime.coordinator.core.events import (
    AbortWork,
    Action,
    EndJob,
    FailBatches,
    PublishPositions,
    ReturnBatches,
    TriggerBarrier,
)
from sluice.runtime.coordinator.core.pending_checkpoint import (
    CheckpointRequest,
    PendingCheckpoint,
    RemoteStep,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings
from sluice.runtime.coordinator.policy.handlers import Alignment, HandlerDecision
from sluice.runtime.coordinator.policy.state_tables import (
    ABORTABLE,
    FOR_CHECKPOINT,
    FOR_REGION,
    PARTS,
    Event,
    Part,
    RegionEvent,
    RegionPhase,
    State,
)
from sluice.runtime.coordinator.region.job_time import JobTime
from sluice.runtime.coordinator.region.key_samples import KeySamples
from sluice.runtime.coordinator.region.liveness import CachedViews, HeartbeatTimeout
from sluice.runtime.coordinator.region.region_state import RegionState
from sluice.runtime.errors import FencedError
from sluice.runtime.model.checkpoint_record import Assignment, CheckpointKind, StateEntry
from sluice.runtime.model.event_time import least_of
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.model.state.broadcast_version import BroadcastVersion
from sluice.runtime.model.timestamps import is_past

__all__ = ["CoordinatorState", "JobPhase"]

_COMPLETE = (State.PRE_COMMITTED, State.DECIDING, State.WITHDRAWING)  # and not decided yet
_AWAITED = (EndJob, FailBatches, ReturnBatches)
_EXCUSED_ATTEMPTS = 3
"""The replays of this many attempts of a region in a row may delay other regions. Its own failure
causes one attempt. A neighbour that gave up its epoch for that causes another one."""

_LATE_SHARE = 0.25  # of an interval; the next barrier is due an interval after one that comes later


class JobPhase(enum.Enum):
    """How far the job is. Nothing leads back; FENCED comes after any other phase."""

    RUNNING = "running"
    FINISHED = "finished"  # every bounded source was read to its end, and that is committed.
    STOPPED = "stopped"  # no checkpoint begins any more; decided ones are still committed.
    FAILED = "failed"  # as STOPPED, by an error.
    FENCED = "fenced"  # another session has a slot of ours: this one changes nothing more


@dataclass(slots=True)
class CoordinatorState:
    """The state that the core's modules share. One `CoordinatorCore` owns it and changes it in
    steps.

    Attributes:
        settings: of the job.
        regions: by name.
        assignment: of splits to regions, as the last decided checkpoint has it.
        overloaded: for each region, how many decisions in a row the balancer found it overloaded.
        last_slot: the newest slot that holds a record of our own session (`fence-first`).
        next_id: of the next checkpoint; ids are dense and never used twice.
        pending: checkpoints under way by id, ascending.
        trigger_requests: triggers that wait until a checkpoint may begin: kind -> who requested it.
        request: the savepoint, full checkpoint or stop that is under way.
        out: actions of this step.
        unsettled: regions whose old work is to be settled: their next attempt is requested, or they
            are suspended. In the order of these events.
        cached_views: results that hold until a region or a decision changes.
        liveness: when each region polled last.
        steps_since_s: remote steps that have not returned, by checkpoint and its state: since when,
            on the clock of ``liveness``.
        draw: a random number in [0, 1).
        failures: checkpoints that failed in a row.
        attempts_at_failure: the attempt of each region when the last of them was counted.
        replayed: attempts whose replay has excused a failed checkpoint, by region, since the
            failures are counted.
        last_barrier_s, last_end_s: clock when the last barrier was due or given, and at the end of
            the last checkpoint; None before the first.
        unpublished: committed positions that lag tools do not have yet.
        published_s: clock when positions were published last.
        slept_s: how long the host has slept: the clock of the steps leaves it out, ages do not.
        wall_ms: the driver's wall clock, as barriers have it; never back.
        time: the event time of the job.
        key_samples: that tasks have reported.
        last_decided, last_committed: newest checkpoint decided, and committed on record.
        planned: versions of broadcast streams that tasks use since the last barrier.
        planned_age: decisions since these were the newest ones.
        phase: of the job.
        error: why the job ended, None for a good end.
    """

    settings: CheckpointSettings
    regions: Mapping[str, RegionState]
    assignment: Assignment
    last_slot: int
    next_id: int
    last_committed: int
    last_decided: int
    draw: Callable[[], float]
    pending: dict[int, PendingCheckpoint] = field(default_factory=dict)
    trigger_requests: dict[CheckpointKind, str] = field(default_factory=dict)
    request: CheckpointRequest | None = None
    out: list[Action] = field(default_factory=list)
    unsettled: dict[str, None] = field(default_factory=dict)
    cached_views: CachedViews = field(default_factory=CachedViews)
    liveness: HeartbeatTimeout = field(default_factory=HeartbeatTimeout)
    steps_since_s: dict[tuple[int, State], float] = field(default_factory=dict)
    overloaded: Mapping[str, int] = field(default_factory=dict)
    failures: int = 0
    attempts_at_failure: dict[str, int] = field(default_factory=dict)
    replayed: dict[str, set[int]] = field(default_factory=dict)
    last_barrier_s: float | None = None
    last_end_s: float | None = None
    unpublished: PublishPositions | None = None
    published_s: float | None = None
    slept_s: float = 0.0
    wall_ms: int = 0
    planned: tuple[BroadcastVersion, ...] = ()
    planned_age: int = 0
    time: JobTime = field(default_factory=JobTime)
    key_samples: KeySamples = field(default_factory=KeySamples)
    phase: JobPhase = JobPhase.RUNNING
    error: BaseException | None = None

    @property
    def is_over(self) -> bool:
        """Whether the job has ended: nothing new begins."""
        return self.phase is not JobPhase.RUNNING

    @property
    def is_fenced(self) -> bool:
        """Whether another session has taken over."""
        return self.phase is JobPhase.FENCED

    @property
    def is_held(self) -> bool:
        """Whether the last checkpoint of a stop has begun. No other begins after it: the job that
        is restored from its savepoint would read those records again."""
        request = self.request
        if request is None or not request.ends_job or request.checkpoint_id is None:
            return False
        found = self.pending.get(request.checkpoint_id)
        return request.is_copying or (found is not None and found.state is not State.ABORTING)

    def open_step(self, slept_s: float, wall_ms: int = 0) -> None:
        """Drop the actions of a step that raised, except those that callbacks or the job wait
        for."""
        self.out = [action for action in self.out if isinstance(action, _AWAITED)]
        self.slept_s, self.wall_ms = slept_s, max(self.wall_ms, wall_ms)

    def close_step(self) -> list[Action]:
        """The actions of the step."""
        actions, self.out = self.out, []
        return actions

    def is_too_old(self, decide_by_s: float | None, now_s: float) -> bool:
        """Whether work may be lost by now that had to be decided by that moment. The moment is on
        the boot-time clock (`host_clock`): brokers do not wait while this host sleeps."""
        return is_past(decide_by_s, now_s + self.slept_s)

    def move(self, checkpoint: PendingCheckpoint, event: Event, now_s: float) -> None:
        """Change a checkpoint's state and notify the listeners."""
        checkpoint.move(event, now_s)
        if event is Event.BARRIER_GIVEN:
            self.last_barrier_s = self._on_time(now_s)
        is_marked = event is Event.MARK_DURABLE
        self.out.append(
            checkpoint.progress(
                attempts={name: region.history.count + 1 for name, region in self.regions.items()},
                pending_ratios=self.pending_ratios(now_s) if is_marked else None,
                rate_limits=self.rate_limits() if is_marked else None,
            )
        )

    def _on_time(self, now_s: float) -> float:
        """When the barrier was due, if it came only a moment later: so the next one is not
        delayed."""
        interval_s = self.settings.interval_s
        if self.last_barrier_s is None or interval_s is None:
            return now_s
        due_s = self.last_barrier_s + interval_s
        return due_s if due_s <= now_s < due_s + interval_s * _LATE_SHARE else now_s

    def in_service(self) -> dict[str, RegionState]:
        """All regions that are not suspended: the ones that checkpoints wait for."""
        return {
            name: found
            for name, found in self.regions.items()
            if PARTS[found.phase] is not Part.ABSENT
        }

    def has_timed_out(self) -> bool:
        """Whether a region still writes a batch that a decision has skipped. Only checkpoints that
        skip the region limit that time, and idle neighbours would begin none."""
        return any(region.phase is RegionPhase.TIMED_OUT for region in self.regions.values())

    def stopped_polling(self, limit_s: float) -> list[str]:
        """Regions that have not polled for a barrier for so long, though no batch of them is under
        way or waits for its commit. `heartbeat` watches streaming tasks: it knows whether their
        request is still being answered."""
        return self._between_batches(self.liveness.timed_out(limit_s))

    def never_polled(self, limit_s: float) -> list[str]:
        """Regions whose query was started so long ago, and has never polled for a barrier. A region
        that keeps state has twice as long: Spark may first run its last batch once more."""
        with_state = self.liveness.never_polled(2 * limit_s)
        return [
            name
            for name in self._between_batches(self.liveness.never_polled(limit_s))
            if not self.regions[name].plan.stateful or name in with_state
        ]

    def _between_batches(self, names: Iterable[str]) -> list[str]:
        return [
            name
            for name in names
            if (region := self.regions[name]).phase is not RegionPhase.TIMED_OUT
            and region.pending_ack is None
            and not region.plan.follows
            and not any(p.touches(name) for p in self.pending.values())
        ]

    def drop_cached_views(self) -> None:
        """An attempt may have begun or ended, or a decision has changed a region's record."""
        self.cached_views = CachedViews()

    def has_ended(self, name: str) -> bool:
        """Whether a region is at the end of its input, and all its output is committed. A suspended
        region writes nothing more."""
        region = self.regions[name]
        is_open = bool(region.open_ranges) or region.pending_ack is not None
        acks = (checkpoint.acks.get(name) for checkpoint in self.pending.values())
        is_written = region.finished and not is_open and all(ack is None for ack in acks)
        return region.is_suspended or is_written

    def barrier_time(
        self, checkpoint: PendingCheckpoint, region: RegionState
    ) -> tuple[int | None, int]:
        """The watermark and the wall clock of a region's barrier in a checkpoint: the same for all
        regions that read a source."""
        if not checkpoint.barriers:
            if not self.cached_views.is_timed:
                self.time.advance(self.regions.values())
                self.cached_views.is_timed = True
            checkpoint.watermarks_ms = dict(self.time.watermarks_ms)
            checkpoint.time_ms = self.wall_ms
        found = (checkpoint.watermarks_ms.get(each) for each in self.time.of(region.plan))
        return least_of(found), checkpoint.time_ms

    def wants_batch(
        self, region: RegionState, checkpoint: PendingCheckpoint, now_s: float, *, is_last: bool
    ) -> bool:
        """Whether the region takes part in the checkpoint even without new records."""
        watermark_ms, wall_ms = self.barrier_time(checkpoint, region)
        return region.wants_batch(
            now_s, is_last=is_last, watermark_ms=watermark_ms, wall_ms=wall_ms
        )

    def note_unread(self, region: RegionState, now_s: float) -> None:
        """The sources have counted the region's unread records: its splits are idle, or not."""
        if self.time.note_unread(region.work, now_s):
            self.cached_views.is_timed = False

    def has_backlog(self) -> bool:
        """Whether our own limit left records unread at a region's last barrier."""
        if self.cached_views.with_backlog is None:
            standing = self.in_service().items()
            self.cached_views.with_backlog = {
                n for n, found in standing if found.has_backlog(self.settings)
            }
        return bool(self.cached_views.with_backlog)

    def note_barrier(self, name: str) -> None:
        """A region has new barrier offsets: it has a backlog, or not any more."""
        found = self.cached_views.with_backlog
        if found is None:
            return
        if self.regions[name].has_backlog(self.settings):
            found.add(name)
        else:
            found.discard(name)

    def rate_limits(self) -> dict[str, float]:
        """Records per second of each region that may not read more."""
        return {
            name: region.rate.rate
            for name, region in self.regions.items()
            if region.rate is not None and region.rate.rate is not None
        }

    def pending_ratios(self, now_s: float) -> dict[str, float]:
        """`PendingTime.ratio` of each region that ever got a barrier, except suspended ones."""
        found = {
            name: region.pending_time.ratio(now_s) for name, region in self.in_service().items()
        }
        return {name: ratio for name, ratio in found.items() if ratio is not None}

    def decided_broadcasts(self) -> tuple[BroadcastVersion, ...]:
        """The newest version of each broadcast stream."""
        return tuple(
            BroadcastVersion(operator_id=region.plan.broadcast_id, state=region.record.keyed_state)
            for region in self.regions.values()
            if region.plan.broadcast_id
        )

    def create(self, kind: CheckpointKind, requested_by: str) -> PendingCheckpoint:
        """A new checkpoint at the next slot."""
        checkpoint = PendingCheckpoint(
            checkpoint_id=self.next_id, kind=kind, requested_by=requested_by
        )
        self.next_id += 1
        self.pending[checkpoint.checkpoint_id] = checkpoint
        self.out.append(checkpoint.progress())
        return checkpoint

    def begin(
        self, kind: CheckpointKind, requested_by: str, now_s: float, *, forced: bool
    ) -> PendingCheckpoint:
        """Trigger a checkpoint: regions poll for its barrier; pending batches join it."""
        checkpoint = self.create(kind, requested_by)
        self.out.append(TriggerBarrier(checkpoint_id=checkpoint.checkpoint_id))
        for name, region in self.regions.items():
            if region.pending_ack is not None:
                checkpoint.acks[name] = region.pending_ack
                checkpoint.decide_by(region.decide_by_s)
                region.open_ranges[checkpoint.checkpoint_id] = region.pending_ack.region.splits
                region.pending_ack = None
            elif self.settings.is_external:
                checkpoint.acks[name] = None
        if forced or checkpoint.acknowledged():
            self.move(checkpoint, Event.BARRIER_GIVEN, now_s)
        return checkpoint

    def has(self, batch: BatchKey) -> bool:
        """Whether a checkpoint under way contains this batch."""
        return any(checkpoint.has(batch) for checkpoint in self.pending.values())

    def armed(self) -> PendingCheckpoint | None:
        """The checkpoint that waits until a region has records to read; there is one at most."""
        return next((p for p in self.pending.values() if p.state is State.ARMED), None)

    def force(self, checkpoint: PendingCheckpoint, now_s: float) -> None:
        """Let every region take part in an idle checkpoint, also those with nothing to read."""
        self.move(checkpoint, Event.BARRIER_GIVEN, now_s)

    def region_event(
        self, region: RegionEvent, checkpoint: PendingCheckpoint, now_s: float
    ) -> None:
        """Change the checkpoint's state, if the region's event means something for it."""
        event = FOR_CHECKPOINT.get((region, checkpoint.state))
        if event is not None:
            self.move(checkpoint, event, now_s)

    def abort(
        self, checkpoint: PendingCheckpoint, event: Event, error: BaseException, now_s: float
    ) -> None:
        """Give up a checkpoint and, since epochs end in order, every later one
        (`continuous-order`)."""
        later = [
            found
            for found in self.pending.values()
            if found.checkpoint_id > checkpoint.checkpoint_id and found.state in ABORTABLE
        ]
        for found in (checkpoint, *later):
            cause = event if found is checkpoint else Event.OVERTAKEN
            found.reason = found.reason or str(error)
            self.move(found, cause, now_s)
            found.discarded.extend(found.acknowledged())
            for name in [name for name in self.regions if found.touches(name)]:
                region = self.regions[name]
                region.open_ranges.pop(found.checkpoint_id, None)
                region.fence_at(checkpoint.checkpoint_id)
                if FOR_REGION.get((cause, region.phase)) is RegionEvent.ENDED:
                    self.close_region(name, error, now_s)
            self._fail(tuple(ack.batch for ack in found.acknowledged()), error)

    def close_region(self, name: str, error: BaseException, now_s: float) -> None:
        """End a region's attempt, if one is current: refuse its messages, wake its callbacks."""
        region = self.regions[name]
        self.drop_cached_views()
        if not region.is_open:
            return
        self.liveness.ended(name)
        self.time.note_unwatched(split.key for split in region.positions())
        region.ended_by = error
        if not self.is_over:
            region.history.ended(region.attempt_id, error, now_s)
        pending_ack = region.close()
        if pending_ack is not None:
            self._fail((pending_ack.batch,), error)

    def fail_waiting(self, name: str, error: BaseException) -> None:
        """Wake the callbacks of a region whose acknowledged batch is decided without its
        attempt."""
        for checkpoint in self.pending.values():
            ack = checkpoint.acks.get(name)
            if ack is not None:
                self._fail((ack.batch,), error)

    def end(self, error: BaseException | None, now_s: float, *, is_finished: bool = False) -> None:
        """End the job: nothing new begins, undecided work is aborted, decided work is committed."""
        phase = JobPhase.STOPPED if error is None else JobPhase.FAILED
        if is_finished and self.phase in (JobPhase.RUNNING, JobPhase.STOPPED):
            phase = JobPhase.FINISHED
        if self.is_over:
            self.phase = phase if self.phase is JobPhase.STOPPED else self.phase
            return
        self.phase, self.error, self.request = phase, error, None
        reason = error or FencedError(
            "the job has ended", {}, "Start the job again; it reads undecided ranges again."
        )
        idle = self.armed()
        if idle is not None:  # no region read anything for it, so there is nothing to abort
            del self.pending[idle.checkpoint_id]
        first = next((p for p in self.pending.values() if p.state in ABORTABLE), None)
        if first is not None:
            self.abort(first, Event.STOPPED, reason, now_s)
        for name in self.regions:
            self.close_region(name, reason, now_s)
        self.out.append(EndJob(error=error, finished=is_finished))

    def fence(self, error: BaseException) -> None:
        """Another session has taken over: change nothing more, and wake all callbacks. A fenced
        core ignores all events that could fence it again."""
        waiting = [batch for p in self.pending.values() for batch in p.batches()]
        waiting += [r.pending_ack.batch for r in self.regions.values() if r.pending_ack is not None]
        self._fail(tuple(waiting), error)
        for region in self.regions.values():
            if region.is_open:
                region.advance(RegionEvent.ENDED)
        if not self.is_over:
            self.error = error
            self.out.append(EndJob(error=error))
        self.phase, self.request = JobPhase.FENCED, None

    def discard(self, checkpoint: PendingCheckpoint) -> None:
        """The abort is on record: now the work may be discarded (`fence-first`)."""
        for region in self.regions.values():
            if region.fence == checkpoint.checkpoint_id:
                checkpoint.discarded.extend(region.discarded)
                region.discarded.clear()
        checkpoint.remote = RemoteStep.IN_FLIGHT
        self.out.append(
            AbortWork(
                checkpoint_id=checkpoint.checkpoint_id,
                committables=tuple(
                    entry for ack in checkpoint.discarded for entry in ack.region.committables
                ),
            )
        )

    def undecided_work(
        self, region: RegionState, reported: Iterable[OpenWork]
    ) -> Iterator[StateEntry]:
        """Work that an ended attempt left open, and that no decision and no checkpoint under way
        contains: those end their own work themselves."""
        for work in reported:
            is_known = (
                region.is_decided(work.batch)
                or any(work.batch == ack.batch for ack in region.discarded)
                or self.has(work.batch)
                or any(work.batch == a.batch for p in self.pending.values() for a in p.discarded)
            )
            if not is_known:
                yield from work.committables

    def finish(self, checkpoint: PendingCheckpoint, now_s: float) -> None:
        """Remove a checkpoint for which nothing is left to do."""
        del self.pending[checkpoint.checkpoint_id]
        self.last_end_s = now_s

    def alignment(self, checkpoint: PendingCheckpoint, now_s: float) -> Alignment:
        """The acknowledged and missing regions, for the job's handler; without suspended ones."""
        missing = {
            name: PARTS[found.phase]
            for name, found in self.in_service().items()
            if name not in checkpoint.acks and name not in checkpoint.excused
        }

        def names(*parts: Part) -> frozenset[str]:
            return frozenset(name for name, part in missing.items() if part in parts)

        return Alignment(
            kind=checkpoint.kind,
            acknowledged=frozenset(checkpoint.acks),
            failed=names(Part.FAILED),
            waiting=names(Part.AWAITED, Part.STARTING),
            starting=names(Part.STARTING),
            skipped={name: self._skips(name, checkpoint.checkpoint_id) for name in missing},
            elapsed_s=0.0 if checkpoint.barrier_s is None else now_s - checkpoint.barrier_s,
        )

    def _skips(self, region: str, checkpoint_id: int) -> int:
        """Checkpoints in a row before this one that have skipped the region, or are about to be
        decided without it."""
        skips = self.regions[region].skipped
        for earlier in self.pending.values():
            if earlier.checkpoint_id < checkpoint_id and earlier.state in _COMPLETE:
                skips = skips + 1 if region in earlier.skipped else 0
        return skips

    def may_decide(self, kind: CheckpointKind) -> bool:
        """Whether a checkpoint begun now could be decided, if every open region acknowledged. One
        that could not would end the attempts of regions that have restarted already."""
        found = self.cached_views.may_decide.get(kind)
        if found is None:
            found = self.cached_views.may_decide[kind] = self._could_decide(kind)
        return found

    def _could_decide(self, kind: CheckpointKind) -> bool:
        standing = self.in_service()
        closed = {name: found for name, found in standing.items() if not found.is_open}
        alignment = Alignment(
            kind=kind,
            acknowledged=frozenset(standing.keys() - closed.keys()),
            failed=frozenset(closed),
            skipped={name: found.skipped for name, found in closed.items()},
        )
        ruling = self.settings.handler.rule(alignment, timeout_s=self.settings.timeout_s)
        return ruling is HandlerDecision.DECIDE

    def excuse_replays(self, names: Sequence[str]) -> bool:
        """Whether a checkpoint waited for nothing but replays. A replay may take as long as it
        makes progress, so such a checkpoint is no failure. Remembers the attempts.

        If every replay takes longer than the timeout, regions end each other's epochs for ever. So
        after a few attempts without a decision it is a failure like any other.
        """
        if not names or not all(self.liveness.is_replaying(name) for name in names):
            return False
        attempts = [self.replayed.setdefault(name, set()) for name in names]
        for name, found in zip(names, attempts, strict=True):
            found.add(self.regions[name].attempt_id)
        return all(len(found) <= _EXCUSED_ATTEMPTS for found in attempts)

    def require_running(self) -> None:
        """Refuse a request to a job that has ended."""
        if self.is_over:
            raise self.error or FencedError(
                "the job has ended", {}, "Start the job again; it resumes from the last checkpoint."
            )

    def count_failure(self) -> None:
        """One more in a row."""
        self.failures += 1
        self.attempts_at_failure = {name: found.attempt_id for name, found in self.regions.items()}

    def ran_at_last_failure(self, region: str, attempt_id: int) -> bool:
        """Whether this attempt of a region ran when a failure was counted last.

        A lost executor, or a pause of the driver, ends all of them: it is counted once.
        """
        return self.attempts_at_failure.get(region) == attempt_id

    def reset_failures(self) -> None:
        """Failures from here on are the first in a row."""
        self.failures = 0
        self.attempts_at_failure = {}
        self.replayed = {}

    def _fail(self, batches: tuple[BatchKey, ...], error: BaseException) -> None:
        if batches:
            self.out.append(FailBatches(batches=batches, error=error))
