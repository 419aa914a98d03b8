"""The coordinator with one protocol rule broken: what the simulator must be able to catch."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from runtime.checkpoint import settling
from runtime.checkpoint.core import CoordinatorCore
from runtime.checkpoint.messages import Commit, CoreEvent, Published
from runtime.checkpoint.regions import Fate, RegionState
from runtime.checkpoint.settlement import Settlement
from runtime.checkpoint.startup import StartSequence
from runtime.checkpoint.steps import Hands, commit_all
from runtime.contracts import CommitOutcome, CommitReport, PublishOutcome, SweepView
from runtime.model import BatchKey, CheckpointRecord, StateEntry
from tests.fakes import FakeSink, FakeStore, identity_of
from tests.simulation.process import Process

__all__ = ["MUTATIONS", "Mutation"]

Mutation = Callable[[pytest.MonkeyPatch], None]


def sweep_before_the_seal(patch: pytest.MonkeyPatch) -> None:
    """Rule 6: an abort before the seal takes work that an older coordinator may still decide."""
    seal = StartSequence._seal  # noqa: SLF001 - broken on purpose

    def broken(self: Any, restore_from: int | None) -> Generator[str, None, Any]:
        history = self._read(restore_from)
        view = SweepView(
            job_uid=history.newest.job_uid,
            generations={region.name: history.next_place for region in self._plan.regions},
            protected=(),
            orphans=(),
        )
        for sink in self._sinks.values():
            sink.sweep(view, timeout_s=1.0)
        yield "swept too early"
        return (yield from seal(self, restore_from))

    patch.setattr(StartSequence, "_seal", broken)


def no_seal(patch: pytest.MonkeyPatch) -> None:
    """Rule 6: without a seal an older coordinator decides behind our back."""

    def broken(self: Any, restore_from: int | None) -> Generator[str, None, Any]:
        from runtime.checkpoint import recovery

        history = self._read(restore_from)
        resume_id = recovery.resume_point(history, restore_from=restore_from)
        seal = recovery.seal_record(
            history, self._plan, session=self._session, resume_id=resume_id, now_ms=0
        )
        yield "no seal"
        return history, seal

    patch.setattr(StartSequence, "_seal", broken)


def overwrite_a_place(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: a decision is put in place by a step that replaces nothing."""

    def broken(self: FakeStore, record: CheckpointRecord, *, timeout_s: float) -> PublishOutcome:
        self.records[record.checkpoint_id] = record
        self.history.append(record)
        return PublishOutcome.OURS

    patch.setattr(FakeStore, "publish", broken)


def mark_before_commit(patch: pytest.MonkeyPatch) -> None:
    """Rule 5: a mark that comes first hides what a crash left uncommitted."""
    commit = Hands._commit  # noqa: SLF001 - broken on purpose

    def broken(self: Any, action: Commit) -> Generator[str, None, CoreEvent]:
        self._store.mark_committed(action.checkpoint_id)
        yield "marked too early"
        return (yield from commit(self, action))

    patch.setattr(Hands, "_commit", broken)


def settle_nothing_at_start(patch: pytest.MonkeyPatch) -> None:
    """Section 4: what is decided is committed before any task of the next run starts."""
    settle = StartSequence._settle  # noqa: SLF001 - broken on purpose

    def broken(self: Any, history: Any, generation: int) -> Generator[str, None, None]:
        places = tuple(replace(place, is_committed=True) for place in history.places)
        yield from settle(self, replace(history, places=places), generation)

    patch.setattr(StartSequence, "_settle", broken)


def ignore_generations(patch: pytest.MonkeyPatch) -> None:
    """Rule 12: a message of an older life of a region is refused."""
    patch.setattr(RegionState, "require", lambda self, generation: None)


def use_ids_again_at_once(patch: pytest.MonkeyPatch) -> None:
    """Rule 5: an id is initialised again only when its checkpoint is committed on record."""
    patch.setattr(CoordinatorCore, "settled_through", property(lambda self: 10**9))


