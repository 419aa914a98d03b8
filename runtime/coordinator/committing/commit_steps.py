"""Steps that both a coordinator's start and its I/O executor run: publish a record, commit it.

A step is a generator. It yields a failpoint's name before and after every remote call, and returns
the event for the core. `drive` runs a step to its end. A simulation stops between any two points
instead, so it crashes, pauses and interleaves the code that production runs.
"""

import logging
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sluice.runtime.contracts import (
    CommitOutcome,
    CommitReport,
    MetadataStore,
    PublishOutcome,
    SinkCoordinator,
    UnsettledWork,
)
from sluice.runtime.coordinator.committing.decided_commits import (
    DecidedWork,
    SharedCommitters,
    has_failed_writers,
    notify,
)
from sluice.runtime.coordinator.core.events import (
    Publish,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan
from sluice.runtime.errors import StorageError, StreamError, UnreachableError, WrongJobError
from sluice.runtime.failpoints import VARIABLE, failpoint
from sluice.runtime.model.checkpoint_record import CheckpointRecord, StateEntry, Verdict

__all__ = [
    "RunIdentity",
    "Steps",
    "by_sink",
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


def drive(steps: Steps[T]) -> T:
    """Run a step to its end, with the failpoints that it names."""
    while True:
        try:
            name = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        failpoint(name)


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


def by_sink(
    sinks: Mapping[str, SinkCoordinator], entries: Iterable[StateEntry]
) -> dict[str, list[int]]:
    """Positions of the entries of each sink, in order.

    Raises:
        WrongJobError: an entry belongs to a sink that the job lacks.
    """
    found: dict[str, list[int]] = {}
    for position, entry in enumerate(entries):
        if entry.operator_id not in sinks:
            raise WrongJobError(
                "a committable belongs to a sink that the job does not have",
                {"operator_id": entry.operator_id, "kind": entry.kind},
                "Start the job with all sinks of the checkpoint.",
            )
        found.setdefault(entry.operator_id, []).append(position)
    return found


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
    for operator_id, positions in by_sink(committers.sinks, entries).items():
        for part in _parts(positions):
            is_regional = has_failed_writers(committers, operator_id, decided)
            if is_regional:
                yield "before-detail"
            found = notify(
                committers,
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
