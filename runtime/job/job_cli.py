"""``sluice job``: shows a job from its checkpoint directory, and sends commands to a running job.

It needs only the directory; for HDFS it starts a JVM from PySpark's jars.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from sluice.runtime.checkpoint.inspect.checkpoint_opening import DROP_IN, command_store, split_slot
from sluice.runtime.checkpoint.inspect.inspection import find_slot
from sluice.runtime.cli_output import AsJson, CheckpointPath, print_json
from sluice.runtime.errors import ConfigError, UnreachableError
from sluice.runtime.graph.graph_view import view_of_record
from sluice.runtime.service.service_client import CoordinatorClient, command_address

__all__ = ["app"]

app = typer.Typer(help="Show a job, and restart its regions.", no_args_is_help=True)

_ANSWER_S = 5.0
_COMMAND_S = 60.0

_Running = Annotated[
    str, typer.Argument(metavar="PATH", help="Checkpoint directory of a running job.")
]


@app.callback()
def _group() -> None:
    """Show a job, and restart its regions."""


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
    with _running(path) as client:
        found = client.status()
    if as_json:
        print_json(found)
        return
    job = found["job"]
    typer.echo(
        f"{job['state']}, last decided {job['last_decided']}, "
        f"last committed {job['last_committed']}"
    )
    for pending in job["pending"]:
        if pending["age_s"] is not None:
            typer.echo(
                f"pending: checkpoint {pending['checkpoint_id']}, {pending['state']}, "
                f"{pending['age_s']:.0f} s since its barrier"
            )
    for operator, totals in job["counters"].items():
        typer.echo(f"{operator}: {', '.join(f'{name}={n:,}' for name, n in totals.items())}")
    for region in job["regions"]:
        typer.echo(_line_of(region))
        for reason in _reasons_of(region):
            typer.echo(f"  {reason}")


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
    with _running(path) as client:
        done = client.restart(region or (), exclude_hosts=exclude_host or (), timeout_s=_COMMAND_S)
    typer.echo(f"restarted: {', '.join(done['regions'])}")
    if exclude_host:
        typer.echo(f"ended executors on excluded hosts: {done['executors_ended']}")


@contextlib.contextmanager
def _running(path: str) -> Iterator[CoordinatorClient]:
    """A client of the job that runs with this checkpoint directory.

    Raises:
        UnreachableError: no job runs with it.
        ConfigError: the directory belongs to a drop-in query.
        AuthenticationError: the job belongs to another user.
    """
    with command_store(split_slot(path)[0]) as store:
        below = f"/{DROP_IN}"
        if store.fs.uri.endswith(below) and not path.rstrip("/").endswith(below):
            raise ConfigError(
                "this is a Spark query with a drop-in sink, not a job",
                {"path": path},
                "Watch and stop it with Spark: query.lastProgress, Spark's pages, query.stop(). "
                "`sluice checkpoint list` shows its decisions.",
            )
        address = command_address(store.fs)
    with CoordinatorClient(address, deadline_s=_ANSWER_S) as client:
        try:
            yield client
        except UnreachableError as err:
            what, where, remedy = err.args
            raise UnreachableError(
                f"the job does not answer: {what}", {**where, "path": path}, remedy
            ) from err


def _line_of(region: Mapping[str, Any]) -> str:
    lag = "-" if region["lag_records"] is None else f"{region['lag_records']:,}"
    age = region["snapshot_age_s"]
    return (
        f"{region['region']}  {_state_of(region)}  lag={lag} records  "
        f"snapshot={'-' if age is None else f'{age:.0f} s old'}  "
        f"pressure={region['pressure'] or '-'}{' (alarm)' if region['has_alarm'] else ''}  "
        f"ended attempts={region['ended']}"
    )


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
        yield f"later than the watermark, dropped since the start: {region['late_rows']:,} rows"
    if region["attempts"] and region["suspended"] is None:
        yield f"last attempt ended: {region['attempts'][-1]['why']}"
