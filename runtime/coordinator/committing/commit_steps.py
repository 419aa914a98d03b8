"""Steps that both a coordinator's start and its I/O executor run: publish a record, commit it.

A step is a generator. It yields a failpoint's name before and after every remote call, and returns
the event for the core. `drive` runs a step to its end. A simulation stops between any two points
instead, so it crashes, pauses and interleaves the code that production runs.
"""

import logging
import os
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sluice.runtime.contracts import (
    CommitOutcome,
    CommitReport,
    FailedScope,
    FailedTask,
    FailureReason,
    MetadataStore,
    PublishOutcome,
    RegionCheckpointFailedDetail,
    RegionProgress,
    UnsettledWork,
)
from sluice.runtime.coordinator.committing.sink_committer import SerialSink, SharedCommitter
from sluice.runtime.coordinator.core.events import Publish
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan
from sluice.runtime.errors import (
    IllegalTransitionError,
    StorageError,
    StreamError,
    UnreachableError,
    WrongJobError,
)
from sluice.runtime.failpoints import VARIABLE, failpoint
from sluice.runtime.model.checkpoint_record import (
    CheckpointRecord,
    RegionRecord,
    RegionStatus,
    StateEntry,
    Verdict,
)

__all__ = [
    "DecidedWork",
    "RunIdentity",
    "SharedCommitters",
    "Steps",
    "commit_all",
    "drive",
    "note_unsettled",
    "publish_record",
]

log = logging.getLogger(__name__)

T = TypeVar("T")
Steps = Generator[str, None, T]
_MID_COMMIT = "mid-commit"
_UNANSWERED = CommitReport(
    outcome=CommitOutcome.PENDING, detail="the sink's committer reported no outcome"
)


