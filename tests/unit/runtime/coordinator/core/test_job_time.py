"""The watermark of a job: the least of all splits that may still have rows, never back."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.coordinator.core.core import CoordinatorCore
from sluice.runtime.coordinator.core.events import (
    Acknowledged,
    BarrierPolled,
    FetchBarrierOffsets,
    GiveBarrier,
    RegionBarrierOffsets,
    RegionFailed,
    SplitsDiscovered,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, RegionPlan
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.coordinator.region.job_time import JobTime, TimeView
from sluice.runtime.errors import StreamError
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.event_time import EventTime
from sluice.runtime.model.splits import Barrier, BatchKey
from tests.kit.coordinator.core_driver import FAST, CoreDriver, split

TIME = EventTime("kafka", idle_after="5 s", max_drift="1 m")
MAIN = RegionPlan(name="main", source_ids=("source",), event_time=TIME)
SIDE = replace(MAIN, name="side")
OTHER = RegionPlan(name="other", source_ids=("untimed",))


class TimedDriver(CoreDriver):
    """Plays regions whose tasks report watermarks, by partition; they read all that is there.

    Attributes:
        end: of every partition's log, unless ``ends`` has it.
    """

    def __init__(self, *plans: RegionPlan, settings: CheckpointSettings = FAST) -> None:
        super().__init__(settings, regions=plans or (MAIN, SIDE))
        self.end = 0
        self.ends: dict[int, int] = {}

    def barrier(self, region: str = "main", *, finished: bool = False) -> Barrier | None:
        for action in self.tell(BarrierPolled(region=region, attempt_id=0)):
            if isinstance(action, GiveBarrier):
                return action.barrier
            if isinstance(action, FetchBarrierOffsets):
                cut = RegionBarrierOffsets(
                    checkpoint_id=action.checkpoint_id,
                    region=region,
                    attempt_id=0,
                    splits=tuple(
                        replace(
                            s,
                            start_offset=s.end_offset,
                            end_offset=max(s.end_offset, self.ends.get(s.partition, self.end)),
                        )
                        for s in action.positions
                    ),
                    finished=finished,
                )
                given = [a for a in self.tell(cut) if isinstance(a, GiveBarrier)]
                return given[0].barrier if given else None
        return None

    def done(self, barrier: Barrier, marks: Mapping[int, int]) -> None:
        """The task acknowledges, with the new watermarks of its splits."""
        self.done_with(
            barrier,
            tuple(
                replace(
                    s,
                    watermark_ms=marks.get(s.partition, s.watermark_ms),
                    barrier_watermark_ms=barrier.watermark_ms,
                )
                for s in barrier.splits
            ),
        )

    def done_with(self, barrier: Barrier, splits: Any, **ack: Any) -> None:
        number = self._batch_ids.get((barrier.region, 0), 0) + 1
        self._batch_ids[barrier.region, 0] = number
        batch = BatchKey(region=barrier.region, attempt_id=0, batch_id=number)
        record = RegionRecord(region=barrier.region, attempt_id=0, batch_id=number, splits=splits)
        self.tell(
            Acknowledged(
                ack=Acknowledgement(
                    batch=batch, checkpoint_id=barrier.checkpoint_id, region=record, **ack
                )
            )
        )

    def epoch_of(self, regions: Sequence[str], marks: Mapping[int, int]) -> list[int | None]:
        """A whole checkpoint in which each region has a record; the watermarks of its barriers."""
        self.end += 1
        self.tick(1.0)
        given = [(self.barrier(region)) for region in regions]
        for barrier in given:
            assert barrier is not None
            self.done(barrier, marks)
        return [barrier.watermark_ms for barrier in given if barrier is not None]

    def view(self) -> TimeView:
        found = self.core.status(now_s=self.clock(), now_ms=0).time
        assert found is not None
        return found


BOTH = ("main", "side")


def test_late_by_barrier_a_barrier_has_the_least_watermark_of_the_decided_epochs() -> None:
    """The same in all regions, and one epoch after the rows that made it."""
    world = TimedDriver()
    assert world.epoch_of(BOTH, {0: 100}) == [None, None]
    assert world.epoch_of(BOTH, {0: 200, 1: 50}) == [None, None]
    assert world.epoch_of(BOTH, {0: 300, 1: 150}) == [50, 50]
    assert world.epoch_of(BOTH, {}) == [150, 150]
    assert world.view().slowest == "input-1"
    assert (world.view().slowest_region, world.view().slowest_ms) == ("side", 150)


def test_all_barriers_of_a_checkpoint_have_one_watermark() -> None:
    """Though a split becomes idle between two of them."""
    world = TimedDriver()
    world.epoch_of(BOTH, {0: 100, 1: 50})
    world.ends = {1: world.end}
    for _ in range(5):
        world.end += 1
        world.tick(1.0)
        first = world.barrier("main")
        assert first is not None
        second = world.barrier("side")
        assert second is None or second.watermark_ms == first.watermark_ms
        world.done(first, {})
    world.end += 1
    world.tick(1.0)
    first = world.barrier("main")
    assert first is not None
    assert first.watermark_ms == 50
    world.ends = {}
    second = world.barrier("side")
    assert second is not None
    assert second.watermark_ms == 50
    assert second.time_ms == first.time_ms


def test_a_source_without_a_time_does_not_count() -> None:
    world = TimedDriver(MAIN, OTHER)
    world.epoch_of(("main", "other"), {0: 100, 1: 3})
    assert world.epoch_of(("main", "other"), {}) == [100, None]
    assert TimedDriver(OTHER).core.status(now_s=0.0, now_ms=0).time is None


def test_each_source_has_a_watermark_of_its_own() -> None:
    """One job may copy yesterday's records in one pipeline and today's in another."""
    second = replace(MAIN, name="second", source_ids=("other",))
    world = TimedDriver(MAIN, second)
    every = ("main", "second")
    world.epoch_of(every, {0: 100})
    assert world.epoch_of(every, {1: 7}) == [100, None]
    assert world.view().watermark_ms is None
    assert world.epoch_of(every, {}) == [100, 7]
    assert world.view().watermark_ms == 7


def test_an_idle_split_does_not_hold_the_job_back_and_never_moves_it_back() -> None:
    world = TimedDriver()
    world.epoch_of(BOTH, {0: 100, 1: 50})
    world.ends = {1: world.end}  # nothing more comes in partition 1

    def step(mark: int) -> int | None:
        world.end += 1
        world.tick(1.0)
        barrier = world.barrier("main")
        world.barrier("side")
        assert barrier is not None
        world.done(barrier, {0: mark})
        return barrier.watermark_ms

    assert [step(100 + n) for n in range(6)] == [50] * 6
    assert step(200) == 105
    assert world.view().idle == ("input-1",)
    world.ends = {}
    assert world.epoch_of(BOTH, {0: 300, 1: 60}) == [200, 200]
    assert world.view().idle == ()
    assert world.epoch_of(BOTH, {0: 300, 1: 70}) == [200, 200]
    assert world.epoch_of(BOTH, {0: 400, 1: 350}) == [200, 200]
    assert world.epoch_of(BOTH, {}) == [350, 350]


def test_time_in_which_no_end_offset_was_looked_at_makes_no_split_idle() -> None:
    """The driver sleeps for an hour, or a region's epoch takes so long."""
    world = TimedDriver()
    world.epoch_of(BOTH, {0: 100, 1: 50})
    world.ends = {1: world.end}
    world.end += 1
    world.tick(1.0)
    barrier = world.barrier("main")
    assert barrier is not None
    world.barrier("side")
    world.done(barrier, {0: 200})
    world.tick(3_600.0)
    world.end += 1
    late = world.barrier("main")
    assert late is not None
    assert late.watermark_ms == 50


