"""What a real HDFS answers when it is down, in safe mode, full or without a DataNode, by type."""

import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from sluice.connectors.hdfs.committing.file_sink_coordinator import FileSinkCoordinator
from sluice.runtime.contracts import SinkContext
from sluice.runtime.embedded.hdfs.embedded_hdfs import EmbeddedHdfs
from sluice.runtime.errors import StorageError, StorageUnreachableError
from sluice.runtime.storage.file_system import FileSystem, require_writable
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.kit.files.hdfs_admin import safe_mode, space_quota

pytestmark = pytest.mark.integration

_WRITES: Mapping[str, Callable[[FileSystem], object]] = {
    "write": lambda fs: fs.write_temporary("new", b"1"),
    "make a directory": lambda fs: fs.make_directories("directory"),
    "move": lambda fs: fs.move("file", "moved"),
    "place": lambda fs: fs.place("file", "placed", b"kept"),
    "replace": lambda fs: fs.replace("file", b"2"),
    "delete": lambda fs: fs.delete("file"),
    "look": lambda fs: require_writable(fs, "below"),
}


@pytest.fixture
def fs(hdfs: EmbeddedHdfs, hadoop_client: Any) -> FileSystem:
    made = open_file_system(f"{hdfs.uri}/{uuid.uuid4().hex}", hadoop_client)
    made.write_temporary("file", b"kept")
    return made


def _all_raise(fs: FileSystem, error: type[StorageError], text: str) -> None:
    for write in _WRITES.values():
        with pytest.raises(error, match=text) as raised:
            write(fs)
        assert type(raised.value) is error


def test_safe_mode_is_waited_for(fs: FileSystem, hdfs: EmbeddedHdfs, hadoop_client: Any) -> None:
    """It answers and reads, and takes nothing: every write says that it may be tried again."""
    with safe_mode(hadoop_client, hdfs.uri):
        _all_raise(fs, StorageUnreachableError, "safe mode")
        assert fs.read("file") == b"kept"
    require_writable(fs, "")
    assert [entry.name for entry in fs.entries("")] == ["file"]


def test_a_used_up_quota_is_not_waited_for(fs: FileSystem, hadoop_client: Any) -> None:
    """It stands for a full disk: the error says where there is no room; nothing is left of it."""
    with space_quota(hadoop_client, fs.uri, 1):
        for write in (_WRITES["write"], _WRITES["look"]):
            with pytest.raises(StorageError, match="there is no room to write") as raised:
                write(fs)
            assert not isinstance(raised.value, StorageUnreachableError)
            assert fs.uri in str(raised.value)
        with pytest.raises(StorageError, match="there is no room to write"):
            fs.replace("file", b"new")
    assert fs.read("file") == b"kept"
    assert not [entry.name for entry in fs.entries("") if entry.name.startswith(".")]
    assert fs.entries("below") == []


@pytest.mark.extended
def test_servers_that_are_gone_are_waited_for(fs: FileSystem, hdfs: EmbeddedHdfs) -> None:
    """A DataNode alone, and then both; what a look left without a DataNode is deleted again."""
    assert hdfs.data_node is not None
    try:
        hdfs.data_node.kill()
        with pytest.raises(StorageUnreachableError):
            require_writable(fs, "below")
        with pytest.raises(StorageUnreachableError):
            fs.replace("below/record", b"x")
        assert fs.entries("below") == []
        hdfs.stop()
        _all_raise(fs, StorageUnreachableError, fs.uri)
    finally:
        hdfs.start()
    require_writable(fs, "below")


def test_a_start_in_safe_mode_says_so(
    fs: FileSystem, hdfs: EmbeddedHdfs, hadoop_client: Any
) -> None:
    """And does not take it for a staging directory that cannot be renamed from."""

    def claim() -> None:
        context = SinkContext(
            job_uid="uid",
            job_name="job",
            operator_id="op",
            checkpoint_uri="file:///checkpoints",
            leader_session_id="session",
        )
        sink = FileSinkCoordinator(
            f"{fs.uri}/orders", lambda uri: open_file_system(uri, hadoop_client)
        )
        try:
            sink.check(timeout_s=10)
            sink.claim(context, timeout_s=10)
        finally:
            sink.close()

    with safe_mode(hadoop_client, hdfs.uri), pytest.raises(StorageUnreachableError):
        claim()
    claim()
