"""Savepoints, full checkpoints and stops of a running job, over the service and the commands."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.checkpoint.run_record import RunRecord, RunRecordStore
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.coordinator.shell.operator_commands import JobCommands
from sluice.runtime.coordinator.shell.request_thread import Copied, FileCopier, RequestedCheckpoint
from sluice.runtime.errors import (
    CheckpointFailedError,
    ConfigError,
    FencedError,
    StorageError,
    StreamError,
    WaitedTooLongError,
)
from sluice.runtime.job.job_cli import app, checkpoint_app
from sluice.runtime.job.running_job import await_end, await_request, running_job
from sluice.runtime.job.savepoint_cli import app as savepoint_app
from sluice.runtime.model.checkpoint_record import CheckpointKind, CheckpointRecord
from sluice.runtime.service.coordinator_app import CoordinatorApp
from sluice.runtime.service.server import CoordinatorService
from sluice.runtime.service.service_client import CoordinatorClient
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.coordinator.coordinated_job import QUICK, Job
from tests.kit.waiting import join, wait_for

LIMIT_S = 60.0


class Copier(FileCopier):
    """Writes an empty record; waits, or fails, if a test says so."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.records: list[CheckpointRecord] = []
        self.may_end = threading.Event()
        self.may_end.set()
        self.error: Exception | None = None

    def parent(self, kind: CheckpointKind, to: str | None) -> str:
        if to == "ftp:":
            raise ConfigError("no such store", {"to": to}, "Use another.")
        whole = "full" if kind is CheckpointKind.FULL else ""
        return to or (self.directory / whole).as_uri()

    def uri(self, record: CheckpointRecord, parent: str, *, request_id: str) -> str:
        return f"{parent}/savepoint-{record.checkpoint_id}-{request_id}"

    def copy(
        self,
        record: CheckpointRecord,
        uri: str,
        *,
        is_awaited: Callable[[str], bool],
        guard: Callable[[], None],
        progress: Callable[[int, int], None],
    ) -> Copied:
        self.records.append(record)
        progress(2, 8)
        while not self.may_end.wait(0.01):
            guard()
        if self.error is not None:
            raise self.error
        guard()
        written = Path(uri.removeprefix("file://"))
        written.mkdir(parents=True)
        (written / "_metadata").touch()
        return Copied(bytes=12, files=3)


@pytest.fixture
def copier(job: Job, tmp_path: Path) -> Copier:
    job.copier = found = Copier(tmp_path / "savepoints")
    return found


@pytest.fixture
def coordinator(job: Job, copier: Copier) -> BarrierCoordinator:
    made, _ = job.started()
    job.source.ends = {0: 5, 1: 7}
    job.region(made)
    return made


@pytest.fixture
def commands(coordinator: BarrierCoordinator) -> JobCommands:
    return JobCommands(coordinator, hosts=None)


@pytest.fixture
def directory(
    coordinator: BarrierCoordinator, commands: JobCommands, tmp_path: Path
) -> Iterator[Path]:
    """The checkpoint directory of the job, which is served until it ends."""
    open_store(str(tmp_path)).publish(
        record(0, leader_session_id=coordinator.session), timeout_s=60
    )
    served = ExitStack()
    service = served.enter_context(
        CoordinatorService(CoordinatorApp(coordinator, commands=commands))
    )
    address = service.command_address
    assert address.attempt_id is not None
    run = RunRecord(
        leader_session_id=address.leader_session_id,
        address=address.address,
        attempt_id=address.attempt_id,
        job_uid=address.job_uid,
        token=address.token,
    )
    served.enter_context(
        RunRecordStore(LocalFileSystem(tmp_path)).accept_commands(run, is_newest=lambda: True)
    )

    def close_at_the_end() -> None:
        coordinator.wait()
        served.close()

    watcher = threading.Thread(target=close_at_the_end)
    watcher.start()
    yield tmp_path
    coordinator.cancel()
    join(watcher)


def stop(
    commands: JobCommands, *, drain: bool = False, savepoint: bool = False
) -> RequestedCheckpoint:
    """Request the end of the job."""
    return commands.stop(drain=drain, savepoint=savepoint, to=None, limit_s=None)


