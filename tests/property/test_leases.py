"""Rule `lease-guards-outputs`: what becomes of runs that share a lease, whatever pauses
them, in virtual time.

The claims and their watch are the real ones. Each call of the store happens at one moment, and may
take time, be lost, or not be answered; processes are stopped, and hosts sleep, inside and between
any two calls; people stop, kill and start runs, and delete the record.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.runtime.ownership.lease import RENEWAL_INTERVAL_S, WATCHED_INTERVALS
from tests.kit.effort import examples
from tests.kit.lease_runs import Call, Freeze, RunPlan, World

pytestmark = pytest.mark.usefixtures("silence")

_FIRST_CALLS = 18  # of a run: its start, its first looks, and some renewals
_WATCH_S = RENEWAL_INTERVAL_S * WATCHED_INTERVALS
_CALM_S = 60.0  # after all pauses everybody has looked a few times

_eighths = st.integers(0, 24).map(lambda eighths: eighths / 8)
_pauses_s = st.sampled_from([0.0, 3.0, 8.0, 11.0, 14.0, 15.0, 20.0, 30.0, 45.0, 60.0])


@st.composite
def _calls(draw: st.DrawFn, *, is_quick: bool, is_sure: bool) -> Call:
    landing_s, answer_s = (0.125, 0.125) if is_quick else (draw(_eighths), draw(_eighths))
    return Call(
        before_s=draw(_pauses_s),
        during_s=draw(_pauses_s),
        is_asleep=draw(st.booleans()),
        landing_s=min(landing_s, 3.0 - answer_s),
        answer_s=answer_s,
        happens=is_sure or draw(st.integers(0, 5)) > 0,
        is_answered=is_sure or draw(st.integers(0, 5)) > 0,
    )


_freezes = st.builds(
    Freeze,
    at_s=st.integers(0, 640).map(lambda eighths: eighths / 8),
    for_s=_pauses_s,
    is_asleep=st.booleans(),
)


@st.composite
def _plans(
    draw: st.DrawFn,
    *,
    uris: Sequence[str] = ("file:/a", "file:/b"),
    is_quick: bool = False,
    is_sure: bool = False,
    is_left_alone: bool = False,
) -> RunPlan:
    """A run that begins at any time, and what befalls it.

    Args:
        is_quick: no call takes longer than a quarter of a second, but for pauses.
        is_sure: every call happens, and is answered.
        is_left_alone: nobody stops or kills it.
    """
    calls = _calls(is_quick=is_quick, is_sure=is_sure)
    is_ended = not is_left_alone and draw(st.integers(0, 4)) == 0
    return RunPlan(
        uri=draw(st.sampled_from(list(uris))),
        begins_s=draw(st.integers(0, 480)) / 8,
        ends_s=draw(st.integers(40, 800)) / 8 if is_ended else None,
        is_killed=is_ended and draw(st.booleans()),
        calls=draw(st.dictionaries(st.integers(0, _FIRST_CALLS), calls, max_size=3)),
        freezes=draw(st.lists(_freezes, max_size=2)),
    )


def _world(plans: Sequence[RunPlan], *, deleted_s: Sequence[float] = ()) -> World:
    ends_s = [80.0 + plan.begins_s + _paused_s(plan) + _CALM_S for plan in plans]
    world = World(plans, until_s=max(ends_s), deleted_s=deleted_s)
    world.pass_by()
    return world


def _paused_s(plan: RunPlan) -> float:
    in_calls_s = sum(call.before_s + call.during_s for call in plan.calls.values())
    return in_calls_s + sum(freeze.for_s for freeze in plan.freezes)


@settings(max_examples=examples(50))
@given(
    st.lists(_plans(), min_size=2, max_size=3),
    st.lists(st.integers(0, 640).map(lambda eighths: eighths / 8), max_size=1),
)
def test_lease_guards_outputs_one_run_at_most_continues(
    plans: list[RunPlan], deleted_s: list[float]
) -> None:
    world = _world(plans, deleted_s=deleted_s)
    assert len([run for run in world.runs if run.took_s is not None and not run.ended_by]) <= 1


@settings(max_examples=examples(50))
@given(st.lists(_plans(is_quick=True, is_sure=True, is_left_alone=True), min_size=2, max_size=3))
def test_lease_guards_outputs_pauses_alone_never_end_all_runs(plans: list[RunPlan]) -> None:
    world = _world(plans)
    is_given_back = any(session is None for _, session in world.records.written)
    assert is_given_back or [run for run in world.runs if not run.ended_by]


@st.composite
def _overtaken(draw: st.DrawFn) -> tuple[RunPlan, RunPlan]:
    """A run that hangs once for longer than others watch, in a call or anywhere, and one
    from a copy that begins about then: most often it takes over."""
    plan = draw(_plans(uris=["file:/a"], is_quick=True, is_sure=True, is_left_alone=True))
    pause_s, is_asleep = draw(st.sampled_from([20.0, 30.0, 45.0, 60.0])), draw(st.booleans())
    number, where = draw(st.integers(0, _FIRST_CALLS)), draw(st.integers(0, 2))
    at_s = plan.begins_s + RENEWAL_INTERVAL_S * max(0, (number - 1) // 2)
    pauses = (
        Call(before_s=pause_s, is_asleep=is_asleep),
        Call(during_s=pause_s, is_asleep=is_asleep),
        Freeze(at_s=at_s + draw(_eighths), for_s=pause_s, is_asleep=is_asleep),
    )
    match pauses[where]:
        case Call() as call:
            plan = replace(plan, calls={**plan.calls, number: call})
        case Freeze() as freeze:
            plan = replace(plan, freezes=[*plan.freezes, freeze])
    behind_s = draw(st.integers(-16, 8 * (int(pause_s - _WATCH_S) + 4))) / 8
    return plan, RunPlan(uri="file:/b", begins_s=max(plan.begins_s, at_s + behind_s))


@settings(max_examples=examples(50))
@given(_overtaken())
def test_lease_guards_outputs_who_was_taken_over_decides_no_more(
    plans: tuple[RunPlan, RunPlan],
) -> None:
    """However often it was paused, where the run from a copy is not. It may have been asleep in any
    call, or between two."""
    older, newer = _world(plans).runs
    if older.took_s is None or newer.took_s is None or newer.took_s < older.took_s:
        return
    assert older.ended_by == "fenced"
    assert [decided_s for decided_s in older.decided_s if decided_s > newer.took_s] == []


@settings(max_examples=examples(50))
@given(st.lists(_plans(uris=["file:/b", "file:/c"]), min_size=1, max_size=2))
def test_lease_guards_outputs_who_is_never_silent_is_ended_by_no_copy(plans: list[RunPlan]) -> None:
    """Whatever befalls the copies, and however slow their looks are: all are refused."""
    copies = [replace(plan, begins_s=plan.begins_s + 2.0) for plan in plans]
    living, *others = _world([RunPlan(), *copies]).runs
    assert living.ended_by is None
    assert [run.took_s for run in others if run.took_s is not None] == []


@settings(max_examples=examples(50))
@given(
    st.lists(_plans(uris=["file:/a"], is_quick=True, is_sure=True), min_size=1, max_size=2),
    st.integers(0, 320).map(lambda eighths: eighths / 8),
)
def test_lease_guards_outputs_who_is_never_silent_is_ended_by_no_older_run_of_its_directory(
    plans: list[RunPlan], behind_s: float
) -> None:
    """Whatever pauses those: their late writes are no sign of life, and they find out."""
    begins_s = max(plan.begins_s for plan in plans) + behind_s + 0.125
    world = _world([*plans, RunPlan(begins_s=begins_s)])
    *others, youngest = world.runs
    if world.begun[-1] is not youngest:
        return  # one was paused before it began
    assert youngest.ended_by is None
    assert [run for run in others if not run.ended_by] == []
