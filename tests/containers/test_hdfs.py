"""HDFS in containers, beside Kafka: what the tests of pipelines into both stand on."""

import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.runtime.errors import StorageError
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.file_system_opening import open_file_system
from sluice.runtime.storage.hadoop_jvm import hadoop_jvm
from tests.chaos.outages import await_more_files
from tests.chaos.programs import BOTH
from tests.chaos.published_files import PublishedFiles
from tests.chaos.scenario import Scenario, Setting
from tests.containers.hdfs_cluster import HdfsCluster
from tests.containers.kafka_cluster import KafkaCluster
from tests.kit.files.webhdfs import read_file, write_file
from tests.kit.kafka.kafka_records import (
    await_stable,
    create_topic,
    produce_transaction,
    unique,
    values,
)
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.containers, pytest.mark.extended, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def configuration(hdfs_cluster: HdfsCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``HADOOP_CONF_DIR`` of processes on the host."""
    directory = tmp_path_factory.mktemp("hadoop")
    hdfs_cluster.write_client_configuration(directory)
    return directory


@pytest.fixture(scope="module")
def client(configuration: Path) -> Iterator[Any]:
    """py4j's view of a JVM on the host that is configured for the cluster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(configuration))
        with hadoop_jvm() as jvm:
            yield jvm


def _root(hdfs_cluster: HdfsCluster) -> str:
    return f"{hdfs_cluster.uri}/{uuid.uuid4().hex}"


def _content(files: FileSystem, path: str) -> bytes | None:
    try:
        return files.read(path)
    except StorageError:
        return None


@pytest.mark.long
def test_files_survive_a_stopped_name_node(hdfs_cluster: HdfsCluster, client: Any) -> None:
    """While it is away that is a typed error; afterwards the files are there, in their names."""
    files = open_file_system(_root(hdfs_cluster), client)
    files.write_temporary("staged", b"kept")
    assert files.place("staged", "final", b"kept")
    hdfs_cluster.stop_name_node()
    with pytest.raises(StorageError):
        files.read("final")
    hdfs_cluster.start_name_node()
    assert wait_for(lambda: _content(files, "final"), what="the file") == b"kept"
    assert [entry.name for entry in files.entries("")] == ["final"]


def test_files_survive_a_killed_data_node(hdfs_cluster: HdfsCluster, client: Any) -> None:
    files = open_file_system(_root(hdfs_cluster), client)
    files.write_temporary("file", b"kept")
    hdfs_cluster.kill_data_node()
    hdfs_cluster.start_data_node()
    assert wait_for(lambda: _content(files, "file"), what="the file") == b"kept"


def test_webhdfs_answers_from_the_host(hdfs_cluster: HdfsCluster, client: Any) -> None:
    """A process without a JVM writes; the DataNode that it is sent to can be reached."""
    name = uuid.uuid4().hex
    write_file(hdfs_cluster.web_uri, f"/{name}/file", b"written")
    assert read_file(hdfs_cluster.web_uri, f"/{name}/file") == b"written"
    assert open_file_system(f"{hdfs_cluster.uri}/{name}", client).read("file") == b"written"


def test_kafka_and_hdfs_live_in_one_network(
    cluster: KafkaCluster, hdfs_cluster: HdfsCluster, client: Any
) -> None:
    """They reach each other by name, and the host reaches both."""
    assert all(hdfs_cluster.reaches(f"kafka-{node}", 9093) for node in cluster.node_ids)
    topic = create_topic(cluster.bootstrap, unique("beside"))
    produce_transaction(cluster.bootstrap, topic, [b"1", b"2"])
    await_stable(cluster.bootstrap, topic)
    files = open_file_system(_root(hdfs_cluster), client)
    files.write_temporary("copy", b"".join(values(cluster.bootstrap, topic)))
    assert files.read("copy") == b"12"


@pytest.mark.timeout(2400)
@pytest.mark.long
@pytest.mark.parametrize("away_s", [30, 120])
def test_files_with_decision_a_topic_and_files_outlive_a_stopped_name_node(
    cluster: KafkaCluster,
    hdfs_cluster: HdfsCluster,
    client: Any,
    configuration: Path,
    tmp_path: Path,
    away_s: int,
) -> None:
    """Rule `files-with-decision`: one run, never ended and never touched, continues when the
    NameNode is back; each record is once in the topic and once in the files, and a reader of both
    never saw other."""
    files = PublishedFiles(fs=open_file_system(_root(hdfs_cluster), client), name="files")
    setting = Setting(environment={"HADOOP_CONF_DIR": str(configuration)})
    with Scenario(BOTH, cluster.bootstrap, tmp_path, setting, files=files) as scenario:
        program = scenario.start()
        await_more_files(scenario, program)
        hdfs_cluster.stop_name_node()

        def waited_s() -> int:
            assert program.exit_code is None, program.log_tail()
            said = re.findall(r"waiting for hdfs://.* since (\d+) s", program.log())
            return max(map(int, said), default=0)

        try:
            wait_for(lambda: waited_s() >= away_s, timeout_s=away_s + PATIENCE_S, what="the outage")
        finally:
            hdfs_cluster.start_name_node()
        await_more_files(scenario, program)
        scenario.finish_running(program)
