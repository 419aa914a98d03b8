"""The run record, the newest run of a job, and files that dead runs leave."""

import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.leftover_files import Leftovers
from sluice.runtime.checkpoint.run_record import LEADER_FILE, RunRecord, RunRecordStore
from sluice.runtime.checkpoint.succession import has_last_record
from sluice.runtime.errors import AuthenticationError, FencedError, StorageError, UnreachableError
from sluice.runtime.model.checkpoint_record import CheckpointRecord
from sluice.runtime.service.service_client import CoordinatorAddress, CoordinatorClient
from sluice.runtime.storage.local_fs import LocalFileSystem
from sluice.runtime.storage.web_hdfs import WebHdfsAddress
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.fakes import ManualClock
from tests.kit.files.fake_file_system import Disk, FakeFileSystem, Fault
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


def test_a_start_that_slept_after_its_seal_announces_itself_over_no_later_run() -> None:
    """People and tasks would be sent to it for as long as that one runs."""
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
    disk = Disk()
    leaders = RunRecordStore(FakeFileSystem(disk))
    disk.files[LEADER_FILE] = b'{"format_version": 99}'
    again = RunRecord(
        job_uid="job", leader_session_id="again", address="http://again", attempt_id=7
    )
    leaders.announce(again, is_newest=lambda: False)
    assert leaders.current() == again


def test_a_client_without_a_jvm_learns_it_over_webhdfs() -> None:
    """As a task does, whose checkpoints lie on HDFS; where no record lies it is reported silence."""
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
            CoordinatorClient(gone) as client,
            pytest.raises(FencedError, match="elsewhere"),
        ):
            client.poll_barrier("main", 0, wait_s=0.0)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_leader_that_has_not_sealed_after_ours_ends_nobody(tmp_path: Path) -> None:
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


class RetiringStore(CheckpointStore):
    """Something happens each time between a listing and the read after it."""

    def __init__(self, disk: Disk, meanwhile: Callable[[int], object]) -> None:
        super().__init__(FakeFileSystem(disk))
        self._meanwhile = meanwhile

    def read(self, checkpoint_id: int) -> CheckpointRecord | None:
        self._meanwhile(checkpoint_id)
        return super().read(checkpoint_id)


def sealed(disk: Disk, checkpoint_id: int, session: str) -> None:
    store = CheckpointStore(FakeFileSystem(disk))
    store.publish(record(checkpoint_id, leader_session_id=session), timeout_s=1.0)


def test_the_newest_run_is_the_one_whose_record_is_the_last() -> None:
    disk = Disk()
    store = CheckpointStore(FakeFileSystem(disk))
    assert not has_last_record(store, session="first")
    for checkpoint_id in (0, 1, 7):
        sealed(disk, checkpoint_id, "first")
    assert has_last_record(store, session="first")
    sealed(disk, 8, "second")
    disk.remove("chk-000000000007")
    assert not has_last_record(store, session="first")
    assert has_last_record(store, session="second")


def test_a_record_that_is_retired_while_it_is_looked_at_was_not_the_last() -> None:
    disk = Disk()
    sealed(disk, 0, "first")

    def once(checkpoint_id: int) -> None:
        if checkpoint_id == 0:
            sealed(disk, 1, "second")
            disk.remove("chk-000000000000")

    assert has_last_record(RetiringStore(disk, once), session="second")

    def each_time(checkpoint_id: int) -> None:
        sealed(disk, checkpoint_id + 1, "second")
        disk.remove(f"chk-{checkpoint_id:012d}")

    assert not has_last_record(RetiringStore(disk, each_time), session="second")


HOUR_S = 3600.0


def test_what_cannot_be_deleted_stays_and_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk(files={f"._leader.{'0' * 32}.tmp": b""})
    clock, is_away = ManualClock(), True

    def fault(_: str) -> Fault:
        return Fault.REFUSED if is_away else Fault.NONE

    leftovers = Leftovers(FakeFileSystem(disk, fault=fault), clock=clock)
    for _ in range(2):
        leftovers.delete_abandoned()
        clock.advance(HOUR_S)
    assert disk.files
    assert "incomplete files were not deleted" in caplog.text
    is_away = False
    leftovers.delete_abandoned()
    assert not disk.files


def test_a_run_that_cannot_write_its_command_file_runs_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = Disk()
    run = RunRecord(job_uid="job", leader_session_id="s", address="http://here", attempt_id=3)
    refusing = FakeFileSystem(disk, fault=lambda _: Fault.REFUSED)
    with RunRecordStore(refusing).accept_commands(run, is_newest=lambda: True):
        assert "job accepts no commands" in caplog.text
        with pytest.raises(UnreachableError, match="no job runs"):
            RunRecordStore(FakeFileSystem(disk)).newest_command()


def test_a_run_that_cannot_write_its_file_for_hosts_ends() -> None:
    """No host would find it."""
    run = RunRecord(job_uid="job", leader_session_id="s", address="http://here", attempt_id=3)
    records = RunRecordStore(FakeFileSystem(Disk(), fault=lambda _: Fault.REFUSED))
    hosts = records.accept_hosts(run, is_newest=lambda: True)
    with pytest.raises(StorageError), hosts:
        pass


def test_a_host_reads_the_file_of_each_run_once() -> None:
    """It lists their names again and again."""
    read: list[str] = []

    class Counting(FakeFileSystem):
        def read(self, path: str) -> bytes | None:
            read.append(path)
            return super().read(path)

    disk = Disk()
    found, written = RunRecordStore(Counting(disk)), RunRecordStore(FakeFileSystem(disk))
    first = RunRecord(job_uid="job", leader_session_id="a", address="http://a", attempt_id=3)
    second = RunRecord(job_uid="job", leader_session_id="b", address="http://b", attempt_id=9)
    assert found.newest_for_hosts() is None
    with written.accept_hosts(first, is_newest=lambda: True):
        assert [found.newest_for_hosts() for _ in range(2)] == [first, first]
        with written.accept_hosts(second, is_newest=lambda: True):
            assert [found.newest_for_hosts() for _ in range(2)] == [second, second]
    assert found.newest_for_hosts() is None
    assert read == ["_hosts-3", "_hosts-9"]


def test_a_command_file_of_another_user_is_refused_by_name() -> None:
    class OfAnotherUser(FakeFileSystem):
        def read(self, path: str) -> bytes | None:
            raise AuthenticationError("permission denied", {"path": path}, "Ask its owner.")

    run = RunRecord(job_uid="job", leader_session_id="s", address="http://here", attempt_id=3)
    disk = Disk()
    commands = RunRecordStore(FakeFileSystem(disk)).accept_commands(run, is_newest=lambda: True)
    with commands, pytest.raises(AuthenticationError, match="only the user who runs the job"):
        RunRecordStore(OfAnotherUser(disk)).newest_command()
