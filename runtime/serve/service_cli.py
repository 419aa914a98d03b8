"""``sluice service``: commands that speak to ``sluice serve``."""

import contextlib
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from sluice.runtime.cli_output import (
    AsJson,
    LastSavepoint,
    OptionalSavepoint,
    print_facts,
    print_json,
    print_table,
)
from sluice.runtime.errors import ConfigError, StreamError, WaitedTooLongError
from sluice.runtime.serve.requests import (
    DrainRequest,
    RestartRequest,
    SavepointRequest,
    StopRequest,
    SubmitRequest,
)
from sluice.runtime.serve.serve_client import ServeClient, path_of
from sluice.runtime.serve.serve_server import read_token, state_directory

__all__ = ["app"]

app = typer.Typer(help="Command jobs through `sluice serve`.", no_args_is_help=True)

_POLL_S = 0.5
_ENDED = ("finished", "stopped", "failed", "fenced", "lost")

_Url = Annotated[
    str,
    typer.Option("--url", envvar="SLUICE_SERVICE_URL", help="Address of the service."),
]
_TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        envvar="SLUICE_SERVICE_TOKEN_FILE",
        help="File with its token. Default: the one that this user's service made.",
    ),
]
_CaFile = Annotated[
    str | None,
    typer.Option(
        "--ca-file",
        envvar="SLUICE_SERVICE_CA_FILE",
        help="Authority of its certificate, PEM. Default: the system's.",
    ),
]
_JobUid = Annotated[str, typer.Argument(metavar="JOB", help="Job uid, or a unique name.")]
_To = Annotated[
    str | None,
    typer.Option("--to", help="Parent directory. Default: below the checkpoint directory."),
]
_Timeout = Annotated[
    float, typer.Option("--timeout", min=1, metavar="SECONDS", help="For each step of a job.")
]
_NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait for the end.")]
_URL = "http://127.0.0.1:8080"


@app.callback()
def _group() -> None:
    """Command jobs through `sluice serve`."""


