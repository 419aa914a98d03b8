"""A coordinator that was only paused: it wakes up, and finds that it may decide nothing more."""

from pathlib import Path

import pytest

from connectors.kafka.embedded import EmbeddedKafka
from tests.chaos.programs import COPY
from tests.chaos.scenario import START_S, Scenario
from tests.waiting import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(2400)]


@pytest.mark.parametrize(
    "place", ["before-decision", pytest.param("after-temp-sync", marks=pytest.mark.long)]
)
def test_one_decision_when_a_paused_coordinator_goes_on(
    kafka: EmbeddedKafka, tmp_path: Path, place: str
) -> None:
    """SIGSTOP before the decision, a second coordinator starts, the first goes on: its place is
    taken by the seal, it stops with FencedError and nothing is lost or doubled (rule 6)."""
    with Scenario(COPY, kafka.bootstrap, tmp_path) as scenario:
        first = scenario.start(failpoints=f"{place}=pause@3")
        wait_for(first.is_driver_paused, what="the first coordinator paused")
        second = scenario.start()
        scenario.observer.await_total(scenario.observer.total + 200, timeout_s=START_S)
        first.resume_driver()
        assert first.await_exit(timeout_s=START_S) not in (0, None)
        assert "FencedError" in first.log(), first.log_tail()
        assert second.exit_code is None, second.log_tail()
        scenario.observer.await_total(scenario.observer.total + 200, timeout_s=START_S)
        scenario.finish_running(second)
