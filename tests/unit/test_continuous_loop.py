"""The loop of a continuous task, over a follower and writers that are played."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest

from runtime.continuous.courier import Courier, EndedEpoch
from runtime.continuous.loop import EpochScope, TaskLoop
from runtime.continuous.messages import CommittedEpoch, EpochResult, NextBarrier
from runtime.contracts import RecordsRead
from runtime.errors import DeliveryError, FencedError, UnreachableError
from runtime.model import Barrier, BatchKey, SplitRange
from runtime.poison import FunctionRun
from runtime.task_writers import TaskWriters
from tests.continuous_parts import LogFollower, RecordingWriter
from tests.core_driver import split
from tests.fakes import ManualClock
from tests.waiting import wait_for


@dataclass
class HandCourier:
    """A courier whose barriers the test gives, and whose ended epochs it takes."""

    barrier: Barrier | None = None
    ended: list[EndedEpoch] = field(default_factory=list)
    committed_batch: int = -1
    is_over: bool = False
    is_closed: bool = False
    has_read: bool = False
    error: BaseException | None = None

    def start(self) -> None:
        """Nothing to begin."""

    def take(self) -> Barrier | None:
        if self.error is not None:
            raise self.error
        barrier, self.barrier = self.barrier, None
        return barrier

    def hand_over(self, ended: EndedEpoch) -> None:
        self.ended.append(ended)

    def close(self) -> None:
        self.is_closed = True


class Bench:
    """A loop with its parts."""

    def __init__(self, logs: Mapping[int, int]) -> None:
        self.clock = ManualClock()
        self.courier = HandCourier()
        self.follower = LogFollower([split(p, 0, 0) for p in logs], dict(logs))
        self.scopes: list[EpochScope] = []
        self.writers: list[RecordingWriter] = []
        self.loop = TaskLoop(
            "main",
            7,
            follower=self.follower,
            courier=self.courier,  # type: ignore[arg-type]  # what the loop uses of it
            open_writers=self._open,
            functions=FunctionRun,
            begins_after=3,
            clock=self.clock,
        )

    def _open(self, scope: EpochScope) -> TaskWriters[RecordingWriter]:
        self.scopes.append(scope)
        self.writers.append(RecordingWriter(scope))
        return TaskWriters({"sink": self.writers[-1]}, dead_letter_sink=None)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.loop.step()

    def give(self, checkpoint_id: int, *splits: SplitRange) -> None:
        self.courier.barrier = Barrier(
            checkpoint_id=checkpoint_id, region="main", generation=7, splits=splits
        )


def test_a_barrier_ends_the_epoch_where_it_is_and_the_next_one_begins_there() -> None:
    """Neither what was cut nor what lies ahead matters: the ranges say what was read."""
    bench = Bench({0: 100, 1: 100})
    bench.step(3)  # ten records each
    bench.give(4, split(0, 0, 1), split(1, 0, 90))
    bench.step()
    read = bench.follower.positions()
    (ended,) = bench.courier.ended
    result = ended.pre_commit()
    assert {s.key: (s.start_offset, s.end_offset) for s in result.ranges} == {
        key: (0, end) for key, end in read.items()
    }
    assert result.checkpoint_id == 4
    assert result.batch.batch_id == 0
    assert bench.scopes[1].batch.batch_id == 1
    assert bench.scopes[1].checkpoint_id == 5
    first, second = bench.writers
    assert first.events == ["write", "write", "write", "write", "end", "pre-commit"]
    assert sorted(first.records + second.records) == sorted(set(first.records + second.records))


@pytest.mark.parametrize(
    ("read", "cut_at", "expected"),
    [
        (RecordsRead(10, 7), 5, (7, None)),
        (RecordsRead(9, 2), 90, (2, 9)),
        (None, 90, (3, 0)),
        (RecordsRead(10, None), 10, (3, None)),
        (RecordsRead(10, None), 5, (None, None)),
    ],
    ids=["a record", "markers", "markers alone", "known to the cut", "nobody knows"],
)
def test_a_position_is_of_the_leader_that_wrote_the_last_record(
    read: RecordsRead | None, cut_at: int, expected: tuple[int | None, int | None]
) -> None:
    """Whose log has it, is known; of markers behind it nobody tells who wrote them, and the leader
    that the barrier is of may never have had what the task has read."""
    bench = Bench({0: 10})
    if read is not None:
        bench.follower.read[0] = read
    bench.step()
    bench.give(4, replace(split(0, 0, cut_at), leader_epoch=3))
    bench.step()
    (ended,) = bench.courier.ended
    (found,) = ended.pre_commit().ranges
    assert (found.start_offset, found.end_offset) == (0, 10)
    assert (found.leader_epoch, found.leader_epoch_end) == expected


def test_rule_18_the_sinks_have_the_old_epoch_before_the_new_one_is_written() -> None:
    """Else records of one partition would change places."""
    bench = Bench({0: 100})
    bench.step(2)
    bench.give(4, split(0, 0, 50))
    bench.step(3)
    assert bench.writers[0].events[-1] == "end"
    assert bench.writers[1].events == ["write", "write"]


@pytest.mark.parametrize(
    ("records", "value_bytes", "at_once"),
    [(0, 0, False), (10, 100, False), (1_000, 10, True), (10, 10_000, True), (999, 50, False)],
)
def test_a_task_rests_behind_few_small_records_alone(
    records: int, value_bytes: int, at_once: bool
) -> None:
    """A batch of large records has few, however many wait: 10 KB came at 55 MB/s."""
    bench = Bench({0: 0})
    batch = pa.RecordBatch.from_pydict(
        {
            "partition": [0] * records,
            "offset": list(range(records)),
            "value": [b"x" * value_bytes] * records,
        }
    )
    bench.follower.poll = lambda: batch if records else None  # type: ignore[method-assign]
    assert bench.loop.step() is at_once


def test_a_barrier_waits_until_there_is_something_to_end() -> None:
    """What the driver has seen may not have been fetched yet."""
    bench = Bench({0: 0})
    bench.give(4, split(0, 0, 5))
    bench.step(3)
    assert not bench.courier.ended
    bench.follower.logs[0] = 5
    bench.step(2)
    assert len(bench.courier.ended) == 1


def test_an_epoch_that_is_asked_for_without_records_ends_at_once() -> None:
    """A barrier of empty ranges has nothing to wait for."""
    bench = Bench({0: 0})
    bench.give(4, split(0, 0, 0))
    bench.step()
    assert [s.is_empty for s in bench.courier.ended[0].pre_commit().ranges] == [True]


def test_a_new_split_joins_the_epoch_where_it_begins() -> None:
    """Nothing that was read before is read again."""
    bench = Bench({0: 30})
    bench.step(2)
    bench.follower.logs[1] = 20
    bench.give(4, split(0, 0, 30), split(1, 5, 20))
    bench.step()
    (ended,) = bench.courier.ended
    ranges = {s.partition: (s.start_offset, s.end_offset) for s in ended.pre_commit().ranges}
    assert ranges == {0: (0, 20), 1: (5, 15)}
    bench.step(4)
    assert sorted(bench.writers[1].records) == [(0, n) for n in range(20, 30)] + [
        (1, n) for n in range(15, 20)
    ]


def test_a_split_of_which_nothing_comes_ends_the_task_by_name() -> None:
    """The driver can read it and this host cannot: the others must not hide that."""
    bench = Bench({0: 100_000, 1: 0})
    for checkpoint_id in range(4, 7):
        bench.step(2)
        start = bench.follower.positions()[("source", "input", 0)]
        ends = {
            at.partition: at.end_offset
            for each in bench.courier.ended
            for at in each.pre_commit().ranges
        }
        bench.give(checkpoint_id, split(0, ends.get(0, 0), 100_000), split(1, 0, 5))
        bench.step()
        assert bench.follower.positions()[("source", "input", 0)] > start
        bench.clock.advance(50.0)
    bench.give(7, split(0, start + 10, 100_000), split(1, 0, 5))
    with pytest.raises(UnreachableError, match="input-1"):
        bench.step()


def test_a_split_that_was_given_away_takes_the_epoch_with_it() -> None:
    """Its records are another region's by now: all of the epoch is read again without them."""
    bench = Bench({0: 30, 1: 30})
    bench.step(4)
    bench.give(4, split(0, 0, 30))
    bench.step(2)
    assert bench.writers[0].events[-1] == "abort"
    bench.step(3)
    (ended,) = bench.courier.ended
    result = ended.pre_commit()
    assert [(s.partition, s.start_offset) for s in result.ranges] == [(0, 0)]
    assert {partition for partition, _ in bench.writers[1].records} == {0}
    assert result.batch.batch_id == 1, "the aborted one's batch id is never used again"


