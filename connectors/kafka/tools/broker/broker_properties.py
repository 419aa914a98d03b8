"""Configuration of a single KRaft node: pure, values in and properties out."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.runtime.embedded.ports import HOST

__all__ = ["BrokerPorts", "render", "server_properties"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPorts:
    """The ports of the node on 127.0.0.1."""

    plain: int
    controller: int


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


def server_properties(
    *, ports: BrokerPorts, log_dir: Path, overrides: Mapping[str, str]
) -> dict[str, str]:
    """The whole ``server.properties``; ``overrides`` win."""
    listeners = f"PLAINTEXT://{HOST}:{ports.plain}"
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{ports.controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{listeners},CONTROLLER://{HOST}:{ports.controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(log_dir),
        **_SINGLE_NODE,
        **overrides,
    }


def render(properties: Mapping[str, str]) -> str:
    """The text of a Java properties file; a backslash starts an escape there."""
    escaped = ((key, value.replace("\\", "\\\\")) for key, value in properties.items())
    return "".join(f"{key}={value}\n" for key, value in escaped)
