"""Jobs on an HDFS of two NameNodes: the active one is killed under load, and the other takes over."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.storage.file_system_opening import open_file_system
from sluice.runtime.storage.hadoop_jvm import hadoop_jvm
from tests.chaos.outages import await_more_files, await_more_records
from tests.chaos.programs import BOTH, STATE_NUMBERS
from tests.chaos.published_files import PublishedFiles
from tests.chaos.scenario import Scenario, Setting
from tests.kit.files.ha_hdfs import HaHdfs

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(2400)]


@pytest.fixture
def ha(tmp_path: Path) -> Iterator[HaHdfs]:
    directory = tmp_path / "hdfs"
    directory.mkdir()
    with HaHdfs(directory) as found:
        found.make_active("nn1")
        yield found


@pytest.fixture
def client(ha: HaHdfs, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(ha.conf_dir))
    with hadoop_jvm() as jvm:
        yield jvm


def _fail_over(ha: HaHdfs, *, dies: str, follows: str) -> None:
    ha.name_nodes[dies].kill()
    ha.make_active(follows)
    ha.name_nodes[dies].start()


def test_files_and_topic_follow_the_active_name_node(
    kafka: EmbeddedKafka, tmp_path: Path, ha: HaHdfs, client: Any
) -> None:
    files = PublishedFiles(fs=open_file_system(f"{ha.uri}/jobs", client), name="files")
    at = ("--checkpoint", f"{ha.uri}/jobs/checkpoint")
    setting = Setting(environment={"HADOOP_CONF_DIR": str(ha.conf_dir)})
    with Scenario(BOTH, kafka.bootstrap, tmp_path, setting, files=files) as scenario:
        program = scenario.start(arguments=at)
        await_more_files(scenario, program)
        _fail_over(ha, dies="nn1", follows="nn2")
        await_more_files(scenario, program)
        _fail_over(ha, dies="nn2", follows="nn1")
        await_more_files(scenario, program)
        program.kill()
        scenario.finish(arguments=at)


def test_keyed_state_of_tasks_follows_the_active_name_node(
    kafka: EmbeddedKafka, tmp_path: Path, ha: HaHdfs
) -> None:
    """Long tasks write it over WebHDFS."""
    at = ("--checkpoint", f"{ha.uri}/keyed")
    environment = {"HADOOP_CONF_DIR": str(ha.conf_dir), "ENGINE": "continuous"}
    setting = Setting(environment=environment, partitions=4, preload=1_000)
    with Scenario(STATE_NUMBERS, kafka.bootstrap, tmp_path, setting) as scenario:
        program = scenario.start(arguments=at)
        await_more_records(scenario, program)
        _fail_over(ha, dies="nn1", follows="nn2")
        await_more_records(scenario, program)
        _fail_over(ha, dies="nn2", follows="nn1")
        await_more_records(scenario, program)
        program.kill()
        scenario.finish(arguments=at)
