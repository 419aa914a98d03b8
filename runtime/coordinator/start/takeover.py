"""A start that takes over running attempts of an earlier coordinator."""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from sluice.runtime.checkpoint.resumable_attempts import ResumableAttempts
from sluice.runtime.contracts import RegionRegistration
from sluice.runtime.coordinator.committing.commit_steps import Steps
from sluice.runtime.coordinator.policy.assignment import recorded
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan
from sluice.runtime.coordinator.start.rescaling import redistributed
from sluice.runtime.failover.reconciling import Reconciled, reconciled
from sluice.runtime.model.checkpoint_record import CheckpointRecord

__all__ = ["Takeover"]

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
        own_attempt: int,
        may_resume: bool,
    ) -> Steps[Reconciled]:
        """Which attempts continue. Their list is durable before this run aborts any work of other
        attempts: a later coordinator must not resume those either.

        Args:
            record: that the run resumes from; None: the job is new.
            own_attempt: id of the fencing record.
            may_resume: whether the record is the newest decision.
        """
        rulings, listed = Reconciled(), self.attempts.before(own_attempt)
        yield "before-reports"
        reports = self.collect(own_attempt, listed.keys())
        yield "after-reports"
        if record is not None:
            regions, assignment = redistributed(record, plan, attempt_id=own_attempt)
            is_unchanged = may_resume and assignment == recorded(record)
            rulings = reconciled(
                reports,
                {region.region: region for region in regions},
                own_attempt=own_attempt,
                listed=listed,
                unchanged={
                    each.name
                    for each in plan.regions
                    if is_unchanged and each.follows and not each.bounded
                },
                keyed={each.name for each in plan.regions if each.keyed},
            )
            for region, finding in rulings.findings.items():
                log.info("region after a change of leader: region=%s %s", region, finding.value)
        yield "before-attempts-listed"
        self.list_attempts(rulings, plan, own_attempt=own_attempt)
        yield "after-attempts-listed"
        return rulings

    def list_attempts(self, rulings: Reconciled, plan: JobPlan, *, own_attempt: int) -> None:
        """Make durable which attempts a later coordinator may resume; the caller checks afterwards
        that this run is the newest."""
        attempts = {region.name: own_attempt for region in plan.regions} | rulings.attempts
        self.attempts.write(own_attempt, attempts)
