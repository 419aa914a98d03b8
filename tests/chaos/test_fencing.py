"""A coordinator that was only paused: it wakes up, and finds that it may decide nothing more."""

import re
from pathlib import Path

import pytest

from benchmarks.regions.mortal_sink import PRE_COMMITTED, Doom
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from tests.chaos.beds import (
    CONTINUOUSLY,
    IN_BATCHES,
    OF_FILES,
    OF_REGIONS,
    REPAIR,
    RETRIES,
    kills,
    restless,
)
from tests.chaos.obstacles import OBSTACLES
from tests.chaos.programs import (
    COPY,
    COPY_IN_BATCHES,
    DROP_IN,
    MORTAL_COPY,
    MORTAL_FILES,
    RESTLESS_REGIONS,
    Subject,
)
from tests.chaos.scenario import START_S, Kill, Scenario, Setting
from tests.kit.kafka.kafka_records import await_stable
from tests.kit.mortal_program import MortalProgram
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(2400)]

_FIRST_RECORD = frozenset({"before-first", "after-first"})  # there is one already
_CELLS = [
    *(("micro-batch", name) for name in IN_BATCHES if name not in _FIRST_RECORD),
    *(("continuous", name) for name in CONTINUOUSLY if name not in _FIRST_RECORD),
]
_ERROR = 1
_FENCED = re.compile(
    "(Fenced|NotLeader)Error: (another coordinator has taken over this job"
    "|another run of this job has its (transactional id prefix|staging directory))"
)
"""Its slot is taken, or what a sink owns has another run's record: whichever it finds first."""
_DAILY = {"mid-rename"}
"""Of the steps that only some jobs have: one that publishes."""


def _marks(failpoint: str, engine: str = "micro-batch") -> pytest.MarkDecorator:
    is_daily = failpoint in _DAILY and engine == "micro-batch"
    return pytest.mark.extended if is_daily else pytest.mark.long


def _stand_still(scenario: Scenario) -> MortalProgram:
    """A coordinator that is paused before its third decision."""
    first = scenario.start(failpoints="before-decision=pause@3")
    wait_for(first.is_driver_paused, what="the first coordinator paused")
    return first


def await_fenced(program: MortalProgram) -> None:
    """It ends because another run has the job, and says so."""
    assert program.await_exit(timeout_s=START_S) == _ERROR, program.log_tail()
    assert _FENCED.search(program.log()), program.log_tail()


def _replaced(scenario: Scenario, first: MortalProgram) -> MortalProgram:
    """The second one, which continues while the first wakes up, and ends."""
    second = scenario.start()
    scenario.observer.await_total(scenario.observer.total + 200, timeout_s=START_S)
    first.resume_driver()
    await_fenced(first)
    assert second.exit_code is None, second.log_tail()
    scenario.observer.await_total(scenario.observer.total + 200, timeout_s=START_S)
    return second


def _wake(scenario: Scenario, first: MortalProgram) -> None:
    first.resume_driver()
    last = scenario.start()
    await_fenced(first)
    scenario.observer.await_total(scenario.observer.total + 200, timeout_s=START_S)
    scenario.finish_running(last)


def _repairing(*, timeout_s: int) -> Setting:
    return Setting(environment={"ON_LOST": "repair", "TRANSACTION_TIMEOUT_S": str(timeout_s)})


@pytest.mark.parametrize(
    "place", ["before-decision", pytest.param("after-temp-sync", marks=pytest.mark.long)]
)
def test_one_decision_when_a_paused_coordinator_continues(
    kafka: EmbeddedKafka, tmp_path: Path, place: str
) -> None:
    with Scenario(COPY, kafka.bootstrap, tmp_path) as scenario:
        first = scenario.start(failpoints=f"{place}=pause@3")
        wait_for(first.is_driver_paused, what="the first coordinator paused")
        scenario.finish_running(_replaced(scenario, first))


