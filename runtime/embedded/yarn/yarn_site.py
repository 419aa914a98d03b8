"""Configuration of the ResourceManager and the NodeManagers: pure functions, values in, text
out."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.runtime.embedded.ports import HOST

__all__ = ["YarnPorts", "client_script", "client_site", "node_host", "node_site"]

_CLI = "org.apache.hadoop.yarn.client.cli"


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnPorts:
    """Ports of the ResourceManager; all processes read them from ``yarn-site.xml``.

    Attributes:
        rpc: of clients.
        web: of its web pages and its REST interface.
        scheduler: of application masters.
        tracker: of NodeManagers.
        admin: of operators.
    """

    rpc: int
    web: int
    scheduler: int
    tracker: int
    admin: int


def node_host(number: int) -> str:
    """Address of a node, counted from 1: each node of one machine is a host of its own."""
    return f"127.0.0.{number}"


def client_site(*, ports: YarnPorts, overrides: Mapping[str, str]) -> dict[str, str]:
    """``yarn-site.xml`` of clients, application masters and the ResourceManager."""
    return {
        "yarn.resourcemanager.hostname": HOST,
        "yarn.resourcemanager.address": f"{HOST}:{ports.rpc}",
        "yarn.resourcemanager.webapp.address": f"{HOST}:{ports.web}",
        "yarn.resourcemanager.scheduler.address": f"{HOST}:{ports.scheduler}",
        "yarn.resourcemanager.resource-tracker.address": f"{HOST}:{ports.tracker}",
        "yarn.resourcemanager.admin.address": f"{HOST}:{ports.admin}",
        "yarn.resourcemanager.connect.retry-interval.ms": "500",
        # YARN never starts an application more often than this, whatever the application requests.
        "yarn.resourcemanager.am.max-attempts": "10",
        "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "200",
        "yarn.nm.liveness-monitor.expiry-interval-ms": "30000",
        "yarn.scheduler.minimum-allocation-mb": "128",
        # One queue; application masters may use all of it.
        "yarn.scheduler.capacity.root.queues": "default",
        "yarn.scheduler.capacity.root.default.capacity": "100",
        "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
        **overrides,
    }


def node_site(site: Mapping[str, str], *, number: int, directory: Path) -> dict[str, str]:
    """``yarn-site.xml`` of a NodeManager; properties of ``site`` win.

    Args:
        number: of the node, from 1.
        directory: for its containers and their logs.
    """
    host = node_host(number)
    addresses = {
        f"yarn.nodemanager.{name}": f"{host}:0"
        for name in ("address", "localizer.address", "webapp.address", "collector-service.address")
    }
    return {
        **addresses,
        "yarn.nodemanager.hostname": host,
        "yarn.nodemanager.bind-host": host,
        "yarn.nodemanager.local-dirs": str(directory / "local"),
        "yarn.nodemanager.log-dirs": str(directory / "logs"),
        "yarn.nodemanager.resource.memory-mb": "4096",
        "yarn.nodemanager.resource.cpu-vcores": "8",
        # An idle JVM reserves far more address space than it uses.
        "yarn.nodemanager.vmem-check-enabled": "false",
        # By default a node with a disk that is 90 % full takes no container.
        "yarn.nodemanager.disk-health-checker.enable": "false",
        **site,
    }


def client_script(*, java: Path, class_path: str) -> str:
    """A program ``yarn`` with the subcommands of Hadoop's that applications need."""
    return f"""\
#!/bin/sh
case "$1" in
  application|app) main={_CLI}.ApplicationCLI ;;
  applicationattempt) main={_CLI}.ApplicationCLI ;;
  container) main={_CLI}.ApplicationCLI ;;
  node) main={_CLI}.NodeCLI ;;
  *) echo "usage: yarn application|applicationattempt|container|node OPTION..." >&2; exit 2 ;;
esac
[ "$main" = {_CLI}.ApplicationCLI ] || shift
exec "{java}" -Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "{class_path}" "$main" "$@"
"""
