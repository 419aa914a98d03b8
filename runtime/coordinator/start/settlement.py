"""Commits and marks decisions of earlier runs, before any task of this run starts."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sluice.runtime.checkpoint.lost_work import (
    LostCommittables,
    digest_of,
    lost_by_region,
    lost_error,
    unknown_error,
    unsettled_works,
    why_lost,
)
from sluice.runtime.checkpoint.retained_states import KeptStates
from sluice.runtime.checkpoint.succession import is_settled
from sluice.runtime.contracts import (
    AcceptedAs,
    AcceptedWork,
    Clock,
    CommitOutcome,
    CommitReport,
    MetadataStore,
    PublishOutcome,
    SweepView,
    UnsettledWork,
)
from sluice.runtime.coordinator.committing.commit_steps import (
    DecidedWork,
    SharedCommitters,
    Steps,
    commit_all,
    note_unsettled,
)
from sluice.runtime.coordinator.committing.repairs import Repairs
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.coordinator.core.events import Repair
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, JobPlan, OnLost
from sluice.runtime.errors import FencedError, WaitedTooLongError
from sluice.runtime.model.checkpoint_record import (
    CheckpointRecord,
    RegionRecord,
    StateEntry,
    committables_of,
)

__all__ = ["Answers", "Settlement"]

log = logging.getLogger(__name__)

Answers = Sequence[tuple[StateEntry, CommitReport]]
"""The committers' report of each entry that was tried."""

_PAUSE_S = 0.1
_FIRST_TRY_S = 3.0


