"""A task's files over WebHDFS, on a real NameNode and DataNode, without a JVM on the client's side.

What 200 MB take, against the local disk, is shown by ``-o log_cli=true --log-cli-level=INFO``.
"""

import getpass
import http.client
import json
import logging
import os
import pickle
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from pyspark.sql import SparkSession

from sluice.connectors.hdfs.writing.task_saver import session_task_files
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.checkpoint.run_record import RunRecord, RunRecordStore
from sluice.runtime.embedded.hdfs.embedded_hdfs import EmbeddedHdfs
from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    DamagedCheckpointError,
    FencedError,
    StorageError,
    UnreachableError,
)
from sluice.runtime.service.service_client import CoordinatorAddress, CoordinatorClient
from sluice.runtime.spark.session.session_web_hdfs import checkpoint_web_address
from sluice.runtime.state.state_files import StateStore
from sluice.runtime.storage.task_files import LocalTaskFiles, TaskFile
from sluice.runtime.storage.web_hdfs import WebHdfsAddress
from sluice.runtime.storage.web_hdfs_client import WebHdfsTaskFiles
from tests.kit.files.webhdfs import read_file
from tests.kit.state.state_beds import P0, StateTask, content_of
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(2400)]

log = logging.getLogger(__name__)

_USER = "writer"
_BLOCK = os.urandom(1 << 20)


@pytest.fixture(scope="module", autouse=True)
def _root_for_everyone(hdfs: EmbeddedHdfs) -> None:
    superuser = getpass.getuser()
    _ask(hdfs, "PUT", "/webhdfs", "MKDIRS", user=superuser)
    _ask(hdfs, "PUT", "/webhdfs", "SETOWNER", user=superuser, owner=_USER)


@pytest.fixture
def root() -> str:
    return f"/webhdfs/{uuid.uuid4().hex}"


@pytest.fixture
def files(hdfs: EmbeddedHdfs) -> WebHdfsTaskFiles:
    return _files(hdfs)


@pytest.fixture
def dead_data_node(hdfs: EmbeddedHdfs) -> Iterator[Any]:
    """Kills the DataNode when called; it is back after the test."""
    assert hdfs.data_node is not None
    yield hdfs.data_node.kill
    hdfs.start()


def _files(hdfs: EmbeddedHdfs, *, user: str = _USER, deadline_s: float = 20.0) -> WebHdfsTaskFiles:
    address = WebHdfsAddress(name_nodes=(_address(hdfs),), user=user)
    return WebHdfsTaskFiles(address=address, deadline_s=deadline_s)


def _ask(
    hdfs: EmbeddedHdfs, method: str, path: str, operation: str, **parameters: str
) -> tuple[int, Any]:
    """One call of WebHDFS manually: what the code under test did is looked at from outside."""
    fields = {"op": operation, "user.name": parameters.pop("user", _USER), **parameters}
    connection = http.client.HTTPConnection(_address(hdfs), timeout=120)
    try:
        connection.request(method, f"/webhdfs/v1{quote(path)}?{urlencode(fields)}")
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    return answer.status, json.loads(body) if body else None


def _length(hdfs: EmbeddedHdfs, path: str) -> int | None:
    status, body = _ask(hdfs, "GET", path, "GETFILESTATUS")
    return int(body["FileStatus"]["length"]) if status == http.client.OK else None


def _content(hdfs: EmbeddedHdfs, path: str) -> bytes:
    return read_file(hdfs.web_uri, path)


def _address(hdfs: EmbeddedHdfs) -> str:
    return hdfs.web_uri.removeprefix("http://")


def _begun(files: WebHdfsTaskFiles, path: str, *, blocks: int = 20) -> TaskFile:
    file = files.create(path)
    for _ in range(blocks):
        file.stream.write(_BLOCK)
    return file


def _seconds(file: TaskFile, blocks: int) -> float:
    began = time.monotonic()
    for _ in range(blocks):
        file.stream.write(_BLOCK)
    assert file.finish() == blocks * len(_BLOCK)
    return time.monotonic() - began


