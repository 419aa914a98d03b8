"""Staged files of a task: whole or refused, whatever is answered or lost on the way."""

import errno
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest

from sluice.connectors.hdfs.formats.choice import TASK_FORMAT_NAMES
from sluice.runtime.embedded.ports import free_ports
from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    StorageError,
    StorageUnreachableError,
    UnreachableError,
)
from sluice.runtime.storage.task_files import LocalTaskFiles, TaskFiles
from sluice.runtime.storage.web_hdfs import WebHdfsAddress, web_hdfs_address
from sluice.runtime.storage.web_hdfs_client import WebHdfsTaskFiles
from tests.kit.files.fake_webhdfs import FakeWebHdfs
from tests.kit.files.format_rows import task_format

_CONTENT = os.urandom(3 << 20)


@pytest.fixture
def fake() -> Iterator[FakeWebHdfs]:
    """A NameNode that is also its DataNode."""
    with FakeWebHdfs() as running:
        yield running


def _files(*fakes: FakeWebHdfs, deadline_s: float = 5.0) -> WebHdfsTaskFiles:
    names = tuple(fake.address for fake in fakes)
    return WebHdfsTaskFiles(
        address=WebHdfsAddress(name_nodes=names, user="ada"), deadline_s=deadline_s
    )


def _written(files: TaskFiles, path: str, content: bytes = _CONTENT) -> int:
    file = files.create(path)
    file.stream.write(content)
    return file.finish()


def test_file_is_whole_under_the_name_and_user_that_were_given(fake: FakeWebHdfs) -> None:
    """Across pickle, as tasks get it; special characters are those of the name."""
    files = pickle.loads(pickle.dumps(_files(fake)))
    path = "/dir/dt=2026-01-01 10%3A00/città+&;#?[x]"
    assert _written(files, path) == len(_CONTENT)
    assert fake.files == {path: _CONTENT}
    assert fake.users == {"ada"}


@pytest.mark.parametrize("name", TASK_FORMAT_NAMES)
def test_every_format_writes_into_a_staged_file(
    fake: FakeWebHdfs, tmp_path: Path, name: str
) -> None:
    """The formats take the streams of both stores for what they are."""
    chosen = task_format(name)
    batch = pa.record_batch({"n": pa.array(range(100_000), pa.int64())})
    paths = (str(tmp_path / "a"), "/b")
    stores: tuple[TaskFiles, ...] = (LocalTaskFiles(), _files(fake))
    for files, path in zip(stores, paths, strict=True):
        file = files.create(path)
        writer = chosen.open(file.stream, batch.schema)
        writer.write(batch)
        assert writer.close() == batch.num_rows
        assert file.finish() > 0
    if name != "avro":  # whose files have a mark of their own
        assert fake.files["/b"] == (tmp_path / "a").read_bytes()


def test_a_local_file_is_told_once_its_content_and_its_name_are_durable(tmp_path: Path) -> None:
    """A decision names it: a host that loses its power behind that would leave it nowhere."""
    synced: list[tuple[int, int]] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        found = os.fstat(descriptor)
        synced.append((found.st_ino, found.st_size))
        fsync(descriptor)

    path = tmp_path / "dt=1" / "part-0"
    file = LocalTaskFiles().create(str(path))
    for content in (_CONTENT, b"what a buffer still has"):
        file.stream.write(content)
    with patch("os.fsync", noted):
        length = file.finish()
    assert synced[0] == (path.stat().st_ino, length)
    assert synced[1][0] == path.parent.stat().st_ino


def test_ranges_of_a_file_are_read(fake: FakeWebHdfs, tmp_path: Path) -> None:
    """On both stores alike; a range beyond the end is shorter."""
    stores: tuple[TaskFiles, ...] = (LocalTaskFiles(), _files(fake))
    for files, path in zip(stores, (str(tmp_path / "a"), "/b"), strict=True):
        assert files.length_bytes(path) is None
        with pytest.raises(StorageError):
            files.read(path, 0, 1)
        _written(files, path)
        assert files.length_bytes(path) == len(_CONTENT)
        assert files.read(path, 1 << 20, 1 << 20) == _CONTENT[1 << 20 : 2 << 20]
        assert files.read(path, len(_CONTENT) - 1, 9) == _CONTENT[-1:]
        assert files.read(path, 5, 0) == b""


def test_a_file_is_read_once_its_data_node_answers(fake: FakeWebHdfs) -> None:
    """The NameNode names another one, or the deadline ends the call."""
    _written(_files(fake), "/a")
    fake.dead_data_nodes = _dead(1)
    with pytest.raises(UnreachableError):
        _files(fake, deadline_s=0.2).read("/a", 0, 1)


