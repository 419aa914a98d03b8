"""The loop of a continuous task with keyed state: state and output of an epoch are of one range."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from sluice.runtime.continuous.checkpoint_client import EndedEpoch
from sluice.runtime.continuous.task_loop import EpochScope, TaskLoop
from sluice.runtime.continuous.task_messages import EpochResult
from sluice.runtime.contracts import ContinuousWriter
from sluice.runtime.errors import IllegalTransitionError, StorageError
from sluice.runtime.functions.function_run import FunctionRun
from sluice.runtime.functions.task_writers import TaskWriters
from sluice.runtime.keyed.keyed_task import KeyedTask
from sluice.runtime.model.splits import Barrier, SplitRange
from sluice.runtime.model.state.keyed_state import KeyedState
from tests.kit.continuous_parts import LogFollower, RecordingWriter
from tests.kit.coordinator.core_driver import split
from tests.kit.fakes import ManualClock
from tests.kit.keyed_parts import PlayedStateFiles, counting, counts_in


@dataclass
class HandCourier:
    """A checkpoint client whose barriers the test gives, and whose ended epochs it takes."""

    barrier: Barrier | None = None
    ended: list[EndedEpoch] = field(default_factory=list)
    committed_batch: int = -1
    has_read: bool = False

    def take_barrier(self) -> Barrier | None:
        barrier, self.barrier = self.barrier, None
        return barrier

    def submit_epoch(self, ended: EndedEpoch) -> None:
        self.ended.append(ended)


class Bench:
    """One attempt that begins with these splits."""

    def __init__(
        self,
        logs: Mapping[int, int],
        splits: Sequence[SplitRange],
        files: PlayedStateFiles,
        *,
        restored: KeyedState | None = None,
        overlay_mib: float = 64,
        timer_ms: int | None = None,
    ) -> None:
        self.client = HandCourier()
        self.follower = LogFollower(splits, dict(logs))
        self.writers: list[RecordingWriter] = []
        self.files = files
        self.keyed = KeyedTask(
            counting(timer_ms),
            source_id="source",
            state=files.state(overlay_mib=overlay_mib),
            writer=files,
            restored=restored,
            splits=splits,
        )
        self.loop = TaskLoop(
            "main",
            7,
            stream=self.follower,
            client=self.client,  # type: ignore[arg-type]  # what the loop uses of it
            open_writers=self._open,
            functions=FunctionRun,
            keyed=self.keyed,
            begins_after=3,
            clock=ManualClock(),
        )

    def _open(self, scope: EpochScope) -> TaskWriters[ContinuousWriter]:
        self.writers.append(RecordingWriter(scope))
        return TaskWriters({"sink": self.writers[-1]}, dead_letter_sink=None)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.loop.step()

    def end_epoch(
        self, *splits: SplitRange, new_state: KeyedState | None = None, time_ms: int = 0
    ) -> EpochResult:
        """Give a barrier; the acknowledged epoch."""
        self.client.barrier = Barrier(
            checkpoint_id=4,
            region="main",
            attempt_id=7,
            splits=splits,
            time_ms=time_ms,
            new_state=new_state or KeyedState(),
        )
        self.step()
        return self.client.ended[-1].pre_commit()


def expected(**read: int) -> dict[tuple[int, str], int]:
    """The counts after so many records of each partition: ``p0=10``."""
    return {
        (int(partition[1:]), key): count
        for partition, end in read.items()
        for key, count in Counter(str(offset % 3) for offset in range(end)).items()
    }


def acknowledged_counts(bench: Bench, result: EpochResult) -> dict[tuple[int, str], int]:
    """The counts on record, which must be those of the records up to the epoch's end."""
    found = counts_in(bench.files, result.keyed_state)
    assert found == expected(**{f"p{s.partition}": s.end_offset for s in result.ranges})
    return found


def test_state_with_output_an_epoch_is_acknowledged_with_the_state_at_its_end() -> None:
    """Also if the task has read further by the time that the client takes the epoch."""
    bench = Bench({0: 100}, [split(0, 0, 0)], PlayedStateFiles())
    bench.step(2)
    bench.client.barrier = Barrier(
        checkpoint_id=4, region="main", attempt_id=7, splits=(split(0, 0, 100),)
    )
    bench.step()
    bench.step(4)
    result = bench.client.ended[-1].pre_commit()
    assert [s.end_offset for s in result.ranges] == [30]
    acknowledged_counts(bench, result)
    acknowledged_counts(bench, bench.end_epoch(split(0, 30, 100)))


def test_state_with_output_what_operators_return_at_a_barrier_is_of_its_epoch() -> None:
    bench = Bench({0: 10}, [split(0, 0, 0)], PlayedStateFiles())
    bench.step()
    bench.end_epoch(split(0, 0, 10))
    assert sorted(bench.writers[0].records) == [(-1, 3), (-1, 3), (-1, 4)]
    assert bench.writers[0].events[:2] == ["write", "end"]
    assert bench.writers[1].records == []


def test_a_new_attempt_counts_on_from_the_record() -> None:
    files = PlayedStateFiles()
    first = Bench({0: 25}, [split(0, 0, 0)], files)
    first.step(2)
    result = first.end_epoch(split(0, 0, 25))
    second = Bench({0: 50}, [split(0, 25, 25)], files.attempt(), restored=result.keyed_state)
    second.step(2)
    acknowledged_counts(second, second.end_epoch(split(0, 25, 50)))


