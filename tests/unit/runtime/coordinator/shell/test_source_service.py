"""When sources are asked for new splits, and what a source that nobody could ask has not read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from sluice.runtime.coordinator.core.events import FetchBarrierOffsets, SplitsDiscovered
from sluice.runtime.coordinator.policy.balance import LoadBalancer
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings
from sluice.runtime.coordinator.shell.source_service import SerialSource, SourceService
from sluice.runtime.errors import DataLostError, UnreachableError
from sluice.runtime.model.splits import Barrier, SplitKey, SplitRange
from tests.kit.coordinator.core_driver import split as core_split
from tests.kit.fakes import FakeSource, ManualClock

AWAY = UnreachableError("no answer", {}, "Wait.")
SETTINGS = CheckpointSettings(discovery_interval_s=10.0, retry_s=0.1, max_retry_s=1.0)


@dataclass(slots=True)
class Looked:
    """How often a source that does not answer was asked."""

    count: int = 0

    def __call__(self) -> None:
        self.count += 1


class CountedSource(FakeSource):
    """Tells how often it was asked for new splits, and when it is about to answer."""

    def __init__(self, ends: dict[int, int], *, meanwhile: Callable[[], None]) -> None:
        super().__init__("source", ends, bounded=True)
        self.meanwhile = meanwhile

    def discover(self, *, timeout_s: float) -> tuple[SplitRange, ...]:
        """See `SplitEnumerator.discover`."""
        self.meanwhile()
        return super().discover(timeout_s=timeout_s)


@dataclass(slots=True)
class Bench:
    """A bounded source of two partitions, one of which is new, and the desk before it."""

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
        assert cut is not None
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
    """What it finds may be anybody's."""
    bench = Bench()
    seen: list[bool] = []
    bench.source.meanwhile = lambda: seen.append(bench.is_finished())
    bench.discover()
    assert seen == [False]
    assert bench.is_finished()


def test_without_discovery_a_source_ends_with_what_it_began_with() -> None:
    """Nobody is ever asked."""
    bench = Bench(settings=CheckpointSettings(discovery_interval_s=None))
    assert not bench.discover()
    assert bench.looked.count == 0
    assert bench.is_finished()


def test_what_lies_behind_a_cut_is_told_where_splits_may_move_and_the_source_knows() -> None:
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
        assert cut is not None
        return cut.waiting

    assert waiting(replace(SETTINGS, balancer=LoadBalancer())) == {at[0].key: 7}
    assert waiting(SETTINGS) == {}


def of(source_id: str, start: int, end: int) -> SplitRange:
    """A range of the source's first partition."""
    return core_split(0, start, end, source_id=source_id)


def test_what_is_left_of_a_batch_is_asked_of_each_source_that_it_has_read() -> None:
    """Where one does not answer whoever reads waits for its brokers; empty ranges are nothing to be
    read, and nobody is asked about them."""
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
