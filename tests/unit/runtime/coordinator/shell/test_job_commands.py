"""Commands to a running job: the file, the service, the command line, over fakes."""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
import urllib3
from typer.testing import CliRunner

from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.checkpoint.run_record import RunRecord, RunRecordStore, command_file
from sluice.runtime.contracts import Placement
from sluice.runtime.coordinator.policy.checkpoint_plan import OnRegionFailure
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.coordinator.region.job_time import TimeView
from sluice.runtime.coordinator.region.status_views import WaitingForResources
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.coordinator.shell.operator_commands import JobCommands
from sluice.runtime.errors import (
    ConfigError,
    DeliveryError,
    StreamError,
    UnreachableError,
    WrongJobError,
    WrongServiceError,
)
from sluice.runtime.functions.record_counts import encode_totals
from sluice.runtime.job.job_cli import app
from sluice.runtime.model.acknowledgement import Acknowledgement, RecordCounts
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.splits import Barrier, BatchKey
from sluice.runtime.service.coordinator_app import CoordinatorApp
from sluice.runtime.service.server import CoordinatorService
from sluice.runtime.service.service_client import (
    CoordinatorAddress,
    CoordinatorClient,
    command_address,
)
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.coordinator.coordinated_job import QUICK, Job
from tests.kit.waiting import wait_for

PARKING = replace(
    QUICK,
    handler=RegionalCheckpointHandler(),
    on_region_failure=OnRegionFailure.SUSPEND,
    refresh_interval_s=0.02,
)
NO_USE = DeliveryError("too large", {"topic": "t"}, "Make room.")


class Hosts:
    """A `HostControl` that knows one host."""

    def __init__(self) -> None:
        self.excluded: list[str] = []

    def placement(self, job_uid: str) -> Placement:
        del job_uid
        return Placement(
            driver="driver-1",
            executors={"good": 1},
            excluded=(),
            regions={"left": "good", "x": "x"},
        )

    def require(self, hosts: Sequence[str]) -> None:
        if list(hosts) != ["bad"]:
            raise ConfigError("Spark never ran anything there", {"hosts": hosts}, "Look again.")

    def exclude(self, hosts: Sequence[str]) -> int:
        self.excluded += hosts
        return 3


@pytest.fixture
def coordinator(job: Job) -> BarrierCoordinator:
    job.regions = ("left", "right")
    return job.started(PARKING)[0]


def _told(
    fs: LocalFileSystem, address: CoordinatorAddress, is_newest: Callable[[], bool] = lambda: True
) -> AbstractContextManager[None]:
    assert address.attempt_id is not None
    run = RunRecord(
        leader_session_id=address.leader_session_id,
        address=address.address,
        attempt_id=address.attempt_id,
        job_uid=address.job_uid,
        token=address.token,
    )
    return RunRecordStore(fs).accept_commands(run, is_newest=is_newest)


@pytest.fixture
def hosts() -> Hosts:
    return Hosts()


@pytest.fixture
def directory(coordinator: BarrierCoordinator, hosts: Hosts, tmp_path: Path) -> Iterator[Path]:
    """The checkpoint directory of a job that runs."""
    open_store(str(tmp_path)).publish(record(0), timeout_s=60)
    commands = JobCommands(coordinator, hosts=hosts)
    with (
        CoordinatorService(CoordinatorApp(coordinator, commands=commands)) as service,
        _told(LocalFileSystem(tmp_path), service.command_address),
    ):
        yield tmp_path


def suspend(coordinator: BarrierCoordinator, region: str = "left") -> None:
    started = coordinator.started
    coordinator.fail(region, started.attempt_id, NO_USE)
    assert coordinator.is_suspended(region)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_an_epoch_that_is_not_visible_yet_is_shown_with_its_age(
    coordinator: BarrierCoordinator, job: Job, directory: Path
) -> None:
    """A job that waits for brokers looks well otherwise: its lag hangs."""
    assert "pending" not in run("status", str(directory))
    started = coordinator.started
    assert started is not None
    job.source.ends[0] = 7
    wait_for(lambda: coordinator.poll_barrier("left", started.attempt_id, wait_s=0.2))
    shown = run("status", str(directory))
    assert re.search(r"pending: checkpoint 1, aligning, \d+ s since its barrier", shown)


