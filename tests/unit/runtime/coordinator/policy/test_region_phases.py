"""The tables of region phases, alone and together with checkpoint states: every pair."""

from itertools import product

import pytest

from sluice.runtime.coordinator.policy import state_tables
from sluice.runtime.coordinator.policy.state_tables import (
    ABORTABLE,
    FOR_CHECKPOINT,
    FOR_REGION,
    OPEN,
    OUT_OF_SERVICE,
    PARTS,
    REGION_TRANSITIONS,
    Event,
    Part,
    RegionEvent,
    RegionPhase,
    State,
    advance_region,
)
from sluice.runtime.errors import IllegalTransitionError


@pytest.mark.parametrize("phase", RegionPhase)
@pytest.mark.parametrize("event", RegionEvent)
def test_every_pair_moves_by_the_table_or_is_refused(
    phase: RegionPhase, event: RegionEvent
) -> None:
    """A pair that the table lacks raises and names the region."""
    if (phase, event) in REGION_TRANSITIONS:
        assert advance_region(phase, event, region="main") is REGION_TRANSITIONS[phase, event]
        return
    with pytest.raises(IllegalTransitionError, match="region=main"):
        advance_region(phase, event, region="main")


def test_every_phase_is_reached_and_none_is_final() -> None:
    assert set(REGION_TRANSITIONS.values()) == set(RegionPhase)
    assert {source for source, _ in REGION_TRANSITIONS} == set(RegionPhase)


def test_callback_after_commit_an_attempt_begins_only_after_the_old_work_is_settled() -> None:
    """No other event leads from a closed phase to an open one."""
    into_open = {
        (source, event)
        for (source, event), target in REGION_TRANSITIONS.items()
        if source not in OPEN and target in OPEN
    }
    assert into_open == {(RegionPhase.FAILED, RegionEvent.SETTLED)}


def test_a_suspended_region_leaves_that_only_by_a_command() -> None:
    out = {
        event
        for (source, event), target in REGION_TRANSITIONS.items()
        if source in OUT_OF_SERVICE and target not in OUT_OF_SERVICE
    }
    assert out == {RegionEvent.RESTART_COMMANDED}


def test_restore_by_attempt_a_region_that_timed_out_gets_no_other_barrier() -> None:
    """Spark may not have logged its range: another one would leave that out."""
    assert (RegionPhase.TIMED_OUT, RegionEvent.BARRIER_GIVEN) not in REGION_TRANSITIONS


@pytest.mark.parametrize(("event", "state"), list(product(RegionEvent, State)))
def test_what_a_region_means_for_a_checkpoint_is_legal_there(
    event: RegionEvent, state: State
) -> None:
    """An event that the joint table names is in the checkpoint's own table."""
    meaning = FOR_CHECKPOINT.get((event, state))
    assert meaning is None or (state, meaning) in state_tables.TRANSITIONS


@pytest.mark.parametrize(("event", "phase"), list(product(Event, RegionPhase)))
def test_what_a_checkpoint_means_for_a_region_is_legal_there(
    event: Event, phase: RegionPhase
) -> None:
    """An event that the joint table names is in the region's own table."""
    meaning = FOR_REGION.get((event, phase))
    assert meaning is None or (phase, meaning) in REGION_TRANSITIONS


def test_an_attempt_that_ends_gives_up_only_checkpoints_without_a_record() -> None:
    given_up = {state for event, state in FOR_CHECKPOINT if event is RegionEvent.ENDED}
    assert given_up == set(ABORTABLE)


def test_every_abort_ends_the_attempts_in_it() -> None:
    """Whatever leads to an abort: their batches are discarded, so they read their ranges again."""
    aborts = {
        event
        for (_, event), target in state_tables.TRANSITIONS.items()
        if target in (State.ABORTING, State.ABORTED)
    }
    for event, phase in product(aborts, OPEN):
        assert FOR_REGION[event, phase] is RegionEvent.ENDED


def test_a_checkpoint_waits_for_open_regions_and_for_none_that_is_suspended() -> None:
    assert set(PARTS) == set(RegionPhase)
    awaited = {phase for phase, part in PARTS.items() if part in (Part.AWAITED, Part.STARTING)}
    assert awaited == OPEN
    assert {phase for phase, part in PARTS.items() if part is Part.ABSENT} == OUT_OF_SERVICE