def test_a_log_that_was_cut_off_is_read_again_from_where_the_barrier_says() -> None:
    """The coordinator has judged it; what the task had read there does not exist any more."""
    bench = Bench({0: 30})
    bench.step(2)
    bench.give(4, split(0, 0, 20))
    bench.step()
    bench.give(5, split(0, 12, 30))
    bench.step(2)
    assert bench.writers[1].events[-1] == "abort"
    assert bench.writers[2].records[0] == (0, 12)


def test_a_split_that_begins_further_on_takes_the_epoch_with_it() -> None:
    """It was another region's meanwhile, whose records are decided; or retention took them."""
    bench = Bench({0: 30})
    bench.step()
    bench.give(4, split(0, 4, 30))
    bench.step(2)
    assert bench.writers[0].events[-1] == "abort"
    assert bench.writers[1].records[0] == (0, 4)


def test_an_error_aborts_the_epoch_that_is_written_and_not_the_one_that_has_ended() -> None:
    """That one may be acknowledged, and decided, by now."""
    bench = Bench({0: 100})
    bench.step()
    bench.give(4, split(0, 0, 50))
    bench.step()
    bench.courier.error = FencedError("over", {}, "")
    with pytest.raises(FencedError):
        bench.loop.run()
    assert bench.writers[0].events[-1] == "end"
    assert bench.writers[1].events[-1] == "abort"
    assert bench.courier.is_closed


