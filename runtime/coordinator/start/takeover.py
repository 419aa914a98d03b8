"""A start that takes over running attempts of an earlier coordinator."""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from sluice.runtime.checkpoint.resumable_attempts import ListedAttempts, ResumableAttempts
from sluice.runtime.contracts import RegionRegistration
from sluice.runtime.coordinator.committing.commit_steps import Steps
from sluice.runtime.coordinator.policy.assignment import recorded
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan, RegionPlan
from sluice.runtime.coordinator.start.rescaling import redistributed
from sluice.runtime.failover.reconciling import Reconciled, reconciled
from sluice.runtime.model.checkpoint_record import CheckpointRecord

__all__ = ["Takeover", "endless_regions"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """Part of the start of a coordinator in a process of its own; the thread of the start.

    Attributes:
        attempts: that no earlier coordinator has ended.
        collect: waits for the reports of region hosts, within a limit of its own. It gets the id of
            the fencing record, which is durable by then, and the regions that may resume.
    """

    attempts: ResumableAttempts
    collect: Callable[[int, Collection[str]], Sequence[RegionRegistration]]

    def run(
        self,
        record: CheckpointRecord | None,
        plan: JobPlan,
        *,
        listed: ListedAttempts,
        own_attempt: int,
        may_resume: bool,
    ) -> Steps[Reconciled]:
        """Which attempts continue. Their list is durable before this run aborts any work of other
        attempts: a later coordinator must not resume those either.

        Args:
            record: that the run resumes from; None: the job is new.
            listed: by the newest earlier run, read after the fencing record.
            own_attempt: id of the fencing record.
            may_resume: see `sluice.runtime.coordinator.start.recovery.may_resume`.
        """
        outcome = Reconciled()
        yield "before-reports"
        reports = self.collect(own_attempt, listed.attempts.keys())
        yield "after-reports"
        if record is not None:
            regions, assignment = redistributed(record, plan, attempt_id=own_attempt)
            is_unchanged = may_resume and assignment == recorded(record)
            endless = endless_regions(plan)
            outcome = reconciled(
                reports,
                {region.region: region for region in regions},
                own_attempt=own_attempt,
                listed=listed.attempts,
                unchanged={
                    each.name
                    for each in plan.regions
                    if is_unchanged and each.follows and each.name in endless
                },
                keyed={each.name for each in plan.regions if each.keyed},
            )
            for region, finding in outcome.findings.items():
                log.info("region after a change of leader: region=%s %s", region, finding.value)
        yield "before-attempts-listed"
        resumed_from = 0 if record is None else record.checkpoint_id
        self.list_attempts(outcome, plan, own_attempt=own_attempt, resumed_from=resumed_from)
        yield "after-attempts-listed"
        return outcome

    def list_attempts(
        self, outcome: Reconciled, plan: JobPlan, *, own_attempt: int, resumed_from: int
    ) -> None:
        """Make durable which attempts a later coordinator may resume; the caller checks afterwards
        that this run is the newest."""
        attempts = {region.name: own_attempt for region in plan.regions} | outcome.attempts
        self.attempts.write(
            ListedAttempts(run_attempt_id=own_attempt, resumed_from=resumed_from, attempts=attempts)
        )


def endless_regions(plan: JobPlan) -> frozenset[str]:
    """The regions whose attempts never end by themselves.

    Each leader fixes the ends of bounded sources itself. A repartition topic ends when its writers
    do. If only the writers restarted, an attempt that reads it might end before they do.
    """
    regions = {region.name: region for region in plan.regions}

    def is_endless(region: RegionPlan) -> bool:
        if not region.upstream:
            return not region.bounded
        return all(is_endless(regions[name]) for name in region.upstream)

    return frozenset(name for name, region in regions.items() if is_endless(region))
