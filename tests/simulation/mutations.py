"""The coordinator with one protocol rule broken. The simulator must notice each of them."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from sluice.connectors.kafka.sink.committer.kafka_committer import KafkaCommitter
from sluice.connectors.kafka.sink.committer.kafka_sink_coordinator import KafkaSinkCoordinator
from sluice.connectors.kafka.sink.producers import producer_slots as slots
from sluice.connectors.kafka.sink.producers.producer_pool import Lease, ProducerPool
from sluice.connectors.kafka.sink.producers.producer_slots import SlotEvent, SlotState
from sluice.runtime.contracts import CommitOutcome, CommitReport, PublishOutcome, SweepView
from sluice.runtime.coordinator.committing.commit_steps import commit_all
from sluice.runtime.coordinator.core import alignment, post_commit, region_attempts
from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.coordinator.core.core import CoordinatorCore
from sluice.runtime.coordinator.core.events import (
    BarrierPolled,
    Commit,
    CoreEvent,
    Published,
    RegionRestarted,
)
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.coordinator.policy.state_tables import (
    REGION_TRANSITIONS,
    Event,
    RegionEvent,
    RegionPhase,
)
from sluice.runtime.coordinator.region.region_state import Fate, RegionState
from sluice.runtime.coordinator.shell.io_executor import IoExecutor
from sluice.runtime.coordinator.start.settlement import Settlement
from sluice.runtime.coordinator.start.startup import StartSequence
from sluice.runtime.model.checkpoint_record import (
    CheckpointKind,
    CheckpointRecord,
    RegionRecord,
    StateEntry,
)
from sluice.runtime.model.splits import BatchKey
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.files.fake_file_system import Disk
from tests.kit.kafka.fake_kafka import FakeBroker
from tests.simulation.copy_mutations import COPY_MUTATIONS
from tests.simulation.loss_mutations import LOSS_MUTATIONS
from tests.simulation.people_mutations import PEOPLE_MUTATIONS
from tests.simulation.restore_mutations import RESTORE_MUTATIONS
from tests.simulation.run_mutations import RUN_MUTATIONS
from tests.simulation.split_mutations import SPLIT_MUTATIONS
from tests.simulation.torn_mutations import TORN_MUTATIONS

Mutation = Callable[[pytest.MonkeyPatch], None]


def sweep_before_the_fencing_record(patch: pytest.MonkeyPatch) -> None:
    """Rule `fence-first`: a sweep before the fencing record aborts transactions that an older
    coordinator may still decide."""
    fencing_record = StartSequence._fence  # noqa: SLF001 - broken on purpose

    def broken(self: Any, restore_from: int | None) -> Generator[str, None, Any]:
        history = self._read(restore_from)
        view = SweepView(
            job_uid=history.newest.job_uid,
            attempt_ids={region.name: history.next_slot for region in self.plan.regions},
            protected=(),
            orphans=(),
        )
        for sink in self.sinks.values():
            sink.sweep(view, timeout_s=1.0)
        yield "swept too early"
        return (yield from fencing_record(self, restore_from))

    patch.setattr(StartSequence, "_fence", broken)


def no_fencing_record(patch: pytest.MonkeyPatch) -> None:
    """Rule `fence-first`: without a fencing record, an older coordinator can still decide."""

    def broken(self: Any, restore_from: int | None) -> Generator[str, None, Any]:
        from sluice.runtime.coordinator.start import recovery

        history = self._read(restore_from)
        resume_id = recovery.resume_point(history, restore_from=restore_from)
        fencing_record = recovery.fencing_record_of(
            history,
            self.plan,
            session=self.session,
            resume_id=resume_id,
            restore_from=restore_from,
            fenced=self.store.known_fencing_records(),
            now_ms=0,
        )
        yield "no fencing record"
        return history, fencing_record

    patch.setattr(StartSequence, "_fence", broken)


def overwrite_a_slot(patch: pytest.MonkeyPatch) -> None:
    """Rule `publish-whole`: the step that publishes a decision never replaces a record."""

    def broken(self: FakeStore, record: CheckpointRecord, *, timeout_s: float) -> PublishOutcome:
        self.records[record.checkpoint_id] = record
        self.history.append(record)
        return PublishOutcome.OURS

    patch.setattr(FakeStore, "publish", broken)


def mark_before_commit(patch: pytest.MonkeyPatch) -> None:
    """Rule `outcome-from-broker`: a completion marker before the commit hides transactions that a
    crash left open."""
    commit = IoExecutor._commit  # noqa: SLF001 - broken on purpose

    def broken(self: Any, action: Commit) -> Generator[str, None, CoreEvent]:
        self._store.mark_committed(action.checkpoint_id)
        yield "marked too early"
        return (yield from commit(self, action))

    patch.setattr(IoExecutor, "_commit", broken)


def settle_nothing_at_start(patch: pytest.MonkeyPatch) -> None:
    """A run commits every decided checkpoint before any of its tasks starts."""
    settle = StartSequence._settle  # noqa: SLF001 - broken on purpose

    def broken(
        self: Any, history: Any, attempt_id: int, kept: Any, **given: Any
    ) -> Generator[str, None, None]:
        slots = tuple(replace(slot, is_committed=True) for slot in history.slots)
        yield from settle(self, replace(history, slots=slots), attempt_id, kept, **given)

    patch.setattr(StartSequence, "_settle", broken)


def ignore_attempts(patch: pytest.MonkeyPatch) -> None:
    """Rule `callback-after-commit`: the coordinator refuses a message of an older attempt of a
    region."""

    def broken(self: RegionState, event: RegionEvent) -> None:
        self.phase = REGION_TRANSITIONS.get((self.phase, event), self.phase)

    patch.setattr(RegionState, "require", lambda self, attempt_id: None)
    patch.setattr(RegionState, "advance", broken)


def use_ids_again_at_once(patch: pytest.MonkeyPatch) -> None:
    """Rule `outcome-from-broker`: a task initialises an id again only after its checkpoint is
    recorded as committed."""

    def broken(self: Any, lease: Lease) -> None:
        self.return_unused(lease)
        self._start(at_least=2)

    patch.setattr(ProducerPool, "spend", broken)


def one_owner_for_all_workers(patch: pytest.MonkeyPatch) -> None:
    """Rule `ids-never-reused`: an id contains its worker process, so two processes never share
    one."""

    def broken(self: Any, slot: int) -> str:
        place = f"{self._region}.{self.attempt_id}"
        return f"{self._prefix}/{self._job_uid}/{place}/worker/{slot}"

    patch.setattr(ProducerPool, "_id_of", broken)


def use_unanswered_ids_again(patch: pytest.MonkeyPatch) -> None:
    """Rule `ids-never-reused`: an unanswered `init_transactions` may still arrive, and would abort
    a newer transaction of its id."""
    patch.setitem(
        cast(Any, slots.TRANSITIONS), (SlotState.PREPARING, SlotEvent.UNANSWERED), SlotState.FREE
    )


def abort_when_uncertain(patch: pytest.MonkeyPatch) -> None:
    """Rule `publish-whole`: a publish without an answer may have happened, so the coordinator does
    not abort."""
    published = post_commit.published

    def broken(state: Any, event: Published, now_s: float) -> None:
        checkpoint = state.pending[event.checkpoint_id]
        if event.outcome is PublishOutcome.UNKNOWN and checkpoint.regions:
            checkpoint.discarded.extend(checkpoint.acknowledged())
            for region in checkpoint.regions:
                state.close_region(region.region, RuntimeError("unsure"), now_s)
            state.last_slot = event.checkpoint_id
            state.discard(checkpoint)
            return
        published(state, event, now_s)

    patch.setitem(_handlers(), Published, broken)


def sweep_decided_transactions(patch: pytest.MonkeyPatch) -> None:
    """Rule `ids-never-reused`: a sweep never aborts a decided transaction, however old its attempt
    is."""
    sweep = KafkaSinkCoordinator.sweep
    run = Settlement.run

    def unprotected(self: KafkaSinkCoordinator, view: SweepView, *, timeout_s: float) -> int:
        return sweep(self, replace(view, protected=()), timeout_s=timeout_s)

    def sweep_first(self: Any, records: Any) -> Generator[str, None, None]:
        yield from self._sweep(())
        yield from run(self, records)

    patch.setattr(KafkaSinkCoordinator, "sweep", unprotected)
    patch.setattr(Settlement, "run", sweep_first)


def sweep_open_batches(patch: pytest.MonkeyPatch) -> None:
    """Rule `ids-never-reused`: a sweep leaves the transactions of a batch that may still be
    decided."""

    def broken(self: CoordinatorCore, batch: BatchKey) -> Fate:
        return Fate.DISCARDED

    patch.setattr(CoordinatorCore, "fate", broken)


def trust_lost_answers(patch: pytest.MonkeyPatch) -> None:
    """The coordinator repeats a commit that was not answered. It does not count as done."""

    def broken(*args: Any, **kwargs: Any) -> Generator[str, None, list[CommitReport]]:
        reports = yield from commit_all(*args, **kwargs)
        return [replace(report, outcome=CommitOutcome.COMMITTED) for report in reports]

    patch.setattr("sluice.runtime.coordinator.shell.io_executor.commit_all", broken)
    patch.setattr("sluice.runtime.coordinator.start.settlement.commit_all", broken)


def write_decided_batches_again(patch: pytest.MonkeyPatch) -> None:
    """Rule `batch-identity`: Spark's replay of a decided batch writes nothing."""
    patch.setattr(CoordinatorCore, "is_decided", lambda self, batch: False)
    patch.setattr(RegionState, "is_decided", lambda self, batch: False)
    patch.setattr(RegionState, "require_new_ranges", lambda self, ack: None)


