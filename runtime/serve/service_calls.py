"""The calls of the service, as the table from which routes and document follow."""

from collections.abc import Mapping
from typing import Any

from sluice.runtime.serve.host_drains import HostDrains
from sluice.runtime.serve.openapi import Call
from sluice.runtime.serve.requests import (
    DrainRequest,
    RestartRequest,
    SavepointRequest,
    StopRequest,
    SubmitRequest,
)
from sluice.runtime.serve.served_jobs import ServedJobs
from sluice.runtime.serve.submissions import Submissions

__all__ = ["service_calls"]

_COMMAND_S = 60.0
_JOB = "/v1/jobs/{job_uid}"
_HOST = "/v1/hosts/{host}"
_SUBMISSION = "/v1/submissions/{submission_id}"


def service_calls(jobs: ServedJobs, drains: HostDrains, submissions: Submissions) -> list[Call]:
    """All calls that need the token."""
    return [
        *_views(jobs),
        *_commands(jobs),
        *_host_calls(drains),
        *_submission_calls(submissions),
    ]


def _views(jobs: ServedJobs) -> list[Call]:
    def history(job_uid: str, checkpoints: int | None) -> Mapping[str, Any]:
        return jobs.history(job_uid, checkpoints=checkpoints)

    def suspended(job_uid: str) -> Mapping[str, Any]:
        regions = (jobs.job(job_uid)["status"] or {"regions": ()})["regions"]
        found = [each for each in regions if each["suspended"]]
        return {"suspended": [{"region": e["region"], **e["suspended"]} for e in found]}

    return [
        _get("/v1/jobs", "Running and past jobs", jobs.jobs),
        _get(_JOB, "One job, with all details", jobs.job),
        Call(
            method="GET",
            path=f"{_JOB}/history",
            summary="Its checkpoints, attempts, savepoints, runs and samples",
            run=history,
            query={"checkpoints": "only the newest so many checkpoints"},
        ),
        _get(f"{_JOB}/suspended", "Its suspended regions", suspended),
    ]


def _commands(jobs: ServedJobs) -> list[Call]:
    def stop(job_uid: str, body: StopRequest) -> Mapping[str, Any]:
        with jobs.commanded(job_uid) as client:
            return client.stop(drain=body.drain, savepoint=body.savepoint, to=body.to)

    def savepoint(job_uid: str, body: SavepointRequest) -> Mapping[str, Any]:
        with jobs.commanded(job_uid) as client:
            return client.savepoint(body.to, kind=body.kind)

    def savepoints(job_uid: str) -> Mapping[str, Any]:
        with jobs.commanded(job_uid) as client:
            return {"savepoints": list(client.savepoints())}

    def restart(job_uid: str, body: RestartRequest) -> Mapping[str, Any]:
        with jobs.commanded(job_uid) as client:
            return client.restart(
                body.regions, exclude_hosts=body.exclude_hosts, timeout_s=_COMMAND_S
            )

    taken = "Savepoints, full checkpoints and stops that were requested in this run"
    return [
        _post(f"{_JOB}/stop", "Request its end after a last checkpoint", stop, StopRequest),
        _get(f"{_JOB}/savepoints", taken, savepoints),
        _post(
            f"{_JOB}/savepoints",
            "Request a savepoint or a full checkpoint",
            savepoint,
            SavepointRequest,
        ),
        _post(
            f"{_JOB}/restart", "Restart regions from their last checkpoint", restart, RestartRequest
        ),
    ]


def _host_calls(drains: HostDrains) -> list[Call]:
    def drain(host: str, body: DrainRequest) -> Mapping[str, Any]:
        return drains.start(host, timeout_s=body.timeout_s)

    moves = "Move the work of all jobs off a host; answers at once"
    return [
        _get("/v1/hosts", "Hosts of all jobs", drains.hosts),
        _get(f"{_HOST}/jobs", "Jobs on one host", drains.jobs_on),
        _post(f"{_HOST}/drain", moves, drain, DrainRequest),
        _get("/v1/drains/{request_id}", "Progress of a drain", drains.report),
    ]


def _submission_calls(submissions: Submissions) -> list[Call]:
    def submit(body: SubmitRequest) -> Mapping[str, Any]:
        return submissions.submit(body)

    starts = "Start a Python program with spark-submit"
    return [
        _get("/v1/submissions", "Submissions", submissions.reports),
        _post("/v1/submissions", starts, submit, SubmitRequest),
        _get(_SUBMISSION, "One submission", submissions.report),
        Call(
            method="GET",
            path=f"{_SUBMISSION}/log",
            summary="The last MiB of its output",
            run=submissions.log_of,
            media="text/plain",
        ),
    ]


def _get(path: str, summary: str, run: Any) -> Call:  # noqa: ANN401 - a function
    return Call(method="GET", path=path, summary=summary, run=run)


def _post(path: str, summary: str, run: Any, body: type) -> Call:  # noqa: ANN401 - a function
    return Call(method="POST", path=path, summary=summary, run=run, body=body)
