"""Jobs of a registry: running, ended, hanging, killed, of another user, and very many."""

import contextlib
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.runtime.errors import AuthenticationError, StreamError, UnreachableError
from sluice.runtime.job_registry.registration import RENEWED_EVERY_S
from sluice.runtime.process.host_clock import wall_ms
from sluice.runtime.serve import served_jobs
from sluice.runtime.serve.job_state import is_stale, summary_for
from sluice.runtime.serve.serve_client import path_of
from tests.kit.registered_jobs import a_registration
from tests.kit.served_jobs_bed import PlayedJobs, Service, service_of
from tests.kit.waiting import wait_for

LONG_AGO_MS = 5_000


def listed(service: Service) -> dict[str, dict[str, Any]]:
    with service.client() as client:
        return {each["job_uid"]: each for each in client.get("/v1/jobs")["jobs"]}


def awaited(
    service: Service, uid: str, is_right: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        summary = listed(service).get(uid)
        return summary if summary is not None and is_right(summary) else None

    summary = wait_for(found, what=f"{uid} as wanted")
    assert summary is not None
    return summary


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_jobs, "_BUSY_EVERY_S", 0.05)


def test_a_running_job_is_listed_with_its_own_figures(played: PlayedJobs, service: Service) -> None:
    played.start_job("job-1", name="orders", host="w1")
    found = awaited(service, "job-1", lambda job: job["lag_records"] == 7)
    assert (found["name"], found["state"], found["host"], found["regions"]) == (
        *("orders", "running", "w1"),
        2,
    )
    with service.client() as client:
        details = client.get("/v1/jobs/job-1")
        assert details["status"]["state"] == "running"
        history = client.get("/v1/jobs/job-1/history?checkpoints=5")
        assert history["checkpoints"] == [{"checkpoint_id": 3}]


def test_a_job_that_ended_keeps_its_state_and_error(played: PlayedJobs, service: Service) -> None:
    job = played.start_job("job-1")
    awaited(service, "job-1", lambda found: found["state"] == "running")
    ended = a_registration("job-1", state="failed", error="no room", ended_ms=9)
    played.registry.write(ended)
    found = awaited(service, "job-1", lambda found: found["state"] == "failed")
    assert (found["error"], found["ended_ms"]) == ("no room", 9)
    with service.client() as client:
        assert client.get("/v1/jobs/job-1")["graph"]["operators"] == []
    played.registry.write(job.registration)  # it was started again
    awaited(service, "job-1", lambda found: found["state"] == "running")


def test_a_killed_job_is_lost_since_its_last_sign_of_life(
    played: PlayedJobs, service: Service
) -> None:
    job = played.start_job("job-1", renewed_ms=LONG_AGO_MS)
    awaited(service, "job-1", lambda found: found["state"] == "running")  # it answers
    played.kill(job)
    found = awaited(service, "job-1", lambda found: found["state"] == "lost")
    assert found["ended_ms"] == LONG_AGO_MS
    assert "1970-01-01 00:00:05Z" in found["error"]


def test_a_job_that_renews_its_registration_is_not_lost(
    played: PlayedJobs, service: Service
) -> None:
    """It runs, and this service cannot reach it, for example on another host's loopback."""
    job = played.start_job("job-1")
    played.kill(job)
    found = awaited(service, "job-1", lambda found: found["state"] == "unreachable")
    assert found["ended_ms"] is None
    assert found["error"]


def test_a_change_that_the_service_saw_counts_by_its_own_clock() -> None:
    registration = a_registration(renewed_ms=0)
    assert is_stale(registration, now_ms=10**9, unchanged_s=None)
    assert not is_stale(registration, now_ms=10**9, unchanged_s=RENEWED_EVERY_S)
    assert is_stale(registration, now_ms=0, unchanged_s=4 * RENEWED_EVERY_S)


def test_a_job_of_another_user_runs_and_says_why_it_takes_no_commands() -> None:
    error = AuthenticationError("only the user", {}, "Run as that user.")
    found = summary_for(a_registration(), answer=None, error=error, is_stale=False)
    assert found["state"] == "running"
    assert "only the user" in found["error"]


def test_a_job_that_hangs_delays_nobody(played: PlayedJobs, service: Service) -> None:
    hanging = played.start_job("hanging")
    played.start_job("well")
    awaited(service, "well", lambda found: found["lag_records"] == 7)
    hanging.hangs.clear()
    try:
        found = awaited(service, "hanging", lambda found: found["state"] == "unreachable")
        assert "does not answer" in found["error"]
        assert listed(service)["well"]["state"] == "running"
        with service.client() as client:  # from its checkpoint directory: no decision there
            assert client.get("/v1/jobs/hanging")["state"] == "unreachable"
            assert client.get("/v1/jobs/well")["status"]["state"] == "running"
    finally:
        hanging.hangs.set()
    awaited(service, "hanging", lambda found: found["state"] == "running")


