"""Starts a run: read, verify, fence, and only then settle the decisions of earlier runs."""

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sluice.runtime.checkpoint.retained_states import KeptStates
from sluice.runtime.checkpoint.succession import is_taken_over, taken_over
from sluice.runtime.contracts import (
    Clock,
    MetadataStore,
    PublishOutcome,
    RegionRegistration,
    SinkContext,
    SplitEnumerator,
)
from sluice.runtime.coordinator.committing.commit_steps import (
    SharedCommitters,
    Steps,
    publish_record,
)
from sluice.runtime.coordinator.committing.repairs import Repairer, Repairs
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.coordinator.policy.assignment import hand_over, recorded, without_topics
from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
    JobPlan,
    StartedJob,
)
from sluice.runtime.coordinator.start import recovery
from sluice.runtime.coordinator.start.committed_work import newest_committed
from sluice.runtime.coordinator.start.left_work import abort_open_work, sweep_state_files
from sluice.runtime.coordinator.start.recovery import History
from sluice.runtime.coordinator.start.rescaling import redistributed
from sluice.runtime.coordinator.start.restoring import (
    RestoreRequest,
    restored_regions,
)
from sluice.runtime.coordinator.start.settlement import Settlement
from sluice.runtime.coordinator.start.slot_reader import SlotReader
from sluice.runtime.coordinator.start.takeover import Takeover
from sluice.runtime.coordinator.start.topic_restores import copies_of
from sluice.runtime.errors import (
    ConfigError,
    DamagedCheckpointError,
    StorageError,
    WaitedTooLongError,
    WrongJobError,
)
from sluice.runtime.failover.reconciling import Reconciled
from sluice.runtime.model.checkpoint_record import (
    RESTORED_FROM_URI,
    Assignment,
    CheckpointRecord,
    RegionRecord,
)
from sluice.runtime.model.state.batch_lineage import BatchLineage
from sluice.runtime.process.host_clock import wall_ms

__all__ = ["MAY_STOP_AT", "Found", "StartSequence"]

log = logging.getLogger(__name__)

_PAUSE_S = 0.1
_CHECK_S = 15.0  # an unreachable sink is reported well within 30 s


MAY_STOP_AT = frozenset(
    {
        *("before-restore-copy", "restore-copy", "after-restore-copy"),
        *("before-first", "before-fencing", "publish-retry", "settle-retry"),
    }
)
"""Steps at which the start has changed nothing, or a remote does not answer. Between other steps a
stop would leave decided work uncommitted until the next start, and its transactions open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The start of the run.

    Attributes:
        record: the decided checkpoint that the run resumes from.
        regions: the state of each region: as in the record, with its assigned splits. If the job
            has other regions, the splits are redistributed.
        assignment: of splits to regions. If it differs from the record's, the run's first decision
            records it.
        attempt_id: id of the first record that this run has published.
        run_attempt: from 1.
        is_new: whether the job has never run before.
        cluster_ids: of the job's sinks and plan.
        kept: what the records in the checkpoint directory name.
        lineage: which committed batches of earlier runs belong to its past.
        resumed: reports of attempts of an earlier coordinator that continue, by region.
    """

    record: CheckpointRecord
    regions: Mapping[str, RegionRecord]
    assignment: Assignment
    attempt_id: int
    run_attempt: int
    is_new: bool
    cluster_ids: tuple[str, ...]
    kept: KeptStates
    lineage: BatchLineage
    resumed: Mapping[str, RegionRegistration] = field(default_factory=dict)

    def started(self, session: str, regions: Iterable[str]) -> StartedJob:
        """As the engine gets it, with the regions in this order."""
        return StartedJob(
            job_uid=self.record.job_uid,
            session=session,
            attempt_id=self.attempt_id,
            regions={name: self.regions[name] for name in regions},
            restored_from=None if self.is_new else self.record.checkpoint_id,
            run_attempt=self.run_attempt,
            lineage=self.lineage,
            copies=copies_of(self.record),
            resumed={name: found.attempt_id for name, found in self.resumed.items()},
        )


