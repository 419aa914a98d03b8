"""Passes a decided record to the committers of its sinks."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sluice.runtime.contracts import (
    CommitReport,
    FailedScope,
    FailedTask,
    FailureReason,
    RegionCheckpointFailedDetail,
    RegionProgress,
    SharedCommitter,
    SinkCoordinator,
)
from sluice.runtime.coordinator.committing.shared_committer import RegionalCommitter
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan
from sluice.runtime.errors import IllegalTransitionError
from sluice.runtime.model.checkpoint_record import RegionRecord, RegionStatus, StateEntry

__all__ = [
    "DecidedWork",
    "SharedCommitters",
    "completed_work",
    "failed_detail",
    "follow_all",
    "has_failed_writers",
    "notify",
    "region_progress",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedWork:
    """The part of a decision that committers use.

    Attributes:
        checkpoint_id: of the decision.
        regions: of its record, with every repair applied.
        entries: committables of the regions that are not known to be committed.
        skipped: why regions were skipped, if known: a record does not say.
    """

    checkpoint_id: int
    regions: tuple[RegionRecord, ...]
    entries: tuple[StateEntry, ...] = ()
    skipped: Mapping[str, FailureReason] = field(default_factory=dict)


class SharedCommitters:
    """The shared committer of each sink, and the regions that write to it.

    Each is made when first needed: a sink's own committer may exist only after its claim.
    """

    def __init__(self, sinks: Mapping[str, SinkCoordinator], plan: JobPlan) -> None:
        self.sinks = sinks
        self._plan = plan
        self._made: dict[str, SharedCommitter] = {}

    def of(self, operator_id: str) -> SharedCommitter:
        """The committer of one sink."""
        if operator_id not in self._made:
            self._made[operator_id] = RegionalCommitter(self.sinks[operator_id].committer)
        return self._made[operator_id]

    def writers(self, operator_id: str, regions: Iterable[RegionRecord]) -> frozenset[str]:
        """The regions of a record that write to a sink, or may have: a start with other regions has
        no plan of removed ones."""
        plans = {region.name: region for region in self._plan.regions}
        return frozenset(
            region.region
            for region in regions
            if region.region not in plans or operator_id in plans[region.region].sink_ids
        )


def completed_work(
    regions: Iterable[RegionRecord], operator_id: str
) -> dict[str, tuple[StateEntry, ...]]:
    """The committables of a sink in a record, by completed region.

    A skipped region has none: the decision of its last snapshot has published its work.
    """
    return {
        region.region: tuple(e for e in region.committables if e.operator_id == operator_id)
        for region in regions
        if region.status is RegionStatus.COMPLETED
    }


def failed_detail(
    decided: DecidedWork, writers: Collection[str]
) -> RegionCheckpointFailedDetail | None:
    """The writers of a sink that did not complete a checkpoint; None if all did.

    A record does not say why, so after a crash the reason is an error. Nothing in a job is
    downstream of a sink.
    """
    failed = tuple(
        FailedTask(
            subtask_id=0,
            task_name=region.region,
            reason=decided.skipped.get(region.region, FailureReason.ERROR),
            message=f"keeps its snapshot of checkpoint {region.snapshot_id}",
        )
        for region in decided.regions
        if region.status is RegionStatus.SKIPPED and region.region in writers
    )
    if not failed:
        return None
    return RegionCheckpointFailedDetail(
        checkpoint_id=decided.checkpoint_id, scope=FailedScope.UP_STREAM, failed_tasks=failed
    )


def has_failed_writers(
    committers: SharedCommitters, operator_id: str, decided: DecidedWork
) -> bool:
    """Whether a writer of the sink did not complete the decision."""
    return failed_detail(decided, committers.writers(operator_id, decided.regions)) is not None


def region_progress(
    regions: Iterable[RegionRecord], operator_id: str, writers: Collection[str]
) -> tuple[RegionProgress, ...]:
    """The progress of a sink's writers in a record."""
    return tuple(
        RegionProgress(
            region=region.region,
            status=region.status,
            has_splits=bool(region.splits),
            least_watermark_ms=region.least_watermark_ms,
            operator_states=tuple(
                state for state in region.operator_states if state.operator_id == operator_id
            ),
            committables=completed_work([region], operator_id).get(region.region, ()),
        )
        for region in regions
        if region.region in writers
    )


def notify(
    committers: SharedCommitters,
    operator_id: str,
    decided: DecidedWork,
    *,
    later: Collection[StateEntry] = (),
    timeout_s: float,
    after_crash: bool,
) -> Mapping[StateEntry, CommitReport]:
    """Notify one sink's committer of a decision; returns reports of the work that it tried.

    ``later``: named by the decision, but not for this call.

    Raises:
        IllegalTransitionError: a region has pending work that its next completed checkpoint does
            not name. It would be published without a record, or lost.
    """
    committer = committers.of(operator_id)
    named = completed_work(decided.regions, operator_id)
    _require_named(committer, decided.checkpoint_id, named)
    work = {region: tuple(e for e in mine if e not in later) for region, mine in named.items()}
    committer.pre_committed(decided.checkpoint_id, work)
    detail = failed_detail(decided, committers.writers(operator_id, decided.regions))
    if detail is None:
        return committer.notify_checkpoint_complete(
            decided.checkpoint_id, timeout_s=timeout_s, after_crash=after_crash
        )
    return committer.notify_regional_checkpoint_complete(
        detail, timeout_s=timeout_s, after_crash=after_crash
    )


def _require_named(
    committer: SharedCommitter, checkpoint_id: int, named: Mapping[str, Sequence[StateEntry]]
) -> None:
    for region, mine in named.items():
        unnamed = set(committer.pending(region, through=checkpoint_id)).difference(mine)
        if unnamed:
            raise IllegalTransitionError(
                "a completed checkpoint does not name a region's pending work",
                {
                    "checkpoint_id": checkpoint_id,
                    "region": region,
                    "committables": len(unnamed),
                },
                "Restart from the last checkpoint; report this as a bug. Nothing was published.",
            )


def follow_all(
    committers: SharedCommitters, decided: DecidedWork, *, timeout_s: float
) -> list[CommitReport]:
    """Report to every sink the progress of its regions, once all work of a checkpoint is published.

    The completion marker may be written when each answer is COMMITTED.
    """
    return [
        committers.of(operator_id).regions_published(
            decided.checkpoint_id,
            region_progress(
                decided.regions, operator_id, committers.writers(operator_id, decided.regions)
            ),
            timeout_s=timeout_s,
        )
        for operator_id in committers.sinks
    ]
