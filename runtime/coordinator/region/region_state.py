"""The state of one region in the coordinator's core: its attempt, positions and last decision."""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sluice.runtime.contracts import RegisteredAttempt
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, RegionPlan
from sluice.runtime.coordinator.policy.state_tables import (
    OPEN,
    OUT_OF_SERVICE,
    RegionEvent,
    RegionPhase,
    advance_region,
)
from sluice.runtime.coordinator.region.region_pace import IdleTime, Pace, PendingTime
from sluice.runtime.errors import FencedError, IllegalTransitionError, WrongJobError
from sluice.runtime.failover.attempt_history import AttemptHistory
from sluice.runtime.failover.restart_strategies import Restarts
from sluice.runtime.functions.at_most_once import DROPS_KIND
from sluice.runtime.functions.record_counts import COUNTS_KIND
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.checkpoint_record import RegionRecord, RegionStatus
from sluice.runtime.model.event_time import least_of
from sluice.runtime.model.rate_limit import RateEstimator
from sluice.runtime.model.splits import Barrier, BatchKey, SplitKey, SplitRange
from sluice.runtime.model.state.keyed_state import Due, KeyedState

__all__ = ["Fate", "RegionState", "RegisteredAttempts", "Suspended", "region_of"]

_SWEEPS = 90  # 15 minutes at 10 s each: Spark ends a paused worker long before
_MOST_ORPHANS = 10_000
_OTHERS_MESSAGE = (
    "Send it to the job that it belongs to: this is another job, or another version of it."
)


class Fate(enum.Enum):
    """The fate of a batch, for a sweep."""

    OPEN = "open"  # may still be decided, or is decided and not marked: do not sweep it.
    SETTLED = "settled"  # committed on record: transactions that it did not name are orphans.
    DISCARDED = "discarded"  # will never be decided.
    OUTDATED = "outdated"  # of an older attempt


