"""Hosts of all jobs, and a drain: full checkpoint, restart elsewhere, and what is left there."""

from typing import Any

import pytest

from sluice.runtime.serve import host_drains, served_jobs
from sluice.runtime.serve.requests import DrainRequest
from sluice.runtime.serve.serve_client import path_of
from tests.kit.served_jobs_bed import PlayedJob, PlayedJobs, Service
from tests.kit.waiting import wait_for


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_jobs, "_BUSY_EVERY_S", 0.05)
    monkeypatch.setattr(host_drains, "_POLL_S", 0.01)


def started(played: PlayedJobs, service: Service, uid: str, **facts: Any) -> PlayedJob:
    """A job that the service has heard of."""
    job = played.start_job(uid, host=facts.pop("driver", "driver-1"))
    for name, value in facts.items():
        setattr(job, name, value)
    with service.client() as client:
        wait_for(
            lambda: any(
                each["job_uid"] == uid and each["lag_records"] == 7
                for each in client.get("/v1/jobs")["jobs"]
            )
        )
    return job


def drained(service: Service, host: str) -> dict[str, Any]:
    with service.client() as client:
        found = client.post(path_of("hosts", host, "drain"), DrainRequest(timeout_s=300.0))
        request_id = found["request_id"]

        def ended() -> dict[str, Any] | None:
            found = client.get(path_of("drains", request_id))
            return None if found["state"] == "running" else found

        report = wait_for(ended)
        assert report is not None
        return report


def test_hosts_and_the_jobs_on_one(played: PlayedJobs, service: Service) -> None:
    started(played, service, "a", executors={"w1": 2, "w2": 1}, regions={"r1": "w1", "r2": "w2"})
    started(played, service, "b", executors={"w2": 1}, regions={"r": None}, driver="w1")
    with service.client() as client:
        hosts = {each["host"]: each for each in client.get("/v1/hosts")["hosts"]}
        assert hosts["w1"] == {"host": "w1", "executors": 2, "drivers": 1, "jobs": ["a", "b"]}
        assert (hosts["w2"]["executors"], hosts["driver-1"]["drivers"]) == (2, 1)
        found = client.get("/v1/hosts/w1/jobs")
    assert found["unknown"] == []
    assert {each["job_uid"]: each["regions"] for each in found["jobs"]} == {"a": ["r1"], "b": []}
    assert [each["job_uid"] for each in found["jobs"] if each["is_driver"]] == ["b"]


def test_a_drain_takes_a_full_checkpoint_and_restarts_what_runs_there(
    played: PlayedJobs, service: Service
) -> None:
    job = started(
        played,
        service,
        "a",
        executors={"w1": 2, "w2": 1},
        regions={"r1": "w1", "r2": "w2", "q": None},
    )
    other = started(played, service, "b", executors={"w2": 1}, regions={"r": "w2"})
    report = drained(service, "w1")
    assert report["state"] == "drained"
    assert report["left"] == []
    assert [(each["job_uid"], each["state"]) for each in report["jobs"]] == [("a", "moved")]
    (savepoint, restart) = job.told
    assert (savepoint[0], savepoint[1]["kind"]) == ("/v1/savepoints", "full")
    assert restart[0] == "/v1/regions/restart"
    assert (restart[1]["regions"], restart[1]["exclude_hosts"]) == (["r1", "q"], ["w1"])
    assert job.regions["r1"] == "w2"
    assert other.told == []
    assert drained(service, "w1")["state"] == "drained"  # again: nothing is left to do
    assert len(job.told) == 2


def test_nothing_restarts_after_a_failed_full_checkpoint(
    played: PlayedJobs, service: Service
) -> None:
    job = started(played, service, "a", executors={"w1": 1, "w2": 1}, regions={"r": "w1"})
    job.fails_savepoints = True
    report = drained(service, "w1")
    assert report["state"] == "incomplete"
    assert "no room" in report["jobs"][0]["error"]
    assert report["left"] == [{"job_uid": "a", "what": "executors"}]
    assert [path for path, _ in job.told] == ["/v1/savepoints"]


def test_a_drain_tells_what_cannot_move(played: PlayedJobs, service: Service) -> None:
    """The driver, the last executor of a job, and a job that does not answer."""
    started(played, service, "driver", driver="w1")
    started(played, service, "last", executors={"w1": 1}, regions={"r": "w1"})
    hanging = started(played, service, "hanging", executors={"w1": 1})
    hanging.hangs.clear()
    try:
        report = drained(service, "w1")
    finally:
        hanging.hangs.set()
    assert report["state"] == "incomplete"
    left = {(each["job_uid"], each["what"]) for each in report["left"]}
    assert left == {("driver", "driver"), ("last", "executors"), ("hanging", "not known")}
    errors = {each["job_uid"]: each["error"] for each in report["jobs"]}
    assert "no executor would be left" in errors["last"]


def test_a_host_is_drained_once_at_a_time(played: PlayedJobs, service: Service) -> None:
    job = started(played, service, "a", executors={"w1": 1, "w2": 1}, regions={"r": "w1"})
    job.hangs.clear()
    try:
        with service.client() as client:
            first = client.post("/v1/hosts/w1/drain", DrainRequest())
            assert client.post("/v1/hosts/w1/drain", DrainRequest()) == first | {
                "jobs": client.get(path_of("drains", first["request_id"]))["jobs"]
            }
    finally:
        job.hangs.set()