def test_few_commands_wait_for_a_job_that_hangs(played: PlayedJobs, service: Service) -> None:
    """The next ones are refused at once, so that they keep no thread busy."""
    hanging = played.start_job("hanging")
    awaited(service, "hanging", lambda found: found["lag_records"] == 7)
    hanging.hangs.clear()
    refused = threading.Event()

    def ask() -> None:
        with service.client() as client, contextlib.suppress(StreamError):
            try:
                client.get(path_of("jobs", "hanging", "savepoints"))
            except UnreachableError as err:
                if "has not answered earlier requests" in str(err):
                    refused.set()

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        wait_for(refused.is_set)
    finally:
        hanging.hangs.set()
        for thread in threads:
            thread.join()


def test_two_hundred_jobs_are_listed_while_half_of_them_hang(
    played: PlayedJobs, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_jobs, "_BUSY_EVERY_S", 1.0)
    jobs = [played.start_job(f"job-{number}") for number in range(200)]
    for job in jobs[::2]:
        job.hangs.clear()
    well = {job.uid for job in jobs[1::2]}
    try:
        wait_for(lambda: len(listed(service)) == 200)
        wait_for(lambda: {u for u, job in listed(service).items() if job["lag_records"]} == well)
        wait_for(lambda: {u for u, job in listed(service).items() if not job["error"]} == well)
        with service.client() as client:
            assert client.get("/v1/jobs/job-1")["status"]["state"] == "running"
            assert client.get("/v1/jobs/job-0")["state"] == "unreachable"
    finally:
        for job in jobs:
            job.hangs.set()


def test_a_registry_that_is_away_keeps_the_list_and_is_named(
    played: PlayedJobs, service: Service, tmp_path: Path
) -> None:
    played.start_job("job-1")
    awaited(service, "job-1", lambda found: found["lag_records"] == 7)
    directory, aside = tmp_path / "jobs" / "registry", tmp_path / "aside"
    directory.rename(aside)
    directory.write_text("no directory")
    with service.client() as client:
        wait_for(lambda: client.get("/v1/jobs")["registry_error"])
        assert [each["job_uid"] for each in client.get("/v1/jobs")["jobs"]] == ["job-1"]
        directory.unlink()
        shutil.move(aside, directory)
        wait_for(lambda: client.get("/v1/jobs")["registry_error"] is None)
        assert client.get("/v1/jobs/job-1")["status"]["state"] == "running"


def test_old_ended_jobs_are_forgotten(played: PlayedJobs, tmp_path: Path) -> None:
    for number in range(5):
        played.registry.write(a_registration(f"job-{number}", state="finished", ended_ms=number))
    played.start_job("runs")
    with service_of(played.registry.fs.uri, tmp_path, kept=2) as service:
        wait_for(lambda: listed(service).keys() == {"job-3", "job-4", "runs"})
    kept = {each.job_uid for each in played.registry.registrations()}
    assert kept == {"job-3", "job-4", "runs"}


def test_two_services_show_the_same_jobs(played: PlayedJobs, tmp_path: Path) -> None:
    registry = played.registry.fs.uri
    played.start_job("job-1")
    with service_of(registry, tmp_path / "a") as one, service_of(registry, tmp_path / "b") as two:
        for service in (one, two):
            awaited(service, "job-1", lambda found: found["lag_records"] == 7)


def test_the_token_of_a_job_goes_only_to_the_address_beside_it(
    played: PlayedJobs, tmp_path: Path
) -> None:
    """An address in the registry is for people: any program that may register could name its own."""
    with PlayedJobs(str(tmp_path / "thief")) as thief:
        job = played.start_job("job-1")
        played.registry.write(
            a_registration(
                "job-1",
                checkpoint_uri=job.registration.checkpoint_uri,
                address=thief.address,
                read_only_address=thief.address,
                renewed_ms=wall_ms(),
            )
        )
        with service_of(played.registry.fs.uri, tmp_path) as service:
            awaited(service, "job-1", lambda found: found["lag_records"] == 7)


def test_another_job_in_the_directory_takes_no_commands(
    played: PlayedJobs, service: Service
) -> None:
    old = played.start_job("old")
    new = played.start_job("new")
    played.registry.write(
        a_registration("old", checkpoint_uri=new.registration.checkpoint_uri, renewed_ms=wall_ms())
    )
    del old
    with service.client() as client:
        wait_for(lambda: listed(service).keys() == {"old", "new"})
        with pytest.raises(StreamError, match="another job runs with this checkpoint directory"):
            client.get("/v1/jobs/old/savepoints")
