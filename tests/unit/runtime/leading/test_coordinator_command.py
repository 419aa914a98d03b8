"""How a coordinator process ends."""

import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluice.runtime.errors import JobFinishedError
from sluice.runtime.leading import coordinator_cli


def test_a_standby_ends_without_an_error_when_the_leader_has_finished_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finished(*_: object) -> None:
        raise JobFinishedError("the leader has finished the job", {}, "Start it again.")

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(coordinator_cli, "_elected", finished)
    arguments = ["start", "--checkpoint", str(tmp_path), "--ha", "lease"]
    result = CliRunner().invoke(coordinator_cli.app, arguments)
    assert result.exit_code == 0, result.output
    assert result.exception is None
