"""Whom a client takes for the job's leader while nobody answers it."""

import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sluice.runtime.checkpoint.run_record import LEADER_FILE, RunRecord, RunRecordStore
from sluice.runtime.errors import FencedError, UnreachableError
from sluice.runtime.service.service_client import CoordinatorAddress, CoordinatorClient
from sluice.runtime.storage.local_fs import LocalFileSystem
from sluice.runtime.storage.web_hdfs import WebHdfsAddress
from tests.kit.files.fake_file_system import Disk, FakeFileSystem
from tests.kit.files.fake_webhdfs import FakeWebHdfs

_NOBODY = CoordinatorAddress(
    address="http://127.0.0.1:1",
    token="t",
    leader_session_id="first",
    job_uid="u",
    attempt_id=4,
    checkpoint_uri="",
)


def test_a_client_that_nobody_answers_learns_who_leads(tmp_path: Path) -> None:
    """The record in the checkpoint directory ends it long before its deadline."""
    store = RunRecordStore(LocalFileSystem(tmp_path))
    gone = replace(_NOBODY, checkpoint_uri=tmp_path.as_uri())
    store.announce(
        RunRecord(job_uid="job", leader_session_id="first", address=gone.address, attempt_id=4)
    )
    with CoordinatorClient(gone, deadline_s=0.1) as client, pytest.raises(UnreachableError):
        client.poll_barrier("main", 0, wait_s=0.0)
    elsewhere = "http://elsewhere"
    store.announce(
        RunRecord(job_uid="job", leader_session_id="second", address=elsewhere, attempt_id=7)
    )
    with CoordinatorClient(gone) as client, pytest.raises(FencedError, match="elsewhere"):
        client.poll_barrier("main", 0, wait_s=0.0)


def test_a_start_that_slept_behind_its_seal_announces_itself_over_no_later_run() -> None:
    """People and tasks would be sent to it for as long as that one runs. A record that was left in
    an emptied directory hinders nobody."""
    leaders = RunRecordStore(FakeFileSystem(Disk()))
    later = RunRecord(
        job_uid="job", leader_session_id="later", address="http://later", attempt_id=7
    )
    leaders.announce(later)
    slept = RunRecord(
        job_uid="job", leader_session_id="slept", address="http://slept", attempt_id=4
    )
    with pytest.raises(FencedError, match="taken over"):
        leaders.announce(slept, is_newest=lambda: False)
    assert leaders.current() == later
    leaders.announce(slept, is_newest=lambda: True)
    assert leaders.current() == slept


def test_a_later_run_announces_itself_over_an_earlier_one_without_a_look() -> None:
    """Its seal lies above that one's; nobody has to be asked."""
    leaders = RunRecordStore(FakeFileSystem(Disk()))
    leaders.announce(
        RunRecord(job_uid="job", leader_session_id="first", address="http://first", attempt_id=4)
    )
    later = RunRecord(
        job_uid="job", leader_session_id="later", address="http://later", attempt_id=7
    )
    leaders.announce(later, is_newest=lambda: False)
    assert leaders.current() == later


def test_a_run_announces_itself_over_the_record_of_a_later_release() -> None:
    """Somebody has gone back to this one: its record names the job's leader again."""
    disk = Disk()
    leaders = RunRecordStore(FakeFileSystem(disk))
    disk.files[LEADER_FILE] = b'{"format_version": 99}'
    again = RunRecord(
        job_uid="job", leader_session_id="again", address="http://again", attempt_id=7
    )
    leaders.announce(again, is_newest=lambda: False)
    assert leaders.current() == again


def test_a_client_without_a_jvm_learns_it_over_webhdfs() -> None:
    """As a task does, whose checkpoints lie on HDFS; where no record lies it is told of silence."""
    disk = Disk()
    later = RunRecord(
        job_uid="job", leader_session_id="second", address="http://elsewhere", attempt_id=7
    )
    RunRecordStore(FakeFileSystem(disk)).announce(later)
    (record,) = disk.files.values()
    with FakeWebHdfs() as hdfs:
        address = replace(
            _NOBODY,
            checkpoint_uri="hdfs://name-node:8020/check points/orders",
            checkpoint_web=WebHdfsAddress(name_nodes=(hdfs.address,), user="ada"),
        )
        with CoordinatorClient(address, deadline_s=0.1) as client, pytest.raises(UnreachableError):
            client.poll_barrier("main", 0, wait_s=0.0)
        hdfs.files["/check points/orders/_leader"] = record
        with CoordinatorClient(address) as client, pytest.raises(FencedError, match="elsewhere"):
            client.poll_barrier("main", 0, wait_s=0.0)


class _Proxy(BaseHTTPRequestHandler):
    """What stands before a driver that is gone."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its own name
        pass


def test_a_client_that_a_proxy_answers_in_its_drivers_place_learns_who_leads(
    tmp_path: Path,
) -> None:
    """That is no answer of the coordinator either."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Proxy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    gone = replace(_NOBODY, address=address, checkpoint_uri=tmp_path.as_uri())
    second = RunRecord(
        job_uid="job", leader_session_id="second", address="http://elsewhere", attempt_id=7
    )
    RunRecordStore(LocalFileSystem(tmp_path)).announce(second)
    try:
        with (
            CoordinatorClient(gone, deadline_s=5.0) as client,
            pytest.raises(FencedError, match="elsewhere"),
        ):
            client.poll_barrier("main", 0, wait_s=0.0)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_leader_that_has_not_sealed_behind_ours_ends_nobody(tmp_path: Path) -> None:
    """An earlier run that was paused announces itself late."""
    address = CoordinatorAddress(
        address="http://127.0.0.1:1",
        token="t",
        leader_session_id="ours",
        job_uid="u",
        attempt_id=4,
        checkpoint_uri=tmp_path.as_uri(),
    )
    other = RunRecord(
        job_uid="job", leader_session_id="other", address="http://elsewhere", attempt_id=3
    )
    RunRecordStore(LocalFileSystem(tmp_path)).announce(other)
    with CoordinatorClient(address, deadline_s=0.1) as client, pytest.raises(UnreachableError):
        client.poll_barrier("main", 0, wait_s=0.0)


def test_a_leader_record_that_cannot_be_read_is_no_error_of_its_own(tmp_path: Path) -> None:
    """It is only a hint: what nobody answers is asked again until the deadline."""
    (tmp_path / "_leader").mkdir()
    address = CoordinatorAddress(
        address="http://127.0.0.1:1",
        token="t",
        leader_session_id="s",
        job_uid="u",
        checkpoint_uri=tmp_path.as_uri(),
    )
    with (
        CoordinatorClient(address, deadline_s=0.1) as client,
        pytest.raises(UnreachableError, match="nothing listens"),
    ):
        client.poll_barrier("main", 0, wait_s=0.0)
