"""A pipeline on three brokers, one of which is taken away while it runs: exact all the same."""

from pathlib import Path

import pytest

from tests.chaos.programs import COPY
from tests.chaos.scenario import START_S, Scenario
from tests.containers.kafka_cluster import KafkaCluster
from tests.kit.kafka.kafka_records import end_offsets
from tests.kit.mortal_program import MortalProgram
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.containers, pytest.mark.extended, pytest.mark.timeout(2400)]

_PROGRESS_S = 600.0


def _await_progress(
    cluster: KafkaCluster, scenario: Scenario, program: MortalProgram, records: int
) -> None:
    """Wait until a read_committed reader has seen so many records more; the program must live."""
    target = scenario.observer.total + records

    def seen() -> bool:
        assert program.exit_code is None, program.log_tail()
        return scenario.observer.total >= target

    bound = _PROGRESS_S if scenario.observer.total else START_S
    try:
        wait_for(seen, timeout_s=bound, what=f"{records} more records in the output")
    except AssertionError as error:
        error.add_note(_state(cluster, scenario))
        raise


def _state(cluster: KafkaCluster, scenario: Scenario) -> str:
    output = scenario.topics.output
    stable = end_offsets(cluster.bootstrap, output)
    written = end_offsets(cluster.bootstrap, output, committed=False)
    newest = max((path.name for path in scenario.checkpoint.glob("chk-*")), default="none")
    return (
        f"sent {scenario.feeder.sent}, seen {scenario.observer.total}, stable {stable}, "
        f"written {written}, newest checkpoint {newest}"
    )


@pytest.mark.long
def test_pipeline_outlives_a_broker_that_is_killed_and_comes_back(
    cluster: KafkaCluster, tmp_path: Path
) -> None:
    with Scenario(COPY, cluster.bootstrap, tmp_path) as scenario:
        program = scenario.start()
        _await_progress(cluster, scenario, program, 300)
        for partition in range(scenario.setting.partitions):
            victim = cluster.leader(scenario.topics.output, partition)
            cluster.kill(victim)
            _await_progress(cluster, scenario, program, 500)
            cluster.start(victim)
            cluster.await_in_sync(scenario.topics.output)
            _await_progress(cluster, scenario, program, 300)
        scenario.finish_running(program)


@pytest.mark.long
def test_killed_pipeline_recovers_while_a_broker_is_down(
    cluster: KafkaCluster, tmp_path: Path
) -> None:
    """Both die at once; the next run finds and ends the dead one's transactions on two brokers."""
    with Scenario(COPY, cluster.bootstrap, tmp_path) as scenario:
        program = scenario.start()
        _await_progress(cluster, scenario, program, 300)
        victim = cluster.leader(scenario.topics.output)
        program.kill()
        cluster.kill(victim)
        second = scenario.start()
        _await_progress(cluster, scenario, second, 500)
        cluster.start(victim)
        cluster.await_in_sync(scenario.topics.output)
        _await_progress(cluster, scenario, second, 300)
        scenario.finish_running(second)


def test_pipeline_outlives_a_broker_lost_for_good(cluster: KafkaCluster, tmp_path: Path) -> None:
    """The leader of the output is lost with its disk: the run continues, nothing lost or doubled.

    The last test of its module: the cluster does not get the node back.
    """
    with Scenario(COPY, cluster.bootstrap, tmp_path) as scenario:
        program = scenario.start()
        _await_progress(cluster, scenario, program, 300)
        cluster.lose(cluster.leader(scenario.topics.output))
        _await_progress(cluster, scenario, program, 1000)
        program.kill()
        scenario.finish()
