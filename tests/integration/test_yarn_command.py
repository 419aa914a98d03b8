"""``sluice yarn`` as a user calls it, in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.runtime.embedded.ports import free_ports, is_free
from tests.kit.deploy_page import run_commands
from tests.kit.waiting import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.extended]

_SLUICE = (sys.executable, "-m", "sluice")


def _run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_SLUICE, *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_servers_in_the_background_are_found_refused_twice_and_stopped(tmp_path: Path) -> None:
    """By the commands of the page: HDFS, and two nodes of YARN on it."""
    state = {"SLUICE_STATE": str(tmp_path / "state")}
    environment = {**os.environ, **state}
    hdfs_port, hdfs_web, port, web_port = free_ports(4)
    try:
        said = run_commands(
            "Start HDFS and YARN on this machine",
            {
                "sluice ": f"{' '.join(_SLUICE)} ",
                "hdfs start": f"hdfs start --port {hdfs_port} --web-port {hdfs_web}",
                "yarn start": f"yarn start --port {port} --web-port {web_port}",
                "127.0.0.1:9000": f"127.0.0.1:{hdfs_port}",
            },
            directory=tmp_path,
            environment=state,
        )
        assert f"export HADOOP_CONF_DIR={tmp_path}/state/yarn-data/conf" in said
        nodes = subprocess.run(
            [tmp_path / "state" / "yarn-data" / "bin" / "yarn", "node", "-list"],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
        assert "Total Nodes:2" in nodes.stdout
        assert f"127.0.0.1:{port}" in _run(environment, "yarn", "status").stdout
        second = _run(environment, "yarn", "start", "--background")
        assert second.returncode == 1
        assert "already runs" in second.stderr
    finally:
        stopped = _run(environment, "yarn", "stop").stdout
        _run(environment, "hdfs", "stop")
    assert stopped.strip() == f"stopped 127.0.0.1:{port}"
    assert is_free(port)
    assert is_free(web_port)
    assert not (tmp_path / "state" / "yarn.json").exists()