def _handlers() -> Any:
    from sluice.runtime.coordinator.core import core

    return core._HANDLERS  # noqa: SLF001 - broken on purpose


def set_a_barrier_twice(patch: pytest.MonkeyPatch) -> None:
    """Rule `restore-by-attempt`: a repeated poll returns the same barrier, even after later
    decisions, because Spark may not have logged it."""
    polled = alignment.barrier_polled

    def broken(state: Any, event: BarrierPolled, now_s: float) -> None:
        region = state.regions[event.region]
        if region.phase is RegionPhase.TIMED_OUT:
            region.phase = RegionPhase.RUNNING
        polled(state, event, now_s)

    patch.setitem(_handlers(), BarrierPolled, broken)


def skip_with_undecided_offsets(patch: pytest.MonkeyPatch) -> None:
    """A skipped region keeps its last snapshot, without the offsets of later barriers."""
    skipped = RegionState.skipped_record

    def broken(self: RegionState) -> RegionRecord:
        return replace(skipped(self), splits=self.positions())

    patch.setattr(RegionState, "skipped_record", broken)


def restart_before_the_end(patch: pytest.MonkeyPatch) -> None:
    """Rule `callback-after-commit`: a new attempt starts only after the transactions of the old one
    are decided or aborted."""

    def broken(state: Any, name: str, now_s: float) -> None:
        region = state.regions[name]
        if not region.restart_requested or state.is_over:
            return
        if region.fence is None:
            fence = state.create(CheckpointKind.CHECKPOINT, "restart")
            state.move(fence, Event.REGION_FAILED, now_s)
            region.fence = fence.checkpoint_id
        region.settle()
        state.out.append(
            RegionRestarted(region=name, attempt_id=region.attempt_id, restored=region.record)
        )

    patch.setattr(post_commit, "drive_restart", broken)


