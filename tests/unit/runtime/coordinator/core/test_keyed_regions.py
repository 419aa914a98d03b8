"""Regions with keyed state: the state of a split is where its offsets are, whoever reads it."""

import itertools
from dataclasses import replace

import pytest

from sluice.runtime.coordinator.core.events import (
    Acknowledged,
    BarrierPolled,
    EndJob,
    FetchBarrierOffsets,
    GiveBarrier,
    Publish,
    RegionBarrierOffsets,
    RegionFailed,
    SplitsDiscovered,
    Tick,
)
from sluice.runtime.coordinator.policy.assignment import Move
from sluice.runtime.coordinator.policy.balance import Choice, RegionLoad
from sluice.runtime.coordinator.policy.checkpoint_plan import RegionPlan
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.errors import ConfigError, IllegalTransitionError, SourceChangedError
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.checkpoint_record import RegionRecord, Verdict
from sluice.runtime.model.event_time import EventTime
from sluice.runtime.model.splits import Barrier, BatchKey
from sluice.runtime.model.state.key_sample import KeySample
from sluice.runtime.model.state.keyed_state import Due, KeyedState
from tests.kit.coordinator.core_driver import FAST, CoreDriver, split
from tests.kit.keyed_parts import state_at_ends


def _plan(name: str = "main", *, follows: bool = True, bounded: bool = False) -> RegionPlan:
    return RegionPlan(
        name=name,
        source_ids=("source",),
        sink_ids=("sink",),
        stateful_sink_ids=(),
        chained=True,
        keyed=True,
        follows=follows,
        bounded=bounded,
    )


def _files(state: KeyedState | None) -> dict[int, str | None]:
    """The file of each split's state."""
    assert state is not None
    return {
        s.partition: state.files[s.parts[0].file].path.removeprefix("state/") if s.parts else None
        for s in state.splits
    }


class Driver(CoreDriver):
    """Acknowledges keyed batches."""

    def acknowledge(
        self,
        barrier: Barrier | None,
        *,
        due: Due | None = None,
        key_samples: tuple[KeySample, ...] = (),
    ) -> None:
        """With the state of exactly the barrier's splits."""
        assert barrier is not None
        number = self._batch_ids.get((barrier.region, barrier.attempt_id), -1) + 1
        self._batch_ids[barrier.region, barrier.attempt_id] = number
        batch = BatchKey(region=barrier.region, attempt_id=barrier.attempt_id, batch_id=number)
        ack = self.acknowledgement(batch, barrier)
        keyed = state_at_ends(barrier.splits, barrier.region)
        record = replace(ack.region, keyed_state=keyed)
        self.tell(Acknowledged(ack=replace(ack, region=record, due=due, key_samples=key_samples)))

    def checkpoint(self, end: int, *regions: str) -> dict[str, Barrier]:
        """One whole checkpoint; the barriers that were given."""
        self.tick(1.0)
        given = {name: self.poll(end, region=name) for name in regions or ("main",)}
        for barrier in given.values():
            if barrier is not None:
                self.acknowledge(barrier)
        return {name: barrier for name, barrier in given.items() if barrier is not None}

    def recorded(self) -> dict[str, RegionRecord]:
        """The regions of the last decision."""
        return {record.region: record for record in self.seen(Publish)[-1].regions}


class _Moves:
    """Moves input-0 to this region with the next decision."""

    def __init__(self) -> None:
        self.target = ""

    def choose(self, offered: dict[str, RegionLoad], overloaded: dict[str, int]) -> Choice:
        del overloaded
        owners = [name for name, load in offered.items() if split(0, 0, 0).key in load.records]
        if not self.target or not owners or owners == [self.target]:
            return Choice()
        move = Move(split=split(0, 0, 0).key, source_region=owners[0], target_region=self.target)
        self.target = ""
        return Choice(moves=(move,))


def _two(*, bounded: bool = False, partitions: int = 1) -> tuple[Driver, _Moves]:
    moves = _Moves()
    settings = replace(FAST, balancer=moves)  # type: ignore[arg-type]  # what the core uses of it
    plans = (_plan(bounded=bounded), _plan("side", bounded=bounded))
    return Driver(settings, regions=plans, partitions=partitions), moves