def test_active_name_node_is_found(fake: FakeWebHdfs) -> None:
    """The first one is standby."""
    with FakeWebHdfs() as standby:
        standby.is_standby = True
        assert _written(_files(standby, fake), "/a") == len(_CONTENT)
    assert set(fake.files) == {"/a"}


def test_no_active_name_node_is_told_in_time(fake: FakeWebHdfs) -> None:
    """After the deadline, with what was tried."""
    fake.is_standby = True
    with pytest.raises(UnreachableError, match="StandbyException"):
        _files(fake, deadline_s=0.2).create("/a")


def _dead(count: int) -> list[str]:
    """Each with an address of its own, of this host, by which a NameNode tells them apart."""
    return [f"127.0.0.{2 + n}:{port}" for n, port in enumerate(free_ports(count))]


def test_data_node_that_does_not_listen_is_passed_over(fake: FakeWebHdfs) -> None:
    """The NameNode is told to name another one."""
    fake.dead_data_nodes = _dead(2)
    assert _written(_files(fake), "/a") == len(_CONTENT)


def test_only_dead_data_nodes_are_told(fake: FakeWebHdfs) -> None:
    """A bounded number is tried."""
    fake.dead_data_nodes = _dead(5)
    with pytest.raises(UnreachableError):
        _files(fake).create("/a")


def test_lost_answer_of_a_whole_file_is_settled_by_its_length(fake: FakeWebHdfs) -> None:
    """All bytes are there, so the file is finished."""
    fake.loses_answers = True
    assert _written(_files(fake), "/a") == len(_CONTENT)


