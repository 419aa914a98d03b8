"""A region without records for hours: its core gives it the barriers that its functions want."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from sluice.runtime.contracts.keyed import KeyedFunction
from sluice.runtime.coordinator.core.events import (
    Acknowledged,
    BarrierPolled,
    FetchBarrierOffsets,
    GiveBarrier,
    RegionBarrierOffsets,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import RegionPlan
from sluice.runtime.keyed.declarations import ValueState
from sluice.runtime.keyed.operators.deduplicate import Deduplication
from sluice.runtime.keyed.operators.process import Process
from sluice.runtime.model.splits import Barrier, BatchKey
from tests.kit.coordinator.core_driver import FAST, CoreDriver
from tests.kit.keyed.operator_bed import OperatorBed
from tests.kit.keyed_parts import state_at_ends

SCHEMA = pa.schema([("key", pa.string()), ("x", pa.int64())])
OUTPUT = pa.schema([("key", pa.string()), ("r", pa.int64())])
HOURS_S = 3 * 3_600
FORGET_MS = 600_000


class Job:
    """A core whose wall clock runs, and its one task."""

    def __init__(self, function: KeyedFunction, *, follows: bool) -> None:
        plan = RegionPlan(
            name="main",
            source_ids=("source",),
            sink_ids=("sink",),
            stateful_sink_ids=(),
            chained=True,
            keyed=True,
            follows=follows,
        )
        self.driver, self.bed = CoreDriver(FAST, regions=(plan,)), OperatorBed(function, SCHEMA)
        self._end, self._batch_id, self.barriers = 0, 0, 0
        core = self.driver.core
        step = core.step
        core.step = lambda event, now_s, **more: step(  # type: ignore[method-assign]
            event, now_s, **{**more, "wall_ms": self.now_ms}
        )

    @property
    def now_ms(self) -> int:
        return int(self.driver.clock() * 1000)

    def read(self, key: str) -> list[Any]:
        """One record; the epoch ends a second later."""
        made = self.bed.apply([{"key": key, "x": 1}])
        self._end += 1
        self.driver.tick(1.0)
        barrier = self._poll(has_read=True)
        assert barrier is not None
        return made + self._ended(barrier)

    def wait(self, seconds: int) -> list[Any]:
        """Nothing comes for so long."""
        made = []
        for _ in range(seconds // 10):
            self.driver.tick(10.0)
            barrier = self._poll(has_read=False)
            if barrier is not None:
                self.barriers += 1
                made += self._ended(barrier)
        return made

    def _poll(self, *, has_read: bool) -> Barrier | None:
        polled = BarrierPolled(region="main", attempt_id=0, has_read=has_read)
        actions = self.driver.tell(polled)
        for fetch in [each for each in actions if isinstance(each, FetchBarrierOffsets)]:
            splits = tuple(
                replace(s, start_offset=s.end_offset, end_offset=self._end) for s in fetch.positions
            )
            actions += self.driver.tell(
                RegionBarrierOffsets(
                    checkpoint_id=fetch.checkpoint_id,
                    region="main",
                    attempt_id=0,
                    splits=splits,
                    finished=False,
                    has_read=has_read,
                )
            )
        return next((a.barrier for a in actions if isinstance(a, GiveBarrier)), None)

    def _ended(self, barrier: Barrier) -> list[Any]:
        made = self.bed.barrier(barrier.watermark_ms, now_ms=barrier.time_ms)
        batch = BatchKey(region="main", attempt_id=0, batch_id=self._batch_id)
        self._batch_id += 1
        ack = self.driver.acknowledgement(batch, barrier)
        region = replace(ack.region, keyed_state=state_at_ends(barrier.splits))
        due = self.bed.operator.due()
        self.driver.tell(Acknowledged(ack=replace(ack, region=region, due=due)))
        return made


def before(key: str, rows: Any, state: Any, timers: Any) -> dict[str, Any]:
    seen, state.seen.value = state.seen.value, 1
    return {"key": key, "r": seen}


def first_seen(key: str, rows: Any, state: Any, timers: Any) -> None:
    """The example of the guide."""
    if state.seen.value is None:
        state.seen.value = timers.now_ms
        timers.at_time(timers.now_ms + 60_000)


def a_minute_later(key: str, time_ms: int, state: Any, timers: Any) -> dict[str, Any]:
    state.seen.clear()
    return {"key": key, "r": time_ms}


pytestmark = pytest.mark.parametrize("follows", [True, False], ids=["continuous", "micro-batch"])


def test_a_repeated_key_passes_once_its_time_is_over(*, follows: bool) -> None:
    job = Job(Deduplication(within_ms=FORGET_MS), follows=follows)
    assert job.read("a") == [{"key": "a", "x": 1}]
    assert job.read("b") == [{"key": "b", "x": 1}]
    assert job.read("a") == []
    assert job.wait(HOURS_S) == []
    assert job.barriers == 1, "both keys leave at one barrier"
    assert job.read("a") == [{"key": "a", "x": 1}]


def test_a_value_is_gone_once_its_time_is_over(*, follows: bool) -> None:
    states = {"seen": ValueState(pa.int64(), ttl="10 m")}
    job = Job(Process(function=before, output=OUTPUT, states=states), follows=follows)
    assert job.read("a") == [{"key": "a", "r": None}]
    assert job.read("a") == [{"key": "a", "r": 1}]
    assert job.wait(HOURS_S) == []
    assert 1 <= job.barriers <= 2
    assert job.read("a") == [{"key": "a", "r": None}]


def test_a_timer_of_a_minute_waits_for_a_minute(*, follows: bool) -> None:
    states = {"seen": ValueState(pa.int64())}
    function = Process(function=first_seen, on_timer=a_minute_later, output=OUTPUT, states=states)
    job = Job(function, follows=follows)
    job.read("a")
    assert len(job.wait(HOURS_S)) == 1
    came_ms = job.now_ms
    assert job.read("b") == []
    assert job.wait(50) == []
    (fired,) = job.wait(20)
    assert 60_000 <= fired["r"] - came_ms <= 61_000
