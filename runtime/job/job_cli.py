"""``sluice job``: shows a job from its checkpoint directory, and sends commands to a running job.

It needs only the directory; for HDFS it starts a JVM from PySpark's jars.
"""

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from sluice.runtime.checkpoint.inspect.checkpoint_cli import app as checkpoint_app
from sluice.runtime.checkpoint.inspect.checkpoint_opening import command_store, split_slot
from sluice.runtime.checkpoint.inspect.inspection import find_slot
from sluice.runtime.cli_output import (
    AsJson,
    CheckpointPath,
    LastSavepoint,
    OptionalSavepoint,
    print_json,
)
from sluice.runtime.graph.graph_view import view_of_record
from sluice.runtime.history.history_cli import print_history
from sluice.runtime.history.history_file import read_history
from sluice.runtime.job.running_job import await_end, await_request, running_job, written_as
from sluice.runtime.process.host_clock import wall_ms
from sluice.runtime.spark.state.inspect_command import inspect_checkpoint
from sluice.runtime.storage.file_system_opening import absolute_uri

__all__ = ["app", "checkpoint_app"]

app = typer.Typer(help="Show a job, restart its regions, and stop it.", no_args_is_help=True)

_ENDED_S = 1.0  # a job whose address refuses connections for so long has ended
_COMMAND_S = 60.0

_Running = Annotated[
    str, typer.Argument(metavar="PATH", help="Checkpoint directory of a running job.")
]


@app.callback()
def _group() -> None:
    """Show a job, restart its regions, and stop it."""


@app.command()
def graph(
    path: CheckpointPath,
    checkpoint_id: Annotated[
        int | None,
        typer.Option(
            "--id", min=0, help="Checkpoint id. Default: that of PATH, else the newest decision."
        ),
    ] = None,
    *,
    mermaid: Annotated[
        bool, typer.Option("--mermaid", help="Print a Mermaid flowchart, for documents.")
    ] = False,
) -> None:
    """Show sources, functions, sinks, edges and regions."""
    uri, named = split_slot(path)
    with command_store(uri) as store:
        place = find_slot(store, checkpoint_id if checkpoint_id is not None else named)
    assert place.record is not None  # `find_slot` raises if it cannot be read
    view = view_of_record(place.record)
    if mermaid:
        typer.echo(view.mermaid())
        return
    typer.echo(f"{place.record.job_name}, checkpoint {place.checkpoint_id} ({place.standing})\n")
    typer.echo(view.text())


@app.command()
def status(
    path: _Running,
    *,
    as_json: AsJson = False,
) -> None:
    """Show a running job: its regions with lag, pressure and attempts."""
    with running_job(path) as client:
        found = client.status()
    if as_json:
        print_json(found)
        return
    job = found["job"]
    typer.echo(
        f"{job['state']}, last decided {job['last_decided']}, "
        f"last committed {job['last_committed']}"
    )
    if election := job["election"]:
        typer.echo(_election_line(election))
    if waiting := job["waiting_for_resources"]:
        typer.echo(f"needs {waiting['needed']} cores, has {waiting['present']}")
    for pending in job["pending"]:
        if pending["age_s"] is not None:
            typer.echo(
                f"pending: checkpoint {pending['checkpoint_id']}, {pending['state']}, "
                f"{pending['age_s']:.0f} s since its barrier"
            )
    for operator, totals in job["counters"].items():
        typer.echo(f"{operator}: {', '.join(f'{name}={n:,}' for name, n in totals.items())}")
    for line in () if job["time"] is None else _time_lines(job["time"], now_ms=wall_ms()):
        typer.echo(line)
    for region in job["regions"]:
        typer.echo(_line_of(region))
        for reason in _reasons_of(region):
            typer.echo(f"  {reason}")


@app.command()
def history(
    path: CheckpointPath,
    *,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="The newest entries of each kind to show.")
    ] = 20,
    as_json: AsJson = False,
) -> None:
    """Show past runs, attempts, savepoints and checkpoints of a job, running or not."""
    uri, _ = split_slot(path)
    with command_store(uri) as store:
        found = read_history(store.fs)
    newest = {part: list(entries)[-limit:] for part, entries in found.items()}
    print_json(newest) if as_json else print_history(newest)


@app.command()
def restart(
    path: _Running,
    region: Annotated[
        list[str] | None,
        typer.Option(
            "--region", help="Region to restart; repeatable. Default: all suspended regions."
        ),
    ] = None,
    exclude_host: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude-host",
            help="End Spark's executors on this host and start none there, for the whole "
            "session; repeatable.",
        ),
    ] = None,
) -> None:
    """Restart regions of a running job from their last checkpoint."""
    with running_job(path) as client:
        done = client.restart(region or (), exclude_hosts=exclude_host or (), timeout_s=_COMMAND_S)
    typer.echo(f"restarted: {', '.join(done['regions'])}")
    if exclude_host:
        typer.echo(f"ended executors on excluded hosts: {done['executors_ended']}")