def test_a_key_in_partitions_of_two_regions_ends_the_job_before_the_decision() -> None:
    """``partitioned=True`` is wrong: each region would count half of the key's records."""
    driver = Driver(FAST, regions=(_plan(), _plan("side")), partitions=2)
    driver.tick(1.0)
    for region in ("main", "side"):
        barrier = driver.poll(5, region=region)
        assert barrier is not None
        sample = KeySample(
            operator_id="op", name="by-key", split=barrier.splits[0].key, hashes=(7, 11)
        )
        driver.acknowledge(barrier, key_samples=(sample,))
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, ConfigError)
    assert "partitions=input-0,input-2" in str(end.error)
    assert [each.verdict for each in driver.seen(Publish)] == [Verdict.ABORTED]


class TestAnAcknowledgementIsRefused:
    @pytest.mark.parametrize("wrong", ["none", "fewer", "more"])
    def test_state_with_output_unless_it_has_the_state_of_exactly_its_splits(
        self, wrong: str
    ) -> None:
        driver = Driver(FAST, regions=(_plan(),), partitions=2)
        driver.tick()
        barrier = driver.poll(5)
        assert barrier is not None
        splits = {"fewer": barrier.splits[:1], "more": (*barrier.splits, split(7, 0, 5))}
        keyed = None if wrong == "none" else state_at_ends(splits[wrong], "main")
        ack = driver.acknowledgement(BatchKey(region="main", attempt_id=0, batch_id=0), barrier)
        with pytest.raises(IllegalTransitionError, match="lacks the keyed state"):
            driver.tell(Acknowledged(ack=_with(ack, keyed)))
        assert not driver.seen(Publish)

    def test_state_with_output_if_the_region_has_no_keyed_functions(self) -> None:
        """The next attempt would drop it."""
        driver = Driver(FAST, regions=(replace(_plan(), keyed=False),))
        driver.tick()
        barrier = driver.poll(5)
        assert barrier is not None
        ack = driver.acknowledgement(BatchKey(region="main", attempt_id=0, batch_id=0), barrier)
        with pytest.raises(IllegalTransitionError):
            driver.tell(Acknowledged(ack=_with(ack, state_at_ends(barrier.splits, "main"))))


def _with(ack: Acknowledgement, keyed: KeyedState | None) -> Acknowledgement:
    return replace(ack, region=replace(ack.region, keyed_state=keyed))


