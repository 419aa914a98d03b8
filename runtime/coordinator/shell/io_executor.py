"""The remote steps of the coordinator, as the generators of
`sluice.runtime.coordinator.committing.commit_steps`.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sluice.runtime.checkpoint.retained_states import KeptStates
from sluice.runtime.checkpoint.succession import is_settled, is_taken_over, taken_over
from sluice.runtime.contracts import (
    Clock,
    CommitOutcome,
    CommitReport,
    MetadataStore,
    PublishOutcome,
    SplitEnumerator,
    SweepReport,
    SweepView,
)
from sluice.runtime.coordinator.committing.commit_steps import (
    DecidedWork,
    RunIdentity,
    SharedCommitters,
    Steps,
    commit_all,
    note_unsettled,
    publish_record,
)
from sluice.runtime.coordinator.committing.repairs import Repairer, Repairs
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.coordinator.core.events import (
    AbortedWork,
    AbortWork,
    Commit,
    CommitReported,
    CopyFiles,
    CoreEvent,
    FilesCopied,
    MarkCommitted,
    Marked,
    NoteUnsettled,
    Publish,
    Published,
    PublishPositions,
    RegionalStep,
    RemoteAction,
    Repair,
    Repaired,
    Retire,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings
from sluice.runtime.coordinator.shell.attempt_listing import AttemptListing
from sluice.runtime.coordinator.shell.request_thread import CopyDue
from sluice.runtime.errors import StorageError, StreamError, UnreachableError
from sluice.runtime.model.checkpoint_record import CheckpointRecord, Verdict
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.model.timestamps import is_past
from sluice.runtime.process.wait_log import WaitLog

__all__ = ["IoExecutor"]

log = logging.getLogger(__name__)

_MOST_DETAILS = 3
_FINAL = frozenset({CommitOutcome.ABORTED, CommitOutcome.UNKNOWN})


class IoExecutor:
    """Runs the remote actions of the core. One thread at a time: the coordinator's I/O thread.

    Args:
        store, sinks, sources: of the job; sources by operator id.
        age_clock: seconds, also while the host is suspended; for the time limit of decisions.
        wall_ms: wall clock for ``created_at_ms``; for people only.
        before_decision: raises FencedError if another session holds a lease
            (`lease-guards-outputs`).
        repairer: for ``on_lost="repair"``.
        kept: what the records that the start has read name.
        listing: of attempts that a later coordinator may resume; None: none may.
        on_copy: starts the copy of a committed record, or gets the error that prevents it.
    """

    def __init__(
        self,
        *,
        store: MetadataStore,
        sinks: Mapping[str, SerialSink],
        sources: Mapping[str, SplitEnumerator],
        identity: RunIdentity,
        settings: CheckpointSettings,
        age_clock: Clock,
        wall_ms: Callable[[], int],
        before_decision: Callable[[], None] = lambda: None,
        repairer: Repairer | None = None,
        kept: KeptStates | None = None,
        on_copy: Callable[[CopyDue | StreamError], None] = lambda _: None,
        listing: AttemptListing | None = None,
    ) -> None:
        self._kept = kept or KeptStates()
        self._store = store
        self._sinks = sinks
        self._committers = SharedCommitters(sinks, identity.plan)
        self._sources = sources
        self._identity = identity
        self._settings = settings
        self._age_clock = age_clock
        self._wall_ms = wall_ms
        self._before_decision = before_decision
        self._on_copy = on_copy
        self._listing = listing
        self._repairs = Repairs(
            repairer=repairer,
            store=store,
            sinks=sinks,
            sources=sources,
            session=identity.session,
            job_uid=identity.job_uid,
            attempt_id=identity.attempt_id,
            timeout_s=settings.settle_timeout_s,
            is_taken_over=self._is_taken_over,
        )
        self._record: CheckpointRecord | None = None
        self._keeps_state = any(region.stateful for region in identity.plan.regions)
        self._last = identity.attempt_id  # newest record of this run that was answered
        self._tried = identity.attempt_id  # newest slot of its records; the put may be unanswered
        self._moved_in: int | None = None  # the last decision that moved splits
        self._waits = WaitLog(log)

    def perform(self, action: RemoteAction) -> Steps[CoreEvent | None]:
        """Run one action; returns the event that the core waits for, if any."""
        match action:
            case Publish():
                return (yield from self._publish(action))
            case Commit():
                return (yield from self._commit(action))
            case MarkCommitted():
                return (yield from self._mark(action))
            case AbortWork():
                return self._abort(action)
            case Repair():
                return (yield from self._repair(action))
            case PublishPositions():
                yield from self._publish_positions(action)
            case NoteUnsettled():
                note_unsettled(self._store, action.checkpoint_id, action.works)
            case Retire():
                yield from self._retire(action)
            case CopyFiles():
                return self._begin_copy(action)
        return None

    def _publish(self, action: Publish) -> Steps[CoreEvent]:
        is_decision = action.verdict is Verdict.DECIDED
        record, wanted = self._record, (action.checkpoint_id, action.verdict)
        if record is None or (record.checkpoint_id, record.verdict) != wanted:
            # Made once: a repeated publish must have the same bytes.
            record = self._identity.record_of(action, now_ms=self._wall_ms())
            self._record = record
        self._tried = action.checkpoint_id
        for step in action.steps:
            yield f"before-{step.value}"
        if is_decision:
            yield "before-decision"
            self._before_decision()  # after the failpoint: the process may have been paused there
            if is_past(action.decide_by_s, self._age_clock()):
                # It has waited too long in the queue. An earlier attempt may have published it.
                outcome = PublishOutcome.UNKNOWN
                return Published(checkpoint_id=action.checkpoint_id, outcome=outcome)
            self._kept.note(record)
        outcome = publish_record(self._store, record, timeout_s=self._settings.call_timeout_s)
        if outcome is PublishOutcome.OURS:
            # An abort is noted only now: before this answer, the slot may hold the decision, and
            # its states must not be swept.
            self._kept.note(record)
        if outcome in (PublishOutcome.OURS, PublishOutcome.DECIDED):
            self._last = action.checkpoint_id
            outcome = self._unless_overtaken(outcome)
        if is_decision:
            yield "after-decision"
        for step in action.steps:
            yield f"after-{step.value}"
        if RegionalStep.MOVE in action.steps:
            self._moved_in = action.checkpoint_id
        return Published(checkpoint_id=action.checkpoint_id, outcome=outcome)

    def _unless_overtaken(self, outcome: PublishOutcome) -> PublishOutcome:
        """``outcome``, or TAKEN if another run has taken over. An earlier attempt without an answer
        may have published our record; a later run may have continued and retired it since."""
        try:
            return PublishOutcome.TAKEN if self._is_taken_over() else outcome
        except (StorageError, UnreachableError) as err:
            log.warning(
                "store did not return the newest run: checkpoint_id=%d error=%s",
                self._last,
                err,
            )
            return PublishOutcome.UNKNOWN

    def _commit(self, action: Commit) -> Steps[CoreEvent]:
        reports = yield from commit_all(
            self._committers,
            DecidedWork(
                checkpoint_id=action.checkpoint_id,
                regions=action.regions,
                entries=action.committables,
                failed_tasks=action.failed_tasks,
            ),
            timeout_s=self._settings.call_timeout_s,
            after_crash=action.after_crash,
        )
        if action.checkpoint_id == self._moved_in:
            yield "mid-move"
        if any(report.outcome in _FINAL for report in reports):
            reports = self._unless_taken_over(action.checkpoint_id, reports)
        self._log_wait(f"the commit of checkpoint {action.checkpoint_id}", reports)
        return CommitReported(
            checkpoint_id=action.checkpoint_id,
            committables=action.committables,
            reports=tuple(reports),
        )

    def _unless_taken_over(
        self, checkpoint_id: int, reports: Sequence[CommitReport]
    ) -> list[CommitReport]:
        """The reports, unless another run has committed the decision: only a later start does, and
        then this run is over."""
        try:
            settled = is_settled(self._store, checkpoint_id)
        except (StorageError, UnreachableError) as err:
            detail = f"another run may have committed it: {err}"
            open_report = CommitReport(outcome=CommitOutcome.PENDING, detail=detail)
            return [open_report if report.outcome in _FINAL else report for report in reports]
        if settled:
            raise taken_over(checkpoint_id)
        return list(reports)

    def _log_wait(self, what: str, reports: Sequence[CommitReport]) -> bool:
        """Log a wait for missing commits; whether there are any."""
        late = [report for report in reports if report.outcome is not CommitOutcome.COMMITTED]
        if late:
            details = sorted({report.detail for report in late if report.detail})
            self._waits.waits(what, "; ".join(details[:_MOST_DETAILS]))
        else:
            self._waits.is_over(what)
        return bool(late)

    def _mark(self, action: MarkCommitted) -> Steps[CoreEvent]:
        decided = DecidedWork(checkpoint_id=action.checkpoint_id, regions=action.regions)
        progress = self._committers.follow_all(decided, timeout_s=self._settings.call_timeout_s)
        if self._log_wait(f"the marker of checkpoint {action.checkpoint_id}", progress):
            return Marked(checkpoint_id=action.checkpoint_id, durable=False)
        yield "before-mark"
        durable = True
        try:
            self._store.mark_committed(action.checkpoint_id)
        except (StorageError, UnreachableError) as err:
            log.warning(
                "completion marker is not durable yet: checkpoint_id=%d error=%s",
                action.checkpoint_id,
                err,
            )
            durable = False
        yield "after-mark"
        if durable and self._keeps_state:
            # Spark logs a batch that returns now. A newer run may have restored, and log others.
            found = self._unless_overtaken(PublishOutcome.OURS)
            if found is PublishOutcome.TAKEN:
                raise taken_over(action.checkpoint_id)
            durable = found is PublishOutcome.OURS
        return Marked(checkpoint_id=action.checkpoint_id, durable=durable)

    def _abort(self, action: AbortWork) -> CoreEvent:
        for operator_id, positions in self._committers.positions(action.committables).items():
            entries = [action.committables[position] for position in positions]
            try:
                self._end_attempts()
                self._committers.of(operator_id).abort(
                    entries, timeout_s=self._settings.call_timeout_s
                )
            except StreamError as err:  # the sweep aborts it later
                log.warning(
                    "abort is left to the sweep: checkpoint_id=%s error=%s",
                    action.checkpoint_id,
                    err,
                )
        return AbortedWork(checkpoint_id=action.checkpoint_id)

    def _publish_positions(self, action: PublishPositions) -> Steps[None]:
        yield "before-group-offsets"
        try:
            if self._is_taken_over():
                return  # the newer run publishes later positions
        except StreamError as err:  # only lag tools read them; the next checkpoint has newer ones
            log.info("positions are not published: error=%s", err)
            return
        for source_id, source in self._sources.items():
            mine = [split for split in action.positions if split.source_id == source_id]
            if mine:
                _publish_to_source(source, mine)
        yield "after-group-offsets"

    def _retire(self, action: Retire) -> Steps[None]:
        """Records first, then the files that they alone named: no record ever lacks a file."""
        try:
            found = self._store.retirable(retain=action.retained)
            retired = [each for each in found if each != action.copied]
            if self._is_taken_over():
                return
            self._store.retire(retired)
            yield "before-state-files"
            if self._is_taken_over():
                # That run's decisions may use states of retired ones, or it may restore one of
                # these: then our sweep must not delete them.
                return
            self._kept.forget(retired)
            unnamed = self._kept.unnamed_files()
            yield "during-state-files"
            self._store.delete_files(unnamed)
            self._kept.files_deleted(unnamed)
            yield "after-state-files"
        except StreamError as err:  # nothing depends on it; the next checkpoint tries again
            log.warning("retired checkpoints could not be deleted: error=%s", err)
        except Exception:  # a bug in a client must not end the job here
            log.exception("retired checkpoints could not be deleted")

    def _begin_copy(self, action: CopyFiles) -> CoreEvent | None:
        """In this thread, so that retention deletes the record only later."""
        record = self._record
        try:
            if record is None or record.checkpoint_id != action.checkpoint_id:
                record = self._store.read(action.checkpoint_id)
            if record is None:
                raise taken_over(action.checkpoint_id)
        except StreamError as err:
            self._on_copy(err)
            return FilesCopied(checkpoint_id=action.checkpoint_id, error=err)
        self._on_copy((action, record))
        return None

    def require_newest(self) -> None:
        """Raise FencedError if another run has taken over. Any thread; reads the store."""
        if self._is_taken_over():
            raise taken_over(self._last + 1)

    def _end_attempts(self) -> None:
        """Before work is aborted: see `AttemptListing.update`."""
        if self._listing is not None:
            self._listing.update(self.require_newest)

    def _is_taken_over(self) -> bool:
        session = self._identity.session
        if is_taken_over(self._store, session=session, last=self._last):
            return True
        # An unanswered put may have landed, and a later run may have retired it since. That run's
        # fencing record follows that slot: it is older than the retirement, so read it last.
        has_open_put = self._tried > self._last
        return has_open_put and is_taken_over(self._store, session=session, last=self._tried)

    def _repair(self, action: Repair) -> Steps[CoreEvent]:
        try:
            self._end_attempts()
        except (StorageError, UnreachableError) as err:
            log.warning("repair waits for the store: error=%s", err)
            outcome = PublishOutcome.UNKNOWN
            return Repaired(checkpoint_id=action.checkpoint_id, outcome=outcome, replaced={})
        outcome, replaced = yield from self._repairs.run(action)
        return Repaired(checkpoint_id=action.checkpoint_id, outcome=outcome, replaced=replaced)

    def sweep(self, view: SweepView) -> Steps[SweepReport]:
        """Abort orphans of every sink. The kept states are read last, so that they include
        decisions made since the view was taken."""
        self._end_attempts()
        view = replace(view, kept=self._kept.entries())
        yield "before-sweep"
        timeout_s = self._settings.call_timeout_s
        swept = [sink.sweep(view, timeout_s=timeout_s) for sink in self._sinks.values()]
        yield "after-sweep"
        return SweepReport(
            aborted=sum(one.aborted for one in swept),
            is_complete=all(one.is_complete for one in swept),
        )


def _publish_to_source(source: SplitEnumerator, positions: Sequence[SplitRange]) -> None:
    try:
        source.committed(positions)
    except Exception:  # only lag tools read the positions: no reason to end a job
        log.exception("committed positions could not be published")
