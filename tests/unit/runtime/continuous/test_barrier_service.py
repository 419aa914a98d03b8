"""The driver's side of continuous tasks: barriers given out, epochs acknowledged once."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from sluice.runtime.continuous.barrier_service import (
    KEYED_STATE,
    AttemptEpochs,
    BarrierService,
    TaskHeartbeat,
)
from sluice.runtime.continuous.task_messages import CommittedEpoch, EpochResult
from sluice.runtime.contracts import RegionRegistration
from sluice.runtime.errors import ConfigError, FencedError, PoisonRecordsError, UnreachableError
from sluice.runtime.functions.function_run import ChainedFunction
from sluice.runtime.functions.record_counts import decode_totals, totals_after
from sluice.runtime.model.acknowledgement import Acknowledgement, RecordCounts, StageTimes
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.on_error import DeadLetters, Skip
from sluice.runtime.model.splits import Barrier, BatchKey
from tests.kit.coordinator.core_driver import committable, split
from tests.kit.fakes import ManualClock

_FUNCTION = ChainedFunction(
    name="parse", operator_id="f", function=lambda batch: batch, policy=Skip(max_ratio=0.5)
)


@dataclass
class PlayedCoordinator:
    """Gives what the test has laid down."""

    barriers: list[Barrier] = field(default_factory=list)
    acks: list[Acknowledgement] = field(default_factory=list)
    committed: set[BatchKey] = field(default_factory=set)
    refusal: Exception | None = None
    poll_refusal: Exception | None = None
    looks: int = 0
    registered: list[RegionRegistration] = field(default_factory=list)

    def register_region(self, registration: RegionRegistration) -> None:
        self.registered.append(registration)

    def poll_barrier(
        self,
        region: str,
        attempt_id: int,
        *,
        wait_s: float,
        has_read: bool,
        until: Callable[[], bool],
    ) -> Barrier | None:
        if self.poll_refusal is not None:
            raise self.poll_refusal
        return self.barriers.pop(0) if self.barriers else None

    def wake_waiters(self) -> None:
        self.looks += 1

    def is_committed(self, batch: BatchKey) -> bool:
        return batch in self.committed

    def acknowledge(self, ack: Acknowledgement) -> None:
        self.acks.append(ack)
        if self.refusal is not None:
            raise self.refusal


def _barrier_service(
    coordinator: PlayedCoordinator, book: AttemptEpochs | None = None
) -> BarrierService:
    barrier_service = BarrierService(coordinator)  # type: ignore[arg-type]  # what the barrier service uses of it
    barrier_service.open(book or AttemptEpochs(region="main", attempt_id=7, functions=(_FUNCTION,)))
    return barrier_service


def _batch(batch_id: int) -> BatchKey:
    return BatchKey(region="main", attempt_id=7, batch_id=batch_id)


def _result(batch_id: int, *, read: int = 10, skipped: int = 1) -> EpochResult:
    return EpochResult(
        batch=_batch(batch_id),
        checkpoint_id=batch_id + 4,
        ranges=(split(0, 10 * batch_id, 10 * batch_id + 10),),
        committables=(committable(f"epoch {batch_id}"),),
        counts=(("f", RecordCounts(read=read, skipped=skipped, counters={"rejected": 2})),),
        examples=(("f", "orders-0@3 ValueError: no number"),),
        failed_rows=(("f", skipped),),
        stages=StageTimes(read_s=0.5, flush_s=0.25),
    )


def test_an_epoch_becomes_an_acknowledgement_with_its_ranges_counts_and_times() -> None:
    """The totals continue from the record that the attempt began with, and from epoch to epoch."""
    coordinator = PlayedCoordinator()
    barrier_service = _barrier_service(coordinator)
    barrier_service.acknowledge(_result(0))
    barrier_service.acknowledge(_result(1))
    first, second = coordinator.acks
    assert first.region.splits == (split(0, 0, 10),)
    assert first.region.batch_id == 0
    counters = {"rejected": 2}
    assert first.counts == {"parse": RecordCounts(read=10, skipped=1, counters=counters)}
    assert first.stages == StageTimes(read_s=0.5, flush_s=0.25)
    (totals,) = second.region.operator_states
    expected = RecordCounts(read=20, skipped=2, counters={"rejected": 4})
    assert decode_totals(totals) == expected


def test_an_epoch_that_is_reported_twice_counts_once() -> None:
    """An answer was lost: the same acknowledgement is passed on, and its records are not added."""
    coordinator = PlayedCoordinator(refusal=UnreachableError("busy", {}, ""))
    barrier_service = _barrier_service(coordinator)
    with pytest.raises(UnreachableError):
        barrier_service.acknowledge(_result(0))
    coordinator.refusal = None
    barrier_service.acknowledge(_result(0))
    assert coordinator.acks[0] == coordinator.acks[1]
    barrier_service.acknowledge(_result(1))
    (totals,) = coordinator.acks[-1].region.operator_states
    assert decode_totals(totals).read == 20


def test_an_epoch_that_an_earlier_coordinator_has_decided_counts_once() -> None:
    """It died before its answer, so the task repeats its epoch. The totals on record contain it."""
    record = RegionRecord(
        region="main",
        attempt_id=7,
        batch_id=5,
        splits=(split(0, 50, 60),),
        operator_states=totals_after((), {"f": RecordCounts(read=60)}),  # of epochs 0 to 5
    )
    coordinator = PlayedCoordinator()
    barrier_service = _barrier_service(
        coordinator, AttemptEpochs.resumed("main", 7, (_FUNCTION,), record)
    )
    barrier_service.acknowledge(_result(5))
    barrier_service.acknowledge(_result(6))
    repeated, new = coordinator.acks
    assert (repeated.batch, repeated.checkpoint_id) == (_batch(5), 9)
    assert repeated.region.operator_states == record.operator_states
    (totals,) = new.region.operator_states
    assert decode_totals(totals).read == 70


def test_too_many_failed_records_refuse_the_epoch() -> None:
    """Nothing of it is reported to the coordinator."""
    coordinator = PlayedCoordinator()
    with pytest.raises(PoisonRecordsError, match="no number"):
        _barrier_service(coordinator).acknowledge(_result(0, read=10_000, skipped=9_000))
    assert not coordinator.acks


def test_functions_that_count_nothing_are_in_no_counts() -> None:
    coordinator = PlayedCoordinator()
    plain = ChainedFunction(name="trim", operator_id="t", function=lambda batch: batch)
    book = AttemptEpochs(region="main", attempt_id=7, functions=(plain, _FUNCTION))
    barrier_service = _barrier_service(coordinator, book)
    barrier_service.acknowledge(replace(_result(0), counts=(), examples=(), failed_rows=()))
    (ack,) = coordinator.acks
    assert ack.counts == {"parse": RecordCounts()}
    assert [entry.operator_id for entry in ack.region.operator_states] == ["f"]


def test_dead_letters_that_are_read_again_refuse_the_epoch() -> None:
    """A pattern has found their topic after the start; nothing of it is reported."""
    coordinator = PlayedCoordinator()
    policy = DeadLetters(topic="input")
    function = ChainedFunction(
        name="parse", operator_id="f", function=lambda batch: batch, policy=policy
    )
    book = AttemptEpochs(region="main", attempt_id=7, functions=(function,))
    with pytest.raises(ConfigError, match="topics=input"):
        _barrier_service(coordinator, book).acknowledge(_result(0))
    assert not coordinator.acks


def test_what_is_committed_on_record_is_kept_no_longer() -> None:
    """An attempt may last for years, at ten epochs a second."""
    coordinator = PlayedCoordinator()
    barrier_service = _barrier_service(coordinator)
    for batch_id in range(3):
        barrier_service.acknowledge(_result(batch_id))
    coordinator.committed |= {_batch(0), _batch(1)}
    barrier_service.next_barrier("main", 7, wait_s=0.0, has_read=False)
    told = [committable(f"epoch {batch_id}") for batch_id in range(3)]
    assert barrier_service.commits.request(told).entries == {told[2]}


def test_who_is_no_continuous_region_is_heard_without_an_answer() -> None:
    """A micro-batch task reports of its waits by the same way; one without a book gets no barrier."""
    barrier_service = _barrier_service(PlayedCoordinator())
    barrier_service.note_heartbeat(BatchKey(region="of another engine", attempt_id=0, batch_id=0))
    with pytest.raises(FencedError, match="newest=None"):
        barrier_service.next_barrier("of another engine", 0, wait_s=0.0, has_read=False)


def test_a_task_is_heard_by_what_it_tells_beside_its_questions() -> None:
    """One that waits for brokers asks for no barrier yet; an older attempt's is not its."""
    for attempt_id, is_heard in ((6, False), (7, True)):
        book = AttemptEpochs(region="main", attempt_id=7)
        barrier_service = _barrier_service(PlayedCoordinator(), book)
        barrier_service.note_heartbeat(replace(_batch(0), attempt_id=attempt_id))
        assert book.heartbeat.has_begun is is_heard


