"""The plan of a job for the coordinator: its regions, sources, sinks and settings. Frozen."""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.runtime.contracts import TopicCopy
from sluice.runtime.coordinator.policy.balance import Balancer
from sluice.runtime.coordinator.policy.handlers import CheckpointHandler, GlobalCheckpointHandler
from sluice.runtime.errors import ConfigError
from sluice.runtime.failover.restart_strategies import RestartStrategy
from sluice.runtime.functions.at_most_once import DropLimit
from sluice.runtime.model.checkpoint_record import OperatorNode, RegionRecord
from sluice.runtime.model.event_time import EventTime
from sluice.runtime.model.rate_limit import PidRateLimit
from sluice.runtime.model.spelling import choice_of
from sluice.runtime.model.state.batch_lineage import BatchLineage
from sluice.runtime.model.state.keyed_state import StateTableInfo

__all__ = [
    "TOLERABLE_FAILURES",
    "CheckpointSettings",
    "JobPlan",
    "OnLost",
    "OnRegionFailure",
    "RegionPlan",
    "RestartedRegion",
    "StartedJob",
]

_LONGEST_LOOK_S = 1.0

TOLERABLE_FAILURES = 3
"""Checkpoints that may fail in a row, unless the user says something else."""


class OnLost(enum.Enum):
    """The reaction to a decided transaction that was certainly aborted (`two-phase-repair`)."""

    FAIL = "fail"
    REPAIR = "repair"

    @classmethod
    def of(cls, text: str) -> "OnLost":
        """The setting; ConfigError: there is no such choice."""
        remedy = "Use fail, or repair where the records are a function of the ranges read."
        return choice_of(cls, text, setting="on_lost", remedy=remedy)


