"""Aggregates, windows, joins and deduplication against references that look at every row.

Late, equal, null and future times; batches that end anywhere; barriers, rollbacks and restarts at
random. What comes out depends on rows and barriers alone.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.runtime.contracts.keyed import BarrierTime
from sluice.runtime.keyed.declarations import (
    ApproxDistinct,
    Avg,
    Collect,
    Count,
    First,
    Last,
    Max,
    Min,
    Session,
    Sliding,
    Sum,
    Tumbling,
    ValueState,
    Window,
)
from sluice.runtime.keyed.operators.aggregate import Aggregation, RowBuffer
from sluice.runtime.keyed.operators.deduplicate import Deduplication
from sluice.runtime.keyed.operators.interval_join import IntervalJoin
from sluice.runtime.keyed.operators.process import Process
from sluice.runtime.keyed.operators.windows import WindowAggregation
from sluice.runtime.keyed.sides import SIDE
from tests.kit.effort import examples
from tests.kit.keyed.operator_runs import (
    Epoch,
    OperatorRun,
    batch_of,
    epochs,
    one_batch,
    timed_rows,
)
from tests.kit.keyed.reference_aggregates import aggregated, is_near
from tests.kit.keyed.reference_joins import Pair, ReferenceDeduplication, ReferenceJoin, Sided
from tests.kit.keyed.reference_process import ReferenceProcess, effect
from tests.kit.keyed.reference_windows import Pane, ReferenceWindows, Timed

LONGEST_MS = 40
ROWS = timed_rows(LONGEST_MS)
EPOCHS = epochs(ROWS, LONGEST_MS)
AGGREGATES = {
    "count": Count(),
    "values": Count("value"),
    "sum": Sum("value"),
    "min": Min("value"),
    "max": Max("value"),
    "avg": Avg("value"),
    "distinct": ApproxDistinct("value"),
    "first": First("value"),
    "last": Last("value"),
    "first_known": First("value", ignore_nulls=True),
    "last_known": Last("value", ignore_nulls=True),
    "collected": Collect("value", most=4),
}
OF_ORDER = {"first", "last", "first_known", "last_known", "collected"}


def require_equal(found: Mapping[str, Any], rows: Sequence[Timed], names: Sequence[str]) -> None:
    listed = [{"value": row.value} for row in rows]
    for name in names:
        expected = aggregated(AGGREGATES[name], listed)
        assert is_near(AGGREGATES[name], found[name], expected), (name, found, rows)


@given(EPOCHS)
@settings(max_examples=examples(10))
def test_aggregates_are_of_all_rows_so_far(planned: list[Epoch]) -> None:
    """Each changed key comes out once, at the barrier."""
    run = OperatorRun(Aggregation(aggregates=AGGREGATES), one_batch)
    rows: dict[tuple[int, bytes | None], list[Timed]] = {}
    for epoch in planned:
        for row in epoch.rows:
            rows.setdefault(row.key, []).append(row)
        made = run.epoch(epoch)
        found = {(each["split"], each["key"]): each for each in made}
        assert len(found) == len(made)
        assert found.keys() == {row.key for row in epoch.rows}
        for key, each in found.items():
            require_equal(each, rows[key], list(AGGREGATES))
    assert run.late_count == 0


def in_ms(found: Mapping[str, Any]) -> tuple[int, int]:
    return tuple(round(found[name].timestamp() * 1000) for name in ("window_start", "window_end"))


WINDOWS: tuple[Window, ...] = (
    Tumbling(0.01),
    Tumbling(0.01, 0.003),
    Sliding(0.01, 0.004),
    Sliding(0.012, 0.012, 0.005),
    Session(0.006),
)


@pytest.mark.parametrize("window", WINDOWS, ids=repr)
@given(EPOCHS, st.sampled_from([0, 7]), st.booleans())
@settings(max_examples=examples(10))
def test_windows_are_of_the_rows_in_them(
    window: Window, planned: list[Epoch], lateness_ms: int, updates: bool
) -> None:
    names = [n for n in AGGREGATES if not (isinstance(window, Session) and n in OF_ORDER)]
    function = WindowAggregation(
        window=window,
        aggregates={name: AGGREGATES[name] for name in names},
        on="at",
        lateness_ms=lateness_ms,
        late_topic="late",
        updates=updates,
    )
    run = OperatorRun(function, one_batch)
    reference = ReferenceWindows(window, lateness_ms=lateness_ms, updates=updates)
    for epoch in planned:
        expected = {(pane.key, pane.span): pane for pane in reference.epoch(epoch.rows, epoch.time)}
        made = run.epoch(epoch)
        found = {((each["split"], each["key"]), in_ms(each)): each for each in made}
        assert len(found) == len(made), "a window comes out twice"
        assert found.keys() == expected.keys()
        for at, each in found.items():
            pane: Pane = expected[at]
            require_equal(each, pane.rows, names)
        assert run.late_count == len(reference.late)
    assert Counter(row["value"] for row in run.late) == Counter(r.value for r in reference.late)


@given(EPOCHS, st.booleans())
@settings(max_examples=examples(20))
def test_the_first_row_of_a_key_passes(planned: list[Epoch], by_event: bool) -> None:
    run = OperatorRun(Deduplication(within_ms=8, on="at" if by_event else None), one_batch)
    reference = ReferenceDeduplication(within_ms=8, by_event=by_event)
    for epoch in planned:
        expected = [(r.key, r.value) for r in reference.epoch(epoch.rows, epoch.time)]
        found = [((r["split"], r["key"]), r["value"]) for r in run.epoch(epoch)]
        assert found == expected
        assert run.late_count == len(reference.late)


def by_side(rows: Sequence[Sided]) -> Iterator[tuple[Sequence[Timed], pa.RecordBatch]]:
    """Batches of one side each, as the repartition source returns them."""
    for side, group in groupby(rows, lambda each: each.side):
        timed = [each.row for each in group]
        batch = batch_of(timed).rename_columns(["key", "at", "left" if not side else "right"])
        yield timed, batch.append_column(SIDE, pa.array([side] * len(timed), pa.int8()))


def joined(found: Mapping[str, Any]) -> tuple[Any, ...]:
    return found["split"], found["key"], found["left"], found.get("right")


def paired(pair: Pair) -> tuple[Any, ...]:
    left, right = pair
    return *left.key, left.value, None if right is None else right.value


@given(
    epochs(st.builds(Sided, st.sampled_from([0, 1]), ROWS), LONGEST_MS),
    st.integers(0, LONGEST_MS),
    st.integers(0, LONGEST_MS),
    st.booleans(),
)
@settings(max_examples=examples(30))
def test_rows_of_both_sides_are_joined(
    planned: list[Epoch], before_ms: int, after_ms: int, is_left: bool
) -> None:
    function = IntervalJoin(
        before_ms=before_ms,
        after_ms=after_ms,
        on=("at", "at"),
        is_left=is_left,
        suffixes=("", "_right"),
    )
    run = OperatorRun(function, by_side)
    reference = ReferenceJoin(before_ms, after_ms, is_left)
    for epoch in planned:
        expected = Counter(paired(pair) for pair in reference.epoch(epoch.rows, epoch.time))
        found = Counter(joined(each) for each in run.epoch(epoch))
        assert found == expected
        assert run.late_count == len(reference.late)


def test_a_left_row_without_a_partner_has_none_later_either() -> None:
    """A right row that would be its partner is late, also for later left rows."""
    key = (0, b"a")
    rows = [[Sided(1, Timed(key, 0, None)), Sided(0, Timed(key, 100, 1))]]
    rows += [[Sided(1, Timed(key, 98, 2))], [Sided(0, Timed(key, 105, 3))]]
    function = IntervalJoin(
        before_ms=40, after_ms=0, on=("at", "at"), is_left=True, suffixes=("", "_right")
    )
    run, made = OperatorRun(function, by_side), []
    for each in rows:
        time = BarrierTime(watermark_ms=101, now_ms=0)
        epoch = Epoch(rows=each, cuts=frozenset(), attempts=[], time=time, restarts=False)
        made += [joined(found) for found in run.epoch(epoch)]
    assert made == [(*key, 1, None)]
    assert run.late_count == 1


def test_values_of_sliding_windows_come_in_the_order_of_their_rows() -> None:
    """Also where they are folded in several parts."""
    window = Sliding(0.01, 0.002)
    rows = [Timed((0, b"a"), time_ms, value) for value, time_ms in enumerate([9, 1, 5, 3, 7])]
    function = WindowAggregation(window=window, aggregates=AGGREGATES, on="at")
    time = BarrierTime(watermark_ms=None, now_ms=0, is_end=True)
    epoch = Epoch(rows=rows, cuts=frozenset(), attempts=[], time=time, restarts=False)
    run, reference = OperatorRun(function, one_batch), ReferenceWindows(window)
    panes = {pane.span: pane for pane in reference.epoch(rows, time)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowBuffer, "LARGEST", 7)
        for each in run.epoch(epoch):
            require_equal(each, panes[in_ms(each)].rows, list(AGGREGATES))


CALLS = pa.schema({"key": pa.binary(), "fired_ms": pa.int64(), "count": pa.int64()})


def called(key: bytes | None, fired_ms: int | None, number: int, state: Any, timers: Any) -> Any:
    """As the reference: count, and do what the number says."""
    count = (state.count.value or 0) + 1
    state.count.value = count
    what, at = effect(number)
    match what:
        case "event":
            timers.at_event_time(at)
        case "time":
            timers.at_time(at)
        case "delete event":
            timers.delete_event_time(at)
        case "delete time":
            timers.delete_time(at)
        case "clear":
            state.count.clear()
    return {"key": key, "fired_ms": fired_ms, "count": count}


def on_rows(key: bytes | None, rows: pa.RecordBatch, state: Any, timers: Any) -> list[Any]:
    values = rows.column("value").to_pylist()
    return [called(key, None, value or 0, state, timers) for value in values]


def on_timer(key: bytes | None, time_ms: int, state: Any, timers: Any) -> Any:
    return called(key, time_ms, time_ms, state, timers)


@given(EPOCHS)
@settings(max_examples=examples(40))
def test_functions_are_called_with_their_state_and_timers(planned: list[Epoch]) -> None:
    """Timers fire once each, also if a function sets or deletes one that is due."""
    function = Process(
        function=on_rows,
        on_timer=on_timer,
        states={"count": ValueState(pa.int64(), ttl=0.015)},
        output=CALLS,
    )
    run, reference = OperatorRun(function, one_batch), ReferenceProcess(ttl_ms=15)
    for epoch in planned:
        made = [((r["split"], r["key"]), r["fired_ms"], r["count"]) for r in run.epoch(epoch)]
        expected = reference.epoch(epoch.rows, epoch.time)
        for key in {each[0] for each in (*made, *expected)}:
            found = [each for each in made if each[0] == key]
            assert found == [each for each in expected if each[0] == key]


def test_a_timer_that_is_due_and_set_again_by_an_earlier_one_fires_once() -> None:
    def on_row(key: Any, rows: Any, state: Any, timers: Any) -> None:
        timers.at_event_time(10)
        timers.at_event_time(20)

    def again(key: Any, time_ms: int, state: Any, timers: Any) -> Any:
        if time_ms == 10:
            timers.at_event_time(20)
        return {"key": key, "fired_ms": time_ms, "count": 1}

    function = Process(function=on_row, on_timer=again, states={}, output=CALLS)
    run = OperatorRun(function, one_batch)
    time = BarrierTime(watermark_ms=30, now_ms=0)
    rows = [Timed((0, b"a"), 1, None)]
    epoch = Epoch(rows=rows, cuts=frozenset(), attempts=[], time=time, restarts=False)
    assert [each["fired_ms"] for each in run.epoch(epoch)] == [10, 20]
