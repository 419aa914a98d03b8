"""Where a run begins: which checkpoint, which seal, what is settled first; on a store in memory."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from runtime.checkpoint import recovery
from runtime.checkpoint.plan import CheckpointSettings, JobPlan, OnLost, RegionPlan
from runtime.checkpoint.recovery import History, Place
from runtime.checkpoint.repairs import Repairer
from runtime.checkpoint.startup import Found, StartSequence
from runtime.checkpoint.steps import Steps, drive
from runtime.errors import (
    ConfigError,
    DamagedCheckpointError,
    StreamError,
    TransactionLostError,
    TransactionUnknownError,
    UnreachableError,
    WrongJobError,
)
from runtime.model import (
    BatchKey,
    CheckpointKind,
    CheckpointRecord,
    OperatorNode,
    RegionRecord,
    StateEntry,
    Verdict,
)
from tests.core_driver import split
from tests.fakes import (
    FakeBroker,
    FakeSink,
    FakeSource,
    FakeStore,
    ManualClock,
    Transaction,
    TransactionState,
    entry_of,
    transactional_id,
)

JOB_UID = "7d9f"
GRAPH = (
    OperatorNode(operator_id="source", name="orders", kind="source", upstream=()),
    OperatorNode(operator_id="sink", name="copy", kind="sink", upstream=("source",)),
)
PLAN = JobPlan(
    name="job",
    regions=(RegionPlan(name="main", source_ids=("source",), sink_ids=("sink",), chained=True),),
    graph=GRAPH,
)


def record(
    checkpoint_id: int, *, entries: tuple[StateEntry, ...] = (), **changes: Any
) -> CheckpointRecord:
    """A decided record at a place, 10 offsets for each id."""
    made = CheckpointRecord(
        job_uid=JOB_UID,
        job_name="job",
        checkpoint_id=checkpoint_id,
        kind=CheckpointKind.CHECKPOINT,
        verdict=Verdict.DECIDED,
        leader_session_id="old",
        run_attempt=1,
        graph=GRAPH,
        regions=(
            RegionRecord(
                region="main",
                generation=0,
                batch_id=checkpoint_id or None,
                splits=(split(0, max(0, checkpoint_id - 1) * 10, checkpoint_id * 10),),
                committables=entries,
            ),
        ),
    )
    return dataclasses.replace(made, **changes)


def aborted(checkpoint_id: int, **changes: Any) -> CheckpointRecord:
    """An aborted record."""
    return record(checkpoint_id, verdict=Verdict.ABORTED, regions=(), **changes)


class Job:
    """A job between two runs: its directory, its broker, and starts of new runs."""

    def __init__(self, *records: CheckpointRecord, committed: tuple[int, ...] = ()) -> None:
        self.store = FakeStore(records={r.checkpoint_id: r for r in records})
        self.store.committed |= set(committed)
        self.broker = FakeBroker()
        self.sink = FakeSink(self.broker)
        self.source = FakeSource("source", {0: 100})
        self.clock = ManualClock()
        self.settings = CheckpointSettings()
        self.repairer: Repairer | None = None
        self.points: list[str] = []

    def pre_commit(self, name: str, *, generation: int = 0) -> StateEntry:
        """An open transaction of the old run."""
        return entry_of(self.open(name, generation=generation))

    def open(self, name: str, *, generation: int = 0) -> Transaction:
        """A transaction with a record."""
        batch = BatchKey(region="main", generation=generation, batch_id=1)
        transaction = self.broker.init(transactional_id(JOB_UID, batch, name))
        self.broker.append(transaction, 0, name)
        return transaction

    def sequence(self, *, session: str = "new", plan: JobPlan = PLAN) -> StartSequence:
        """A new run's start."""
        return StartSequence(
            plan=plan,
            settings=self.settings,
            store=self.store,
            sinks={"sink": self.sink},
            sources={"source": self.source},
            session=session,
            clock=self.clock,
            pause=self.clock.advance,
            wall_ms=lambda: 0,
            repairer=self.repairer,
        )

    def start(
        self,
        *,
        session: str = "new",
        plan: JobPlan = PLAN,
        restore_from: int | None = None,
        at: Callable[[str], None] = lambda _: None,
    ) -> Found:
        """Run it to its end; ``at`` is called at each point it names."""
        steps = self.sequence(session=session, plan=plan).run(
            timeout_s=30.0, restore_from=restore_from
        )
        while True:
            try:
                point = next(steps)
            except StopIteration as end:
                found: Found = end.value
                return found
            self.points.append(point)
            at(point)