def test_a_suspended_region_is_shown_with_its_growing_lag(
    coordinator: BarrierCoordinator, job: Job, directory: Path
) -> None:
    suspend(coordinator)
    job.source.ends[0] = 7
    wait_for(lambda: "lag=7 records" in run("status", str(directory)), poll_s=0.02)
    job.source.ends[0] = 1234
    job.source.first[0] = 11
    wait_for(lambda: "lag=1,234 records" in run("status", str(directory)), poll_s=0.02)
    shown = run("status", str(directory))
    assert "left  suspended" in shown
    assert "suspended: DeliveryError: too large" in shown
    assert "deleted by retention before they were read: 11 records" in shown
    assert "right  running" in shown
    found = json.loads(run("status", str(directory), "--json"))["job"]["regions"][0]
    assert found["lags"] == {"input-0": 1234}


def test_late_rows_and_counters_are_shown_from_their_decision_on(
    coordinator: BarrierCoordinator, job: Job, directory: Path
) -> None:
    assert coordinator.started is not None
    attempt_id = coordinator.started.attempt_id

    def poll() -> Barrier | None:
        return coordinator.poll_barrier("left", attempt_id, wait_s=0.2)

    job.region(coordinator, "right")
    assert "watermark" not in run("status", str(directory))
    for end, late in ((7, 3), (9, 1_000)):
        job.source.ends[0] = end
        wait_for(poll)
        barrier = poll()
        assert barrier is not None
        key = BatchKey(region="left", attempt_id=attempt_id, batch_id=end)
        counted = RecordCounts(read=7, counters={"rejected": late})
        read = RegionRecord(
            region="left",
            attempt_id=attempt_id,
            splits=barrier.splits,
            operator_states=(encode_totals(counted, operator_id="parsed"),),
        )
        coordinator.acknowledge(
            Acknowledgement(
                batch=key,
                checkpoint_id=barrier.checkpoint_id,
                region=read,
                counts={"windows": RecordCounts(late=late), "parsed": RecordCounts(read=7)},
            )
        )
        coordinator.await_committed(key, timeout_s=60)
    assert "later than the watermark since the start: 1,003 rows" in run("status", str(directory))
    assert "parsed: rejected=1,000\n" in run("status", str(directory))
    status = json.loads(run("status", str(directory), "--json"))["job"]
    assert status["counters"] == {"parsed": {"rejected": 1_000}}
    regions = status["regions"]
    assert {region["region"]: region["late_rows"] for region in regions} == {
        "left": 1003,
        "right": 0,
    }


