"""A task with keyed state is killed at each step of a change file and of a merge: what the last
record names is restored whole, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.runtime.failpoints import VARIABLE

_ROOT = Path(__file__).parents[2]
_STEPS = (
    "before-state-file",
    "after-state-file",
    "before-state-merge",
    "before-merged-file",
    "after-merged-file",
)


def _run(directory: Path, failpoints: str) -> int:
    environment = {**os.environ, VARIABLE: failpoints, "PYTHONPATH": str(_ROOT)}
    program = [sys.executable, "-m", "tests.kit.state.killed_program", str(directory)]
    return subprocess.run(program, env=environment, cwd=_ROOT, check=False, timeout=300).returncode


@pytest.mark.parametrize(
    "steps",
    [
        ("after-state-file", "before-merged-file"),
        pytest.param(_STEPS, marks=pytest.mark.extended),
        pytest.param(_STEPS[::-1], marks=pytest.mark.extended),
    ],
    ids=str,
)
def test_kills_at_each_step_once_and_twice_in_a_row(tmp_path: Path, steps: tuple[str, ...]) -> None:
    """The program compares the restored state with the record's epoch before it goes on."""
    for step in steps:
        for hit in (1, 2):
            killed = _run(tmp_path, f"{step}=kill@{hit}")
            assert killed == -9 or (hit == 2 and "merge" in step and killed == 0)
    assert _run(tmp_path, "") == 0
    assert _run(tmp_path, "") == 0
