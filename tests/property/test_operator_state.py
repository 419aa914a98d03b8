"""Operator state over starts with other numbers of regions: 1 -> n -> m, as Flink deals it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.coordinator.policy.assignment import assignment_of
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan
from sluice.runtime.coordinator.start.recovery import verify_same_job
from sluice.runtime.coordinator.start.rescaling import redistributed
from sluice.runtime.errors import WrongJobError
from sluice.runtime.functions.operator_state import dealt, decoded, encoded, state_entry
from sluice.runtime.functions.record_counts import encode_totals
from sluice.runtime.model.acknowledgement import RecordCounts
from sluice.runtime.model.checkpoint_record import (
    CheckpointRecord,
    OperatorNode,
    Redistribution,
    RegionRecord,
)
from tests.kit.coordinator.core_driver import split
from tests.kit.coordinator.starting_job import GRAPH, PLAN, record

OPERATOR = "function-with-state"
SOURCE = PLAN.regions[0].source_ids[0]
NODE = OperatorNode(operator_id=OPERATOR, name="f", kind="map_batches", upstream=(SOURCE,))

regions = st.integers(1, 9)
lists = st.lists(st.lists(st.integers(0, 1000), max_size=12), min_size=1, max_size=9)


def table(rows: Sequence[int]) -> pa.Table:
    return pa.table({"n": pa.array(rows, pa.int64())})


def numbers(made: Sequence[pa.Table]) -> list[list[int]]:
    return [part.column("n").to_pylist() for part in made]


@given(lists, regions)
def test_split_keeps_each_row_exactly_once_in_parts_of_equal_length(
    before: list[list[int]], count: int
) -> None:
    after = numbers(dealt([table(rows) for rows in before], Redistribution.SPLIT, count))
    assert [n for part in after for n in part] == [n for rows in before for n in rows]
    lengths = [len(part) for part in after]
    assert lengths == sorted(lengths, reverse=True), "the first ones may have a row more"
    assert max(lengths) - min(lengths) <= 1


@given(lists, regions)
def test_union_gives_every_region_all_rows(before: list[list[int]], count: int) -> None:
    after = numbers(dealt([table(rows) for rows in before], Redistribution.UNION, count))
    assert after == [[n for rows in before for n in rows]] * count


@given(lists, regions)
def test_broadcast_gives_every_region_one_list(before: list[list[int]], count: int) -> None:
    after = numbers(dealt([table(rows) for rows in before], Redistribution.BROADCAST, count))
    assert after == [before[at % len(before)] for at in range(count)]


# --- over starts of a job -------------------------------------------------------------------------


def plan_of(count: int) -> JobPlan:
    names = ["main"] if count == 1 else [f"main-{at}" for at in range(count)]
    return replace(
        PLAN,
        graph=(*GRAPH, NODE),
        regions=tuple(replace(PLAN.regions[0], name=name, list_ids=(OPERATOR,)) for name in names),
    )


def first(rows: list[int], mode: Redistribution) -> CheckpointRecord:
    entry = state_entry(encoded(table(rows)), operator_id=OPERATOR, redistribution=mode)
    totals = encode_totals(RecordCounts(read=7), operator_id=OPERATOR)
    region = RegionRecord(
        region="main",
        attempt_id=0,
        batch_id=1,
        splits=tuple(split(p, 0, 10) for p in range(4)),
        operator_states=(totals, *((entry,) if rows else ())),
    )
    return replace(
        record(2, regions=(region,), assignment=assignment_of([region])), graph=(*GRAPH, NODE)
    )


def restarted(found: CheckpointRecord, count: int) -> CheckpointRecord:
    """The record of the first decision of a start with ``count`` regions."""
    plan = plan_of(count)
    verify_same_job(found, plan, ())
    made, assignment = redistributed(found, plan, attempt_id=9)
    return replace(found, regions=made, assignment=assignment)


def rows_of(found: CheckpointRecord) -> list[list[int]]:
    """The list of each region."""
    return [
        [
            n
            for entry in region.operator_states
            if entry.kind == "operator-list"
            for n in decoded(entry).column("n").to_pylist()
        ]
        for region in found.regions
    ]


@given(st.lists(st.integers(0, 1000), max_size=12), regions, regions)
def test_split_lists_survive_two_starts_with_other_regions(rows: list[int], n: int, m: int) -> None:
    once = restarted(first(rows, Redistribution.SPLIT), n)
    twice = restarted(once, m)
    for found, count in ((once, n), (twice, m)):
        held = rows_of(found)
        assert len(held) == count
        assert Counter(n for part in held for n in part) == Counter(rows)


@given(st.lists(st.integers(0, 1000), max_size=12), st.integers(2, 6))
def test_union_and_broadcast_lists_reach_every_region(rows: list[int], n: int) -> None:
    for mode in (Redistribution.UNION, Redistribution.BROADCAST):
        once = restarted(first(rows, mode), n)
        assert rows_of(once) == [rows] * n
        assert rows_of(restarted(once, n)) == [rows] * n, "the same regions keep their lists"
        back = rows_of(restarted(once, 1))
        assert back == [rows * n if mode is Redistribution.UNION else rows]


@given(regions, regions)
def test_totals_of_records_stay_sums(n: int, m: int) -> None:
    found = restarted(restarted(first([1, 2], Redistribution.SPLIT), n), m)
    states = [entry for region in found.regions for entry in region.operator_states]
    assert sum(entry.kind == "record-counts" for entry in states) == 1


def test_a_function_that_no_longer_declares_its_state_is_refused() -> None:
    plan = plan_of(1)
    plan = replace(plan, regions=(replace(plan.regions[0], list_ids=()),))
    with pytest.raises(WrongJobError, match=f"map_batches 'f' \\({OPERATOR}\\)"):
        verify_same_job(first([1], Redistribution.SPLIT), plan, ())
