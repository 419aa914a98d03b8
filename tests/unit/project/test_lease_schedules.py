"""Rule `lease-guards-outputs`: pauses under which two runs once decided beside each other, or none
was left.

Found by `tests/property/test_leases.py`. A run's calls are counted from 0: a start looks,
writes and looks, and each renewal looks and writes.
"""

import pytest

from tests.kit.lease_runs import Call, Freeze, Run, RunPlan, World

COPY = "file:/b"
UNTIL_S = 200.0


def test_lease_guards_outputs_who_is_paused_while_it_waits_for_a_look_waits_for_one_after_that() -> (
    None
):
    """Its patience had passed in the pause, and it decided by what it had known before."""
    older, newer = _run(RunPlan(calls={3: Call(during_s=60.0)}), RunPlan(uri=COPY, begins_s=16.0))
    _assert_taken_over(older, newer)


def test_lease_guards_outputs_a_host_that_sleeps_is_paused_too() -> None:
    """Its clock hangs: what it had waited before counts for nothing after it."""
    older, newer = _run(
        RunPlan(
            calls={8: Call(before_s=16.0, landing_s=3.0), 9: Call(landing_s=1.5)},
            freezes=[Freeze(at_s=30.0, for_s=40.0, is_asleep=True)],
        ),
        RunPlan(uri=COPY, begins_s=3.0),
    )
    _assert_taken_over(older, newer)


def test_lease_guards_outputs_after_a_pause_two_late_renewals_are_waited_for() -> None:
    """One was under way, and has crossed the record of who took over; the next one looks twice."""
    older, newer = _run(
        RunPlan(calls={12: Call(before_s=30.0, during_s=30.0)}), RunPlan(uri=COPY, begins_s=69.0)
    )
    _assert_taken_over(older, newer)


def test_lease_guards_outputs_a_start_that_is_paused_after_its_claim_looks_before_it_sweeps() -> (
    None
):
    """Looks that had begun before the claim was made have found nothing, however young they are."""
    older, newer = _run(
        RunPlan(
            calls={
                0: Call(landing_s=2.0, answer_s=2.375),  # its thread is about to renew by then
                2: Call(during_s=60.0, landing_s=0.25, answer_s=0.25),
            }
        ),
        RunPlan(uri=COPY, begins_s=5.0),
    )
    _assert_taken_over(older, newer)


def test_lease_guards_outputs_the_second_write_of_a_late_renewal_may_be_late_too() -> None:
    """It was made after a look, and after another pause it crossed the record of who had taken
    over; the next renewal was in time, and believed in what it found."""
    older, newer = _run(
        RunPlan(calls={8: Call(during_s=20.0), 9: Call(during_s=30.0)}),
        RunPlan(uri=COPY, begins_s=25.0),
    )
    _assert_taken_over(older, newer)


def test_lease_guards_outputs_the_second_write_of_a_late_start_may_be_late_too() -> None:
    older, newer = _run(
        RunPlan(calls={1: Call(during_s=18.0), 2: Call(during_s=30.0)}),
        RunPlan(uri=COPY, begins_s=11.0),
    )
    _assert_taken_over(older, newer)


@pytest.mark.parametrize("pause_s", [10.0, 60.0])
def test_lease_guards_outputs_a_start_that_is_paused_before_its_write_waits_for_who_began_meanwhile(
    pause_s: float,
) -> None:
    """It writes over the record of a run that lives, which finds that with its next renewal."""
    paused, other = _run(
        RunPlan(calls={0: Call(during_s=pause_s)}), RunPlan(uri=COPY, begins_s=5.0)
    )
    assert other.ended_by == "fenced"
    assert paused.ended_by is None
    assert paused.decided_s[0] > other.decided_s[-1]


@pytest.mark.parametrize("uri", [COPY, "file:/a"])
def test_lease_guards_outputs_a_renewal_that_slept_does_not_end_who_came_after_the_one_that_took_over(
    uri: str,
) -> None:
    """That one was started again meanwhile: the run that sleeps is none that its successor saw."""
    older, killed, newer = _run(
        RunPlan(calls={7: Call(during_s=60.0)}),
        RunPlan(uri=uri, begins_s=10.0, ends_s=40.0, is_killed=True),
        RunPlan(uri=uri, begins_s=45.0),
    )
    assert killed.took_s is not None
    assert newer.took_s is not None
    assert newer.ended_by is None
    assert older.ended_by in ("fenced", "fenced")
    assert [decided_s for decided_s in older.decided_s if decided_s > killed.took_s] == []


@pytest.mark.parametrize("number", [0, 1])
def test_lease_guards_outputs_a_start_that_slept_does_not_end_the_next_one_of_its_directory(
    number: int,
) -> None:
    """It is sealed, and writes over the record of a run that has not seen it."""
    older, newer = _run(RunPlan(calls={number: Call(before_s=30.0)}), RunPlan(begins_s=5.0))
    assert newer.took_s is not None
    assert newer.ended_by is None
    assert older.decided_s == []


def _run(*plans: RunPlan) -> list[Run]:
    world = World(plans, until_s=UNTIL_S)
    world.pass_by()
    return world.runs


def _assert_taken_over(older: Run, newer: Run) -> None:
    """The younger run continues, and the older one decides nothing after its start."""
    assert newer.took_s is not None
    assert newer.ended_by is None
    assert older.ended_by == "fenced"
    assert [decided_s for decided_s in older.decided_s if decided_s > newer.took_s] == []