def abort_when_unsure(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: a publish without an answer may have happened; it is not an abort."""
    published = settling.published

    def broken(book: Any, event: Published, now_s: float) -> None:
        checkpoint = book.pending[event.checkpoint_id]
        if event.outcome is PublishOutcome.UNKNOWN and checkpoint.regions:
            checkpoint.discarded.extend(checkpoint.acknowledged())
            for region in checkpoint.regions:
                book.close_region(region.region, RuntimeError("unsure"), fence=None)
            book.last_place = event.checkpoint_id
            book.discard(checkpoint)
            return
        published(book, event, now_s)

    patch.setitem(_handlers(), Published, broken)


def sweep_what_is_protected(patch: pytest.MonkeyPatch) -> None:
    """Rule 4: decided transactions are never swept, however old their generation."""
    sweep = FakeSink.sweep
    run = Settlement.run

    def unprotected(self: FakeSink, view: SweepView, *, timeout_s: float) -> int:
        return sweep(self, replace(view, protected=()), timeout_s=timeout_s)

    def sweep_first(self: Any, records: Any) -> Generator[str, None, None]:
        yield from self._sweep(())
        yield from run(self, records)

    patch.setattr(FakeSink, "sweep", unprotected)
    patch.setattr(Settlement, "run", sweep_first)


def sweep_open_batches(patch: pytest.MonkeyPatch) -> None:
    """Rule 4: the work of a batch that may still be decided is no orphan."""

    def broken(self: CoordinatorCore, batch: BatchKey) -> Fate:
        return Fate.DISCARDED

    patch.setattr(CoordinatorCore, "fate", broken)


def believe_lost_answers(patch: pytest.MonkeyPatch) -> None:
    """Section 4: a commit that was not answered is asked again, not taken for done."""

    def broken(*args: Any, **kwargs: Any) -> Generator[str, None, list[CommitReport]]:
        reports = yield from commit_all(*args, **kwargs)
        return [replace(report, outcome=CommitOutcome.COMMITTED) for report in reports]

    patch.setattr("runtime.checkpoint.steps.commit_all", broken)
    patch.setattr("runtime.checkpoint.settlement.commit_all", broken)


def write_decided_batches_again(patch: pytest.MonkeyPatch) -> None:
    """Rule 8: Spark's replay of a decided batch writes nothing."""
    patch.setattr(CoordinatorCore, "is_decided", lambda self, batch: False)
    patch.setattr(RegionState, "is_decided", lambda self, batch: False)
    patch.setattr(RegionState, "require_new_ranges", lambda self, ack: None)


def commit_repairs_unrecorded(patch: pytest.MonkeyPatch) -> None:
    """Rule 11: a repair is committed only once what it replaces is on record."""
    repair = Process.repair

    def broken(self: Process, *args: Any, **kwargs: Any) -> dict[bytes, StateEntry]:
        replaced = repair(self, *args, **kwargs)
        for entry in replaced.values():
            self.world.broker.end(identity_of(entry), commit=True)
        return replaced

    patch.setattr(Process, "repair", broken)


def _handlers() -> Any:
    from runtime.checkpoint import core

    return core._HANDLERS  # noqa: SLF001 - broken on purpose


MUTATIONS: Mapping[str, tuple[Mutation, Mapping[str, Any]]] = {
    "sweep before the seal": (sweep_before_the_seal, {"pause": 0.03, "start": 0.06}),
    "no seal": (no_seal, {"pause": 0.03, "start": 0.06}),
    "overwrite a place": (overwrite_a_place, {"pause": 0.03, "start": 0.06}),
    "mark before commit": (mark_before_commit, {"kill": 0.03}),
    "settle nothing at start": (settle_nothing_at_start, {"kill": 0.03}),
    "ignore generations": (ignore_generations, {"fail_region": 0.05}),
    "use ids again at once": (use_ids_again_at_once, {"kill": 0.03}),
    "abort when unsure": (abort_when_unsure, {"lost_answer": 0.2}),
    "sweep what is protected": (sweep_what_is_protected, {"kill": 0.03}),
    "sweep open batches": (sweep_open_batches, {}),
    "believe lost answers": (believe_lost_answers, {"unreached": 0.2, "kill": 0.02}),
    "commit repairs unrecorded": (
        commit_repairs_unrecorded,
        {"expire": 0.1, "kill": 0.03, "refused": 0.2},
    ),
    "write decided batches again": (write_decided_batches_again, {"external": True, "kill": 0.03}),
}
"""Each broken rule, with a world rough enough in the right way to show it soon."""