def test_a_task_that_loads_its_state_may_take_long_as_long_as_it_makes_progress() -> None:
    """The core ends attempts that never poll, but for those that tell of another progress."""
    coordinator = PlayedCoordinator()
    barrier_service = _barrier_service(coordinator)
    for waits_for in (KEYED_STATE, "brokers", KEYED_STATE):
        barrier_service.note_heartbeat(_batch(0), waits_for)
    assert [each.replayed for each in coordinator.registered] == [1, 2]


def test_a_commit_hurries_no_barrier_and_a_barrier_no_task() -> None:
    barrier = Barrier(checkpoint_id=5, region="main", attempt_id=7, splits=(split(0, 10, 20),))
    coordinator = PlayedCoordinator()
    barrier_service = _barrier_service(coordinator)
    barrier_service.acknowledge(_result(0))
    barrier_service.commits.request([committable("epoch 0")])
    coordinator.barriers = [barrier]
    found = barrier_service.next_barrier("main", 7, wait_s=30.0, has_read=False)
    assert (found.barrier, found.to_commit) == (barrier, (0,))


def test_callback_after_commit_an_older_attempt_gets_no_barrier_and_is_not_heard() -> None:
    coordinator = PlayedCoordinator()
    barrier_service = _barrier_service(coordinator)
    barrier_service.open(AttemptEpochs(region="main", attempt_id=9))
    with pytest.raises(FencedError):
        barrier_service.next_barrier("main", 7, wait_s=0.0, has_read=False)
    with pytest.raises(FencedError):
        barrier_service.acknowledge(_result(0))
    assert not coordinator.acks


