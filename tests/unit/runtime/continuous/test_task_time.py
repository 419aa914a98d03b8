"""Watermarks of a continuous task's splits, and splits that wait for slower ones."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice import EventTime, Monotonic
from sluice.runtime.continuous.barrier_service import AttemptEpochs
from sluice.runtime.continuous.task_messages import EpochResult
from sluice.runtime.functions.function_run import ChainedFunction, FunctionRun
from sluice.runtime.functions.split_clocks import SplitClocks
from sluice.runtime.model.splits import Barrier, SplitRange
from tests.kit.coordinator.core_driver import split
from tests.unit.runtime.continuous.test_task_loop import Bench

FIRST, SECOND = ("source", "input", 0), ("source", "input", 1)


def _times(rows: pa.RecordBatch) -> pa.Int64Array:
    """A record's time is its offset; in partition 1 a tenth of it."""
    is_second = pc.equal(rows.column("partition"), 1)
    offsets = rows.column("offset")
    return pc.if_else(is_second, pc.divide(offsets, 10), offsets)


def timed_bench(logs: dict[int, int], **settings: Any) -> Bench:
    if "max_drift" in settings:
        settings.setdefault("idle_after", "1 h")
    time = EventTime("offset", strategy=Monotonic(), **settings)
    clocks = SplitClocks(time, _times, lambda: 0)
    return Bench(logs, lambda: FunctionRun([observing(clocks)]), clocks=clocks)


def observing(clocks: SplitClocks) -> ChainedFunction:
    return ChainedFunction(name="time", operator_id="t", function=clocks, takes_context=True)


def last_epoch(bench: Bench) -> EpochResult:
    return bench.checkpoint_client.ended[-1].pre_commit()


def ranges(bench: Bench) -> tuple[SplitRange, ...]:
    return last_epoch(bench).ranges


def test_an_epoch_has_the_watermarks_of_its_rows_and_the_one_of_its_barrier() -> None:
    bench = timed_bench({0: 20, 1: 10})
    bench.step(3)
    bench.give(4, split(0, 0, 20), split(1, 0, 10), watermark_ms=3)
    bench.step()
    assert [(r.watermark_ms, r.barrier_watermark_ms) for r in ranges(bench)] == [(19, 3), (0, 3)]
    functions = (observing(SplitClocks(EventTime("offset"), _times)),)
    epochs = AttemptEpochs("main", 7, functions=functions)
    ack = epochs._acknowledgement(last_epoch(bench))  # noqa: SLF001 - without a coordinator
    assert ack.region.least_watermark_ms == 0


def test_times_on_record_are_never_lowered() -> None:
    """As by a larger delay, or by an older watermark of a coordinator that restarted."""
    bench = timed_bench({0: 20})
    bench.step(3)
    known = replace(split(0, 0, 20), watermark_ms=99, barrier_watermark_ms=50)
    bench.give(4, known, watermark_ms=40)
    bench.step()
    assert [(r.watermark_ms, r.barrier_watermark_ms) for r in ranges(bench)] == [(99, 50)]
    bench.follower.logs[0] = 30
    bench.step(2)
    bench.give(5, replace(known, start_offset=20, end_offset=30))
    bench.step()
    assert [(r.watermark_ms, r.barrier_watermark_ms) for r in ranges(bench)] == [(99, 50)]


def test_rows_of_an_epoch_that_is_read_again_leave_no_watermark() -> None:
    """The split has moved on elsewhere: its rows of here are not part of any epoch."""
    bench = timed_bench({0: 1_000, 1: 0})
    bench.step(3)
    bench.follower.logs[0] = 0
    bench.give(4, split(1, 0, 5))
    bench.step()
    bench.follower.logs[1] = 10
    bench.step(2)
    assert [(r.partition, r.watermark_ms) for r in ranges(bench)] == [(1, 0)]
    bench.step()
    bench.give(5, split(0, 0, 0), split(1, 10, 20))
    bench.follower.logs[1] = 20
    bench.step(2)
    found = {r.partition: r.watermark_ms for r in ranges(bench)}
    assert found == {0: None, 1: 1}


def test_a_split_that_is_too_far_ahead_waits_for_the_slowest_one() -> None:
    bench = timed_bench({0: 10_000, 1: 10_000}, max_drift=0.1)
    both = split(0, 0, 10_000), split(1, 0, 10_000)
    bench.step(2)
    bench.give(4, *both)
    bench.step(400)
    at = bench.follower.positions()
    ahead, behind = at[FIRST] - 1, (at[SECOND] - 1) // 10
    assert ahead - behind <= 100 + 10
    assert bench.follower.paused == {FIRST} or ahead - behind <= 100
    bench.step(1_000)
    assert bench.follower.positions()[FIRST] > at[FIRST]


