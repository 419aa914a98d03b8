"""``sluice yarn``: a ResourceManager and NodeManagers on this machine for first steps."""

from pathlib import Path
from typing import Annotated

import typer

from sluice.runtime.embedded.background import RunningServer, start_once
from sluice.runtime.embedded.cache import state_dir
from sluice.runtime.embedded.ports import LAST_PORT
from sluice.runtime.embedded.server_commands import add_server_commands, serve
from sluice.runtime.embedded.yarn.embedded_yarn import YARN_VERSION, EmbeddedYarn, yarn_class_path

__all__ = ["app"]

_NAME = "yarn"

app = typer.Typer(
    help="Start and stop a real YARN on this machine: a ResourceManager and NodeManagers.",
    no_args_is_help=True,
)


@app.command()
def start(
    *,
    nodes: Annotated[
        int, typer.Option(min=1, max=250, help="NodeManagers, on 127.0.0.1, 127.0.0.2 and so on.")
    ] = 1,
    port: Annotated[
        int, typer.Option(min=1, max=LAST_PORT, help="Port of the ResourceManager on 127.0.0.1.")
    ] = 8032,
    web_port: Annotated[
        int, typer.Option(min=1, max=LAST_PORT, help="Port of the web pages and of REST.")
    ] = 8088,
    default_fs: Annotated[
        str,
        typer.Option(
            metavar="URI", help="File system that applications upload to, e.g. of `sluice hdfs`."
        ),
    ] = "file:///",
    memory_mib: Annotated[
        int, typer.Option("--node-memory", min=512, help="MiB for the containers of each node.")
    ] = 4096,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Configuration, containers, logs (default: in the user's state)."),
    ] = None,
    background: Annotated[
        bool,
        typer.Option("--background", help="Return when it takes applications; leave it running."),
    ] = False,
) -> None:
    """Start a YARN, print the settings of its clients; the first start downloads its jars.

    Copy the two printed lines into the shell that runs spark-submit. For tests on a machine of your
    own: YARN has no log-in, so each of its users can run programs as you.
    """
    servers = EmbeddedYarn(
        data_dir=data_dir or state_dir() / "yarn-data",
        nodes=nodes,
        port=port,
        web_port=web_port,
        default_fs=default_fs,
        settings={"yarn.nodemanager.resource.memory-mb": str(memory_mib)},
        detached=background,
    )
    start_once(_NAME, "a YARN", lambda: _started(servers))
    typer.echo(f"export HADOOP_CONF_DIR={servers.conf_dir}")
    typer.echo(f'export PATH="{servers.bin_dir}:$PATH"')
    if not background:
        serve(servers, name=_NAME, title=f"YARN {YARN_VERSION}")


add_server_commands(app, _NAME, "YARN")


@app.command()
def fetch() -> None:
    """Fetch the servers' jars, and print the jars that they need, one on each line."""
    for jar in yarn_class_path():
        typer.echo(str(jar))


def _started(servers: EmbeddedYarn) -> RunningServer:
    servers.start()
    return RunningServer(
        name=_NAME,
        identities=servers.identities,
        address=servers.address,
        data_dir=servers.conf_dir.parent,
        log_path=servers.log_path,
        web_address=servers.web_uri,
    )