@pytest.mark.extended
def test_one_decision_when_a_paused_query_continues(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """The same of a drop-in query, whose batches are Spark's: that one was started again elsewhere
    Spark finds out no sooner than the sink does."""
    with Scenario(DROP_IN, kafka.bootstrap, tmp_path) as scenario:
        second = _replaced(scenario, _stand_still(scenario))
        second.kill()  # a plain Spark program has no other end
        scenario.finish()


@pytest.mark.long
@pytest.mark.parametrize(("engine", "failpoint"), _CELLS)
def test_fence_first_a_stale_coordinator_wakes_after_a_kill_at_every_failpoint(
    kafka: EmbeddedKafka, tmp_path: Path, engine: str, failpoint: str
) -> None:
    """The first hangs before its decision, the second takes over and dies at the failpoint,
    and the first continues with what that one left half done, while a third one starts."""
    is_continuous = engine == "continuous"
    subject: Subject = MORTAL_COPY if is_continuous else COPY_IN_BATCHES
    setting = Setting(
        environment={"ENGINE": "continuous"} if is_continuous else {},
        preload=2_000 if is_continuous else 200,
    )
    with Scenario(subject, kafka.bootstrap, tmp_path, setting) as scenario:
        first = _stand_still(scenario)
        scenario.kill_at(kills((failpoint,), hit=3 if is_continuous else 2)[-1])
        _wake(scenario, first)


@pytest.mark.parametrize(
    ("subject", "failpoint"),
    [pytest.param(*cell, id=cell[1], marks=_marks(cell[1])) for cell in OF_FILES],
)
def test_fence_first_and_files_with_decision_a_stale_coordinator_wakes_after_a_kill_at_every_step_of_files(
    kafka: EmbeddedKafka, tmp_path: Path, subject: Subject, failpoint: str
) -> None:
    with Scenario(subject, kafka.bootstrap, tmp_path) as scenario:
        first = _stand_still(scenario)
        for kill in kills((failpoint,)):
            scenario.kill_at(kill)
        _wake(scenario, first)


@pytest.mark.parametrize(
    ("engine", "failpoint"),
    [pytest.param(*cell, id="-".join(cell), marks=_marks(cell[1], cell[0])) for cell in OF_REGIONS],
)
def test_fence_first_and_abort_before_skip_a_stale_coordinator_wakes_after_a_kill_at_every_regional_step(
    kafka: EmbeddedKafka, tmp_path: Path, engine: str, failpoint: str
) -> None:
    """Its regions are others by then: one has failed, one is late, and splits have moved."""
    doom = Doom(tmp_path / "doom")
    setting = restless(doom, engine=engine)
    with Scenario(RESTLESS_REGIONS, kafka.bootstrap, tmp_path, setting) as scenario:
        first = _stand_still(scenario)
        for kill in kills((failpoint,), hit=1):
            scenario.kill_at(kill, on_progress=lambda: doom.request("in-2", PRE_COMMITTED))
        _wake(scenario, first)


@pytest.mark.parametrize("failpoint", [pytest.param(name, marks=_marks(name)) for name in REPAIR])
def test_fence_first_and_two_phase_repair_a_stale_coordinator_wakes_after_a_kill_in_a_repair(
    kafka: EmbeddedKafka, tmp_path: Path, failpoint: str
) -> None:
    with Scenario(MORTAL_COPY, kafka.bootstrap, tmp_path, _repairing(timeout_s=16)) as scenario:
        first = _stand_still(scenario)
        scenario.kill_at(Kill(failpoint="after-decision"))
        await_stable(kafka.bootstrap, scenario.topics.output)
        scenario.kill_at(Kill(failpoint=failpoint))
        _wake(scenario, first)


@pytest.mark.long
@pytest.mark.parametrize("failpoint", RETRIES)
def test_fence_first_a_stale_coordinator_wakes_after_a_kill_in_a_start_without_an_answer(
    kafka: EmbeddedKafka, tmp_path: Path, failpoint: str
) -> None:
    """Two others were killed, the one at work and the one that could not finish it."""
    obstacle = OBSTACLES[failpoint]
    with Scenario(MORTAL_FILES, kafka.bootstrap, tmp_path) as scenario:
        first = _stand_still(scenario)
        scenario.kill_at(kills((obstacle.killed_at,))[-1])
        with obstacle.in_the_way(scenario):
            scenario.kill_at(Kill(failpoint=failpoint))
        _wake(scenario, first)


@pytest.mark.long
@pytest.mark.parametrize("failpoint", REPAIR)
def test_fence_first_and_two_phase_repair_a_coordinator_that_hangs_in_its_repair_doubles_nothing(
    kafka: EmbeddedKafka, tmp_path: Path, failpoint: str
) -> None:
    with Scenario(MORTAL_COPY, kafka.bootstrap, tmp_path, _repairing(timeout_s=16)) as scenario:
        scenario.kill_at(Kill(failpoint="after-decision", hit=2))
        await_stable(kafka.bootstrap, scenario.topics.output)
        scenario.setting = _repairing(timeout_s=300)  # what is written again is not lost, too
        first = scenario.start(failpoints="before-repair=pause")
        wait_for(first.is_driver_paused, what="the first coordinator paused in its repair")
        scenario.kill_at(Kill(failpoint=failpoint))
        _wake(scenario, first)
