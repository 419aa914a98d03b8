"""The loop of a continuous task and the ends of its epochs, over fake followers and writers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest

from sluice.runtime.continuous.checkpoint_client import EndedEpoch
from sluice.runtime.continuous.task_loop import EpochScope, TaskLoop
from sluice.runtime.contracts import RecordsRead
from sluice.runtime.errors import (
    DeliveryError,
    FencedError,
    IllegalTransitionError,
    UnreachableError,
)
from sluice.runtime.functions.function_run import ChainedFunction, FunctionRun
from sluice.runtime.functions.split_clocks import SplitClocks
from sluice.runtime.functions.task_writers import TaskWriters
from sluice.runtime.model.acknowledgement import StageTimes
from sluice.runtime.model.splits import Barrier, SplitRange
from tests.kit.continuous_parts import LogFollower, RecordingWriter
from tests.kit.coordinator.core_driver import split
from tests.kit.fakes import ManualClock


@dataclass
class HandCourier:
    """A checkpoint client whose barriers the test gives, and whose ended epochs it takes."""

    barrier: Barrier | None = None
    ended: list[EndedEpoch] = field(default_factory=list)
    committed_batch: int = -1
    is_over: bool = False
    is_closed: bool = False
    has_read: bool = False
    error: BaseException | None = None

    def start(self) -> None:
        """Nothing to begin."""

    def take_barrier(self) -> Barrier | None:
        if self.error is not None:
            raise self.error
        barrier, self.barrier = self.barrier, None
        return barrier

    def submit_epoch(self, ended: EndedEpoch) -> None:
        self.ended.append(ended)

    def close(self) -> None:
        self.is_closed = True


class Bench:
    """A loop with its parts."""

    def __init__(
        self,
        logs: Mapping[int, int],
        functions: Callable[[], FunctionRun] = FunctionRun,
        clock: ManualClock | None = None,
        clocks: SplitClocks | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self.checkpoint_client = HandCourier()
        self.follower = LogFollower([split(p, 0, 0) for p in logs], dict(logs))
        self.scopes: list[EpochScope] = []
        self.writers: list[RecordingWriter] = []
        self.loop = TaskLoop(
            "main",
            7,
            stream=self.follower,
            client=self.checkpoint_client,  # type: ignore[arg-type]  # what the loop uses of it
            open_writers=self._open,
            functions=functions,
            clocks=clocks,
            begins_after=3,
            clock=self.clock,
        )

    def _open(self, scope: EpochScope) -> TaskWriters[RecordingWriter]:
        self.scopes.append(scope)
        self.writers.append(RecordingWriter(scope))
        return TaskWriters({"sink": self.writers[-1]}, dead_letter_sink=None)

    def looks(self, seconds: float) -> None:
        """Time in which the task looks for records, and does nothing else."""
        for _ in range(round(seconds)):
            self.clock.advance(1.0)
            self.loop.step()

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.loop.step()

    def give(self, checkpoint_id: int, *splits: SplitRange, **time: int | None) -> None:
        self.checkpoint_client.barrier = Barrier(
            checkpoint_id=checkpoint_id,
            region="main",
            attempt_id=7,
            splits=splits,
            **time,  # type: ignore[arg-type]
        )


@pytest.mark.parametrize(
    ("read", "cut_at", "expected"),
    [
        (RecordsRead(10, 7), 5, (7, None)),
        (RecordsRead(9, 2), 90, (2, 9)),
        (None, 90, (3, 0)),
        (RecordsRead(10, None), 10, (3, None)),
        (RecordsRead(10, None), 5, (None, None)),
        (RecordsRead(9, None), 5, (None, None)),
    ],
    ids=["a record", "markers", "markers alone", "known to the cut", "nobody knows", "nor behind"],
)
def test_a_position_is_of_the_leader_that_wrote_the_last_record(
    read: RecordsRead | None, cut_at: int, expected: tuple[int | None, int | None]
) -> None:
    bench = Bench({0: 10})
    if read is None:
        bench.follower.markers.add(0)
    else:
        bench.follower.read[0] = read
    bench.step()
    bench.give(4, replace(split(0, 0, cut_at), leader_epoch=3))
    bench.step()
    (ended,) = bench.checkpoint_client.ended
    (found,) = ended.pre_commit().ranges
    assert (found.start_offset, found.end_offset) == (0, 10)
    assert (found.leader_epoch, found.leader_epoch_end) == expected


def test_the_stages_of_an_epoch_have_the_time_that_they_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The flush is in another thread, and only of the epoch that has ended."""
    clock = ManualClock()

    def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
        clock.advance(10.0)
        return batch

    function = ChainedFunction(name="f", operator_id="f", function=slow)
    bench = Bench({0: 20}, lambda: FunctionRun([function]), clock=clock)
    for at, (thing, name) in enumerate(
        [(LogFollower, "poll"), (RecordingWriter, "write"), (RecordingWriter, "pre_commit")]
    ):
        takes(thing, name, clock, seconds=10.0**at, monkeypatch=monkeypatch)
    bench.step()
    clock.advance(1_000.0)  # between two polls
    bench.give(4, split(0, 0, 5))
    bench.step()
    (ended,) = bench.checkpoint_client.ended
    clock.advance(1_000.0)  # before the client takes it
    assert ended.pre_commit().stages == StageTimes(
        read_s=2.0, function_s=20.0, write_s=20.0, flush_s=100.0
    )


