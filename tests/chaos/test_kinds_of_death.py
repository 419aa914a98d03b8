"""What dies, and how: everything at once, the driver, Spark's JVM or one worker alone."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.connectors.kafka.tools.verify.topic_history import EndWatch, await_readable, topic_ends
from tests.chaos.programs import COPY, MORTAL_COPY
from tests.chaos.scenario import START_S, Kill, Scenario, Setting
from tests.kit.mortal_program import MortalProgram
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(2400)]

UNBLOCKED_S = 300.0
"""A bound of the broker's markers; the transaction itself would time out after 15 minutes."""


def start_and_see(scenario: Scenario) -> MortalProgram:
    """A program that has committed something of its own."""
    program = scenario.start()
    scenario.observer.await_total(scenario.observer.total + 1, timeout_s=START_S)
    return program


@pytest.mark.extended
def test_a_part_that_dies_alone_loses_nothing(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """A Python worker, then Spark's JVM: the program ends by itself with an error, or continues;
    either way the result is exact."""
    with Scenario(COPY, kafka.bootstrap, tmp_path) as scenario:
        program = start_and_see(scenario)
        for strike in (MortalProgram.kill_worker, MortalProgram.kill_jvm):
            if not struck(program, strike):
                program = start_and_see(scenario)
                assert struck(program, strike), program.log_tail()
            wait_for(
                lambda: program.exit_code is not None or is_progressing(scenario),  # noqa: B023
                what="an end or progress",
            )
        program.kill()
        scenario.finish()


def struck(program: MortalProgram, strike: Callable[[MortalProgram], bool]) -> bool:
    """Whether it was; not, if it has ended before, by what it was struck with last."""

    def outcome() -> str:
        if program.exit_code is not None:
            return "ended"
        return "struck" if strike(program) else ""

    return wait_for(outcome, what="something to kill") == "struck"


@pytest.mark.extended
def test_workers_that_die_again_and_again_lose_nothing(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Every worker dies at its second flush: the region begins a new attempt, and the run continues."""
    with Scenario(COPY, kafka.bootstrap, tmp_path) as scenario:
        program = scenario.start(failpoints="before-flush=kill@2")
        for attempts in (1, 2, 3):
            wait_for(
                lambda attempts=attempts: program.log().count("region restarted") >= attempts,
                what=f"life {attempts + 1}",
            )
        assert program.exit_code is None, program.log_tail()
        program.kill()
        scenario.finish()


@pytest.mark.extended
def test_tasks_that_die_at_once_are_one_failure(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Five continuous ones, as with their executor, after a decision: no checkpoint goes with
    them, and the job tolerates three failures in a row."""
    environment = {"ENGINE": "continuous", "REGIONS": "5"}
    setting = Setting(partitions=5, interval_s=3.0, master="local[6]", environment=environment)
    with Scenario(MORTAL_COPY, kafka.bootstrap, tmp_path, setting) as scenario:
        program = start_and_see(scenario)
        for times in (1, 2):
            scenario.observer.await_total(scenario.observer.total + 1, timeout_s=START_S)
            for worker in program.workers():
                worker.kill()

            def have_begun_again(attempts: int = 5 * times) -> bool:
                assert program.exit_code is None, program.log_tail()
                return program.log().count("region restarted") >= attempts

            wait_for(have_begun_again, what="new lives")
            wait_for(lambda: is_progressing(scenario), what="progress")
        scenario.finish_running(program)


def is_progressing(scenario: Scenario) -> bool:
    """Whether records become visible that were sent after the call."""
    seen = scenario.feeder.sent
    try:
        scenario.observer.await_total(seen, timeout_s=5.0)
    except Exception:  # noqa: BLE001 - asked again until the bound of the caller
        return False
    return True


@pytest.mark.extended
def test_everything_dies_in_the_middle_of_writing(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """``kill -9`` of all processes at any moment."""
    with Scenario(COPY, kafka.bootstrap, tmp_path) as scenario:
        ends = EndWatch(scenario.topics.connection, scenario.topics.output)
        program = start_and_see(scenario)
        wait_for(lambda: not ends.now().is_settled, what="an open transaction", poll_s=0.005)
        program.kill()
        scenario.finish()


@pytest.mark.extended
def test_a_new_run_may_start_before_the_old_one_is_gone(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """The driver is dead, its JVM and workers not yet, and the next run is already up."""
    with Scenario(COPY, kafka.bootstrap, tmp_path) as scenario:
        old = start_and_see(scenario)
        old.kill_driver()
        scenario.finish_running(start_and_see(scenario))


@pytest.mark.extended
def test_ids_never_reused_readers_are_unblocked_by_the_restart(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    with Scenario(COPY, kafka.bootstrap, tmp_path, Setting(preload=2_000)) as scenario:
        scenario.kill_at(Kill(failpoint="before-decision", hit=2))
        connection, output = scenario.topics.connection, scenario.topics.output
        held = topic_ends(connection, output)
        assert not held.is_settled
        scenario.kill_at(Kill(failpoint="after-sweep"))
        await_readable(connection, output, beyond=held.high, timeout_s=UNBLOCKED_S)
        scenario.finish()
