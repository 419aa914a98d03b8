"""``sluice hdfs`` as a user calls it, in processes of their own, front and background."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.runtime.embedded.ports import free_ports, is_free
from tests.kit.files.webhdfs import read_file, write_file
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.integration


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A user of one's own: no state of earlier runs."""
    return {**os.environ, "SLUICE_STATE": str(tmp_path / "state")}


@pytest.fixture
def ports() -> tuple[int, int]:
    port, web_port = free_ports(2)
    return port, web_port


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from sluice.runtime.cli import main; main()", "hdfs", *arguments]


def _start(ports: tuple[int, int], *arguments: str) -> list[str]:
    return _command("start", "--port", str(ports[0]), "--web-port", str(ports[1]), *arguments)


def _run(environment: dict[str, str], command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


@pytest.fixture
def in_background(environment: dict[str, str], ports: tuple[int, int]) -> Iterator[str]:
    """The URI that ``start --background`` printed; stopped at the end, if not before."""
    started = _run(environment, _start(ports, "--background"))
    yield started.stdout.strip() or started.stderr
    _run(environment, _command("stop"))


@pytest.mark.extended
def test_files_are_found_stopped_and_kept_for_the_next_start(
    environment: dict[str, str], ports: tuple[int, int], in_background: str
) -> None:
    """A background HDFS, its status, a refused second one, stop; then one in front, and Ctrl-C."""
    port, web_port = ports
    web_uri = f"http://127.0.0.1:{web_port}"
    assert in_background == f"hdfs://127.0.0.1:{port}"
    write_file(web_uri, "/kept/file", b"kept")

    described = _run(environment, _command("status")).stdout
    assert in_background in described
    assert web_uri in described
    second = _run(environment, _start(ports, "--background"))
    assert second.returncode == 1
    assert "already runs" in second.stderr
    assert "Traceback" not in second.stderr

    assert _run(environment, _command("stop")).stdout.strip() == f"stopped {in_background}"
    assert is_free(port)
    assert is_free(web_port)
    assert _run(environment, _command("status")).returncode == 1

    with subprocess.Popen(
        _start(ports), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as front:
        assert front.stdout is not None
        assert front.stdout.readline().strip() == in_background
        assert read_file(web_uri, "/kept/file") == b"kept"
        write_file(web_uri, "/kept/another", b"too")
        front.send_signal(signal.SIGINT)
        _, errors = front.communicate(timeout=PATIENCE_S)
    assert front.returncode == 130
    assert "Traceback" not in errors
    wait_for(lambda: is_free(port), what="the port is free")


@pytest.mark.parametrize("which", [0, 1], ids=["port", "web-port"])
def test_occupied_port_is_one_sentence(environment: dict[str, str], which: int) -> None:
    """Named before anything is formatted or started."""
    ports = list(free_ports(2))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports[which] = taken.getsockname()[1]
        refused = _run(environment, _start((ports[0], ports[1]), "--background"))
    assert refused.returncode == 1
    assert f"port {ports[which]} is occupied" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (Path(environment["SLUICE_STATE"]) / "hdfs-data").exists()


def test_unusable_data_directory_is_one_sentence(
    environment: dict[str, str], ports: tuple[int, int], tmp_path: Path
) -> None:
    """A file stands where the directory should be."""
    (tmp_path / "file").write_text("")
    refused = _run(environment, _start(ports, "--data-dir", str(tmp_path / "file")))
    assert refused.returncode == 1
    assert "the directory cannot be used" in refused.stderr
    assert "Traceback" not in refused.stderr