@dataclass(slots=True)
class RegisteredAttempts:
    """Open work that tasks have registered, by batch, until sweeps have aborted it
    (`ids-never-reused`). Owned by the coordinator's core.

    Once a batch has its completion marker, all its work may be swept. Work that its decision names
    has ended already, and to abort exactly that producer epoch does not harm an ended transaction.
    So this class does not inspect committables. Each attempt is given to many sweeps: one sweep may
    not reach every broker, and a paused task may begin its transaction late. Then it is forgotten.
    """

    _open: dict[BatchKey, dict[RegisteredAttempt, float]] = field(default_factory=dict)
    _unswept: dict[RegisteredAttempt, float] = field(default_factory=dict)
    _orphans: dict[RegisteredAttempt, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._orphans) + sum(len(found) for found in self._open.values())

    def add(self, attempt: RegisteredAttempt, at_s: float = 0.0) -> None:
        """Add an attempt that was registered at this moment; idempotent."""
        self._open.setdefault(attempt.batch, {}).setdefault(attempt, at_s)

    def open_since(self, fate_of: Callable[[BatchKey], Fate]) -> dict[tuple[str, str], float]:
        """When the oldest work that may still be open was registered, by region and operator.

        Work of batches under way counts, and work of ended ones until a sweep was complete.
        """
        found: dict[tuple[str, str], float] = {}
        for batch, attempts in self._open.items():
            if fate_of(batch) is not Fate.SETTLED:
                for attempt, at_s in attempts.items():
                    key = batch.region, attempt.operator_id
                    found[key] = min(at_s, found.get(key, at_s))
        for attempt, at_s in self._unswept.items():
            key = attempt.batch.region, attempt.operator_id
            found[key] = min(at_s, found.get(key, at_s))
        return found

    def swept(self) -> None:
        """A sweep after the last `orphans` has reached every remote."""
        self._unswept.clear()

    def orphans(self, fate_of: Callable[[BatchKey], Fate]) -> tuple[RegisteredAttempt, ...]:
        """Attempts that the next sweep may abort; each call counts as one sweep."""
        for batch in list(self._open):
            fate = fate_of(batch)
            if fate is not Fate.OPEN:
                attempts = self._open.pop(batch)
                if fate is not Fate.SETTLED:
                    self._unswept = dict(
                        [*self._unswept.items(), *attempts.items()][-_MOST_ORPHANS:]
                    )
                if fate is not Fate.OUTDATED:  # older attempts are swept as a whole
                    self._orphans |= dict.fromkeys(attempts, _SWEEPS)
        offered = {
            attempt: sweeps
            for attempt, sweeps in self._orphans.items()
            if fate_of(attempt.batch) is not Fate.OUTDATED
        }
        kept = [(attempt, sweeps - 1) for attempt, sweeps in offered.items() if sweeps > 1]
        self._orphans = dict(kept[-_MOST_ORPHANS:])
        return tuple(offered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspended:
    """Why a region is suspended, and since when (clock of the core)."""

    cause: BaseException
    since_s: float


@dataclass(slots=True)
class RegionState:
    """One region. Owned by the core, changed only inside its step.

    Attributes:
        plan: its part of the job.
        attempt_id: of its current attempt.
        record: as the last decided checkpoint has it.
        completed_in: the last decided checkpoint that it completed.
        skipped: decided checkpoints in a row that have skipped it.
        phase: see `RegionPhase`.
        barrier: the last one that it was given; None: none yet.
        address: at which its attempt reaches the coordinator, if its host has reported that.
        finished: bounded sources have reached their ends with the last barrier.
        owes_batch: as ``finished``, but a last batch with rows from the state must follow.
        is_written: bounded sources have reached their ends with a decided record; this remains
            after the attempt.
        discovered: splits that no decided checkpoint has yet, where they begin.
        open_ranges: ranges of batches under way, by checkpoint id.
        pending_ack: acknowledged batch without a barrier; it joins the next checkpoint.
        decide_by_s: clock after which the batch that it acknowledged last may be lost undecided.
        fence: the checkpoint id whose aborted record ends this attempt; the next attempt's id.
        discarded: committables of ``pending_ack`` if the attempt ended before there was a fence.
        restart_requested: its host waits for the next attempt.
        ended_by: why the last attempt ended.
        restarts: the memory of the restart strategy.
        begins_s: clock before which the next attempt may not begin; None: it may.
        history: of the attempts that have ended.
        suspended: why and since when it is suspended; None: it is not.
        needs_sweep: no decision has followed a sweep since it was suspended or restarted.
        completed_s: clock at the decision of ``completed_in``; None before the first of this run.
        late_rows: that Spark dropped in decided epochs of this run, see `RecordCounts`.
        again_s: clock at which a sink wants a batch, with records or without; None: it does not.
        state_is_due: Spark's state wants a batch, for example after a watermark has moved.
        due: when its keyed state wants a batch without records; None: not known yet.
        decided_due: the same, of the state in ``record``.
        paused: splits that its task does not read, as of its last acknowledgement.
        held: splits whose keyed state its task has, or gets with its barrier.
        has_ended: a barrier of this attempt ends the input of all its splits.
        pace: how large its epochs may be.
        rate: how many records per second it may read; None: as many as it can.
        pending_time: how long it worked on after a barrier was due.
        idle: when its sources are polled again for an armed barrier.
        work: of each split, records up to the last barrier and after it, as far as known.
    """

    plan: RegionPlan
    attempt_id: int
    record: RegionRecord
    pace: Pace
    rate: RateEstimator | None = None
    completed_in: int = 0
    skipped: int = 0
    phase: RegionPhase = RegionPhase.RUNNING
    barrier: Barrier | None = None
    address: str = ""
    finished: bool = False
    owes_batch: bool = False
    is_written: bool = False
    discovered: dict[SplitKey, SplitRange] = field(default_factory=dict)
    open_ranges: dict[int, tuple[SplitRange, ...]] = field(default_factory=dict)
    pending_ack: Acknowledgement | None = None
    decide_by_s: float | None = None
    fence: int | None = None
    discarded: list[Acknowledgement] = field(default_factory=list)
    restart_requested: bool = False
    ended_by: BaseException | None = None
    restarts: Restarts = field(default_factory=Restarts)
    begins_s: float | None = None
    history: AttemptHistory = field(default_factory=AttemptHistory)
    suspended: Suspended | None = None
    needs_sweep: bool = False
    completed_s: float | None = None
    late_rows: int = field(init=False, default=0)
    again_s: float | None = field(init=False, default=None)
    state_is_due: bool = field(init=False, default=False)
    due: Due | None = field(init=False, default=None)
    decided_due: Due | None = field(init=False, default=None)
    paused: tuple[SplitKey, ...] = field(init=False, default=())
    held: frozenset[SplitKey] = field(init=False, default=frozenset())
    has_ended: bool = field(init=False, default=False)
    pending_time: PendingTime = field(init=False, default_factory=PendingTime)
    idle: IdleTime = field(init=False, default_factory=IdleTime)
    work: Mapping[SplitKey, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._begin_attempt()
        self.decided_due = self.due

    def _begin_attempt(self) -> None:
        """Request one batch at once if sinks, Spark or keyed functions keep state: whether they
        want one is not on record. Before its first decision a state has no rows to return."""
        self.paused = ()
        self.held, self.has_ended = frozenset(split.key for split in self.record.splits), False
        self.due = self._due_on_record()
        self.again_s = float("-inf") if self.keeps_operator_state else None
        self.state_is_due = self.plan.stateful and self.record.state is not None

    def _due_on_record(self) -> Due | None:
        """A record does not say when its state wants a batch."""
        keyed = self.record.keyed_state
        has_state = keyed is not None and any(split.parts for split in keyed.splits)
        return None if self.plan.keyed and has_state else Due()

    @property
    def keeps_operator_state(self) -> bool:
        """Whether its record has a state of an operator that depends on its splits. Totals of
        records and of dropped offsets do not."""
        kinds = {entry.kind for entry in self.record.operator_states}
        return bool(kinds - {COUNTS_KIND, DROPS_KIND})

    @property
    def is_open(self) -> bool:
        """Whether an attempt is current: its messages are accepted."""
        return self.phase in OPEN

    @property
    def is_suspended(self) -> bool:
        """Whether the job continues without it, until an operator restarts it."""
        return self.phase in OUT_OF_SERVICE

    def advance(self, event: RegionEvent) -> None:
        """Change the phase by the table."""
        self.phase = advance_region(self.phase, event, region=self.plan.name)

    @property
    def cause(self) -> BaseException | None:
        """Why it is suspended, or why its last attempt ended."""
        return self.ended_by if self.suspended is None else self.suspended.cause

    @property
    def has_decided(self) -> bool:
        """Whether a batch of the region's current attempt is decided."""
        return self.record.batch_id is not None and self.record.attempt_id == self.attempt_id

    def wants_batch(
        self, now_s: float, *, is_last: bool, watermark_ms: int | None = None, wall_ms: int = 0
    ) -> bool:
        """Whether a sink or the state wants a batch even without new records.

        Args:
            watermark_ms, wall_ms: the time of a barrier that is given now.
        """
        is_requested = self.again_s is not None and (is_last or now_s >= self.again_s)
        return is_requested or self.state_is_due or self._keyed_is_due(watermark_ms, wall_ms)

    def _keyed_is_due(self, watermark_ms: int | None, wall_ms: int) -> bool:
        if self.due is None:
            return True
        due = self.due
        by_event = watermark_ms is not None and any(
            ms is not None and watermark_ms >= ms for ms in (due.event_ms, due.expiry_ms)
        )
        return by_event or (due.time_ms is not None and wall_ms >= due.time_ms)

    @property
    def wants_end(self) -> bool:
        """Whether the end of its input closes windows or fires timers of its keyed state."""
        time = self.plan.event_time
        is_kept = time is not None and time.at_end == "keep"
        is_due = self.due is None or self.due.event_ms is not None
        return self.plan.keyed and is_due and not (is_kept or self.has_ended)

    def state_for(self, splits: Sequence[SplitRange]) -> KeyedState | None:
        """The keyed state that a barrier of these splits brings to the region's tasks. A long task
        needs that of splits that are new to it, the tasks of a batch need that of all."""
        if not self.plan.keyed:
            return None
        keys = frozenset(split.key for split in splits)
        missing = keys - self.held if self.plan.follows else keys
        self.held = keys
        return (self.record.keyed_state or KeyedState()).covering(missing)

    def require(self, attempt_id: int) -> None:
        """Refuse messages of another attempt (`callback-after-commit`).

        Raises:
            FencedError: the attempt is older, or has ended.
        """
        if attempt_id != self.attempt_id or not self.is_open:
            why = self.ended_by if attempt_id == self.attempt_id else None
            raise FencedError(
                "the region has been restarted, or is being stopped",
                {
                    "region": self.plan.name,
                    "attempt_id": attempt_id,
                    "current_attempt_id": self.attempt_id,
                    **({} if why is None else {"error": str(why)}),
                },
                "Let this attempt end; the region's next one reads the range again.",
            )

    def epoch_limit(self, settings: CheckpointSettings) -> int | None:
        """At most so many records per epoch: the user's own limit, else the learnt one.

        An epoch of a streaming region lasts from one barrier to the next one.
        """
        if self.plan.follows:
            return None
        limits = [None if self.rate is None else self.rate.most_records, self.plan.max_records]
        if self.plan.max_records is None and settings.pace_epochs:
            limits.append(self.pace.limit)
        return min((limit for limit in limits if limit is not None), default=None)

    def has_backlog(self, settings: CheckpointSettings) -> bool:
        """Whether our own limit, not the user's, left records unread at the last barrier; or there
        are none any more, and its state may return rows."""
        if self.owes_batch:
            return True
        if self.plan.max_records is not None or self.rate is not None or self.plan.follows:
            return False
        return settings.pace_epochs and self.pace.has_backlog

    def positions(self) -> tuple[SplitRange, ...]:
        """The start of the next epoch: the end of each split's last range."""
        if not self.open_ranges and not self.discovered:
            return self.record.splits
        found = {split.key: split for split in self.record.splits} | self.discovered
        for checkpoint_id in sorted(self.open_ranges):
            found |= {split.key: split for split in self.open_ranges[checkpoint_id]}
        return tuple(found.values())

    def is_decided(self, batch: BatchKey) -> bool:
        """Whether the last decided record contains the batch, or a later one (`batch-identity`)."""
        last = self.record.batch_id
        if last is None or batch.batch_id > last:
            return False
        return batch.attempt_id == self.record.attempt_id or self.plan.batch_ids_continue

    def require_new_ranges(self, ack: Acknowledgement) -> None:
        """Refuse a batch that reads what a decided checkpoint contains.

        Raises:
            IllegalTransitionError: it would double those records.
        """
        decided = {split.key: split for split in self.record.splits}
        for split in ack.region.splits:
            # A source may read transaction markers again: no record follows ``known_end``.
            end = decided[split.key].known_end if split.key in decided else 0
            if split.start_offset < end:
                raise IllegalTransitionError(
                    "a batch reads records that a decided checkpoint contains",
                    {
                        "region": self.plan.name,
                        "split": split.name,
                        "start_offset": split.start_offset,
                        "decided_end_offset": end,
                        "batch_id": ack.batch.batch_id,
                    },
                    "Restart from the checkpoint: Spark's log does not match it.",
                )

    def record_with(self, ack: Acknowledgement | None) -> RegionRecord:
        """The region as the next decided record has it; without a batch it stays as it was."""
        if ack is None:
            return self._with_new_splits(
                replace(
                    self.record, status=RegionStatus.COMPLETED, snapshot_id=None, committables=()
                )
            )
        given_up, read = self.given_up(ack), {split.key for split in ack.region.splits}
        standing = [split for split in self.record.splits if split.key not in given_up]
        return self._with_new_splits(
            replace(
                ack.region,
                region=ack.batch.region,
                attempt_id=ack.batch.attempt_id,
                batch_id=ack.batch.batch_id,
                status=RegionStatus.COMPLETED,
                snapshot_id=None,
                keyed_state=self._state_with(ack, [s.key for s in standing if s.key not in read]),
            ),
            standing,
        )

    def _state_with(self, ack: Acknowledgement, unread: Sequence[SplitKey]) -> KeyedState | None:
        """The keyed state of a batch, and of splits that it has not read."""
        states = (ack.region.keyed_state, self.record.keyed_state)
        if states[1] is None or not unread:
            return states[0]
        return KeyedState.merged([states[0] or KeyedState(), states[1].of(unread)])

    def given_up(self, ack: Acknowledgement | None) -> frozenset[SplitKey]:
        """Splits of topics that the batch's sources no longer read (``forgetTopics``): each batch
        of a query that keeps its logs has all positions of its sources."""
        if ack is None or not self.plan.keeps_logs:
            return frozenset()
        sources = {split.source_id for split in ack.region.splits}
        topics = {split.key[:2] for split in ack.region.splits}
        return frozenset(
            split.key
            for split in self.record.splits
            if split.source_id in sources and split.key[:2] not in topics
        )

    def skipped_record(self) -> RegionRecord:
        """The region in a decided record that skips it: its last snapshot.

        New splits are on record where they begin, for retention may move that place, and a run
        that asked for it again would skip what it took (`restore-by-attempt`).
        """
        return self._with_new_splits(
            replace(
                self.record,
                status=RegionStatus.SKIPPED,
                snapshot_id=self.completed_in,
                committables=(),
            )
        )

    def _with_new_splits(
        self, record: RegionRecord, standing: Sequence[SplitRange] = ()
    ) -> RegionRecord:
        """The record with splits that its batch has not read: standing ones and discovered ones."""
        known = {split.key for split in record.splits}
        others = [split.at_end() for split in standing if split.key not in known]
        others += [split for key, split in self.discovered.items() if key not in known]
        if not others:
            return record
        # The region has passed only the time that all its splits have passed.
        marks = [record.least_watermark_ms, *(split.watermark_ms for split in others)]
        return replace(
            record, splits=record.splits + tuple(others), least_watermark_ms=least_of(marks)
        )

    def decided(
        self,
        checkpoint_id: int,
        record: RegionRecord,
        next_record: RegionRecord,
        *,
        is_end: bool = False,
        ack: Acknowledgement | None = None,
    ) -> None:
        """The record is durable: positions count from it.

        Args:
            ack: of the batch in it; None: there is none.
            next_record: the record, with the region's splits as they are after the decision.
            is_end: its range in this checkpoint ends with its bounded sources.
        """
        self.record = next_record
        own, read = ({split.key for split in each.splits} for each in (next_record, record))
        self.held &= own  # what leaves may come back
        has_more = bool(own - read)
        # Its new split may have the next timer, and windows that the end of the input closes.
        self.decided_due = self.decided_due if ack is None else ack.due or Due()
        if has_more or not own:
            self.due = self.decided_due = self._due_on_record()
        self.has_ended = self.has_ended and not has_more
        # Splits that it got may have unread records: the next poll shows.
        self.finished = self.finished and next_record is record
        for split in record.splits:
            self.discovered.pop(split.key, None)
        is_whole = next_record is record and not self.discovered
        self.is_written = (self.is_written or is_end) and is_whole
        if record.status is RegionStatus.SKIPPED:
            self.skipped += not self.is_suspended
            return
        self.skipped, self.completed_in = 0, checkpoint_id
        # Also those of a checkpoint that was decided without it: its batch has joined this one.
        self.open_ranges = {
            at: found for at, found in self.open_ranges.items() if at > checkpoint_id
        }

    def fence_at(self, checkpoint_id: int) -> None:
        """The aborted record of that checkpoint ends its attempt, unless an older one does."""
        if self.fence is None:
            self.fence = checkpoint_id

    def close(self) -> Acknowledgement | None:
        """End this attempt; return the pending batch, whose callback has to be woken."""
        pending_ack, self.pending_ack = self.pending_ack, None
        if pending_ack is not None:
            self.discarded.append(pending_ack)
        self.advance(RegionEvent.ENDED)
        self.finished = self.owes_batch = False
        if self.rate is not None:
            self.rate.given_up()
        return pending_ack

    def suspend(self, cause: BaseException, now_s: float) -> None:
        """Suspend the region; its attempt has ended."""
        self.advance(RegionEvent.GIVEN_UP)
        self.suspended = Suspended(cause=cause, since_s=now_s)
        self.needs_sweep = True
        self.begins_s = None
        self.pace.has_backlog = False
        self.pending_time = PendingTime()

    def resume(self) -> None:
        """Let it restart as if it had never failed."""
        self.advance(RegionEvent.RESTART_COMMANDED)
        self.suspended = None
        self.skipped = 0
        self.restarts = Restarts()
        self.begins_s = None

    def settle(self) -> None:
        """The fencing record is durable and the old work settled: its id is the attempt now.

        A failed region begins that attempt. No task of a suspended region runs in it, so a sweep
        takes all older work.
        """
        assert self.fence is not None  # or its record could not be durable
        self.advance(RegionEvent.SETTLED)
        self.attempt_id, self.fence = self.fence, None
        self.open_ranges.clear()
        if self.is_open:
            self.needs_sweep = True  # until it polls for a barrier: a decision may skip it before
            self.restart_requested = self.finished = False
            self._begin_attempt()


def region_of(
    regions: Mapping[str, RegionState], name: str, *, remedy: str = _OTHERS_MESSAGE
) -> RegionState:
    """The region of that name.

    Args:
        remedy: for the sender of the name; the default is for messages, not for users.
    Raises:
        WrongJobError: the job has none.
    """
    found = regions.get(name)
    if found is None:
        raise WrongJobError(
            "the job has no such region",
            {"region": name, "known": ",".join(regions)},
            remedy,
        )
    return found