def test_rule_1_an_epoch_whose_pre_commit_fails_is_aborted_and_never_told() -> None:
    """The task ends with the error."""
    bench = Bench({0: 100})
    bench.step()
    bench.writers[0].failure = DeliveryError("too large", {}, "")
    bench.give(4, split(0, 0, 50))
    bench.step()
    with pytest.raises(DeliveryError):
        bench.courier.ended[0].pre_commit()
    assert bench.writers[0].events[-1] == "abort"


# --- the courier ----------------------------------------------------------------------------------


@dataclass
class PlayedLink:
    """Answers as the test has laid down; an exception is raised."""

    answers: list[NextBarrier | Exception] = field(default_factory=list)
    acks: list[EpochResult] = field(default_factory=list)
    refusals: list[Exception] = field(default_factory=list)
    asked: int = 0
    committed: list[CommittedEpoch] = field(default_factory=list)
    on_silence: Callable[[], None] = lambda: None

    def next_barrier(
        self,
        region: str,
        generation: int,
        *,
        wait_s: float,
        has_read: bool,
        committed: Sequence[CommittedEpoch] = (),
    ) -> NextBarrier:
        self.asked += 1
        answer = self.answers.pop(0) if self.answers else NextBarrier(barrier=None, is_over=True)
        if isinstance(answer, Exception):
            self.on_silence()
            raise answer
        self.committed += committed
        return answer

    def acknowledge_epoch(self, result: EpochResult) -> None:
        if self.refusals:
            self.on_silence()
            raise self.refusals.pop(0)
        self.acks.append(result)


