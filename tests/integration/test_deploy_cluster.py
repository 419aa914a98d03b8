"""`docs/guide/deploy.md` on a standalone Spark cluster whose workers have no Sluice; with kills, and
each record once."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.embedded.ports import HOST
from sluice.runtime.embedded.program import ProgramSpec
from tests.kit.deploy_page import (
    DEPLOY,
    Copied,
    commands,
)
from tests.kit.mortal_program import MortalProgram
from tests.kit.spark_cluster import SparkCluster
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.extended]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """Three workers of one core; the job uses two of them, so that one may die."""
    directory, hosts = tmp_path_factory.mktemp("cluster"), (HOST, HOST, HOST)
    with SparkCluster(directory, hosts=hosts, python_path="") as made:
        yield made


class Driver(MortalProgram):
    """The driver of the page, with the settings of this test."""

    def __init__(
        self, place: Path, cluster: SparkCluster, copied: Copied, python: str = ""
    ) -> None:
        script = commands()["Start the driver"]
        for text, other in {
            "--master spark://master:7077": f"--master {cluster.url} --total-executor-cores 2",
            "DRIVER_HOST=driver": f"DRIVER_HOST={HOST}",
            "/opt/orders/bin/": f"{place}/driver/bin/",
            "/opt/orders/orders.py": f"{DEPLOY}/orders.py {' '.join(copied.settings.values())} "
            f"CHECKPOINT={place}/checkpoints/{copied.output}",
            "PYSPARK_PYTHON=./env/bin/python": f"PYSPARK_PYTHON={python or './env/bin/python'}",
        }.items():
            assert text in script
            script = script.replace(text, other)
        super().__init__(
            ProgramSpec(
                command=("bash", "-euc", script),
                log_path=place / f"{copied.output}.log",
                environment={"PYTHONPATH": "", "SPARK_LOCAL_IP": HOST},
                working_dir=place,
            )
        )


@pytest.fixture
def copied(kafka: EmbeddedKafka) -> Copied:
    made = Copied(kafka.bootstrap)
    made.send()
    return made


def test_a_job_outlives_a_worker_and_resumes_after_its_driver(
    place: Path, cluster: SparkCluster, copied: Copied
) -> None:
    with Driver(place, cluster, copied) as driver:
        copied.require_once()
        busy = next(number for number in range(3) if cluster.has_tasks(number))
        cluster.kill_worker(busy)
        copied.send()
        copied.require_once()
        driver.kill_driver()
        wait_for(lambda: not driver.members(), what="the end of the JVM")
    copied.send()
    with Driver(place, cluster, copied) as driver:
        copied.require_once()
        os.kill(driver.pid, signal.SIGTERM)
        assert driver.await_exit(timeout_s=PATIENCE_S) == 128 + signal.SIGTERM, driver.log_tail()


def test_an_executor_without_sluice_ends_the_job_with_an_error_that_says_so(
    place: Path, cluster: SparkCluster, copied: Copied
) -> None:
    bare = f"{sys.base_prefix}/bin/python3"
    with Driver(place, cluster, copied, python=bare) as driver:
        assert driver.await_exit(timeout_s=PATIENCE_S) == 1
        said = driver.log().splitlines()[-1]
        assert said.startswith("ConfigError: an executor's Python lacks a module [found=sluice"), (
            said
        )
        assert f"PYSPARK_PYTHON={bare}" in said


def test_spark_refuses_python_programs_in_cluster_mode(place: Path, cluster: SparkCluster) -> None:
    """The page says so; when Spark learns it, the page must change."""
    submit = Path(sys.executable).with_name("spark-submit")
    done = subprocess.run(
        [submit, "--master", cluster.url, "--deploy-mode", "cluster", DEPLOY / "orders.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "not supported for python applications on standalone clusters" in done.stderr
