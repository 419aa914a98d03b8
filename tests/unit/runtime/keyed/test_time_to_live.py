"""Times to live of the states of `process`: when a value is gone, and when it leaves the state."""

from typing import Any

import pyarrow as pa
import pytest

from sluice.runtime.contracts.keyed import Due
from sluice.runtime.keyed.declarations import ListState, MapState, ValueState
from sluice.runtime.keyed.operators.aggregate import RowBuffer
from sluice.runtime.keyed.operators.process import Process
from tests.kit.keyed.operator_bed import OperatorBed

SCHEMA = pa.schema([("key", pa.string()), ("x", pa.int64())])
OUTPUT = pa.schema([("key", pa.string()), ("r", pa.int64())])


def bed_of(function: Any, *, states: Any, on_timer: Any = None) -> OperatorBed:
    process = Process(function=function, output=OUTPUT, states=states, on_timer=on_timer)
    return OperatorBed(process, SCHEMA)


def row(key: str, x: int = 0) -> dict[str, Any]:
    return {"key": key, "x": x}


def has(key: str, rows: Any, state: Any, timers: Any) -> dict[str, Any]:
    before = state.v.value
    if rows.column("x")[0].as_py():
        state.v.value = 1
    return {"key": key, "r": before}


class TestTimeToLive:
    def read(self, bed: OperatorBed) -> int | None:
        (made,) = bed.apply([row("a", 0)])
        return made["r"]

    @pytest.fixture(autouse=True)
    def _each_batch_is_a_chunk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(RowBuffer, "LARGEST", 1)

    def test_a_value_leaves_at_the_first_barrier_that_is_so_much_later(self) -> None:
        bed = bed_of(has, states={"v": ValueState(pa.int64(), ttl="10 s")})
        bed.apply([row("a", 1)])
        bed.barrier(now_ms=1_000)
        bed.barrier(now_ms=10_999)
        bed.restart()
        assert self.read(bed) == 1
        bed.barrier(now_ms=11_000)
        assert self.read(bed) is None
        bed.barrier(now_ms=12_000)
        assert list(bed.state.table(0).scan(0)) == []
        assert bed.state.timed_table(1).earliest_ms(0) is None

    def test_a_write_begins_it_anew_and_a_read_does_not(self) -> None:
        bed = bed_of(has, states={"v": ValueState(pa.int64(), ttl="10 s")})
        bed.apply([row("a", 1)])
        bed.barrier(now_ms=1_000)
        bed.apply([row("a", 1)])
        bed.barrier(now_ms=6_000)
        assert self.read(bed) == 1
        bed.barrier(now_ms=11_000)
        assert self.read(bed) == 1
        bed.barrier(now_ms=15_999)
        assert self.read(bed) == 1
        bed.barrier(now_ms=16_000)
        assert self.read(bed) is None

    @pytest.mark.parametrize("most", [1, 100])
    def test_a_value_is_gone_in_time_although_no_barrier_has_removed_it(
        self, most: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also for a call that waits for the barrier, and also if the clock of the host was ahead:
        what one call does not see, no later one sees."""
        monkeypatch.setattr(RowBuffer, "LARGEST", most)
        bed = bed_of(has, states={"v": ValueState(pa.int64(), ttl="10 s")})
        bed.apply([row("a", 1), row("b", 1), row("c", 1)])
        bed.barrier(now_ms=1_000)
        bed.now_ms = 10_999
        made = bed.apply([row("a")])
        made += bed.barrier(now_ms=10_999)
        bed.now_ms = 11_000
        made += bed.apply([row("a"), row("b", 1)])
        made += bed.barrier(now_ms=11_000 if most > 1 else 10_999)
        made += bed.apply([row("a"), row("b")])
        made += bed.barrier(now_ms=10_999)
        assert [(r["key"], r["r"]) for r in made] == [
            ("a", 1),
            ("a", None),
            ("b", None),
            ("a", None),
            ("b", 1),
        ]
        bed.barrier(now_ms=30_000)
        assert list(bed.state.table(0).scan(0)) == []
        assert bed.state.timed_table(1).earliest_ms(0) is None

    def test_a_timer_does_not_see_a_value_that_is_over(self) -> None:
        def read(key: str, time_ms: int, state: Any, timers: Any) -> dict[str, Any]:
            return {"key": key, "r": state.v.value}

        def setting(key: str, rows: Any, state: Any, timers: Any) -> None:
            state.v.value = 1
            timers.at_time(rows.column("x")[0].as_py())

        bed = bed_of(setting, on_timer=read, states={"v": ValueState(pa.int64(), ttl="10 s")})
        bed.apply([row("a", 10_999), row("b", 11_000)])
        bed.barrier(now_ms=1_000)
        assert bed.barrier(now_ms=10_999) == [{"key": "a", "r": 1}]
        assert bed.barrier(now_ms=11_000) == [{"key": "b", "r": None}]

    def test_a_region_without_records_wants_a_barrier_to_remove_what_is_over(self) -> None:
        """A sixteenth of the time later, so that it wants few of them. With event time, the barrier
        alone removes a value: it wants each one, and none of them holds output back."""
        bed = bed_of(has, states={"v": ValueState(pa.int64(), ttl="16 s")})
        assert bed.operator.due() == Due()
        bed.apply([row("a", 1)])
        bed.barrier(now_ms=1_000)
        assert bed.operator.due() == Due(time_ms=18_000)
        bed.barrier(now_ms=18_000)
        assert bed.operator.due() == Due()
        state = ValueState(pa.int64(), ttl="16 s", ttl_time="event")
        bed = bed_of(has, states={"v": state})
        bed.apply([row("a", 1)])
        bed.barrier(1_000)
        assert bed.operator.due() == Due(expiry_ms=17_000)
        bed.barrier(17_000)
        assert bed.operator.due() == Due()

    def test_event_time_follows_the_watermark(self) -> None:
        state = ValueState(pa.int64(), ttl="10 s", ttl_time="event")
        bed = bed_of(has, states={"v": state})
        bed.apply([row("a", 1)])
        bed.barrier(None)
        assert self.read(bed) == 1
        bed.barrier(1_000)
        bed.barrier(10_999)
        assert self.read(bed) == 1
        bed.barrier(11_000)
        assert self.read(bed) is None

    def test_a_value_that_was_removed_and_set_again_lives_on(self) -> None:
        def toggled(key: str, rows: Any, state: Any, timers: Any) -> dict[str, Any]:
            before, x = state.v.value, rows.column("x")[0].as_py()
            if x:
                state.v.value = x if x > 0 else None
            return {"key": key, "r": before}

        bed = bed_of(toggled, states={"v": ValueState(pa.int64(), ttl="10 s")})
        bed.apply([row("a", 1)])
        bed.barrier(now_ms=1_000)
        bed.apply([row("a", -1)])
        bed.barrier(now_ms=2_000)
        bed.apply([row("a", 3)])
        bed.barrier(now_ms=5_000)
        bed.barrier(now_ms=11_000)
        assert self.read(bed) == 3
        bed.barrier(now_ms=15_000)
        assert self.read(bed) is None

    def test_lists_and_maps_live_as_a_whole(self) -> None:
        def noting(key: str, rows: Any, state: Any, timers: Any) -> dict[str, Any]:
            if rows.column("x")[0].as_py():
                state.items.append(1)
                state.seen[1] = 2
            return {"key": key, "r": len(state.items) + len(state.seen)}

        states = {
            "items": ListState(pa.int64(), ttl="1 s"),
            "seen": MapState(pa.int64(), pa.int64(), ttl="2 s"),
        }
        bed = bed_of(noting, states=states)
        bed.apply([row("a", 1)])
        bed.barrier(now_ms=1_000)
        assert self.read(bed) == 2
        bed.barrier(now_ms=2_000)
        assert self.read(bed) == 1
        bed.barrier(now_ms=3_000)
        assert self.read(bed) == 0