@dataclass
class PlayedEpoch:
    """An ended epoch whose batch id is that of its checkpoint; it remembers what became of it."""

    checkpoint_id: int
    events: list[str] = field(default_factory=list)

    def pre_commit(self) -> EpochResult:
        self.events.append("pre-commit")
        return _result(self.checkpoint_id)

    def commit(self, *, timeout_s: float) -> tuple[str, ...]:
        del timeout_s
        self.events.append("commit")
        return ("sink",)

    def release(self) -> None:
        self.events.append("release")


def _courier(link: PlayedLink, clock: ManualClock) -> Courier:
    return Courier(link, "main", 7, lost_timeout_s=60.0, clock=clock)


def _barrier(checkpoint_id: int) -> NextBarrier:
    barrier = Barrier(
        checkpoint_id=checkpoint_id, region="main", generation=7, splits=(split(0, 0, 5),)
    )
    return NextBarrier(barrier=barrier, committed_batch=checkpoint_id - 2)


def _taken(courier: Courier) -> Barrier:
    found: list[Barrier] = []

    def has_come() -> bool:
        barrier = courier.take()
        if barrier is not None:
            found.append(barrier)
        return bool(found)

    wait_for(has_come)
    return found[0]


def _result(checkpoint_id: int) -> EpochResult:
    batch = BatchKey(region="main", generation=7, batch_id=checkpoint_id)
    return EpochResult(batch=batch, checkpoint_id=checkpoint_id, ranges=())


def test_the_next_barrier_is_asked_for_once_the_last_epoch_is_acknowledged() -> None:
    """So acknowledgements keep their order."""
    link = PlayedLink(answers=[_barrier(4), _barrier(5)])
    courier = _courier(link, ManualClock())
    courier.start()
    assert _taken(courier).checkpoint_id == 4
    assert link.asked == 1
    courier.hand_over(PlayedEpoch(4))
    assert _taken(courier).checkpoint_id == 5
    assert courier.committed_batch == 3
    courier.hand_over(PlayedEpoch(5))
    wait_for(lambda: courier.is_over)
    assert [ack.checkpoint_id for ack in link.acks] == [4, 5]


def test_a_silent_coordinator_is_asked_again_and_the_acknowledgement_is_kept() -> None:
    """A lost answer is no reason to write an epoch again."""
    silence = UnreachableError("silent", {}, "")
    link = PlayedLink(answers=[silence, silence, _barrier(4)], refusals=[silence, silence])
    courier = _courier(link, ManualClock())
    courier.start()
    _taken(courier)
    courier.hand_over(PlayedEpoch(4))
    wait_for(lambda: courier.is_over)
    assert [ack.checkpoint_id for ack in link.acks] == [4]


def test_a_coordinator_that_stays_silent_ends_the_task() -> None:
    """After ``coordinator_lost_timeout_s``, and not before."""
    clock = ManualClock()
    link = PlayedLink(
        answers=[UnreachableError("silent", {}, "") for _ in range(100)],
        on_silence=lambda: clock.advance(7.0),
    )
    courier = _courier(link, clock)
    courier.start()
    wait_for(lambda: _has_failed(courier))
    assert 8 <= link.asked <= 10
    with pytest.raises(UnreachableError, match="silent for too long"):
        courier.take()


def test_a_superseded_coordinator_ends_the_task_at_once() -> None:
    """Nothing is asked twice of one that says so."""
    link = PlayedLink(answers=[FencedError("another one leads", {}, "")])
    courier = _courier(link, ManualClock())
    courier.start()
    wait_for(lambda: _has_failed(courier))
    assert link.asked == 1


