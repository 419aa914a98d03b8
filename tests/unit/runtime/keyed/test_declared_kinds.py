"""The kind of a keyed state has what its values depend on: a start refuses another declaration."""

from dataclasses import replace

import pyarrow as pa
import pytest

from sluice import Avg, Collect, Count, ListState, Max, Min, Session, Sliding, Tumbling, ValueState
from sluice.runtime.contracts.keyed import KeyedFunction
from sluice.runtime.keyed.operators.aggregate import Aggregation
from sluice.runtime.keyed.operators.interval_join import IntervalJoin
from sluice.runtime.keyed.operators.state_handles import specs_of
from sluice.runtime.keyed.operators.windows import WindowAggregation


def _kinds(function: KeyedFunction) -> dict[str, str]:
    return {spec.name: spec.kind for spec in function.tables}


def _window(window: object, **aggregates: object) -> KeyedFunction:
    return WindowAggregation(window=window, aggregates=aggregates or {"n": Count()}, on="t")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "aggregates",
    [
        {"least": Max("amount")},
        {"least": Avg("amount")},
        {"most": Min("amount")},
        {"least": Min("other")},
        {"least": Min("amount"), "n": Count()},
    ],
)
def test_other_aggregates_are_another_kind(aggregates: dict[str, object]) -> None:
    """Their values may have the same types: a least amount would go on as a largest one."""
    before = Aggregation(aggregates={"least": Min("amount")})
    now = Aggregation(aggregates=aggregates)  # type: ignore[arg-type]
    assert _kinds(before)["aggregates"] != _kinds(now)["aggregates"]


def test_the_same_declaration_is_the_same_kind_however_it_is_written() -> None:
    first, second = (_window(Tumbling(size)) for size in ("60 s", "1 minute"))
    assert _kinds(first) == _kinds(second)
    assert _kinds(first)["windows"] == "window Tumbling(size=60000, offset=0) n=Count()"
    one = Aggregation(aggregates={"all": Collect("amount", most=5)})
    assert _kinds(one)["aggregates"] == "aggregate all=Collect(column='amount', most=5)"


def test_other_windows_and_intervals_are_another_kind() -> None:
    windows = [Tumbling("10 s"), Tumbling("20 s"), Sliding("20 s", "10 s"), Session("10 s")]
    assert len({_kinds(_window(each))["windows"] for each in windows}) == len(windows)
    joins = [IntervalJoin(before_ms=before, after_ms=5, on=("t", "t")) for before in (5, 6)]
    joins.append(replace(joins[0], is_left=True))
    assert len({_kinds(each)["left"] for each in joins}) == 3


def test_a_time_to_live_is_part_of_the_kind() -> None:
    """Stored values begin with their time of expiry then."""
    states = [
        ValueState(pa.int64()),
        ValueState(pa.int64(), ttl="1 h"),
        ValueState(pa.int64(), ttl="1 h", ttl_time="event"),
        ListState(pa.int64()),
    ]
    assert [specs_of("last", each)[0].kind for each in states] == [
        "value",
        "value ttl by processing time",
        "value ttl by event time",
        "list",
    ]
