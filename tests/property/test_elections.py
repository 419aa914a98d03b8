"""The election by leases, in virtual time: whatever pauses, loses or delays what.

The candidates and their threads are the real ones. Each call of the store takes time, may fail with
or without effect, or lands later. Processes are stopped and killed, and hosts sleep, at any moment.
"""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.effort import examples
from tests.kit.election_runs import DURATION_S, CandidatePlan, Freeze, Run, World
from tests.kit.files.fake_file_system import Fault

pytestmark = pytest.mark.usefixtures("silence")

_CALM_S = 90.0
_UNTIL_S = _CALM_S + 60.0

_pauses_s = st.sampled_from([0.5, 2.0, 3.0, 5.0, 6.0, 7.0, 13.0, 20.0, 40.0])
_freezes = st.builds(
    Freeze,
    at_s=st.integers(0, 400).map(lambda eighths: eighths / 8),
    for_s=_pauses_s,
    is_asleep=st.booleans(),
)
_numbers = st.integers(1, 60)


@st.composite
def _plans(draw: st.DrawFn) -> CandidatePlan:
    is_ended = draw(st.integers(0, 2)) == 0
    blind_s = draw(st.integers(0, 60))
    return CandidatePlan(
        begins_s=draw(st.integers(0, 160)) / 8,
        ends_s=draw(st.integers(40, 600)) / 8 if is_ended else None,
        is_killed=is_ended and draw(st.booleans()),
        call_s=draw(st.sampled_from([0.0, 0.0625, 0.25])),
        slow=draw(st.dictionaries(_numbers, _pauses_s, max_size=3)),
        faults=draw(
            st.dictionaries(
                _numbers,
                st.sampled_from([Fault.REFUSED, Fault.ANSWER_LOST, Fault.LATE]),
                max_size=4,
            )
        ),
        blind_s=(blind_s, blind_s + draw(st.sampled_from([0.0, 0.0, 4.0, 15.0]))),
        freezes=draw(st.lists(_freezes, max_size=2)),
    )


def _world(plans: Sequence[CandidatePlan], late_s: Sequence[float] = ()) -> World:
    world = World(plans, until_s=_UNTIL_S, late_s=late_s)
    world.pass_by()
    return world


def _living(world: World) -> list[Run]:
    return [run for run in world.runs if run.ended_s is None]


_any_plans = st.lists(_plans(), min_size=1, max_size=4)
_late_s = st.lists(st.integers(0, 90).map(float), max_size=3)


@given(plans=_any_plans, late_s=_late_s)
@settings(max_examples=examples(200), deadline=None)
def test_one_leader_per_term_and_session(plans: list[CandidatePlan], late_s: list[float]) -> None:
    """A term belongs to one session, and a session to one term and one candidate, for ever."""
    created = _world(plans, late_s).created
    sessions: dict[int, str] = {}
    for record in created:
        owner = sessions.setdefault(record.term, record.session_id)
        # A record below the newest elects no candidate.
        assert owner == record.session_id or _is_stray(created, record.number)
    owners = {(each.session_id, each.candidate) for each in created}
    assert len(owners) == len({session for session, _ in owners})


def _is_stray(created: Sequence[object], number: int) -> bool:
    return any(getattr(each, "number", 0) > number for each in created)


@given(plans=_any_plans, late_s=_late_s)
@settings(max_examples=examples(200), deadline=None)
def test_no_leader_fences_one_that_was_elected_after_it(
    plans: list[CandidatePlan], late_s: list[float]
) -> None:
    """However long a start is paused between its election and its fencing record."""
    world = _world(plans, late_s)
    terms = {record.session_id: record.term for record in world.created}
    fences = [terms[session] for session, is_fence in world.slots.records if is_fence]
    assert fences == sorted(fences)
    assert len(fences) == len(set(fences))


@given(plans=_any_plans, late_s=_late_s)
@settings(max_examples=examples(200), deadline=None)
def test_no_decision_after_the_fencing_record_of_a_successor(
    plans: list[CandidatePlan], late_s: list[float]
) -> None:
    world = _world(plans, late_s)
    for (before, _), (session, is_fence) in pairwise(world.slots.records):
        assert is_fence or session == before


@given(plans=_any_plans, late_s=_late_s)
@settings(max_examples=examples(200), deadline=None)
def test_in_the_end_one_living_candidate_decides(
    plans: list[CandidatePlan], late_s: list[float]
) -> None:
    """And the other living ones wait: a run that has lost its lead has ended."""
    world = _world([*plans, CandidatePlan(begins_s=10.0)], late_s)
    deciding = [run for run in _living(world) if run.decided_s and run.decided_s[-1] > _CALM_S + 40]
    assert len(deciding) == 1, world.runs
    assert all(run.fenced_s is None for run in _living(world) if run is not deciding[0])


@given(
    begins_s=st.lists(st.integers(0, 200).map(lambda eighths: eighths / 8), max_size=3),
    call_s=st.sampled_from([0.0, 0.0625, 0.25]),
    blind_s=st.sampled_from([0.0, 5.0, 20.0, 50.0]),
)
@settings(max_examples=examples(100), deadline=None)
def test_a_healthy_leader_is_never_replaced(
    begins_s: list[float], call_s: float, blind_s: float
) -> None:
    """Also while the store answers no process for a long time."""
    away = (20.0, 20.0 + blind_s)
    plans = [CandidatePlan(begins_s=at, call_s=call_s, blind_s=away) for at in (0.0, *begins_s)]
    world = _world(plans)
    assert [run.ended_s for run in world.runs] == [None] * len(plans)
    assert sum(run.elected_s is not None for run in world.runs) == 1


@given(
    killed_s=st.integers(240, 400).map(lambda eighths: eighths / 8),
    begins_s=st.lists(st.integers(0, 160).map(lambda eighths: eighths / 8), min_size=1, max_size=3),
)
@settings(max_examples=examples(100), deadline=None)
def test_a_standby_leads_soon_after_the_leader_is_killed(
    killed_s: float, begins_s: list[float]
) -> None:
    leader = CandidatePlan(ends_s=killed_s, is_killed=True)
    standbys = [CandidatePlan(begins_s=1.0 + at) for at in begins_s]
    world = _world([leader, *standbys])
    elected_s = [run.elected_s for run in world.runs[1:] if run.elected_s is not None]
    assert len(elected_s) == 1
    assert DURATION_S / 2 < elected_s[0] - killed_s < DURATION_S + 3.0


def test_a_leader_that_wakes_after_two_successors_ends_and_changes_nothing() -> None:
    """Paused for longer than its lease; the first successor is killed before it wakes."""
    paused = CandidatePlan(freezes=(Freeze(at_s=10.0, for_s=40.0),))
    killed = CandidatePlan(begins_s=2.0, ends_s=25.0, is_killed=True)
    world = _world([paused, killed, CandidatePlan(begins_s=3.0)])
    first, second, third = world.runs
    assert first.ended_by in ("lost", "fenced")
    assert second.decided_s
    assert third.decided_s[-1] > _CALM_S + 40
    assert not [at for at in first.decided_s if at > 50.0]


def test_a_stop_hands_over_at_once() -> None:
    world = _world([CandidatePlan(ends_s=20.0), CandidatePlan(begins_s=1.0)])
    elected_s = world.runs[1].elected_s
    assert elected_s is not None
    assert elected_s - 20.0 < 3.0
