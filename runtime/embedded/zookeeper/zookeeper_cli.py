"""``sluice zookeeper``: a ZooKeeper on this machine for first steps with high availability."""

from pathlib import Path
from typing import Annotated

import typer

from sluice.runtime.embedded.background import RunningServer, start_once
from sluice.runtime.embedded.cache import state_dir
from sluice.runtime.embedded.ports import LAST_PORT
from sluice.runtime.embedded.server_commands import add_server_commands, serve
from sluice.runtime.embedded.zookeeper.embedded_zookeeper import (
    EmbeddedZooKeeper,
    zookeeper_version,
)

__all__ = ["app"]

_NAME = "zookeeper"

app = typer.Typer(
    help="Start and stop a real ZooKeeper on this machine: one node, or an ensemble.",
    no_args_is_help=True,
)


@app.command()
def start(
    *,
    nodes: Annotated[int, typer.Option(min=1, max=7, help="Nodes of the ensemble.")] = 1,
    port: Annotated[
        int,
        typer.Option(
            min=1,
            max=LAST_PORT - 6,
            help="Client port of the first node; later nodes take the next ones.",
        ),
    ] = 2181,
    data_dir: Annotated[
        Path | None, typer.Option(help="Data directory (default: in the user's state).")
    ] = None,
    background: Annotated[
        bool,
        typer.Option("--background", help="Return when it serves clients, and leave it running."),
    ] = False,
) -> None:
    """Start a ZooKeeper and print the value of ``ha`` for jobs; PySpark ships its jars."""
    servers = EmbeddedZooKeeper(
        data_dir=data_dir or state_dir() / "zookeeper-data",
        nodes=nodes,
        port=port,
        detached=background,
    )
    start_once(_NAME, "a ZooKeeper", lambda: _started(servers))
    typer.echo(f"zookeeper://{servers.hosts}/sluice")
    if not background:
        serve(servers, name=_NAME, title=f"ZooKeeper {zookeeper_version()}")


add_server_commands(app, _NAME, "ZooKeeper")


def _started(servers: EmbeddedZooKeeper) -> RunningServer:
    servers.start()
    return RunningServer(
        name=_NAME,
        identities=servers.identities,
        address=servers.hosts,
        data_dir=servers.log_path.parent,
        log_path=servers.log_path,
    )