# --- a new job ------------------------------------------------------------------------------------


def test_a_new_job_stores_its_start_as_numbers_before_anything_runs() -> None:
    """Checkpoint 0: job uid, graph, resolved offsets; decided and committed on record."""
    job = Job()
    found = job.start()
    first = job.store.records[0]
    assert (first.verdict, first.run_attempt, first.restored_from) == (Verdict.DECIDED, 1, None)
    assert [(s.partition, s.end_offset) for s in first.regions[0].splits] == [(0, 0)]
    assert first.job_uid
    assert job.store.committed == {0}
    assert (found.generation, found.is_new, found.cluster_ids) == (0, True, ("fake-cluster",))
    assert job.sink.calls == ["check", "claim", "sweep"]


def test_splits_are_dealt_to_the_regions_that_read_the_source() -> None:
    """Evenly, and only to readers."""
    plan = dataclasses.replace(
        PLAN,
        regions=(
            RegionPlan(name="a", source_ids=("source",)),
            RegionPlan(name="b", source_ids=("source", "other")),
            RegionPlan(name="c", source_ids=("other",)),
        ),
    )
    regions = recovery.first_regions(plan, {"source": [split(n, 5, 5) for n in range(3)]})
    assert [[s.partition for s in region.splits] for region in regions] == [[0, 2], [1], []]


def test_two_new_starts_make_one_job() -> None:
    """The slower one finds checkpoint 0 taken, and goes on behind a seal of its own."""
    job = Job()
    slow = job.sequence(session="slow").run(timeout_s=30.0, restore_from=None)
    assert next(slow) == "before-first"
    fast = job.start(session="fast")
    found = _finish(slow)
    assert found.record.job_uid == fast.record.job_uid
    assert (found.generation, found.is_new) == (1, False)
    assert [r.leader_session_id for r in job.store.history] == ["fast", "slow"]


def _finish(steps: Steps[Found]) -> Found:
    return drive(steps)


# --- the seal -------------------------------------------------------------------------------------


def test_a_start_seals_the_first_empty_place() -> None:
    """Rule 6: an ABORTED record of the new session; its id is the run's generation."""
    job = Job(record(0), record(1), committed=(0, 1))
    found = job.start()
    seal = job.store.records[2]
    assert (seal.verdict, seal.asked_by, seal.leader_session_id) == (Verdict.ABORTED, "seal", "new")
    assert (seal.restored_from, seal.run_attempt) == (1, 2)
    assert (found.generation, found.record.checkpoint_id) == (2, 1)
    assert [s.end_offset for s in job.source.restored] == [10]


def test_nothing_remote_is_changed_before_the_seal() -> None:
    """Rule 6: until it is durable no transaction is ended and no file deleted."""
    job = Job(record(0), committed=(0,))
    decided = job.pre_commit("decided")
    job.store.records[1] = record(1, entries=(decided,))
    job.open("orphan")

    def look(point: str) -> None:
        if point == "before-seal":
            assert job.sink.calls == ["check"]
            assert len(job.broker.ongoing()) == 2

    job.start(at=look)
    assert job.points.index("after-seal") < job.points.index("before-commit")
    assert job.points.index("after-commit") < job.points.index("before-sweep")
    assert not job.broker.ongoing()


def test_a_decision_that_lands_before_the_seal_is_taken_as_decided() -> None:
    """Then the next place is sealed, and the run begins behind that decision."""
    job = Job(record(0), committed=(0,))
    entry = job.pre_commit("late")

    def decide(point: str) -> None:
        if point == "before-seal":
            job.store.records.setdefault(1, record(1, entries=(entry,)))

    found = job.start(at=decide)
    assert (found.generation, found.record.checkpoint_id) == (2, 1)
    assert job.broker.read_committed(0) == ["late"]
    assert 1 in job.store.committed