class OnRegionFailure(enum.Enum):
    """The reaction of a job to a region that has failed for good."""

    FAIL = "fail"
    SUSPEND = "suspend"  # suspended until a command restarts it; other regions continue

    @classmethod
    def of(cls, text: str) -> "OnRegionFailure":
        """The setting; ConfigError: there is no such choice."""
        remedy = "Use fail, or suspend to continue without a region that failed for good."
        return choice_of(cls, text, setting="on_region_failure", remedy=remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPlan:
    """A region as the engine will run it.

    Attributes:
        name: unique in the job.
        source_ids: operator ids of the sources it reads; several regions may share one.
        sink_ids: operator ids of the sinks it writes.
        stateful_sink_ids: those that may keep state in its records; None: all.
        list_ids: operator ids of its functions with operator state.
        tables: keyed state that its functions declare; numbers are those of a new job.
        broadcast_id: operator id by which its keyed state is a broadcast stream; "": it is none.
        reads: operator ids of the broadcast streams that its functions read.
        waits_for: those of them without which it reads no record.
        stateful: Spark keeps state for it: its batch ids continue after restarts, and it may have a
            batch without records if its state returns rows.
        chained: what a task writes is made of the ranges that it reads, and of nothing else.
        event_time: of its sources; None: they have none.
        keyed: its functions may keep state for keys, which belongs to its splits.
        deterministic: the user's word that a replay gives the same records.
        follows: streaming: its task reads without waiting for barriers, and a barrier ends its
            epoch where it is. So the ranges that it acknowledges may end before or after the
            barrier offsets.
        bounded: it ends when its sources do.
        keeps_logs: Spark's own logs outlive a restart (drop-in), so batch ids continue. Each batch
            has all positions of its sources.
        max_records: at most so many records per epoch, None for all there are.
        upstream: regions that write what it reads: it ends when they have.
        rate_limit: keeps its epochs as short as the interval; None: epochs may take longer.
    """

    name: str
    source_ids: tuple[str, ...] = ()
    sink_ids: tuple[str, ...] = ()
    stateful_sink_ids: tuple[str, ...] | None = None
    list_ids: tuple[str, ...] = ()
    tables: tuple[StateTableInfo, ...] = ()
    broadcast_id: str = ""
    reads: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()
    stateful: bool = False
    chained: bool = False
    keyed: bool = False
    event_time: EventTime | None = None
    deterministic: bool = True
    follows: bool = False
    bounded: bool = False
    keeps_logs: bool = False
    max_records: int | None = None
    rate_limit: PidRateLimit | None = None
    upstream: tuple[str, ...] = ()

    @property
    def can_repair(self) -> bool:
        """Whether a lost transaction can be written again by itself, and exactly
        (`two-phase-repair`). With keyed state its rows depend on all records before them."""
        return self.chained and self.deterministic and not self.keyed

    @property
    def state_sink_ids(self) -> tuple[str, ...]:
        """Operator ids of the sinks that may keep state in its records."""
        return self.sink_ids if self.stateful_sink_ids is None else self.stateful_sink_ids

    @property
    def batch_ids_continue(self) -> bool:
        """Whether a batch id of an older attempt names the same batch in a newer one."""
        return self.stateful or self.keeps_logs


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """A job as the coordinator sees it.

    Attributes:
        name: given by the user; a checkpoint directory belongs to one name.
        regions: at least one, names unique.
        graph: all operators, for ``_metadata`` and for the check that it is the same job.
        settings: for ``_metadata``; every secret already redacted.
        cluster_ids: Kafka clusters known so far; those that the sinks report are added.
        forgotten: source ids and topics of positions that the run gives up.
        sluice_version, spark_version: for ``_metadata``.
    """

    name: str
    regions: tuple[RegionPlan, ...]
    graph: tuple[OperatorNode, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    cluster_ids: tuple[str, ...] = ()
    forgotten: frozenset[tuple[str, str]] = frozenset()
    sluice_version: str = ""
    spark_version: str = ""

    def __post_init__(self) -> None:
        names = [region.name for region in self.regions]
        if not names or len(set(names)) != len(names):
            raise ConfigError(
                "a job needs at least one region, with unique names",
                {"job": self.name, "regions": ",".join(names)},
                "Give each region a name of its own.",
            )

    def heir_of(self, region: RegionRecord) -> RegionPlan | None:
        """The region itself, or one that reads its source now; regions of one source have the same
        functions and sinks. None: no region does."""
        sources = {split.source_id for split in region.splits}
        readers = [each for each in self.regions if sources.intersection(each.source_ids)]
        return next((r for r in self.regions if r.name == region.region), next(iter(readers), None))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """When checkpoints are taken, given up and deleted.

    Attributes:
        interval_s: from one barrier to the next; None: no barriers of our own, each batch that is
            acknowledged gets a checkpoint at once (drop-in: Spark's trigger is the barrier).
        timeout_s: from barrier to all acknowledgements; then the checkpoint is aborted. A region
            that polls for no barrier for so long (at least a minute) restarts. A region that
            has not polled at all since its query was started has at least two minutes.
        min_pause_s: at least so long between the end of one checkpoint and the next barrier.
        tolerable_failures: so many checkpoints may fail in a row; one more stops the job. Looked at
            only without a ``restart_strategy``.
        restart_strategy: whether and when a region that failed restarts, for each region by itself;
            None: at once, until there are more than ``tolerable_failures``.
        on_region_failure: the reaction to a region that has failed for good: by one of the two
            limits above, or with an error that would come again. The last region that is left ends
            the job in any case.
        retained: newest decided checkpoints that are kept.
        max_concurrent: checkpoints under way at once.
        on_lost: see `OnLost`.
        handler: decides about a checkpoint that not every region acknowledges.
        drop_limit: how much approximate recovery may leave out; None: nothing.
        balancer: moves splits between regions; None: they stay where they are. Only for one
            checkpoint at a time, since no epoch may be under way beside the one that is decided.
        spark_batches: batches that Spark keeps of a region with state; None: all of them.
        full_checkpoint_every: number of committed checkpoints from one full checkpoint to the
            next; None: only on request.
        pace_epochs: limit an epoch to the records that its region writes in about ten intervals
            (ten seconds at least, a quarter of the timeout at most), learnt from the epochs before.
            So a backlog becomes several epochs instead of one that is too large for the timeout.
            Until the backlog is read, the next barrier does not wait for the interval.
        first_epoch_records: that limit before anything is learnt.
        idle_poll_s: how often sources are polled for an armed barrier; less often as time passes,
            see `idle_refresh_s`.
        discovery_interval_s: how often new splits of the sources are discovered; None: never.
        sweep_interval_s: how often orphaned work is aborted.
        renew_interval_s: how often the lease is renewed.
        refresh_interval_s: how often the lag and the pressure of regions are refreshed.
        pressure_alarm_s: a region whose pressure is high for so long is reported in the log; None:
            never.
        call_timeout_s: of one call to a committer, source or sink.
        retry_s: first pause before an unanswered step is tried again; doubles up to
            ``max_retry_s``.
        max_retry_s: longest such pause.
        unknown_timeout_s: how long a committable may stay UNKNOWN before the job stops.
        settle_timeout_s: how long a decided checkpoint may stay uncommitted, a remote step may not
            return, or a region's file system may be unreachable, before the job stops. Nothing is
            lost: the next start continues from there.
    """

    interval_s: float | None = 1.0
    timeout_s: float = 600.0
    min_pause_s: float = 0.0
    tolerable_failures: int = TOLERABLE_FAILURES
    restart_strategy: RestartStrategy | None = None
    on_region_failure: OnRegionFailure = OnRegionFailure.FAIL
    retained: int = 3
    max_concurrent: int = 1
    on_lost: OnLost = OnLost.FAIL
    handler: CheckpointHandler = field(default_factory=GlobalCheckpointHandler)
    drop_limit: DropLimit | None = None
    balancer: Balancer | None = None
    spark_batches: int | None = None
    full_checkpoint_every: int | None = None
    pace_epochs: bool = True
    first_epoch_records: int = 100_000
    idle_poll_s: float = 0.05
    discovery_interval_s: float | None = 10.0
    sweep_interval_s: float = 10.0
    renew_interval_s: float = 5.0
    refresh_interval_s: float = 5.0
    pressure_alarm_s: float | None = 60.0
    call_timeout_s: float = 10.0
    retry_s: float = 0.05
    max_retry_s: float = 2.0
    unknown_timeout_s: float = 60.0
    settle_timeout_s: float = 900.0

    @property
    def idle_refresh_s(self) -> float:
        """The longest pause between two such polls, a quarter of an interval. Records of a steady
        stream wait for half an interval on average."""
        return max(self.idle_poll_s, min((self.interval_s or 0.0) / 4, _LONGEST_LOOK_S))

    @property
    def overdue_s(self) -> float:
        """A remote step makes a few calls; one that takes longer than this is reported in the
        log."""
        return 3 * self.call_timeout_s

    @property
    def hung_after_s(self) -> float:
        """A remote step that has not returned by then ends the job."""
        return self.settle_timeout_s + self.overdue_s

    def __post_init__(self) -> None:
        positive = {
            "timeout_s": self.timeout_s,
            "retained": self.retained,
            "max_concurrent": self.max_concurrent,
            "first_epoch_records": self.first_epoch_records,
            "call_timeout_s": self.call_timeout_s,
            "sweep_interval_s": self.sweep_interval_s,
            "renew_interval_s": self.renew_interval_s,
            "refresh_interval_s": self.refresh_interval_s,
            "retry_s": self.retry_s,
            "settle_timeout_s": self.settle_timeout_s,
        }
        wrong = {name: value for name, value in positive.items() if not 0 < value < math.inf}
        not_negative = {
            "interval_s": self.interval_s or 0,
            "min_pause_s": self.min_pause_s,
            "tolerable_failures": self.tolerable_failures,
            "discovery_interval_s": self.discovery_interval_s or 0,
            "pressure_alarm_s": self.pressure_alarm_s or 0,
        }
        wrong |= {name: value for name, value in not_negative.items() if not 0 <= value < math.inf}
        if not isinstance(self.retained, int):
            wrong["retained"] = self.retained
        if wrong:
            raise ConfigError(
                "a checkpoint setting is out of range",
                wrong,
                f"Use values above zero; {', '.join(not_negative)} may also be zero.",
            )

        if self.balancer is not None and self.max_concurrent > 1:
            raise ConfigError(
                "splits cannot be moved while another checkpoint is under way",
                {"max_concurrent": self.max_concurrent},
                "Use one checkpoint at a time, or no load balancing.",
            )

    @property
    def epoch_target_s(self) -> float:
        """How long an epoch of a backlog should take: long compared with Spark's own time per
        batch, short enough for the timeout and for readers that wait."""
        return min(max(10 * (self.interval_s or 0.0), 10.0), self.timeout_s / 4)

    @property
    def is_external(self) -> bool:
        """Whether acknowledgements trigger checkpoints instead of a clock."""
        return self.interval_s is None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedJob:
    """The result of a start.

    Attributes:
        job_uid: made once, in checkpoint 0.
        session: leader session id of this run.
        attempt_id: of every region in this run, until a region is restarted alone.
        regions: last decided record of each region: continue at the ends of its splits. Its own
            ``attempt_id`` and ``batch_id`` are those of the run that wrote it.
        restored_from: checkpoint id that the run started from, None for a new job.
        run_attempt: how often the job has been started, from 1.
        lineage: which committed batches of earlier runs belong to its past.
        copies: rows that its topics begin with, by operator id of the source.
        resumed: attempts of an earlier coordinator that continue, by region.
    """

    job_uid: str
    session: str
    attempt_id: int
    regions: Mapping[str, RegionRecord]
    restored_from: int | None
    run_attempt: int
    lineage: BatchLineage = field(default_factory=BatchLineage)
    copies: Mapping[str, TopicCopy] = field(default_factory=dict)
    resumed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartedRegion:
    """A region's next attempt, and the record from which it continues."""

    attempt_id: int
    restored: RegionRecord