@dataclass(slots=True, kw_only=True)
class Settlement:
    """Commits decided checkpoints, oldest first, and sweeps orphans. Runs once, after the fencing
    record is published.

    Attributes:
        plan, settings, store, sinks: of the job.
        job_uid, attempt_id: of this run.
        repairs: for ``on_lost="repair"``.
        clock, pause: time.
        deadline_s: when the start gives up. A repair, and an attempt that has committed something,
            move it.
        kept: operator states of the records in the checkpoint directory.
        resumed: attempts of an earlier coordinator that continue, by region: the sweep leaves their
            open work alone.
        before_repair: called with the region whose work is about to be written again.
        require_leased: raises if another run holds a lease by now.
    """

    plan: JobPlan
    settings: CheckpointSettings
    store: MetadataStore
    sinks: Mapping[str, SerialSink]
    job_uid: str
    attempt_id: int
    repairs: Repairs
    clock: Clock
    pause: Callable[[float], None]
    deadline_s: float
    kept: KeptStates
    require_leased: Callable[[], None]
    resumed: Callable[[], Mapping[str, int]] = dict
    before_repair: Callable[[str], None] = lambda _: None
    _committers: SharedCommitters = field(init=False)
    _left_out: set[str] = field(init=False, default_factory=set)
    _words: dict[str, AcceptedWork] = field(init=False, default_factory=dict)
    _failed_repairs: dict[str, Exception] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._committers = SharedCommitters(self.sinks, self.plan)

    def run(self, records: Sequence[CheckpointRecord]) -> Steps[None]:
        """Commit and mark each record, oldest first.

        Orphans are aborted after the first attempt, so that readers do not wait for a checkpoint
        that settles slowly.

        Raises:
            TransactionLostError, TransactionUnknownError, UnreachableError: a record cannot be
                settled.
        """
        swept = False
        for position, record in enumerate(records):
            self._read_accepted(record)
            self._failed_repairs = {}
            committed: set[bytes] = set()
            since_s = self.clock()
            while not (yield from self._try(record, committed, since_s)):
                if not swept and self.clock() - since_s >= _FIRST_TRY_S:
                    swept = yield from self._sweep(records[position:])
            yield "before-mark"
            self.store.mark_committed(record.checkpoint_id)
            yield "after-mark"
        if not swept:
            yield from self._sweep(())

    def _decided(self, record: CheckpointRecord, committed: Collection[bytes]) -> DecidedWork:
        """The decided work, read again for each attempt: another start may repair it meanwhile."""
        regions = tuple(
            replace(
                region,
                committables=tuple(
                    entry for entry in region.committables if digest_of(entry) not in self._left_out
                ),
            )
            for region in _effective(self.store, record)
        )
        return DecidedWork(
            checkpoint_id=record.checkpoint_id,
            regions=regions,
            entries=tuple(e for e in committables_of(regions) if e.payload not in committed),
        )

    def _try(self, record: CheckpointRecord, committed: set[bytes], since_s: float) -> Steps[bool]:
        """Whether the record is settled: all work is committed, and all sinks know it."""
        limit_s = min(max(self.deadline_s - self.clock(), _PAUSE_S), _FIRST_TRY_S)
        decided = self._decided(record, committed)
        if not decided.entries:
            progress = self._committers.follow_all(decided, timeout_s=limit_s)
            yield from self._wait(decided, progress, since_s)
            return all(report.outcome is CommitOutcome.COMMITTED for report in progress)
        self.store.make_durable(record.checkpoint_id)  # before its work becomes visible
        began_s = self.clock()
        reports = yield from commit_all(
            self._committers, decided, timeout_s=limit_s, after_crash=True
        )
        if any(_is_further(report) for report in reports):
            # The next start would repeat all of it, and reach its limit at the same point.
            self.deadline_s += self.clock() - began_s
            log.info("decision is partly committed: checkpoint_id=%d", record.checkpoint_id)
        answers = list(zip(decided.entries, reports, strict=True))
        if _is_any_open(reports) and is_settled(self.store, record.checkpoint_id):
            # The previous run, which still lives, has committed it, or a later start. New
            # committers: the next checkpoint must not wait for this one.
            self._committers = SharedCommitters(self.sinks, self.plan)
            return True
        committed |= {e.payload for e, r in answers if r.outcome is CommitOutcome.COMMITTED}
        left = self._without_words(record, answers)
        goes_on = len(left) < len(answers)
        if any(report.outcome is CommitOutcome.ABORTED for _, report in left):
            goes_on = yield from self._lose(record, decided, left)
        if not goes_on:
            yield from self._wait(decided, [report for _, report in left], since_s, left)
        return False

    def _read_accepted(self, record: CheckpointRecord) -> None:
        """Read which work a person has accepted. Lost work is neither committed nor written again:
        the person may have written it. Only named work is accepted."""
        accepted = self.store.accepted(record.checkpoint_id)
        standing = map(digest_of, self.store.effective_committables(record) if accepted else ())
        words = [accepted[digest] for digest in standing if digest in accepted]
        lost = [work for work in words if work.accepted_as is AcceptedAs.LOST]
        if lost:
            log.error(
                "accepted loss, the job continues without these records: %s",
                _named(record, lost),
            )
        self._left_out |= {work.digest for work in lost}
        self._words = {work.digest: work for work in words if work not in lost}

    def _without_words(self, record: CheckpointRecord, answers: Answers) -> Answers:
        """The answers without unknown work that a person has accepted as committed. From now on the
        decision counts as if it did not name that work."""
        unknown = [e for e, report in answers if report.outcome is CommitOutcome.UNKNOWN]
        words = [self._words[key] for entry in unknown if (key := digest_of(entry)) in self._words]
        if not words:
            return answers
        log.warning("work was accepted as committed: %s", _named(record, words))
        self._left_out |= {work.digest for work in words}
        self._committers = SharedCommitters(self.sinks, self.plan)  # without that work
        return [answer for answer in answers if digest_of(answer[0]) not in self._left_out]

    def _wait(
        self,
        decided: DecidedWork,
        reports: Sequence[CommitReport],
        since_s: float,
        answers: Answers = (),
    ) -> Steps[None]:
        """Pause before the next attempt, if one is needed and there is time for it."""
        if _is_any_open(reports):
            self._give_up_late(decided, reports, since_s, answers)
            yield "settle-retry"
            self.pause(_PAUSE_S)

    def _lose(
        self,
        record: CheckpointRecord,
        decided: DecidedWork,
        answers: Answers,
    ) -> Steps[bool]:
        """Repair what can be repaired; whether the next attempt may follow at once."""
        lost = [entry for entry, report in answers if report.outcome is CommitOutcome.ABORTED]
        by_region = lost_by_region(_effective(self.store, record), lost)
        if not by_region:
            return False  # another start has repaired it since it was read
        outcomes = yield from self._repair_each(record, filter(self._can_repair, by_region))
        if outcomes:
            return PublishOutcome.OURS in outcomes
        reports = [report for _, report in answers]
        if not _is_any_pending(reports) or self.clock() >= self.deadline_s:
            self._noted(decided, answers)
            raise why_lost(record.checkpoint_id, by_region, reports, self._failed_repairs)
        yield "settle-retry"  # no other run commits the rest, and it may be lost later
        self.pause(_PAUSE_S)
        return True

    def _repair_each(
        self, record: CheckpointRecord, found: Iterable[LostCommittables]
    ) -> Steps[list[PublishOutcome]]:
        """Outcomes of the repairs that did not fail. Each region has a repair of its own: the
        source may have deleted the records of one region, and still have those of another."""
        outcomes: list[PublishOutcome] = []
        for lost in found:
            name = lost.region.region
            if name in self._failed_repairs:
                continue
            try:
                outcomes.append((yield from self._repair(record, lost)))
            except FencedError:
                raise
            except Exception as err:  # noqa: BLE001 - raised once all the rest is settled
                log.warning("lost work cannot be repaired: region=%s error=%s", name, err)
                self._failed_repairs[name] = err
        return outcomes

    def _repair(self, record: CheckpointRecord, lost: LostCommittables) -> Steps[PublishOutcome]:
        """Write the lost work again and publish the repair."""
        began_s = self.clock()
        action = Repair(checkpoint_id=record.checkpoint_id, lost=(lost,))
        try:
            self.before_repair(lost.region.region)
            outcome, replaced = yield from self.repairs.run(action)
        finally:
            self.deadline_s += self.clock() - began_s
        if outcome is PublishOutcome.TAKEN:
            # Our new work must not block readers for the rest of this run.
            self.repairs.discard(replaced.values(), timeout_s=self.settings.call_timeout_s)
            self._give_way(record, lost)
        return outcome

    def _give_way(self, record: CheckpointRecord, lost: LostCommittables) -> None:
        """Follow the repair that was published first: another start has written the work again, or
        a person has accepted it. An acceptance that is under way has only claimed the work: then it
        stays lost."""
        self._read_accepted(record)
        self._committers = SharedCommitters(self.sinks, self.plan)  # without replaced work
        standing = {entry.payload for entry in self._decided(record, ()).entries}
        if all(entry.payload in standing for entry in lost.committables):
            failed = lost_error(record.checkpoint_id, (lost,), ())
            self._failed_repairs[lost.region.region] = failed

    def _noted(self, decided: DecidedWork, answers: Answers) -> Sequence[UnsettledWork]:
        works = unsettled_works(decided.regions, answers)
        note_unsettled(self.store, decided.checkpoint_id, works)
        return works

    def _can_repair(self, found: LostCommittables) -> bool:
        heir = self.plan.heir_of(found.region)
        if heir is None or not heir.can_repair or self.settings.on_lost is not OnLost.REPAIR:
            return False
        # If another pipeline writes the sink now, other functions would make the records.
        return all(entry.operator_id in heir.sink_ids for entry in found.committables)

    def _give_up_late(
        self,
        decided: DecidedWork,
        reports: Sequence[CommitReport],
        since_s: float,
        answers: Answers,
    ) -> None:
        unknown = [r.detail for r in reports if r.outcome is CommitOutcome.UNKNOWN]
        now_s = self.clock()
        if now_s < self.deadline_s:
            return
        if unknown:
            raise unknown_error(decided.checkpoint_id, unknown, self._noted(decided, answers))
        raise WaitedTooLongError(
            "a decided checkpoint could not be committed in time",
            {
                "checkpoint_id": decided.checkpoint_id,
                "waited_s": round(now_s - since_s, 1),
                "details": "; ".join(sorted({r.detail for r in reports if r.detail})),
            },
            "Start the job again when every broker and file system answers; nothing is lost.",
        )

    def _sweep(self, unsettled: Iterable[CheckpointRecord]) -> Steps[bool]:
        self.require_leased()
        view = SweepView(
            job_uid=self.job_uid,
            attempt_ids={region.name: self.attempt_id for region in self.plan.regions}
            | dict(self.resumed()),
            protected=tuple(
                entry
                for record in unsettled
                for entry in (*record.committables, *self.store.effective_committables(record))
            ),
            orphans=(),
            kept=self.kept.entries(),
        )
        yield "before-sweep"
        for sink in self.sinks.values():
            sink.sweep(view, timeout_s=self.settings.call_timeout_s)
        yield "after-sweep"
        return True


def _named(record: CheckpointRecord, works: Iterable[AcceptedWork]) -> str:
    """A decision and its accepted work, for a log line."""
    found = list(works)
    regions = ",".join(sorted({work.region for work in found}))
    ranges = " ".join(sorted({each for work in found for each in work.ranges}))
    return f"checkpoint_id={record.checkpoint_id} regions={regions} ranges={ranges}"


def _is_any_pending(reports: Iterable[CommitReport]) -> bool:
    return any(report.outcome is CommitOutcome.PENDING for report in reports)


def _is_further(report: CommitReport) -> bool:
    """Whether the attempt has made progress, so that repeating it will end."""
    return report.outcome is CommitOutcome.COMMITTED or report.has_progressed


def _is_any_open(reports: Iterable[CommitReport]) -> bool:
    return any(report.outcome is not CommitOutcome.COMMITTED for report in reports)


def _effective(store: MetadataStore, record: CheckpointRecord) -> list[RegionRecord]:
    """Regions with every repair applied to their committables."""
    entries = store.effective_committables(record)
    replaced = {old.payload: new for old, new in zip(record.committables, entries, strict=True)}
    return [
        replace(region, committables=tuple(replaced.get(e.payload, e) for e in region.committables))
        for region in record.regions
    ]
