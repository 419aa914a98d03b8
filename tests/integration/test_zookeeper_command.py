"""``sluice zookeeper`` as a user calls it, in processes of their own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.runtime.election.zookeeper_nodes import ZooKeeperNodes
from sluice.runtime.election.zookeeper_path import ZooKeeperPath
from sluice.runtime.embedded.ports import free_ports
from tests.kit.waiting import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.extended]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A user of one's own; a server that is left over is stopped."""
    found = {**os.environ, "SLUICE_STATE": str(tmp_path / "state")}
    yield found
    _run(found, "stop")


def _run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sluice", "zookeeper", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def _leader_node(uri: str) -> bytes:
    where = ZooKeeperPath.parse(uri)
    assert where is not None
    nodes = ZooKeeperNodes(where, session_timeout_s=10.0)
    try:
        nodes.connect()
        data, version = nodes.read_leader()
        nodes.write_leader(b"kept", version=version)
    finally:
        nodes.close()
    return data


def test_a_background_server_is_found_and_stopped_and_keeps_its_data(
    environment: dict[str, str],
) -> None:
    """It prints the value of ``ha``."""
    (port,) = free_ports(1)
    started = _run(environment, "start", "--port", str(port), "--background")
    uri = started.stdout.strip()
    assert uri == f"zookeeper://127.0.0.1:{port}/sluice", started.stderr
    assert _leader_node(uri) == b""
    assert f"127.0.0.1:{port}" in _run(environment, "status").stdout
    second = _run(environment, "start", "--port", str(port), "--background")
    assert second.returncode == 1
    assert "already runs" in second.stderr
    assert f"stopped 127.0.0.1:{port}" in _run(environment, "stop").stdout
    assert _run(environment, "status").returncode == 1
    _run(environment, "start", "--port", str(port), "--background")
    assert _leader_node(uri) == b"kept"