def resume_at_once_by_command(patch: pytest.MonkeyPatch) -> None:
    """Rule `callback-after-commit` holds for a command, too: the old transactions of the suspended
    region are decided or aborted first."""
    fence = region_attempts.fence

    def broken(state: Any, name: str, now_s: float, *, reason: str) -> None:
        fence(state, name, now_s, reason=reason)
        if reason == "is restarted by command":
            region = state.regions[name]
            region.settle()
            restarted = RegionRestarted(
                region=name, attempt_id=region.attempt_id, restored=region.record
            )
            state.out.append(restarted)

    patch.setattr(region_attempts, "fence", broken)


def end_without_suspended_regions(patch: pytest.MonkeyPatch) -> None:
    """A bounded job that has not read all its input fails. Otherwise no operator would restart
    it."""
    patch.setattr(post_commit, "suspended_at_the_end", lambda state: None)


def abort_all_that_an_attempt_reports(patch: pytest.MonkeyPatch) -> None:
    """Rule `abort-before-skip`: an ended attempt reports its open transactions. The coordinator
    aborts none that a decision or a pending checkpoint names."""

    def broken(self: CoordinatorState, region: RegionState, told: Any) -> list[StateEntry]:
        return [entry for work in told for entry in work.committables]

    patch.setattr(CoordinatorState, "undecided_work", broken)