def drive(steps: Steps[T], on_step: Callable[[str], None] = lambda _: None) -> T:
    """Run a step to its end, with the failpoints that it names.

    Args:
        on_step: called after each failpoint with its name; its error ends the step there, as a
            crash would.
    """
    while True:
        try:
            name = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        failpoint(name)
        on_step(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """The fields that all records of one run have in common."""

    plan: JobPlan
    job_uid: str
    session: str
    attempt_id: int
    run_attempt: int
    restored_from: int | None
    cluster_ids: tuple[str, ...] = ()

    def record_of(self, action: Publish, *, now_ms: int) -> CheckpointRecord:
        """The whole record of a decision or an abort."""
        return CheckpointRecord(
            job_uid=self.job_uid,
            job_name=self.plan.name,
            checkpoint_id=action.checkpoint_id,
            kind=action.kind,
            verdict=action.verdict,
            leader_session_id=self.session,
            run_attempt=self.run_attempt,
            restored_from=self.restored_from,
            requested_by=action.requested_by,
            reason=action.reason,
            created_at_ms=now_ms,
            sluice_version=self.plan.sluice_version,
            spark_version=self.plan.spark_version,
            cluster_ids=self.cluster_ids,
            settings=self.plan.settings,
            graph=self.plan.graph,
            regions=action.regions,
            assignment=action.assignment,
        )


def publish_record(
    store: MetadataStore, record: CheckpointRecord, *, timeout_s: float
) -> PublishOutcome:
    """Publish; if the slot is taken, read whose record it holds (`publish-whole`)."""
    try:
        outcome = store.publish(record, timeout_s=timeout_s)
        if outcome is not PublishOutcome.TAKEN:
            return outcome
        found = store.read(record.checkpoint_id)
    except (StorageError, UnreachableError) as err:
        log.warning(
            "store did not answer a publish: checkpoint_id=%d error=%s", record.checkpoint_id, err
        )
        return PublishOutcome.UNKNOWN
    if found is None:
        return PublishOutcome.UNKNOWN
    if found.leader_session_id != record.leader_session_id:
        return PublishOutcome.TAKEN
    if found.verdict is record.verdict:
        return PublishOutcome.OURS
    is_decided = found.verdict is Verdict.DECIDED
    return PublishOutcome.DECIDED if is_decided else PublishOutcome.TAKEN


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedWork:
    """The part of a decision that committers use.

    Attributes:
        checkpoint_id: of the decision.
        regions: of its record, with every repair applied.
        entries: committables of the regions that are not known to be committed.
        failed_tasks: of skipped regions, if known: a record does not name them.
    """

    checkpoint_id: int
    regions: tuple[RegionRecord, ...]
    entries: tuple[StateEntry, ...] = ()
    failed_tasks: tuple[FailedTask, ...] = ()


class SharedCommitters:
    """The shared committer of each sink, and the regions that write to it."""

    def __init__(self, sinks: Mapping[str, SerialSink], plan: JobPlan) -> None:
        self._plans = {region.name: region for region in plan.regions}
        names = {node.operator_id: node.name for node in plan.graph}
        self._made = {i: SharedCommitter(sink, name=names.get(i, i)) for i, sink in sinks.items()}

    def of(self, operator_id: str) -> SharedCommitter:
        """The committer of one sink."""
        return self._made[operator_id]

    def positions(self, entries: Iterable[StateEntry]) -> dict[str, list[int]]:
        """Positions of the entries of each sink, in order.

        Raises:
            WrongJobError: an entry belongs to a sink that the job lacks.
        """
        found: dict[str, list[int]] = {}
        for position, entry in enumerate(entries):
            if entry.operator_id not in self._made:
                raise WrongJobError(
                    "a committable belongs to a sink that the job does not have",
                    {"operator_id": entry.operator_id, "kind": entry.kind},
                    "Start the job with all sinks of the checkpoint.",
                )
            found.setdefault(entry.operator_id, []).append(position)
        return found

    def failed_detail(
        self, operator_id: str, decided: DecidedWork
    ) -> RegionCheckpointFailedDetail | None:
        """The writers of a sink that did not complete a decision, and its commit listener if that
        did not complete the one before; None if all did.

        A record does not say why, so after a crash the reason is an error.
        """
        known = {task.region: task for task in decided.failed_tasks}
        writers = tuple(
            known.get(region.region) or _unknown_task(region)
            for region in self._writers(operator_id, decided)
            if region.status is RegionStatus.SKIPPED
        )
        listener = self._made[operator_id].failed_listener(before=decided.checkpoint_id)
        readers = () if listener is None else (listener,)
        if not writers and not readers:
            return None
        scope = FailedScope.UP_STREAM if writers else FailedScope.DOWN_STREAM
        return RegionCheckpointFailedDetail(
            checkpoint_id=decided.checkpoint_id,
            scope=FailedScope.BOTH if writers and readers else scope,
            failed_tasks=(*writers, *readers),
        )

    def notify(
        self,
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
            IllegalTransitionError: a region has pending work that its next completed checkpoint
                does not name. It would be published without a record, or lost.
        """
        committer, checkpoint_id = self._made[operator_id], decided.checkpoint_id
        # A skipped region has none: the decision of its last snapshot has published its work.
        named = {
            region.region: _of_sink(operator_id, region.committables)
            for region in decided.regions
            if region.status is RegionStatus.COMPLETED
        }
        _require_named(committer, checkpoint_id, named)
        work = {region: tuple(e for e in mine if e not in later) for region, mine in named.items()}
        committer.pre_committed(checkpoint_id, work)
        detail = self.failed_detail(operator_id, decided)
        if detail is None:
            return committer.notify_checkpoint_complete(
                checkpoint_id, timeout_s=timeout_s, after_crash=after_crash
            )
        return committer.notify_regional_checkpoint_complete(
            detail, timeout_s=timeout_s, after_crash=after_crash
        )

    def follow_all(self, decided: DecidedWork, *, timeout_s: float) -> list[CommitReport]:
        """Report to every sink the progress of its regions, once all work of a checkpoint is
        published.

        The completion marker may be written when each answer is COMMITTED.
        """
        return [
            committer.regions_published(
                decided.checkpoint_id,
                tuple(
                    RegionProgress(
                        region=region.region,
                        status=region.status,
                        has_splits=bool(region.splits),
                        least_watermark_ms=region.least_watermark_ms,
                        operator_states=_of_sink(operator_id, region.operator_states),
                        committables=_of_sink(operator_id, region.committables)
                        if region.status is RegionStatus.COMPLETED
                        else (),
                    )
                    for region in self._writers(operator_id, decided)
                ),
                timeout_s=timeout_s,
            )
            for operator_id, committer in self._made.items()
        ]

    def _writers(self, operator_id: str, decided: DecidedWork) -> list[RegionRecord]:
        """The regions of a record that write to a sink, or may have: a start with other regions has
        no plan of removed ones."""
        return [
            region
            for region in decided.regions
            if region.region not in self._plans
            or operator_id in self._plans[region.region].sink_ids
        ]


def _unknown_task(region: RegionRecord) -> FailedTask:
    return FailedTask(
        subtask_id=0,
        task_name=region.region,
        region=region.region,
        reason=FailureReason.ERROR,
        message=f"keeps its snapshot of checkpoint {region.snapshot_id}",
    )


def _of_sink(operator_id: str, entries: Iterable[StateEntry]) -> tuple[StateEntry, ...]:
    return tuple(entry for entry in entries if entry.operator_id == operator_id)


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


def commit_all(
    committers: SharedCommitters,
    decided: DecidedWork,
    *,
    timeout_s: float,
    after_crash: bool,
) -> Steps[list[CommitReport]]:
    """Commit the decided work of every sink; report i belongs to entry i."""
    entries = decided.entries
    reports = [CommitReport(outcome=CommitOutcome.PENDING)] * len(entries)
    yield "before-commit"
    for operator_id, positions in committers.positions(entries).items():
        for part in _parts(positions):
            is_regional = committers.failed_detail(operator_id, decided) is not None
            if is_regional:
                yield "before-detail"
            found = committers.notify(
                operator_id,
                decided,
                later={entries[position] for position in positions if position > part[-1]},
                timeout_s=timeout_s,
                after_crash=after_crash,
            )
            if is_regional:
                yield "after-detail"
            for position in part:
                reports[position] = found.get(entries[position], _UNANSWERED)
            if part[-1] != len(entries) - 1:
                yield _MID_COMMIT
    yield "after-commit"
    return reports


def _parts(positions: list[int]) -> list[list[int]]:
    """All positions at once, or the first one alone for a test that stops in between."""
    if len(positions) > 1 and _MID_COMMIT in os.environ.get(VARIABLE, ""):
        return [positions[:1], positions[1:]]
    return [positions]


def note_unsettled(
    store: MetadataStore, checkpoint_id: int, works: Sequence[UnsettledWork]
) -> None:
    """Record the work that an error is about to name: only recorded work can be accepted.

    If this fails, or the process dies before, the next start finds the same work, and tries again.
    """
    try:
        store.note_unsettled(checkpoint_id, works)
    except StreamError as err:
        log.warning(
            "list of lost or unknown work was not written: checkpoint_id=%d error=%s",
            checkpoint_id,
            err,
        )
