"""The coordinator while a source's brokers are away: who asks is answered all the same."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest

from sluice.runtime.continuous.barrier_service import AttemptEpochs, BarrierService
from sluice.runtime.coordinator.core.events import FetchBarrierOffsets, RegionBarrierOffsets
from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
    JobPlan,
    RegionPlan,
)
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.coordinator.shell.source_service import SerialSource, SourceService
from sluice.runtime.errors import UnreachableError
from sluice.runtime.model.splits import SplitRange
from tests.kit.coordinator.core_driver import split
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.fakes import FakeBroker, FakeSink, FakeSource, ManualClock
from tests.kit.waiting import PATIENCE_S, join, wait_for

CALL_S = 1.0
SETTINGS = CheckpointSettings(interval_s=0.05, call_timeout_s=CALL_S, discovery_interval_s=0.1)
REGIONS = ("r0", "r1", "r2", "r3", "r4")
HEALTHY = len(REGIONS) - 1


class PartlyAway(FakeSource):
    """All partitions but one have no leader: whoever cuts one waits for as long as it may."""

    def __init__(self) -> None:
        super().__init__("source", dict.fromkeys(range(len(REGIONS)), 0))
        self.is_away = False
        self.waited = self.cuts = 0

    def cut(
        self, positions: Sequence[SplitRange], *, max_records: int | None, timeout_s: float
    ) -> tuple[SplitRange, ...]:
        """See `SplitEnumerator.cut`."""
        if self.is_away and any(position.partition != HEALTHY for position in positions):
            self.waited += 1
            threading.Event().wait(timeout_s)
            raise UnreachableError("no leader", {}, "Wait for one.")
        self.cuts += 1
        return super().cut(positions, max_records=max_records, timeout_s=timeout_s)


def test_a_source_behind_its_lock_goes_on_where_it_is_told_to() -> None:
    """And answers what it would without."""
    bare = FakeSource("source", {0: 30, 1: 5}, bounded=True)
    serial = SerialSource(bare)
    positions = (split(0, 0, 10),)
    serial.restore(positions, timeout_s=CALL_S)
    assert bare.restored == list(positions)
    assert [each.partition for each in serial.discover(timeout_s=CALL_S)] == [1]
    assert serial.fixed_ends() == bare.fixed_ends()
    assert serial.readable(positions, timeout_s=CALL_S) == positions
    assert serial.lag_records(positions) == 20
    assert not serial.is_finished(positions)
    serial.committed(positions)
    assert bare.group == {0: 10}
    serial.close()
    assert bare.closed


@pytest.fixture
def source() -> PartlyAway:
    return PartlyAway()


@pytest.fixture
def coordinator(source: PartlyAway) -> Iterator[BarrierCoordinator]:
    regions = tuple(
        RegionPlan(
            name=name, source_ids=("source",), sink_ids=("sink",), follows=True, chained=True
        )
        for name in REGIONS
    )
    found = BarrierCoordinator(
        JobPlan(name="job", regions=regions),
        FakeStore(),
        sinks={"sink": FakeSink(FakeBroker())},
        sources={"source": source},
        settings=SETTINGS,
    )
    found.start(PATIENCE_S)
    yield found
    found.stop()


def asked(
    barrier_service: BarrierService, region: str, took: list[float], *, until: threading.Event
) -> None:
    """A task that asks for its next barrier, again and again."""
    while not until.is_set():
        began_s = time.monotonic()
        barrier_service.next_barrier(region, 0, wait_s=0.05, has_read=False)
        took.append(time.monotonic() - began_s)


def test_a_task_is_answered_though_its_brokers_are_not(
    coordinator: BarrierCoordinator, source: PartlyAway
) -> None:
    """Else it takes the coordinator for dead, and stops: an outage would end a healthy job."""
    barrier_service = BarrierService(coordinator)
    for region in REGIONS:
        barrier_service.open(AttemptEpochs(region=region, attempt_id=0))
    source.is_away, over = True, threading.Event()
    took: dict[str, list[float]] = {region: [] for region in REGIONS}
    tasks = [
        threading.Thread(target=lambda r=region: asked(barrier_service, r, took[r], until=over))
        for region in REGIONS
    ]
    for task in tasks:
        task.start()
    before = source.cuts
    # Nor is the region whose brokers answer kept out by those of which they do not.
    wait_for(lambda: source.waited >= 9 and source.cuts >= before + 9)
    over.set()
    join(*tasks)
    # One question waits for one cut, its own, or that of another one before it. A machine that
    # stands still makes a question or two of a region late; waiting for all regions makes most.
    assert max(min(sorted(times)[-3:]) for times in took.values()) < 2 * CALL_S
    began_s = time.monotonic()
    coordinator.stop()
    assert time.monotonic() - began_s < PATIENCE_S / 2


class Slow(FakeSource):
    """Its brokers need so long for each cut; less is not answered."""

    def __init__(self, name: str, needs_s: float, clock: ManualClock) -> None:
        super().__init__(name, {0: 9})
        self.needs_s, self.clock = needs_s, clock

    def cut(
        self, positions: Sequence[SplitRange], *, max_records: int | None, timeout_s: float
    ) -> tuple[SplitRange, ...]:
        """See `SplitEnumerator.cut`."""
        self.clock.advance(min(self.needs_s, timeout_s))
        if timeout_s < self.needs_s:
            raise UnreachableError("too slow", {}, "Wait.")
        return super().cut(positions, max_records=max_records, timeout_s=timeout_s)


@pytest.mark.parametrize("needs_s", [[3.2, 3.2, 3.2], [4.4, 4.4]])
def test_sources_that_are_slow_are_cut_all_the_same(needs_s: list[float]) -> None:
    """What one of a region's has answered waits for the others."""
    clock = ManualClock()
    sources = {f"s{at}": Slow(f"s{at}", each, clock) for at, each in enumerate(needs_s)}
    serial = {name: SerialSource(source) for name, source in sources.items()}
    barrier_service = SourceService(serial, settings=CheckpointSettings(), clock=clock)

    def cut(checkpoint_id: int) -> RegionBarrierOffsets:
        asked = FetchBarrierOffsets(
            checkpoint_id=checkpoint_id,
            region="main",
            attempt_id=0,
            positions=tuple(replace(split(0, 0, 0), source_id=name) for name in serial),
            max_records=None,
        )
        for _ in range(12):
            clock.advance(1.0)
            found = barrier_service.cut(asked, list(serial), until_s=barrier_service.deadline_s())
            if found is not None:
                return found
        raise AssertionError("never cut")

    assert [each.end_offset for each in cut(1).splits] == [9] * len(needs_s)
    for source in sources.values():
        source.ends = {0: 12}
    assert [each.end_offset for each in cut(1).splits] == [12] * len(needs_s)  # asked again