class TestSavepoints:
    """A copy of a committed checkpoint, while records flow."""

    def test_copy_protected_files_are_copied_after_the_marker(
        self, coordinator: BarrierCoordinator, commands: JobCommands, copier: Copier, job: Job
    ) -> None:
        view = commands.savepoint("savepoint", to=None).result(LIMIT_S)
        (found,) = copier.records
        assert found.kind is CheckpointKind.SAVEPOINT
        assert job.store.is_committed(found.checkpoint_id)
        assert (view.kind, view.state, view.bytes, view.files) == ("savepoint", "completed", 12, 3)
        name = f"savepoint-{view.checkpoint_id}-{view.request_id}"
        assert view.uri == f"{copier.directory.as_uri()}/{name}"
        assert coordinator.requests.views() == (view,)

    def test_epochs_are_decided_during_the_copy(
        self, coordinator: BarrierCoordinator, commands: JobCommands, copier: Copier, job: Job
    ) -> None:
        copier.may_end.clear()
        request = commands.savepoint("savepoint", to=None)
        wait_for(lambda: copier.records)
        before = coordinator.last_committed
        job.source.ends[0] += 9
        wait_for(lambda: coordinator.last_committed > before)
        assert coordinator.requests.views()[0].state == "running"
        copier.may_end.set()
        assert request.result(LIMIT_S).state == "completed"

    def test_a_second_one_waits_for_its_turn(self, commands: JobCommands, copier: Copier) -> None:
        copier.may_end.clear()
        first, second = (commands.savepoint("savepoint", to=None) for _ in range(2))
        wait_for(lambda: copier.records)
        with pytest.raises(WaitedTooLongError):
            second.result(0.02)
        assert len(copier.records) == 1
        copier.may_end.set()
        assert first.result(LIMIT_S).checkpoint_id != second.result(LIMIT_S).checkpoint_id

    def test_many_that_wait_are_refused(self, commands: JobCommands, copier: Copier) -> None:
        copier.may_end.clear()
        for _ in range(8):
            commands.savepoint("savepoint", to=None)
        with pytest.raises(ConfigError, match="too many"):
            commands.savepoint("savepoint", to=None)
        copier.may_end.set()

    def test_a_failed_copy_leaves_the_job_running(
        self, coordinator: BarrierCoordinator, commands: JobCommands, copier: Copier
    ) -> None:
        copier.error = StorageError("no space", {}, "Make some.")
        with pytest.raises(StorageError, match="no space"):
            commands.savepoint("savepoint", to=None).result(LIMIT_S)
        (view,) = coordinator.requests.views()
        assert (view.state, view.error) == ("failed", str(copier.error))
        copier.error = None
        assert commands.savepoint("savepoint", to=None).result(LIMIT_S).state == "completed"
        ended = {("savepoint", "failed"): 1, ("savepoint", "completed"): 1}
        assert coordinator.requests.ended == ended, "for metrics"
        assert coordinator.requests.last_s["savepoint"] >= 0

    def test_the_end_of_the_job_leaves_none(
        self, coordinator: BarrierCoordinator, commands: JobCommands, copier: Copier
    ) -> None:
        copier.may_end.clear()
        request = commands.savepoint("savepoint", to=None)
        wait_for(lambda: copier.records)
        coordinator.stop()
        with pytest.raises(FencedError, match="has ended"):
            request.result(LIMIT_S)
        assert not list(copier.directory.glob("*/_metadata"))
        with pytest.raises(FencedError, match="has ended"):
            commands.savepoint("savepoint", to=None)

    def test_a_run_that_was_taken_over_leaves_none(
        self, commands: JobCommands, copier: Copier, job: Job
    ) -> None:
        copier.may_end.clear()
        request = commands.savepoint("savepoint", to=None)
        wait_for(lambda: copier.records)
        job.coordinator().start(300.0)
        copier.may_end.set()
        with pytest.raises(FencedError):
            request.result(LIMIT_S)
        assert not list(copier.directory.glob("*/_metadata"))

    @pytest.mark.parametrize(
        ("kind", "to"),
        [("checkpoint", None), ("final", None), ("full", "x"), ("savepoint", "ftp:")],
    )
    def test_what_cannot_be_copied_is_refused(
        self, commands: JobCommands, kind: str, to: str | None
    ) -> None:
        with pytest.raises(ConfigError):
            commands.savepoint(kind, to=to)

    def test_full_checkpoints_come_by_count(self, job: Job, copier: Copier) -> None:
        made, _ = job.started(replace(QUICK, full_checkpoint_every=2))
        job.region(made)

        def has_copied() -> bool:
            job.source.ends[0] += 1
            return bool(copier.records)

        wait_for(has_copied)
        assert copier.records[0].kind is CheckpointKind.FULL


