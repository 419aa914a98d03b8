"""The continuous engine killed: everything, the driver, one task of several; and changed for the
other engine at a checkpoint. Real processes on a real broker, as in `tests.chaos.test_failpoints`.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.embedded.hdfs.embedded_hdfs import EmbeddedHdfs
from tests.chaos.beds import CONTINUOUSLY, kills, twice
from tests.chaos.programs import MORTAL_COPY
from tests.chaos.scenario import START_S, Kill, Scenario, Setting
from tests.chaos.spark_start import spark_environment
from tests.kit.kafka.kafka_records import unique
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(2400)]

_CONTINUOUS = {"ENGINE": "continuous"}


@pytest.mark.parametrize(
    "failpoints",
    [
        ("after-epoch-begun", "after-decision"),
        pytest.param(("before-commit",), marks=pytest.mark.extended),
        pytest.param(
            ("after-pre-commit", "after-epoch-ack", "before-mark"), marks=pytest.mark.long
        ),
    ],
    ids=["begun, decided", "not committed", "flushed, told, committed"],
)
def test_continuous_order_kills_around_the_end_of_an_epoch(
    kafka: EmbeddedKafka, tmp_path: Path, failpoints: tuple[str, ...]
) -> None:
    """The next epoch is being written already when this one is flushed, reported, decided, committed
    and marked: after each kill both are thrown away, or this one is finished, and nothing else."""
    setting = Setting(environment=_CONTINUOUS, preload=2_000)
    with Scenario(MORTAL_COPY, kafka.bootstrap, tmp_path, setting) as scenario:
        for kill in kills(failpoints, hit=3):
            scenario.kill_at(kill)
        scenario.finish()


@pytest.mark.extended
def test_outcome_from_broker_kills_around_a_native_commit(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    names = ("after-tasks-asked", "before-native-commit", "after-native-commit")
    setting = Setting(environment=_CONTINUOUS, preload=2_000)
    with Scenario(MORTAL_COPY, kafka.bootstrap, tmp_path, setting) as scenario:
        for kill in kills((*names, "after-tasks-answered"), hit=3):
            scenario.kill_at(kill)
        scenario.finish()


@pytest.mark.extended
@pytest.mark.parametrize("failpoint", ["before-native-commit", "after-native-commit"])
def test_outcome_from_broker_a_task_that_dies_in_its_commit_is_finished_by_the_driver(
    kafka: EmbeddedKafka, tmp_path: Path, failpoint: str
) -> None:
    setting = Setting(environment=_CONTINUOUS, preload=2_000)
    with Scenario(MORTAL_COPY, kafka.bootstrap, tmp_path, setting) as scenario:
        program = scenario.start(failpoints=f"{failpoint}=kill@2")
        wait_for(
            lambda: program.log().count("region restarted") >= 2,
            timeout_s=START_S,
            what="two lives",
        )
        assert program.exit_code is None, program.log_tail()
        program.kill()
        scenario.finish()


def _survive_a_pause(kafka: EmbeddedKafka, directory: Path, failpoint: str) -> None:
    """A task hangs there until its checkpoint expires; its region begins a new attempt."""
    setting = Setting(environment=_CONTINUOUS | {"TIMEOUT_S": "20"}, preload=2_000)
    with Scenario(MORTAL_COPY, kafka.bootstrap, directory, setting) as scenario:
        program = scenario.start(failpoints=f"{failpoint}=pause@3")
        wait_for(
            lambda: "region restarted" in program.log(),
            timeout_s=START_S,
            what="a new life in place of the paused task",
        )
        assert program.exit_code is None, program.log_tail()
        program.kill()
        scenario.setting = replace(setting, environment=_CONTINUOUS)
        scenario.finish()


@pytest.mark.extended
def test_outcome_from_broker_a_task_that_is_paused_before_its_commit_is_not_waited_for(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """The driver finishes its epoch; the next one expires with the task, and its region continues."""
    _survive_a_pause(kafka, tmp_path, "before-native-commit")


@pytest.mark.extended
def test_a_job_is_moved_between_the_engines_at_a_checkpoint(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Killed in the one, after its decision and before it, and started again in the other."""
    setting = Setting(preload=1_000)
    moves = [
        ("micro-batch", Kill(failpoint="before-mark", hit=2)),
        ("continuous", Kill(failpoint="before-mark", hit=3)),
        ("micro-batch", Kill(failpoint="before-decision", hit=2)),
    ]
    with Scenario(MORTAL_COPY, kafka.bootstrap, tmp_path, setting) as scenario:
        for engine, kill in moves:
            scenario.kill_at(kill, arguments=("--engine", engine))
        scenario.finish(arguments=("--engine", "continuous"))


