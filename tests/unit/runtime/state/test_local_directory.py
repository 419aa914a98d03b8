"""Local directories of state: gone with the process that made them."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.runtime.errors import StorageError
from sluice.runtime.state.local_directory import LocalDirectory

_PROGRAM = """
import signal, sys
from sluice.runtime.state.local_directory import LocalDirectory
print(LocalDirectory(sys.argv[1]).path, flush=True)
signal.pause()
"""


def test_the_directory_of_a_killed_process_is_swept(tmp_path: Path) -> None:
    """That of a running one stays."""
    above = tmp_path / "local"
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(above)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        ours = LocalDirectory(str(above))
        assert theirs.is_dir()
        other.send_signal(signal.SIGKILL)
        other.wait()
    second = LocalDirectory(str(above))
    assert not theirs.exists()
    assert ours.path.is_dir()
    for each in (ours, second, second):
        each.close()
    assert list(above.iterdir()) == []


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        LocalDirectory(str(tmp_path / "file"))
