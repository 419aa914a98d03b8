"""What the coordinator's core knows about one region: its life, its positions, what is decided."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, RegionPlan
from sluice.runtime.coordinator.region.pacing import Pace, QuietTime
from sluice.runtime.coordinator.region.pressure import PendingTime
from sluice.runtime.errors import FencedError, IllegalTransitionError, WrongJobError
from sluice.runtime.failover.attempt_history import AttemptHistory
from sluice.runtime.failover.restart_strategies import Restarts
from sluice.runtime.functions.at_most_once import DROPS_KIND
from sluice.runtime.functions.record_counts import COUNTS_KIND
from sluice.runtime.model.event_time import least_of
from sluice.runtime.model.model import (
    Acknowledgement,
    Barrier,
    BatchKey,
    RegionRecord,
    RegionStatus,
    SplitKey,
    SplitRange,
)
from sluice.runtime.model.rate_limit import RateEstimator

__all__ = ["Fate", "RegionState", "Suspended", "region_of"]


_OTHERS_MESSAGE = "The message comes from another job, or from another version of this one."


class Fate(enum.Enum):
    """What became of a batch, as far as a sweep must know."""

    OPEN = "open"  # may still be decided, or is decided and not marked: leave it alone
    SETTLED = "settled"  # committed on record: what it opened and did not name is an orphan
    DISCARDED = "discarded"  # will never be decided
    OUTDATED = "outdated"  # of an older attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspended:
    """Why a region stands still, and since when (clock of the core)."""

    cause: BaseException
    since_s: float


@dataclass(slots=True)
class RegionState:
    """One region. Owned by the core, changed only inside its step.

    Attributes:
        plan: what the job says about it.
        attempt_id: its current life.
        record: as the last decided checkpoint has it.
        completed_in: the last decided checkpoint that it completed.
        carried: decided checkpoints in a row that it was carried in.
        late: the barrier of a batch under way whose checkpoint was decided without it.
        is_open: False once its batch was aborted or it failed, until it is restarted.
        is_starting: its life is not the first one, and has not asked for a barrier yet.
        asks_at: the address at which its life asks, as far as it has said so.
        finished: bounded sources have reached their ends with the last cut.
        owes_a_batch: they have, and what its state may give behind that is still to come.
        is_written: bounded sources have, with what is decided; also when its life is over.
        discovered: splits that no decided checkpoint has yet, where they begin.
        cuts: ranges of batches under way, by checkpoint id.
        held: acknowledged batch that no barrier asked for; joins the next checkpoint.
        held_since_s: age clock when it was acknowledged.
        decide_by_s: clock after which the batch that it acknowledged last may be lost undecided.
        attended_by_s: the same on the clock of the steps, had that missed nothing since the batch
            began: work that is too old, and would not be by this one, was not too slow.
        missed_s: what that clock had missed when the batch under way began; None: not known.
        is_excused: its life ended for nothing but such a time.
        fence: the checkpoint id whose aborted record ends this life; the next attempt.
        discarded: committables of ``held`` when the life ended without a fence yet.
        restart_asked: somebody waits for the next life.
        ended_by: why the last life ended.
        restarts: what the restart strategy remembers of it.
        begins_s: clock before which the next life may not begin; None: it may.
        history: of the lives that have ended.
        suspended: it failed for good, and has no next life until somebody asks for one.
        is_fenced_off: suspended, and its old life is settled: the attempt is already that of the
            record that ended it, in which nothing ever ran, so a sweep takes all that is older.
        needs_sweep: no decision was taken behind a sweep since it was suspended.
        completed_s: clock at the decision of ``completed_in``; None before the first of this run.
        again_s: clock at which a sink wants a batch, with records or without; None: it does not.
        state_is_due: what Spark keeps for it wants one, too: a watermark has moved, for example.
        pace: how large its epochs may be.
        rate: how many records per second it may read; None: as many as it can.
        pending: how far it is behind its barriers.
        asked: the ranges of its last barrier.
        quiet: when it is worth looking for something to read.
        work: of each split, what the last cut took and what it left behind, as far as known.
    """

    plan: RegionPlan
    attempt_id: int
    record: RegionRecord
    pace: Pace
    rate: RateEstimator | None = None
    completed_in: int = 0
    skipped: int = 0
    late: Barrier | None = None
    is_open: bool = True
    is_starting: bool = False
    asks_at: str = ""
    finished: bool = False
    owes_a_batch: bool = False
    is_written: bool = False
    discovered: dict[SplitKey, SplitRange] = field(default_factory=dict)
    cuts: dict[int, tuple[SplitRange, ...]] = field(default_factory=dict)
    held: Acknowledgement | None = None
    held_since_s: float = field(init=False, default=0.0)
    decide_by_s: float | None = None
    attended_by_s: float | None = field(init=False, default=None)
    missed_s: float | None = field(init=False, default=None)
    is_excused: bool = field(init=False, default=False)
    fence: int | None = None
    discarded: list[Acknowledgement] = field(default_factory=list)
    restart_requested: bool = False
    ended_by: BaseException | None = None
    restarts: Restarts = field(default_factory=Restarts)
    begins_s: float | None = None
    history: AttemptHistory = field(default_factory=AttemptHistory)
    suspended: Suspended | None = None
    is_fenced_off: bool = False
    needs_sweep: bool = False
    completed_s: float | None = None
    again_s: float | None = field(init=False, default=None)
    state_is_due: bool = field(init=False, default=False)
    pending: PendingTime = field(init=False, default_factory=PendingTime)
    asked: tuple[SplitRange, ...] = field(init=False, default=())
    quiet: QuietTime = field(init=False, default_factory=QuietTime)
    work: Mapping[SplitKey, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._ask_at_once()

    def _ask_at_once(self) -> None:
        """What sinks and Spark's state wanted is not on record; those that keep one are asked,
        once. Before its first decision a state has nothing to give."""
        kinds = {entry.kind for entry in self.record.operator_states}
        keeps_state = bool(kinds - {COUNTS_KIND, DROPS_KIND})
        self.again_s = float("-inf") if keeps_state else None
        self.state_is_due = self.plan.stateful and self.record.state is not None

    @property
    def has_decided(self) -> bool:
        """Whether something of the region's present life is decided."""
        return self.record.batch_id is not None and self.record.attempt_id == self.attempt_id

    def wants_a_batch(self, now_s: float, *, is_last: bool) -> bool:
        """Whether a sink or the state has something to do though there is nothing to cut."""
        is_asked = self.again_s is not None and (is_last or now_s >= self.again_s)
        return is_asked or self.state_is_due

    def require(self, attempt_id: int) -> None:
        """Refuse messages of another life (`callback-after-commit`).

        Raises:
            FencedError: the attempt is older, or its life has ended.
        """
        if attempt_id != self.attempt_id or not self.is_open:
            why = self.ended_by if attempt_id == self.attempt_id else None
            raise FencedError(
                "the region has been restarted, or is being stopped",
                {
                    "region": self.plan.name,
                    "attempt_id": attempt_id,
                    "current_generation": self.attempt_id,
                    **({} if why is None else {"error": str(why)}),
                },
                "This batch is no longer wanted; the region's next run reads its range again.",
            )

    def attempts(self, missed_s: float) -> None:
        """It was heard of: what it writes without a barrier began behind that, at the earliest."""
        if self.missed_s is None:
            self.missed_s = missed_s

    def keep_until(self, decide_by_s: float | None, missed_s: float) -> None:
        """A batch is acknowledged that may be lost behind that moment; the next one begins."""
        self.attempts(missed_s)
        before_s = self.missed_s or 0.0
        self.decide_by_s = decide_by_s
        self.attended_by_s = None if decide_by_s is None else decide_by_s - before_s
        self.missed_s = missed_s

    def epoch_limit(self, settings: CheckpointSettings) -> int | None:
        """At most so many records per cut; the user's own limit stands above what was learnt.

        A region that follows its splits has an epoch as long as the time between two barriers.
        """
        if self.plan.follows:
            return None
        limits = [None if self.rate is None else self.rate.most_records, self.plan.max_records]
        if self.plan.max_records is None and settings.pace_epochs:
            limits.append(self.pace.limit)
        return min((limit for limit in limits if limit is not None), default=None)

    def is_behind(self, settings: CheckpointSettings) -> bool:
        """Whether our own limit, not the user's, left records behind at the last cut; or there are
        none any more, and its state may have more to give."""
        if self.owes_a_batch:
            return True
        if self.plan.max_records is not None or self.rate is not None or self.plan.follows:
            return False
        return settings.pace_epochs and self.pace.is_behind

    def positions(self) -> tuple[SplitRange, ...]:
        """Where the next cut starts: the end of each split's last range."""
        if not self.cuts and not self.discovered:
            return self.record.splits
        found = {split.key: split for split in self.record.splits} | self.discovered
        for checkpoint_id in sorted(self.cuts):
            found |= {split.key: split for split in self.cuts[checkpoint_id]}
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
                    "Spark's log and the checkpoint do not fit; restart from the checkpoint.",
                )

    def record_with(self, ack: Acknowledgement | None) -> RegionRecord:
        """The region as the next decided record has it; without a batch it stays as it was."""
        if ack is None:
            return self._with_new_splits(
                replace(
                    self.record, status=RegionStatus.COMPLETED, snapshot_id=None, committables=()
                )
            )
        return self._with_new_splits(
            replace(
                ack.region,
                region=ack.batch.region,
                attempt_id=ack.batch.attempt_id,
                batch_id=ack.batch.batch_id,
                status=RegionStatus.COMPLETED,
                snapshot_id=None,
            ),
            self.record.splits,
        )

    def skipped_record(self) -> RegionRecord:
        """The region as a decided record has it that it is carried in: its last good snapshot.

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
        """With what its batch has not read: behind ``standing``, and of what was discovered."""
        known = {split.key for split in record.splits}
        others = [split.at_end() for split in standing if split.key not in known]
        others += [split for key, split in self.discovered.items() if key not in known]
        if not others:
            return record
        # Nobody may think that the region has passed a time which one of its splits has not.
        marks = [record.least_watermark_ms, *(split.watermark_ms for split in others)]
        return replace(
            record, splits=record.splits + tuple(others), least_watermark_ms=least_of(marks)
        )

    def decided(
        self,
        checkpoint_id: int,
        record: RegionRecord,
        goes_on: RegionRecord,
        *,
        is_end: bool = False,
    ) -> None:
        """The record is durable: positions count from it.

        Args:
            goes_on: the record, with the region's splits as they are behind the decision.
            is_end: it was cut for this checkpoint up to the end of its bounded sources.
        """
        self.record = goes_on
        # What it was given may have records left; the next cut tells.
        self.finished = self.finished and goes_on is record
        for split in record.splits:
            self.discovered.pop(split.key, None)
        is_whole = goes_on is record and not self.discovered
        self.is_written = (self.is_written or is_end) and is_whole
        if record.status is RegionStatus.SKIPPED:
            self.skipped += self.suspended is None
            return
        self.skipped, self.completed_in = 0, checkpoint_id
        # Also those of a checkpoint that was decided without it: its batch has joined this one.
        self.cuts = {at: found for at, found in self.cuts.items() if at > checkpoint_id}

    def close(self, fence: int | None) -> Acknowledgement | None:
        """End this life; returns the held batch, whose callback has to be woken."""
        held, self.held = self.held, None
        if held is not None:
            self.discarded.append(held)
        self.is_open = self.is_starting = self.finished = self.owes_a_batch = False
        self.late = self.missed_s = None
        if self.rate is not None:
            self.rate.given_up()
        if fence is not None and self.fence is None:
            self.fence = fence
        return held

    def suspend(self, cause: BaseException, now_s: float) -> None:
        """Stand still; the life has been ended."""
        self.suspended = Suspended(cause=cause, since_s=now_s)
        self.needs_sweep = True
        self.begins_s = None
        self.pace.is_behind = False
        self.pending = PendingTime()

    def resume(self) -> None:
        """It may begin again, as if it had never failed."""
        self.suspended = None
        self.is_fenced_off = False
        self.skipped = 0
        self.restarts = Restarts()
        self.begins_s = None

    def fence_off(self) -> None:
        """The fence is durable and the old life settled: its id is the attempt from now on."""
        assert self.fence is not None  # or its record could not be durable
        self.attempt_id, self.fence = self.fence, None
        self.cuts.clear()
        self.is_fenced_off = True

    def reopen(self) -> None:
        """Begin the next life behind the fence; its attempt is the fence's id."""
        self.fence_off()
        self.is_fenced_off = False
        self.needs_sweep = True  # until it asks for a barrier: a decision may carry it before
        self.is_open, self.restart_requested, self.finished = True, False, False
        self.is_starting, self.is_excused = True, False
        self.begins_s = None
        self._ask_at_once()


def region_of(
    regions: Mapping[str, RegionState], name: str, *, remedy: str = _OTHERS_MESSAGE
) -> RegionState:
    """The region of that name.

    Args:
        remedy: what whoever named it can do; by default it was a message, and no person.
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
