"""``sluice hdfs``: a NameNode and a DataNode on this machine for first steps."""

from pathlib import Path
from typing import Annotated

import typer

from sluice.runtime.embedded.background import RunningServer, start_once
from sluice.runtime.embedded.cache import state_dir
from sluice.runtime.embedded.hdfs.embedded_hdfs import HDFS_VERSION, EmbeddedHdfs, hdfs_class_path
from sluice.runtime.embedded.ports import LAST_PORT
from sluice.runtime.embedded.server_commands import add_server_commands, serve

__all__ = ["app"]

_NAME = "hdfs"

app = typer.Typer(
    help="Start and stop a real HDFS on this machine: one NameNode, one DataNode.",
    no_args_is_help=True,
)


@app.command()
def start(
    *,
    port: Annotated[
        int, typer.Option(min=1, max=LAST_PORT, help="Port of the NameNode on 127.0.0.1.")
    ] = 9000,
    web_port: Annotated[
        int, typer.Option(min=1, max=LAST_PORT, help="Port of the web pages and of WebHDFS.")
    ] = 9870,
    data_dir: Annotated[
        Path | None, typer.Option(help="Data directory (default: in the user's state).")
    ] = None,
    background: Annotated[
        bool,
        typer.Option("--background", help="Return when it accepts files, and leave it running."),
    ] = False,
) -> None:
    """Start an HDFS; the first start downloads its jar."""
    servers = EmbeddedHdfs(
        data_dir=data_dir or state_dir() / "hdfs-data",
        port=port,
        web_port=web_port,
        detached=background,
    )
    start_once(_NAME, "an HDFS", lambda: _started(servers))
    typer.echo(servers.uri)
    if not background:
        serve(servers, name=_NAME, title=f"HDFS {HDFS_VERSION}")


add_server_commands(app, _NAME, "HDFS")


@app.command()
def fetch() -> None:
    """Fetch the servers' jar, and print the jars that they need, one on each line."""
    for jar in hdfs_class_path():
        typer.echo(str(jar))


def _started(servers: EmbeddedHdfs) -> RunningServer:
    servers.start()
    return RunningServer(
        name=_NAME,
        identities=servers.identities,
        address=servers.uri,
        data_dir=servers.log_path.parent,
        log_path=servers.log_path,
        web_address=servers.web_uri,
    )
