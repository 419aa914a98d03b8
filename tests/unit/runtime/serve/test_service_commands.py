"""``sluice service``: each command speaks to a service, and says what is wrong."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from sluice.runtime.errors import (
    ConfigError,
    StreamError,
    UnreachableError,
    WrongServiceError,
)
from sluice.runtime.history.history_file import HISTORY_FILE, HistoryMembers
from sluice.runtime.process.host_clock import wall_ms
from sluice.runtime.serve import served_jobs, service_cli
from sluice.runtime.serve.service_cli import app
from tests.kit.registered_jobs import a_registration
from tests.kit.served_jobs_bed import TOKEN, PlayedJob, PlayedJobs, Service
from tests.kit.waiting import wait_for


@pytest.fixture(autouse=True)
def environment(
    monkeypatch: pytest.MonkeyPatch, service: Service, tmp_path: Path
) -> pytest.MonkeyPatch:
    (tmp_path / "token").write_text(TOKEN)
    monkeypatch.setenv("SLUICE_SERVICE_URL", service.server.address)
    monkeypatch.setenv("SLUICE_SERVICE_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setattr(served_jobs, "_BUSY_EVERY_S", 0.05)
    monkeypatch.setattr(service_cli, "_POLL_S", 0.01)
    return monkeypatch


@pytest.fixture
def job(played: PlayedJobs) -> PlayedJob:
    made = played.start_job("job-1", name="orders", host="driver-1")
    made.executors, made.regions = {"w1": 1, "w2": 1}, {"r1": "w1", "r2": "w2"}
    wait_for(lambda: '"lag_records": 7' in run("jobs", "--json"))
    return made


def run(*arguments: str, code: int = 0) -> str:
    result: Result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def json_of(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


def test_jobs_are_listed_and_one_is_shown_by_its_name(job: PlayedJob) -> None:
    assert "job-1" in run("jobs")
    assert json_of("jobs")["jobs"][0]["name"] == "orders"
    shown = run("job", "orders").splitlines()
    assert [line.split()[:2] for line in shown if " r1 " in line] == [["r1", "running"]]
    assert run("suspended", "orders") == "Suspended regions: none\n"
    assert json_of("job", job.uid)["state"] == "running"
    assert json.loads(run("history", "orders"))["checkpoints"] == [{"checkpoint_id": 3}]


def test_a_savepoint_and_a_full_checkpoint_print_their_uri(job: PlayedJob) -> None:
    assert run("savepoint", "orders", "--to", "file:///to").strip() == "file:///s"
    assert run("savepoint", "orders", "--full").strip() == "file:///s"
    assert run("savepoint", "orders", "--no-wait").strip() == "r2"
    assert [(body["kind"], body["to"]) for _, body in job.told] == [
        ("savepoint", "file:///to"),
        ("full", None),
        ("savepoint", None),
    ]
    assert [each["state"] for each in json_of("savepoints", "orders")["savepoints"]] == [
        "completed"
    ] * 3
    job.fails_savepoints = True
    with pytest.raises(StreamError, match="no room"):
        run("savepoint", "orders")


def test_a_stop_waits_for_the_end_and_prints_the_savepoint(
    job: PlayedJob, played: PlayedJobs, environment: pytest.MonkeyPatch
) -> None:
    job.savepoints.append({"request_id": "stop", "state": "completed", "uri": "file:///s/1"})
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        """The job ends while the command waits."""
        pauses.append(seconds)
        if len(pauses) == 1:
            played.registry.write(a_registration("job-1", state="stopped", ended_ms=wall_ms()))

    environment.setattr("sluice.runtime.serve.service_cli.time.sleep", pause)
    lines = run("stop", "orders", "--drain", "--savepoint", "file:///s").splitlines()
    assert lines == ["stopped", "file:///s/1"]
    (path, body) = job.told[0]
    assert path == "/v1/stop"
    assert (body["drain"], body["savepoint"], body["to"]) == (True, True, "file:///s")


@pytest.mark.parametrize(
    ("part", "entry"),
    [
        ("savepoints", {"request_id": "stop", "state": "completed", "uri": "file:///s/1"}),
        ("checkpoints", {"kind": "final", "state": "marked", "ms": 1_001}),
        ("checkpoints", {"kind": "final", "state": "marked", "ms": 999}),  # of an earlier run
        ("checkpoints", {"kind": "final", "state": "aborted", "ms": 1_001}),
    ],
)
def test_a_stop_that_the_end_of_the_job_overtook_is_judged_by_the_history(
    job: PlayedJob,
    played: PlayedJobs,
    environment: pytest.MonkeyPatch,
    tmp_path: Path,
    part: str,
    entry: dict[str, Any],
) -> None:
    """Another stop may have ended the job at once, before its savepoint was complete."""
    job.savepoints.append({"request_id": "stop", "state": "running", "uri": "file:///s/1"})
    members = HistoryMembers()
    members.add(part, [{"checkpoint_id": 3, "regions": {}, **entry}])
    (tmp_path / "_history").write_bytes(members.content())
    ended = a_registration("job-1", state="finished", ended_ms=wall_ms())
    ended = replace(ended, checkpoint_uri=tmp_path.as_uri())
    environment.setattr(
        "sluice.runtime.serve.service_cli.time.sleep", lambda _: played.registry.write(ended)
    )
    if entry["state"] == "completed":
        assert run("stop", "orders", "--savepoint").splitlines() == ["finished", "file:///s/1"]
    elif entry["state"] == "marked" and entry["ms"] > ended.started_ms:
        assert run("stop", "orders").splitlines()[0] == "finished"
    else:
        with pytest.raises(StreamError, match="was not taken"):
            run("stop", "orders")


def test_a_stop_waits_for_the_history_of_a_job_that_says_finished(
    job: PlayedJob, played: PlayedJobs, environment: pytest.MonkeyPatch
) -> None:
    """A job answers so before it has written its history, which has the savepoint."""
    job.savepoints.append({"request_id": "stop", "state": "running", "uri": ""})
    job.state = "finished"
    wait_for(lambda: json_of("jobs")["jobs"][0]["state"] == "finished")

    def pause(_: float) -> None:
        members = HistoryMembers()
        done = {"request_id": "stop", "state": "completed", "uri": "file:///s/1"}
        members.add("savepoints", [done])
        Path(played.uri, job.uid, HISTORY_FILE).write_bytes(members.content())
        ended = replace(job.registration, state="finished", ended_ms=wall_ms())
        played.registry.write(ended)

    environment.setattr("sluice.runtime.serve.service_cli.time.sleep", pause)
    assert run("stop", "orders", "--savepoint").splitlines() == ["finished", "file:///s/1"]


def test_regions_restart_off_a_host(job: PlayedJob) -> None:
    assert "restarted: r1" in run("restart", "orders", "--region", "r1", "--exclude-host", "w1")
    with pytest.raises(ConfigError, match="no executor would be left"):
        run("restart", "orders", "--region", "r1", "--exclude-host", "w2")
    assert json_of("hosts")["hosts"][0]["host"] == "driver-1"
    assert "job-1" in run("hosts", "w2")


def test_suspended_regions_are_listed(job: PlayedJob) -> None:
    job.suspended = "r2"
    assert json_of("suspended", "orders")["suspended"] == [
        {"region": "r2", "since_ms": 1_000, "why": "poison"}
    ]
    assert "1970-01-01 00:00:01Z" in run("suspended", "orders")


def test_a_host_is_drained_and_the_exit_code_tells_what_is_left(job: PlayedJob) -> None:
    del job
    assert "w1: drained" in run("drain-host", "w1")
    assert "left there: driver of job job-1" in run("drain-host", "driver-1", code=1)
    assert json_of("drain-host", "w1", "--no-wait")["host"] == "w1"


def test_a_program_is_submitted(
    service: Service, tmp_path: Path, environment: pytest.MonkeyPatch
) -> None:
    del service
    spark = tmp_path / "bin" / "spark-submit"
    spark.parent.mkdir()
    spark.write_text('#!/bin/sh\necho "$@"\n')
    spark.chmod(0o700)
    environment.setenv("SPARK_HOME", str(tmp_path))
    (tmp_path / "programs" / "copy.py").touch()
    options = ("--option", "master=local[2]", "--conf", "spark.sql.x=1", "--env", "MODE=a=b")
    submission = run("submit", *options, "copy.py", "--", "--until-end", "x").strip()
    wait_for(lambda: json_of("submissions")["submissions"][0]["state"] == "ended")
    assert submission in run("submissions")
    assert run("log", submission).split()[:4] == ["--master", "local[2]", "--conf", "spark.sql.x=1"]
    with pytest.raises(ConfigError, match="name=value"):
        run("submit", "--conf", "spark.sql.x", "copy.py")


def test_errors_name_the_cause(
    job: PlayedJob, played: PlayedJobs, tmp_path: Path, environment: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="no such job"):
        run("job", "unknown")
    played.start_job("job-2", name="orders")
    wait_for(lambda: len(json_of("jobs")["jobs"]) == 2)
    with pytest.raises(ConfigError, match="several jobs have this name"):
        run("job", "orders")
    with pytest.raises(ConfigError, match="token file cannot be read"):
        run("jobs", "--token-file", str(tmp_path / "absent"))
    (tmp_path / "wrong").write_text("another-token-00000")
    with pytest.raises(WrongServiceError, match="wrong token"):
        run("jobs", "--token-file", str(tmp_path / "wrong"))
    with pytest.raises(UnreachableError, match="no service answers"):
        run("jobs", "--url", "http://127.0.0.1:1")
    job.hangs.clear()
    environment.setattr(service_cli.ServeClient, "__init__", _impatient(service_cli.ServeClient))
    try:
        with pytest.raises(UnreachableError, match="does not answer"):
            run("savepoints", "job-1")
    finally:
        job.hangs.set()


def _impatient(kind: Any) -> Any:
    """The client gives up before the service does."""
    made = kind.__init__

    def init(self: Any, url: str, token: str, **options: Any) -> None:
        made(self, url, token, **(options | {"timeout_s": 0.5}))

    return init
