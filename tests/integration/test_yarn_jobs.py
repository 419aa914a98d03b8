"""`docs/guide/deploy.md` on YARN, in both deploy modes and with both engines; with kills, and each
record once."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.embedded.ivy import pyspark_jars
from sluice.runtime.embedded.program import ProgramSpec
from sluice.runtime.embedded.yarn.embedded_yarn import EmbeddedYarn
from tests.kit.deploy_page import DEPLOY, Copied, commands, run_commands
from tests.kit.mortal_program import MortalProgram
from tests.kit.waiting import PATIENCE_S, wait_for
from tests.kit.yarn_applications import Application, newest_application

pytestmark = [pytest.mark.integration, pytest.mark.long]

_BIN = Path(sys.executable).parent
# The page uploads Spark's jars; here each host has them.
_JARS = f"--conf spark.yarn.jars=local:{pyspark_jars()}/* "
_ENGINES = ["continuous", "micro-batch"]


@pytest.fixture
def copied(kafka: EmbeddedKafka) -> Copied:
    made = Copied(kafka.bootstrap)
    made.send()
    return made


def _submit(
    place: Path, yarn: EmbeddedYarn, copied: Copied, engine: str = "auto", checkpoint: str = ""
) -> Application:
    """The page's command."""
    said = run_commands(
        "Submit to YARN",
        {
            "/etc/hadoop/conf": str(yarn.conf_dir),
            "/opt/orders/bin": str(_BIN),
            "spark-submit ": f"spark-submit {_JARS}",
            "--executor-memory 1g --driver-memory 1g": "--executor-memory 512m --driver-memory 512m",
            "deploy/orders.py KAFKA_SERVERS=kafka-1:9092 INPUT=orders OUTPUT=orders-copy": " ".join(
                (f"{DEPLOY}/orders.py", f"ENGINE={engine}", *copied.settings.values())
            ),
            "hdfs:///checkpoints/orders": checkpoint or _checkpoint(copied),
        },
        directory=place,
        environment={"PYTHONPATH": "", "PYSPARK_PYTHON": ""},
    )
    (application_id,) = set(re.findall(r"application_\d+_\d+", said))
    return Application(yarn, application_id)


def _checkpoint(copied: Copied) -> str:
    return f"hdfs:///checkpoints/{copied.output}"


def _kill_application(yarn: EmbeddedYarn, application: Application) -> None:
    run_commands(
        "Kill the application",
        {
            "yarn ": f"{yarn.bin_dir}/yarn ",
            "application_1700000000000_0001": application.application_id,
        },
        directory=yarn.bin_dir,
    )


@pytest.mark.parametrize("engine", _ENGINES)
def test_a_job_outlives_an_executor_and_its_master(
    place: Path, yarn: EmbeddedYarn, copied: Copied, engine: str
) -> None:
    """In cluster mode: YARN starts the driver again."""
    application = _submit(place, yarn, copied, engine)
    copied.require_once()
    application.busy_executor().kill()
    copied.send()
    copied.require_once()

    application.master().kill()
    copied.send()
    copied.require_once()
    assert application.attempts() == 2

    run_commands(
        "Stop the application in order",
        {
            "sluice ": f"{sys.executable} -m sluice ",
            "hdfs:///checkpoints/orders": _checkpoint(copied),
        },
        directory=place,
        environment={
            "PYTHONPATH": os.pathsep.join(sys.path),
            "HADOOP_CONF_DIR": str(yarn.conf_dir),
        },
    )
    assert application.await_end() == "SUCCEEDED"
    copied.require_once()


@pytest.mark.parametrize("engine", _ENGINES)
def test_a_job_outlives_the_node_of_its_driver(
    place: Path, yarn: EmbeddedYarn, copied: Copied, engine: str
) -> None:
    """In cluster mode: YARN starts the driver again on the other node."""
    application = _submit(place, yarn, copied, engine)
    copied.require_once()
    yarn.kill_node(application.node_of(application.master()))
    copied.send()
    copied.require_once()
    assert application.attempts() == 2
    yarn.start()
    _kill_application(yarn, application)
    assert application.await_end() == "KILLED"
    copied.require_once()


