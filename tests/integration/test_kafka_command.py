"""``sluice kafka``: a user starts and stops a broker, in front and in the background."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.runtime.embedded.ports import free_ports, is_free
from tests.kit.kafka.kafka_records import admin
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.integration


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A user of one's own: no state of earlier runs."""
    return {**os.environ, "SLUICE_STATE": str(tmp_path / "state")}


def _command(*arguments: str) -> list[str]:
    return [
        sys.executable,
        "-c",
        "from sluice.runtime.cli import main; main()",
        "kafka",
        *arguments,
    ]


def _run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _command(*arguments), env=environment, capture_output=True, text=True, timeout=PATIENCE_S,
        check=False,
    )  # fmt: skip


@pytest.mark.extended
def test_background_broker_is_found_and_stopped_by_other_commands(
    environment: dict[str, str],
) -> None:
    """start --background, status, topics, a refused second start, stop, and nothing is left."""
    port = free_ports(1)[0]
    alone = _run(environment, "create", "orders")
    assert alone.returncode == 1
    assert "this user has no running broker" in alone.stderr
    started = _run(environment, "start", "--background", "--port", str(port))
    try:
        assert started.stdout.strip() == f"127.0.0.1:{port}", started.stderr
        assert admin(f"127.0.0.1:{port}").list_topics(timeout=120).brokers
        assert f"127.0.0.1:{port}" in _run(environment, "status").stdout
        created = _run(environment, "create", "orders", "copies", "--partitions", "3")
        assert created.returncode == 0, created.stderr
        described = admin(f"127.0.0.1:{port}").list_topics(timeout=120).topics
        assert [len(described[name].partitions) for name in ("orders", "copies")] == [3, 3]
        again = _run(environment, "create", "orders")
        assert again.returncode == 1
        assert "topic: orders" in again.stderr
        assert "Traceback" not in again.stderr
        second = _run(environment, "start", "--background", "--port", str(free_ports(1)[0]))
        assert second.returncode == 1
        assert "already runs" in second.stderr
        assert "Traceback" not in second.stderr
    finally:
        stopped = _run(environment, "stop")
    assert stopped.stdout.strip() == f"stopped 127.0.0.1:{port}"
    assert is_free(port)
    assert _run(environment, "status").returncode == 1


@pytest.mark.extended
def test_ctrl_c_ends_a_broker_in_front(environment: dict[str, str]) -> None:
    """Without --background the command stays; Ctrl-C stops the broker and exits with 130."""
    port = free_ports(1)[0]
    command = _command("start", "--port", str(port))
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as front:
        assert front.stdout is not None
        assert front.stdout.readline().strip() == f"127.0.0.1:{port}"
        front.send_signal(signal.SIGINT)
        _, errors = front.communicate(timeout=PATIENCE_S)
    assert front.returncode == 130
    assert "Traceback" not in errors
    wait_for(lambda: is_free(port), what="the port is free")