def test_state_with_output_an_epoch_that_is_read_again_has_changed_no_state() -> None:
    """The coordinator has assigned a split to another region meanwhile."""
    bench = Bench({0: 100, 1: 100}, [split(0, 0, 0), split(1, 0, 0)], PlayedStateFiles())
    bench.step(4)
    bench.end_epoch(split(0, 0, 100), split(1, 0, 100))
    bench.step(4)
    remaining = replace(bench.client.ended[-1].pre_commit().ranges[0], start_offset=0).at_end()
    bench.follower.logs[0] = 0  # nothing comes until the barrier has rewound the split
    result = bench.end_epoch(replace(remaining, end_offset=remaining.start_offset))
    assert [s.partition for s in result.ranges] == [0]
    assert {split.partition for split in result.keyed_state.splits} == {0}  # type: ignore[union-attr]
    acknowledged_counts(bench, result)


def test_state_with_output_records_that_are_read_again_count_once() -> None:
    """Retention has deleted the first ones of the epoch meanwhile, and the source may skip them."""
    bench = Bench({0: 20}, [split(0, 0, 0)], PlayedStateFiles())
    bench.step()
    bench.end_epoch(split(0, 0, 20))
    bench.follower.logs[0] = 40
    bench.step(2)
    bench.follower.logs[0] = 0  # nothing comes until the barrier has rewound the split
    bench.client.barrier = Barrier(
        checkpoint_id=5,
        region="main",
        attempt_id=7,
        splits=(split(0, 23, 40),),
        new_state=KeyedState(),
    )
    bench.step()
    bench.follower.logs[0] = 40
    bench.step()
    result = bench.client.ended[-1].pre_commit()
    assert [(s.start_offset, s.end_offset) for s in result.ranges] == [(23, 33)]
    read = Counter(str(offset % 3) for offset in (*range(20), *range(23, 33)))
    assert counts_in(bench.files, result.keyed_state) == {(0, k): n for k, n in read.items()}


def test_a_split_that_an_attempt_gains_comes_with_its_state() -> None:
    files = PlayedStateFiles()
    giver = Bench({1: 20}, [split(1, 0, 0)], files)
    giver.step(2)
    given = giver.end_epoch(split(1, 0, 20)).keyed_state
    taker = Bench({0: 40, 1: 40}, [split(0, 0, 0)], files.attempt())
    taker.step(2)
    result = taker.end_epoch(split(0, 0, 40), split(1, 20, 40), new_state=given)
    acknowledged_counts(taker, replace(result, ranges=result.ranges))
    taker.step(4)
    at = {s.partition: s.end_offset for s in result.ranges}
    acknowledged_counts(taker, taker.end_epoch(split(0, at[0], 40), split(1, at[1], 40)))


def test_state_with_output_a_gained_split_without_its_state_ends_the_task() -> None:
    bench = Bench({0: 40, 1: 40}, [split(0, 0, 0)], PlayedStateFiles())
    bench.step()
    with pytest.raises(IllegalTransitionError, match="lacks the keyed state"):
        bench.end_epoch(split(0, 0, 40), split(1, 20, 40))
    assert bench.client.ended == []


def test_state_with_output_a_split_that_comes_back_has_the_state_of_its_last_reader() -> None:
    """Though the task has a state of it, and even if the other region read nothing of it: timers
    may have fired there."""
    files = PlayedStateFiles()
    bench = Bench({0: 10, 1: 10}, [split(0, 0, 0), split(1, 0, 0)], files)
    bench.step(2)
    first = bench.end_epoch(split(0, 0, 10), split(1, 0, 10))
    assert first.keyed_state is not None
    other = Bench(
        {1: 30},
        [split(1, 10, 10)],
        files.attempt(),
        restored=first.keyed_state.of({split(1, 0, 0).key}),
    )
    other.step(2)
    moved = other.end_epoch(split(1, 10, 30)).keyed_state
    bench.follower.logs = {0: 20, 1: 30}
    bench.step(2)
    result = bench.end_epoch(split(0, 10, 20), split(1, 30, 30), new_state=moved)
    assert result.ranges[1].end_offset == 30
    acknowledged_counts(bench, result)


def test_a_task_whose_changes_fill_the_memory_reads_on_after_its_barrier() -> None:
    bench = Bench({0: 1000}, [split(0, 0, 0)], PlayedStateFiles(), overlay_mib=0.0)
    bench.step(5)
    assert bench.follower.positions()[split(0, 0, 0).key] == 0
    result = bench.end_epoch(split(0, 0, 1000))
    assert result.ranges[0].end_offset == 10, "the barrier comes with records"


def test_state_with_output_an_epoch_whose_state_cannot_be_written_is_aborted() -> None:
    files = PlayedStateFiles()
    bench = Bench({0: 10}, [split(0, 0, 0)], files)
    bench.step()
    files.failure = StorageError("the disk is full", {}, "")
    with pytest.raises(StorageError):
        bench.end_epoch(split(0, 0, 10))
    assert bench.writers[0].events[-1] == "abort"


def test_timers_that_are_due_later_are_acknowledged_with_their_time() -> None:
    """And fire at a barrier without records."""
    bench = Bench({0: 10}, [split(0, 0, 0)], PlayedStateFiles(), timer_ms=500)
    bench.step()
    result = bench.end_epoch(split(0, 0, 10), time_ms=1_000)
    assert result.due is not None
    assert result.due.time_ms == 1_500
    result = bench.end_epoch(split(0, 10, 10), time_ms=1_500)
    assert sorted(bench.writers[1].records) == [(-1, 3), (-1, 3), (-1, 4)]
    assert result.due is not None
    assert result.due.time_ms is None
