"""`process`: calls, states and timers; `test_time_to_live` has times to live."""

from typing import Any

import pyarrow as pa
import pytest

from sluice.runtime.errors import ConfigError
from sluice.runtime.keyed.declarations import ListState, MapState, ValueState
from sluice.runtime.keyed.operators import process
from sluice.runtime.keyed.operators.aggregate import RowBuffer
from sluice.runtime.keyed.operators.process import Process
from tests.kit.keyed.operator_bed import OperatorBed

SCHEMA = pa.schema([("key", pa.string()), ("x", pa.int64())])
OUTPUT = pa.schema([("key", pa.string()), ("r", pa.int64())])


def bed_of(function: Any, schema: pa.Schema = SCHEMA, **more: Any) -> OperatorBed:
    return OperatorBed(
        Process(function=function, output=OUTPUT, states=more.pop("states", {}), **more), schema
    )


def row(key: str | None, x: int | None = 0, split: int = 0) -> dict[str, Any]:
    return {"key": key, "x": x, "split": split}


def nothing(key: Any, rows: Any, state: Any, timers: Any) -> None:
    return None


def total(key: str, rows: pa.RecordBatch, state: Any, timers: Any) -> dict[str, Any]:
    state.sum.value = (state.sum.value or 0) + sum(rows.column("x").to_pylist())
    return {"key": key, "r": state.sum.value}


SUM = {"sum": ValueState(pa.int64())}


@pytest.mark.parametrize(
    "given",
    [
        {"function": lambda key, rows, state: None},
        {"function": lambda key, rows, state, timers, ctx: None},
        {"function": None},
        {"function": nothing, "on_timer": lambda key, time_ms: None},
    ],
    ids=["three", "five", "none", "timer"],
)
def test_a_function_with_other_parameters_is_refused_before_the_start(given: Any) -> None:
    with pytest.raises(ConfigError, match="four arguments"):
        Process(output=OUTPUT, states={}, **given)


def test_an_output_that_is_no_schema_is_refused_before_the_start() -> None:
    with pytest.raises(ConfigError, match="no schema"):
        Process(function=nothing, states={}, output={"key": pa.string()})  # type: ignore[arg-type]


class TestCalls:
    def test_each_key_has_one_call_with_its_rows_in_order(self) -> None:
        calls: list[tuple[Any, list[Any]]] = []

        def seen(key: Any, rows: pa.RecordBatch, state: Any, timers: Any) -> None:
            calls.append((key, rows.column("x").to_pylist()))

        bed = bed_of(seen)
        bed.apply([row("a", 1), row("b", 2), row("a", 3)], [row(None, 4), row("a", 5)])
        bed.apply([row("a", 6, split=1)])
        bed.barrier()
        assert calls == [("a", [1, 3, 5]), ("b", [2]), (None, [4]), ("a", [6])]

    def test_a_key_of_several_columns_is_a_tuple(self) -> None:
        keys: list[Any] = []
        schema = pa.schema([("key", pa.struct([("a", pa.string()), ("b", pa.int64())]))])
        bed = bed_of(lambda key, *_: keys.append(key), schema)
        bed.apply([{"key": {"a": "x", "b": 1}}])
        bed.barrier()
        assert keys == [("x", 1)]

    def test_output_keeps_the_order_of_calls_and_has_the_keys(self) -> None:
        def several(key: str, rows: pa.RecordBatch, state: Any, timers: Any) -> Any:
            made = [{"key": key, "r": x} for x in rows.column("x").to_pylist()]
            if key == "batch":
                return pa.RecordBatch.from_pylist(made, OUTPUT)
            return pa.Table.from_pylist(made, OUTPUT) if key == "table" else made

        bed = bed_of(several)
        bed.apply([row("list", 1), row("batch", 2), row("table", 3), row("list", 4)])
        assert [(r["key"], r["r"]) for r in bed.barrier()] == [
            ("list", 1),
            ("list", 4),
            ("batch", 2),
            ("table", 3),
        ]

    @pytest.mark.parametrize(
        "wrong",
        [1, "text", [1], {"r": "no number"}, {"rr": 1}, pa.RecordBatch.from_pylist([{"y": 1}])],
    )
    def test_output_of_another_schema_is_refused(self, wrong: Any) -> None:
        bed = bed_of(lambda *_: wrong)
        bed.apply([row("a")])
        with pytest.raises(ConfigError, match="no rows of its output"):
            bed.barrier()