def end_without_a_verdict(patch: pytest.MonkeyPatch) -> None:
    """Rule `outcome-from-broker`: after a crash, the answer to EndTxn does not distinguish
    committed from aborted."""
    end = KafkaCommitter._end  # noqa: SLF001 - broken on purpose

    def broken(self: Any, identities: Any, *, commit: bool, reports: Any, deadline: float) -> None:
        end(self, identities, commit=commit, reports=reports, deadline=deadline)
        for identity in identities:
            if reports[identity].outcome is CommitOutcome.PENDING:
                reports[identity] = CommitReport(outcome=CommitOutcome.ABORTED, detail="broken")

    patch.setattr(KafkaCommitter, "_end", broken)


def endtxn_version_5_everywhere(patch: pytest.MonkeyPatch) -> None:
    """Rule `endtxn-version`: EndTxn version 5 blocks the transaction if the feature level is not
    finalised."""
    end = FakeBroker.end

    def broken(self: FakeBroker, transaction: Any, *, commit: bool, version: int) -> str:
        return end(self, transaction, commit=commit, version=5)

    patch.setattr(FakeBroker, "end", broken)


def sweep_by_name_only(patch: pytest.MonkeyPatch) -> None:
    """Rule `ids-never-reused`: within an attempt, only transactions that the coordinator has
    declared are orphans."""
    patch.setattr(SweepView, "is_attempt_over", lambda self, region, attempt_id: True)


def skip_beyond_the_limit(patch: pytest.MonkeyPatch) -> None:
    """The coordinator stops skipping a region that it has skipped too often."""
    patch.setattr(RegionalCheckpointHandler, "_may_skip", lambda self, alignment, skipped: True)


def rename_over_a_record(patch: pytest.MonkeyPatch) -> None:
    """Rule `publish-whole`: if a rename replaces its target, two coordinators can decide one
    slot."""

    def broken(self: Disk, temporary: str, path: str) -> bool:
        if temporary not in self.files:
            return False
        self.files[path] = self.files.pop(temporary)
        return True

    patch.setattr(Disk, "place", broken)


_STARTS: Mapping[str, Any] = {"pause": 0.03, "start": 0.06}
_LONG_RUNS: Mapping[str, Any] = {"kill": 0.001, "pause": 0.002, "start": 0.002, "processes": 4}
# Promises that several mutations break; see `tests.simulation.watch`.
_ABORTED = "a decided transaction is aborted"
_NAMED = "a decision names an aborted one"
_TWO_RECORDS = "a place holds two records"
_INVISIBLE = "not everything is visible in the end"