def test_large_file_arrives_whole(
    hdfs: EmbeddedHdfs, files: WebHdfsTaskFiles, root: str, tmp_path: Path
) -> None:
    """200 MB, more than a block of HDFS; the time is shown, not judged."""
    blocks = 200
    over_http = _seconds(files.create(f"{root}/large"), blocks)
    assert _length(hdfs, f"{root}/large") == blocks * len(_BLOCK)
    local = _seconds(LocalTaskFiles().create(str(tmp_path / "large")), blocks)
    log.info("webhdfs %.0f MiB/s, local %.0f MiB/s", blocks / over_http, blocks / local)


def test_bytes_are_those_that_were_written(
    hdfs: EmbeddedHdfs, files: WebHdfsTaskFiles, root: str
) -> None:
    """In pieces below, at and above the size of a chunk; the owner is the one that was named."""
    pieces = [b"abc", _BLOCK, b"", _BLOCK[:-1], b"z" * 10, _BLOCK * 2, b"end"]
    file = files.create(f"{root}/pieces")
    for piece in pieces:
        file.stream.write(piece)
    assert file.stream.tell() == sum(map(len, pieces))
    assert file.finish() == sum(map(len, pieces))
    assert _content(hdfs, f"{root}/pieces") == b"".join(pieces)
    _, body = _ask(hdfs, "GET", f"{root}/pieces", "GETFILESTATUS")
    assert body["FileStatus"]["owner"] == _USER


def test_names_with_special_characters_stay_what_they_are(
    hdfs: EmbeddedHdfs, files: WebHdfsTaskFiles, root: str
) -> None:
    """As partition directories have them: each ``%`` is one of the name, not of a URL."""
    path = f"{root}/dt=2026-01-01 10%3A00/città=東京%2F1/a+b&c;d#e?[f]"
    files.create(path).finish()
    assert _length(hdfs, path) == 0


def test_keyed_state_is_written_and_restored(files: WebHdfsTaskFiles, root: str) -> None:
    """Ranges of files; a file that is missing, too."""
    store = StateStore(files=files, root=root)
    task = StateTask(store, {P0: None})
    for epoch in range(3):
        task.put(P0, {b"%d" % epoch: os.urandom(1_500_000), b"last": b"%d" % epoch})
        state = task.end_epoch()
    expected = content_of(task.state, P0)
    task.close()
    again = StateTask(store, {P0: state})
    assert content_of(again.state, P0) == expected
    again.close()
    missing = replace(state.files[0], path="state/r/0-0-00000000.changes")
    with pytest.raises(DamagedCheckpointError, match="missing"):
        store.require(missing)


def test_many_small_files(hdfs: EmbeddedHdfs, files: WebHdfsTaskFiles, root: str) -> None:
    """One after the other; a DataNode waits 0.4 s at each close unless it is configured not to."""
    began = time.monotonic()
    for number in range(10):
        file = files.create(f"{root}/{number}")
        file.stream.write(b"x" * 1000)
        file.finish()
    log.info("small file: %.0f ms", (time.monotonic() - began) * 100)
    assert _length(hdfs, f"{root}/9") == 1000


_WRITER = """
import os, sys
from sluice.runtime.storage.web_hdfs_client import WebHdfsTaskFiles
from sluice.runtime.storage.web_hdfs import WebHdfsAddress
address = WebHdfsAddress(name_nodes=(sys.argv[1],), user=sys.argv[2])
file = WebHdfsTaskFiles(address=address).create(sys.argv[3])
block = os.urandom(1 << 20)
for number in range(1000000):
    file.stream.write(block)
    if number == 20:
        print("half way", flush=True)
"""