@app.command(cls=OptionalSavepoint)
def stop(
    path: _Running,
    *,
    savepoint: LastSavepoint = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="First read to the present end of all sources.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            min=0.001,
            help="Seconds for the last checkpoint; after that the job continues. Default: "
            "timeout_s of the job.",
        ),
    ] = None,
) -> None:
    """Stop a running job after a last checkpoint; a second stop ends it at once.

    Its last line is the savepoint's path, if there is one.
    """
    with running_job(path, answer_s=_ENDED_S) as client:
        request = client.stop(
            drain=drain,
            savepoint=savepoint is not None,
            to=absolute_uri(savepoint) if savepoint else None,
            stop_within_s=timeout,
            timeout_s=_COMMAND_S,
        )
        typer.echo("stopping after a last checkpoint")
        end = await_end(path, client, request)
    if end.suspended:
        typer.echo(f"suspended regions, with their last snapshot: {', '.join(end.suspended)}")
    typer.echo("stopped")
    if end.savepoint is not None:
        typer.echo(written_as(savepoint or path, end.savepoint))


checkpoint_app.command("inspect")(inspect_checkpoint)


@checkpoint_app.command("full")
def full_checkpoint(path: _Running) -> None:
    """Write a full checkpoint of a running job; its last line is the path."""
    with running_job(path) as client:
        request = client.savepoint(kind="full", timeout_s=_COMMAND_S)
        found = await_request(client, request["request_id"])
    if found["suspended"]:
        typer.echo(f"suspended regions, with their last snapshot: {', '.join(found['suspended'])}")
    typer.echo(written_as(path, found["uri"]))


def _election_line(election: Mapping[str, Any]) -> str:
    leader = election["leader"]
    standbys = ", ".join(map(_process, election["standbys"])) or "none"
    if leader is None:
        return f"no leader ({election['way']}), standbys: {standbys}"
    return (
        f"leader {_process(leader['candidate'])} ({election['way']}), term {leader['term']}, "
        f"session {leader['session_id']}, standbys: {standbys}"
    )


def _process(candidate: Mapping[str, Any]) -> str:
    return f"{candidate['role']} {candidate['pid']} on {candidate['host']}"


def _line_of(region: Mapping[str, Any]) -> str:
    lag = "-" if region["lag_records"] is None else f"{region['lag_records']:,}"
    age = region["snapshot_age_s"]
    return (
        f"{region['region']}  {_state_of(region)}  lag={lag} records  "
        f"snapshot={'-' if age is None else f'{age:.0f} s old'}  "
        f"pressure={region['pressure'] or '-'}{' (alarm)' if region['has_alarm'] else ''}  "
        f"ended attempts={region['ended']}"
    )


def _time_lines(time: Mapping[str, Any], *, now_ms: int) -> Iterator[str]:
    yield f"watermark: {_against_clock(time['watermark_ms'], now_ms)}"
    if time["slowest"] is not None:
        where = f"{time['slowest']} of region {time['slowest_region']}"
        yield f"  slowest split: {where}, {_against_clock(time['slowest_ms'], now_ms)}"
    for kind in ("idle", "paused"):
        if time[kind]:
            yield f"  {kind} splits: {', '.join(time[kind])}"


def _against_clock(ms: int | None, now_ms: int) -> str:
    """A moment, and how far it is from now: a watermark may be ahead of the clock."""
    if ms is None:
        return "none yet"
    away = f"{abs(now_ms - ms) / 1000:,.0f} s {'ago' if ms <= now_ms else 'ahead of the clock'}"
    try:
        moment = dt.datetime.fromtimestamp(ms / 1000, dt.UTC)
    except (OverflowError, ValueError):  # a year beyond 9999
        return f"{ms} ms ({away})"
    return f"{moment.isoformat(timespec='seconds')} ({away})"


def _state_of(region: Mapping[str, Any]) -> str:
    if region["suspended"] is not None:
        return "suspended"
    return "running" if region["is_open"] else "restarting"


def _reasons_of(region: Mapping[str, Any]) -> Iterator[str]:
    if region["suspended"] is not None:
        yield f"suspended: {region['suspended']['why']}"
    if region["lost_records"]:
        yield f"deleted by retention before they were read: {region['lost_records']:,} records"
    if region["late_rows"]:
        yield f"later than the watermark since the start: {region['late_rows']:,} rows"
    if region["attempts"] and region["suspended"] is None:
        yield f"last attempt ended: {region['attempts'][-1]['why']}"
