"""Drivers of a continuous job that die, freeze, wake beside their successors, or are truncated.

Thread by thread, with the tasks of all of them (`ids-never-reused`, `outcome-from-broker`,
`fence-first`, `continuous-order` and `lease-guards-outputs`): readers see each record once and in
order, whichever run has written it, and nothing continues that has a successor.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluice.connectors.kafka.sink.committer import transaction_sweep as sweep
from sluice.connectors.kafka.sink.committer.kafka_committer import KafkaCommitter
from sluice.connectors.kafka.sink.producers.producer_slots import SlotEvent, SlotTable
from sluice.connectors.kafka.sink.writer.kafka_writer import TransactionalWriter
from sluice.runtime.continuous.barrier_service import AttemptEpochs
from sluice.runtime.continuous.checkpoint_client import CheckpointClient
from sluice.runtime.continuous.native_commits import NativeCommits
from sluice.runtime.continuous.task_messages import EpochResult
from sluice.runtime.contracts import CommitOutcome, CommitReport, PublishOutcome, SweepView
from sluice.runtime.coordinator.shell import io_executor as steps
from sluice.runtime.coordinator.start import startup
from sluice.runtime.coordinator.start.startup import StartSequence
from sluice.runtime.errors import FencedError, StreamError, UnreachableError
from sluice.runtime.model.checkpoint_record import FENCING, CheckpointRecord
from sluice.runtime.ownership.lease_watch import LeaseWatch
from tests.kit.effort import examples
from tests.kit.threads.threaded_attempts import Link
from tests.kit.threads.threaded_plans import EVENTS, FAULTS, Plan, pass_by
from tests.kit.threads.threaded_tasks import PlayedLink

pytestmark = pytest.mark.usefixtures("silence")

_MUTANT_SEEDS = 20
_SUCCESSORS = ("another run", "freeze driver", "kill driver", "stop driver", "stop thread")

_plans = st.builds(
    Plan,
    seed=st.integers(0, 2**32),
    events=st.lists(st.sampled_from(EVENTS), unique=True).map(tuple),
    faults=st.lists(st.sampled_from(sorted(FAULTS)), unique=True).map(tuple),
    level=st.sampled_from([0, 2]),
    sinks=st.integers(1, 2),
    moves=st.booleans(),
    rescales=st.booleans(),
    suspends=st.booleans(),
    counts=st.booleans(),
    leader_is_seen=st.booleans(),
    ending=st.sampled_from(["good", "killed", "frozen"]),
)


@settings(max_examples=examples(6))
@given(_plans)
@example(Plan(122, events=("raise",), level=0, sinks=1))  # no memory at a task's last step
def test_fence_first_and_continuous_order_whichever_driver_lives_readers_see_each_record_once_and_in_order(
    plan: Plan,
) -> None:
    pass_by(plan)


def test_drivers_have_successors_and_all_of_them_commit() -> None:
    found = [pass_by(Plan(seed)) for seed in range(4)]
    started = [run for runs in found for run in runs.runs if run.started is not None]
    assert len(started) > 2 * len(found), "most starts come to their end"
    assert sum(isinstance(run.error, FencedError) for run in started) > 1, "by their successors"
    requests = [request for runs in found for request in runs.broker.requests]
    by_hand = {identity for identity, is_commit, _ in requests if is_commit}
    decided = {identity for runs in found for identity in runs.directory.decided}
    assert len(decided - by_hand) > 30, "tasks commit"
    assert len(decided & by_hand) > 5, "and so do drivers"
    assert all(any(runs.faults.seen[name] for runs in found) for name in FAULTS)


def _nobody_asks_who_owns(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaseWatch, "require", lambda _: None)
    patch.setattr(LeaseWatch, "report_loss", lambda *_: None)


def test_fence_first_a_seal_alone_stops_an_older_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    _nobody_asks_who_owns(monkeypatch)
    for seed in range(3):
        pass_by(Plan(seed, events=_SUCCESSORS))


# --- the runs would notice a broken rule ----------------------------------------------------------


def _starts_without_a_seal(patch: pytest.MonkeyPatch) -> None:
    publish = startup.publish_record

    def forgotten(store: Any, record: CheckpointRecord, *, timeout_s: float) -> PublishOutcome:
        if record.requested_by != FENCING:
            return publish(store, record, timeout_s=timeout_s)
        return PublishOutcome.OURS

    def highest(*found: Any) -> Any:
        return found[0][-1] + 1 if len(found) == 1 else max(*found)

    _nobody_asks_who_owns(patch)
    patch.setattr(startup, "publish_record", forgotten)
    patch.setattr(startup, "max", highest, raising=False)


def _sweeps_before_it_seals(patch: pytest.MonkeyPatch) -> None:
    fencing_record = StartSequence._fence  # noqa: SLF001 - continues with the real one

    def swept(self: StartSequence, restore_from: int | None) -> Any:
        history = self._read(None)
        view = SweepView(
            job_uid=history.newest.job_uid,
            attempt_ids={r.name: history.next_slot for r in self.plan.regions},
            protected=tuple(e for p in history.slots for e in p.record.committables),
            orphans=(),
        )
        for sink in self.sinks.values():
            sink.sweep(view, timeout_s=10.0)
        self.pause(1.0)
        return fencing_record(self, restore_from)

    patch.setattr(StartSequence, "_fence", swept)


def _a_taken_place_is_its_own(patch: pytest.MonkeyPatch) -> None:
    """A driver that has been superseded believes its decision."""
    publish = steps.publish_record

    def believed(store: Any, record: CheckpointRecord, *, timeout_s: float) -> PublishOutcome:
        outcome = publish(store, record, timeout_s=timeout_s)
        return PublishOutcome.OURS if outcome is PublishOutcome.TAKEN else outcome

    _nobody_asks_who_owns(patch)
    patch.setattr(steps, "publish_record", believed)
    patch.setattr(steps, "is_taken_over", lambda *_, **__: False)


def _a_recovery_skips_an_id(patch: pytest.MonkeyPatch) -> None:
    """One of the transactions that the last run has decided is taken for committed."""
    commit = KafkaCommitter.commit

    def skipped(
        self: KafkaCommitter, committables: Any, *, timeout_s: float, after_crash: bool
    ) -> Any:
        if not after_crash or not committables:
            return commit(self, committables, timeout_s=timeout_s, after_crash=after_crash)
        rest = commit(self, committables[1:], timeout_s=timeout_s, after_crash=True)
        return [CommitReport(outcome=CommitOutcome.COMMITTED), *rest]

    patch.setattr(KafkaCommitter, "commit", skipped)


def _a_sweep_skips_an_id(patch: pytest.MonkeyPatch) -> None:
    found = sweep.orphans

    def skipped(*args: Any, **words: Any) -> Any:
        return tuple(i for i in found(*args, **words) if not i.transactional_id.endswith("/0"))

    patch.setattr(sweep, "orphans", skipped)


def _tasks_wait_for_ever(patch: pytest.MonkeyPatch) -> None:
    def call_forever(_: CheckpointClient, call: Callable[[], Any], *, is_needed: Any) -> Any:
        while True:
            try:
                return call()
            except UnreachableError:
                if not is_needed():
                    return None

    patch.setattr(CheckpointClient, "call", call_forever)


def _tasks_ask_nobody_who_leads(patch: pytest.MonkeyPatch) -> None:
    """They wait for their driver, which has a successor."""
    patch.setattr(Link, "require_leadership", lambda _: None)


def _an_epoch_counts_each_time_it_is_told(patch: pytest.MonkeyPatch) -> None:
    """An answer that is lost has its records counted again."""
    acknowledge = AttemptEpochs.acknowledge

    def counted(self: AttemptEpochs, coordinator: Any, result: EpochResult) -> None:
        last = self._last_ack
        if last is not None and last.batch == result.batch:
            self.operator_states = self._acknowledgement(result).region.operator_states
        acknowledge(self, coordinator, result)

    patch.setattr(AttemptEpochs, "acknowledge", counted)


def _tasks_commit_what_they_hold(patch: pytest.MonkeyPatch) -> None:
    def released(self: TransactionalWriter) -> None:
        kept = self._kept
        if kept is not None:
            with kept.producer.in_use():
                kept.producer.commit(timeout_s=1.0)
            self._kept = None
            self._pool.let_go(kept)

    patch.setattr(TransactionalWriter, "release", released)


def _ids_before_the_mark(patch: pytest.MonkeyPatch) -> None:
    """An id is taken again as soon as its epoch is reported."""
    record = SlotTable.record

    def spent_is_over(self: SlotTable, slot: int, event: SlotEvent) -> None:
        record(self, slot, SlotEvent.ABORTED if event is SlotEvent.SPEND else event)

    patch.setattr(SlotTable, "record", spent_is_over)


def _a_lost_answer_is_an_answer(patch: pytest.MonkeyPatch) -> None:
    tells = PlayedLink.acknowledge_epoch

    def once(self: PlayedLink, result: EpochResult) -> None:
        with contextlib.suppress(UnreachableError):
            tells(self, result)

    patch.setattr(PlayedLink, "acknowledge_epoch", once)


def _asked_is_committed(patch: pytest.MonkeyPatch) -> None:
    """A task that was asked to commit is believed to have done so."""

    def believed(self: NativeCommits, attempts: Mapping[str, int], *, timeout_s: float) -> Any:
        self._changed.wait_for(lambda: False, timeout_s)
        running = self._running(attempts)
        return frozenset(
            e for each in running for asked in each.requested for e in each.epochs[asked]
        )

    patch.setattr(NativeCommits, "await_reports", believed)


def _nobody_tells_the_courier(patch: pytest.MonkeyPatch) -> None:
    """It waits for an epoch of a task that has ended."""
    patch.setattr(CheckpointClient, "close", lambda _: None)


_BROKEN = {
    "ids before the mark": (_ids_before_the_mark, "not over"),
    "a lost answer is an answer": (_a_lost_answer_is_an_answer, "not over"),
    "asked is committed": (_asked_is_committed, "readers wait"),
    "nobody tells the courier": (_nobody_tells_the_courier, "go on"),
    "starts without a seal": (_starts_without_a_seal, "behind another one's seal"),
    "sweeps before it seals": (_sweeps_before_it_seals, "aborted and decided"),
    "a taken place is its own": (_a_taken_place_is_its_own, "committed and not decided"),
    "a recovery skips an id": (_a_recovery_skips_an_id, "aborted and decided"),
    "a sweep skips an id": (_a_sweep_skips_an_id, "readers wait"),
    "tasks wait for ever": (_tasks_wait_for_ever, "go on"),
    "an epoch counts each time": (_an_epoch_counts_each_time_it_is_told, "counted"),
    "tasks ask nobody who leads": (_tasks_ask_nobody_who_leads, "tasks of elders went on"),
    "tasks commit what they hold": (_tasks_commit_what_they_hold, "committed and not decided"),
}


@pytest.mark.parametrize("name", _BROKEN)
def test_runs_notice_a_broken_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    breaks, what = _BROKEN[name]
    breaks(monkeypatch)
    plan = Plan(
        0, events=_SUCCESSORS, counts=True, leader_is_seen=False, ending="killed", patience=60_000
    )
    if breaks is _tasks_wait_for_ever:  # that of a driver which has no successor
        plan = replace(plan, events=())
    if breaks is _tasks_ask_nobody_who_leads:
        plan = replace(plan, events=("kill driver",), leader_is_seen=True)
    plans = (replace(plan, seed=seed) for seed in range(_MUTANT_SEEDS))
    assert any((failure := _failure(plan)) and what in failure for plan in plans)


def _failure(plan: Plan) -> str:
    try:
        pass_by(plan)
    except (AssertionError, StreamError) as err:
        return f"{type(err).__name__}: {err}"
    return ""