def test_a_seal_below_a_taken_place_does_not_count() -> None:
    """A start that slept while others ran and retired finds its place empty again; a seal there
    closes nothing, so it seals above the last record as well."""
    job = Job(record(0), record(1), committed=(0, 1))

    def others_run(point: str) -> None:
        if point == "before-seal" and 5 not in job.store.records:
            job.store.records[4] = aborted(4, leader_session_id="other", asked_by="seal")
            job.store.records[5] = record(5, leader_session_id="other")
            job.store.committed.add(5)

    found = job.start(at=others_run)
    assert (found.generation, found.record.checkpoint_id) == (6, 5)
    assert job.store.records[6].leader_session_id == "new"


def test_an_unanswered_seal_is_published_again_until_time_is_over() -> None:
    """The same record: it may have landed."""
    job = Job(record(0), committed=(0,))
    answers = iter([True, True, False])
    job.store.lose_answer = lambda: next(answers, False)
    assert job.start().generation == 1
    job.store.lose_answer = lambda: True
    with pytest.raises(UnreachableError):
        job.start(session="third")


def test_a_run_that_crashed_behind_its_seal_counts_as_an_attempt() -> None:
    """Generations and attempts only grow."""
    job = Job(record(0), committed=(0,))
    generations = [job.start(session=f"s{number}").generation for number in range(3)]
    assert generations == [1, 2, 3]
    assert [r.run_attempt for r in job.store.history] == [2, 3, 4]


# --- settling -------------------------------------------------------------------------------------


def test_decided_checkpoints_are_committed_oldest_first_and_marked() -> None:
    """Before any task of the new run starts; the marked one is not touched again."""
    job = Job(record(0), committed=(0,))
    first, second = job.pre_commit("first"), job.pre_commit("second")
    job.store.records[1] = record(1, entries=(first,))
    job.store.records[2] = record(2, entries=(second,))
    marks: list[int] = []
    job.start(at=lambda point: marks.append(len(job.store.committed)))
    assert job.broker.read_committed(0) == ["first", "second"]
    assert job.store.committed == {0, 1, 2}
    assert sorted(set(marks)) == [1, 2, 3]


def test_a_crash_at_any_point_of_a_start_is_repaired_by_the_next() -> None:
    """Every point is crossed once by a start that dies there."""
    number = 0
    while True:
        job = Job(record(0), committed=(0,))
        job.store.records[1] = record(1, entries=(job.pre_commit("decided"),))
        job.open("orphan")
        steps = job.sequence(session="dies").run(timeout_s=30.0, restore_from=None)
        died = all(next(steps, None) is not None for _ in range(number))
        steps.close()
        found = job.start(session="lives")
        assert job.broker.read_committed(0) == ["decided"]
        assert found.record.checkpoint_id == 1
        assert not job.broker.ongoing()
        number += 1
        if not died:
            break
    assert number > 8


def test_orphans_are_swept_while_a_decided_checkpoint_is_slow() -> None:
    """Readers wait for nobody's recovery; what is decided is protected meanwhile."""
    job = Job(record(0), committed=(0,))
    slow = job.open("slow")
    job.store.records[1] = record(1, entries=(entry_of(slow),))
    orphan = job.open("orphan")
    until_s = job.clock() + 10.0
    job.sink.may_reach = lambda: job.clock() > until_s
    swept_at: list[float] = []

    def look(point: str) -> None:
        if point == "after-sweep":
            swept_at.append(job.clock())
            assert orphan.state is TransactionState.ABORTED

    job.start(at=look)
    assert slow.state is TransactionState.COMMITTED
    assert swept_at[0] <= until_s - 5.0


def test_a_lost_transaction_stops_the_start_with_its_ranges() -> None:
    """Default ``on_lost=fail``: never a log line."""
    job = Job(record(0), committed=(0,))
    gone = job.open("gone")
    gone.state = TransactionState.ABORTED
    job.store.records[1] = record(1, entries=(entry_of(gone),))
    with pytest.raises(TransactionLostError, match=r"input-0:\[0,10\)"):
        job.start()
    assert 1 not in job.store.committed


