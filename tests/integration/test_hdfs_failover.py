"""Checkpoints, files and tasks' files on an HDFS whose other NameNode becomes active."""

import getpass
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.contracts import PublishOutcome
from sluice.runtime.errors import StorageError, StorageUnreachableError
from sluice.runtime.storage.hadoop_fs import HadoopFileSystem
from sluice.runtime.storage.hadoop_jvm import hadoop_jvm
from sluice.runtime.storage.web_hdfs import WebHdfsAddress
from sluice.runtime.storage.web_hdfs_client import WebHdfsTaskFiles
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.files.ha_hdfs import HaHdfs
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.extended]


@pytest.fixture
def ha(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HaHdfs]:
    with HaHdfs(tmp_path) as found:
        found.make_active("nn1")
        monkeypatch.setenv("HADOOP_CONF_DIR", str(found.conf_dir))
        yield found


def _takes_files(fs: HadoopFileSystem) -> bool:
    try:
        fs.write_temporary("probe", b"x")
    except StorageError:
        return False
    return True


def test_all_continue_with_the_name_node_that_is_active(ha: HaHdfs) -> None:
    address = WebHdfsAddress(name_nodes=ha.web_addresses, user=getpass.getuser())
    files = WebHdfsTaskFiles(address=address)

    def put(name: str) -> int:
        file = files.create(f"/jobs/{name}")
        file.stream.write(b"rows")
        return file.finish()

    with hadoop_jvm() as jvm:
        fs = HadoopFileSystem(f"{ha.uri}/jobs", jvm)
        store = CheckpointStore(fs)
        wait_for(lambda: _takes_files(fs), what="the DataNode is known to the NameNode")
        assert store.publish(record(0), timeout_s=300) is PublishOutcome.OURS
        assert put("first") == 4
        ha.make_standby("nn1")
        for ask in (
            lambda: fs.read("probe"),
            lambda: fs.move("probe", "moved"),
            lambda: fs.replace("record", b"x"),
            lambda: fs.delete("probe"),
        ):
            with pytest.raises(StorageUnreachableError):
                ask()
        ha.make_active("nn2")
        wait_for(lambda: _takes_files(fs), what="the second NameNode takes files")
        assert store.publish(record(1), timeout_s=300) is PublishOutcome.OURS
        assert put("second") == 4, "asked of the standby first"
        ha.make_standby("nn2")
        ha.make_active("nn1")
        ha.name_nodes["nn1"].kill()
        ha.make_active("nn2")
        wait_for(lambda: _takes_files(fs), what="the second NameNode takes files again")
        assert store.publish(record(2), timeout_s=300) is PublishOutcome.OURS
        assert put("third") == 4, "asked where nothing listens first"
        assert store.slots() == [0, 1, 2]
        assert {entry.name for entry in fs.entries("")} >= {"first", "second", "third"}
        assert fs.read("record") is None