def test_killed_writer_leaves_a_shorter_file_that_its_owner_may_delete(
    hdfs: EmbeddedHdfs, root: str
) -> None:
    path = f"{root}/killed"
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, _address(hdfs), _USER, path],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "half way\n"
        writer.kill()
    wait_for(lambda: _length(hdfs, path), what="the DataNode closes the file")
    assert _ask(hdfs, "DELETE", path, "DELETE") == (200, {"boolean": True})


def test_abandoned_file_may_be_deleted_at_once(
    hdfs: EmbeddedHdfs, files: WebHdfsTaskFiles, root: str
) -> None:
    file = _begun(files, f"{root}/abandoned")
    file.abandon()
    assert _ask(hdfs, "DELETE", f"{root}/abandoned", "DELETE") == (200, {"boolean": True})


def test_stranger_may_not_delete_or_write(
    hdfs: EmbeddedHdfs, files: WebHdfsTaskFiles, root: str
) -> None:
    """Files belong to the user that was named; missing rights are an error of their own."""
    files.create(f"{root}/ours").finish()
    status, _ = _ask(hdfs, "DELETE", f"{root}/ours", "DELETE", user="stranger")
    assert status == http.client.FORBIDDEN
    with pytest.raises(AuthenticationError, match="may not"):
        _begun(_files(hdfs, user="stranger"), f"{root}/theirs").finish()


def test_a_name_that_is_too_long_is_an_error_of_the_rows(
    files: WebHdfsTaskFiles, root: str
) -> None:
    file = files.create(f"{root}/day={'x' * 300}/rows")
    file.stream.write(b"row")
    with pytest.raises(ConfigError, match="name that is too long"):
        file.finish()


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "still-open"])
def test_taken_name_is_refused_and_keeps_its_content(
    hdfs: EmbeddedHdfs, files: WebHdfsTaskFiles, root: str, is_open: bool
) -> None:
    """A repeated CREATE changes nothing, whether the first writer is done or not."""
    path = f"{root}/taken"
    first = _begun(files, path, blocks=1)
    if not is_open:
        first.finish()
    else:
        wait_for(lambda: _length(hdfs, path) is not None or None, what="created")
    with pytest.raises(StorageError):
        _begun(files, path).finish()
    if is_open:
        assert first.finish() == len(_BLOCK)
    assert _content(hdfs, path) == _BLOCK


def test_file_renamed_under_its_writer_continues_under_the_new_name(
    hdfs: EmbeddedHdfs, files: WebHdfsTaskFiles, root: str
) -> None:
    """Why a file is renamed only when its length is the recorded one."""
    file = _begun(files, f"{root}/a", blocks=1)
    wait_for(lambda: _length(hdfs, f"{root}/a") is not None or None, what="created")
    _ask(hdfs, "PUT", f"{root}/a", "RENAME", destination=f"{root}/b")
    file.stream.write(_BLOCK)
    assert file.finish() == 2 * len(_BLOCK)
    assert _length(hdfs, f"{root}/b") == 2 * len(_BLOCK)


def test_writer_of_a_deleted_file_fails(
    hdfs: EmbeddedHdfs, files: WebHdfsTaskFiles, root: str
) -> None:
    """A zombie whose staging was swept cannot finish its file."""
    file = _begun(files, f"{root}/swept", blocks=1)
    wait_for(lambda: _length(hdfs, f"{root}/swept") is not None or None, what="created")
    _ask(hdfs, "DELETE", root, "DELETE", recursive="true")
    with pytest.raises(StorageError):
        file.finish()
    assert _length(hdfs, f"{root}/swept") is None


@pytest.mark.extended
def test_killed_data_node_fails_the_file_and_it_may_be_deleted(
    hdfs: EmbeddedHdfs, files: WebHdfsTaskFiles, root: str, dead_data_node: Any
) -> None:
    """With the only DataNode gone: a typed error at once, and no lease in the way."""
    file = _begun(files, f"{root}/cut-off")
    dead_data_node()
    with pytest.raises(StorageError):
        _finish_after(file, blocks=50)
    file.abandon()
    assert _ask(hdfs, "DELETE", f"{root}/cut-off", "DELETE") == (200, {"boolean": True})


