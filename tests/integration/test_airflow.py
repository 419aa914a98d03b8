"""`examples/airflow_dag.py`, run by Airflow itself in an environment of its own.

`airflow dags test` runs the tasks and their retries as a scheduler would, in one process.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionState
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.embedded.cache import cache_dir, exclusive
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import produce, values
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
VERSION = "3.3.2"
MANY = 100_000


@pytest.fixture(scope="module")
def airflow() -> Path:
    """The command, installed once for each user: 300 MB, 40 s of processor time."""
    place = cache_dir() / f"airflow-{VERSION}-{sys.implementation.cache_tag}"
    with exclusive(place.with_suffix(".lock"), timeout_s=1800):
        if not (place / "complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", place], check=True)
            wanted = ("-m", "pip", "install", "--quiet", f"apache-airflow=={VERSION}")
            subprocess.run([place / "bin" / "python", *wanted], check=True)
            (place / "complete").touch()
    return place / "bin" / "airflow"


@pytest.fixture(scope="module")
def home(airflow: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Airflow's directory, with its database."""
    made = tmp_path_factory.mktemp("airflow")
    environment = {**os.environ, "AIRFLOW_HOME": str(made)}
    subprocess.run([airflow, "db", "migrate"], env=environment, check=True, capture_output=True)
    return made


class Deployment:
    """The DAG as a user has it: in Airflow's folder, and the program beside its environment."""

    def __init__(
        self, airflow: Path, home: Path, directory: Path, changes: Mapping[str, str]
    ) -> None:
        self._airflow, self.directory = airflow, directory
        text = (ROOT / "examples" / "airflow_dag.py").read_text("utf-8")
        for before, after in changes.items():
            assert text.count(before) == 1
            text = text.replace(before, after)
        dags = directory / "dags"
        dags.mkdir()
        (dags / "airflow_dag.py").write_text(text, "utf-8")
        self.python = directory / ".venv" / "bin" / "python"
        self.python.parent.mkdir(parents=True)
        self.python.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" "$@"\n')
        self.python.chmod(0o755)
        (directory / "examples").symlink_to(ROOT / "examples")
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "SLUICE_HOME": str(directory),
        }

    def start(self, settings: Mapping[str, str]) -> "subprocess.Popen[str]":
        """One run of the DAG; Airflow's log goes to the file ``log``."""
        with (self.directory / "log").open("w") as log:
            return subprocess.Popen(
                [self._airflow, "dags", "test", "copy_orders", "--conf", json.dumps(settings)],
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )


def job_of(directory: Path) -> int | None:
    """The process of the program; the shell before it has another command line."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if str(directory / "checkpoint").encode() in words and b"kafka_to_kafka.py" in words[1]:
            return int(process.name)
    return None


def open_transactions(kafka: EmbeddedKafka, prefix: str) -> int:
    wire = TransactionWire(KafkaConnection(bootstrap_servers=kafka.bootstrap))
    try:
        found = wire.list_transactions(prefix, timeout_s=120.0, states=(TransactionState.ONGOING,))
        return len(found.transactions)
    finally:
        wire.close()


def settings_of(kafka: EmbeddedKafka, topic: TopicFactory, directory: Path) -> dict[str, str]:
    source, output = topic(), topic()
    produce(kafka.bootstrap, source, [b"%06d" % at for at in range(MANY)])
    return {
        "bootstrap": kafka.bootstrap,
        "input": source,
        "output": output,
        "checkpoint": str(directory / "checkpoint"),
    }


EXPECTED = [b"%06d!" % at for at in range(MANY)]


def test_a_killed_try_is_repeated_by_airflow(
    airflow: Path, home: Path, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    hasty = {"timedelta(seconds=30)": "timedelta(seconds=1)"}
    deployed = Deployment(airflow, home, tmp_path, hasty)
    settings = settings_of(kafka, topic, tmp_path)
    with deployed.start(settings) as run:
        first = wait_for(lambda: job_of(tmp_path), what="the first try")
        wait_for((tmp_path / "checkpoint").exists, what="its checkpoints")
        assert first is not None
        os.kill(first, signal.SIGKILL)
        # The killed process has its command line for a moment more.
        wait_for(lambda: job_of(tmp_path) not in (None, first), what="the second try")
        assert run.wait(1800) == 0
    assert "non-zero exit code -9" in (tmp_path / "log").read_text("utf-8")
    assert values(kafka.bootstrap, settings["output"]) == EXPECTED


def test_a_try_that_takes_too_long_is_stopped_in_order(
    airflow: Path, home: Path, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """By SIGTERM to the program and to Spark; the program's next start resumes."""
    changes = {"timedelta(minutes=50)": "timedelta(seconds=40)", "retries=5": "retries=0"}
    without_end = Deployment(airflow, home, tmp_path, {**changes, " --until-end": ""})
    settings = settings_of(kafka, topic, tmp_path)
    with without_end.start(settings) as run:
        assert run.wait(1800) != 0
    log = (tmp_path / "log").read_text("utf-8")
    assert "AirflowTaskTimeout" in log
    wait_for(lambda: job_of(tmp_path) is None, what="the program's end")
    prefix = f"kafka-to-kafka-{settings['output']}/"
    wait_for(lambda: open_transactions(kafka, prefix) == 0, what="no open transaction")
    options = (text for name, value in settings.items() for text in (f"--{name}", value))
    program = ROOT / "examples" / "kafka_to_kafka.py"
    subprocess.run([without_end.python, program, "--until-end", *options], check=True)
    assert values(kafka.bootstrap, settings["output"]) == EXPECTED