def test_an_idle_split_of_a_region_without_attempt_counts_until_a_look_finds_it_idle() -> None:
    """While the region restarts or is suspended, nothing looks at the ends of its splits. Rows that
    come meanwhile must not be late."""
    settings = replace(FAST, handler=RegionalCheckpointHandler(max_failed_ratio=0.5))
    world = TimedDriver(settings=settings)
    world.epoch_of(BOTH, {0: 100, 1: 50})
    world.ends = {1: world.end}

    def step(mark: int, region: str = "side") -> int | None:
        world.end += 1
        world.tick(1.0)
        barrier = world.barrier("main")
        world.barrier(region)
        assert barrier is not None
        world.done(barrier, {0: mark})
        return barrier.watermark_ms

    assert [step(100 + n) for n in range(7)] == [50] * 6 + [105]
    assert world.view().idle == ("input-1",)
    world.tell(RegionFailed(region="side", attempt_id=0, error=StreamError("lost", {}, "")))
    assert world.view().idle == ()
    assert [step(200 + n, "main") for n in range(20)] == [105] * 20


def test_where_all_splits_are_idle_the_watermark_stays() -> None:
    """The next row may be as old as the slowest split."""
    world = TimedDriver()
    world.epoch_of(BOTH, {0: 100, 1: 50})
    for _ in range(8):
        world.tick(1.0)
        assert [world.barrier(region) for region in BOTH] == [None, None]
    assert world.view().idle == ("input-0", "input-1")
    assert world.view().slowest is None
    assert world.view().watermark_ms == 50


def test_a_skipped_region_counts_with_its_last_snapshot() -> None:
    """Its rows are still to come, and must not be late."""
    settings = replace(FAST, handler=RegionalCheckpointHandler(max_failed_ratio=0.5))
    world = TimedDriver(settings=settings)
    world.epoch_of(BOTH, {0: 100, 1: 50})
    world.epoch_of(BOTH, {0: 100, 1: 60})
    world.end += 1
    world.tick(1.0)
    main, side = world.barrier("main"), world.barrier("side")
    assert main is not None
    assert side is not None
    world.done(main, {0: 900})
    world.tell(RegionFailed(region="side", attempt_id=0, error=StreamError("lost", {}, "")))
    world.tick(1.0)
    world.end += 1
    after = world.barrier("main")
    assert after is not None
    assert after.checkpoint_id > main.checkpoint_id
    assert after.watermark_ms == 60


