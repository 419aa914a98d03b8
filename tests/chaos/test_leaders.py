"""Two and three drivers of one job: the leader is killed, paused, stopped, and finishes."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checkpoint.checkpoint_store import open_store
from tests.chaos.programs import COPY
from tests.chaos.scenario import START_S, Scenario, Setting
from tests.kit.mortal_program import MortalProgram
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.extended, pytest.mark.timeout(1200)]

_LED_COPY = replace(
    COPY, name="led-copy", script=Path(__file__).with_name("led_copy.py"), environment={}
)
_LEASE = Setting(environment={"HA": "lease", "HA_TIMEOUT_S": "6"})
_LEADS = "leads the job: job=led-copy"
_WAITS = "standby waits for the lead: job=led-copy"
_INTERRUPTED = 130
_ERROR = 1


@pytest.fixture
def scenario(kafka: EmbeddedKafka, tmp_path: Path) -> Iterator[Scenario]:
    """Of drivers that are elected by leases."""
    with Scenario(_LED_COPY, kafka.bootstrap, tmp_path, _LEASE) as scenario:
        yield scenario


@pytest.fixture(params=["lease", "zookeeper"])
def any_scenario(
    request: pytest.FixtureRequest, kafka: EmbeddedKafka, tmp_path: Path
) -> Iterator[Scenario]:
    """Of drivers that are elected in each way."""
    setting = _LEASE
    if request.param == "zookeeper":
        ha = f"zookeeper://{request.getfixturevalue('zookeeper').hosts}/chaos"
        setting = replace(_LEASE, environment={**_LEASE.environment, "HA": ha})
    with Scenario(_LED_COPY, kafka.bootstrap, tmp_path, setting) as scenario:
        yield scenario


def _await_text(program: MortalProgram, text: str) -> None:
    def says() -> bool:
        assert program.exit_code is None, program.log_tail()
        return text in program.log()

    wait_for(says, timeout_s=START_S, what=f"{text!r} in a log")


def _await_progress(scenario: Scenario) -> None:
    scenario.observer.await_total(scenario.observer.total + 200, timeout_s=START_S)


def _leader(scenario: Scenario) -> MortalProgram:
    program = scenario.start()
    _await_text(program, _LEADS)
    _await_progress(scenario)
    return program


def _standby(scenario: Scenario) -> MortalProgram:
    """A start that waits, and has written no record of its own."""
    program = scenario.start()
    _await_text(program, _WAITS)
    assert "fencing record published" not in program.log()
    return program


def test_a_standby_takes_over_from_a_killed_leader(any_scenario: Scenario) -> None:
    """Exactly once, and the standby writes its fencing record only after the leader's death."""
    scenario = any_scenario
    leader = _leader(scenario)
    standby = _standby(scenario)
    runs = len(open_store(scenario.checkpoint_uri).known_fencing_records())
    _await_progress(scenario)
    assert len(open_store(scenario.checkpoint_uri).known_fencing_records()) == runs
    leader.kill_driver()
    _await_text(standby, _LEADS)
    _await_progress(scenario)
    scenario.finish_running(standby)


def test_a_leader_that_wakes_after_two_successors_decides_nothing(scenario: Scenario) -> None:
    """Paused for longer than its lease; the first successor is killed before it wakes."""
    paused = _leader(scenario)
    second, third = _standby(scenario), _standby(scenario)
    paused.pause_driver()
    wait_for(
        lambda: _LEADS in second.log() or _LEADS in third.log(),
        timeout_s=START_S,
        what="a successor",
    )
    killed, last = (second, third) if _LEADS in second.log() else (third, second)
    _await_progress(scenario)
    killed.kill_driver()
    _await_text(last, _LEADS)
    _await_progress(scenario)
    paused.resume_driver()
    assert paused.await_exit(timeout_s=START_S) == _ERROR, paused.log_tail()
    assert re.search("(Fenced|LeadershipLost)Error: ", paused.log()), paused.log_tail()
    _await_progress(scenario)
    scenario.finish_running(last)


def test_ctrl_c_ends_a_standby_and_hands_over_from_a_leader(scenario: Scenario) -> None:
    leader = _leader(scenario)
    first, second = _standby(scenario), _standby(scenario)
    first.interrupt()
    assert first.await_exit(timeout_s=START_S) == _INTERRUPTED, first.log_tail()
    leader.interrupt()
    assert leader.await_exit(timeout_s=START_S) == _INTERRUPTED, leader.log_tail()
    _await_text(second, _LEADS)
    _await_progress(scenario)
    scenario.finish_running(second)


def test_a_standby_ends_without_an_error_when_the_leader_has_finished(scenario: Scenario) -> None:
    """A bounded job."""
    leader = _leader(scenario)
    scenario.feeder.close()
    leader.interrupt()
    leader.await_exit(timeout_s=START_S)
    bounded = scenario.start(until_end=True, failpoints="")
    standby = scenario.start(until_end=True)
    assert bounded.await_exit(timeout_s=START_S) == 0, bounded.log_tail()
    assert standby.await_exit(timeout_s=START_S) == 0, standby.log_tail()
    scenario.judge()