@app.command()
def jobs(
    url: _Url = _URL,
    token_file: _TokenFile = None,
    ca_file: _CaFile = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List running and past jobs."""
    with _client(url, token_file, ca_file) as client:
        found = client.get(path_of("jobs"))
    if as_json:
        print_json(found)
        return
    if found["registry_error"] is not None:
        typer.echo(f"The registry cannot be read: {found['registry_error']}", err=True)
    columns = ("job_uid", "name", "state", "lag_records", "last_committed", "host", "started_ms")
    heads = ("job", "name", "state", "lag", "committed", "host", "started")
    print_table(heads, [_row(each, columns) for each in found["jobs"]], title="Jobs")


@app.command()
def job(
    job_uid: _JobUid,
    url: _Url = _URL,
    token_file: _TokenFile = None,
    ca_file: _CaFile = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show one job and its regions."""
    with _client(url, token_file, ca_file) as client:
        found = client.get(path_of("jobs", _uid(client, job_uid)))
    if as_json:
        print_json(found)
        return
    flat = {name: each for name, each in found.items() if not isinstance(each, dict | list)}
    print_facts({name.removesuffix("_ms"): _shown(name, each) for name, each in flat.items()})
    if found["status"]:
        heads = ("region", "state", "lag", "pressure", "ended attempts")
        rows = [
            [e["region"], _state_of(e), *map(e.get, ("lag_records", "pressure", "ended"))]
            for e in found["status"]["regions"]
        ]
        print_table(heads, rows, title="Regions")


@app.command()
def history(
    job_uid: _JobUid,
    url: _Url = _URL,
    token_file: _TokenFile = None,
    ca_file: _CaFile = None,
) -> None:
    """Print checkpoints, attempts, savepoints, runs and samples of a job as JSON."""
    with _client(url, token_file, ca_file) as client:
        print_json(client.get(path_of("jobs", _uid(client, job_uid), "history")))


@app.command()
def submit(
    entry_point: Annotated[
        str, typer.Argument(help="Python file, relative to the submit directory.")
    ],
    args: Annotated[list[str] | None, typer.Argument(help="Its arguments, after `--`.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="Of spark-submit: master=local[2]; repeatable."),
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option("--conf", help="spark.name=value; repeatable.")
    ] = None,
    env: Annotated[list[str] | None, typer.Option("--env", help="NAME=value; repeatable.")] = None,
    url: _Url = _URL,
    token_file: _TokenFile = None,
    ca_file: _CaFile = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Start a program of the submit directory with spark-submit."""
    body = SubmitRequest(
        entry_point=entry_point,
        args=tuple(args or ()),
        options=_pairs("--option", option),
        conf=_pairs("--conf", conf),
        env=_pairs("--env", env),
        submission_id=secrets.token_hex(8),
    )
    with _client(url, token_file, ca_file) as client:
        found = client.post(path_of("submissions"), body)
    if as_json:
        print_json(found)
    else:
        typer.echo(found["submission_id"])


@app.command()
def submissions(
    url: _Url = _URL,
    token_file: _TokenFile = None,
    ca_file: _CaFile = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List submitted programs and their exit codes."""
    with _client(url, token_file, ca_file) as client:
        found = client.get(path_of("submissions"))
    if as_json:
        print_json(found)
        return
    columns = ("submission_id", "entry_point", "state", "exit_code", "submitted_ms")
    heads = ("submission", "entry point", "state", "exit code", "submitted")
    print_table(heads, [_row(each, columns) for each in found["submissions"]], title="Submissions")


@app.command("log")
def log_of(
    submission_id: Annotated[str, typer.Argument(metavar="SUBMISSION", help="Submission id.")],
    url: _Url = _URL,
    token_file: _TokenFile = None,
    ca_file: _CaFile = None,
) -> None:
    """Print the last MiB of a program's output."""
    with _client(url, token_file, ca_file) as client:
        typer.echo(client.text(path_of("submissions", submission_id, "log")), nl=False)


@app.command(cls=OptionalSavepoint)
def stop(
    job_uid: _JobUid,
    *,
    savepoint: LastSavepoint = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="First read to the present end of all sources.")
    ] = False,
    timeout: _Timeout = 600.0,
    no_wait: _NoWait = False,
    url: _Url = _URL,
    token_file: _TokenFile = None,
    ca_file: _CaFile = None,
) -> None:
    """Stop a job after a last checkpoint; its last line is the savepoint's URI, if there is one."""
    with _client(url, token_file, ca_file) as client:
        uid = _uid(client, job_uid)
        body = StopRequest(drain=drain, savepoint=savepoint is not None, to=savepoint or None)
        requested = client.post(path_of("jobs", uid, "stop"), body)
        if not no_wait:
            _await_stopped(client, uid, requested, timeout)


@app.command("savepoint")
def savepoint_of(
    job_uid: _JobUid,
    *,
    to: _To = None,
    full: Annotated[
        bool, typer.Option("--full", help="A full checkpoint, which retention may delete.")
    ] = False,
    timeout: _Timeout = 600.0,
    no_wait: _NoWait = False,
    url: _Url = _URL,
    token_file: _TokenFile = None,
    ca_file: _CaFile = None,
) -> None:
    """Take a savepoint or a full checkpoint; print its URI."""
    with _client(url, token_file, ca_file) as client:
        uid = _uid(client, job_uid)
        body = SavepointRequest(kind="full" if full else "savepoint", to=to)
        requested = client.post(path_of("jobs", uid, "savepoints"), body)
        if no_wait:
            typer.echo(requested["request_id"])
        else:
            typer.echo(_await_savepoint(client, uid, requested["request_id"], timeout)["uri"])


@app.command()
def savepoints(
    job_uid: _JobUid,
    url: _Url = _URL,
    token_file: _TokenFile = None,
    ca_file: _CaFile = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List savepoints and full checkpoints that were requested in this run."""
    with _client(url, token_file, ca_file) as client:
        found = client.get(path_of("jobs", _uid(client, job_uid), "savepoints"))
    if as_json:
        print_json(found)
        return
    columns = ("request_id", "kind", "state", "checkpoint_id", "bytes", "uri", "error")
    rows = [_row(each, columns) for each in found["savepoints"]]
    print_table(columns, rows, title="Savepoints and full checkpoints of this run")


@app.command()
def restart(
    job_uid: _JobUid,
    region: Annotated[
        list[str] | None,
        typer.Option("--region", help="Repeatable. Default: all suspended regions."),
    ] = None,
    exclude_host: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude-host",
            help="End Spark's executors on this host and start none there, for the whole "
            "session; repeatable.",
        ),
    ] = None,
    url: _Url = _URL,
    token_file: _TokenFile = None,
    ca_file: _CaFile = None,
) -> None:
    """Restart regions of a job from their last checkpoint."""
    body = RestartRequest(regions=tuple(region or ()), exclude_hosts=tuple(exclude_host or ()))
    with _client(url, token_file, ca_file) as client:
        done = client.post(path_of("jobs", _uid(client, job_uid), "restart"), body)
    typer.echo(f"restarted: {', '.join(done['regions'])}")


@app.command()
def suspended(
    job_uid: _JobUid,
    url: _Url = _URL,
    token_file: _TokenFile = None,
    ca_file: _CaFile = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List the suspended regions of a job."""
    with _client(url, token_file, ca_file) as client:
        found = client.get(path_of("jobs", _uid(client, job_uid), "suspended"))
    if as_json:
        print_json(found)
        return
    columns = ("region", "since_ms", "why")
    rows = [_row(each, columns) for each in found["suspended"]]
    print_table(("region", "since", "why"), rows, title="Suspended regions")


@app.command()
def hosts(
    host: Annotated[str | None, typer.Argument(help="Show the jobs on this host.")] = None,
    url: _Url = _URL,
    token_file: _TokenFile = None,
    ca_file: _CaFile = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List the hosts of all jobs, or the jobs on one host."""
    with _client(url, token_file, ca_file) as client:
        path = path_of("hosts") if host is None else path_of("hosts", host, "jobs")
        found = client.get(path)
    if as_json:
        print_json(found)
        return
    columns = (
        ("host", "drivers", "executors", "jobs")
        if host is None
        else ("job_uid", "is_driver", "executors", "regions")
    )
    rows = found["hosts"] if host is None else found["jobs"]
    print_table([name.replace("_", " ") for name in columns], [_row(e, columns) for e in rows])
    if found["unknown"]:
        typer.echo(f"jobs that do not answer: {', '.join(found['unknown'])}", err=True)


@app.command("drain-host")
def drain_host(
    host: Annotated[str, typer.Argument(help="Spark's name of the host.")],
    *,
    timeout: _Timeout = 600.0,
    no_wait: _NoWait = False,
    url: _Url = _URL,
    token_file: _TokenFile = None,
    ca_file: _CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Move the work of all jobs off a host. Exit code 1: something still runs there."""
    with _client(url, token_file, ca_file) as client:
        found = client.post(path_of("hosts", host, "drain"), DrainRequest(timeout_s=timeout))
        while found["state"] == "running" and not no_wait:
            time.sleep(_POLL_S)  # the service has no call that waits
            found = client.get(path_of("drains", found["request_id"]))
    if as_json:
        print_json(found)
    else:
        typer.echo(f"{found['host']}: {found['state']}")
        columns = ("job_uid", "name", "state", "full_checkpoint", "regions", "error")
        print_table(columns, [_row(each, columns) for each in found["jobs"]])
        for each in found["left"]:
            typer.echo(f"left there: {each['what']} of job {each['job_uid']}")
    if found["state"] == "incomplete":
        raise typer.Exit(1)


# --- inside ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def _client(url: str, token_file: Path | None, ca_file: str | None) -> Iterator[ServeClient]:
    token = read_token(token_file or state_directory() / "service-token")
    with ServeClient(url, token, ca_file=ca_file) as client:
        yield client


def _uid(client: ServeClient, given: str) -> str:
    """The uid of a job that is named by its uid, or by a name that one running job has."""
    found = client.get(path_of("jobs"))["jobs"]
    if any(each["job_uid"] == given for each in found):
        return given
    named = [each for each in found if each["name"] == given]
    running = [each for each in named if each["ended_ms"] is None] or named
    if len(running) > 1:
        raise ConfigError(
            "several jobs have this name",
            {"name": given, "job_uids": ",".join(each["job_uid"] for each in running)},
            "Give the uid of one.",
        )
    return str(running[0]["job_uid"]) if running else given


def _await_savepoint(
    client: ServeClient, uid: str, request_id: str, timeout_s: float
) -> Mapping[str, Any]:
    for _ in _until(timeout_s, "savepoint", uid):
        entry = _requested(client, uid, request_id)
        if entry is None or entry["state"] == "failed":
            raise _not_taken(uid, "the job was restarted" if entry is None else entry["error"])
        if entry["state"] == "completed":
            return entry
    raise AssertionError("unreachable")


def _await_stopped(
    client: ServeClient, uid: str, requested: Mapping[str, Any], timeout_s: float
) -> None:
    """Until the job has ended; then print its state, and last the savepoint's URI."""
    last = requested
    for _ in _until(timeout_s, "end", uid):
        with contextlib.suppress(StreamError):  # it may have ended
            last = _requested(client, uid, requested["request_id"]) or last
        if last.get("state") == "failed":
            raise _not_taken(uid, last["error"])
        summary = client.get(path_of("jobs", uid))
        has_history = summary["ended_ms"] is not None  # written before the end is registered
        if summary["state"] in _ENDED and has_history:
            typer.echo(f"{summary['state']}{': ' + summary['error'] if summary['error'] else ''}")
            if summary["state"] not in ("finished", "stopped"):
                raise typer.Exit(1)
            if last.get("state") != "completed":
                last = _left_by(client, summary, last)
            if last.get("uri"):
                typer.echo(last["uri"])
            return


def _left_by(
    client: ServeClient, summary: Mapping[str, Any], request: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The stop of a job that ended between two polls: another stop may have ended it at once."""
    uid = summary["job_uid"]
    history = client.get(path_of("jobs", uid, "history"))
    known = (e for e in history["savepoints"] if e["request_id"] == request["request_id"])
    found = next(known, request)
    newest: Mapping[str, Any] = next(reversed(history["checkpoints"]), {})
    is_final = newest.get("kind") == "final" and newest.get("verdict") == "decided"
    is_of_this_run = newest.get("ms", 0) >= summary["started_ms"]
    if found.get("state") == "completed" or (
        not request.get("parent") and is_final and is_of_this_run
    ):
        return found
    raise _not_taken(uid, found.get("error") or "the job ended without it")


def _requested(client: ServeClient, uid: str, request_id: str) -> Mapping[str, Any] | None:
    found = client.get(path_of("jobs", uid, "savepoints"))["savepoints"]
    return next((each for each in found if each["request_id"] == request_id), None)


def _not_taken(uid: str, reason: object) -> StreamError:
    return StreamError(
        "the requested checkpoint was not taken",
        {"job_uid": uid, "reason": reason},
        "Repair the cause, and request it again.",
    )


def _until(timeout_s: float, what: str, uid: str) -> Iterator[None]:
    """A round each half second; raises at the end of the time."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        yield
        time.sleep(_POLL_S)  # the service has no call that waits
    raise WaitedTooLongError(
        f"the {what} takes longer than --timeout",
        {"job_uid": uid, "waited_s": timeout_s},
        "Wait: the request continues. `sluice service job` shows the state.",
    )


def _pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    found = {}
    for text in given or ():
        name, sign, value = text.partition("=")
        if not sign:
            raise ConfigError("an option is not of the form name=value", {option: text}, "Add =.")
        found[name] = value
    return found


def _state_of(region: Mapping[str, Any]) -> str:
    """As `sluice job status` says it."""
    if region["suspended"]:
        return "suspended"
    return "running" if region["is_open"] else "restarting"


def _row(entry: Mapping[str, Any], columns: Sequence[str]) -> list[object]:
    return [_shown(name, entry.get(name)) for name in columns]


def _shown(name: str, value: object) -> object:
    if name.endswith("_ms") and isinstance(value, int):
        return f"{datetime.fromtimestamp(value / 1000, tz=UTC):%Y-%m-%d %H:%M:%SZ}"
    return value