def test_outcome_from_broker_an_id_is_free_again_once_its_epoch_is_committed_on_record() -> None:
    coordinator = PlayedCoordinator()
    barrier_service = _barrier_service(coordinator)
    barrier_service.acknowledge(_result(0))
    assert barrier_service.next_barrier("main", 7, wait_s=0.0, has_read=False).committed_batch == -1
    coordinator.committed.add(_batch(0))
    barrier_service.acknowledge(_result(1))
    assert barrier_service.next_barrier("main", 7, wait_s=0.0, has_read=False).committed_batch == 0


def test_what_an_attempt_has_open_is_what_is_not_known_to_be_committed() -> None:
    coordinator = PlayedCoordinator()
    book = AttemptEpochs(region="main", attempt_id=7)
    barrier_service = _barrier_service(coordinator, book)
    barrier_service.acknowledge(_result(0))
    barrier_service.acknowledge(_result(1))
    assert [work.batch.batch_id for work in book.registration().open] == [0, 1]
    assert book.registration().acknowledged == 5
    coordinator.committed.add(_batch(0))
    barrier_service.next_barrier("main", 7, wait_s=0.0, has_read=False)
    assert [work.batch.batch_id for work in book.registration().open] == [1]


def test_an_attempt_that_is_being_stopped_reports_its_task() -> None:
    """At once, instead of a barrier; also one that waits for brokers, and asks for none."""
    book = AttemptEpochs(region="main", attempt_id=7)
    barrier_service = _barrier_service(PlayedCoordinator(), book)
    assert not barrier_service.is_stopping(_batch(0))
    assert barrier_service.is_stopping(replace(_batch(0), attempt_id=6))
    assert not barrier_service.is_stopping(replace(_batch(0), region="of another engine"))
    book.stop()
    assert barrier_service.next_barrier("main", 7, wait_s=30.0, has_read=False).is_over
    assert barrier_service.is_stopping(_batch(0))