def held(source: SerialSource, go_on: threading.Event) -> Callable[[], None]:
    """Somebody who waits for brokers with the source in hand."""
    is_held = threading.Event()

    def hold() -> None:
        with source.held(1.0):
            is_held.set()
            assert go_on.wait(PATIENCE_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(PATIENCE_S)
    return thread.join


def test_nobody_waits_longer_for_a_source_than_a_call_may_take(source: PartlyAway) -> None:
    serial, go_on = SerialSource(source), threading.Event()
    told: list[object] = []
    source.committed = told.append  # type: ignore[method-assign]
    join = held(serial, go_on)
    with pytest.raises(UnreachableError, match="busy"):
        serial.cut([split(0, 0, 0)], max_records=None, timeout_s=0.01)
    serial.committed([split(0, 0, 0)])  # in the thread that commits: it goes on
    assert not told
    go_on.set()
    join()
    serial.committed([split(0, 0, 0)])
    assert len(told) == 1


def test_what_was_waited_for_a_source_is_not_waited_for_again(
    source: PartlyAway, monkeypatch: pytest.MonkeyPatch
) -> None:
    serial, go_on = SerialSource(source), threading.Event()
    join = held(serial, go_on)
    times_s = iter([100.0, 104.0])

    def monotonic() -> float:
        go_on.set()  # before that it is not to be had
        return next(times_s)

    monkeypatch.setattr(
        "sluice.runtime.coordinator.shell.source_service.time", SimpleNamespace(monotonic=monotonic)
    )
    with serial.held(PATIENCE_S) as (_, left_s):
        assert left_s == PATIENCE_S - 4.0
    join()


def test_others_are_cut_while_a_log_that_is_shorter_for_a_moment_is_waited_for() -> None:
    """A batch that is read again may wait for half a minute, and each other region reads on."""
    cut: list[SplitRange] = []

    class Shorter(FakeSource):
        def replayable(
            self,
            ranges: Sequence[SplitRange],
            *,
            timeout_s: float,
            pause: Callable[[float], object] | None = None,
        ) -> tuple[SplitRange, ...]:
            assert pause is not None
            pause(0.2)
            return super().replayable(ranges, timeout_s=timeout_s)

    def others(_: float) -> None:
        other = threading.Thread(
            target=lambda: cut.extend(
                source.cut([split(1, 0, 0)], max_records=None, timeout_s=PATIENCE_S)
            )
        )
        other.start()
        join(other)

    source = SerialSource(Shorter("source", {0: 9, 1: 5}))
    left = source.replayable([split(0, 0, 9)], timeout_s=CALL_S, pause=others)
    assert [each.end_offset for each in (*cut, *left)] == [5, 9]


def test_each_question_has_the_time_that_is_left() -> None:
    """Whoever had the source before has used some of it."""
    left: list[float] = []

    class Noted(FakeSource):
        def readable(
            self, ranges: Sequence[SplitRange], *, timeout_s: float
        ) -> tuple[SplitRange, ...]:
            left.append(timeout_s)
            return super().readable(ranges, timeout_s=timeout_s)

    source = SerialSource(Noted("source", {0: 9}))
    starts = source.resolve_start(timeout_s=CALL_S)
    assert source.discover(timeout_s=CALL_S) == ()
    source.restore(starts, timeout_s=CALL_S)
    (cut,) = source.cut(starts, max_records=None, timeout_s=CALL_S)
    assert cut.end_offset == 9
    assert source.readable([cut], timeout_s=CALL_S) == (cut,)
    assert 0 < left[0] <= CALL_S
    assert source.fixed_ends() is None
    assert not source.is_finished([cut])