def test_a_region_whose_input_has_ended_does_not_count() -> None:
    world = TimedDriver(MAIN, replace(SIDE, bounded=True))
    world.epoch_of(BOTH, {0: 100, 1: 50})
    world.end += 1
    world.tick(1.0)
    main, side = world.barrier("main"), world.barrier("side", finished=True)
    assert main is not None
    assert side is not None
    world.done(main, {0: 200})
    world.done(side, {1: 60})
    world.end += 1
    world.tick(1.0)
    after = world.barrier("main")
    assert after is not None
    assert after.watermark_ms == 200


def test_a_new_split_holds_the_watermark_where_it_is() -> None:
    world = TimedDriver()
    world.epoch_of(BOTH, {0: 100, 1: 50})
    world.tell(SplitsDiscovered(source_id="source", splits=(split(2, 0, 0),)))
    assert world.epoch_of(BOTH, {0: 300, 1: 300}) == [None, None]
    assert world.epoch_of(BOTH, {2: 250}) == [None, None]
    assert world.epoch_of(BOTH, {}) == [250, 250]


def test_late_by_barrier_a_restart_goes_on_with_the_watermark_that_barriers_had() -> None:
    """A lower one would open windows again that are closed on record."""
    records = {
        "main": RegionRecord(
            region="main",
            attempt_id=0,
            splits=(
                replace(split(0, 0, 5), watermark_ms=70, barrier_watermark_ms=90),
                replace(split(1, 0, 5), watermark_ms=None, barrier_watermark_ms=80),
            ),
        )
    }
    time = JobTime.restored([MAIN], records.values())
    assert (time.watermarks_ms, time.times) == ({"source": 90}, {"source": TIME})
    world = TimedDriver(MAIN)
    core = CoordinatorCore(
        FAST,
        [MAIN],
        records,
        assignment=world.core._state.assignment,  # noqa: SLF001 - the same splits
        attempt_id=5,
        last_decided=4,
        draw=lambda: 0.5,
    )
    found = core.status(now_s=0.0, now_ms=0).time
    assert found is not None
    assert found.watermark_ms == 90


def test_splits_of_other_regions_that_are_read_in_step_are_named_by_their_least() -> None:
    """Neither a split without a time counts, nor an idle one, nor a source without `max_drift`."""
    free = replace(
        MAIN, name="free", source_ids=("free",), event_time=EventTime("kafka", idle_after="5 s")
    )
    world = TimedDriver(MAIN, SIDE, free)
    every = ("main", "side", "free")
    assert [b and b.aligned_ms for b in _barriers(world, every)] == [None, None, None]
    found = _barriers(world, every, {0: 500, 1: 70, 2: 3})
    assert [b.aligned_ms for b in found] == [None, None, None]
    found = _barriers(world, every)
    assert {b.region: b.aligned_ms for b in found} == {"main": 70, "side": 500, "free": 70}


def _barriers(
    world: TimedDriver, regions: Sequence[str], marks: Mapping[int, int] | None = None
) -> list[Barrier]:
    world.end += 1
    world.tick(1.0)
    found = [world.barrier(region) for region in regions]
    given = [barrier for barrier in found if barrier is not None]
    for barrier in given:
        world.done(barrier, marks or {})
    return given


def test_paused_splits_are_those_of_the_last_acknowledgement() -> None:
    world = TimedDriver(MAIN)
    world.end += 1
    world.tick(1.0)
    barrier = world.barrier("main")
    assert barrier is not None
    world.done_with(barrier, barrier.splits, paused=(barrier.splits[0].key,))
    assert world.view().paused == ("input-0",)


_marks = st.dictionaries(st.integers(0, 1), st.integers(0, 100), max_size=2)


@given(st.lists(st.tuples(_marks, st.booleans(), st.booleans()), max_size=25))
def test_the_watermark_never_goes_back_and_never_passes_a_split_that_has_records(
    steps: list[tuple[dict[int, int], bool, bool]],
) -> None:
    """Whatever the splits report, whichever are idle, and in whichever order regions poll."""
    world = TimedDriver()
    tops: dict[int, int] = {}
    decided: dict[int, int] = {}
    last: int | None = None
    for marks, side_has_records, main_first in steps:
        world.end += 1
        world.ends = {} if side_has_records else {1: world.ends.get(1, world.end - 1)}
        world.tick(1.0)
        order = BOTH if main_first else BOTH[::-1]
        given_now = [b for b in (world.barrier(region) for region in order) if b is not None]
        for barrier in given_now:
            assert last is None or (barrier.watermark_ms or 0) >= last
            if side_has_records and 1 in decided and 0 in decided and last is None:
                assert barrier.watermark_ms is None or barrier.watermark_ms <= max(decided.values())
        if given_now:
            assert len({barrier.watermark_ms for barrier in given_now}) == 1
            last = given_now[0].watermark_ms if given_now[0].watermark_ms is not None else last
        tops |= {number: max(tops.get(number, 0), mark) for number, mark in marks.items()}
        for barrier in given_now:
            world.done(barrier, tops)
            decided |= {
                s.partition: tops[s.partition] for s in barrier.splits if s.partition in tops
            }
