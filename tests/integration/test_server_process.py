"""Real processes that never become servers."""

from pathlib import Path

import psutil
import pytest

from runtime.embedded.process import ServerProcess, ServerSpec
from runtime.errors import MissingRequirementError

pytestmark = pytest.mark.integration


def _started(tmp_path: Path, script: str) -> str:
    """The error of a start that ends in one; whatever ran is gone."""
    server = ServerProcess(
        ServerSpec(
            name="stand-in",
            command=("/bin/sh", "-c", f"echo pid $$; {script}"),
            log_path=tmp_path / "log",
            ready_text="ready",
            silence_s=0.5,
        )
    )
    with pytest.raises(MissingRequirementError, match="stand-in did not start") as caught:
        server.start()
    said = (tmp_path / "log").read_text()
    for word in said.split():
        assert not (word.isdigit() and psutil.pid_exists(int(word)))
    return str(caught.value)


def test_silent_process_is_given_up_and_ended(tmp_path: Path) -> None:
    """It neither ends nor says that it is ready."""
    assert "its log was silent" in _started(tmp_path, "exec sleep 600")


def test_process_that_ends_is_told_with_its_last_words(tmp_path: Path) -> None:
    """Nothing is waited for."""
    error = _started(tmp_path, "echo no such file")
    assert "ended before it was ready" in error
    assert "no such file" in error