class TestASplitThatMoves:
    def test_state_with_output_takes_its_state_along(self) -> None:
        driver, moves = _two()
        moves.target = "side"
        driver.checkpoint(5, "main", "side")
        assert _files(driver.recorded()["main"].keyed_state) == {0: "main/0-5"}
        given = driver.checkpoint(9, "side", "main")["side"]
        assert _files(given.new_state) == {0: "main/0-5"}, "its own it has"
        assert _files(driver.recorded()["side"].keyed_state) == {0: "side/0-9", 1: "side/1-9"}
        assert driver.recorded()["main"].keyed_state == KeyedState(partitions=0), "its tables stay"

    def test_state_with_output_brings_its_state_back(self) -> None:
        """Also if its first region had no barrier meanwhile, because it had nothing to read."""
        driver, moves = _two()
        moves.target = "side"
        driver.checkpoint(5, "main", "side")
        moves.target = "main"
        driver.checkpoint(9, "side", "main")
        given = driver.checkpoint(12, "main", "side")
        assert _files(given["main"].new_state) == {0: "side/0-9"}
        assert _files(given["side"].new_state) == {}

    def test_state_with_output_comes_with_its_state_in_each_answer_to_a_poll(self) -> None:
        """An answer may be lost."""
        driver, moves = _two()
        moves.target = "side"
        driver.checkpoint(5, "main", "side")
        driver.tick(1.0)
        first, second = driver.poll(9, region="side"), driver.poll(9, region="side")
        assert first == second
        assert first is not None
        assert _files(first.new_state) == {0: "main/0-5"}

    def test_has_its_timers_in_its_new_region_though_no_record_comes(self) -> None:
        """That region's last batch did not know when they are due, nor whether windows are open."""
        driver, moves = _two()
        moves.target = "side"
        driver.tick(1.0)
        driver.acknowledge(driver.poll(5), due=Due(time_ms=9_000))
        driver.acknowledge(driver.poll(5, region="side"))
        driver.tick(1.0)
        barrier = driver.poll(5, region="side")
        assert barrier is not None
        assert _files(barrier.new_state) == {0: "main/0-5"}
        driver.acknowledge(barrier, due=Due(time_ms=9_000))
        driver.tick(1.0)
        assert driver.poll(5) is None
        assert driver.poll(5, region="side") is None
        driver.core.step(Tick(), driver.clock(), wall_ms=9_000)
        assert driver.poll(5) is None, "it has left"
        assert driver.poll(5, region="side") is not None

    def test_closes_its_windows_in_a_region_whose_own_input_has_ended(self) -> None:
        driver, moves = _two(bounded=True)
        driver.tick()
        driver.acknowledge(driver.poll(5, finished=True), due=Due(event_ms=7_000))
        driver.acknowledge(driver.poll(5, region="side"))
        moves.target = "side"
        driver.tick(1.0)
        ended = driver.poll(5, finished=True)
        assert ended is not None
        assert ended.is_end
        driver.acknowledge(ended)
        driver.acknowledge(driver.poll(9, region="side"), due=Due(event_ms=9_000))
        moves.target = "main"  # split 0 comes back
        driver.tick(1.0)
        assert driver.poll(5, finished=True) is None
        driver.acknowledge(driver.poll(12, region="side"), due=Due(event_ms=9_000))
        assert driver.poll(5, finished=True) is None
        driver.tick(1.0)
        closes = driver.poll(12, finished=True)
        assert closes is not None
        assert closes.is_end

    def test_lets_the_job_end_though_each_decision_moves_it(self) -> None:
        driver, moves = _two(bounded=True, partitions=2)
        targets = itertools.cycle(("side", "main"))
        for number in range(8):
            moves.target = next(targets)
            driver.tick(1.0)
            for name in ("main", "side", "main"):
                is_done = name == "main" or number > 2  # one region is done earlier
                barrier = driver.poll(5 if is_done else 5 + number, region=name, finished=is_done)
                if barrier is not None:
                    driver.acknowledge(barrier, due=Due() if barrier.is_end else Due(event_ms=9))
            if driver.seen(EndJob):
                break
        assert driver.seen(EndJob)[-1].finished

    def test_a_next_attempt_has_the_state_of_all_its_splits_from_its_record(self) -> None:
        driver, moves = _two()
        moves.target = "side"
        driver.checkpoint(5, "main", "side")
        driver.tell(RegionFailed(region="side", attempt_id=0, error=ValueError("x")))
        attempt_id = driver.restart("side")
        driver.tick(1.0)
        barrier = driver.poll(9, region="side", attempt_id=attempt_id)
        assert barrier is not None
        assert _files(barrier.new_state) == {}


def test_a_region_that_runs_in_batches_gets_the_state_of_all_its_splits() -> None:
    driver = Driver(FAST, regions=(_plan(follows=False),), partitions=2)
    assert _files(driver.checkpoint(5)["main"].new_state) == {0: None, 1: None}
    assert _files(driver.checkpoint(9)["main"].new_state) == {0: "main/0-5", 1: "main/1-5"}


def test_a_region_that_a_decision_skips_keeps_itsstate_at_ends() -> None:
    handler = RegionalCheckpointHandler()
    driver = Driver(replace(FAST, handler=handler), regions=(_plan(), _plan("side")))
    driver.checkpoint(5, "main", "side")
    driver.tick(1.0)
    driver.poll(9, region="side")
    driver.tell(RegionFailed(region="side", attempt_id=0, error=ValueError("x")))
    barrier = driver.poll(9)
    driver.acknowledge(barrier)
    driver.tick()
    assert _files(driver.recorded()["side"].keyed_state) == {1: "side/1-5"}


def test_a_record_has_the_number_of_partitions_of_all_regions() -> None:
    driver, _ = _two()
    driver.checkpoint(5, "main", "side")
    counts = [r.keyed_state.partitions for r in driver.recorded().values() if r.keyed_state]
    assert counts == [2, 2]


def test_a_topic_that_gets_partitions_ends_the_job_with_both_counts() -> None:
    """Its producers send keys elsewhere than where their state is."""
    driver = Driver(FAST, regions=(_plan(),), partitions=2)
    driver.tell(SplitsDiscovered(source_id="source", splits=(split(2, 0, 0),)))
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, SourceChangedError)
    assert "partitions_before=2 partitions_now=3" in str(end.error)


