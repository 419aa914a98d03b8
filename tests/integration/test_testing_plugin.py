"""The pytest plugin as a user has it: by its entry point, in a pytest of its own, with real servers
that end with that pytest, however it ends."""

import contextlib
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.connectors.testing.topics import created_topics
from sluice.runtime.errors import StreamError
from tests.kit.kafka.kafka_records import admin, delete_topic, partition_count
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    """Of a process that finds an installed Sluice, with the entry points of `pyproject.toml`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (entry,) = project["entry-points"]["pytest11"].items()
    installed = tmp_path / "installed" / "sluice_spark_testing-0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: sluice-spark-testing\nVersion: 0\n"
    )
    (installed / "entry_points.txt").write_text(f"[pytest11]\n{' = '.join(entry)}\n")
    own = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    return {**own, "PYTHONPATH": f"{ROOT}{os.pathsep}{installed.parent}"}


def command(*arguments: object) -> list[str]:
    options = ("-q", "-p", "no:cacheprovider", "-W", "error", "--strict-markers")
    return [sys.executable, "-m", "pytest", *options, *map(str, arguments)]


def passed(environment: Mapping[str, str], directory: Path, *arguments: object) -> str:
    """The output of a pytest of which all tests pass."""
    done = subprocess.run(
        command(*arguments), env=environment, cwd=directory, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's directory of tests."""
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "pytest.ini").write_text("[pytest]\n")
    return directory


def test_a_run_without_the_fixtures_starts_and_imports_nothing(
    project: Path, environment: Mapping[str, str]
) -> None:
    (project / "test_own.py").write_text(
        "import sys, psutil\n"
        "def test_own(request):\n"
        "    assert request.config.pluginmanager.has_plugin('sluice')\n"
        "    assert not {'pyspark', 'pyarrow', 'confluent_kafka'} & set(sys.modules)\n"
        "    assert not psutil.Process().children()\n"
    )
    assert "1 passed" in passed(environment, project)
    assert "--kafka-image" in passed(environment, project, "--help")
    fixtures = passed(environment, project, "--fixtures")
    assert all(f"sluice_{name}" in fixtures for name in ("kafka", "topic", "hdfs", "spark"))


def test_topics_are_new_filled_read_and_deleted(kafka: EmbeddedKafka) -> None:
    connection = KafkaConnection(bootstrap_servers=kafka.bootstrap)
    with created_topics(connection) as create:
        orders = create("orders", partitions=2, config={"retention.ms": "-1"})
        others = create("orders")
        assert orders != others
        assert partition_count(kafka.bootstrap, orders) == 2
        orders.send([b"1", "ü", None, ("key", "2"), (b"key", None)], partition=1)
        found = [(each.partition, each.key, each.value) for each in orders.records()]
        keyed = [(1, b"key", b"2"), (1, b"key", None)]
        assert found == [(1, None, b"1"), (1, None, "ü".encode()), (1, None, None), *keyed]
        orders.send(("same", f"{number}") for number in range(100))
        assert len({each.partition for each in orders.records() if each.key == b"same"}) == 1
        delete_topic(kafka.bootstrap, others)  # a test may do so
    client = admin(kafka.bootstrap)
    wait_for(lambda: not {orders, others} & set(client.list_topics(timeout=60).topics))


def test_a_refused_record_is_an_error(kafka: EmbeddedKafka) -> None:
    connection = KafkaConnection(bootstrap_servers=kafka.bootstrap)
    with created_topics(connection) as create:
        orders = create("orders", config={"max.message.bytes": "1000"})
        with pytest.raises(StreamError, match=orders):
            orders.send(["small", "large" * 1000])


_ALL = """
import pyarrow as pa
import pyspark.sql.functions as F

def doubled(batches):  # Spark's workers import this module
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"id": [2 * id for id in batch["id"].to_pylist()]})

def test_spark_hdfs_and_a_query(sluice_spark, sluice_kafka, sluice_topic, sluice_hdfs, tmp_path):
    rows = sluice_spark.range(3).mapInArrow(doubled, "id long").collect()
    assert sorted(row.id for row in rows) == [0, 2, 4]
    orders, copies = sluice_topic("orders"), sluice_topic("copies")
    orders.send(f"order {n}" for n in range(100))
    servers = {"kafka.bootstrap.servers": sluice_kafka.bootstrap}
    read = sluice_spark.readStream.format("sluice-kafka").options(**servers, subscribe=orders)
    query = (
        read.option("startingOffsets", "earliest").load()
        .writeStream.format("sluice-kafka").options(**servers, topic=copies, transactionalIdPrefix=copies)
        .option("checkpointLocation", f"{sluice_hdfs.uri}/checkpoint").start()
    )
    query.processAllAvailable()
    query.stop()
    assert {r.value for r in copies.records()} == {f"order {n}".encode() for n in range(100)}

def test_a_session_that_runs_is_used(sluice_spark):
    assert sluice_spark.getActiveSession() is not None
"""


@pytest.mark.extended
def test_all_fixtures_work_together_and_end(project: Path, environment: Mapping[str, str]) -> None:
    (project / "test_all.py").write_text(_ALL)
    assert "2 passed" in passed(environment, project)


_FOREVER = """
import subprocess
import threading
from sluice.testing import kill_and_restart

def program():
    subprocess.run(["sleep", "900"])

def worked(batches):
    yield from batches

def test_forever(sluice_kafka, sluice_hdfs, sluice_spark):
    sluice_spark.range(3).mapInArrow(worked, "id long").collect()
    kill_and_restart(program, at=0.1, until=threading.Event().wait, timeout=900)
"""


@pytest.mark.extended
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_servers_spark_and_programs_end_with_a_pytest_that_is_killed(
    project: Path, environment: Mapping[str, str], number: signal.Signals
) -> None:
    (project / "test_forever.py").write_text(_FOREVER)
    mark = f"SLUICE_TEST_RUN={project}"
    marked = {**environment, "SLUICE_TEST_RUN": str(project)}
    with (project / "log").open("wb") as log:
        run = subprocess.Popen(command(), env=marked, cwd=project, stdout=log, stderr=log)

    def is_complete() -> bool:
        assert run.poll() is None, (project / "log").read_text()
        commands = commands_with(mark)
        return all(any(word in each for each in commands) for word in _STARTED)

    try:
        wait_for(is_complete, what="all servers, Spark's processes and a program", poll_s=0.5)
    finally:
        run.send_signal(number)
        run.wait(PATIENCE_S)
    wait_for(lambda: not commands_with(mark), what="the end of all processes", poll_s=0.5)


_STARTED = ("kafka.Kafka", "NameNode", "DataNode", "SparkSubmit", "python_daemon", "sleep 900")


def commands_with(variable: str) -> list[str]:
    """Command lines of all living processes that have this variable in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if variable in (f"{name}={text}" for name, text in process.environ().items()):
                found.append(" ".join(process.cmdline()))
    return found
