"""A coordinator that was only paused: it wakes up, and finds that it may decide nothing more."""

from pathlib import Path

import pytest

from connectors.kafka.embedded import EmbeddedKafka
from tests.chaos.beds import CONTINUOUSLY, IN_BATCHES, kills
from tests.chaos.programs import COPY, COPY_IN_BATCHES, MORTAL_COPY, Subject
from tests.chaos.scenario import START_S, Scenario, Setting
from tests.waiting import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(2400)]

_FIRST_RECORD = frozenset({"before-first", "after-first"})  # there is one already
_CELLS = [
    *(("micro-batch", name) for name in IN_BATCHES if name not in _FIRST_RECORD),
    *(("continuous", name) for name in CONTINUOUSLY if name not in _FIRST_RECORD),
]


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


@pytest.mark.long
@pytest.mark.parametrize(("engine", "failpoint"), _CELLS)
def test_rule_6_a_stale_coordinator_wakes_behind_a_kill_at_every_failpoint(
    kafka: EmbeddedKafka, tmp_path: Path, engine: str, failpoint: str
) -> None:
    """The first stands still before its decision, the second takes over and dies at the failpoint,
    and the first goes on with what that one left half done, while a third one starts: whoever's
    place is taken stops, and nothing is lost or doubled."""
    is_continuous = engine == "continuous"
    subject: Subject = MORTAL_COPY if is_continuous else COPY_IN_BATCHES
    setting = Setting(
        environment={"ENGINE": "continuous"} if is_continuous else {},
        preload=2_000 if is_continuous else 200,
    )
    with Scenario(subject, kafka.bootstrap, tmp_path, setting) as scenario:
        first = scenario.start(failpoints="before-decision=pause@3")
        wait_for(first.is_driver_paused, what="the first coordinator paused")
        scenario.kill_at(kills((failpoint,), hit=3 if is_continuous else 2)[-1])
        first.resume_driver()
        third = scenario.start()
        assert first.await_exit(timeout_s=START_S) not in (0, None)
        scenario.observer.await_total(scenario.observer.total + 200, timeout_s=START_S)
        scenario.finish_running(third)