def takes(
    thing: type, name: str, clock: ManualClock, *, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The method takes so long."""
    method = getattr(thing, name)

    def slow(self: object, *given: object) -> object:
        clock.advance(seconds)
        return method(self, *given)

    monkeypatch.setattr(thing, name, slow)


@pytest.mark.parametrize(("barrier_of", "ends"), [(6, False), (7, True), (None, True)])
def test_what_a_leader_wrote_that_was_elected_after_the_cut_is_in_no_decision(
    barrier_of: int | None, ends: bool
) -> None:
    bench = Bench({0: 10})
    bench.follower.read[0] = RecordsRead(10, 7, first_epoch=7)
    bench.step()
    bench.give(4, replace(split(0, 0, 5), leader_epoch=barrier_of))
    if ends:
        bench.step()
        (ended,) = bench.checkpoint_client.ended
        assert ended.pre_commit().ranges[0].leader_epoch == 7
        return
    with pytest.raises(UnreachableError, match="barrier_leader_epoch=6"):
        bench.step()
    assert bench.checkpoint_client.ended == []


def test_continuous_order_the_sinks_have_the_old_epoch_before_the_new_one_is_written() -> None:
    bench = Bench({0: 100})
    bench.step(2)
    bench.give(4, split(0, 0, 50))
    bench.step(3)
    assert bench.writers[0].events[-1] == "end"
    assert bench.writers[1].events == ["write", "write"]


def test_a_barrier_waits_until_there_is_something_to_end() -> None:
    bench = Bench({0: 0})
    bench.give(4, split(0, 0, 5))
    bench.step(3)
    assert not bench.checkpoint_client.ended
    bench.follower.logs[0] = 5
    bench.step(2)
    assert len(bench.checkpoint_client.ended) == 1


def test_an_epoch_that_is_asked_for_without_records_ends_at_once() -> None:
    """A barrier of empty ranges has nothing to wait for."""
    bench = Bench({0: 0})
    bench.give(4, split(0, 0, 0))
    bench.step()
    assert [s.is_empty for s in bench.checkpoint_client.ended[0].pre_commit().ranges] == [True]


def test_a_new_split_joins_the_epoch_where_it_begins() -> None:
    """Nothing that was read before is read again."""
    bench = Bench({0: 30})
    bench.step(2)
    bench.follower.logs[1] = 20
    bench.give(4, split(0, 0, 30), split(1, 5, 20))
    bench.step()
    (ended,) = bench.checkpoint_client.ended
    ranges = {s.partition: (s.start_offset, s.end_offset) for s in ended.pre_commit().ranges}
    assert ranges == {0: (0, 20), 1: (5, 15)}
    bench.step(4)
    assert sorted(bench.writers[1].records) == [(0, n) for n in range(20, 30)] + [
        (1, n) for n in range(15, 20)
    ]


def test_markers_after_the_last_record_are_passed_again_where_splits_are_assigned_again() -> None:
    """Another consumer believes the place that it is given."""
    bench = Bench({0: 10, 1: 8})
    bench.follower.read[0] = RecordsRead(7, 3)
    bench.follower.markers.add(1)
    bench.step(2)
    bench.loop._adopt(  # noqa: SLF001 - where it continues, before it reads
        Barrier(
            checkpoint_id=4,
            region="main",
            attempt_id=7,
            splits=(split(0, 0, 10), split(1, 0, 8), split(2, 5, 5)),
        )
    )
    assert {key[2]: at for key, at in bench.follower.positions().items()} == {0: 7, 1: 0, 2: 5}


@pytest.mark.parametrize(("barriers", "restarts"), [((3, 3), 0), ((3, 4, 4), 1), ((None, 4), 0)])
def test_markers_that_an_earlier_leader_wrote_are_passed_again_under_the_next_one(
    barriers: tuple[int | None, ...], restarts: int
) -> None:
    """Its log may have records in their place, and the epoch would end after these as its own: it
    would never be asked what it lacks."""
    bench = Bench({0: 0})
    bench.follower.markers.add(0)
    restarted = []
    restart_at = bench.follower.restart_at
    bench.follower.restart_at = lambda splits: restarted.append(splits) or restart_at(splits)  # type: ignore[method-assign, func-returns-value]  # and counts
    for number, leader in enumerate(barriers):
        bench.follower.logs[0] += 10
        bench.step()
        end = 10 * (number + 1)
        bench.give(4 + number, replace(split(0, end - 10, end), leader_epoch=leader))
        bench.step(3)
    assert len(restarted) == restarts
    assert [split.start_offset for (split,) in restarted] == [10] * restarts
    ends = [ended.pre_commit().ranges[0].end_offset for ended in bench.checkpoint_client.ended]
    assert ends == [10 * (number + 1) for number in range(len(barriers))]


def test_a_split_of_which_nothing_comes_ends_the_task_by_name() -> None:
    bench = Bench({0: 100_000, 1: 0})
    for checkpoint_id in range(4, 7):
        bench.step(2)
        start = bench.follower.positions()[("source", "input", 0)]
        ends = {
            at.partition: at.end_offset
            for each in bench.checkpoint_client.ended
            for at in each.pre_commit().ranges
        }
        bench.give(checkpoint_id, split(0, ends.get(0, 0), 100_000), split(1, 0, 5))
        bench.step()
        assert bench.follower.positions()[("source", "input", 0)] > start
        bench.looks(50.0)
    bench.give(7, split(0, start + 10, 100_000), split(1, 0, 5))
    with pytest.raises(UnreachableError, match="input-1"):
        bench.step()


def test_a_split_of_which_aborted_records_are_fetched_is_not_silent() -> None:
    """They come for as long as fetching them takes, and the task sees none of them."""
    bench = Bench({0: 0})
    bench.give(4, split(0, 0, 100))
    bench.follower.skipping = {0}
    bench.looks(1_000.0)
    bench.follower.skipping = set()
    with pytest.raises(UnreachableError, match="input-0"):
        bench.looks(130.0)


def test_a_split_that_begins_further_on_takes_the_epoch_with_it() -> None:
    """It was another region's meanwhile, whose records are decided; or retention took them."""
    bench = Bench({0: 30})
    bench.step()
    bench.give(4, split(0, 4, 30))
    bench.step(2)
    assert bench.writers[0].events[-1] == "abort"
    assert bench.writers[1].records[0] == (0, 4)


def test_an_error_aborts_the_epoch_that_is_written_and_not_the_one_that_has_ended() -> None:
    bench = Bench({0: 100})
    bench.step()
    bench.give(4, split(0, 0, 50))
    bench.step()
    bench.checkpoint_client.error = FencedError("over", {}, "")
    with pytest.raises(FencedError):
        bench.loop.run()
    assert bench.writers[0].events[-1] == "end"
    assert bench.writers[1].events[-1] == "abort"
    assert bench.checkpoint_client.is_closed


def test_an_error_of_a_function_has_what_the_epoch_has_read() -> None:
    """These batches lack their offsets; else it has those of the batch."""

    def fail(_batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("no")

    function = ChainedFunction(name="f", operator_id="f", function=fail)
    bench = Bench({0: 100}, lambda: FunctionRun([function]))
    with pytest.raises(ValueError, match="no") as caught:
        bench.step()
    assert caught.value.__notes__ == ["sluice: source_ranges=input-0[0,10)"]


def test_a_task_whose_abort_fails_leaves_no_courier_after() -> None:
    """It would ask on in its worker, as if the attempt continued."""
    bench = Bench({0: 100})
    bench.step()
    bench.checkpoint_client.error = FencedError("over", {}, "")

    def broken() -> None:
        raise MemoryError

    bench.writers[0].abort = broken  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        bench.loop.run()
    assert bench.checkpoint_client.is_closed


def test_pre_commit_confirmed_an_epoch_whose_pre_commit_fails_is_aborted_and_never_reported() -> (
    None
):
    bench = Bench({0: 100})
    bench.step()
    bench.writers[0].failure = DeliveryError("too large", {}, "")
    bench.give(4, split(0, 0, 50))
    bench.step()
    with pytest.raises(DeliveryError):
        bench.checkpoint_client.ended[0].pre_commit()
    assert bench.writers[0].events[-1] == "abort"


def test_an_epoch_of_several_sinks_reports_which_commits_were_acknowledged() -> None:
    bench = Bench({0: 100})
    bench.step(2)
    bench.give(4, split(0, 0, 50))
    bench.step()
    (ended,) = bench.checkpoint_client.ended
    ended.pre_commit()
    assert ended.commit(timeout_s=1.0) == ("sink",)
    bench.writers[0].on_commit = lambda: False
    assert ended.commit(timeout_s=1.0) == ()
    ended.release()
    assert bench.writers[0].events[-3:] == ["commit", "commit", "release"]


def test_sinks_are_reported_the_ranges_that_were_read_and_of_no_other() -> None:
    """A transaction that is lost is written again, or accepted, by them."""
    bench = Bench({0: 30, 1: 0})
    bench.step()
    bench.give(4, split(0, 0, 30), split(1, 0, 0))
    bench.step()
    (told,) = bench.writers[0].ranges
    assert (told.partition, told.start_offset, told.end_offset) == (0, 0, 20)


def test_an_ended_epoch_that_nobody_takes_is_aborted_at_its_sinks() -> None:
    bench = Bench({0: 30})
    bench.step()
    bench.give(4, split(0, 0, 30))
    bench.step()
    bench.checkpoint_client.ended[0].abort()
    assert bench.writers[0].events[-1] == "abort"
    assert bench.writers[1].events == []


def test_an_epoch_that_ends_before_it_begins_is_never_reported() -> None:
    """A position that went back: its range would be decided over another's."""
    bench = Bench({0: 100, 1: 100})
    bench.step(2)
    bench.give(4, split(0, 0, 10), split(1, 0, 10))
    bench.step()
    bench.follower.restart_at([split(0, 0, 100), split(1, 20, 100)])
    bench.follower.logs = {0: 0, 1: 100}
    bench.give(5, *(replace(s, start_offset=s.end_offset, end_offset=100) for s in _ranges(bench)))
    with pytest.raises(IllegalTransitionError, match="ends before its start offset"):
        bench.step()
    assert len(bench.checkpoint_client.ended) == 1


def _ranges(bench: Bench) -> tuple[SplitRange, ...]:
    return bench.checkpoint_client.ended[-1].pre_commit().ranges


def test_a_split_that_has_nothing_to_read_is_not_silent() -> None:
    bench = Bench({0: 100_000, 1: 5})
    bench.step(3)
    bench.give(4, split(0, 0, 100_000), split(1, 0, 5))
    bench.step()
    for checkpoint_id in range(5, 9):
        starts = {s.partition: s.end_offset for s in _ranges(bench)}
        assert starts[1] == 5
        bench.looks(60.0)
        bench.give(checkpoint_id, split(0, starts[0], 100_000), split(1, 5, 5))
        bench.step()
    assert len(bench.checkpoint_client.ended) == 5


def test_markers_after_an_earlier_epochs_records_are_of_the_barriers_leader() -> None:
    bench = Bench({0: 10})
    bench.follower.read[0] = RecordsRead(10, 7)
    bench.step()
    bench.give(4, replace(split(0, 0, 10), leader_epoch=7))
    bench.step()
    bench.follower.logs[0] = 20
    bench.give(5, replace(split(0, 10, 20), leader_epoch=8))
    bench.step(3)
    (found,) = _ranges(bench)
    assert (found.start_offset, found.end_offset) == (10, 20)
    assert (found.leader_epoch, found.leader_epoch_end) == (8, 10)
