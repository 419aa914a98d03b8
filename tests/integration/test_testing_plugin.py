"""The pytest plugin as a user has it: by its entry point, in a pytest of its own, with real servers
that end with that pytest, however it ends."""

import contextlib
import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.connectors.testing.topics import created_topics
from sluice.runtime.errors import StreamError
from sluice.testing import assert_exactly_once
from tests.kit.kafka.kafka_records import admin, delete_topic, partition_count
from tests.kit.user_pytest import ROOT, command, passed
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.integration


def test_a_run_without_the_fixtures_starts_and_imports_nothing(
    user_project: Path, user_environment: Mapping[str, str]
) -> None:
    (user_project / "test_own.py").write_text(
        "import sys, psutil\n"
        "def test_own(request):\n"
        "    assert request.config.pluginmanager.has_plugin('sluice')\n"
        "    assert not {'pyspark', 'pyarrow', 'confluent_kafka'} & set(sys.modules)\n"
        "    assert not psutil.Process().children()\n"
    )
    assert "1 passed" in passed(user_environment, user_project)
    assert "--kafka-image" in passed(user_environment, user_project, "--help")
    fixtures = passed(user_environment, user_project, "--fixtures")
    assert all(f"sluice_{name}" in fixtures for name in ("kafka", "topic", "hdfs", "spark"))


def test_topics_are_new_filled_read_and_deleted(kafka: EmbeddedKafka) -> None:
    connection = KafkaConnection(bootstrap_servers=kafka.bootstrap)
    with created_topics(connection) as create:
        orders = create("orders", partitions=2, config={"retention.ms": "-1"})
        others = create("orders")
        assert orders != others
        assert partition_count(kafka.bootstrap, orders.name) == 2
        orders.send([b"1", "ü", None, ("key", "2"), (b"key", None)], partition=1)
        found = [(each.partition, each.key, each.value) for each in orders.records()]
        keyed = [(1, b"key", b"2"), (1, b"key", None)]
        assert found == [(1, None, b"1"), (1, None, "ü".encode()), (1, None, None), *keyed]
        orders.send(("same", f"{number}") for number in range(100))
        assert len({each.partition for each in orders.records() if each.key == b"same"}) == 1
        others.send((each.key, each.value) for each in orders.records())
        assert assert_exactly_once(orders, others).found == 105
        delete_topic(kafka.bootstrap, others.name)  # a test may do so
    client = admin(kafka.bootstrap)
    wait_for(lambda: not {orders.name, others.name} & set(client.list_topics(timeout=60).topics))


def test_a_refused_record_is_an_error(kafka: EmbeddedKafka) -> None:
    connection = KafkaConnection(bootstrap_servers=kafka.bootstrap)
    with created_topics(connection) as create:
        orders = create("orders", config={"max.message.bytes": "1000"})
        with pytest.raises(StreamError, match=orders.name):
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
    read = sluice_spark.readStream.format("sluice-kafka").options(**servers, subscribe=orders.name)
    query = (
        read.option("startingOffsets", "earliest").load()
        .writeStream.format("sluice-kafka").options(**servers, topic=copies.name, transactionalIdPrefix=copies.name)
        .option("checkpointLocation", f"{sluice_hdfs.uri}/checkpoint").start()
    )
    query.processAllAvailable()
    query.stop()
    assert {r.value for r in copies.records()} == {f"order {n}".encode() for n in range(100)}
"""


@pytest.mark.extended
def test_all_fixtures_work_together_and_end(
    user_project: Path, user_environment: Mapping[str, str]
) -> None:
    (user_project / "test_all.py").write_text(_ALL)
    assert "1 passed" in passed(user_environment, user_project)


@pytest.mark.extended
def test_the_example_kills_in_a_task_and_in_the_driver(
    user_project: Path, user_environment: Mapping[str, str]
) -> None:
    for name in ("test_my_pipeline.py", "kafka_to_kafka.py"):
        (user_project / name).write_text((ROOT / "examples" / name).read_text("utf-8"))
    assert "2 passed" in passed(user_environment, user_project, "-k", "record or decision")


@pytest.mark.extended
def test_the_readme_has_a_program_and_a_test_that_kills_it(
    user_project: Path, user_environment: Mapping[str, str]
) -> None:
    program, test, _ = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (user_project / "orders.py").write_text(program)
    (user_project / "test_orders.py").write_text(test)
    assert "3 passed" in passed(user_environment, user_project)


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
    user_project: Path, user_environment: Mapping[str, str], number: signal.Signals
) -> None:
    (user_project / "test_forever.py").write_text(_FOREVER)
    mark = f"SLUICE_TEST_RUN={user_project}"
    marked = {**user_environment, "SLUICE_TEST_RUN": str(user_project)}
    with (user_project / "log").open("wb") as log:
        run = subprocess.Popen(command(), env=marked, cwd=user_project, stdout=log, stderr=log)

    def is_complete() -> bool:
        assert run.poll() is None, (user_project / "log").read_text()
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
