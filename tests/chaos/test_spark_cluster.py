"""Single points of a Spark cluster: a host that dies, and one that hangs and comes back."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.history import EndWatch
from runtime.embedded.program import Program
from tests.chaos.programs import COPY
from tests.chaos.scenario import START_S, Scenario, Setting
from tests.chaos.spark_start import spark_environment
from tests.spark_cluster import SparkCluster
from tests.waiting import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1200)]

_LOST_AFTER_S = 10
_CONF = {
    "spark.executor.memory": "512m",
    "spark.executor.heartbeatInterval": "1s",
    "spark.network.timeout": f"{_LOST_AFTER_S}s",
    "spark.network.timeoutInterval": "2s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": f"{_LOST_AFTER_S}s",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """Two workers of one core each; the last test takes one away."""
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def scenario(kafka: EmbeddedKafka, tmp_path: Path) -> Iterator[Scenario]:
    """A copy whose driver notices soon that an executor does not answer."""
    before = spark_environment()["PYSPARK_SUBMIT_ARGS"]
    more = " ".join(f"--conf {name}={value}" for name, value in _CONF.items())
    setting = Setting(partitions=4, environment={"PYSPARK_SUBMIT_ARGS": f"{more} {before}"})
    with Scenario(COPY, kafka.bootstrap, tmp_path, setting) as made:
        yield made


def started(scenario: Scenario, cluster: SparkCluster) -> Program:
    """A copy whose tasks run on both workers."""
    program = scenario.start(arguments=["--master", cluster.url])

    def runs_on_both() -> bool:
        assert program.exit_code is None, program.log_tail()
        return all(cluster.has_tasks(number) for number in (0, 1))

    wait_for(runs_on_both, timeout_s=START_S, what="tasks on both workers")
    scenario.observer.await_total(scenario.observer.total + 1, timeout_s=START_S)
    return program


def await_open_transactions(scenario: Scenario) -> None:
    """Tasks are in the middle of an epoch."""
    ends = EndWatch(scenario.topics.connection, scenario.topics.output)
    wait_for(lambda: not ends.now().is_settled, poll_s=0.01, what="records in open transactions")


def sees_more(scenario: Scenario) -> None:
    """What is sent from now on becomes visible."""
    scenario.observer.await_total(scenario.feeder.sent, timeout_s=START_S)


def test_rule_4_a_host_that_hangs_and_goes_on_adds_nothing(
    scenario: Scenario, cluster: SparkCluster
) -> None:
    """Beyond every time-out: its tasks run elsewhere, and it wakes up in the middle of its own."""
    program = started(scenario, cluster)
    await_open_transactions(scenario)
    frozen = cluster.freeze(0)
    sees_more(scenario)
    cluster.thaw(frozen)
    sees_more(scenario)

    assert "region restarted" not in program.log()
    scenario.finish_running(program)


def test_rule_4_a_host_that_dies_costs_its_tasks_alone(
    scenario: Scenario, cluster: SparkCluster
) -> None:
    """Spark runs them again on the other one, and the region does not notice."""
    program = started(scenario, cluster)
    await_open_transactions(scenario)
    cluster.kill_worker(0)
    sees_more(scenario)

    assert "region restarted" not in program.log()
    scenario.finish_running(program)
