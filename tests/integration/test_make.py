"""What a user without the requirements sees: one clear sentence from `make`."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

_ROOT = Path(__file__).parents[2]
_TOOLS = ("bash", "sed", "grep", "tail", "cat", "env", "touch", "rm", "make")


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A checkout without .venv, and in ``bin`` nothing but a shell's usual tools."""
    for name in ("Makefile", "pyproject.toml", "setup.py"):
        shutil.copy(_ROOT / name, tmp_path)
    (tmp_path / "bin").mkdir()
    for tool in _TOOLS:
        found = shutil.which(tool)
        assert found, tool
        (tmp_path / "bin" / tool).symlink_to(found)
    return tmp_path


def _script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def _make(directory: Path, goal: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(directory / "bin"), "HOME": os.environ["HOME"]}
    return subprocess.run(
        ["make", goal],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize("goal", ["demo", "test", "setup"])
def test_missing_python_is_one_sentence(bare: Path, goal: str) -> None:
    _script(bare / "bin" / "python3", "exit 1")
    answer = _make(bare, goal)
    assert answer.returncode
    assert answer.stderr.startswith("Sluice needs Python 3.11 or newer")
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    "version", [None, 'openjdk version "11.0.2" 2019-01-15', 'java version "1.8.0_202"']
)
def test_missing_or_old_java_is_one_sentence(bare: Path, version: str | None) -> None:
    _script(bare / "bin" / "python3", "exit 0")
    if version:
        _script(bare / "bin" / "java", f"echo '{version}' >&2")
    answer = _make(bare, "demo")
    assert answer.returncode
    assert answer.stderr.startswith(f"Sluice needs Java 17 or newer, and found '{version or ''}")
    assert "openjdk-17" in answer.stderr
    assert not (bare / ".venv").exists()


def test_setup_is_instant_when_done(bare: Path) -> None:
    """A second call asks for nothing, not even Java."""
    stamp = bare / ".venv" / ".installed-by-make"
    stamp.parent.mkdir()
    stamp.touch()
    os.utime(bare / "pyproject.toml", (0, 0))
    assert _make(bare, "setup").returncode == 0
