"""Options that several commands share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.properties_file import client_properties
from sluice.runtime.errors import ConfigError

__all__ = ["BOOTSTRAP_NAMES", "Config", "ConfigFile", "connection_of", "read_options"]

BOOTSTRAP_NAMES = ("--bootstrap-servers", "--bootstrap-server", "--bootstrap")
"""The documentation uses the first; the second is that of Kafka's own tools."""

Config = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="KEY=VALUE", help="A kafka.* option; may be repeated."),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config-file",
        exists=True,
        dir_okay=False,
        help="A properties file of Kafka's clients, for secrets.",
    ),
]


def connection_of(bootstrap: str | None, options: dict[str, str]) -> KafkaConnection | None:
    """The connection to a cluster; None: neither servers nor options are given.

    Raises:
        ConfigError: an option without the prefix ``kafka.``, or an error of `KafkaConnection.of`.
    """
    if bootstrap is not None:
        options = {**options, "kafka.bootstrap.servers": bootstrap}
    for name in options:
        if not name.lower().startswith("kafka."):
            raise ConfigError(
                "an option of Kafka's clients lacks its prefix",
                {"option": name},
                f"Write kafka.{name}.",
            )
    return KafkaConnection.of(options) if options else None


def read_options(config: Sequence[str] | None, config_file: Path | None) -> dict[str, str]:
    """Options given as KEY=VALUE in a file, then on the command line.

    Raises:
        ConfigError: an option of another form, or a file that cannot be read.
    """
    options = client_properties(config_file) if config_file is not None else {}
    for number, item in enumerate(config or (), 1):
        name, separator, value = item.partition("=")
        if not separator:
            raise ConfigError(
                "an option is not of the form KEY=VALUE",
                {"option": number, "begins_with": _shown(name)},
                "Write for example kafka.security.protocol=SASL_SSL.",
            )
        options[name.strip()] = value.strip()
    return options


def _shown(text: str) -> str:
    """The name of an option, or a placeholder: the line may be part of a key of several lines."""
    words = text.split()
    return words[0] if words and words[0].startswith("kafka.") else "(not shown)"
