"""The plan of the chaos bed: what a seed makes."""

from collections import Counter
from collections.abc import Sequence

import pytest

from sluice.runtime.errors import ConfigError
from tests.environment.plan import BROKERS, KINDS, TRANSACTION_TIMEOUT_S, PlannedFault, bursts, plan


def test_a_seed_makes_the_same_faults_again() -> None:
    """So a failed round can be run again, as far as the machine allows."""
    assert plan(7, 200) == plan(7, 200)
    assert plan(7, 200) != plan(8, 200)


def test_a_shorter_plan_is_the_beginning_of_a_longer_one() -> None:
    """A failure at fault 5 needs no more than 6 of them."""
    assert plan(7, 200)[:6] == plan(7, 6)


def test_every_kind_and_every_target_comes() -> None:
    """None is left out by a slip of weights; each within its bounds."""
    planned = plan(1, 3_000, may_lapse=True)
    struck = {(fault.kind, fault.target) for fault in planned}
    assert struck == {(name, target) for name, kind in KINDS.items() for target in kind.targets}
    for fault in planned:
        assert KINDS[fault.kind].least_s <= fault.hold_s <= KINDS[fault.kind].most_s
        assert 0 <= fault.draw < 1


def test_only_named_kinds_come_and_no_target_that_is_left_out() -> None:
    """The soak leaves out the driver."""
    planned = plan(1, 300, kinds=["kill", "zombie"], without=["driver"])
    assert {fault.kind for fault in planned} == {"kill"}
    assert "driver" not in {fault.target for fault in planned}


def test_nothing_outlasts_transactions_that_live_as_long_as_they_may() -> None:
    planned = plan(1, 3_000)
    assert not any(KINDS[fault.kind].outlasts for fault in planned)
    with pytest.raises(ConfigError, match="no fault is left"):
        plan(1, 1, kinds=["absence"])
    assert all(fault.hold_s > TRANSACTION_TIMEOUT_S + 10 for fault in absences(60))


def absences(count: int) -> Sequence[PlannedFault]:
    return plan(1, count, kinds=["absence"], may_lapse=True)


def test_an_unknown_kind_and_an_empty_choice_are_refused_by_name() -> None:
    """Else a misspelt kind would be a run without it."""
    with pytest.raises(ConfigError, match="kinds=kil"):
        plan(1, 1, kinds=["kil"])
    with pytest.raises(ConfigError, match="no fault is left"):
        plan(1, 1, kinds=["zombie"], without=["driver"])


@pytest.mark.parametrize("most", [1, 2, 5])
def test_faults_that_come_together_are_all_there_and_strike_different_machines(most: int) -> None:
    planned = plan(3, 500)
    found = list(bursts(planned, most))
    assert Counter(fault for burst in found for fault in burst) == Counter(planned)
    assert max(len(burst) for burst in found) == most
    for burst in found:
        machines = [fault.target.partition("/")[0] for fault in burst]
        assert len(set(machines)) == len(machines)
        assert len(burst) == 1 or not any(KINDS[fault.kind].is_alone for fault in burst)


def test_a_brokers_clock_jumps_while_the_others_are_well() -> None:
    """Kafka itself hangs for as long as the jump then."""
    for burst in bursts(plan(4006, 500, kinds=["clock", "cut"]), 6):
        struck = [fault.kind for fault in burst if fault.target in BROKERS]
        assert struck == ["clock"] or "clock" not in struck


def test_faults_that_come_alone_keep_the_order_of_the_plan() -> None:
    planned = plan(3, 50)
    assert [fault for burst in bursts(planned, 1) for fault in burst] == planned


def test_the_first_that_waits_begins_the_next_group() -> None:
    """So none waits for ever, whatever overtakes it."""
    planned = list(plan(3, 200))
    for burst in bursts(planned, 4):
        assert burst[0] == planned[0]
        for fault in burst:
            planned.remove(fault)