@pytest.mark.extended
def test_continuous_order_tasks_that_die_alone_come_back_and_the_others_continue(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Each of two tasks dies at its third epoch, in every attempt: the job lives on, and the other
    region's commits do not wait for it."""
    setting = Setting(
        environment=_CONTINUOUS | {"REGIONS": "2", "REGIONAL": "yes"}, partitions=4, preload=2_000
    )
    with Scenario(MORTAL_COPY, kafka.bootstrap, tmp_path, setting) as scenario:
        program = scenario.start(failpoints="after-epoch-begun=kill@3")
        wait_for(
            lambda: program.log().count("region restarted") >= 3,
            timeout_s=START_S,
            what="three lives",
        )
        assert program.exit_code is None, program.log_tail()
        program.kill()
        scenario.finish()


def checkpoints_on(hdfs: EmbeddedHdfs) -> tuple[tuple[str, ...], dict[str, str]]:
    """Arguments of a program whose checkpoint directory is there, and its environment."""
    submit = spark_environment()["PYSPARK_SUBMIT_ARGS"]
    web = hdfs.web_uri.removeprefix("http://")
    told = f"--conf spark.hadoop.dfs.namenode.http-address={web} {submit}"
    return ("--checkpoint", f"{hdfs.uri}/{unique('frozen')}"), {"PYSPARK_SUBMIT_ARGS": told}


@pytest.mark.extended
@pytest.mark.parametrize("place", ["local", pytest.param("hdfs", marks=pytest.mark.long)])
def test_continuous_order_a_task_whose_driver_is_frozen_and_was_superseded_ends(
    kafka: EmbeddedKafka, request: pytest.FixtureRequest, tmp_path: Path, place: str
) -> None:
    """Long before it would for the silence: the checkpoint directory says who leads. There is
    nothing to read meanwhile, so no broker's word about a transaction ends it before."""
    at: tuple[str, ...] = ()
    environment = _CONTINUOUS | {"LOST_TIMEOUT_S": "400"}
    if place == "hdfs":
        at, told = checkpoints_on(request.getfixturevalue("hdfs"))
        environment |= told
    with Scenario(
        MORTAL_COPY, kafka.bootstrap, tmp_path, Setting(environment=environment)
    ) as scenario:
        first = scenario.start(arguments=at)
        scenario.observer.await_total(1, timeout_s=START_S)
        scenario.feeder.close()
        scenario.observer.await_total(scenario.feeder.sent, timeout_s=START_S)
        first.pause_driver()
        second = scenario.start(arguments=at)
        wait_for(
            lambda: "another coordinator leads the job now" in first.log(),
            timeout_s=START_S,
            what="the end of the first driver's task",
        )
        assert "not answered for too long" not in first.log()
        assert first.is_driver_paused()

        first.resume_driver()
        first.await_exit(timeout_s=START_S)
        scenario.feeder.send(500)
        scenario.feeder.flush()
        scenario.finish_running(second)


@pytest.mark.extended
def test_ids_never_reused_a_paused_task_is_replaced(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """In the middle of an open transaction: the next attempt has ids of its own, and readers do not
    wait for the old one."""
    _survive_a_pause(kafka, tmp_path, "before-epoch-end")


@pytest.mark.long
@pytest.mark.parametrize("failpoint", CONTINUOUSLY)
def test_continuous_copy_survives_two_kills_in_a_row_at_every_failpoint(
    kafka: EmbeddedKafka, tmp_path: Path, failpoint: str
) -> None:
    setting = Setting(environment=_CONTINUOUS, preload=2_000)
    with Scenario(MORTAL_COPY, kafka.bootstrap, tmp_path, setting) as scenario:
        for kill in twice(failpoint):
            scenario.kill_at(kill)
        scenario.finish()
