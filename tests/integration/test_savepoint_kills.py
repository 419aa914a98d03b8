"""`kill -9` at each step of a savepoint, a full checkpoint and a disposal: whole, or none."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.runtime.errors import ConfigError
from sluice.runtime.failpoints import VARIABLE
from sluice.runtime.savepoint.savepoint import open_savepoint
from sluice.runtime.savepoint.savepoint_directory import dispose, find_savepoints, verify
from tests.kit.waiting import PATIENCE_S
from tests.unit.runtime.savepoint.test_savepoints_on_disk import Job

_POINTS = (
    "before-savepoint-copy",
    "after-savepoint-copy",
    "before-savepoint-metadata",
    "after-temp-sync",
    "after-link",
    "after-savepoint-metadata",
)
_WHOLE_FROM = _POINTS.index("after-link")
_PROGRAM = """
import sys
from pathlib import Path
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.savepoint.full_checkpoints import write_full_checkpoint
from sluice.runtime.savepoint.savepoint_directory import dispose
from sluice.runtime.savepoint.savepoint_writer import write_savepoint
from sluice.runtime.storage.local_fs import LocalFileSystem
action, root, to = sys.argv[1:]
fs = LocalFileSystem(Path(root))
record = CheckpointStore(fs).read(5)
if action == "savepoint":
    name = Path(to).name
    write_savepoint(fs, record, LocalFileSystem(Path(to).parent), name=name)
elif action == "full":
    write_full_checkpoint(fs, record)
else:
    dispose(to)
"""


def _killed(action: str, job: Job, to: Path, failpoint: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", _PROGRAM, action, str(job.root), str(to)],
        env={
            **os.environ,
            VARIABLE: f"{failpoint}=kill",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        timeout=PATIENCE_S,
        check=False,
    )
    assert found.returncode == -signal.SIGKILL


@pytest.mark.integration
@pytest.mark.extended
@pytest.mark.parametrize("failpoint", _POINTS)
def test_killed_savepoints_are_whole_or_none(tmp_path: Path, failpoint: str) -> None:
    """Once and twice in a row; what stays is found, and deleted on request."""
    job = Job(tmp_path / "job")
    parent = tmp_path / "elsewhere"
    parent.mkdir()
    for name in ("savepoint-6f9619ff-5-00000a", "savepoint-6f9619ff-5-00000b"):
        _killed("savepoint", job, parent / name, failpoint)
    is_whole = _POINTS.index(failpoint) >= _WHOLE_FROM
    for found in find_savepoints(str(parent)):
        assert (found.record is not None) == is_whole
        if is_whole:
            verify(open_savepoint(found.uri))
        dispose(found.uri, incomplete=True)
    assert not list(parent.iterdir())
    verify(open_savepoint(str(job.ordinary)))


@pytest.mark.integration
@pytest.mark.extended
@pytest.mark.parametrize("failpoint", _POINTS)
def test_killed_full_checkpoint_is_whole_or_none(tmp_path: Path, failpoint: str) -> None:
    """The same checkpoint again completes it, with files that are there already."""
    job = Job(tmp_path / "job")
    (job.full / "_metadata").unlink()
    _killed("full", job, job.full, failpoint)
    if _POINTS.index(failpoint) >= _WHOLE_FROM:
        verify(open_savepoint(str(job.full)))
        return
    with pytest.raises(ConfigError, match="holds no complete savepoint"):
        open_savepoint(str(job.full))
    _killed("full", job, job.full, "after-savepoint-metadata")
    verify(open_savepoint(str(job.full)))


@pytest.mark.integration
@pytest.mark.extended
@pytest.mark.parametrize("failpoint", ["before-dispose-metadata", "after-dispose-metadata"])
def test_killed_disposal_leaves_it_whole_or_none(tmp_path: Path, failpoint: str) -> None:
    job = Job(tmp_path / "job")
    _killed("dispose", job, job.savepoint, failpoint)
    if failpoint.startswith("before"):
        verify(open_savepoint(str(job.savepoint)))
    else:
        with pytest.raises(ConfigError, match="holds no complete savepoint"):
            open_savepoint(str(job.savepoint))
    dispose(str(job.savepoint), incomplete=True)
    assert not job.savepoint.exists()