def test_a_task_is_reported_what_to_commit_and_its_answer_is_heard() -> None:
    coordinator = PlayedCoordinator()
    barrier_service = _barrier_service(coordinator)
    barrier_service.acknowledge(_result(0))
    assert barrier_service.next_barrier("main", 7, wait_s=0.0, has_read=False).to_commit == ()
    asked = barrier_service.commits.request([committable("epoch 0"), committable("another one's")])
    assert asked.entries == {committable("epoch 0")}
    assert coordinator.looks == 1, "whoever waits for a barrier is woken"
    for _ in range(2):  # the first answer may be lost
        assert barrier_service.next_barrier("main", 7, wait_s=30.0, has_read=False).to_commit == (
            0,
        )
    told = [CommittedEpoch(batch_id=0, operators=("sink",))]
    found = barrier_service.next_barrier("main", 7, wait_s=0.0, has_read=False, committed=told)
    assert found.to_commit == ()
    assert asked.await_acknowledged(timeout_s=0.0) == asked.entries


def test_callback_after_commit_what_an_older_attempt_says_of_commits_is_not_heard() -> None:
    barrier_service = _barrier_service(PlayedCoordinator())
    barrier_service.open(AttemptEpochs(region="main", attempt_id=9))
    barrier_service.acknowledge(replace(_result(0), batch=replace(_batch(0), attempt_id=9)))
    asked = barrier_service.commits.request([committable("epoch 0")])
    told = [CommittedEpoch(batch_id=0, operators=("sink",))]
    with pytest.raises(FencedError):
        barrier_service.next_barrier("main", 7, wait_s=0.0, has_read=False, committed=told)
    assert asked.await_acknowledged(timeout_s=0.0) == frozenset()


@pytest.mark.parametrize("how", ["stopped", "fenced", "replaced"])
def test_an_attempt_that_is_over_is_not_asked_to_commit(how: str) -> None:
    coordinator = PlayedCoordinator()
    book = AttemptEpochs(region="main", attempt_id=7)
    barrier_service = _barrier_service(coordinator, book)
    barrier_service.acknowledge(_result(0))
    if how == "stopped":
        book.stop()
    elif how == "replaced":
        barrier_service.open(AttemptEpochs(region="main", attempt_id=9))
    else:
        coordinator.poll_refusal = FencedError("over", {}, "")
        with pytest.raises(FencedError):
            barrier_service.next_barrier("main", 7, wait_s=0.0, has_read=False)
    assert not barrier_service.commits.request([committable("epoch 0")]).entries


def test_a_task_that_owes_nothing_and_asks_nothing_is_missed() -> None:
    """Between two barriers no checkpoint's time-out watches over it; with one, that does."""
    coordinator, clock = PlayedCoordinator(), ManualClock()
    book = AttemptEpochs(
        region="main", attempt_id=7, functions=(_FUNCTION,), heartbeat=TaskHeartbeat(clock)
    )
    clock.advance(50.0)
    assert book.heartbeat.overdue_s() == 0.0, "it has not begun yet"
    book.next_barrier(coordinator, wait_s=0.0, has_read=False)  # type: ignore[arg-type]
    clock.advance(5.0)
    assert book.heartbeat.overdue_s() == 5.0
    coordinator.barriers.append(
        Barrier(checkpoint_id=4, region="main", attempt_id=7, splits=(split(0, 0, 10),))
    )
    book.next_barrier(coordinator, wait_s=0.0, has_read=True)  # type: ignore[arg-type]
    clock.advance(50.0)
    assert book.heartbeat.overdue_s() == 0.0
    book.acknowledge(coordinator, _result(0))  # type: ignore[arg-type]
    clock.advance(3.0)
    assert book.heartbeat.overdue_s() == 3.0
    with book.heartbeat.request():
        clock.advance(9.0)
        assert book.heartbeat.overdue_s() == 0.0, "a question that takes long is one that was asked"


def test_a_question_whose_answer_comes_after_its_epoch_owes_nothing() -> None:
    """The task had asked again meanwhile, and was given the same barrier: what it owed is reported."""
    coordinator, clock = PlayedCoordinator(), ManualClock()
    book = AttemptEpochs(
        region="main", attempt_id=7, functions=(_FUNCTION,), heartbeat=TaskHeartbeat(clock)
    )
    barrier_service = _barrier_service(coordinator, book)
    barrier = Barrier(checkpoint_id=4, region="main", attempt_id=7, splits=(split(0, 0, 10),))

    def late(region: str, attempt_id: int, **_: object) -> Barrier:
        barrier_service.acknowledge(_result(0))
        return barrier

    coordinator.poll_barrier = late  # type: ignore[method-assign]
    barrier_service.next_barrier("main", 7, wait_s=0.0, has_read=True)
    clock.advance(5.0)
    assert book.heartbeat.overdue_s() == 5.0
