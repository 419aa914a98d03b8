"""``sluice kafka``: a broker on this machine for first steps."""

from pathlib import Path
from subprocess import SubprocessError
from typing import Annotated

import typer

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.topic_creation import NewTopic, create_topics
from sluice.connectors.kafka.tools.broker.broker_archive import prepare_broker
from sluice.connectors.kafka.tools.broker.embedded_kafka import (
    KAFKA_VERSION,
    EmbeddedKafka,
    kafka_jars,
)
from sluice.connectors.kafka.tools.connection_options import (
    BOOTSTRAP_NAMES,
    Config,
    ConfigFile,
    connection_of,
    read_options,
)
from sluice.runtime.embedded.background import RunningServer, recall, start_once
from sluice.runtime.embedded.cache import state_dir
from sluice.runtime.embedded.ivy import report_to_stderr
from sluice.runtime.embedded.ports import LAST_PORT
from sluice.runtime.embedded.server_commands import add_server_commands, serve
from sluice.runtime.errors import MissingRequirementError, StreamError

__all__ = ["app"]

_NAME = "kafka"

app = typer.Typer(
    help="Start and stop a real single-node Kafka broker on this machine.", no_args_is_help=True
)


@app.command()
def start(
    *,
    port: Annotated[
        int, typer.Option(min=1, max=LAST_PORT, help="Port of the broker on 127.0.0.1.")
    ] = 9092,
    data_dir: Annotated[
        Path | None, typer.Option(help="Data directory (default: in the user's state).")
    ] = None,
    background: Annotated[
        bool, typer.Option("--background", help="Return when it answers, and leave it running.")
    ] = False,
    transaction_version: Annotated[
        int, typer.Option(min=0, max=2, help="Feature level of a new data directory.")
    ] = 2,
) -> None:
    """Start a broker; the first start downloads its jars."""
    broker = EmbeddedKafka(
        data_dir=data_dir or state_dir() / "kafka-data",
        port=port,
        transaction_version=transaction_version,
        detached=background,
    )
    start_once(_NAME, "a broker", lambda: _started(broker))
    typer.echo(broker.bootstrap)
    if not background:
        serve(broker, name=_NAME, title=f"Kafka {KAFKA_VERSION}")


add_server_commands(app, _NAME, "broker")


@app.command()
def fetch() -> None:
    """Fetch the broker's jars, archive its classes, and print the jars' directory."""
    jars = kafka_jars()
    try:
        prepare_broker()
    except (StreamError, OSError, SubprocessError) as error:
        report_to_stderr(f"Class archive not made: the broker starts slower, and works. {error}")
    typer.echo(str(jars))


@app.command()
def create(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Name of a topic.")],
    *,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of each topic.")] = 4,
    bootstrap: Annotated[
        str | None,
        typer.Option(*BOOTSTRAP_NAMES, help="Another cluster than the broker of `start`."),
    ] = None,
    config: Config = None,
    config_file: ConfigFile = None,
) -> None:
    """Create topics; sources and sinks require existing topics."""
    connection = connection_of(bootstrap, read_options(config, config_file))
    server = recall(_NAME)
    if connection is None and server is not None:
        connection = KafkaConnection(bootstrap_servers=server.address)
    if connection is None:
        raise MissingRequirementError(
            "this user has no running broker",
            {"topics": ",".join(topics)},
            "Start one with: sluice kafka start --background, or give --bootstrap-servers "
            "host:port.",
        )
    create_topics(connection, [NewTopic(name, num_partitions=partitions) for name in topics])
    typer.echo(f"created {', '.join(topics)} with {partitions} partition(s) each")


def _started(broker: EmbeddedKafka) -> RunningServer:
    broker.start()
    return RunningServer(
        name=_NAME,
        identities=(broker.identity,),
        address=broker.bootstrap,
        data_dir=broker.log_path.parent,
        log_path=broker.log_path,
    )
