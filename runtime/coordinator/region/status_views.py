"""The status of a job, its regions and its checkpoints, for people and metrics. Frozen."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sluice.runtime.coordinator.region.job_time import TimeView
from sluice.runtime.coordinator.region.region_pace import Pressure
from sluice.runtime.coordinator.region.region_state import RegionState
from sluice.runtime.election.leader_election import ElectionView
from sluice.runtime.failover.attempt_history import first_line
from sluice.runtime.functions.at_most_once import DropLimit, dropped_in_all

__all__ = [
    "AttemptView",
    "CheckpointStatus",
    "JobStatus",
    "RegionStatusView",
    "SuspendedView",
    "TransactionView",
    "WaitingForResources",
    "region_view",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStatus:
    """A checkpoint under way; ``age_s``: since its barrier, None before it."""

    checkpoint_id: int
    kind: str
    state: str
    requested_by: str
    age_s: float | None
    acknowledged: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """An attempt of a region that has ended; see `RegionAttempt`."""

    attempt_id: int
    ended_ms: int
    why: str
    committed_after_s: float | None
    began_ms: int | None = None
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendedView:
    """A suspended region: since when (wall clock), and why."""

    since_ms: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionStatusView:
    """A region.

    Attributes:
        region, attempt_id, is_open, batch_id: its attempt, whether that is current, and the last
            decided batch.
        began_ms: when the attempt was allowed to begin; None: with the run.
        splits: end offsets, by name.
        begins_ms: when its restart strategy lets the next attempt begin; None: it does not wait.
        ended: attempts that have ended in this run.
        attempts: the newest of them, oldest first.
        pending_ratio, pressure: see `pressure`; None before its first barrier.
        suspended: since when and why it is suspended; None: it is not.
        snapshot_age_s: since the decision of the last checkpoint that it completed in this run.
        lags: records not read yet, by split, where known: of a suspended region as of the last
            refresh, every few seconds; of others as of the last barrier.
        lag_records: their sum; None: no split's is known.
        lost_records: records of these that retention has deleted; suspended regions only.
        has_alarm: its pressure has been high for too long.
        rate_limit: records per second that it may read now; None: no limit.
        dropped: offsets that approximate recovery has left out since the directory was created.
        late_rows: rows later than the watermark in this run: of keyed functions, or those that
            Spark dropped.
    """

    region: str
    attempt_id: int
    is_open: bool
    batch_id: int | None
    splits: Mapping[str, int]
    begins_ms: int | None
    ended: int
    attempts: tuple[AttemptView, ...]
    pending_ratio: float | None
    pressure: str | None
    rate_limit: float | None
    dropped: int
    late_rows: int
    suspended: SuspendedView | None = None
    snapshot_age_s: float | None = None
    lags: Mapping[str, int] = field(default_factory=dict)
    lag_records: int | None = None
    lost_records: int = 0
    has_alarm: bool = False
    began_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionView:
    """The oldest work of a region that a sink may have open: under way, waiting for its decision
    or its commit, or of an ended attempt until a sweep has aborted it.

    Attributes:
        region, sink: names.
        age_s: since a task registered it, with the time in which the host was suspended.
        timeout_s: age at which the brokers abort it.
    """

    region: str
    sink: str
    age_s: float
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingForResources:
    """A job with too few cores: tasks that must run at once, tasks that can, and since when."""

    needed: int
    present: int
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """The job: ``running``, ``WAITING_FOR_RESOURCES``, ``stopping``, ``finished``, ``stopped``,
    ``failed`` or ``fenced``.

    Attributes:
        drop_limit: how much approximate recovery may leave out; None: nothing.
        counters: totals of the user's counters by name of the function, since the checkpoint
            directory was created.
        function_records: ``read``, ``skipped`` and ``dead_lettered`` of functions with an
            ``on_error`` policy, by name of the function, since then.
        transactions: of each region and sink with open work that the remote ends after a timeout.
        waiting_for_resources: None: it has the cores that it needs.
        time: its event time; None: no source has one.
        election: its leader and standbys; None: nothing is elected.
    """

    state: str
    drop_limit: DropLimit | None
    error: str
    last_decided: int
    last_committed: int
    pending: tuple[CheckpointStatus, ...]
    regions: tuple[RegionStatusView, ...]
    counters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    function_records: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    transactions: tuple[TransactionView, ...] = ()
    waiting_for_resources: WaitingForResources | None = None
    time: TimeView | None = None
    election: ElectionView | None = None


def region_view(
    name: str,
    region: RegionState,
    ratio: float | None,
    *,
    now_s: float,
    wall_ms: Callable[[float], int],
) -> RegionStatusView:
    """The status of a region; ``wall_ms``: from the clock of the core to the wall clock."""
    completed_s, suspended = region.completed_s, region.suspended
    return RegionStatusView(
        region=name,
        attempt_id=region.attempt_id,
        is_open=region.is_open,
        batch_id=region.record.batch_id,
        splits={split.name: split.end_offset for split in region.positions()},
        begins_ms=None if region.begins_s is None else wall_ms(region.begins_s),
        ended=region.history.count,
        attempts=tuple(
            AttemptView(
                attempt_id=attempt.attempt_id,
                ended_ms=wall_ms(attempt.ended_s),
                why=attempt.why,
                began_ms=None if attempt.began_s is None else wall_ms(attempt.began_s),
                host=attempt.host,
                committed_after_s=attempt.committed_after_s,
            )
            for attempt in region.history.attempts
        ),
        pending_ratio=ratio,
        pressure=None if ratio is None else Pressure.of(ratio).value,
        suspended=None
        if suspended is None
        else SuspendedView(since_ms=wall_ms(suspended.since_s), why=first_line(suspended.cause)),
        snapshot_age_s=None if completed_s is None else now_s - completed_s,
        rate_limit=None if region.rate is None else region.rate.rate,
        dropped=dropped_in_all(region.record.operator_states),
        late_rows=region.late_rows,
        began_ms=None if region.history.began_s is None else wall_ms(region.history.began_s),
    )
