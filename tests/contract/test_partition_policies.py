"""Policies that tell readers of a complete partition: what they leave, and what a repetition does.

On the file system in memory and on a local one; webhooks against a small server.
"""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sluice import PartitionCommit, PartitionMark, Webhook
from sluice.connectors.hdfs.partition_commit.policies import MarkRefusedError, policies_of
from sluice.runtime.errors import StorageError, UnreachableError
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.kit.files.fake_file_system import Disk, FakeFileSystem, Fault

MARK = PartitionMark(
    job_name="orders",
    job_uid="job",
    operator_id="op",
    target="fake:///data/orders",
    partition="dt=2026-03-01/hour=7",
    values={"dt": "2026-03-01", "hour": "7"},
    sequence=42,
    is_late=False,
    key="0" * 32,
)
SUCCESS = "orders/dt=2026-03-01/hour=7/_SUCCESS"


@pytest.fixture(params=["memory", "local"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> FileSystem:
    """Rooted at the parent of the target, the partition published."""
    memory = FakeFileSystem(Disk(), uri="fake:///data")
    found: FileSystem = (
        memory if request.param == "memory" else open_file_system(tmp_path.as_uri(), None)
    )
    found.write_temporary("orders/dt=2026-03-01/hour=7/part-1", b"rows")
    return found


def run(commit: PartitionCommit, fs: FileSystem, mark: PartitionMark = MARK) -> None:
    """Every policy once."""
    for _, policy in policies_of(commit, lambda: fs):
        policy(mark)


def test_a_success_file_is_empty_and_beside_the_files(fs: FileSystem) -> None:
    """A reader that takes every file of the directory reads nothing more."""
    run(PartitionCommit(), fs)
    assert fs.read(SUCCESS) == b""
    names = [entry.name for entry in fs.entries("orders/dt=2026-03-01/hour=7")]
    assert names == ["_SUCCESS", "part-1"]


def test_a_success_file_that_is_there_is_left_alone_unless_files_were_late(fs: FileSystem) -> None:
    """A repetition changes nothing; a partition that has grown gets a new one."""
    fs.write_temporary(SUCCESS, b"of somebody else")
    run(PartitionCommit(), fs)
    assert fs.read(SUCCESS) == b"of somebody else"
    for _ in range(2):
        run(PartitionCommit(), fs, replace(MARK, is_late=True))
        assert fs.read(SUCCESS) == b""


@pytest.mark.parametrize(
    ("fault", "is_refused"),
    [(Fault.REFUSED, True), (Fault.LATE, True), (Fault.ANSWER_LOST, False)],
)
@pytest.mark.parametrize("is_late", [False, True])
def test_a_success_file_that_is_not_there_was_refused(
    fault: Fault, is_refused: bool, is_late: bool
) -> None:
    """Of one that is made anew nobody can tell, and of one that came behind a lost answer."""
    fs = FakeFileSystem(Disk(), uri="fake:///data", fault=lambda _: fault)
    with pytest.raises(StorageError if is_late or not is_refused else MarkRefusedError):
        run(PartitionCommit(), fs, replace(MARK, is_late=is_late))


def test_the_success_file_may_have_another_name(fs: FileSystem) -> None:
    """As readers of the lake expect it."""
    run(PartitionCommit(success_file_name="_DONE"), fs)
    assert fs.read("orders/dt=2026-03-01/hour=7/_DONE") == b""


def test_a_users_function_gets_the_mark(fs: FileSystem) -> None:
    """And its error is for the marker to see."""
    seen: list[PartitionMark] = []
    run(PartitionCommit(policies=seen.append), fs)
    assert seen == [MARK]


@dataclass
class Server:
    """Answers as it is told, and keeps what it was sent."""

    answers: list[int] = field(default_factory=list)
    seen: list[tuple[str, dict[str, str], dict[str, object]]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def server() -> Iterator[Server]:
    """On a free port, for one test."""
    made = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.seen.append((self.path, dict(self.headers), body))
            self.send_response(made.answers.pop(0) if made.answers else 204)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None: ...

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{http.server_port}/marks?token=secret"
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def posted(server: Server, mark: PartitionMark = MARK) -> None:
    """By a webhook with a header of its own."""
    hook = Webhook(server.url, headers={"Authorization": "Bearer x"}, timeout_s=300.0)
    run(PartitionCommit(policies=[hook]), FakeFileSystem(Disk()), mark)


def test_a_webhook_is_told_which_partition_and_by_which_key(server: Server) -> None:
    """The key is the same for a repetition, so that a receiver does its work once."""
    posted(server)
    posted(server)
    path, headers, body = server.seen[0]
    assert path == "/marks?token=secret"
    assert headers["Authorization"] == "Bearer x"
    assert headers["Idempotency-Key"] == MARK.key
    assert body == {
        "version": 1,
        "job": "orders",
        "job_uid": "job",
        "operator_id": "op",
        "target": "fake:///data/orders",
        "partition": "dt=2026-03-01/hour=7",
        "values": {"dt": "2026-03-01", "hour": "7"},
        "sequence": 42,
        "late": False,
        "key": MARK.key,
    }
    assert server.seen[1][1]["Idempotency-Key"] == MARK.key


@pytest.mark.parametrize("status", [301, 307, 400, 409, 500, 503])
def test_any_answer_but_a_good_one_is_no_mark(server: Server, status: int) -> None:
    """Also a redirect: the secret in a header is for this server alone."""
    server.answers = [status]
    with pytest.raises(UnreachableError, match=f"status={status}") as caught:
        posted(server)
    assert len(server.seen) == 1
    assert isinstance(caught.value, MarkRefusedError) == (status == 400)


def test_a_server_that_is_not_there_is_no_mark_and_no_secret_is_said() -> None:
    """The address may hold a token; the message names the host."""
    hook = Webhook("http://127.0.0.1:9/hook?token=secret", timeout_s=2.0)
    with pytest.raises(UnreachableError) as caught:
        run(PartitionCommit(policies=[hook]), FakeFileSystem(Disk()))
    assert isinstance(caught.value, MarkRefusedError), "nobody was told"
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(hook)