def test_the_event_time_is_shown_with_what_holds_it_back(
    coordinator: BarrierCoordinator, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a watermark that one record has moved far into the future."""
    plain = coordinator.status()
    shown: dict[str, TimeView] = {}
    monkeypatch.setattr(
        BarrierCoordinator, "status", lambda self: replace(plain, time=shown.get("time"))
    )
    assert "watermark" not in run("status", str(directory))
    shown["time"] = TimeView(
        watermark_ms=86_400_000,
        slowest="input-3",
        slowest_region="left",
        slowest_ms=None,
        idle=("input-1", "input-2"),
        paused=("input-0",),
    )
    found = run("status", str(directory))
    assert "watermark: 1970-01-02T00:00:00+00:00 (" in found
    assert " s ago)" in found
    assert "slowest split: input-3 of region left, none yet" in found
    assert "idle splits: input-1, input-2" in found
    assert "paused splits: input-0" in found
    shown["time"] = TimeView(watermark_ms=1 << 60)
    found = run("status", str(directory))
    assert f"watermark: {1 << 60} ms (" in found
    assert "ahead of the clock" in found
    assert "splits" not in found
    as_json = json.loads(run("status", str(directory), "--json"))["job"]["time"]
    assert as_json["watermark_ms"] == 1 << 60


def test_missing_cores_are_a_state_of_their_own(
    coordinator: BarrierCoordinator, job: Job, directory: Path
) -> None:
    coordinator.waiting_for_resources = WaitingForResources(needed=3, present=1, since_ms=5)
    shown = run("status", str(directory))
    assert shown.startswith("WAITING_FOR_RESOURCES, last decided")
    assert "needs 3 cores, has 1\n" in shown
    found = json.loads(run("status", str(directory), "--json"))["job"]
    assert found["waiting_for_resources"] == {"needed": 3, "present": 1, "since_ms": 5}
    coordinator.waiting_for_resources = None
    assert run("status", str(directory)).startswith("running,")


def test_metrics_show_what_is_suspended(coordinator: BarrierCoordinator, job: Job) -> None:
    suspend(coordinator)
    job.source.ends[0] = 7
    with CoordinatorService(coordinator) as service:
        address = service.command_address
        headers = {"Authorization": f"Bearer {address.token}"}

        def scraped() -> str:
            answer = urllib3.request("GET", f"{address.address}/metrics", headers=headers)
            return answer.data.decode()

        wanted = 'sluice_region_lag_records{region="left",split="input-0"} 7.0'
        wait_for(lambda: wanted in scraped(), poll_s=0.02)
        text = scraped()
    assert 'sluice_region_suspended{region="left"} 1.0' in text
    assert 'sluice_region_suspended{region="right"} 0.0' in text
    assert 'sluice_region_pressure_alarm{region="right"} 0.0' in text


def test_restart_brings_all_suspended_regions_back(
    coordinator: BarrierCoordinator, directory: Path
) -> None:
    suspend(coordinator)
    assert run("restart", str(directory)) == "restarted: left\n"
    assert not coordinator.is_suspended("left")
    asked = coordinator.request_restart("left")
    restarted = wait_for(asked.poll, poll_s=0.01)
    assert coordinator.is_live("left", restarted.attempt_id)


def test_a_running_region_is_restarted_off_a_host(
    coordinator: BarrierCoordinator, hosts: Hosts, directory: Path
) -> None:
    shown = run("restart", str(directory), "--region", "right", "--exclude-host", "bad")
    assert shown == "restarted: right\nended executors on excluded hosts: 3\n"
    assert hosts.excluded == ["bad"]
    started = coordinator.started
    assert not coordinator.is_live("right", started.attempt_id)


@pytest.mark.parametrize(
    ("arguments", "error", "why"),
    [
        ((), ConfigError, "no region of the job is suspended"),
        (("--region", "middle"), WrongJobError, r"known=left,right\]\. Choose one of these\."),
        (("--region", "left", "--exclude-host", "god"), ConfigError, "never ran anything"),
    ],
)
def test_what_makes_no_sense_is_refused_whole(
    coordinator: BarrierCoordinator,
    hosts: Hosts,
    directory: Path,
    arguments: tuple[str, ...],
    error: type[StreamError],
    why: str,
) -> None:
    with pytest.raises(error, match=why):
        run("restart", str(directory), *arguments)
    assert not hosts.excluded
    started = coordinator.started
    assert coordinator.is_live("left", started.attempt_id)


def test_the_file_is_its_owners_alone_and_goes_with_the_job(
    coordinator: BarrierCoordinator, tmp_path: Path
) -> None:
    fs = LocalFileSystem(tmp_path)
    before = os.umask(0)
    try:
        with CoordinatorService(coordinator) as service:
            with _told(fs, service.command_address):
                (file,) = tmp_path.iterdir()
                assert file.stat().st_mode & 0o777 == 0o600
                assert command_address(fs).token != service.coordinator_address.token
                RunRecordStore(fs).announce(RunRecordStore(fs).newest_command())
                leader = (tmp_path / "_leader").read_text()
                assert command_address(fs).token not in leader
                (tmp_path / "_leader").unlink()
            assert not list(tmp_path.iterdir())
    finally:
        os.umask(before)


def _run(attempt_id: int) -> CoordinatorAddress:
    return CoordinatorAddress(
        address="http://127.0.0.1:9",
        token="t",
        leader_session_id=f"session-{attempt_id}",
        job_uid="u",
        attempt_id=attempt_id,
    )


def test_a_run_that_slept_after_its_announcement_hides_no_later_one(tmp_path: Path) -> None:
    fs = LocalFileSystem(tmp_path)
    with _told(fs, _run(9)):
        later = _told(fs, _run(10))
        later.__enter__()
        with _told(fs, _run(9), is_newest=lambda: False):
            assert command_address(fs).leader_session_id == "session-10"
        assert command_address(fs).leader_session_id == "session-10"
        later.__exit__(None, None, None)
    assert not list(tmp_path.iterdir())


def test_a_later_run_that_begins_while_others_are_looked_for_keeps_its_file(tmp_path: Path) -> None:
    fs, is_fenced = LocalFileSystem(tmp_path), False
    later = _told(fs, _run(10))

    def is_newest() -> bool:
        nonlocal is_fenced
        if not is_fenced:
            is_fenced = True
            later.__enter__()
        return True  # as of a moment before

    with _told(fs, _run(3)), _told(fs, _run(9), is_newest=is_newest):
        assert not (tmp_path / command_file(3)).exists()
        assert command_address(fs).leader_session_id == "session-10"
    later.__exit__(None, None, None)


def test_a_run_deletes_what_killed_ones_left(tmp_path: Path) -> None:
    """Also of a directory that was emptied manually but for that, whose places begin again."""
    fs = LocalFileSystem(tmp_path)
    for killed in (2, 40):
        _told(fs, _run(killed)).__enter__()
    with _told(fs, _run(0)):
        assert command_address(fs).leader_session_id == "session-0"
    assert not list(tmp_path.iterdir())


def test_the_placement_is_for_people_and_leaves_suspended_regions_out(
    coordinator: BarrierCoordinator, directory: Path
) -> None:
    with CoordinatorClient(command_address(LocalFileSystem(directory)), deadline_s=300.0) as client:
        assert client.hosts() == {
            "driver": "driver-1",
            "executors": {"good": 1},
            "excluded": [],
            "regions": {"left": "good", "right": None},
        }
        suspend(coordinator)
        assert client.hosts()["regions"] == {"right": None}


def test_the_token_of_people_is_not_that_of_tasks(coordinator: BarrierCoordinator) -> None:
    with (
        CoordinatorService(coordinator) as service,
        CoordinatorClient(service.command_address, deadline_s=300.0) as client,
    ):
        assert client.status()["job"]["state"] == "running"
        with pytest.raises(WrongServiceError):
            client.poll_barrier("left", 0, wait_s=0.0)
        with pytest.raises(ConfigError, match="this service takes no commands"):
            client.restart([], timeout_s=60.0)


def test_a_drop_in_query_is_said_to_be_sparks_to_watch(tmp_path: Path) -> None:
    open_store(str(tmp_path / "sluice")).publish(record(0), timeout_s=60)
    with pytest.raises(ConfigError, match="a Spark query with a drop-in sink"):
        run("status", str(tmp_path))
    with pytest.raises(UnreachableError, match="no job runs"):
        run("status", str(tmp_path / "sluice"))


def test_a_job_that_does_not_run_is_said_to(tmp_path: Path) -> None:
    open_store(str(tmp_path)).publish(record(0), timeout_s=60)
    with pytest.raises(
        UnreachableError, match="no job runs with this checkpoint directory"
    ) as caught:
        run("restart", str(tmp_path))
    assert "or wait: a starting job answers" in str(caught.value)
    fs = LocalFileSystem(tmp_path)
    dead = {
        "format_version": 1,
        "address": "http://127.0.0.1:9",
        "token": "x",
        "leader_session_id": "s",
        "attempt_id": 0,
        "job_uid": "u",
    }
    fs.replace(command_file(0), json.dumps(dead).encode(), is_private=True)
    with pytest.raises(UnreachableError, match="the job does not answer"):
        run("restart", str(tmp_path))


def test_a_command_of_an_older_run_is_refused(
    coordinator: BarrierCoordinator, directory: Path
) -> None:
    suspend(coordinator)
    address = command_address(LocalFileSystem(directory))
    older = replace(address, leader_session_id="older")
    with (
        CoordinatorClient(older, deadline_s=300.0) as client,
        pytest.raises(StreamError, match="another coordinator"),
    ):
        client.restart([], timeout_s=60.0)
    assert coordinator.is_suspended("left")


def test_a_job_whose_hosts_nobody_can_exclude_says_so_and_restarts_nothing(
    coordinator: BarrierCoordinator,
) -> None:
    """An attempt off that host was asked for; one on it would fail again."""
    suspend(coordinator)
    commands = JobCommands(coordinator, hosts=None)
    with pytest.raises(ConfigError, match="hosts cannot be excluded"):
        commands.restart(["left"], ["bad"])
    assert coordinator.is_suspended("left")
    assert commands.restart(["left"], []).regions == ("left",)