def _finish_after(file: TaskFile, *, blocks: int) -> None:
    for _ in range(blocks):
        file.stream.write(_BLOCK)
    file.finish()


def test_no_data_node_to_write_to_is_reported(
    files: WebHdfsTaskFiles, root: str, dead_data_node: Any
) -> None:
    """The NameNode names a dead DataNode for minutes; each is tried once."""
    dead_data_node()
    with pytest.raises((UnreachableError, StorageError)):
        files.create(f"{root}/nowhere")


def test_a_name_node_leaves_out_a_data_node_by_its_address_alone(
    hdfs: EmbeddedHdfs, root: str
) -> None:
    """As the fake does: after an address stands the port that blocks go through, not HTTP's."""
    path, web_port = f"{root}/nowhere", _address(hdfs).rpartition(":")[2]
    for excluded, status in ((f"127.0.0.1:{web_port}", 307), ("127.0.0.1", 403)):
        found, _ = _ask(hdfs, "PUT", path, "CREATE", excludedatanodes=excluded)
        assert found == status


@pytest.mark.extended
def test_hung_name_node_is_reported_in_time(hdfs: EmbeddedHdfs) -> None:
    """Silence is not waited for longer than the deadline and one call."""
    assert hdfs.name_node is not None
    hdfs.name_node.pause()
    try:
        began = time.monotonic()
        with pytest.raises(UnreachableError):
            _files(hdfs, deadline_s=1.0).create("/webhdfs/hung")
        assert time.monotonic() - began < 300
    finally:
        hdfs.name_node.resume()


@pytest.fixture
def session(hdfs: EmbeddedHdfs, spark: SparkSession) -> Iterator[SparkSession]:
    conf: Any = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
    conf.set("dfs.namenode.http-address", _address(hdfs))
    yield spark
    conf.unset("dfs.namenode.http-address")


def test_session_tells_tasks_where_to_write(
    hdfs: EmbeddedHdfs, session: SparkSession, root: str
) -> None:
    files = pickle.loads(pickle.dumps(session_task_files(f"{hdfs.uri}{root}")))
    file = files.create(f"/{getpass.getuser()}{root}")
    file.stream.write(b"abc")
    assert file.finish() == 3
    assert _content(hdfs, f"/{getpass.getuser()}{root}") == b"abc"
    assert isinstance(session_task_files("file:///tmp"), LocalTaskFiles)


@pytest.mark.extended
def test_a_task_whose_driver_is_silent_sees_a_later_coordinator(
    hdfs: EmbeddedHdfs, session: SparkSession
) -> None:
    """Without a JVM, over WebHDFS: its driver is frozen, so connections to it stay open. As long as
    no coordinator has sealed after its own, it continues."""
    uri = f"{hdfs.uri}/{uuid.uuid4().hex}/check points"
    context = session.sparkContext
    fs = open_store(uri, context._jvm).fs  # noqa: SLF001
    leaders = RunRecordStore(fs)
    leaders.announce(
        RunRecord(job_uid="job", leader_session_id="ours", address="http://ours", attempt_id=4)
    )
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        address = CoordinatorAddress(
            address=f"http://127.0.0.1:{frozen.getsockname()[1]}",
            token="t",
            leader_session_id="ours",
            job_uid="u",
            attempt_id=4,
            checkpoint_uri=uri,
            checkpoint_web=checkpoint_web_address(context, fs),
        )
        with CoordinatorClient(address, deadline_s=0.0) as client, pytest.raises(UnreachableError):
            client.poll_barrier("main", 4, wait_s=0.0)
        leaders.announce(
            RunRecord(
                job_uid="job", leader_session_id="later", address="http://later", attempt_id=9
            )
        )
        with (
            CoordinatorClient(address, deadline_s=120.0) as client,
            pytest.raises(FencedError, match="http://later"),
        ):
            client.poll_barrier("main", 4, wait_s=0.0)