class TestState:
    def test_a_value_is_kept_for_each_key_and_split(self) -> None:
        bed = bed_of(total, states=SUM)
        bed.apply([row("a", 1), row("a", 2), row("b", 5), row("a", 7, split=1)])
        assert [r["r"] for r in bed.barrier()] == [3, 5, 7]
        bed.restart()
        bed.apply([row("a", 4)])
        assert [r["r"] for r in bed.barrier()] == [7]

    def test_a_rollback_takes_state_and_rows_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(RowBuffer, "LARGEST", 1)  # every batch is a chunk
        bed = bed_of(total, states=SUM)
        bed.apply([row("a", 1)])
        bed.barrier()
        assert [r["r"] for r in bed.apply([row("a", 50)])] == [51]
        bed.rollback()
        assert [r["r"] for r in bed.apply([row("a", 2)])] == [3]

    def test_chunks_see_the_state_of_chunks_before(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(RowBuffer, "LARGEST", 1)
        bed = bed_of(total, states=SUM)
        assert [r["r"] for r in bed.apply([row("a", 1)], [row("a", 2)], [row("a", 3)])] == [1, 3, 6]

    def test_none_and_clear_remove_a_value(self) -> None:
        def alternating(key: str, rows: Any, state: Any, timers: Any) -> dict[str, Any]:
            before = state.a.value
            state.a.value = 1 if before is None else None
            if before is None:
                state.b.value = 1
            else:
                state.b.clear()
            return {"key": key, "r": before}

        states = {"a": ValueState(pa.int64()), "b": ValueState(pa.int64())}
        bed = bed_of(alternating, states=states)
        for expected in (None, 1, None):
            bed.apply([row("a")])
            assert [r["r"] for r in bed.barrier()] == [expected]
        bed.apply([row("a")])
        bed.barrier()
        assert list(bed.state.table(0).scan(0)) == list(bed.state.table(1).scan(0)) == []

    def test_a_list_is_a_list(self) -> None:
        def listing(key: str, rows: pa.RecordBatch, state: Any, timers: Any) -> dict[str, Any]:
            state.items.append(1)
            state.items.extend([2, None])
            state.items[0] = 7
            del state.items[1]
            return {"key": key, "r": len(state.items) * 100 + sum(x or 0 for x in state.items)}

        bed = bed_of(listing, states={"items": ListState(pa.int64())})
        bed.apply([row("a")])
        assert bed.barrier()[0]["r"] == 207
        bed.apply([row("a")])
        assert bed.barrier()[0]["r"] == 410

    def test_a_map_is_a_dict(self) -> None:
        def mapping(key: str, rows: pa.RecordBatch, state: Any, timers: Any) -> dict[str, Any]:
            for x in rows.column("x").to_pylist():
                state.seen[x] = state.seen.get(x, 0) + 1
            state.seen.pop(99, None)
            return {"key": key, "r": len(state.seen) * 100 + sum(state.seen.values())}

        bed = bed_of(mapping, states={"seen": MapState(pa.int64(), pa.int32())})
        bed.apply([row("a", 1), row("a", 2), row("a", 99)])
        assert bed.barrier()[0]["r"] == 202
        bed.apply([row("a", 1)])
        assert bed.barrier()[0]["r"] == 203

    def test_empty_lists_and_maps_leave_the_state(self) -> None:
        def cleared(key: str, rows: Any, state: Any, timers: Any) -> None:
            state.a.append(1)
            state.b[1] = 1
            state.a.clear()
            state.b.clear()

        states = {"a": ListState(pa.int64()), "b": MapState(pa.int64(), pa.int64())}
        bed = bed_of(cleared, states=states)
        bed.apply([row("a")])
        bed.barrier()
        assert list(bed.state.table(0).scan(0)) == list(bed.state.table(1).scan(0)) == []

    def test_a_read_alone_writes_nothing(self) -> None:
        bed = bed_of(lambda key, rows, state, timers: state.sum.value, states=SUM)
        bed.apply([row("a")])
        bed.barrier()
        assert list(bed.state.table(0).scan(0)) == []

    def test_a_value_of_another_type_is_refused_with_its_name(self) -> None:
        def wrong(key: str, rows: Any, state: Any, timers: Any) -> None:
            state.sum.value = "text"

        bed = bed_of(wrong, states=SUM)
        bed.apply([row("a")])
        with pytest.raises(ConfigError, match="value of another type") as caught:
            bed.barrier()
        assert "state=sum" in str(caught.value)

    def test_a_state_that_is_not_declared_is_named(self) -> None:
        bed = bed_of(lambda key, rows, state, timers: state.other.value, states=SUM)
        bed.apply([row("a")])
        with pytest.raises(ConfigError, match="not declared") as caught:
            bed.barrier()
        assert caught.value.args[1] == {"state": "other", "declared": "sum"}

    @pytest.mark.parametrize(
        ("name", "what", "remedy"),
        [
            ("sum", "assigns to a state", "state.sum.value = …"),
            ("items", "assigns to a state", "state.items.extend(…)"),
            ("seen", "assigns to a state", "state.seen[key] = …"),
            ("smu", "not declared", "Use a declared name"),
        ],
    )
    def test_an_assignment_to_a_state_itself_is_refused(
        self, name: str, what: str, remedy: str
    ) -> None:
        """All keys would share the value, and no checkpoint would have it."""
        states = SUM | {"items": ListState(pa.int64()), "seen": MapState(pa.int64(), pa.int64())}
        bed = bed_of(lambda key, rows, state, timers: setattr(state, name, 1), states=states)
        bed.apply([row("a")])
        with pytest.raises(ConfigError, match=what) as caught:
            bed.barrier()
        assert remedy in str(caught.value)

    def test_a_misspelt_value_is_no_attribute(self) -> None:
        bed = bed_of(lambda key, rows, state, timers: setattr(state.sum, "valeu", 1), states=SUM)
        bed.apply([row("a")])
        with pytest.raises(AttributeError, match="valeu"):
            bed.barrier()

    def test_a_state_is_not_tested_instead_of_its_value(self) -> None:
        """It would always be true."""
        bed = bed_of(lambda key, rows, state, timers: not state.sum, states=SUM)
        bed.apply([row("a")])
        with pytest.raises(ConfigError, match="tests a state") as caught:
            bed.barrier()
        assert "state.sum.value" in str(caught.value)

    def test_a_list_is_extended_in_place(self) -> None:
        def more(key: str, rows: Any, state: Any, timers: Any) -> dict[str, Any]:
            state.items += [1, 2]
            return {"key": key, "r": len(state.items)}

        bed = bed_of(more, states={"items": ListState(pa.int64())})
        bed.apply([row("a")])
        assert bed.barrier()[0]["r"] == 2


def noted(key: str, time_ms: int, state: Any, timers: Any) -> dict[str, Any]:
    return {"key": key, "r": time_ms}


def set_both(key: str, rows: Any, state: Any, timers: Any) -> None:
    timers.at_event_time(10)
    timers.at_event_time(20)


class TestTimers:
    def fired(self, made: list[Any]) -> list[tuple[str, int]]:
        return [(r["key"], r["r"]) for r in made]

    def setting(self, *, kind: str) -> OperatorBed:
        def at_x(key: str, rows: pa.RecordBatch, state: Any, timers: Any) -> None:
            for x in rows.column("x").to_pylist():
                getattr(timers, kind)(x)

        return bed_of(at_x, on_timer=noted)

    def test_event_timers_fire_in_order_once_when_the_watermark_is_there(self) -> None:
        bed = self.setting(kind="at_event_time")
        bed.apply([row("a", 30), row("b", 10), row("a", 20), row("a", 20)])
        assert self.fired(bed.barrier(9)) == []
        bed.restart()
        assert self.fired(bed.barrier(20)) == [("b", 10), ("a", 20)]
        assert self.fired(bed.barrier(29)) == []
        assert bed.operator.due().event_ms == 30
        assert self.fired(bed.barrier(30)) == [("a", 30)]
        assert self.fired(bed.barrier(1000)) == []

    def test_a_timer_of_the_past_fires_at_the_next_barrier(self) -> None:
        bed = self.setting(kind="at_event_time")
        bed.barrier(100)
        bed.apply([row("a", 30)])
        assert self.fired(bed.barrier(100)) == [("a", 30)]

    def test_time_timers_follow_the_clock_of_barriers(self) -> None:
        bed = self.setting(kind="at_time")
        bed.apply([row("a", 5_000)])
        assert bed.barrier(now_ms=4_999) == []
        assert bed.operator.due().time_ms == 5_000
        assert self.fired(bed.barrier(now_ms=5_000)) == [("a", 5_000)]
        assert bed.barrier(now_ms=6_000) == []

    @pytest.mark.parametrize("most", [1, 2, 100_000])
    def test_a_timer_that_a_timer_sets_fires_in_its_order(
        self, most: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(process, "_MOST_FIRED", most)

        def setting(key: str, time_ms: int, state: Any, timers: Any) -> dict[str, Any]:
            if time_ms == 10:
                timers.at_event_time(15)
                timers.at_event_time(15)
                timers.at_event_time(20)
                timers.at_event_time(31)
            if time_ms == 15:
                timers.delete_event_time(25)
            return {"key": key, "r": time_ms}

        def at_x(key: str, rows: pa.RecordBatch, state: Any, timers: Any) -> None:
            for x in rows.column("x").to_pylist():
                timers.at_event_time(x)

        bed = bed_of(at_x, on_timer=setting)
        bed.apply([row("a", 10), row("a", 20), row("b", 20), row("a", 25), row("b", 30)])
        assert self.fired(bed.barrier(30)) == [
            ("a", 10),
            ("a", 15),
            ("a", 20),
            ("b", 20),
            ("b", 30),
        ]
        assert self.fired(bed.barrier(40)) == [("a", 31)]

    def test_the_end_of_the_input_fires_event_timers_that_were_set_before(self) -> None:
        def again(key: str, time_ms: int, state: Any, timers: Any) -> dict[str, Any]:
            timers.at_event_time(time_ms + 10)
            return {"key": key, "r": time_ms}

        def at_x(key: str, rows: pa.RecordBatch, state: Any, timers: Any) -> None:
            timers.at_event_time(rows.column("x")[0].as_py())
            timers.at_time(1 << 50)

        bed = bed_of(at_x, on_timer=again)
        bed.apply([row("a", 5), row("b", 50)])
        assert self.fired(bed.barrier(0, is_end=True)) == [("a", 5), ("b", 50)]

    @pytest.mark.parametrize("most", [1, 2, 100_000])
    @pytest.mark.parametrize("is_end", [False, True])
    def test_a_timer_of_a_later_chunk_does_not_fire_after_an_earlier_one_deletes_it(
        self, most: int, is_end: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(process, "_MOST_FIRED", most)

        def reminder(key: str, time_ms: int, state: Any, timers: Any) -> dict[str, Any]:
            timers.delete_event_time(20)
            return {"key": key, "r": time_ms}

        bed = bed_of(set_both, on_timer=reminder)
        bed.apply([row("a"), row("b"), row("c")])
        fired = self.fired(bed.barrier(100, is_end=is_end))
        assert fired == [("a", 10), ("b", 10), ("c", 10)]
        bed.restart()
        assert bed.barrier(100, is_end=True) == []

    @pytest.mark.parametrize("most", [1, 2, 100_000])
    def test_a_timer_of_a_later_chunk_that_is_set_again_fires_once(
        self, most: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(process, "_MOST_FIRED", most)

        def again(key: str, time_ms: int, state: Any, timers: Any) -> dict[str, Any]:
            if time_ms == 10:
                timers.at_event_time(20)
            return {"key": key, "r": time_ms}

        bed = bed_of(set_both, on_timer=again)
        bed.apply([row("a"), row("b"), row("c")])
        fired = self.fired(bed.barrier(100, is_end=True))
        bed.restart()
        fired += self.fired(bed.barrier(100, is_end=True))
        assert sorted(fired) == [(key, time_ms) for key in "abc" for time_ms in (10, 20)]

    @pytest.mark.parametrize("most", [1, 2, 100_000])
    def test_timers_that_are_set_at_the_end_of_the_input_are_for_the_next_run(
        self, most: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also one that has fired, and one that was deleted; each fires once there."""
        monkeypatch.setattr(process, "_MOST_FIRED", most)

        def again(key: str, time_ms: int, state: Any, timers: Any) -> dict[str, Any]:
            timers.at_event_time(time_ms)
            timers.at_event_time(15)
            if key == "b":
                timers.delete_event_time(15)
            return {"key": key, "r": time_ms}

        bed = bed_of(set_both, on_timer=again)
        bed.apply([row("a"), row("b")])
        first = self.fired(bed.barrier(100, is_end=True))
        assert first == [("a", 10), ("b", 10), ("a", 20), ("b", 20)]
        bed.restart()
        second = self.fired(bed.barrier(100, is_end=True))
        assert second == [("a", 10), ("b", 10), ("a", 15), ("a", 20), ("b", 20)]

    def test_a_timer_that_a_timer_sets_fires_at_the_same_barrier_if_it_is_due(self) -> None:
        def again(key: str, time_ms: int, state: Any, timers: Any) -> dict[str, Any]:
            timers.at_event_time(time_ms + 10)
            return {"key": key, "r": time_ms}

        bed = bed_of(lambda key, rows, state, timers: timers.at_event_time(5), on_timer=again)
        bed.apply([row("a")])
        assert self.fired(bed.barrier(30)) == [("a", 5), ("a", 15), ("a", 25)]
        assert self.fired(bed.barrier(35)) == [("a", 35)]

    def test_deleted_timers_do_not_fire(self) -> None:
        def deleting(key: str, rows: pa.RecordBatch, state: Any, timers: Any) -> None:
            timers.at_event_time(5)
            timers.at_event_time(6)
            timers.delete_event_time(5)

        def no_other(key: str, time_ms: int, state: Any, timers: Any) -> dict[str, Any]:
            timers.delete_event_time(7)
            return {"key": key, "r": time_ms}

        bed = bed_of(deleting, on_timer=no_other)
        bed.apply([row("a")])
        assert self.fired(bed.barrier(100)) == [("a", 6)]
        both = self.setting(kind="at_event_time")
        both.operator._function = Process(  # noqa: SLF001
            function=both.function.function, output=OUTPUT, states={}, on_timer=no_other
        )
        both.apply([row("a", 6), row("a", 7), row("b", 7)])
        assert self.fired(both.barrier(100)) == [("a", 6), ("b", 7)]

    def test_timers_share_the_state_of_their_key(self) -> None:
        def add(key: str, time_ms: int, state: Any, timers: Any) -> dict[str, Any]:
            state.sum.value = state.sum.value + time_ms
            return {"key": key, "r": state.sum.value}

        def start(key: str, rows: Any, state: Any, timers: Any) -> None:
            state.sum.value = 1000
            timers.at_event_time(1)
            timers.at_event_time(2)

        bed = bed_of(start, on_timer=add, states=SUM)
        bed.apply([row("a"), row("b")])
        assert [r["r"] for r in bed.barrier(2)] == [1001, 1001, 1003, 1003]

    def test_rollback_forgets_timers_of_the_epoch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(RowBuffer, "LARGEST", 1)
        bed = self.setting(kind="at_event_time")
        bed.apply([row("a", 5)])
        bed.rollback()
        assert bed.barrier(100) == []

    def times(self) -> tuple[OperatorBed, list[Any]]:
        """The watermark and the time of each call; a row sets a timer of now."""
        seen: list[Any] = []

        def note(timers: Any) -> None:
            seen.append((timers.watermark_ms, timers.now_ms))

        def times(key: str, rows: Any, state: Any, timers: Any) -> None:
            note(timers)
            timers.at_time(timers.now_ms)

        return bed_of(times, on_timer=lambda key, ms, state, timers: note(timers)), seen

    def test_rows_have_the_watermark_before_them_and_the_time_of_their_barrier(self) -> None:
        """The last barrier may be hours before them."""
        bed, seen = self.times()
        bed.apply([row("a")])
        bed.barrier(7, now_ms=1_234)
        bed.restart()
        bed.apply([row("a")])
        bed.barrier(8, now_ms=2_345)
        assert seen == [(None, 1_234), (7, 1_234), (7, 2_345), (8, 2_345)]

    def test_calls_before_the_barrier_have_the_time_of_the_task(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(RowBuffer, "LARGEST", 2)
        bed, seen = self.times()
        bed.barrier(7, now_ms=1_000)
        bed.now_ms = 9_000
        bed.apply([row("a"), row("b")], [row("a")])
        bed.barrier(8, now_ms=9_500)
        assert [now_ms for _, now_ms in seen] == [9_000, 9_000, 9_500, 9_500, 9_500, 9_500]

    def test_the_time_of_calls_does_not_go_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The clock of a host may be wrong by some time."""
        monkeypatch.setattr(RowBuffer, "LARGEST", 2)
        bed, seen = self.times()
        bed.barrier(7, now_ms=1_000)
        bed.restart()
        bed.now_ms = 900
        bed.apply([row("a"), row("a")])
        bed.now_ms = 3_000
        bed.apply([row("a"), row("a")])
        bed.now_ms = 2_900
        bed.apply([row("a"), row("a")], [row("a")])
        bed.barrier(8, now_ms=2_950)
        times = [now_ms for _, now_ms in seen]
        assert times == [1_000, 3_000, 3_000, 3_000, 3_000]
        bed.apply([row("a")])
        bed.barrier(8, now_ms=2_960)
        assert [now_ms for _, now_ms in seen[5:]] == [2_960, 2_960]

    def test_a_timer_of_a_minute_fires_a_minute_after_its_row(self) -> None:
        """Also after hours without rows: the first key's timer fires, and no barrier comes."""

        def first_seen(key: str, rows: Any, state: Any, timers: Any) -> None:
            timers.at_time(timers.now_ms + 60_000)

        bed = bed_of(first_seen, on_timer=noted)
        bed.apply([row("a")])
        bed.barrier(now_ms=1_000)
        assert self.fired(bed.barrier(now_ms=61_000)) == [("a", 61_000)]
        bed.now_ms = 10_800_000
        bed.apply([row("b")])
        assert bed.barrier(now_ms=10_801_000) == []
        assert bed.barrier(now_ms=10_860_999) == []
        assert self.fired(bed.barrier(now_ms=10_861_000)) == [("b", 10_861_000)]

    def test_timers_need_a_function_and_a_whole_number(self) -> None:
        bed = bed_of(lambda key, rows, state, timers: timers.at_time(5))
        bed.apply([row("a")])
        with pytest.raises(ConfigError, match="no function for it"):
            bed.barrier()
        bed = bed_of(lambda key, rows, state, timers: timers.at_time(5.5), on_timer=noted)
        bed.apply([row("a")])
        with pytest.raises(ConfigError, match="whole milliseconds"):
            bed.barrier()