class TestTheTimeOfABarrier:
    def test_never_goes_back(self) -> None:
        driver = Driver(FAST, regions=(_plan(),))
        driver.core.step(Tick(), driver.clock(), wall_ms=5_000)
        driver.core.step(Tick(), driver.clock(), wall_ms=4_000)
        assert driver.checkpoint(5)["main"].time_ms == 5_000

    def test_fires_timers_without_records_once_it_has_come(self) -> None:
        driver = Driver(FAST, regions=(_plan(),))
        driver.tick()
        driver.acknowledge(driver.poll(5), due=Due(time_ms=9_000))
        driver.tick(1.0)
        assert driver.poll(5) is None
        driver.core.step(Tick(), driver.clock(), wall_ms=9_000)
        barrier = driver.poll(5)
        assert barrier is not None
        assert all(s.is_empty for s in barrier.splits)
        driver.acknowledge(barrier)
        driver.tick(1.0)
        assert driver.poll(5) is None

    def test_is_wanted_once_by_a_new_attempt_withstate_at_ends(self) -> None:
        """What is due is not on record."""
        driver = Driver(FAST, regions=(_plan(),))
        driver.checkpoint(5)
        driver.tell(RegionFailed(region="main", attempt_id=0, error=ValueError("x")))
        attempt_id = driver.restart()
        driver.tick(1.0)
        barrier = driver.poll(5, attempt_id=attempt_id)
        driver.acknowledge(barrier)
        driver.tick(1.0)
        assert driver.poll(5, attempt_id=attempt_id) is None


@pytest.mark.parametrize("follows", [True, False])
def test_the_end_of_the_input_closes_windows_with_one_more_barrier(*, follows: bool) -> None:
    driver = Driver(FAST, regions=(_plan(follows=follows, bounded=True),))
    driver.tick()
    barrier = driver.poll(5, finished=True)
    assert barrier is not None
    assert not barrier.is_end
    driver.acknowledge(barrier, due=Due(event_ms=7_000))
    driver.tick(1.0)
    barrier = driver.poll(5, finished=True)
    assert barrier is not None
    assert barrier.is_end
    assert barrier.publishes_all
    driver.acknowledge(barrier, due=Due(event_ms=7_000))  # also if more is left, it is the last one
    driver.tick(1.0)
    assert driver.seen(EndJob)[-1].finished


@pytest.mark.parametrize("follows", [True, False])
def test_the_end_of_the_input_keeps_windows_open_if_the_next_run_continues_them(
    *, follows: bool
) -> None:
    plan = replace(
        _plan(follows=follows, bounded=True), event_time=EventTime("kafka", at_end="keep")
    )
    driver = Driver(FAST, regions=(plan,))
    driver.tick()
    driver.acknowledge(driver.poll(5, finished=True), due=Due(event_ms=7_000))
    driver.tick(1.0)
    assert driver.poll(5, finished=True) is None
    assert driver.seen(EndJob)[-1].finished
    assert not any(given.barrier.is_end for given in driver.seen(GiveBarrier))


def test_the_end_of_the_input_needs_no_barrier_if_no_window_is_open() -> None:
    driver = Driver(FAST, regions=(_plan(bounded=True),))
    driver.tick()
    driver.acknowledge(driver.poll(5, finished=True))
    driver.tick(1.0)
    assert driver.poll(5, finished=True) is None
    assert driver.seen(EndJob)[-1].finished


def test_a_task_that_has_read_on_gets_no_last_barrier_yet() -> None:
    """Its epoch has records, which later windows may be of."""
    driver = Driver(FAST, regions=(_plan(bounded=True),))
    driver.tick()
    driver.acknowledge(driver.poll(5, finished=True), due=Due(event_ms=7_000))
    driver.tick(1.0)
    (fetch,) = (
        action
        for action in driver.tell(BarrierPolled(region="main", attempt_id=0, has_read=True))
        if isinstance(action, FetchBarrierOffsets)
    )
    answer = RegionBarrierOffsets(
        checkpoint_id=fetch.checkpoint_id,
        region="main",
        attempt_id=0,
        splits=tuple(s.at_end() for s in fetch.positions),
        finished=True,
        has_read=True,
    )
    (given,) = (a for a in driver.tell(answer) if isinstance(a, GiveBarrier))
    assert not given.barrier.is_end