MUTATIONS: Mapping[str, tuple[Mutation, Mapping[str, Any], str]] = {
    **SPLIT_MUTATIONS,
    **LOSS_MUTATIONS,
    **RUN_MUTATIONS,
    **TORN_MUTATIONS,
    **PEOPLE_MUTATIONS,
    **COPY_MUTATIONS,
    **RESTORE_MUTATIONS,
    "sweep before the fencing record": (sweep_before_the_fencing_record, _STARTS, _ABORTED),
    "no fencing record": (no_fencing_record, _STARTS, "a place is published before the one below"),
    "overwrite a slot": (overwrite_a_slot, _STARTS, _TWO_RECORDS),
    "mark before commit": (mark_before_commit, {"kill": 0.03}, "marked before it is committed"),
    "settle nothing at start": (settle_nothing_at_start, {"kill": 0.03}, _ABORTED),
    "ignore attempts": (ignore_attempts, {"fail_region": 0.05}, _NAMED),
    "use ids again at once": (use_ids_again_at_once, {"kill": 0.03}, _NAMED),
    "one owner for all workers": (
        one_owner_for_all_workers,
        {"fail_task": 0.2},
        "a transactional id is in two hands",
    ),
    "use unanswered ids again": (use_unanswered_ids_again, {"late": 0.3}, _ABORTED),
    "abort when uncertain": (abort_when_uncertain, {"lost_answer": 0.2}, _ABORTED),
    "sweep decided transactions": (sweep_decided_transactions, {"kill": 0.03}, _ABORTED),
    "sweep open batches": (sweep_open_batches, {}, _NAMED),
    "trust lost answers": (trust_lost_answers, {"unreached": 0.2, "kill": 0.02}, _INVISIBLE),
    "set a barrier twice": (
        set_a_barrier_twice,
        {"regional": True, "regions": 3},
        "a decided range does not continue",
    ),
    "skip with undecided offsets": (
        skip_with_undecided_offsets,
        {"regional": True, "regions": 3, "fail_region": 0.03},
        "a skipped region has moved on",
    ),
    "restart before the end": (
        restart_before_the_end,
        {"regional": True, "regions": 3, "fail_region": 0.03, "delayed": True},
        _NAMED,
    ),
    "resume at once by command": (
        resume_at_once_by_command,
        {
            "regions": 4,
            "partitions": 5,
            "suspend": True,
            "command": 0.02,
            "fail_region": 0.02,
            "regional": True,
            "max_concurrent": 2,
            "steps": 200,
            **_LONG_RUNS,
        },
        _NAMED,
    ),
    "end without suspended regions": (
        end_without_suspended_regions,
        {
            "regions": 4,
            "partitions": 5,
            "suspend": True,
            "fail_region": 0.01,
            "steps": 200,
            **_LONG_RUNS,
        },
        _INVISIBLE,
    ),
    "abort all that an attempt reports": (
        abort_all_that_an_attempt_reports,
        {"regional": True, "regions": 3, "fail_region": 0.05},
        _ABORTED,
    ),
    "end without a verdict": (
        end_without_a_verdict,
        {"unanswered": 0.2, "kill": 0.03},
        "a coordinator stops by TransactionLostError",
    ),
    "EndTxn version 5 everywhere": (
        endtxn_version_5_everywhere,
        {"level": 0},
        "the job is started again and again, and is not whole",
    ),
    "sweep by name only": (sweep_by_name_only, {}, _NAMED),
    "skip beyond the limit": (
        skip_beyond_the_limit,
        {"regional": True, "regions": 3, "fail_region": 0.03},
        "more regions are skipped than the limit",
    ),
    "skip beyond the limit beside suspended regions": (
        skip_beyond_the_limit,
        {
            "regions": 4,
            "partitions": 5,
            "suspend": True,
            "regional": True,
            "fail_region": 0.03,
            "steps": 200,
            **_LONG_RUNS,
        },
        "more regions are skipped than the limit",
    ),
    "rename over a record": (rename_over_a_record, {"disk": True, **_STARTS}, _TWO_RECORDS),
    "write decided batches again": (
        write_decided_batches_again,
        {"external": True, "kill": 0.03},
        "doubled",
    ),
}
"""Each broken rule, with a profile of failures that shows it, and the promise that it breaks."""