def test_an_unknown_transaction_is_never_repaired() -> None:
    """Rule 5: only a certain abort may be repaired."""
    job = Job(record(0), committed=(0,))
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    hidden = job.open("hidden")
    job.broker.init(hidden.transactional_id)
    job.store.records[1] = record(1, entries=(entry_of(hidden),))
    with pytest.raises(TransactionUnknownError):
        job.start()


def test_an_unreachable_broker_ends_the_start_in_time() -> None:
    """A typed error, and the checkpoint stays decided."""
    job = Job(record(0), committed=(0,))
    job.store.records[1] = record(1, entries=(job.pre_commit("decided"),))
    job.sink.may_reach = lambda: False
    before_s = job.clock()
    with pytest.raises(UnreachableError, match="Nothing is lost"):
        job.start()
    assert job.clock() - before_s < 35.0


class _Rewriter:
    """Writes a lost committable again under a new id."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.calls = 0

    def repair(self, checkpoint_id: int, lost: object, **limits: object) -> dict[bytes, StateEntry]:
        """See `runtime.checkpoint.repairs.Repairer`."""
        self.calls += 1
        generation = limits["generation"]
        assert isinstance(generation, int)
        entry = self.job.pre_commit(f"again-{self.calls}", generation=generation)
        return {e.payload: entry for e in lost.committables}  # type: ignore[attr-defined]


@pytest.mark.parametrize("points", range(12))
def test_a_repair_survives_a_crash_at_any_point(points: int) -> None:
    """Rule 11: two phases; the next start follows the record, or writes again what none names."""
    job = Job(record(0), committed=(0,))
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    job.repairer = rewriter = _Rewriter(job)
    gone = job.open("gone")
    gone.state = TransactionState.ABORTED
    job.store.records[1] = record(1, entries=(entry_of(gone),))
    steps = job.sequence(session="dies").run(timeout_s=30.0, restore_from=None)
    for _ in range(points):
        next(steps, None)
    steps.close()
    job.start(session="lives")
    visible = job.broker.read_committed(0)
    assert len(visible) == 1
    assert str(visible[0]).startswith("again")
    assert rewriter.calls <= 2
    assert 1 in job.store.committed


def test_a_repair_that_was_lost_too_is_repaired_again() -> None:
    """The second repair replaces what the first one wrote."""
    job = Job(record(0), committed=(0,))
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    job.repairer = _Rewriter(job)
    gone, again = job.open("gone"), job.open("gone too")
    gone.state = again.state = TransactionState.ABORTED
    job.store.records[1] = record(1, entries=(entry_of(gone),))
    job.store.repairs[1] = [{entry_of(gone).payload: entry_of(again)}]
    job.start()
    assert job.broker.read_committed(0) == ["again-1"]
    assert len(job.store.repairs[1]) == 2


def test_a_repair_by_another_start_is_followed() -> None:
    """Whoever is first decides what replaces the lost work; the other one's is discarded."""
    job = Job(record(0), committed=(0,))
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    job.repairer = _Rewriter(job)
    gone = job.open("gone")
    gone.state = TransactionState.ABORTED
    job.store.records[1] = record(1, entries=(entry_of(gone),))

    def other_is_faster(name: str) -> None:
        if name == "publish_repair" and not job.store.repairs.get(1):
            theirs = job.pre_commit("theirs", generation=9)
            job.store.repairs[1] = [{entry_of(gone).payload: theirs}]

    job.store.on_call = other_is_faster
    job.start()
    assert job.broker.read_committed(0) == ["theirs"]
    assert not job.broker.ongoing()


# --- starting from an older checkpoint ------------------------------------------------------------


def test_a_start_from_an_older_checkpoint_settles_and_marks_what_it_leaves_behind() -> None:
    """Ids go on above the largest; nothing is forgotten."""
    job = Job(record(0), record(1), record(2), committed=(0, 1, 2))
    job.store.records[3] = record(3, entries=(job.pre_commit("third"),))
    found = job.start(restore_from=1)
    assert (found.record.checkpoint_id, found.generation) == (1, 4)
    assert job.broker.read_committed(0) == ["third"]
    assert job.store.superseded == {2: 4, 3: 4}
    assert [s.end_offset for s in job.source.restored] == [10]