def test_lost_answer_of_a_shorter_file_is_an_error(
    fake: FakeWebHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an orphan, and the error says how long it is."""
    monkeypatch.setattr("sluice.runtime.storage.web_hdfs_client._SETTLE_S", 0.2)
    fake.loses_answers, fake.drops_bytes = True, 1
    with pytest.raises(StorageError, match=f"length_bytes={len(_CONTENT) - 1}"):
        _written(_files(fake), "/a")


def test_taken_name_is_refused(fake: FakeWebHdfs) -> None:
    """Its content stays."""
    fake.files["/a"] = b"first"
    with pytest.raises(StorageError, match="close a task's file"):
        _written(_files(fake), "/a", b"second")
    assert fake.files["/a"] == b"first"


def test_safe_mode_that_a_data_node_reports_is_waited_for(fake: FakeWebHdfs) -> None:
    """A NameNode in safe mode names DataNodes all the same: the request to one of them fails."""
    fake.in_safe_mode = True
    with pytest.raises(UnreachableError, match="safe mode"):
        _written(_files(fake), "/a")


def test_kerberos_is_refused_by_name(fake: FakeWebHdfs) -> None:
    """At the first question, which the driver asks before any task starts."""
    fake.asks_for_kerberos = True
    with pytest.raises(AuthenticationError, match="Kerberos"):
        _files(fake).check()


def test_local_file_is_made_with_its_directories_and_not_twice(tmp_path: Path) -> None:
    """A name has one writer."""
    path = tmp_path / "a" / "b" / "file"
    file = LocalTaskFiles().create(str(path))
    file.stream.write(_CONTENT)
    assert file.finish() == len(_CONTENT)
    assert path.read_bytes() == _CONTENT
    with pytest.raises(StorageError, match="create a task's file"):
        LocalTaskFiles().create(str(path))


def test_abandoned_local_file_may_be_deleted(tmp_path: Path) -> None:
    """And abandoned again."""
    file = LocalTaskFiles().create(str(tmp_path / "file"))
    file.stream.write(b"x")
    file.abandon()
    file.abandon()
    (tmp_path / "file").unlink()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
def test_full_disk_is_a_typed_error(tmp_path: Path) -> None:
    """Whether the write or the close meets it."""
    file = LocalTaskFiles().create(str(tmp_path / "file"))
    with Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), file.stream.fileno())
    file.stream.write(b"x")
    with pytest.raises(StorageError, match="No space left"):
        file.finish()
    file.abandon()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
@pytest.mark.parametrize("name", TASK_FORMAT_NAMES)
def test_disk_that_fills_up_while_rows_are_written_is_a_typed_error(
    tmp_path: Path, name: str
) -> None:
    """It names the file, and passes through libraries in C++ without ending the process."""
    file = LocalTaskFiles().create(str(tmp_path / "file"))
    with Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), file.stream.fileno())
    batch = pa.record_batch({"b": pa.array([os.urandom(3 << 20).hex()])})
    writer = task_format(name).open(file.stream, batch.schema)

    def write() -> None:
        writer.write(batch)
        writer.close()

    with pytest.raises(StorageError, match=r"write a task's file .*path=.*No space left"):
        write()
    writer.abandon()
    file.abandon()


@pytest.mark.parametrize("is_local", [True, False])
def test_a_name_that_is_too_long_is_an_error_of_the_rows(
    fake: FakeWebHdfs, tmp_path: Path, is_local: bool
) -> None:
    """As Spark's own writer on HDFS has it: no later try is given a shorter one."""
    files: TaskFiles = LocalTaskFiles() if is_local else _files(fake)
    with pytest.raises(ConfigError, match="name that is too long"):
        _written(files, f"{tmp_path}/day={'x' * 300}/file", b"row")


def test_a_mount_whose_server_is_away_is_none_of_the_tasks_failures(tmp_path: Path) -> None:
    """As HDFS that is away, it is waited for, and costs no region a life."""
    file = LocalTaskFiles().create(str(tmp_path / "file"))
    away = OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    with patch("os.fsync", side_effect=away), pytest.raises(StorageUnreachableError):
        file.finish()


_HA = {
    "dfs.nameservices": "other, lake",
    "dfs.ha.namenodes.lake": "nn1,nn2",
    "dfs.namenode.http-address.lake.nn1": "one:9870",
    "dfs.namenode.http-address.lake.nn2": "two:9871",
}


@pytest.mark.parametrize(
    ("uri", "settings", "expected"),
    [
        ("hdfs://nn:8020/x", {}, ("nn:9870",)),
        ("hdfs://nn:8020/x", {"dfs.namenode.http-address": "0.0.0.0:50070"}, ("nn:50070",)),
        ("hdfs://nn:8020/x", {"dfs.namenode.http-address": "nn:50070"}, ("nn:50070",)),
        ("hdfs://nn:8020/x", {"dfs.namenode.http-address": "elsewhere:1"}, ("nn:9870",)),
        (
            "hdfs://nn:8020/x",
            {"dfs.namenode.http-address": "web:1", "fs.defaultFS": "hdfs://nn:8020"},
            ("web:1",),
        ),
        ("hdfs:///x", {"fs.defaultFS": "hdfs://nn:8020"}, ("nn:9870",)),
        ("hdfs://lake/x", _HA, ("one:9870", "two:9871")),
        ("hdfs:///x", _HA | {"fs.defaultFS": "hdfs://lake"}, ("one:9870", "two:9871")),
        (
            "hdfs://one/x",
            {"dfs.nameservices": "one", "dfs.namenode.http-address.one": "a:1"},
            ("a:1",),
        ),
        ("hdfs://[::1]:8020/x", {}, ("[::1]:9870",)),
    ],
)
def test_address_of_webhdfs(uri: str, settings: dict[str, str], expected: tuple[str, ...]) -> None:
    """From Hadoop's configuration; a setting of another cluster is not taken for ours."""
    found = web_hdfs_address(uri, settings.get, user="ada")
    assert found == WebHdfsAddress(name_nodes=expected, user="ada")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "nn:9871"),
        (
            {"dfs.namenode.https-address": "nn:50470", "dfs.namenode.http-address": "nn:1"},
            "nn:50470",
        ),
    ],
)
def test_web_servers_without_http_are_reached_over_tls(
    settings: dict[str, str], expected: str
) -> None:
    """By Hadoop's policy, at the port that it names for TLS."""
    settings = {"dfs.http.policy": "HTTPS_ONLY", **settings}
    found = web_hdfs_address("hdfs://nn/x", settings.get, user="ada")
    assert (found.scheme, found.name_nodes) == ("https", (expected,))


@pytest.mark.parametrize(
    ("uri", "settings", "named"),
    [
        ("hdfs:///x", {"fs.defaultFS": "file:///"}, "fs.defaultFS"),
        (
            "hdfs://lake/x",
            {"dfs.nameservices": "lake", "dfs.ha.namenodes.lake": "nn1"},
            "dfs.namenode.http-address.lake.nn1",
        ),
    ],
)
def test_what_tasks_cannot_reach_is_refused_by_name(
    uri: str, settings: dict[str, str], named: str
) -> None:
    """Before any task starts."""
    with pytest.raises(ConfigError, match=named):
        web_hdfs_address(uri, settings.get, user="ada")


def test_a_directory_that_cannot_be_looked_at_is_not_called_absent(tmp_path: Path) -> None:
    """A mount that fails for a moment is tried again; another host's disk is not."""
    (tmp_path / "root").symlink_to(tmp_path / "root")  # for ever: ELOOP
    with pytest.raises(StorageError):
        LocalTaskFiles().require(str(tmp_path / "root"))
    with pytest.raises(ConfigError, match="does not see a directory of the driver"):
        LocalTaskFiles().require(str(tmp_path / "absent"))
