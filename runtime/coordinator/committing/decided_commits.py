"""From a decided record to what the committers of its sinks are told."""

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
from sluice.runtime.model.model import RegionRecord, RegionStatus, StateEntry

__all__ = [
    "DecidedWork",
    "SharedCommitters",
    "completed_work",
    "failed_detail",
    "follow_all",
    "is_left_out",
    "notify",
    "region_progress",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedWork:
    """A decision, as far as committers must know it.

    Attributes:
        checkpoint_id: its place.
        regions: as its record has them, with every repair applied.
        entries: committables of them that are not known to be committed.
        carried: why regions were carried, where that is known: a record does not say.
    """

    checkpoint_id: int
    regions: tuple[RegionRecord, ...]
    entries: tuple[StateEntry, ...] = ()
    skipped: Mapping[str, FailureReason] = field(default_factory=dict)


class SharedCommitters:
    """The one committer of each sink, and which regions write to it.

    Made when first needed: a sink's own committer may exist only after its claim.
    """

    def __init__(self, sinks: Mapping[str, SinkCoordinator], plan: JobPlan) -> None:
        self.sinks = sinks
        self._plan = plan
        self._made: dict[str, SharedCommitter] = {}

    def of(self, operator_id: str) -> SharedCommitter:
        """Of one sink."""
        if operator_id not in self._made:
            self._made[operator_id] = RegionalCommitter(self.sinks[operator_id].committer)
        return self._made[operator_id]

    def writers(self, operator_id: str, regions: Iterable[RegionRecord]) -> frozenset[str]:
        """Of the regions of a record those that write to a sink, or may have: a start with other
        regions has no plan of those that are gone."""
        plans = {region.name: region for region in self._plan.regions}
        return frozenset(
            region.region
            for region in regions
            if region.region not in plans or operator_id in plans[region.region].sink_ids
        )


def completed_work(
    regions: Iterable[RegionRecord], operator_id: str
) -> dict[str, tuple[StateEntry, ...]]:
    """What a record names of a sink, by completed region. What a carried region did for the
    checkpoint that it is carried from was published by that one's decision."""
    return {
        region.region: tuple(e for e in region.committables if e.operator_id == operator_id)
        for region in regions
        if region.status is RegionStatus.COMPLETED
    }


def failed_detail(
    decided: DecidedWork, writers: Collection[str]
) -> RegionCheckpointFailedDetail | None:
    """Who of a sink's writers did not complete a checkpoint, as its record tells; None: all did.

    Why, a record does not say; after a crash it is an error. Nothing of a job stands down stream of
    a sink.
    """
    failed = tuple(
        FailedTask(
            subtask_id=0,
            task_name=region.region,
            reason=decided.skipped.get(region.region, FailureReason.ERROR),
            message=f"carried from checkpoint {region.snapshot_id}",
        )
        for region in decided.regions
        if region.status is RegionStatus.SKIPPED and region.region in writers
    )
    if not failed:
        return None
    return RegionCheckpointFailedDetail(
        checkpoint_id=decided.checkpoint_id, scope=FailedScope.UP_STREAM, failed_tasks=failed
    )


def is_left_out(committers: SharedCommitters, operator_id: str, decided: DecidedWork) -> bool:
    """Whether a sink's committer is told of writers that did not complete the decision."""
    return failed_detail(decided, committers.writers(operator_id, decided.regions)) is not None


def region_progress(
    regions: Iterable[RegionRecord], operator_id: str, writers: Collection[str]
) -> tuple[RegionProgress, ...]:
    """How far a sink's writers have come, as a record tells."""
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
    """Tell one sink's committer what was decided; reports for what it published or tried.

    ``later``: named by the decision, and not told yet.

    Raises:
        IllegalTransitionError: a region holds work that its next good checkpoint does not name:
            it would be published although no record says so, or lost.
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
        unnamed = set(committer.held(region, through=checkpoint_id)).difference(mine)
        if unnamed:
            raise IllegalTransitionError(
                "a region completed a checkpoint that does not name what it still holds",
                {
                    "checkpoint_id": checkpoint_id,
                    "region": region,
                    "committables": len(unnamed),
                },
                "Coordinator bug: nothing was published; restart from the last checkpoint.",
            )


def follow_all(
    committers: SharedCommitters, decided: DecidedWork, *, timeout_s: float
) -> list[CommitReport]:
    """Tell every sink how far its regions are, all of a checkpoint being published.

    The checkpoint may be marked when each answer is COMMITTED.
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
