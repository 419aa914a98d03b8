"""Finishing what earlier runs decided and did not mark, before any task of this run starts."""

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
    SinkCoordinator,
    SweepView,
    UnsettledWork,
)
from sluice.runtime.coordinator.committing.commit_steps import Steps, commit_all, note_unsettled
from sluice.runtime.coordinator.committing.decided_commits import (
    DecidedWork,
    SharedCommitters,
    follow_all,
)
from sluice.runtime.coordinator.committing.repairs import Repairs, discard
from sluice.runtime.coordinator.core.events import Repair
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, JobPlan, OnLost
from sluice.runtime.errors import FencedError, WaitedTooLongError
from sluice.runtime.model.model import CheckpointRecord, RegionRecord, StateEntry, committables_of

__all__ = ["Answers", "Settlement"]

log = logging.getLogger(__name__)

Answers = Sequence[tuple[StateEntry, CommitReport]]
"""What the committers said of each entry that was tried."""

_PAUSE_S = 0.1
_FIRST_TRY_S = 3.0


@dataclass(slots=True, kw_only=True)
class Settlement:
    """Commits decided checkpoints oldest first and sweeps orphans. Runs once, behind the seal.

    Attributes:
        plan, settings, store, sinks: of the job.
        job_uid, attempt_id: of this run.
        repairs: for ``on_lost="repair"``.
        clock, pause: time.
        deadline_s: when the start gives up; what may take long moves it: a repair, and a try that
            has finished something.
        kept: what the records in the checkpoint directory keep.
        require_leased: raises where another run has the sinks by now.
    """

    plan: JobPlan
    settings: CheckpointSettings
    store: MetadataStore
    sinks: Mapping[str, SinkCoordinator]
    job_uid: str
    attempt_id: int
    repairs: Repairs
    clock: Clock
    pause: Callable[[float], None]
    deadline_s: float
    kept: KeptStates
    require_leased: Callable[[], None]
    _committers: SharedCommitters = field(init=False)
    _left_out: set[str] = field(init=False, default_factory=set)
    _words: dict[str, AcceptedWork] = field(init=False, default_factory=dict)
    _failed_repairs: dict[str, Exception] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._committers = SharedCommitters(self.sinks, self.plan)

    def run(self, records: Sequence[CheckpointRecord]) -> Steps[None]:
        """Commit and mark each record, oldest first.

        Orphans are aborted as soon as one try was made, so that readers do not wait for a
        checkpoint that is slow to settle.

        Raises:
            TransactionLostError, TransactionUnknownError, UnreachableError: it cannot be settled.
        """
        swept = False
        for position, record in enumerate(records):
            self._heed(record)
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
        """Read anew each time: another start may be repairing the same checkpoint."""
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
        """Whether it is settled: everything is committed, and its sinks have followed."""
        limit_s = min(max(self.deadline_s - self.clock(), _PAUSE_S), _FIRST_TRY_S)
        decided = self._decided(record, committed)
        if not decided.entries:
            followed = follow_all(self._committers, decided, timeout_s=limit_s)
            yield from self._wait(decided, followed, since_s)
            return all(report.outcome is CommitOutcome.COMMITTED for report in followed)
        self.store.make_durable(record.checkpoint_id)  # else it may not outlast what it names
        began_s = self.clock()
        reports = yield from commit_all(
            self._committers, decided, timeout_s=limit_s, after_crash=True
        )
        if any(_is_further(report) for report in reports):
            # Else the next start, which looks at all of it again, would come no further than this.
            self.deadline_s += self.clock() - began_s
            log.info("a decision is being committed: checkpoint_id=%d", record.checkpoint_id)
        answers = list(zip(decided.entries, reports, strict=True))
        if _is_any_open(reports) and is_settled(self.store, record.checkpoint_id):
            # By the run before ours, which lives on behind our seal, or by a start behind ours.
            # What is told of the next checkpoint is not to wait for this one.
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

    def _heed(self, record: CheckpointRecord) -> None:
        """What somebody has accepted as lost is neither asked for nor written again: it may have
        been written by hand. Accepted is what was named, and nothing else."""
        accepted = self.store.accepted(record.checkpoint_id)
        standing = map(digest_of, self.store.effective_committables(record) if accepted else ())
        words = [accepted[digest] for digest in standing if digest in accepted]
        lost = [work for work in words if work.accepted_as is AcceptedAs.LOST]
        if lost:
            log.error(
                "a loss was accepted, the job goes on without these records: %s",
                _named(record, lost),
            )
        self._left_out |= {work.digest for work in lost}
        self._words = {work.digest: work for work in words if work not in lost}

    def _without_words(self, record: CheckpointRecord, answers: Answers) -> Answers:
        """Those that are not settled by what somebody has said of what nobody can tell. From here
        on the decision is followed as if it did not name the others."""
        unknown = [e for e, report in answers if report.outcome is CommitOutcome.UNKNOWN]
        words = [self._words[key] for entry in unknown if (key := digest_of(entry)) in self._words]
        if not words:
            return answers
        log.warning("taken for committed by a person's word: %s", _named(record, words))
        self._left_out |= {work.digest for work in words}
        self._committers = SharedCommitters(self.sinks, self.plan)  # these hold them
        return [answer for answer in answers if digest_of(answer[0]) not in self._left_out]

    def _wait(
        self,
        decided: DecidedWork,
        reports: Sequence[CommitReport],
        since_s: float,
        answers: Answers = (),
    ) -> Steps[None]:
        """A pause before the next try, if one is needed and there is time for it."""
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
        """Whether the next try may follow at once; what can be written again is on record then."""
        lost = [entry for entry, report in answers if report.outcome is CommitOutcome.ABORTED]
        by_region = lost_by_region(_effective(self.store, record), lost)
        if not by_region:
            return False  # somebody has repaired it since it was read
        told = yield from self._repair_each(record, filter(self._can_repair, by_region))
        if told:
            return PublishOutcome.OURS in told
        reports = [report for _, report in answers]
        if not _is_any_pending(reports) or self.clock() >= self.deadline_s:
            self._noted(decided, answers)
            raise why_lost(record.checkpoint_id, by_region, reports, self._failed_repairs)
        yield "settle-retry"  # nobody else commits the rest, and it may be lost by then
        self.pause(_PAUSE_S)
        return True

    def _repair_each(
        self, record: CheckpointRecord, found: Iterable[LostCommittables]
    ) -> Steps[list[PublishOutcome]]:
        """How the repairs went that did not fail: one for each region, on record by itself, for
        what is lost of one may be there no more, and the others' can be written again."""
        told: list[PublishOutcome] = []
        for lost in found:
            name = lost.region.region
            if name in self._failed_repairs:
                continue
            try:
                told.append((yield from self._repair(record, lost)))
            except FencedError:
                raise
            except Exception as err:  # noqa: BLE001 - raised once all the rest is settled
                log.warning("cannot be written again: region=%s error=%s", name, err)
                self._failed_repairs[name] = err
        return told

    def _repair(self, record: CheckpointRecord, lost: LostCommittables) -> Steps[PublishOutcome]:
        """Whether a repair of ours is on record now."""
        began_s = self.clock()
        action = Repair(checkpoint_id=record.checkpoint_id, lost=(lost,))
        try:
            outcome, replaced = yield from self.repairs.run(action)
        finally:
            self.deadline_s += self.clock() - began_s
        if outcome is PublishOutcome.TAKEN:
            # Ours must not hold back readers for the rest of this run.
            discard(self.sinks, replaced.values(), timeout_s=self.settings.call_timeout_s)
            self._give_way(record, lost)
        return outcome

    def _give_way(self, record: CheckpointRecord, lost: LostCommittables) -> None:
        """To whoever was faster: another start has written it again, or a person has accepted it.
        Whoever is about to accept it has claimed it already; then it is as lost as ever."""
        self._heed(record)
        self._committers = SharedCommitters(self.sinks, self.plan)  # these hold what was replaced
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
        # A sink that another pipeline has now is not behind the functions that made the records.
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
            "Nothing is lost; start the job again when every broker and file system answers.",
        )

    def _sweep(self, unsettled: Iterable[CheckpointRecord]) -> Steps[bool]:
        self.require_leased()
        view = SweepView(
            job_uid=self.job_uid,
            attempt_ids={region.name: self.attempt_id for region in self.plan.regions},
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
    """A decision, and what of it is not asked for any more."""
    found = list(works)
    regions = ",".join(sorted({work.region for work in found}))
    ranges = " ".join(sorted({each for work in found for each in work.ranges}))
    return f"checkpoint_id={record.checkpoint_id} regions={regions} ranges={ranges}"


def _is_any_pending(reports: Iterable[CommitReport]) -> bool:
    return any(report.outcome is CommitOutcome.PENDING for report in reports)


def _is_further(report: CommitReport) -> bool:
    """Whether a try has finished something: so it ends, however much is left."""
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