class TestStops:
    """A stop in order: by itself, with a savepoint, after a drain."""

    def test_the_job_ends_after_its_last_checkpoint(
        self, coordinator: BarrierCoordinator, commands: JobCommands, job: Job
    ) -> None:
        stop(commands)
        assert coordinator.wait(LIMIT_S)
        last = job.store.history[-1]
        assert (last.kind, last.requested_by) == (CheckpointKind.FINAL, "stop")
        assert job.store.is_committed(last.checkpoint_id)

    def test_it_ends_with_its_savepoint(
        self, coordinator: BarrierCoordinator, commands: JobCommands, copier: Copier
    ) -> None:
        copier.may_end.clear()
        stop(commands, savepoint=True)
        wait_for(lambda: copier.records)
        assert not coordinator.is_over
        assert coordinator.status().state == "stopping"
        copier.may_end.set()
        assert coordinator.wait(LIMIT_S)
        assert copier.records[0].kind is CheckpointKind.SAVEPOINT
        assert list(copier.directory.glob("*/_metadata"))

    def test_it_continues_without_its_savepoint(
        self, coordinator: BarrierCoordinator, commands: JobCommands, copier: Copier, job: Job
    ) -> None:
        copier.error = StorageError("no space", {}, "Make some.")
        with pytest.raises(StorageError, match="no space"):
            stop(commands, savepoint=True).result(LIMIT_S)
        job.source.ends[0] += 9
        before = coordinator.last_committed
        wait_for(lambda: coordinator.last_committed > before)
        assert coordinator.status().state == "running"

    def test_a_second_stop_ends_the_job_at_once(
        self, coordinator: BarrierCoordinator, commands: JobCommands, copier: Copier
    ) -> None:
        copier.may_end.clear()
        first = stop(commands, savepoint=True)
        wait_for(lambda: copier.records)
        with pytest.raises(FencedError, match="at once"):
            stop(commands)
        assert coordinator.wait(LIMIT_S)
        coordinator.stop()
        with pytest.raises(FencedError):
            first.result(LIMIT_S)
        assert not list(copier.directory.glob("*/_metadata"))

    def test_a_drain_reads_to_the_present_ends(
        self, coordinator: BarrierCoordinator, commands: JobCommands, job: Job
    ) -> None:
        job.source.ends = {0: 50, 1: 70}
        stop(commands, drain=True)
        assert coordinator.wait(LIMIT_S)
        assert job.visible() == job.expected()


class TestCommands:
    """`sluice job stop` and `sluice checkpoint full`."""

    def test_stop_prints_the_savepoint_last(self, directory: Path, copier: Copier) -> None:
        to = directory / "elsewhere"
        result = CliRunner().invoke(
            app, ["stop", str(directory), "--savepoint", str(to)], catch_exceptions=False
        )
        assert result.exit_code == 0, result.output
        (found,) = to.iterdir()
        assert result.output.splitlines()[-1] == str(found)

    def test_stop_takes_a_savepoint_without_a_uri(self, directory: Path, copier: Copier) -> None:
        result = CliRunner().invoke(
            app, ["stop", str(directory), "--savepoint", "--drain"], catch_exceptions=False
        )
        assert result.exit_code == 0, result.output
        (found,) = copier.directory.iterdir()
        assert result.output.splitlines()[-1] == str(found)

    def test_stop_fails_with_the_cause(
        self, directory: Path, coordinator: BarrierCoordinator, copier: Copier
    ) -> None:
        copier.error = StorageError("no space", {}, "Make some.")
        result = CliRunner().invoke(app, ["stop", str(directory), "--savepoint"])
        assert isinstance(result.exception, CheckpointFailedError)
        assert "no space" in str(result.exception)
        assert not coordinator.is_over

    def test_a_savepoint_is_found_if_the_job_ended_between_two_polls(
        self, directory: Path, copier: Copier, coordinator: BarrierCoordinator
    ) -> None:
        with running_job(str(directory), answer_s=0.1) as client:
            request = client.stop(savepoint=True)
            assert coordinator.wait(LIMIT_S)
            wait_for(lambda: not _answers(client))
            (found,) = copier.directory.iterdir()
            assert await_end(str(directory), client, request).savepoint == found.as_uri()
            with pytest.raises(CheckpointFailedError, match="without its last checkpoint"):
                await_end(str(directory), client, {**request, "request_id": "abcdef"})

    def test_savepoint_create_prints_its_path(self, directory: Path, copier: Copier) -> None:
        parent = directory / "there"
        command = ["create", str(directory), "--to", str(parent)]
        result = CliRunner().invoke(savepoint_app, command, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        (found,) = parent.iterdir()
        assert result.stdout.splitlines()[-1] == str(found)
        assert "3 files, 12 bytes" in result.stdout
        result = CliRunner().invoke(savepoint_app, [*command, "--json"], catch_exceptions=False)
        assert json.loads(result.stdout)["state"] == "completed"

    def test_full_prints_its_path(self, directory: Path, copier: Copier) -> None:
        result = CliRunner().invoke(
            checkpoint_app, ["full", str(directory)], catch_exceptions=False
        )
        assert result.exit_code == 0, result.output
        (found,) = (copier.directory / "full").iterdir()
        assert result.output.splitlines()[-1] == str(found)

    def test_requests_are_listed(self, directory: Path, copier: Copier) -> None:
        with running_job(str(directory)) as client:
            request = client.savepoint(str(directory / "there"))
            assert request["parent"] == str(directory / "there")
            found = await_request(client, request["request_id"])
            assert client.savepoints() == (found,)
        assert found["uri"].startswith(request["parent"])


def _answers(client: CoordinatorClient) -> bool:
    try:
        client.status()
    except StreamError:
        return False
    return True
