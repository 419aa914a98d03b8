"""``sluice kafka``: a broker on this machine for first steps, and the topics of jobs."""

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
from sluice.connectors.kafka.tools.job_topic_lines import (
    JobTopicLine,
    delete_topics,
    list_topics,
)
from sluice.runtime.cli_output import AsJson, CheckpointPath, print_json, print_table
from sluice.runtime.embedded.background import RunningServer, recall, start_once
from sluice.runtime.embedded.cache import state_dir
from sluice.runtime.embedded.ivy import report_to_stderr
from sluice.runtime.embedded.ports import LAST_PORT
from sluice.runtime.embedded.server_commands import add_server_commands, serve
from sluice.runtime.errors import MissingRequirementError, StreamError

__all__ = ["app"]

_NAME = "kafka"

app = typer.Typer(
    help="Start and stop a Kafka broker on this machine; list the topics of jobs.",
    no_args_is_help=True,
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
    names: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Name of a topic.")],
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
            {"topics": ",".join(names)},
            "Start one with: sluice kafka start --background, or give --bootstrap-servers "
            "host:port.",
        )
    create_topics(connection, [NewTopic(name, num_partitions=partitions) for name in names])
    typer.echo(f"created {', '.join(names)} with {partitions} partition(s) each")


@app.command()
def topics(
    path: CheckpointPath,
    *,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete them; the job cannot start after that.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Delete them although rows in them are unread.")
    ] = False,
    bootstrap: Annotated[
        str | None,
        typer.Option(*BOOTSTRAP_NAMES, help="Kafka servers; default: those in the checkpoint."),
    ] = None,
    config: Config = None,
    config_file: ConfigFile = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Seconds to wait for the cluster.")
    ] = 15.0,
    as_json: AsJson = False,
) -> None:
    """List or delete a job's repartition topics, which key_by has made."""
    options = read_options(config, config_file)
    lines = list_topics(path, bootstrap=bootstrap, options=options, timeout_s=timeout_s)
    if delete:
        delete_topics(path, lines, force=force, timeout_s=timeout_s)
    if as_json:
        print_json({"topics": [_as_json(line) for line in lines], "deleted": delete})
        return
    if delete:
        for line in lines:
            typer.echo(f"deleted {line.topic}")
        return
    columns = ("topic", "read by", "partitions", "in flight")
    print_table(
        columns,
        [
            (line.topic, line.source, line.partitions or "missing", line.messages_in_flight)
            for line in lines
        ],
    )


def _as_json(line: JobTopicLine) -> dict[str, object]:
    return {
        "topic": line.topic,
        "source": line.source,
        "partitions": line.partitions,
        "messages_in_flight": line.messages_in_flight,
    }


def _started(broker: EmbeddedKafka) -> RunningServer:
    broker.start()
    return RunningServer(
        name=_NAME,
        identities=(broker.identity,),
        address=broker.bootstrap,
        data_dir=broker.log_path.parent,
        log_path=broker.log_path,
    )
