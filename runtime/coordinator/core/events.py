"""The inputs and outputs of the coordinator's core: typed events and actions. Frozen."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.runtime.checkpoint.lost_work import LostCommittables
from sluice.runtime.contracts import (
    CommitReport,
    FailedTask,
    FailureReason,
    PublishOutcome,
    RegionRegistration,
    UnsettledWork,
)
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.model.acknowledgement import Acknowledgement, RecordCounts, RegionTimes
from sluice.runtime.model.checkpoint_record import (
    Assignment,
    CheckpointKind,
    RegionRecord,
    StateEntry,
    Verdict,
)
from sluice.runtime.model.splits import Barrier, BatchKey, SplitKey, SplitRange

__all__ = [
    "AbortWork",
    "AbortedWork",
    "Acknowledged",
    "Action",
    "BarrierPolled",
    "CheckpointRequested",
    "CommandAccepted",
    "Commit",
    "CommitReported",
    "CopyFiles",
    "CoreEvent",
    "EndJob",
    "FailBatches",
    "FetchBarrierOffsets",
    "FilesCopied",
    "GiveBarrier",
    "MarkCommitted",
    "Marked",
    "NoteUnsettled",
    "NothingDue",
    "OrphansSwept",
    "PollAnswer",
    "Progress",
    "Publish",
    "PublishPositions",
    "Published",
    "RegionBarrierOffsets",
    "RegionFailed",
    "RegionRegistered",
    "RegionRestarted",
    "RegionSuspended",
    "RegionalStep",
    "RemoteAction",
    "Repair",
    "Repaired",
    "RequestEnded",
    "RestartCommanded",
    "RestartRequested",
    "Retire",
    "ReturnBatches",
    "SplitsDiscovered",
    "StepFailed",
    "StopRequested",
    "SweepOrphans",
    "Tick",
    "TriggerBarrier",
    "TriggerRequested",
    "Triggered",
]


class RegionalStep(enum.Enum):
    """The effects of a decision on a region besides completing it."""

    SKIP = "carry"  # it failed: it keeps its last snapshot.
    HOLD = "hold"  # it timed out: the same, and its work stays open for a later decision.
    RELEASE = "release"  # work that stayed open is in this decision.
    MOVE = "move"  # a split changes its region.


class CoreEvent:
    """An input of the core: something has happened."""

    __slots__ = ()


class Action:
    """An output of the core, which the shell performs."""

    __slots__ = ()


class RemoteAction(Action):
    """A step of the I/O thread; see `sluice.runtime.coordinator.shell.io_executor`."""

    __slots__ = ()


class PollAnswer(Action):
    """The answer to a poll, or to barrier offsets."""

    __slots__ = ()


# --- events: what happened --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(CoreEvent):
    """Time has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerRequested(CoreEvent):
    """A user, a command or the job itself requests a checkpoint now."""

    kind: CheckpointKind
    requested_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequested(CoreEvent):
    """A savepoint, a full checkpoint or a stop is requested. `RequestEnded` or `CopyFiles` follows.

    Attributes:
        kind: SAVEPOINT, FULL, or FINAL: the job ends after it.
        is_copied: its files are copied once it is committed on record; a job ends after that.
        drain_to: end offsets that the job reads to first, by split.
        limit_s: until it is committed on record; after that the job continues without it.
    """

    kind: CheckpointKind
    is_copied: bool
    drain_to: Mapping[SplitKey, int] = field(default_factory=dict)
    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesCopied(CoreEvent):
    """Answer to `CopyFiles`; ``error``: why there is no copy."""

    checkpoint_id: int
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierPolled(CoreEvent):
    """A region's source runner polls for its barrier; ``has_read``: its streaming task has read
    records, so it has an epoch to end even if no more records wait."""

    region: str
    attempt_id: int
    has_read: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionBarrierOffsets(CoreEvent):
    """The ranges of a region's next epoch, as its sources return them; ``finished``: all bounded
    sources have reached their ends with it; ``waiting``: records after the barrier, where known;
    ``requested``: splits that were requested, some of which may be gone; None: those of the ranges;
    ``has_read``: as `BarrierPolled`; ``log_ends``, ``input_ms``: see `FetchBarrierOffsets`."""

    checkpoint_id: int
    region: str
    attempt_id: int
    splits: tuple[SplitRange, ...]
    finished: bool
    waiting: Mapping[SplitKey, int] = field(default_factory=dict)
    log_ends: Mapping[SplitKey, int] = field(default_factory=dict)
    input_ms: int | None = None
    requested: frozenset[SplitKey] | None = None
    has_read: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitsDiscovered(CoreEvent):
    """A source has new splits, as empty ranges at their first record."""

    source_id: str
    splits: tuple[SplitRange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged(CoreEvent):
    """A region's batch is pre-committed."""

    ack: Acknowledgement


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionFailed(CoreEvent):
    """A region's batch failed. ``permanent``: a repetition cannot help."""

    region: str
    attempt_id: int
    error: BaseException
    permanent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRegistered(CoreEvent):
    """A region's host reports which work its attempt, current or ended, has open."""

    registration: RegionRegistration


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRequested(CoreEvent):
    """A region's host waits for the next attempt."""

    region: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartCommanded(CoreEvent):
    """An operator restarts these regions, suspended or not; none named: all suspended ones."""

    regions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Published(CoreEvent):
    """Answer to `Publish`."""

    checkpoint_id: int
    outcome: PublishOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitReported(CoreEvent):
    """Answer to `Commit`: report i belongs to committable i."""

    checkpoint_id: int
    committables: tuple[StateEntry, ...]
    reports: tuple[CommitReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired(CoreEvent):
    """Answer to `Repair`: lost committable's payload -> its durable replacement."""

    checkpoint_id: int
    outcome: PublishOutcome
    replaced: Mapping[bytes, StateEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked(CoreEvent):
    """Answer to `MarkCommitted`; ``durable`` is False if it has to be repeated."""

    checkpoint_id: int
    durable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedWork(CoreEvent):
    """Answer to `AbortWork`: everything is discarded, or left to the sweep."""

    checkpoint_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphansSwept(CoreEvent):
    """Answer to `SweepOrphans`."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailed(CoreEvent):
    """A remote step raised an error that no repetition can help; a FencedError stops everything."""

    checkpoint_id: int
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested(CoreEvent):
    """The job is being stopped, by an error or by the user."""

    error: BaseException | None = None


# --- actions: what the shell has to do --------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerBarrier(Action):
    """Step 1: a barrier is due; wake the regions that poll for it."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Triggered(Action):
    """Answer to every `TriggerRequested` of this kind so far: the checkpoint began."""

    checkpoint_id: int
    kind: CheckpointKind


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveBarrier(PollAnswer):
    """Answer to a poll or to offsets: the region's barrier."""

    barrier: Barrier


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchBarrierOffsets(PollAnswer):
    """Answer to a poll: fetch the offsets from these positions, answer `RegionBarrierOffsets`.

    ``may_finish``: the regions that write its input have ended, if there are any.
    ``input_ms``: their watermark; the answer then has the ends of the topic's logs.
    """

    checkpoint_id: int
    region: str
    attempt_id: int
    positions: tuple[SplitRange, ...]
    max_records: int | None
    has_read: bool = False
    may_finish: bool = True
    input_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingDue(PollAnswer):
    """Answer to a poll or to offsets: no barrier now; ``poll_in_s``: one is armed, so poll again
    then; None: poll again when something has changed."""

    poll_in_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish(RemoteAction):
    """Step 4, or an abort: publish this record in its slot; ``assignment``: of a decision;
    ``steps``: its effects on regions, which a test may interrupt; ``decide_by_s``: of a decision,
    the clock after which it is not tried any more; None: no limit."""

    checkpoint_id: int
    kind: CheckpointKind
    verdict: Verdict
    requested_by: str
    reason: str
    regions: tuple[RegionRecord, ...]
    assignment: Assignment | None = None
    steps: tuple[RegionalStep, ...] = ()
    decide_by_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(RemoteAction):
    """Step 5: commit the rest of its committables; ``regions`` as decided, and since repaired;
    ``failed_tasks``: of the regions that it was decided without."""

    checkpoint_id: int
    committables: tuple[StateEntry, ...]
    after_crash: bool
    regions: tuple[RegionRecord, ...]
    failed_tasks: tuple[FailedTask, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair(RemoteAction):
    """Write lost work again, publish its replacement, answer `Repaired` (`two-phase-repair`)."""

    checkpoint_id: int
    lost: tuple[LostCommittables, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkCommitted(RemoteAction):
    """Step 6: the durable marker; sinks are notified of their regions' positions first."""

    checkpoint_id: int
    regions: tuple[RegionRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteUnsettled(RemoteAction):
    """Record the work that is named by the error that ends the job (`two-phase-repair`)."""

    checkpoint_id: int
    works: tuple[UnsettledWork, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFiles(RemoteAction):
    """Copy the files that this checkpoint names, answer `FilesCopied`; ``suspended``: regions that
    stand in it with an older snapshot."""

    checkpoint_id: int
    suspended: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEnded(Action):
    """Answer to `CheckpointRequested`: its checkpoint is committed on record and the job ends, or
    ``error``: it has none, and the job continues."""

    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnBatches(Action):
    """Step 7: these batches are committed on record; their callbacks return."""

    checkpoint_id: int
    batches: tuple[BatchKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishPositions(RemoteAction):
    """Step 8: publish the committed positions to the sources, for lag tools."""

    checkpoint_id: int
    positions: tuple[SplitRange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire(RemoteAction):
    """Delete checkpoints that retention no longer keeps.

    Attributes:
        copied: checkpoint whose files are being copied: it stays meanwhile.
    """

    retained: int
    copied: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortWork(RemoteAction):
    """Discard pre-committed work that no decision names; the abort of its checkpoint is on record.
    None: the work is part of no checkpoint, and never will be."""

    checkpoint_id: int | None
    committables: tuple[StateEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOrphans(Action):
    """Abort transactions that failed regions left open, before a decision skips these regions:
    they would block readers of partitions that other regions write, too (`abort-before-skip`)."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailBatches(Action):
    """Wake the callbacks of these batches with an error."""

    batches: tuple[BatchKey, ...]
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRestarted(Action):
    """Answer to `RestartRequested`, perhaps later: the region's next attempt may begin."""

    region: str
    attempt_id: int
    restored: RegionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSuspended(Action):
    """A region has failed for good, and the job continues without it."""

    region: str
    cause: BaseException
    positions: tuple[SplitRange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAccepted(Action):
    """Answer to `RestartCommanded`: these regions restart."""

    regions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndJob(Action):
    """The job is over: by an error, by a stop, or ``finished``: all records of bounded sources are
    read; with an error, except those of suspended regions."""

    error: BaseException | None
    finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Action):
    """The progress of a checkpoint, for people and metrics; nothing depends on it.

    Attributes:
        checkpoint_id, kind, requested_by, state: of the checkpoint, after the change.
        regions: with a batch in it.
        skipped: regions that keep their last snapshot, and why.
        failed_tasks: of these regions.
        records: offsets covered by its batches (an upper bound of the records read).
        acked_s, decided_s, committed_s, marked_s: seconds since the barrier, None if not reached.
        reason: why it was aborted.
        counts: of its batches, by name of the function that counts.
        dropped: ranges of its batches that approximate recovery left out.
        pending_ratios: for each region, once marked: the share of the last minute in which the
            next barrier was due and the region still worked on the one before.
        rate_limits: records per second that each limited region may read now, once marked.
        attempts: attempts of each region in this run, with the current one; empty at first.
        stages: times of each region with a batch in it, once marked or aborted.
    """

    checkpoint_id: int
    kind: CheckpointKind
    requested_by: str
    state: State
    regions: int = 0
    skipped: Mapping[str, FailureReason] = field(default_factory=dict)
    failed_tasks: tuple[FailedTask, ...] = ()
    records: int = 0
    acked_s: float | None = None
    decided_s: float | None = None
    committed_s: float | None = None
    marked_s: float | None = None
    reason: str = ""
    counts: Mapping[str, RecordCounts] = field(default_factory=dict)
    dropped: tuple[SplitRange, ...] = ()
    pending_ratios: Mapping[str, float] = field(default_factory=dict)
    rate_limits: Mapping[str, float] = field(default_factory=dict)
    attempts: Mapping[str, int] = field(default_factory=dict)
    stages: Mapping[str, RegionTimes] = field(default_factory=dict)
