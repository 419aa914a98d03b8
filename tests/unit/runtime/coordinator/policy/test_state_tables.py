"""The table of checkpoint states: every pair, and the page that is made from it."""

import runpy
from pathlib import Path

import pytest

from sluice.runtime.coordinator.policy.state_tables import (
    ABORTABLE,
    DECIDED_OPEN,
    TRANSITIONS,
    Event,
    State,
    advance,
)
from sluice.runtime.errors import IllegalTransitionError
from tests.kit.coordinator.coordinator_failpoints import FAILPOINTS
from tools import state_diagram
from tools.state_diagram import page

PAGE = Path(__file__).parents[5] / "docs" / "internals" / "checkpoint-states.md"
FINAL = {State.MARKED, State.ABORTED, State.FENCED}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_every_pair_moves_by_the_table_or_is_refused(state: State, event: Event) -> None:
    """A pair that the table lacks raises and names the checkpoint; nothing else changes state."""
    if (state, event) in TRANSITIONS:
        assert advance(state, event, checkpoint_id=7) is TRANSITIONS[state, event]
        return
    with pytest.raises(IllegalTransitionError, match="checkpoint_id=7"):
        advance(state, event, checkpoint_id=7)


def test_nothing_leads_back_from_a_decision() -> None:
    """From DECIDED there is no way to an abort, and from DECIDING only by a durable record."""
    reached = set(DECIDED_OPEN)
    for _ in State:
        reached |= {target for (source, _), target in TRANSITIONS.items() if source in reached}
    assert not reached & ({*ABORTABLE} | {State.ABORTING, State.ABORTED, State.DECIDING})
    assert {event for (source, event) in TRANSITIONS if source is State.DECIDING} == {
        Event.METADATA_DURABLE,
        Event.SLOT_TAKEN,
        Event.GREW_OLD,
    }


def test_what_is_withdrawn_ends_by_a_durable_record_alone() -> None:
    """Its own decision, or its abort in the same place; or another session's."""
    leads_to = {
        e: target for (source, e), target in TRANSITIONS.items() if source is State.WITHDRAWING
    }
    assert leads_to == {
        Event.METADATA_DURABLE: State.DECIDED,
        Event.ABORT_RECORD_DURABLE: State.ABORTED,
        Event.SLOT_TAKEN: State.FENCED,
    }


def test_only_states_without_a_record_may_be_given_up() -> None:
    """ABORTING is reached only while no record can be durable."""
    assert {source for (source, _), target in TRANSITIONS.items() if target is State.ABORTING} == (
        set(ABORTABLE)
    )


def test_every_state_is_reached_and_only_three_are_final() -> None:
    assert set(TRANSITIONS.values()) == set(State) - {State.ARMED}
    assert {source for source, _ in TRANSITIONS} == set(State) - FINAL


def test_the_page_in_the_docs_is_current() -> None:
    """Run ``python -m tools.state_diagram > docs/internals/checkpoint-states.md``."""
    assert PAGE.read_text() == page()


def test_failpoints_stand_before_and_after_every_step() -> None:
    assert len(set(FAILPOINTS)) == len(FAILPOINTS) == 37
    between = {"mid-commit", "mid-move", "during-state-files"}
    steps = {name.partition("-")[2] for name in FAILPOINTS if name not in between}
    around = {f"{when}-{step}" for when in ("before", "after") for step in steps}
    assert around | between == set(FAILPOINTS)
    assert {"decision", "commit", "mark", "fencing", "sweep", "group-offsets"} <= steps


def test_the_command_that_the_page_names_writes_it(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(state_diagram.__file__, run_name="__main__")
    assert capsys.readouterr().out == PAGE.read_text()