def test_a_paused_split_is_reported_and_neither_unreachable_nor_waited_for() -> None:
    bench = timed_bench({0: 10_000, 1: 0}, max_drift=0.1)
    slow = replace(split(1, 0, 0), watermark_ms=5)
    bench.step(30)
    bench.give(4, split(0, 0, 10_000), slow)
    bench.step(2)
    assert bench.follower.paused == {FIRST}
    position = bench.follower.positions()[FIRST]
    for checkpoint_id in range(5, 8):
        bench.give(checkpoint_id, split(0, position, 10_000), slow, time_ms=1_000, aligned_ms=None)
        bench.looks(200.0)
        assert last_epoch(bench).checkpoint_id == checkpoint_id
        assert last_epoch(bench).paused == (FIRST,)
        assert bench.follower.positions()[FIRST] == position


def test_an_idle_split_or_one_without_a_time_holds_no_other_one_back() -> None:
    bench = timed_bench({0: 10_000, 1: 0}, max_drift=0.1, idle_after="10 s")
    idle = replace(split(1, 0, 0), watermark_ms=5, idle_since_ms=20_000)
    bench.give(4, split(0, 0, 10_000), idle, time_ms=30_000)
    bench.step(100)
    assert bench.follower.paused == frozenset()
    position = bench.follower.positions()[FIRST]
    bench.give(5, split(0, position, 10_000), replace(idle, idle_since_ms=25_000), time_ms=30_000)
    bench.step(2)
    assert bench.follower.paused == {FIRST}
    fresh = timed_bench({0: 10_000, 1: 0}, max_drift=0.1)
    fresh.give(4, split(0, 0, 10_000), split(1, 0, 0))
    fresh.step(100)
    assert fresh.follower.paused == frozenset()


def test_a_split_waits_for_those_of_other_regions() -> None:
    """It resumes once it is at most half of the drift ahead, so it does not stop at every batch."""
    bench = timed_bench({0: 10_000}, max_drift=0.1)
    bench.step(30)
    bench.give(4, split(0, 0, 10_000), aligned_ms=150)
    bench.step(2)
    assert bench.follower.paused == {FIRST}
    position = bench.follower.positions()[FIRST]
    bench.give(5, split(0, position, 10_000), aligned_ms=position - 90)
    bench.step(2)
    assert bench.follower.paused == {FIRST}
    bench.give(6, split(0, position, 10_000), aligned_ms=position - 50)
    bench.step(2)
    assert bench.follower.positions()[FIRST] > position


def test_splits_of_a_new_stream_are_paused_anew() -> None:
    """A new split makes the client begin again: it reads all splits then."""
    bench = timed_bench({0: 10_000}, max_drift=0.1)
    bench.step(30)
    bench.give(4, split(0, 0, 10_000), aligned_ms=50)
    bench.step(2)
    assert bench.follower.paused == {FIRST}
    position = bench.follower.positions()[FIRST]
    bench.give(5, split(0, position, 10_000), split(1, 0, 0), aligned_ms=50)
    bench.step()
    assert bench.follower.paused == {FIRST}
    assert bench.follower.positions()[FIRST] == position


def test_max_future_counts_from_the_drivers_clock() -> None:
    bench = timed_bench({0: 1_000}, max_future=0.05)
    bench.step(10)  # by this host's clock, until a barrier has the driver's
    bench.give(4, split(0, 0, 1_000), time_ms=500)
    bench.step()
    counts = dict(last_epoch(bench).counts)["t"].counters
    assert counts["beyond_max_future"] == 100 - 51
    position = ranges(bench)[0].end_offset
    bench.step(100)
    bench.give(5, split(0, position, 1_000), time_ms=500)
    bench.step()
    assert [r.watermark_ms for r in ranges(bench)] == [550]


def test_a_source_without_a_time_reads_on_and_keeps_the_barriers_watermark() -> None:
    """Rows of its keyed functions may still be late: by another source's time."""
    bench = Bench({0: 20})
    bench.step(2)
    bench.checkpoint_client.barrier = Barrier(
        checkpoint_id=4,
        region="main",
        attempt_id=7,
        splits=(split(0, 0, 20),),
        watermark_ms=8,
        aligned_ms=1,
    )
    bench.step(2)
    assert [(r.watermark_ms, r.barrier_watermark_ms) for r in ranges(bench)] == [(None, 8)]
