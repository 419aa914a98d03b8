"""When the coordinator polls sources, also while their brokers are away."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from sluice.runtime.continuous.barrier_service import AttemptEpochs, BarrierService
from sluice.runtime.contracts import Backlog
from sluice.runtime.coordinator.core.events import (
    FetchBarrierOffsets,
    RegionBarrierOffsets,
    SplitsDiscovered,
)
from sluice.runtime.coordinator.policy.balance import LoadBalancer
from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
    JobPlan,
    RegionPlan,
)
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.coordinator.shell.source_service import SerialSource, SourceService
from sluice.runtime.errors import DataLostError, UnreachableError
from sluice.runtime.model.splits import Barrier, SplitKey, SplitRange
from tests.kit.coordinator.core_driver import split
from tests.kit.coordinator.core_driver import split as core_split
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.fakes import FakeBroker, FakeSink, FakeSource, ManualClock
from tests.kit.waiting import PATIENCE_S, join, wait_for

AWAY = UnreachableError("no answer", {}, "Wait.")
SETTINGS = CheckpointSettings(discovery_interval_s=10.0, retry_s=0.1, max_retry_s=1.0)


@dataclass(slots=True)
class Looked:
    """How often a source that does not answer was asked."""

    count: int = 0

    def __call__(self) -> None:
        self.count += 1


class CountedSource(FakeSource):
    """Reports how often it was asked for new splits, and when it is about to answer."""

    def __init__(self, ends: dict[int, int], *, meanwhile: Callable[[], None]) -> None:
        super().__init__("source", ends, bounded=True)
        self.meanwhile = meanwhile

    def discover(self, *, timeout_s: float) -> tuple[SplitRange, ...]:
        self.meanwhile()
        return super().discover(timeout_s=timeout_s)


@dataclass(slots=True)
class Bench:
    """A bounded source of two partitions, one of which is new, and the barrier service before it."""

    looked: Looked = field(default_factory=Looked)
    settings: CheckpointSettings = SETTINGS
    clock: ManualClock = field(default_factory=ManualClock)
    told: list[SplitsDiscovered] = field(default_factory=list)
    source: CountedSource = field(init=False)
    barrier_service: SourceService = field(init=False)

    def __post_init__(self) -> None:
        self.source = CountedSource({0: 3, 1: 5}, meanwhile=self.looked)
        self.source.known = {0}
        self.barrier_service = SourceService(
            {"source": SerialSource(self.source)}, settings=self.settings, clock=self.clock
        )

    def discover(self, after_s: float = 0.0) -> bool:
        self.clock.advance(after_s)
        return self.barrier_service.discover(
            ["source"], self.told.append, until_s=self.barrier_service.deadline_s()
        )

    def is_finished(self) -> bool:
        """Whether a region that reads the known partition has come to its end."""
        at = SplitRange(
            source_id="source",
            topic="input",
            topic_id="topic-uuid",
            partition=0,
            start_offset=0,
            end_offset=0,
        )
        asked = FetchBarrierOffsets(
            checkpoint_id=1, region="main", attempt_id=0, positions=(at,), max_records=None
        )
        cut = self.barrier_service.cut(asked, ["source"], until_s=self.barrier_service.deadline_s())
        return cut.finished


def test_a_look_that_was_not_answered_is_taken_again_soon_and_not_too_often() -> None:
    """The interval is for looks that were answered."""
    bench = Bench()
    bench.source.discovery_error = AWAY
    bench.discover()
    bench.discover()
    assert bench.looked.count == 1
    for _ in range(100):
        bench.discover(0.1)
    assert 10 <= bench.looked.count <= 15, "ten seconds of pauses from 0.1 s up to 1 s"
    bench.source.discovery_error = None
    assert bench.discover(1.0)
    assert [found.partition for told in bench.told for found in told.splits] == [1]
    found = bench.looked.count
    bench.discover(9.0)
    assert bench.looked.count == found


def test_a_short_interval_is_not_stretched_by_a_failure() -> None:
    """The pause is never longer than the interval."""
    bench = Bench(settings=CheckpointSettings(discovery_interval_s=0.0))
    bench.source.discovery_error = AWAY
    for _ in range(3):
        bench.discover()
    assert bench.looked.count == 3


def test_no_source_has_come_to_its_end_while_nobody_knows_its_splits() -> None:
    """Else a bounded job would end well, without the partition that was new at its start."""
    bench = Bench()
    bench.source.discovery_error = AWAY
    bench.discover()
    assert not bench.is_finished()
    bench.source.discovery_error = None
    bench.discover(1.0)
    assert bench.is_finished()


def test_nor_while_another_regions_poll_is_looking() -> None:
    bench = Bench()
    seen: list[bool] = []
    bench.source.meanwhile = lambda: seen.append(bench.is_finished())
    bench.discover()
    assert seen == [False]
    assert bench.is_finished()


def test_without_discovery_a_source_ends_with_what_it_began_with() -> None:
    bench = Bench(settings=CheckpointSettings(discovery_interval_s=None))
    assert not bench.discover()
    assert bench.looked.count == 0
    assert bench.is_finished()


def test_what_lies_after_a_cut_is_reported_where_splits_may_move_and_the_source_knows() -> None:
    """Else a region that cuts little at a time would look as idle as one with nothing to read."""

    class Partly(FakeSource):
        """Knows nothing of partition 1."""

        def lag_records(self, positions: Sequence[SplitRange]) -> int | None:
            known = all(split.partition != 1 for split in positions)
            return super().lag_records(positions) if known else None

    at = tuple(core_split(number, 0, 0) for number in (0, 1))
    asked = FetchBarrierOffsets(
        checkpoint_id=1, region="main", attempt_id=0, positions=at, max_records=2
    )
    source = Partly("source", {0: 9, 1: 9})

    def waiting(settings: CheckpointSettings) -> Mapping[SplitKey, int]:
        serial = {"source": SerialSource(source)}
        barrier_service = SourceService(serial, settings=settings, clock=ManualClock())
        cut = barrier_service.cut(asked, ["source"], until_s=barrier_service.deadline_s())
        return cut.waiting

    assert waiting(replace(SETTINGS, balancer=LoadBalancer())) == {at[0].key: 7}
    assert waiting(SETTINGS) == {}


def of(source_id: str, start: int, end: int) -> SplitRange:
    return core_split(0, start, end, source_id=source_id)


def test_what_is_left_of_a_batch_is_asked_of_each_source_that_it_has_read() -> None:
    sources = {name: FakeSource(name, {0: 7}) for name in ("short", "away", "idle")}
    sources["away"].error = AWAY
    sources["idle"].error = DataLostError("gone", {}, "Stop.")
    barrier_service = SourceService(
        {name: SerialSource(each) for name, each in sources.items()},
        settings=SETTINGS,
        clock=ManualClock(),
    )
    ranges = of("short", 2, 10), of("away", 2, 10), of("idle", 9, 9)
    batch = Barrier(checkpoint_id=4, region="main", attempt_id=1, splits=ranges)
    left = (of("short", 2, 7), of("away", 2, 10))
    assert barrier_service.replayable(batch) == replace(batch, splits=left)
    with pytest.raises(DataLostError):
        barrier_service.replayable(replace(batch, splits=(of("idle", 8, 9),)))


def test_a_source_that_has_not_answered_is_left_alone_for_a_while() -> None:
    """Each question holds it, while others wait that it could answer; later ones wait longer."""
    clock, source = ManualClock(), FakeSource("source", {0: 9})
    source.error = AWAY
    barrier_service = SourceService(
        {"source": SerialSource(source)}, settings=SETTINGS, clock=clock
    )
    at = (core_split(0, 0, 0),)
    asked = FetchBarrierOffsets(
        checkpoint_id=1, region="main", attempt_id=0, positions=at, max_records=2
    )
    moments: list[float] = []
    for _ in range(100):
        assert barrier_service.cut(asked, ["source"], until_s=barrier_service.deadline_s()) is None
        if len(source.limits) > len(moments):
            moments.append(clock())
        clock.advance(0.01)
    pauses = [later - earlier for earlier, later in pairwise(moments)]
    assert len(pauses) == 3
    assert SETTINGS.retry_s <= pauses[0] < pauses[1] < pauses[2]


CALL_S = 1.0
SETTINGS_SLOW = CheckpointSettings(interval_s=0.05, call_timeout_s=CALL_S, discovery_interval_s=0.1)
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
        if self.is_away and any(position.partition != HEALTHY for position in positions):
            self.waited += 1
            threading.Event().wait(timeout_s)
            raise UnreachableError("no leader", {}, "Wait for one.")
        self.cuts += 1
        return super().cut(positions, max_records=max_records, timeout_s=timeout_s)


def test_a_source_after_its_lock_continues_where_it_is_reported_to() -> None:
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
        settings=SETTINGS_SLOW,
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
    # hangs makes a question or two of a region late; waiting for all regions makes most.
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
        self.clock.advance(min(self.needs_s, timeout_s))
        if timeout_s < self.needs_s:
            raise UnreachableError("too slow", {}, "Wait.")
        return super().cut(positions, max_records=max_records, timeout_s=timeout_s)


@pytest.mark.parametrize("needs_s", [[3.2, 3.2, 3.2], [4.4, 4.4]])
def test_sources_that_are_slow_are_cut_all_the_same(needs_s: list[float]) -> None:
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
    is_held = threading.Event()

    def hold() -> None:
        with source.held(1.0):
            is_held.set()
            assert go_on.wait(PATIENCE_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(PATIENCE_S)
    return thread.join


class Unmeasured(FakeSource):
    """No partition of it has a leader."""

    def measure(
        self, positions: Sequence[SplitRange], *, timeout_s: float
    ) -> Mapping[SplitKey, Backlog]:
        del positions, timeout_s
        return {}


class TestEndsOfADrain:
    """A drain is whole, or fails."""

    @staticmethod
    def ends(source: FakeSource, settings: CheckpointSettings = SETTINGS) -> dict[SplitKey, int]:
        known = [core_split(0, 0, 1)]
        service = SourceService(
            {"source": SerialSource(source)}, settings=settings, clock=ManualClock()
        )

        def post(found: SplitsDiscovered) -> None:
            known.extend(found.splits)

        return service.end_offsets(post, lambda: {"main": known})

    @pytest.mark.parametrize(("interval_s", "found"), [(10.0, [3, 5]), (None, [3])])
    def test_new_partitions_count_if_the_job_looks_for_them(
        self, interval_s: float | None, found: list[int]
    ) -> None:
        source = FakeSource("source", {0: 3, 1: 5}, known={0})
        settings = replace(SETTINGS, discovery_interval_s=interval_s)
        assert list(self.ends(source, settings).values()) == found

    def test_a_partition_without_a_leader_is_no_drained_one(self) -> None:
        with pytest.raises(UnreachableError, match="end offsets"):
            self.ends(Unmeasured("source", {0: 3}, known={0}))

    def test_a_deleted_partition_that_may_be_skipped_has_no_end(self) -> None:
        assert self.ends(Unmeasured("source", {}, known={0})) == {}


def test_nobody_waits_longer_for_a_source_than_a_call_may_take(source: PartlyAway) -> None:
    serial, go_on = SerialSource(source), threading.Event()
    told: list[object] = []
    source.committed = told.append  # type: ignore[method-assign]
    join = held(serial, go_on)
    with pytest.raises(UnreachableError, match="busy"):
        serial.cut([split(0, 0, 0)], max_records=None, timeout_s=0.01)
    serial.committed([split(0, 0, 0)])  # in the thread that commits: it continues
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
