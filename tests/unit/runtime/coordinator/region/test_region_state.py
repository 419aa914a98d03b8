"""The state of a region: its phases, its pressure, and the size of its next epoch."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from sluice.runtime.coordinator.region.region_pace import Pace, PendingTime, Pressure, left_unread
from sluice.runtime.errors import IllegalTransitionError
from sluice.runtime.model.splits import SplitRange
from tests.kit.coordinator.core_driver import split


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


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(0, 100), st.floats(0, 5), st.booleans()), max_size=20
    ),
    st.floats(0, 100),
)
def test_a_ratio_is_a_share_of_time_whatever_happened(
    epochs: list[tuple[float, float, float, bool]], later_s: float
) -> None:
    pending = PendingTime()
    now_s = 0.0
    for pause_s, took_s, due_in_s, ends in epochs:
        now_s += pause_s
        pending.begin(now_s, due_in_s=due_in_s)
        now_s += took_s
        if ends:
            pending.end(now_s)
        ratio = pending.ratio(now_s)
        assert ratio is not None
        assert 0 <= ratio <= 1 + 1e-9
    assert (pending.ratio(now_s + later_s) is None) == (not epochs)


def _run(epochs: int, *, took_s: float, interval_s: float) -> tuple[PendingTime, float]:
    pending, now_s = PendingTime(), 0.0
    for _ in range(epochs):
        pending.begin(now_s, due_in_s=interval_s)
        pending.end(now_s + took_s)
        now_s += max(took_s, interval_s)
    return pending, now_s


def _follow(*, makes: int, reads: int, behind: int = 0) -> Pressure:
    """A task that answers every barrier at once; records made and read in each interval."""
    pending, now_s, made, position = PendingTime(), 0.0, behind, 0
    for _ in range(60):
        now_s += 0.1
        before, made = position, made + makes
        position = min(made, position + reads)
        pending.begin(now_s, due_in_s=0.1)
        asked, read = (split(0, before, made),), (split(0, before, position),)
        pending.end(now_s + 0.005, read=position - before, left=left_unread(asked, read))
    ratio = pending.ratio(now_s)
    assert ratio is not None
    assert 0 <= ratio <= 1
    return Pressure.of(ratio)


@pytest.mark.parametrize(
    ("makes", "reads", "behind", "expected"),
    [
        (100, 1_000, 0, Pressure.OK),
        (100, 101, 0, Pressure.OK),
        (100, 101, 90, Pressure.OK),  # less than an interval after
        (100, 100, 130, Pressure.LOW),
        (100, 100, 1_000, Pressure.HIGH),
        (100, 60, 0, Pressure.HIGH),
        (0, 100, 10_000, Pressure.HIGH),
        (100, 0, 0, Pressure.HIGH),
    ],
)
def test_a_task_that_answers_at_once_is_judged_by_what_it_leaves_after(
    makes: int, reads: int, behind: int, expected: Pressure
) -> None:
    """That it keeps up is no pressure, however busy it is: as of a batch that ends in time."""
    assert _follow(makes=makes, reads=reads, behind=behind) is expected


def test_a_region_that_is_done_before_its_next_barrier_has_no_pending_time() -> None:
    pending, now_s = _run(100, took_s=0.99, interval_s=1.0)
    assert pending.ratio(now_s) == 0


@pytest.mark.parametrize("took_s", [1.25, 2.0, 10.0])
def test_a_region_that_is_too_slow_for_its_interval_is_pending_for_the_rest(took_s: float) -> None:
    pending, now_s = _run(100, took_s=took_s, interval_s=1.0)
    assert pending.ratio(now_s) == pytest.approx(1 - 1 / took_s, abs=0.05)


def test_a_batch_under_way_counts_and_an_hour_ago_does_not() -> None:
    """A region that hangs is shown before it answers; one that has recovered is forgiven."""
    pending = PendingTime()
    pending.begin(0.0, due_in_s=1.0)
    assert pending.ratio(11.0) == pytest.approx(10 / 11)
    pending.end(11.0)
    assert pending.ratio(3600.0) == 0


def _split(records: int) -> SplitRange:
    return SplitRange(
        source_id="s", topic="t", topic_id="i", partition=0, start_offset=0, end_offset=records
    )


def _epoch(pace: Pace, *, records: int, took_s: float, target_s: float = 1.0) -> None:
    pace.begin((_split(records),), 0.0)
    pace.finished(took_s, target_s=target_s)


def test_an_epoch_that_reached_the_limit_moves_it_towards_the_target() -> None:
    """Twice too slow halves it, four times too fast makes it four times as large."""
    pace = Pace(limit=100_000)
    _epoch(pace, records=100_000, took_s=2.0)
    assert pace.limit == 50_000
    _epoch(pace, records=50_000, took_s=0.25)
    assert pace.limit == 200_000


def test_a_small_epoch_says_nothing() -> None:
    pace = Pace(limit=100_000)
    _epoch(pace, records=10, took_s=5.0)
    assert pace.limit == 100_000


def test_an_expired_epoch_is_cut_smaller_without_a_floor() -> None:
    """Rule `restore-by-attempt`: the same records would expire again; only time-outs go below the
    floor."""
    pace = Pace(limit=800)
    for records in (800, 400, 200):
        pace.begin((_split(records),), 0.0)
        pace.expired()
    assert pace.limit == 100
    _epoch(pace, records=100, took_s=3.0)
    assert pace.limit == 100


def test_late_epochs_do_not_shrink_to_nothing() -> None:
    """They are not read again, they join the next checkpoint: a backlog must still go down."""
    pace = Pace(limit=100_000)
    for _ in range(20):
        pace.begin((_split(pace.limit),), 0.0)
        pace.timed_out()
    assert pace.limit == 1_000


def test_an_epoch_without_records_that_expires_says_nothing_of_their_number() -> None:
    pace = Pace(limit=800)
    pace.begin((_split(0),), 0.0)
    pace.expired()
    assert pace.limit == 800