def test_a_killed_application_leaves_no_process_and_the_next_one_resumes(
    place: Path, yarn: EmbeddedYarn, copied: Copied
) -> None:
    application = _submit(place, yarn, copied)
    copied.require_once()
    _kill_application(yarn, application)
    assert application.await_end() == "KILLED"
    copied.send()
    application = _submit(place, yarn, copied)
    copied.require_once()
    _kill_application(yarn, application)
    assert application.await_end() == "KILLED"


def test_a_checkpoint_on_the_disk_of_one_node_is_refused(
    place: Path, yarn: EmbeddedYarn, copied: Copied
) -> None:
    application = _submit(place, yarn, copied, checkpoint="/checkpoints/orders")
    assert application.await_end() == "FAILED"
    assert application.attempts() > 1
    assert "may be lost with the driver's host" in application.master_output()


class Driver(MortalProgram):
    """The driver of the page, in client mode, with the settings of this test."""

    def __init__(self, place: Path, yarn: EmbeddedYarn, copied: Copied, engine: str) -> None:
        script = commands()["Start the driver beside YARN"]
        arguments = (f"ENGINE={engine}", *copied.settings.values())
        for text, other in {
            "/etc/hadoop/conf": str(yarn.conf_dir),
            "--num-executors 2 ": f"--num-executors 2 --executor-memory 512m {_JARS}",
            "/opt/orders/bin/": f"{place}/driver/bin/",
            "/opt/orders/orders.py": f"{DEPLOY}/orders.py {' '.join(arguments)} "
            f"CHECKPOINT={_checkpoint(copied)}",
        }.items():
            assert text in script
            script = script.replace(text, other)
        super().__init__(
            ProgramSpec(
                command=("bash", "-euc", script),
                log_path=place / f"{copied.output}.log",
                environment={"PYTHONPATH": ""},
                working_dir=place,
            )
        )


@pytest.mark.parametrize("engine", _ENGINES)
def test_a_driver_on_the_gateway_outlives_containers_and_resumes_after_its_own_end(
    place: Path, yarn: EmbeddedYarn, copied: Copied, engine: str
) -> None:
    with Driver(place, yarn, copied, engine) as driver:
        copied.require_once()
        application = newest_application(yarn)
        application.busy_executor().kill()
        copied.send()
        copied.require_once()
        driver.kill_driver()
        wait_for(lambda: not driver.members(), what="the end of the JVM")
    copied.send()
    with Driver(place, yarn, copied, engine) as driver:
        copied.require_once()
        application.await_end()
        application = newest_application(yarn)
        os.kill(driver.pid, signal.SIGTERM)
        assert driver.await_exit(timeout_s=PATIENCE_S) == 128 + signal.SIGTERM, driver.log_tail()
    application.await_end()


@pytest.mark.parametrize("engine", _ENGINES)
def test_a_driver_on_the_gateway_outlives_a_node_and_its_master(
    place: Path, yarn: EmbeddedYarn, copied: Copied, engine: str
) -> None:
    """YARN starts the master again, with executors of its own; the driver goes on."""
    with Driver(place, yarn, copied, engine) as driver:
        copied.require_once()
        application = newest_application(yarn)
        yarn.kill_node(application.node_of(application.busy_executor()))
        copied.send()
        copied.require_once()
        yarn.start()
        before = application.attempts()
        application.launcher().kill()
        copied.send()
        copied.require_once()
        wait_for(lambda: application.attempts() > before, what="the next master")
        copied.send()
        copied.require_once()
        os.kill(driver.pid, signal.SIGTERM)
        assert driver.await_exit(timeout_s=PATIENCE_S) == 128 + signal.SIGTERM, driver.log_tail()
    application.await_end()


def test_a_driver_on_the_gateway_ends_with_its_killed_application(
    place: Path, yarn: EmbeddedYarn, copied: Copied
) -> None:
    with Driver(place, yarn, copied, "auto") as driver:
        copied.require_once()
        application = newest_application(yarn)
        _kill_application(yarn, application)
        assert driver.await_exit(timeout_s=PATIENCE_S) == 1, driver.log_tail()
        assert "the Spark session has been stopped" in driver.log()
    assert application.await_end() == "KILLED"