def test_a_restore_that_crashed_stays_a_restore() -> None:
    """The seal says where the run began; the next start without a wish goes on from there."""
    job = Job(record(0), record(1), record(2), committed=(0, 1, 2))
    steps = job.sequence(session="dies").run(timeout_s=30.0, restore_from=1)
    while next(steps) != "after-seal":
        pass
    steps.close()
    found = job.start()
    assert found.record.checkpoint_id == 1
    assert job.store.superseded == {2: 4}


@pytest.mark.parametrize("wish", [9, 2])
def test_a_start_from_nowhere_is_refused_before_anything_changes(wish: int) -> None:
    """An absent place, or an aborted one."""
    job = Job(record(0), record(1), aborted(2), committed=(0, 1))
    with pytest.raises(ConfigError, match=f"restore_from={wish}"):
        job.start(restore_from=wish)
    assert not job.store.history


def test_a_damaged_record_stops_a_start_unless_it_is_left_behind_settled() -> None:
    """A start from an older checkpoint needs only what is not committed yet."""
    job = Job(record(0), record(1), record(2), committed=(0, 1, 2))
    read = job.store.read

    def damaged(checkpoint_id: int) -> CheckpointRecord | None:
        if checkpoint_id == 2:
            raise DamagedCheckpointError("cut off", {"checkpoint_id": 2}, "Use another.")
        return read(checkpoint_id)

    job.store = _ReadingStore(job.store, damaged)
    with pytest.raises(DamagedCheckpointError):
        job.start()
    assert not job.store.history
    assert job.start(restore_from=1).record.checkpoint_id == 1
    job.store.committed.discard(2)
    with pytest.raises(DamagedCheckpointError):
        job.start(restore_from=1)


class _ReadingStore(FakeStore):
    """A store whose reads a test replaces."""

    def __init__(self, store: FakeStore, read: Callable[[int], CheckpointRecord | None]) -> None:
        super().__init__(records=store.records, committed=store.committed)
        self._replaced = read

    def read(self, checkpoint_id: int) -> CheckpointRecord | None:
        """As the test wants it."""
        return self._replaced(checkpoint_id)


def test_the_newest_decision_is_found_behind_seals_and_aborts() -> None:
    """Whatever lies above it; superseded ones do not count."""
    history = History(
        ids=(1, 2, 3, 4),
        places=(
            Place(record=aborted(4, asked_by="seal"), is_committed=False, is_superseded=False),
            Place(record=record(3), is_committed=True, is_superseded=True),
            Place(record=aborted(2), is_committed=False, is_superseded=False),
            Place(record=record(1), is_committed=True, is_superseded=False),
        ),
    )
    assert recovery.resume_point(history, restore_from=None) == 1


# --- another job ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (dataclasses.replace(PLAN, name="other"), "belongs to another job"),
        (
            dataclasses.replace(PLAN, regions=(RegionPlan(name="main", source_ids=("renamed",)),)),
            "source 'orders' \\(source\\)",
        ),
        (
            dataclasses.replace(
                PLAN, regions=(RegionPlan(name="renamed", source_ids=("source",)),)
            ),
            "only_in_checkpoint=main",
        ),
    ],
)
def test_a_directory_of_another_job_is_refused_before_anything_changes(
    changed: JobPlan, says: str
) -> None:
    """What differs is named, with what to do."""
    job = Job(record(0), record(1), committed=(0, 1))
    with pytest.raises(WrongJobError, match=says):
        job.start(plan=changed)
    assert not job.store.history
    assert job.sink.calls == ["check"]


def test_a_missing_sink_of_an_unsettled_checkpoint_is_named_before_the_seal() -> None:
    """Its transactions could not be committed."""
    job = Job(record(0), committed=(0,))
    entry = dataclasses.replace(job.pre_commit("x"), operator_id="vanished")
    job.store.records[1] = record(1, entries=(entry,))
    with pytest.raises(WrongJobError, match="vanished"):
        job.start()
    assert not job.store.history


def test_a_failing_check_changes_nothing() -> None:
    """A wrong password ends the start before the store is touched."""
    job = Job()

    def refuse(*, timeout_s: float) -> dict[str, str]:
        raise ConfigError("no", {}, "Ask for access.")

    job.sink.check = refuse  # type: ignore[method-assign]
    with pytest.raises(StreamError):
        job.start()
    assert not job.store.records
