"""`kill -9` at each step of ``sluice state recompute``: a whole savepoint, or none."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.runtime.checkpoint.checkpoint_slots import METADATA
from sluice.runtime.failpoints import VARIABLE
from sluice.runtime.savepoint.savepoint import open_savepoint
from sluice.runtime.savepoint.savepoint_directory import verify
from tests.kit.waiting import PATIENCE_S
from tests.unit.runtime.savepoint.test_keyed_recompute import Old

_POINTS = (
    "before-recompute",
    "after-recompute-copy",
    "after-recompute",
    "before-savepoint-metadata",
    "after-link",
    "after-savepoint-metadata",
)
_WHOLE_FROM = _POINTS.index("after-link")


def _run(root: Path, to: Path, failpoint: str) -> int:
    program = "from sluice.runtime.spark.state.state_cli import app; app()"
    arguments = ["recompute", str(root), "--max-parallelism", "64", "--to", str(to)]
    found = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={
            **os.environ,
            VARIABLE: f"{failpoint}=kill" if failpoint else "",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return found.returncode


@pytest.mark.integration
@pytest.mark.extended
@pytest.mark.parametrize("failpoint", _POINTS)
def test_a_command_that_is_killed_twice_leaves_whole_savepoints_only(
    tmp_path: Path, failpoint: str
) -> None:
    root, to = tmp_path / "old", tmp_path / "to"
    root.mkdir()
    Old(root, keys=40)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    for attempt in range(2):
        assert _run(root, to, failpoint) == -signal.SIGKILL
        whole = [path.parent for path in to.glob(f"*/{METADATA}")]
        assert len(whole) == (attempt + 1 if _POINTS.index(failpoint) >= _WHOLE_FROM else 0)
        for made in whole:
            verify(open_savepoint(str(made)))
    assert _run(root, to, "") == 0
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
