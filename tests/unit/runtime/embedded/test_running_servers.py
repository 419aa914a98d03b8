"""What runs for a user: remembered, found again while it lives, and started once."""

import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sluice.connectors.hdfs.tools.hdfs_cli import app as hdfs
from sluice.connectors.kafka.tools.broker.kafka_cli import app as kafka
from sluice.runtime.embedded.background import RunningServer, forget, recall, remember, start_once
from sluice.runtime.embedded.cache import require_directory
from sluice.runtime.embedded.process import Identity
from sluice.runtime.errors import MissingRequirementError

_GONE = Identity(pid=2**22 + 1, created_at=1.0)  # above the largest process id of Linux


def test_unusable_directory_is_one_sentence(tmp_path: Path) -> None:
    """A file stands in the way."""
    (tmp_path / "file").touch()
    with pytest.raises(MissingRequirementError, match="cannot be used") as caught:
        require_directory(tmp_path / "file" / "below")
    assert caught.value.args[1]["error"] == "Not a directory"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user of one's own."""
    monkeypatch.setenv("SLUICE_STATE", str(tmp_path))
    return tmp_path


def _server(state: Path, *identities: Identity) -> RunningServer:
    return RunningServer(
        name="hdfs",
        identities=identities,
        address="hdfs://127.0.0.1:1",
        data_dir=state / "data",
        log_path=state / "log",
        web_address="http://127.0.0.1:2",
    )


def test_server_is_found_as_long_as_one_of_its_processes_attempts(state: Path) -> None:
    """A DataNode without its NameNode is still there to be stopped."""
    half = _server(state, _GONE, Identity.of(os.getpid()))
    remember(half)
    assert recall("hdfs") == half
    assert half.describe() == (
        f"hdfs://127.0.0.1:1  web http://127.0.0.1:2  pid {_GONE.pid}, {os.getpid()}"
        f"  log {state / 'log'}"
    )
    forget("hdfs")
    assert recall("hdfs") is None


def test_server_is_gone_with_its_last_process(state: Path) -> None:
    """The file alone says nothing."""
    remember(_server(state, _GONE, _GONE))
    assert recall("hdfs") is None


@pytest.mark.parametrize(
    "content",
    [
        b"[1]",
        b"5",
        b"\xff",
        b"[" * 100_000,
        b'{"processes": [5]}',
        b'{"processes": 5}',
        b'{"pid": -1, "created_at": 1, "address": "a", "data_dir": "d", "log_path": "l"}',
        b'{"pid": "x", "created_at": 1, "address": "a", "data_dir": "d", "log_path": "l"}',
        b'{"pid": 1, "created_at": 1, "address": "a", "data_dir": 5, "log_path": "l"}',
    ],
)
def test_a_file_that_is_not_ours_is_no_server(state: Path, content: bytes) -> None:
    (state / "kafka.json").write_bytes(content)
    assert recall("kafka") is None


@pytest.mark.parametrize("app", [kafka, hdfs], ids=["kafka", "hdfs"])
@pytest.mark.parametrize("command", ["status", "stop", "start"])
def test_a_state_that_is_no_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, app: typer.Typer, command: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SLUICE_STATE", str(tmp_path / "file"))
    result = CliRunner().invoke(app, [command])
    assert isinstance(result.exception, MissingRequirementError)
    assert str(tmp_path / "file") in str(result.exception)


@pytest.mark.parametrize(
    ("app", "option"), [(kafka, "--port"), (hdfs, "--port"), (hdfs, "--web-port")]
)
@pytest.mark.parametrize("port", ["70000", "-1", "0"])
def test_a_port_that_there_is_not_is_wrong_usage(
    state: Path, app: typer.Typer, option: str, port: str
) -> None:
    result = CliRunner().invoke(app, ["start", option, port])
    assert result.exit_code == 2
    assert option in result.output
    assert not any(state.iterdir())


def test_second_start_is_refused_with_what_runs(state: Path) -> None:
    """One server of a name per user; nothing is started."""
    remember(_server(state, Identity.of(os.getpid())))

    def start() -> RunningServer:
        raise AssertionError("must not be asked")

    with pytest.raises(MissingRequirementError, match="an HDFS of this user already runs") as told:
        start_once("hdfs", "an HDFS", start)
    assert told.value.args[1]["address"] == "hdfs://127.0.0.1:1"
    assert "sluice hdfs stop" in told.value.args[2]
