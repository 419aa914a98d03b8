"""Watermarks of splits and of the job, through failures, moves, restarts and both engines.

Rows keep to the bound of the strategy, so none of them may ever be late: not if an epoch is read
again, its split moves, its region is skipped, or the job continues with other regions or another
engine.
"""

from dataclasses import dataclass, field, replace

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice import BoundedOutOfOrderness, EventTime
from sluice.runtime.coordinator.policy.checkpoint_plan import RegionPlan
from sluice.runtime.coordinator.region.job_time import JobTime
from sluice.runtime.coordinator.region.region_pace import Pace
from sluice.runtime.coordinator.region.region_state import RegionState
from sluice.runtime.functions.function_context import FunctionContext
from sluice.runtime.functions.split_clocks import SplitClocks
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.model.timestamps import later
from tests.kit.coordinator.core_driver import split

SPLITS = 4
DELAY_MS = 20
TIME = EventTime("at", strategy=BoundedOutOfOrderness(DELAY_MS / 1000))


def time_of(partition: int, offset: int) -> int:
    """Grows with the offset, each partition at its own pace; at most `DELAY_MS` out of order."""
    return 1_000 + offset * (partition + 1) - (offset * 7_919 + partition * 31) % (DELAY_MS + 1)


def _times(rows: pa.RecordBatch) -> pa.Int64Array:
    return rows.column("at")


def plan(number: int) -> RegionPlan:
    return RegionPlan(name=f"r{number}", source_ids=("source",), event_time=TIME)


@dataclass
class World:
    """A job by its decided records; clocks of the long tasks live until their attempt ends."""

    regions: dict[str, RegionState] = field(default_factory=dict)
    time: JobTime = field(default_factory=JobTime)
    tasks: dict[str, SplitClocks] = field(default_factory=dict)
    is_continuous: bool = True

    def start(self, splits: list[SplitRange], count: int, *, is_continuous: bool) -> None:
        """A run with so many regions, from the splits on record."""
        plans = [plan(number) for number in range(count)]
        records = {
            each.name: RegionRecord(
                region=each.name,
                attempt_id=0,
                splits=tuple(s.at_end() for s in splits[number::count]),
            )
            for number, each in enumerate(plans)
        }
        self.regions = {
            each.name: RegionState(
                plan=each, attempt_id=0, record=records[each.name], pace=Pace(limit=None)
            )
            for each in plans
        }
        self.time = JobTime.restored(plans, records.values())
        assert all(
            s.barrier_watermark_ms is None or s.barrier_watermark_ms <= self._watermark_ms()
            for s in splits
        ), "a restart announces an older watermark than the one that closed a window on record"
        self.tasks, self.is_continuous = {}, is_continuous

    def _watermark_ms(self) -> int:
        return self.time.watermarks_ms.get("source") or 0

    def splits(self) -> list[SplitRange]:
        found = [s for region in self.regions.values() for s in region.record.splits]
        return sorted(found, key=lambda s: s.partition)

    def checkpoint(self, taking_part: set[str], sizes: list[int], *, decided: bool) -> None:
        before = self.time.watermarks_ms.get("source")
        self.time.advance(self.regions.values())
        assert before is None or self._watermark_ms() >= before
        done = {
            name: tuple(self._read(name, s, sizes[s.partition]) for s in region.record.splits)
            for name, region in self.regions.items()
            if name in taking_part
        }
        if not decided:
            self.tasks = {}  # all attempts that took part end; the others lose nothing by it
            return
        for name, ranges in done.items():
            for old, new in zip(self.regions[name].record.splits, ranges, strict=True):
                for field_name in ("watermark_ms", "barrier_watermark_ms", "largest_timestamp_ms"):
                    was, now = getattr(old, field_name), getattr(new, field_name)
                    assert was is None or (now is not None and now >= was)
            self.regions[name].record = replace(self.regions[name].record, splits=ranges)

    def _read(self, name: str, standing: SplitRange, rows: int) -> SplitRange:
        start = standing.end_offset
        clocks = SplitClocks(TIME, _times)
        if self.is_continuous:
            clocks = self.tasks.setdefault(name, clocks)
            clocks.keep(s.key for s in self.regions[name].record.splits)
        times = [time_of(standing.partition, offset) for offset in range(start, start + rows)]
        late = [t for t in times if t < (standing.barrier_watermark_ms or 0)]
        assert not late, f"rows of {standing.name} are late: {late[:3]}"
        batch = pa.RecordBatch.from_pydict(
            {
                "topic": [standing.topic] * rows,
                "partition": pa.array([standing.partition] * rows, pa.int32()),
                "at": pa.array(times, pa.int64()),
            }
        )
        clocks(batch, FunctionContext("time"))
        read = replace(standing.at_end(), start_offset=start, end_offset=start + rows)
        closed_ms = later(standing.barrier_watermark_ms, self.time.watermarks_ms.get("source"))
        return replace(clocks.ended(read), barrier_watermark_ms=closed_ms)

    def move(self, partition: int, target: str) -> None:
        """A decision reassigns a split; both regions have completed it."""
        for region in self.regions.values():
            mine = [s for s in region.record.splits if s.partition == partition]
            if mine and region.plan.name != target:
                stay = tuple(s for s in region.record.splits if s.partition != partition)
                region.record = replace(region.record, splits=stay)
                into = self.regions[target]
                into.record = replace(into.record, splits=(*into.record.splits, mine[0].at_end()))


_sizes = st.lists(st.integers(0, 40), min_size=SPLITS, max_size=SPLITS)
_checkpoint = st.tuples(
    st.just("checkpoint"), st.sets(st.integers(0, 3)), _sizes, st.sampled_from([True, True, False])
)
_move = st.tuples(st.just("move"), st.integers(0, SPLITS - 1), st.integers(0, 3))
_restart = st.tuples(st.just("restart"), st.integers(1, 4), st.booleans())
_fail = st.tuples(st.just("fail"), st.integers(0, 3))


@settings(max_examples=150)
@given(st.lists(st.one_of(_checkpoint, _checkpoint, _move, _restart, _fail), max_size=30))
def test_late_by_barrier_no_row_that_keeps_to_the_bound_is_ever_late(
    steps: list[tuple[object, ...]],
) -> None:
    world = World()
    world.start([split(n, 0, 0) for n in range(SPLITS)], 2, is_continuous=True)
    for step in steps:
        names = list(world.regions)
        match step:
            case ("checkpoint", set() as chosen, list() as sizes, bool() as decided):
                taking_part = {names[n] for n in chosen if n < len(names)}
                world.checkpoint(taking_part, sizes, decided=decided)
            case ("move", int() as partition, int() as target):
                world.move(partition, names[target % len(names)])
            case ("restart", int() as count, bool() as is_continuous):
                world.start(world.splits(), count, is_continuous=is_continuous)
            case ("fail", int() as which):
                world.tasks.pop(names[which % len(names)], None)
    assert sorted(s.partition for s in world.splits()) == list(range(SPLITS))