@dataclass(slots=True, kw_only=True)
class StartSequence:
    """The start of one run. Runs once, in the thread that starts the coordinator.

    Before its fencing record is durable, a start changes nothing remote except its own records
    (`fence-first`). A start that fails its checks changes nothing at all.

    Attributes:
        plan, settings, store, sinks, sources: of the job.
        session: leader session id of this run.
        clock, pause: time; a test's pause may run something else instead.
        wall_ms: for ``created_at_ms``.
        repairer: for ``on_lost="repair"``.
        require_known: raises for a record that this process cannot restore; called for each record
            that the run restores or settles.
        require_restorable: raises if files of a record are missing; called for the record of
            ``restore_from``.
        require_leased: raises if another run holds a lease by now; called before the sweep.
        require_elected: raises if another process was elected by now; called between the last read
            of the slots and the first record of this run. So that record never lies above one of a
            leader that was elected later: if it did, the read would have found it, or its slot
            would be taken.
        new_job_uid: of a job that has no checkpoint yet.
        registrations: of attempts of earlier runs that still run elsewhere; the caller stops them.
        takeover: for attempts that may outlive their coordinator; None: there are none.
    """

    plan: JobPlan
    settings: CheckpointSettings
    store: MetadataStore
    sinks: Mapping[str, SerialSink]
    sources: Mapping[str, SplitEnumerator]
    session: str
    clock: Clock
    pause: Callable[[float], None] = time.sleep
    wall_ms: Callable[[], int] = wall_ms
    repairer: Repairer | None = None
    require_known: Callable[[CheckpointRecord], None] = lambda _: None
    require_restorable: Callable[[CheckpointRecord], None] = lambda _: None
    require_leased: Callable[[], None] = lambda: None
    require_elected: Callable[[], None] = lambda: None
    new_job_uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    registrations: Sequence[RegionRegistration] = ()
    takeover: Takeover | None = None
    _began_s: float = field(init=False)
    _deadline_s: float = field(init=False, default=0.0)
    _slots: SlotReader = field(init=False)
    _reconciled: Reconciled = field(init=False, default_factory=Reconciled)

    def __post_init__(self) -> None:
        self._began_s = self.clock()
        self._slots = SlotReader(self.store)

    def run(self, *, timeout_s: float, restore_from: int | RestoreRequest | None) -> Steps[Found]:
        """The whole sequence.

        Args:
            timeout_s: for all steps; the restore of another job's state takes longer.
            restore_from: checkpoint id of this directory to resume from. Or the request to begin a
                new job from another directory. If this directory is already restored from there,
                the job resumes from its newest decision.
        Raises:
            ConfigError, WrongJobError, DamagedCheckpointError, UnsupportedFormatError, and errors
                of the sources: before anything was changed.
            FencedError: another job, or another run, holds it.
            TransactionLostError, TransactionUnknownError: a decided checkpoint cannot be settled.
            UnreachableError, StorageError: no answer in time.
        """
        self._deadline_s = self.clock() + timeout_s
        cluster_ids = self._check()
        history = self._read(None) if (yield from self._publish_first(restore_from)) else None
        # If this start was paused after checkpoint 0, later starts have published: it is not new.
        is_new = history is not None and history.ids == (0,)
        if history is not None and is_new:
            attempt_id, attempt, resume_id = 0, 1, 0
        else:
            checkpoint_id = restore_from if isinstance(restore_from, int) else None
            history, fencing_record = yield from self._fence(checkpoint_id)
            attempt_id, attempt = fencing_record.checkpoint_id, fencing_record.run_attempt
            resume_id = fencing_record.restored_from or 0
        record = self._record_at(history, resume_id)
        kept = KeptStates.read(self.store)
        kept.note(record)  # an older run may have retired it since, with what it knew before
        self._reconciled = yield from self._take_over(history, record, attempt_id, is_new=is_new)
        if is_taken_over(self.store, session=self.session, last=attempt_id):
            # We would take that run's lease, and our sweep would not know its states.
            raise taken_over(attempt_id + 1)
        if self.takeover is not None:
            self.takeover.attempts.forget_before(attempt_id)
        self._claim(history, attempt_id, resumed_from=resume_id)
        yield from self._settle(history, attempt_id, kept, resumed_from=resume_id)
        oldest = min([attempt_id, *self._reconciled.attempts.values()])
        yield from sweep_state_files(self.store, kept, oldest, session=self.session)
        self._abort(history)
        for checkpoint_id in recovery.superseded_by_restore(history, resume_id):
            self.store.mark_superseded(checkpoint_id, by=attempt_id)
        record = self._without_forgotten(record)
        if not is_new:
            self._restore(record)
        regions, assignment = redistributed(record, self.plan, attempt_id=attempt_id)
        if assignment != recorded(record):
            log.warning(
                "splits are redistributed: regions=%d before=%d assignment_version=%d",
                len(regions),
                len(record.regions),
                assignment.version,
            )
        if is_taken_over(self.store, session=self.session, last=attempt_id):
            # This start has waited for a broker; it must not announce its address any more.
            raise taken_over(attempt_id + 1)
        return Found(
            record=record,
            regions={region.region: region for region in regions},
            assignment=assignment,
            attempt_id=attempt_id,
            run_attempt=attempt,
            is_new=is_new,
            cluster_ids=cluster_ids,
            kept=kept,
            lineage=recovery.lineage_of(
                record, history, self.store.known_fencing_records(), attempt_id=attempt_id
            ),
            resumed=self._reconciled.resumed,
        )

    # --- checks: nothing is changed ---------------------------------------------------------------

    def _left_s(self) -> float:
        left_s = self._deadline_s - self.clock()
        if left_s <= 0:
            waited_s = self.clock() - self._began_s
            raise WaitedTooLongError(
                "the job could not start in time",
                {"job": self.plan.name, "store": self.store.uri, "waited_s": round(waited_s, 1)},
                "Find in the log what did not answer, then start the job again. Nothing is lost.",
            )
        return left_s

    def _check(self) -> tuple[str, ...]:
        found = set(self.plan.cluster_ids)
        for sink in self.sinks.values():
            facts = sink.check(timeout_s=min(self._left_s(), _CHECK_S))
            if "cluster_id" in facts:
                found.add(facts["cluster_id"])
        for node in self.plan.graph:
            log.info(
                "operator: id=%s name=%s kind=%s uid=%s",
                node.operator_id,
                node.name,
                node.kind,
                node.uid,
            )
        return tuple(sorted(found))

    def _read(self, restore_from: int | None) -> History:
        """Read the slots again until no running job has retired one meanwhile."""
        slots = None
        while slots is None:
            self._left_s()
            ids = self.store.slots()
            slots = self._slots.newest(ids, restore_from)
        return History(ids=tuple(ids), slots=tuple(slots))

    def _record_at(self, history: History, checkpoint_id: int) -> CheckpointRecord:
        found = next((p.record for p in history.slots if p.checkpoint_id == checkpoint_id), None)
        if found is None:
            found = self.store.read(checkpoint_id)
        if found is None:
            raise StorageError(
                "the checkpoint to start from has vanished",
                {"store": self.store.uri, "checkpoint_id": checkpoint_id},
                "Start from an older checkpoint; another program deletes files in the directory.",
            )
        return found

    # --- the run's own first record ---------------------------------------------------------------

    def _require_restored(self, restore: RestoreRequest | None) -> None:
        """Check that this directory was restored from there, by an earlier start or a faster one:
        a restore happens once."""
        if restore is None:
            return
        first = self.store.read(0)
        origin = None if first is None else first.settings.get(RESTORED_FROM_URI)
        if origin != restore.uri:
            raise ConfigError(
                "the checkpoint directory of a restored job is not empty",
                {"store": self.store.uri, "restore_from": restore.uri, "restored_from": origin},
                "Give a new job an empty directory, or leave restore_from out to resume this one.",
            )
        log.warning(
            "the job was restored before, resuming from its newest decision: restore_from=%s",
            restore.uri,
        )

    def _first_regions(
        self, restore: RestoreRequest | None
    ) -> Steps[tuple[tuple[RegionRecord, ...], Mapping[str, str]]]:
        """Regions of checkpoint 0, and settings that name their origin."""
        if restore is None:
            starts = {
                source_id: source.resolve_start(timeout_s=self._left_s())
                for source_id, source in self.sources.items()
            }
            return recovery.first_regions(self.plan, starts), {}
        began_s = self.clock()
        regions, settings = yield from restored_regions(
            restore,
            self.plan,
            self.sources,
            session=self.session,
            require_known=self.require_known,
            timeout_s=self.settings.call_timeout_s,
        )
        self._deadline_s += self.clock() - began_s
        return regions, settings

    def _publish_first(self, restore_from: int | RestoreRequest | None) -> Steps[bool]:
        """Publish checkpoint 0 of a new job; False if an earlier or a faster start did."""
        restore = restore_from if isinstance(restore_from, RestoreRequest) else None
        if self.store.slots():
            self._require_restored(restore)
            return False
        if isinstance(restore_from, int):
            raise recovery.refuse_restore((), restore_from)
        regions, origin = yield from self._first_regions(restore)
        record = recovery.first_record(
            self.plan,
            regions,
            job_uid=self.new_job_uid,
            session=self.session,
            now_ms=self.wall_ms(),
            origin=origin,
        )
        self.require_elected()
        yield "before-first"
        try:
            outcome = yield from self._publish(record)
        except WrongJobError:
            # Another start was faster and has chosen another uid. Whether it is the same job is
            # checked by its plan, as at every later start.
            outcome = PublishOutcome.TAKEN
        yield "after-first"
        if outcome is not PublishOutcome.OURS:
            self._require_restored(restore)
        return outcome is PublishOutcome.OURS

    def _publish(self, record: CheckpointRecord) -> Steps[PublishOutcome]:
        while True:
            limit_s = min(self._left_s(), self.settings.call_timeout_s)
            outcome = publish_record(self.store, record, timeout_s=limit_s)
            if outcome is not PublishOutcome.UNKNOWN:
                return outcome
            yield "publish-retry"
            self.pause(_PAUSE_S)

    def _resume_point(self, restore_from: int | None) -> tuple[History, int]:
        """The slots, and the checkpoint to resume from. A ``restore_from`` applies once: if a
        cluster manager starts the same program again, the job resumes from its newest decision."""
        history = self._read(restore_from)
        if restore_from is None or not recovery.is_already_restored(
            history, restore_from=restore_from
        ):
            resume_id = recovery.resume_point(history, restore_from=restore_from)
            if restore_from is not None:
                self._slots.warn_if_repeated(history, restore_from)
            return history, resume_id
        try:
            history = self._read(None)
        except DamagedCheckpointError as err:
            raise self._slots.unreadable_after_restore(restore_from, err) from err
        resume_id = recovery.resume_point(history, restore_from=None)
        log.warning(
            "previous run has restored already, resuming from the newest decision: "
            "restore_from=%d checkpoint_id=%d",
            restore_from,
            resume_id,
        )
        return history, resume_id

    def _fence(self, restore_from: int | None) -> Steps[tuple[History, CheckpointRecord]]:
        """Close the next slot to every older coordinator; its decisions stay decided.

        A slot below the last one may be empty because it was retired. A fencing record there would
        close nothing, so it counts only if no slot above it is taken.
        """
        while True:
            history, resume_id = self._resume_point(restore_from)
            record = self._record_at(history, resume_id)
            self._verify(record, recovery.to_settle(history))
            goes_back = resume_id == restore_from
            # After a void start, the states of the decisions that it left out may be gone.
            void = [slot.record.restored_from for slot in history.slots if slot.is_void]
            is_checked = goes_back or bool(void)
            self.store.require_files(record, whole=is_checked)
            if is_checked:
                # Once a fencing record names it, every later start would fail the same way.
                self.require_restorable(record)
                self._restore(without_topics(record, self.plan.forgotten))
            fencing_record = recovery.fencing_record_of(
                history,
                self.plan,
                session=self.session,
                resume_id=resume_id,
                restore_from=recovery.recorded_wish(history, restore_from),
                fenced=self.store.known_fencing_records(),
                now_ms=self.wall_ms(),
            )
            for gone in void:
                log.warning(
                    "an earlier start went back to a checkpoint that is gone: gone=%s "
                    "checkpoint_id=%d",
                    *(gone, resume_id),
                )
            if goes_back and self._slots.is_gone(resume_id):
                continue  # a running job has retired it: the next reading refuses it
            self.require_elected()
            yield "before-fencing"
            outcome = yield from self._publish(fencing_record)
            yield "after-fencing"
            is_last = max(self.store.slots()) == fencing_record.checkpoint_id
            if self._slots.is_gone(resume_id):
                # An older run has retired it, and now deletes its files of state. If it is still
                # there, that run will find our fencing record before it deletes a file.
                log.warning("an older run has retired: checkpoint_id=%d", resume_id)
            elif outcome is PublishOutcome.OURS and is_last:
                log.info(
                    "fencing record published: checkpoint_id=%d restored_from=%d run_attempt=%d",
                    fencing_record.checkpoint_id,
                    resume_id,
                    fencing_record.run_attempt,
                )
                return history, fencing_record
            log.info("slot was taken, trying the next: checkpoint_id=%d", history.next_slot)

    def _verify(self, resumed: CheckpointRecord, to_settle: Sequence[CheckpointRecord]) -> None:
        open_ids = {record.checkpoint_id for record in to_settle}
        for record in (resumed, *to_settle):
            is_settled = record.checkpoint_id not in open_ids
            sink_ids = self.sinks.keys()
            recovery.verify_same_job(
                record,
                self.plan,
                sink_ids,
                is_settled=is_settled,
                stateless=self._stateless(record),
            )
            self.require_known(record)
            hand_over(record.regions, recorded(record))  # raises if they do not fit

    def _stateless(self, record: CheckpointRecord) -> set[str]:
        """Recorded stateful regions for which Spark has made no state store: their frame's plan may
        be better known now than when the record was written."""
        return {
            region.region
            for region in record.regions
            if (state := region.state) is not None
            and not (state.operators or state.files)
            and state.location
            and self.store.is_empty(state.location)
        }

    # --- after the fencing record -----------------------------------------------------------------

    def _take_over(
        self, history: History, record: CheckpointRecord, attempt_id: int, *, is_new: bool
    ) -> Steps[Reconciled]:
        """Which attempts of an earlier coordinator continue; the wait for reports is free."""
        if self.takeover is None:
            self.store.end_attempts(attempt_id)
            return Reconciled()
        began_s = self.clock()
        listed = self.takeover.attempts.before(attempt_id)
        outcome = yield from self.takeover.run(
            None if is_new else record,
            self.plan,
            listed=listed,
            own_attempt=attempt_id,
            may_resume=recovery.may_resume(
                record,
                *(history, self.plan, self.store.known_fencing_records()),
                listed=listed,
                attempt_id=attempt_id,
            ),
        )
        self._deadline_s += self.clock() - began_s
        return outcome

    def _claim(self, history: History, attempt_id: int, *, resumed_from: int) -> None:
        last_decision = recovery.last_decision(history, self.store.known_fencing_records())
        committed = newest_committed(self.store, history, resumed_from=resumed_from)
        for operator_id, sink in self.sinks.items():
            context = SinkContext(
                job_uid=history.newest.job_uid,
                job_name=self.plan.name,
                operator_id=operator_id,
                checkpoint_uri=self.store.uri,
                leader_session_id=self.session,
                attempt_id=attempt_id,
                last_decision=last_decision,
                committed=tuple(one for one in committed if one.operator_id == operator_id),
            )
            # Watching another job's lease takes three renewals, even if the start has less time.
            watch_s = 4 * self.settings.renew_interval_s
            sink.claim(context, timeout_s=max(self._left_s(), watch_s))

    def _end_before_repair(self, region: str, attempt_id: int, resumed_from: int) -> None:
        """End a resumed attempt: readers would see its new records before the repaired ones."""
        if self.takeover is not None and region in self._reconciled.resumed:
            self._reconciled = self._reconciled.without(region)
            self.takeover.list_attempts(
                *(self._reconciled, self.plan),
                own_attempt=attempt_id,
                resumed_from=resumed_from,
            )
            if is_taken_over(self.store, session=self.session, last=attempt_id):
                raise taken_over(attempt_id + 1)

    def _settle(
        self, history: History, attempt_id: int, kept: KeptStates, *, resumed_from: int
    ) -> Steps[None]:
        job_uid = history.newest.job_uid
        settlement = Settlement(
            plan=self.plan,
            settings=self.settings,
            store=self.store,
            sinks=self.sinks,
            job_uid=job_uid,
            attempt_id=attempt_id,
            resumed=lambda: self._reconciled.attempts,
            before_repair=lambda region: self._end_before_repair(region, attempt_id, resumed_from),
            repairs=Repairs(
                repairer=self.repairer,
                store=self.store,
                sinks=self.sinks,
                sources=self.sources,
                session=self.session,
                job_uid=job_uid,
                attempt_id=attempt_id,
                timeout_s=self.settings.settle_timeout_s,
                is_taken_over=lambda: is_taken_over(
                    self.store, session=self.session, last=attempt_id
                ),
            ),
            clock=self.clock,
            pause=self.pause,
            deadline_s=self._deadline_s,
            kept=kept,
            require_leased=self.require_leased,
        )
        yield from settlement.run(recovery.to_settle(history))
        self._deadline_s = settlement.deadline_s

    def _abort(self, history: History) -> None:
        left = (*self.registrations, *self._reconciled.left)
        abort_open_work(
            recovery.left_open(left, history, self.plan),
            SharedCommitters(self.sinks, self.plan),
            timeout_s=lambda: min(self._left_s(), self.settings.call_timeout_s),
        )

    def _without_forgotten(self, whole: CheckpointRecord) -> CheckpointRecord:
        record = without_topics(whole, self.plan.forgotten)
        if record != whole:
            log.warning(
                "positions of forgotten topics are given up: %s",
                recovery.given_up(whole, self.plan.forgotten),
            )
        return record

    def _restore(self, record: CheckpointRecord) -> None:
        for source_id, source in self.sources.items():
            positions = recovery.positions_of(record, source_id)
            source.restore(positions, timeout_s=self._left_s())
