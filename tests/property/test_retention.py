"""Retention under any history of sessions, failures and marks."""

from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.checkpoint.retention import SlotFacts, fencing_records, retirable, unfinished
from sluice.runtime.model.checkpoint_record import CheckpointKind, Verdict


@st.composite
def _histories(draw: st.DrawFn) -> list[SlotFacts]:
    places: list[SlotFacts] = []
    for checkpoint_id in range(draw(st.integers(0, 30))):
        earlier = st.integers(0, checkpoint_id)
        places.append(
            SlotFacts(
                checkpoint_id=checkpoint_id,
                verdict=draw(st.sampled_from(Verdict)),
                kind=draw(st.sampled_from([CheckpointKind.CHECKPOINT, CheckpointKind.SAVEPOINT])),
                names=draw(st.frozensets(earlier, max_size=2)),
                has_committables=draw(st.booleans()),
                is_committed=draw(st.booleans()),
                is_superseded=draw(st.booleans()),
                is_fencing_record=checkpoint_id == 0 or draw(st.booleans()),
            )
        )
    return places


@given(_histories(), st.integers(1, 4))
def test_retired_is_never_needed_and_retiring_again_changes_nothing(
    places: list[SlotFacts], retain: int
) -> None:
    gone = set(retirable(places, retain=retain))
    left = [place for place in places if place.checkpoint_id not in gone]
    assert not gone & (fencing_records(places) | unfinished(places))
    assert not gone & {each for place in left for each in place.names}
    assert not any(p.checkpoint_id in gone for p in places if p.kind is CheckpointKind.SAVEPOINT)
    assert places[-1:] == left[-1:]
    assert fencing_records(left) == fencing_records(places)
    assert retirable(left, retain=retain) == []


@given(st.integers(1, 5), st.integers(1, 300))
def test_living_job_keeps_a_bounded_number(retain: int, checkpoints: int) -> None:
    """One session without failures never holds more than retain + checkpoint 0."""
    places: list[SlotFacts] = []
    for checkpoint_id in range(checkpoints):
        places.append(
            SlotFacts(
                checkpoint_id=checkpoint_id,
                verdict=Verdict.DECIDED,
                kind=CheckpointKind.CHECKPOINT,
                names=frozenset(),
                has_committables=True,
                is_committed=True,
                is_fencing_record=checkpoint_id == 0,
            )
        )
        gone = set(retirable(places, retain=retain))
        places = [place for place in places if place.checkpoint_id not in gone]
        assert len(places) <= retain + 1
