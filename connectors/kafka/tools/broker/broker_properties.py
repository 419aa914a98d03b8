"""Configuration of a single KRaft node: pure, values in and properties out."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sluice.connectors.kafka.client.connection import MECHANISMS
from sluice.runtime.embedded.ports import HOST
from sluice.runtime.errors import ConfigError

__all__ = [
    "BrokerPorts",
    "BrokerSecurity",
    "SecurityProtocol",
    "format_arguments",
    "render",
    "server_properties",
]

_SECURE = "SECURE"
_MODULES = "org.apache.kafka.common.security"


class SecurityProtocol(enum.Enum):
    """Protocol of the second listener; the first is always plain text."""

    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSecurity:
    """A second listener with authentication.

    Attributes:
        protocol: with or without TLS.
        users: password by name; valid for PLAIN and both SCRAM mechanisms. OAUTHBEARER accepts
            unsecured tokens of any subject, which only tests may use.
        mechanisms: of the listener.
    """

    protocol: SecurityProtocol = SecurityProtocol.SASL_SSL
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    mechanisms: tuple[str, ...] = MECHANISMS

    def __post_init__(self) -> None:
        unknown = set(self.mechanisms) - set(MECHANISMS)
        if unknown or not self.mechanisms:
            raise ConfigError(
                "the embedded broker does not offer this SASL mechanism",
                {"mechanisms": sorted(unknown)},
                f"Choose among {', '.join(MECHANISMS)}.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPorts:
    """The ports of the node on 127.0.0.1."""

    plain: int
    controller: int
    secure: int


def server_properties(
    *,
    ports: BrokerPorts,
    log_dir: Path,
    security: BrokerSecurity | None,
    keystore: Path | None,
    keystore_password: str,
    overrides: Mapping[str, str],
) -> dict[str, str]:
    """The whole ``server.properties``; ``overrides`` win."""
    listeners = f"PLAINTEXT://{HOST}:{ports.plain}"
    protocols = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"
    if security:
        listeners += f",{_SECURE}://{HOST}:{ports.secure}"
        protocols += f",{_SECURE}:{security.protocol.value}"
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{ports.controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{listeners},CONTROLLER://{HOST}:{ports.controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": protocols,
        "log.dirs": str(log_dir),
        **_SINGLE_NODE,
    }
    if security:
        properties |= _secure_listener(security, keystore, keystore_password)
    return {**properties, **overrides}


# One node cannot replicate, and small internal topics make it start and stop faster.
_SINGLE_NODE = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.threads": "1",
    # A restarted broker is admitted after its old session has expired: keep the session short.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # Two records a second in the metadata log, each with a disk sync, show how far controllers are
    # apart. One node does not need them.
    "metadata.max.idle.interval.ms": "0",
}


def _secure_listener(
    security: BrokerSecurity, keystore: Path | None, keystore_password: str
) -> dict[str, str]:
    prefix = f"listener.name.{_SECURE.lower()}"
    properties = {f"{prefix}.sasl.enabled.mechanisms": ",".join(security.mechanisms)}
    for mechanism in security.mechanisms:
        properties[f"{prefix}.{mechanism.lower()}.sasl.jaas.config"] = _jaas(
            mechanism, security.users
        )
    if keystore:
        properties |= {
            f"{prefix}.ssl.keystore.location": str(keystore),
            f"{prefix}.ssl.keystore.password": keystore_password,
            f"{prefix}.ssl.keystore.type": "PKCS12",
        }
    return properties


def _jaas(mechanism: str, users: Mapping[str, str]) -> str:
    if mechanism == "PLAIN":
        entries = " ".join(f'user_{name}="{password}"' for name, password in users.items())
        return f"{_MODULES}.plain.PlainLoginModule required {entries};"
    if mechanism == "OAUTHBEARER":
        module = f"{_MODULES}.oauthbearer.OAuthBearerLoginModule"
        return f'{module} required unsecuredLoginStringClaim_sub="broker";'
    return f"{_MODULES}.scram.ScramLoginModule required;"


def format_arguments(
    *,
    cluster_id: str,
    properties_file: Path,
    transaction_version: int,
    security: BrokerSecurity | None,
) -> list[str]:
    """Arguments of ``kafka-storage format``: only they set feature levels and SCRAM users."""
    # One argument with "=": one id in 64 starts with a dash.
    arguments = ["format", f"--cluster-id={cluster_id}", "--config", str(properties_file)]
    arguments += ["--feature", f"transaction.version={transaction_version}"]
    for mechanism in security.mechanisms if security else ():
        if mechanism.startswith("SCRAM"):
            for name, password in (security.users if security else {}).items():
                arguments += ["--add-scram", f"{mechanism}=[name={name},password={password}]"]
    return arguments


def render(properties: Mapping[str, str]) -> str:
    """The text of a Java properties file; a backslash starts an escape there."""
    escaped = ((key, value.replace("\\", "\\\\")) for key, value in properties.items())
    return "".join(f"{key}={value}\n" for key, value in escaped)