def test_what_is_decided_is_committed_once_and_told_with_the_next_question() -> None:
    """Between two barriers; its producer carries nothing more."""
    told = NextBarrier(barrier=None, to_commit=(4,))
    link = PlayedLink(answers=[_barrier(4), told, told, _barrier(5)])
    courier = _courier(link, ManualClock())
    epochs = [PlayedEpoch(4), PlayedEpoch(5)]
    courier.start()
    for epoch in epochs:
        assert _taken(courier).checkpoint_id == epoch.checkpoint_id
        courier.hand_over(epoch)
    wait_for(lambda: courier.is_over)
    courier.close()
    assert epochs[0].events == ["pre-commit", "commit"]
    assert link.committed == [
        CommittedEpoch(batch_id=4, operators=("sink",)),
        CommittedEpoch(batch_id=4),  # asked for once more: nothing is left that could tell
    ]


def test_what_a_lost_answer_told_is_told_again() -> None:
    """Until the coordinator has heard it."""
    silence = UnreachableError("silent", {}, "")
    told = NextBarrier(barrier=None, to_commit=(4,))
    link = PlayedLink(answers=[_barrier(4), told, silence, silence])
    courier = _courier(link, ManualClock())
    courier.start()
    _taken(courier)
    courier.hand_over(PlayedEpoch(4))
    wait_for(lambda: courier.is_over)
    assert link.committed == [CommittedEpoch(batch_id=4, operators=("sink",))]


def test_a_barrier_beside_a_commit_is_given_first() -> None:
    """The task ends its epoch while the last one is committed; that is told before the next one."""
    both = replace(_barrier(5), to_commit=(4,))
    link = PlayedLink(answers=[_barrier(4), both, _barrier(5)])
    courier = _courier(link, ManualClock())
    epoch = PlayedEpoch(4)
    courier.start()
    _taken(courier)
    courier.hand_over(epoch)
    assert _taken(courier).checkpoint_id == 5
    wait_for(lambda: link.committed, what="the commit, told before the epoch has ended")
    assert [ack.checkpoint_id for ack in link.acks] == [4]
    courier.hand_over(PlayedEpoch(5))
    wait_for(lambda: courier.is_over)
    assert [ack.checkpoint_id for ack in link.acks] == [4, 5]


def test_rule_5_what_the_driver_has_finished_is_let_go_and_not_committed_again() -> None:
    """It is committed on record: a late EndTxn of this producer must not be sent."""
    link = PlayedLink(answers=[_barrier(4), NextBarrier(barrier=None, committed_batch=4)])
    courier = _courier(link, ManualClock())
    epoch = PlayedEpoch(4)
    courier.start()
    _taken(courier)
    courier.hand_over(epoch)
    wait_for(lambda: courier.is_over)
    assert epoch.events == ["pre-commit", "release"]


def test_a_task_that_ends_lets_go_of_what_is_not_decided() -> None:
    """And ends nothing of it: whether it is decided, its coordinator knows."""
    link = PlayedLink(answers=[_barrier(4), FencedError("over", {}, "")])
    courier = _courier(link, ManualClock())
    epoch = PlayedEpoch(4)
    courier.start()
    _taken(courier)
    courier.hand_over(epoch)
    wait_for(lambda: _has_failed(courier))
    wait_for(lambda: epoch.events == ["pre-commit", "release"])


def test_an_epoch_of_several_sinks_tells_which_commits_were_acknowledged() -> None:
    """One by one, each within what is left of the time."""
    bench = Bench({0: 100})
    bench.step(2)
    bench.give(4, split(0, 0, 50))
    bench.step()
    (ended,) = bench.courier.ended
    ended.pre_commit()
    assert ended.commit(timeout_s=1.0) == ("sink",)
    bench.writers[0].on_commit = lambda: False
    assert ended.commit(timeout_s=1.0) == ()
    ended.release()
    assert bench.writers[0].events[-3:] == ["commit", "commit", "release"]


def _has_failed(courier: Courier) -> bool:
    try:
        courier.take()
    except (FencedError, UnreachableError):
        return True
    return False
